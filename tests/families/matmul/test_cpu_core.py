# SPDX-License-Identifier: Apache-2.0
"""Tests kf/core/matmul/matmul.h with hand-written prologues and epilogues (families/matmul/core.c),
by every compiler. Every type, layout and vector width must agree with wider arithmetic and stay
inside tensors and workspace. The bits must not depend on the number of threads or on the batch."""

import os
import pathlib
import subprocess

import cases
import kflib
import pytest
from compilers import CLANG, WARNINGS

SOURCE = kflib.ROOT / "tests/families/matmul/core.c"
EDGES = kflib.ROOT / "tests/families/matmul/amx.c"
# AMX is a double in C here, so that machines without it test packing and indices.
DOUBLE = f"-DALLOW_AMX -I{kflib.ROOT / 'tests/families/matmul/tiles'}"
# Limits of core/matmul/amx_plan.h at which small products have several blocks of everything.
SMALL_BLOCKS = " ".join(
    f"-DKFI_AMX_{name}={value}"
    for name, value in {
        "GROUP": 96,
        "LONGEST": 160,
        "DEPTH": 64,
        "TALL": 96,
        "WIDE": 64,
        "ROWS": 192,
        "COLS": 128,
    }.items()
)
# compiler and flags: bytes of its vectors
BUILDS = {
    "gcc -O2 -std=c11 -DKFI_GEMM_WIDEST=16": 16,
    "g++ -O2 -std=c++17 -x c++ -mavx2 -mfma": 32,
    "clang -O2 -std=c11": 64,
}
MORE_BUILDS = {
    "gcc -O2 -std=c11 -DKFI_GEMM_WIDEST=32": 32,
    "gcc -O2 -std=c11 -DKFI_GEMM_WIDEST=0": 4,
    "g++ -O3 -march=native -std=c++17 -x c++": 64,
    "gcc -O0": 64,
    "clang -O2 -std=c++17 -x c++": 64,
    "clang -O2 -march=native": 64,
    "clang -O2 -DKFI_GEMM_WIDEST=16": 16,
    "clang -O2 -DKFI_GEMM_WIDEST=32": 32,
}
ADDRESS = "gcc -O1 -std=c11 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
SANITIZED = cases.by_level(
    {f"{ADDRESS} -march=native": 64},
    {f"{ADDRESS} -DKFI_GEMM_WIDEST={n}": n or 4 for n in (64, 32, 16, 0)},
)
AMX_BUILDS = ["gcc -O2 -std=c11"]
MORE_AMX_BUILDS = ["clang -O2 -std=c11", "g++ -O3 -march=native -std=c++17 -x c++"]
THREADS = {"gcc -O2 -std=c11 -fopenmp": 64}
COUNT = cases.by_level(64, 512)
CPU = pathlib.Path("/proc/cpuinfo").read_text().split()
VECTOR_BYTES = 64 if "avx512f" in CPU else 32 if {"avx2", "fma"} <= set(CPU) else 16


def build(compiler_flags, folder, source=SOURCE):
    compiler, *options = compiler_flags.split()
    if compiler == "clang" and not CLANG:
        pytest.skip("no clang")
    compiler = CLANG if compiler == "clang" else compiler
    command = [
        compiler,
        *options,
        *WARNINGS,
        f"-I{kflib.ROOT / 'include'}",
        source,
        "-o",
        folder / "products",
        "-lm",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


def run(compiler_flags, width, folder, seed, count=COUNT, threads=2):
    # gcc 13's fake stacks, on by default, align vectors of 64 bytes to 32 (gcc bug 110027).
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "ASAN_OPTIONS": "detect_stack_use_after_return=0",
    }
    done = subprocess.run(
        [folder / "products", str(seed), str(count)],
        capture_output=True,
        text=True,
        env=environment,
    )
    expected = f"{count} products, vectors of {min(width, VECTOR_BYTES)} bytes, "
    assert done.returncode == 0 and done.stdout.startswith(expected), (
        f"{compiler_flags}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    )
    return done.stdout


@pytest.mark.parametrize("compiler_flags", cases.by_level(BUILDS, BUILDS | MORE_BUILDS))
def test_numbers(compiler_flags, tmp_path):
    build(compiler_flags, tmp_path)
    run(compiler_flags, (BUILDS | MORE_BUILDS)[compiler_flags], tmp_path, 1)


@pytest.mark.parametrize("compiler_flags", SANITIZED)
def test_nothing_outside_is_touched(compiler_flags, tmp_path):
    build(compiler_flags, tmp_path)
    run(compiler_flags, SANITIZED[compiler_flags], tmp_path, 2)


@pytest.mark.parametrize("compiler_flags", THREADS)
def test_threads(compiler_flags, tmp_path):
    build(compiler_flags, tmp_path)
    results = {
        run(compiler_flags, THREADS[compiler_flags], tmp_path, 3, threads=threads)
        for threads in (1, 2, 5)
    }
    assert len(results) == 1, "\n".join(results)


@pytest.mark.parametrize("compiler_flags", cases.by_level(AMX_BUILDS, AMX_BUILDS + MORE_AMX_BUILDS))
def test_amx_at_the_edges(compiler_flags, tmp_path):
    build(f"{compiler_flags} {DOUBLE}", tmp_path, EDGES)
    done = subprocess.run([tmp_path / "products"], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.check
def test_amx_bits_depend_on_no_block(tmp_path):
    results = set()
    for blocks, threads in ((SMALL_BLOCKS, 5), ("", 2)):
        flags = f"gcc -O2 -std=c11 -fopenmp {DOUBLE} {blocks}"
        build(flags, tmp_path)
        results.add(run(flags, 64, tmp_path, 3, 64, threads=threads))
    assert len(results) == 1, "\n".join(results)


@pytest.mark.check
def test_amx_touches_nothing_outside(tmp_path):
    flags = f"{ADDRESS} {DOUBLE} {SMALL_BLOCKS}"
    build(flags, tmp_path)
    run(flags, 64, tmp_path, 2, 16)


@pytest.mark.check
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_amx_works_or_is_refused(compiler, tmp_path):
    """The instructions assemble; this machine has AMX, or the reason is told."""
    build(f"{compiler} -O2 -std=c11", tmp_path, EDGES)
    done = subprocess.run([tmp_path / "products"], capture_output=True, text=True)
    has = {"amx_tile", "amx_bf16"} <= set(CPU)
    told = done.returncode == 2 and done.stdout.startswith("kf_cpu_enable_amx: ")
    assert done.returncode == 0 if has else told, done.stdout + done.stderr
