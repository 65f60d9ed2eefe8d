# SPDX-License-Identifier: Apache-2.0
"""Tests the public device functions in user kernels, run by the emulator (device_words.cpp).
Removing any of their barriers must be noticed."""

import os
import shutil
import subprocess

import cases
import emulator
import kflib
import pytest
import toolkit
from conftest import BUILD

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
HEADER = kflib.ROOT / "include/kf/core/device.cuh"
BARRIER = "__syncthreads();"
BARRIERS = HEADER.read_text().count(BARRIER)


def passes(include, work, variant="plain"):
    """Compiles the program with these headers; returns whether it finds everything right."""
    program = work / variant
    folders = [emulator.HERE / "include", emulator.HERE, *include]
    subprocess.run(
        [
            "g++",
            "-std=c++17",
            *emulator.flags(variant),
            *(f"-I{d}" for d in folders),
            str(emulator.HERE / "device_words.cpp"),
            str(emulator.runtime(BUILD / "emu", variant)),
            "-o",
            str(program),
        ],
        check=True,
    )
    environment = os.environ | {"TSAN_OPTIONS": "exitcode=66:history_size=0"}
    fixed = emulator.fixed_addresses() if variant == "tsan" else []
    done = subprocess.run(
        [*fixed, program], capture_output=True, text=True, timeout=300, env=environment
    )
    print(done.stdout, done.stderr[:3000])
    return done.returncode == 0 and done.stdout == "ok\n"


@pytest.mark.parametrize("variant", ["plain", "tsan"])
def test_words(include, tmp_path, variant):
    assert passes(include, tmp_path, variant)


@pytest.mark.parametrize("i", range(0, BARRIERS, cases.by_level(cases.SHARE, 1)))
def test_removed_barrier(include, tmp_path, i):
    """A missing barrier shows as a wrong value. If the emulator's threads happen to read before the
    next one writes, ThreadSanitizer reports the race."""
    changed = tmp_path / "include/kf/core"
    shutil.copytree(kflib.ROOT / "include/kf/core", changed)
    parts = HEADER.read_text().split(BARRIER)
    (changed / HEADER.name).write_text(
        BARRIER.join(parts[: i + 1]) + ";" + BARRIER.join(parts[i + 1 :])
    )
    folders = [tmp_path / "include", *include]
    assert not (passes(folders, tmp_path) and passes(folders, tmp_path, "tsan"))
