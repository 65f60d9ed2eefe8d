# SPDX-License-Identifier: Apache-2.0
"""kf/core/matmul/matmul.h under hand-written prologues and epilogues (core.c): every type, layout and width of vectors against wider
arithmetic, by every compiler; nothing beyond a tensor's end or the workspace; the same bits for any number of threads, with a batch and alone."""

import os
import pathlib
import subprocess

import cases
import kflib
import pytest
from compilers import CLANG, WARNINGS

SOURCE = kflib.ROOT / "tests/families/matmul/core.c"
WAYS = {
    "gcc -O2 -std=c11 -DKFI_GEMM_WIDEST=16": 16,
    "g++ -O2 -std=c++17 -x c++ -mavx2 -mfma": 32,
    "clang -O2 -std=c11": 64,
}  # bytes of the vectors
MORE = {
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
THREADS = {"gcc -O2 -std=c11 -fopenmp": 64}
COUNT = cases.by_level(64, 512)
CPU = pathlib.Path("/proc/cpuinfo").read_text().split()
HAS = 64 if "avx512f" in CPU else 32 if {"avx2", "fma"} <= set(CPU) else 16


def build(way, folder):
    compiler, *options = way.split()
    if compiler == "clang" and not CLANG:
        pytest.skip("no clang")
    compiler = CLANG if compiler == "clang" else compiler
    command = [
        compiler,
        *options,
        *WARNINGS,
        f"-I{kflib.ROOT / 'include'}",
        SOURCE,
        "-o",
        folder / "products",
        "-lm",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]


def run(way, width, folder, seed, count=COUNT, threads=2):
    # gcc 13's fake stacks, which it uses by default, put vectors of 64 bytes at multiples of 32 (gcc's defect 110027).
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
    expected = f"{count} products, vectors of {min(width, HAS)} bytes, "
    assert done.returncode == 0 and done.stdout.startswith(expected), (
        f"{way}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    )
    return done.stdout


@pytest.mark.parametrize("way", cases.by_level(WAYS, WAYS | MORE))
def test_numbers(way, tmp_path):
    build(way, tmp_path)
    run(way, (WAYS | MORE)[way], tmp_path, 1)


@pytest.mark.parametrize("way", SANITIZED)
def test_nothing_outside_is_touched(way, tmp_path):
    build(way, tmp_path)
    run(way, SANITIZED[way], tmp_path, 2)


@pytest.mark.parametrize("way", THREADS)
def test_threads(way, tmp_path):
    build(way, tmp_path)
    results = {run(way, THREADS[way], tmp_path, 3, threads=threads) for threads in (1, 2, 5)}
    assert len(results) == 1, "\n".join(results)
