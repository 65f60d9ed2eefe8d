# SPDX-License-Identifier: Apache-2.0
"""CUDA functions of ops whose operands are called like the identifiers of the code that kfgen makes, run by the emulation."""

import emulator
import odd_names
import pytest
import toolkit
from kfgen.families import FAMILIES

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")


@pytest.mark.parametrize(
    "family", [name for name in odd_names.ENTRIES if "cuda" in FAMILIES[name].backends]
)
def test_any_name_will_do(include, once, tmp_path, family):
    path, found, _ = odd_names.made(once, family)
    found = odd_names.some(
        found, 6
    )  # nvcc compiles them, and C runs more (tests/headers, tests/cpu)
    lib = emulator.build(odd_names.all_of(found), tmp_path / "lib", [*include, path.parent])
    memory = emulator.Memory(emulator.Emulator(lib), emulator.RUNS[1:2])
    for plain, odd in found:
        odd_names.compare(lib, memory, path, plain, odd)
