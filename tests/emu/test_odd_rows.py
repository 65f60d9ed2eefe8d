# SPDX-License-Identifier: Apache-2.0
"""Rows of any length at any address, read by vectors (core/row_shift.cuh): in the emulation, whose rows have up to 64 threads a block."""

import emulator
import numeric
import odd_rows
import pytest
import toolkit
from conftest import BUILD

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
# Lengths of every rest by 8: less than a vector, one lane, several, a warp, two, rows that blocks walk down, in clusters, and that are not held.
LENGTHS = (1, 3, 7, 8, 10, 13, 20, 47, 60, 129, 510, 767, 1023, 1026, 1539, 2044, 2048, 3333, 4097, 9001)


@pytest.fixture(scope="session")
def lib():
    return emulator.build(odd_rows.FUNCTIONS, BUILD / "emu")


@numeric.each(odd_rows.FUNCTIONS, "name")
def test_any_length_and_address(lib, f):
    emu = emulator.Emulator(lib)
    memory = emulator.Memory(emu, emulator.RUNS[2:])
    emu.set(sms=1)
    for cols in LENGTHS:
        odd_rows.check(lib, memory, f, 3 if cols > 2000 else 5, cols)
