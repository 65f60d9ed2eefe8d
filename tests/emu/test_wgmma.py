# SPDX-License-Identifier: Apache-2.0
"""Products by wgmma (kf/core/gemm_hopper.cuh), run by the emulation: under seams written by hand, in every layout, and as launchers choose
them where a test says that the device has such instructions; and faults in them that must be noticed."""

import os
import subprocess

import cases
import checks
import emulator
import faults
import pytest
import toolkit
from conftest import BUILD
from wgmma import FUNCTIONS

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
RING = "kf/core/gemm_hopper.cuh"
# file, text, what stands there instead
SEEDED = {
    "no turns": (RING, r"kfi_named_sync<256>\(r->group\);", ""),
    "the first turn is nobody's": (RING, r"kfi_named_arrive<256>\(1\);", ""),
    "a stage is read before it has come": (RING, r"kfi_mbar_wait\(r->full \+ 8 \* r->stage, r->phase\);", ""),
    "the phase before": (RING, r"r->full \+ 8 \* r->stage, r->phase\)", "r->full + 8 * r->stage, r->phase ^ 1)"),
    "a stage is filled while it is read": (RING, r"r->phase \^ 1\);", "r->phase);"),
    "a stage is given back before its product": (
        RING, r"if \(i > 0 && tells\) kfi_mbar_arrive\(last\);", "if (tells) kfi_mbar_arrive(r->empty + 8 * r->stage);"),
    "fewer bytes than come": (RING, r"kfi_mbar_expect\(bar, kfi_ring_stage\(tile\)\)", "kfi_mbar_expect(bar, kfi_ring_a(tile))"),
    "no fence before a product": (RING, r"kfi_wgmma_fence\(\);", ""),
    "sums before they are there": (RING, r"kfi_wgmma_wait<0>\(\);", "kfi_wgmma_wait<1>();"),
    "the first product adds to what was there": (RING, r"!first \|\| q > 0", "true"),
    "mbarriers that copies do not see": (RING, r"kfi_mbar_made\(\);", ""),
    "two arrivals where one comes": (RING, r"kfi_mbar_init\(r\.empty \+ 8 \* i, 1\);", "kfi_mbar_init(r.empty + 8 * i, 2);"),
    "more registers than there are": (RING, r"kfi_more_registers<240>", "kfi_more_registers<256>"),
    "the other tile is not walked over": (RING, r"kfi_ring_go\(r, r->other\);", ""),
    "the next row of A": (RING, r"a, bar, depth, at\.row, of_a", "a, bar, depth, at.row + 1, of_a"),
    "rows 64 further on are the first ones": (RING, r"a \+ \(m \* 8192 \+", "a + (0 * m +"),
    "another quarter of a stage": (RING, r"b \+ q \* step_b / 16", "b + (q ^ 1) * step_b / 16"),
    "the first matrix in all of them": (RING, r"\(int\)at\.matrix \* maps\.turns_a", "0 * maps.turns_a"),
    "the first split's depth in all of them": (RING, r"at\.begin \+ \(i - term", "(i - term"),
    "partial sums of the first split alone": (RING, r"at\.matrix, at\.split, p, g\), values", "at.matrix, 0, p, g), values"),
    "a warp's rows are overwritten": (RING, r"    __syncwarp\(\);\n}\n// Vectors", "}\n// Vectors"),
    "the rows of another warp": (RING, r"threadIdx\.x / 32 % 4 \* 16", "threadIdx.x / 32 % 2 * 16"),
}
ROUNDS = {"plain": "12", "asan": "12"}


def passes(include, work, variant="plain", rounds=None, seed=1):
    """Whether the program, compiled with these headers, finds everything right."""
    program = work / variant
    if not program.exists():
        folders = [emulator.HERE / "include", emulator.HERE, emulator.HERE.parent / "support", *include]
        flags = *emulator.flags(variant), "-UKFI_GEMM_SMS", *(f"-I{d}" for d in folders)
        sources = emulator.HERE / "gemm_words.cpp", emulator.runtime(BUILD / "emu", variant)
        subprocess.run(["g++", "-std=c++17", *flags, *map(str, sources), "-o", str(program)], check=True)
    environment = os.environ | {"ASAN_OPTIONS": "exitcode=66:detect_leaks=0:detect_stack_use_after_return=0"}
    done = subprocess.run([program, rounds or ROUNDS[variant], str(seed), "rings"], capture_output=True, text=True, timeout=600, env=environment)
    print(done.stdout, done.stderr[:3000])
    return done.returncode == 0 and done.stdout == "ok\n"


@pytest.mark.parametrize("variant", ["asan", *cases.by_level([], ["plain"])])
def test_products(include, tmp_path, variant):
    for seed in range(1, cases.by_level(1, 5) + 1):
        assert passes(include, tmp_path, variant, seed=seed)


def test_every_fault_has_its_place(include, tmp_path):
    for file, text, instead in SEEDED.values():
        faults.plant(include, tmp_path, file, text, instead)


@pytest.mark.parametrize("what", faults.some(SEEDED))
def test_seeded_fault(include, tmp_path, what):
    broken = faults.plant(include, tmp_path, *SEEDED[what])
    assert not passes(broken, tmp_path), f"nobody notices {what}"


# ---- launchers

# batch, rows, cols, depth; rows beyond 64, depths that fill the ring and go around it
SHAPES = [(1, 130, 136, 72), (2, 200, 72, 712), *cases.by_level([], [(1, 65, 8, 8), (1, 300, 264, 328), (3, 129, 40, 64)])]


@pytest.fixture(scope="module")
def lib(include):
    return emulator.build(FUNCTIONS, BUILD / "emu", include=include)


@pytest.mark.parametrize("f", FUNCTIONS, ids=[f["name"] for f in FUNCTIONS])
def test_launchers(lib, f):
    emu = emulator.Emulator(lib)
    memory = emulator.Memory(emu, cases.by_level(((emulator.RANDOM, 2),), emulator.RUNS))
    emu.set(hopper=1)
    emu.forget()
    try:
        for sizes in SHAPES:
            checks.run(lib, memory, f, sizes)
        assert not [name for name in emu.missing() if "_wgmma<" in name]
    finally:
        emu.set(hopper=0)
