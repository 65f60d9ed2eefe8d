# SPDX-License-Identifier: Apache-2.0
"""CUDA's functions whose activation is an argument (kf/any), run by the emulation: what that activation's own function gives, to the bit."""

import checks
import chosen
import emulator
import pytest
import toolkit
from conftest import BUILD

OPS = [(op, dtype) for op, dtype in chosen.SOME if op != "{act}_glu" and dtype not in ("i32", "f64")]  # of schedules; words are C's too
PAIRS = chosen.chosen(OPS)
FIRST = list({f["name"]: (f, g) for f, g in PAIRS}.values())
FALLING = [(f, g) for f, g in PAIRS if g["activation"] == "leaky_relu" and checks.result_of(g)]
pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")


@pytest.fixture(scope="module")
def lib():
    return emulator.build(chosen.library_of(PAIRS), BUILD / "emu_chosen")


@pytest.fixture(scope="module")
def memory(lib):
    return emulator.Memory(emulator.Emulator(lib), emulator.RUNS[1:])


@pytest.mark.parametrize(("f", "g"), PAIRS, ids=[g["name"] for _, g in PAIRS])
def test_same_bits(lib, memory, f, g):
    chosen.compare(lib, memory, f, g)


@pytest.mark.parametrize(("f", "g"), FIRST, ids=[f["name"] for f, _ in FIRST])
def test_what_there_is_not(lib, memory, f, g):
    chosen.refuses(lib, memory, f, g)


@pytest.mark.parametrize(("f", "g"), FALLING, ids=[g["name"] for _, g in FALLING])
def test_a_slope_below_zero(lib, memory, f, g):
    chosen.refuses_falling(lib, memory, f, g)
