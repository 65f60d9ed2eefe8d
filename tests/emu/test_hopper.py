# SPDX-License-Identifier: Apache-2.0
"""Tests every instruction of kf/core/ptx/hopper.cuh and wgmma.cuh (hopper_words.cpp), run by the
emulator, which must report each misuse. The file must also compile with nvcc, for sm_90a and for
other devices."""

import os
import subprocess

import cases
import emulator
import pytest
import toolkit
from conftest import BUILD

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
SOURCE = emulator.HERE / "hopper_words.cpp"
SUPPORT = emulator.HERE.parent / "support/gpu"
SEEDS = cases.by_level(3, 20)


@pytest.mark.parametrize("variant", ["plain", "asan"])
def test_instructions(include, tmp_path, variant):
    program = tmp_path / "words"
    folders = [emulator.HERE / "include", emulator.HERE, SUPPORT, *include]
    subprocess.run(
        [
            "g++",
            "-std=c++17",
            *emulator.flags(variant),
            *(f"-I{d}" for d in folders),
            str(SOURCE),
            str(emulator.runtime(BUILD / "emu", variant)),
            "-o",
            str(program),
        ],
        check=True,
    )
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0"}
    done = subprocess.run(
        [program, str(SEEDS)], capture_output=True, text=True, timeout=300, env=environment
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr[:3000]


@pytest.mark.skipif(not toolkit.nvcc(), reason="no nvcc")
@pytest.mark.parametrize("arch", ["90a", *cases.by_level([], ["75", "90"])])
def test_compiles(include, tmp_path, arch):
    """For other architectures the kernels are empty: an sm_90a instruction in one would not
    assemble."""
    folders = [f"-I{d}" for d in (SUPPORT, *include)]
    flags = [
        "-std=c++17",
        "-x",
        "cu",
        "-cubin",
        f"-gencode=arch=compute_{arch},code=sm_{arch}",
        "-Xptxas",
        "-v",
    ]
    done = subprocess.run(
        [toolkit.nvcc(), *flags, *folders, str(SOURCE), "-o", str(tmp_path / "words.cubin")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    spills = [
        line
        for line in done.stderr.splitlines()
        if "spill" in line and " 0 bytes spill stores" not in line
    ]
    assert not spills and "serializ" not in done.stderr, done.stderr
