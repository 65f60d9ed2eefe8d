# SPDX-License-Identifier: Apache-2.0
"""Tests CUDA functions whose operands have the names of identifiers in generated code, run by the
emulator."""

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
    # nvcc compiles these too, and C runs more (tests/headers, tests/cpu).
    found = odd_names.some(found, 6)
    lib = emulator.build(odd_names.all_of(found), tmp_path / "lib", [*include, path.parent])
    memory = emulator.Memory(emulator.Emulator(lib), emulator.RUNS[1:2])
    for plain, odd in found:
        odd_names.compare(lib, memory, path, plain, odd)
