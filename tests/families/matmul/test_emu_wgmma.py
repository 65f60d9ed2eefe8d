# SPDX-License-Identifier: Apache-2.0
"""Tests matmul by wgmma (kf/core/matmul/hopper.cuh), run by the emulator: with hand-written
epilogues in every layout, and through the launchers. Planted faults must be noticed."""

import functools
import os
import subprocess

import cases
import checks
import emulator
import faults
import invariant
import pytest
import toolkit
from conftest import BUILD
from wgmma import FUNCTIONS, INVARIANT, LAST, TILED, check_padded, check_tiles, stores_through_slabs

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
RING = "kf/core/matmul/hopper.cuh"
# file, pattern, replacement
SEEDED_WGMMA = {
    "no turns": (RING, r"kfi_named_sync<256>\(r->group\);", ""),
    "the first turn is nobody's": (RING, r"kfi_named_arrive<256>\(1\);", ""),
    "a stage is read before it has come": (
        RING,
        r"kfi_mbar_wait\(r->full \+ 8 \* r->stage, r->phase\);",
        "",
    ),
    "the phase before": (
        RING,
        r"r->full \+ 8 \* r->stage, r->phase\)",
        "r->full + 8 * r->stage, r->phase ^ 1)",
    ),
    "a stage is filled while it is read": (RING, r"r->phase \^ 1\);", "r->phase);"),
    "a stage is given back before its product": (
        RING,
        r"if \(i > 0 && tells\) kfi_mbar_arrive\(last\);",
        "if (tells) kfi_mbar_arrive(r->empty + 8 * r->stage);",
    ),
    "fewer bytes than come": (
        RING,
        r"kfi_mbar_expect\(bar, kfi_pipeline_stage_bytes\(tile\)\)",
        "kfi_mbar_expect(bar, kfi_pipeline_a_bytes(tile))",
    ),
    "no fence before a product": (RING, r"kfi_wgmma_fence\(\);", ""),
    "sums before they are there": (RING, r"kfi_wgmma_wait<0>\(\);", "kfi_wgmma_wait<1>();"),
    "the first product adds to what was there": (RING, r"!first \|\| q > 0", "true"),
    "mbarriers that copies do not see": (RING, r"kfi_mbar_fence_init\(\);", ""),
    "two arrivals where one comes": (RING, r"kfi_policy\(tile\)\.cooperative \? 2 : 1\);", "2);"),
    "more registers than there are": (
        RING,
        r"kfi_setmaxnreg_inc<kfi_policy\(tile\)\.consumer_registers>",
        "kfi_setmaxnreg_inc<256>",
    ),
    "the other tile is not gone through": (
        RING,
        r"kfi_pipeline_advance<tile>\(r, r->next_count\);",
        "",
    ),
    "the next row of A": (RING, r"a, bar, depth, at\.row, of_a", "a, bar, depth, at.row + 1, of_a"),
    "rows 64 further on are the first ones": (RING, r"a \+ \(m \* 8192 \+", "a + (0 * m +"),
    "another quarter of a stage": (RING, r"b \+ q \* step_b / 16", "b + (q ^ 1) * step_b / 16"),
    "the first matrix in all of them": (
        RING,
        r"\(int\)at\.matrix \* maps\.batched_a",
        "0 * maps.batched_a",
    ),
    "the first split's depth in all of them": (RING, r"at\.begin \+ \(i - term", "(i - term"),
    "partial sums of the first split alone": (
        RING,
        r"at\.matrix, at\.split, p, g\)",
        "at.matrix, 0, p, g)",
    ),
    "columns of another lane": (RING, r"\*high, bit\);", "*high, 3 - bit);"),
    "columns that a lane keeps": (
        RING,
        r"upper \? \*low : \*high, bit",
        "upper ? *high : *low, bit",
    ),
    "the second rows before the first ones": (
        RING,
        r"/ 2 \+ i / 16 \* 2 \+ i % 2",
        "/ 2 + (1 - i / 16) * 2 + i % 2",
    ),
    "the rows of another warp": (RING, r"threadIdx\.x / 32 % 4 \* 16", "threadIdx.x / 32 % 2 * 16"),
}
FEW = "kf/core/matmul/skinny.cuh"
SEEDED_SKINNY = {
    "a stage of few rows is read before it has come": (
        FEW,
        r"kfi_mbar_wait\(f\.full \+ 8 \* stage, phase\);",
        "",
    ),
    "a stage of few rows is filled while it is read": (
        FEW,
        r"kfi_mbar_wait\(f\.empty \+ 8 \* stage, phase\);",
        "",
    ),
    "a stage of few rows is given back before its product": (
        FEW,
        r"if \(i > 0 && tells\) kfi_mbar_arrive\(last\);",
        "if (tells) kfi_mbar_arrive(f.empty + 8 * stage);",
    ),
    "fewer bytes of few rows than come": (
        FEW,
        r"kfi_skinny_b_bytes\(\) \+ maps\.a_bytes",
        "kfi_skinny_b_bytes()",
    ),
    "no fence before a product of few rows": (FEW, r"kfi_wgmma_fence\(\);", ""),
    "sums of few rows before they are there": (
        FEW,
        r"kfi_wgmma_wait<0>\(\);",
        "kfi_wgmma_wait<1>();",
    ),
    "the first product of few rows adds": (FEW, r"i > 0 \|\| q > 0", "true"),
    "mbarriers of few rows that copies do not see": (FEW, r"kfi_mbar_fence_init\(\);", ""),
    "blocks that need not be there": (
        FEW,
        r"if \(bits > 0\) kfi_cluster_wait\(\); // all",
        "// all",
    ),
    "sums of others before they have come": (
        FEW,
        r"kfi_cluster_arrive\(\);\n        kfi_cluster_wait\(\);\n    } else",
        "} else",
    ),
    "sums of other warps before they have come": (
        FEW,
        r"kfi_named_sync<KFI_SKINNY_CONSUMERS>\(1\);",
        "",
    ),
    "the last block's sums left out": (
        FEW,
        r"block < 1 << maps\.share_bits",
        "block < (1 << maps.share_bits) - 1",
    ),
    "a block's sums in another's place": (
        FEW,
        r"f\.rank \* 64 >> bits",
        "(f.rank ^ 1) * 64 >> bits",
    ),
    "the first block's depth in all of them": (
        FEW,
        r"\(f\.begin \+ i\) \* KFI_PIPELINE_K;",
        "i * KFI_PIPELINE_K;",
    ),
    "the last stage of a block's depth": (
        FEW,
        r"\(all \* \(f\.rank \+ 1\) >> maps\.share_bits\) - f\.begin;",
        "(all * (f.rank + 1) >> maps.share_bits) - f.begin - (f.rank > 0);",
    ),
    "the second product's columns": (
        FEW,
        r"\+ product \* f\.groups \* 8",
        "+ 0 * product * f.groups * 8",
    ),
    "the second product's weights": (FEW, r"maps\.b \+ p, bar, depth", "maps.b, bar, depth"),
    "the first matrix of few rows in all of them": (
        FEW,
        r"\(int\)at\.matrix \* maps\.batched_b",
        "0 * maps.batched_b",
    ),
    "another quarter of a stage of few rows": (
        FEW,
        r"b \+ q \* step_b / 16",
        "b + (q ^ 1) * step_b / 16",
    ),
    "a row too many": (FEW, r"row < g\.rows && group", "row <= g.rows && group"),
}
HALVES = "kf/core/matmul/tf32.cuh"
SEEDED_3XTF32 = {
    "a stage of floats is read before it has come": (
        HALVES,
        r"kfi_mbar_wait\(h\.full \+ 8 \* h\.stage, h\.phase\);",
        "",
    ),
    "a right factor before it is split": (
        HALVES,
        r"kfi_mbar_wait\(h->split \+ 8 \* h->stage, h->phase\);",
        "",
    ),
    "a right factor split before it has come": (
        HALVES,
        r"kfi_mbar_wait\(h->full \+ 8 \* h->stage, h->phase\);",
        "",
    ),
    "a stage of floats is filled while it is read": (HALVES, r"h->phase \^ 1\);", "h->phase);"),
    "halves that products need not see": (HALVES, r"kfi_async_fence\(\);", ""),
    "halves of other lanes": (
        HALVES,
        r"kfi_async_fence\(\);\n            __syncwarp\(\);",
        "kfi_async_fence();",
    ),
    "three warps of four have split": (HALVES, r"h\.split \+ 8 \* i, 4\)", "h.split + 8 * i, 3)"),
    "a warp that has not read yet": (HALVES, r"h\.empty \+ 8 \* i, 8\)", "h.empty + 8 * i, 7)"),
    "no fence before a product of halves": (HALVES, r"kfi_wgmma_fence\(\);", ""),
    "sums of halves before they are there": (
        HALVES,
        r"kfi_wgmma_wait<0>\(\);",
        "kfi_wgmma_wait<1>();",
    ),
    "no small half of the left factor": (
        HALVES,
        r"kfi_wgmma_tf32\(sums, lo\[q\], right_hi",
        "kfi_wgmma_tf32(sums, lo[q], right_lo",
    ),
    "no small half of the right factor": (
        HALVES,
        r"kfi_wgmma_tf32\(sums, hi\[q\], right_lo \+ q \* 2, 1\);",
        "",
    ),
    "sums begin with the stage before's": (
        HALVES,
        r"right_hi \+ q \* 2, q > 0\)",
        "right_hi + q * 2, 1)",
    ),
    "another order of the depth": (HALVES, r"4 \* i \+ j;", "4 * (i ^ 1) + j;"),
    "another order of the depth, of a left factor across it": (
        HALVES,
        r"2 \* i \+ j % 2",
        "i + j % 2 * 4",
    ),
    "rows of another order than the left factor's": (
        HALVES,
        r"kfi_3xtf32_fragment_row<layout>\(0\) \* KFI",
        "threadIdx.x % 32 / 4 * KFI",
    ),
    "a box of columns is written while it is read": (
        HALVES,
        r"__syncwarp\(\); // all lanes",
        "// all lanes",
    ),
    "another box of the left factor": (
        HALVES,
        r"left \+ row / 32 \* 4096",
        "left + row / 64 * 4096",
    ),
    "the first product's columns in both": (HALVES, r"maps\.b \+ of, bar", "maps.b, bar"),
    "the first split's depth of floats": (HALVES, r"depth = at\.begin \+ \(i", "depth = (i"),
    "infinity is NaN": (HALVES, r"values\[e\] - values\[e\] == 0 \?", "true ?"),
    "numbers are made again by another row": (
        HALVES,
        r"left\[coord\.row \* row_step",
        "left[(coord.row ^ 1) * row_step",
    ),
    "a warp's floats are overwritten": (HALVES, r"    __syncwarp\(\);\n}\n// Finds", "}\n// Finds"),
    "the first matrix of floats in all of them": (
        HALVES,
        r"\(int\)at\.matrix \* maps\.batched_a",
        "0 * maps.batched_a",
    ),
}
SEEDED_TF32 = {
    "nothing is rounded": (
        "kf/core/matmul/hopper_host.cuh",
        r"KFI_OF_TF32 \? 11",
        "KFI_OF_TF32 ? 7",
    ),
    "the depth of a stage of 2-byte elements": (
        RING,
        r"kfi_policy\(tile\)\.stage_k, maps\)",
        "KFI_PIPELINE_K, maps)",
    ),
    "the first four columns of eight twice": (
        RING,
        r"\+ vector % \(8 / vec\) \* vec \+ e\]",
        "+ e]",
    ),
    "the first product of one part adds": (HALVES, r"parts > 1 \|\| !first \|\| q > 0", "true"),
    "one part in another order": (HALVES, r"half \+ j\)\) = all", "half + (j ^ 1))) = all"),
}
# fault: the program's mode that must notice it, and its place
MODES = {"rings": SEEDED_WGMMA, "few": SEEDED_SKINNY, "halves": SEEDED_3XTF32, "tf32": SEEDED_TF32}
SEEDED = {what: (mode, fault) for mode, seeded in MODES.items() for what, fault in seeded.items()}
ROUNDS = {"rings": "12", "few": "48", "halves": "16", "tf32": "12"}


