# SPDX-License-Identifier: Apache-2.0
"""Tests C functions with a run-time activation (kf/any): they must equal the functions with that
activation, bit for bit."""

import checks
import chosen
import kflib
import pytest
from conftest import BUILD

PAIRS = chosen.chosen(chosen.SOME)
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")


@pytest.fixture(scope="module")
def lib():
    return kflib.build("cpu", chosen.library_of(PAIRS), BUILD / "chosen", ("-O1", *WARNINGS))


@pytest.fixture(scope="module")
def memory():
    return checks.CpuMemory()


def test_every_activation_is_compared():
    assert {g["activation"] for _, g in PAIRS} == set(chosen.IDS)
    assert {(f["family"], f["bwd"]) for f, _ in PAIRS} == {
        (f["family"], f["bwd"]) for f in chosen.FUNCTIONS
    }


@pytest.mark.parametrize(("f", "g"), PAIRS, ids=[g["cpu_name"] for _, g in PAIRS])
def test_same_bits(lib, memory, f, g):
    chosen.compare(lib, memory, f, g)


FIRST = list({f["name"]: (f, g) for f, g in PAIRS}.values())


@pytest.mark.parametrize(("f", "g"), FIRST, ids=[f["cpu_name"] for f, _ in FIRST])
def test_what_there_is_not(lib, memory, f, g):
    chosen.refuses(lib, memory, f, g)


FALLING = [(f, g) for f, g in PAIRS if g["activation"] == "leaky_relu" and checks.result_of(g)]


@pytest.mark.parametrize(("f", "g"), FALLING, ids=[g["cpu_name"] for _, g in FALLING])
def test_a_slope_below_zero(lib, memory, f, g):
    chosen.refuses_falling(lib, memory, f, g)


def test_there_is_one():
    assert FALLING
