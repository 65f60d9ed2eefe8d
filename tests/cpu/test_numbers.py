# SPDX-License-Identifier: Apache-2.0
"""Every function of the C backend against the float64 oracle, on the axes of cases.py, in two builds."""

import checks
import kflib
import numeric
import pytest
from conftest import BUILD


@pytest.fixture(scope="session", params=sorted(numeric.BUILDS["cpu"]))
def lib(request):
    return kflib.build("cpu", numeric.FUNCTIONS, BUILD / "cpu", numeric.BUILDS["cpu"][request.param])


@pytest.fixture(scope="session")
def memory():
    return checks.CpuMemory()


@numeric.each(numeric.FUNCTIONS, "cpu_name")
def test_numbers(lib, memory, f):
    numeric.numbers(lib, memory, f)


@numeric.each(numeric.SKIPPED, "cpu_name")
def test_skipped_gradients(lib, memory, f):
    numeric.skipped_gradients(lib, memory, f)


@numeric.each(numeric.IN_PLACE, "cpu_name")
def test_in_place(lib, memory, f):
    numeric.in_place(lib, memory, f)


@numeric.probabilities
@numeric.each(numeric.DROPOUT, "cpu_name")
def test_dropout_probabilities(lib, memory, f, p):
    numeric.dropout_probability(lib, memory, f, p)
