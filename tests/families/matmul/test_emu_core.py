# SPDX-License-Identifier: Apache-2.0
"""Tests kf/core/matmul/matmul.cuh with hand-written epilogues, run by the emulator
(emu_core.cpp). Planted faults must be noticed."""

import os
import subprocess

import cases
import checks
import emulator
import faults
import kflib
import pytest
import toolkit
from conftest import BUILD

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
MMA, LOAD, SIMT, TILE = (f"kf/core/matmul/{name}.cuh" for name in ("mma", "load", "simt", "tile"))
WAIT, BARRIER = r"kfi_fetch_wait<stages - 2>\(\);( // %s)", r"__syncthreads\(\);( *// %s)"
# file, pattern, replacement
SEEDED = {
    "a stage is read before its copy is complete": (MMA, WAIT % "all stages", r"\1"),
    "a stage is refilled while warps read it": (MMA, BARRIER % "for all", r"\1"),
    "lanes load the fragment rows of another lane": (
        MMA,
        r"step \* 2 \+ lane / 16;",
        "step * 2 + lane / 16 % 1;",
    ),
    "lanes load the transposed columns of another lane": (
        MMA,
        r"\(first \+ j \* 16\) / 8 \+ lane / 16 :",
        "(first + j * 16) / 8 + lane / 8 % 2 :",
    ),
    "rows of a matrix have bank conflicts": (LOAD, r"line >> 1 & 3", "line >> 2 & 3"),
    "rows of a transposed matrix have bank conflicts": (
        LOAD,
        r"chunk \^ \(line & 7\)",
        "chunk ^ (line & 3)",
    ),
    "an odd element is not shifted": (LOAD, r"off & 2u \? 16 : 0", "0"),
    "a load reads outside the matrix": (LOAD, r"\(off \? 32 : 16\) <= span.end", "0 <= span.end"),
    "a load reads behind a row": (LOAD, r" && \(off \|\| left == 8\)", ""),
    "an element behind K is multiplied": (LOAD, r"own >= 2 \? w\[i\]", "own >= 1 ? w[i]"),
    "a SIMT stage is read before its copy is complete": (SIMT, WAIT % "this stage", r"\1"),
    "a SIMT stage is refilled while warps read it": (SIMT, BARRIER % "for all", r"\1"),
    "a warp's fragment is overwritten while lanes read it": (
        TILE,
        r"    __syncwarp\(\);\n}\n// Vectors",
        "}\n// Vectors",
    ),
    "the reduction leaves out the last split": (
        TILE,
        r"split < g\.splits; \+\+split",
        "split + 1 < g.splits; ++split",
    ),
    "the last raster of tiles is taken for a whole one": (
        TILE,
        r"g\.row_tiles - first < KFI_RASTER_ROWS \?",
        "false ?",
    ),
}
# Cases: each kernel once. ThreadSanitizer takes half a millisecond per thread.
RUNS = {"plain": "64", "asan": "64", "tsan": "4"}
# Rounds of other sizes.
SEVERAL = cases.by_level(1, 5)


def passes(program, variant="plain"):
    """Returns whether the program finds everything right."""
    options = "exitcode=66:detect_leaks=0"
    environment = os.environ | {
        "TSAN_OPTIONS": "exitcode=66:history_size=0",
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": options,
    }
    fixed = emulator.fixed_addresses() if variant == "tsan" else []
    for seed in range(1, SEVERAL + 1):
        done = subprocess.run(
            [*fixed, program, RUNS[variant], str(seed)],
            capture_output=True,
            text=True,
            timeout=600,
            env=environment,
        )
        print(done.stdout, done.stderr[:3000])
        assert done.returncode != 2, "nothing was run"
        if done.returncode != 0 or done.stdout != "ok\n":
            return False
    return True


@pytest.mark.parametrize("variant", ["asan", *cases.by_level([], ["plain", "tsan"])])
def test_products(include, once, variant):
    # The program is shared with test_emu_wgmma.
    program = once(
        f"products, {variant}", lambda folder: emulator.products(include, folder, variant)
    )
    assert passes(program, variant)


def test_every_fault_has_its_place(include, tmp_path):
    for file, text, instead in SEEDED.values():
        faults.plant(include, tmp_path, file, text, instead)


@pytest.mark.parametrize("what", faults.some(SEEDED))
def test_seeded_fault(include, tmp_path, what):
    broken = faults.plant(include, tmp_path, *SEEDED[what])
    assert not all(
        passes(emulator.products(broken, tmp_path, variant, ""), variant)
        for variant in ("plain", "asan")
    ), f"nobody notices {what}"


# KF_SCHEDULES: whether the device has wgmma, sizes that then have a kernel, sizes that have none.
CUT = {
    4: (1, [(1, 130, 136, 72), (1, 16, 72, 200)], [(1, 130, 135, 71), (1, 16, 17, 25)]),
    2: (0, [(1, 130, 136, 72), (1, 16, 72, 200)], [(1, 7, 9, 5)]),
    1: (0, [(1, 130, 136, 72), (1, 7, 9, 5)], []),
}


@pytest.mark.parametrize("mask", cases.by_level([4], [4, 2, 1]))
def test_schedules_that_are_left_out(include, mask):
    functions = [
        f
        for f in kflib.manifest()["functions"]
        if f["name"] in ("kf_linear_relu_bf16", "kf_linear_bwd_bf16")
    ]
    emu = emulator.Emulator(
        lib := emulator.build(functions, BUILD / "emu", include, (f"-DKF_SCHEDULES={mask}",))
    )
    memory = emulator.Memory(emu, ((emulator.RANDOM, 2),))
    hopper, there, none = CUT[mask]
    emu.set(hopper=hopper)
    try:
        for f in functions:
            for sizes in there[: 1 if f["bwd"] else None]:
                checks.run(lib, memory, f, sizes)
            for sizes in none:
                with pytest.raises(checks.Failure, match="KF_SCHEDULES"):
                    checks.run(lib, memory, f, sizes)
    finally:
        emu.set(hopper=0)


EXACT = ((1, 2, 96, 1), "special"), ((1, 16, 40, 8), "special"), ((1, 40, 24, 70), "special")


def test_subnormal_factors(include):
    """The first case was found on a GPU: two terms of a float32 gradient, of which 2^-24 x 30,000
    took bits from the other one (product_oracle)."""
    f = next(f for f in kflib.manifest()["functions"] if f["name"] == "kf_linear_add_bwd_f16_f32")
    lib = emulator.build([f], BUILD / "emu", include=include)
    memory = emulator.Memory(emulator.Emulator(lib), ((emulator.RANDOM, 2),))
    for sizes, values in EXACT:
        for seed in range(3):
            checks.run(lib, memory, f, sizes, values, seed=seed)
