# SPDX-License-Identifier: Apache-2.0
"""Tests every instruction of kf/core/ptx/hopper.cuh and wgmma.cuh on a GPU of compute capability
9.0. The program is the emulator's (tests/emu/hopper_words.cpp). It also runs under
compute-sanitizer."""

import os
import shutil
import subprocess

import kflib
import pytest
import toolkit

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)
if kflib.capability() != (9, 0):
    pytest.skip("the device has no instructions of sm_90a", allow_module_level=True)
SANITIZER = shutil.which("compute-sanitizer") or next(
    (p for p in ("/usr/local/cuda/bin/compute-sanitizer",) if os.path.exists(p)), None
)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("hopper") / "words"
    folders = [f"-I{kflib.ROOT / d}" for d in ("include", "tests/support/gpu")]
    subprocess.run(
        [
            toolkit.nvcc(),
            "-std=c++17",
            "-x",
            "cu",
            "-gencode=arch=compute_90a,code=sm_90a",
            *folders,
            str(kflib.ROOT / "tests/emu/hopper_words.cpp"),
            "-o",
            str(path),
        ],
        check=True,
    )
    return path


def test_instructions(program):
    done = subprocess.run([program, "20"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.skipif(not SANITIZER, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_sanitizer(program, tool):
    done = subprocess.run(
        [SANITIZER, "--tool", tool, "--error-exitcode", "99", program],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0 and "ok\n" in done.stdout, (done.stdout + done.stderr)[:3000]
