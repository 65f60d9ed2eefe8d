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
from wgmma import (
    FEW_FLOATS,
    FEW_ROWS,
    FUNCTIONS,
    INVARIANT,
    LAST,
    TILED,
    check_few_floats,
    check_padded,
    check_tiles,
    few_floats,
    stores_through_slabs,
)
from wgmma_faults import (
    SEEDED_3XTF32,
    SEEDED_LAST,
    SEEDED_SKINNY,
    SEEDED_SKINNY_F32,
    SEEDED_TF32,
    SEEDED_WGMMA,
)

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
# fault: the program's mode that must notice it, and its place
MODES = {
    "rings": SEEDED_WGMMA,
    "few": SEEDED_SKINNY,
    "halves": SEEDED_3XTF32,
    "tf32": SEEDED_TF32,
    "singles": SEEDED_SKINNY_F32,
}
SEEDED = {what: (mode, fault) for mode, seeded in MODES.items() for what, fault in seeded.items()}
ROUNDS = {"rings": "12", "few": "48", "halves": "16", "tf32": "12", "singles": "48"}


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
        if few_floats(f):
            check_few_floats(lib, memory, f, lambda sms: emu.set(gemm_sms=sms))
        assert not [name for name in emu.missing() if "_wgmma<" in name or "_skinny<" in name]
    finally:
        emu.set(hopper=0, gemm_sms=1)


@pytest.mark.parametrize("f", FEW_FLOATS, ids=lambda f: f["name"])
def test_rows_alone(lib, f):
    """A row of up to 64 has the same bits, however many there are."""
    emu = emulator.Emulator(lib)
    memory = emulator.Memory(emu, ((emulator.RANDOM, 2),))
    emu.set(hopper=1)
    try:
        for sms, cols, depth in ((5, 72, 2120), (132, 40, 1100), (1, 136, 200)):
            emu.set(gemm_sms=sms)
            invariant.check(
                f, [("alone", lib, memory, 0, lambda: None, sms)], cols, depth, FEW_ROWS
            )
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
