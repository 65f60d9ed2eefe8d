# SPDX-License-Identifier: Apache-2.0
"""Optimizers in C and in the emulation: numbers by the oracle, long lists, refusals, NVRTC."""

import checks
import emulator
import kflib
import optimizer_calls as calls
import pytest
import toolkit

pytestmark = pytest.mark.xdist_group("optimizer")  # whose libraries are built once
CUDA = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
STRICT = ("-O2", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
# Functions of the first tier: each op once, each mix of dtypes.
FEW = [f for f in calls.functions() if f["dtypes"] in (["f32"], ["bf16", "f32"])]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return kflib.build("cpu", FEW, tmp_path_factory.mktemp("optimizer"), STRICT)


def test_numbers_in_c(library):
    calls.numbers(library, checks.CpuMemory(1 << 22), FEW)


@pytest.mark.check
def test_all_dtypes_in_c(tmp_path):
    found = [f for f in calls.functions() if f not in FEW]
    calls.numbers(kflib.build("cpu", found, tmp_path), checks.CpuMemory(1 << 22), found)


@CUDA
@pytest.mark.check
def test_numbers_in_the_emulation(tmp_path):
    lib = emulator.build(calls.functions(), tmp_path)
    memory = emulator.Memory(emulator.Emulator(lib), size=1 << 22)
    memory.emulator.forget()
    calls.numbers(lib, memory, calls.functions())
    assert not memory.emulator.missing(), memory.emulator.missing()