def passes(program, mode="rings", seed=1):
    """Returns whether the program finds everything right."""
    environment = os.environ | {
        "ASAN_OPTIONS": "exitcode=66:detect_leaks=0:detect_stack_use_after_return=0"
    }
    done = subprocess.run(
        [program, ROUNDS[mode], str(seed), mode],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    print(done.stdout, done.stderr[:3000])
    assert done.returncode != 2, "nothing was run"
    return done.returncode == 0 and done.stdout == "ok\n"


@pytest.mark.parametrize("variant", ["asan", *cases.by_level([], ["plain"])])
def test_products(include, once, variant):
    # The program is shared with test_emu_core.
    program = once(
        f"products, {variant}", lambda folder: emulator.products(include, folder, variant)
    )
    for mode in ROUNDS:
        for seed in range(1, cases.by_level(1, 5) + 1):
            assert passes(program, mode, seed)


def test_every_fault_has_its_place(include, tmp_path):
    for file, text, instead in (fault for _, fault in SEEDED.values()):
        faults.plant(include, tmp_path, file, text, instead)


@pytest.mark.parametrize("what", faults.some(SEEDED))
def test_seeded_fault(include, tmp_path, what):
    mode, fault = SEEDED[what]
    program = emulator.products(faults.plant(include, tmp_path, *fault), tmp_path, "plain", mode)
    assert not passes(program, mode), f"nobody notices {what}"


# ---- launchers

# batch, rows, cols, depth: more than 64 rows; K around the pipeline once and more; skinny M.
SHAPES = [
    (1, 130, 136, 72),
    (2, 200, 72, 712),
    (1, 8, 72, 456),
    (2, 56, 40, 328),
    *cases.by_level([], [(1, 65, 8, 8), (1, 300, 264, 328), (3, 129, 40, 64)]),
    *cases.by_level([], [(1, 1, 200, 8), (3, 16, 64, 72), (1, 24, 16, 520), (1, 64, 128, 200)]),
]


# Several tiles per block on one SM; a K loop around the pipeline for a single tile; columns that
# are no multiple of a slab or of a vector.
TILE_SHAPES = [(2, 130, 264, 136), (1, 72, 40, 712), (2, 130, 131, 72)]


@pytest.fixture(scope="module")
def lib(include):
    functions = [*FUNCTIONS, *(f for f in TILED if f not in FUNCTIONS)]
    return emulator.build(functions, BUILD / "emu", include=include)


@pytest.mark.parametrize("f", FUNCTIONS, ids=[f["name"] for f in FUNCTIONS])
def test_launchers(lib, f):
    emu = emulator.Emulator(lib)
    memory = emulator.Memory(emu, cases.by_level(((emulator.RANDOM, 2),), emulator.RUNS))
    emu.set(hopper=1)
    emu.forget()
    try:
        for sizes in SHAPES:
            checks.run(lib, memory, f, sizes)
        # Infinity, NaN, overflow and subnormal numbers.
        checks.run(lib, memory, f, (1, 70, 24, 72), "special")
        if stores_through_slabs(f):
            check_padded(lib, memory, f, (1, 70, 131, 72))
        emu.set(gemm_sms=132)  # too many SMs for 128x128 tiles: forwards use 64x64
        checks.run(lib, memory, f, (2, 130, 72, 136))
        assert not [name for name in emu.missing() if "_wgmma<" in name or "_skinny<" in name]
    finally:
        emu.set(hopper=0, gemm_sms=1)


@pytest.mark.parametrize("f", TILED, ids=lambda f: f["name"])
def test_tiles(lib, f):
    """Forces each tile of the kernels that store through slabs."""
    emu = emulator.Emulator(lib)
    memory = emulator.Memory(emu, cases.by_level(((emulator.RANDOM, 2),), emulator.RUNS))
    emu.set(hopper=1)
    emu.forget()
    try:
        for sizes in TILE_SHAPES:
            check_tiles(lib, memory, f, sizes, lambda tile: emu.set(gemm_tile=tile))
        assert not [name for name in emu.missing() if "_slabs<" in name]
    finally:
        emu.set(hopper=0, gemm_tile=-1)


@pytest.mark.parametrize("f", INVARIANT, ids=lambda f: f["name"])
def test_batch_invariant(lib, f):
    """Results do not depend on the batch, as with KF_BATCH_INVARIANT: by wgmma, by mma.sync, and
    with loads through registers."""
    emu = emulator.Emulator(lib)
    memory = emulator.Memory(emu, ((emulator.RANDOM, 2),))
    emu.set(gemm_class=0)
    kinds = (
        ("by wgmma", 0, 1, 2),
        ("by wgmma, larger tiles", 0, 1, 1),
        ("by mma.sync", 0, 0, 2),
        ("from any address", 1, 0, 2),
    )
    variants = [
        (what, lib, memory, shift, functools.partial(emu.set, hopper=hopper, gemm_sms=sms), sms)
        for what, shift, hopper, sms in kinds
    ]
    try:
        invariant.check(f, variants)
    finally:
        emu.set(hopper=0, gemm_sms=1, gemm_class=64)


def shared(lib, f):
    """Returns the bits of a weight gradient of four tiles on three SMs, which split the fourth: by
    wgmma; for 2-byte elements also by mma.sync, and from any address."""
    halves = f["dtypes"][0] in ("bf16", "f16")
    emu, sizes = emulator.Emulator(lib), (1, 520, 136, 136)
    memory = emulator.Memory(emu, ((emulator.RANDOM, 2),))
    weights = [a["name"] for a in f["arguments"] if a.get("kind") == "right" and a["role"] == "sum"]
    drop = [
        a["name"]
        for a in f["arguments"]
        if a["role"] in ("out", "sum") and a["name"] not in weights
    ]
    found = []
    try:
        emu.set(gemm_sms=2)
        none = lib.workspace_bytes(f, sizes)
        emu.set(gemm_sms=3)
        assert lib.workspace_bytes(f, sizes) > none
        for hopper, shift in ((1, 0), (0, 0), (0, 1))[: 3 if halves else cases.by_level(1, 3)]:
            emu.set(hopper=hopper)
            got = checks.run(lib, memory, f, sizes, shift=shift, drop=drop)
            found.append([got[name].tobytes() for name in weights])
    finally:
        emu.set(hopper=0, gemm_sms=1)
    return found


@pytest.mark.parametrize("f", LAST, ids=lambda f: f["name"])
def test_last_tiles_are_shared(lib, f):
    """Split tiles of 2-byte elements have the same bits with every kernel."""
    found = shared(lib, f)
    assert all(bits == found[0] for bits in found) or f["dtypes"][0] not in ("bf16", "f16")


SUM, TILE, PICK = "kf/core/matmul/sum.cuh", "kf/core/matmul/tile.cuh", "kf/core/matmul/pick.cuh"
SEEDED_LAST = {
    "the last part of a tile that is shared": (
        SUM,
        r"split < g\.splits; \+\+split\) {\n        from",
        "split + 1 < g.splits; ++split) {\n        from",
    ),
    "a tile's parts in one place": (
        SUM,
        r"\(kf_i64\)at\.partial_index \* \(KFI",
        "0 * (kf_i64)at.partial_index * (KFI",
    ),
    "a shared tile's whole depth in each part": (TILE, r"at\.split \+ 1 == splits \?", "true ?"),
    "a tile that is alone ends with a part": (
        TILE,
        r"at\.split \+ 1 == splits \?",
        "at.split + 1 == g.splits ?",
    ),
    "the first tile for the last one": (
        TILE,
        r"g\.whole_tiles \+ at\.partial_index - turn \* shared",
        "at.partial_index - turn * shared",
    ),
    "one block fewer": (
        PICK,
        r"c\.whole_tiles \+ \(tiles - c\.whole_tiles\) \* c\.splits",
        "c.whole_tiles + (tiles - c.whole_tiles) * c.splits - 1",
    ),
}


def test_every_fault_of_last_tiles_has_its_place(include, tmp_path):
    for fault in SEEDED_LAST.values():
        faults.plant(include, tmp_path, *fault)


@pytest.mark.level(2)
@pytest.mark.parametrize("what", SEEDED_LAST)
def test_seeded_fault_of_last_tiles(include, tmp_path, what):
    lib = emulator.build(
        LAST[:1], tmp_path, include=faults.plant(include, tmp_path, *SEEDED_LAST[what])
    )
    with pytest.raises(checks.Failure):
        shared(lib, LAST[0])
