# SPDX-License-Identifier: Apache-2.0
"""Tests the C functions against the float64 oracle on the axes of cases.py. Level 1 tests the
gate's functions in one build. From level 2 on it tests all, and those of numeric.CPU in a second
build."""

import checks
import numeric
import pytest
import selection
from conftest import BUILD


@pytest.fixture
def lib(request):
    return numeric.build_cpu(request.param, BUILD)


@pytest.fixture(scope="session")
def memory():
    return checks.CpuMemory()


@numeric.each_on_cpu(numeric.GATE)
def test_numbers(lib, memory, f):
    numeric.numbers(lib, memory, f, shared=selection.on_all_shapes())


@numeric.each_on_cpu(numeric.GATE_SKIPPED)
def test_skipped_gradients(lib, memory, f):
    numeric.skipped_gradients(lib, memory, f)


@numeric.each_on_cpu(numeric.GATE_IN_PLACE)
def test_in_place(lib, memory, f):
    numeric.in_place(lib, memory, f)


@numeric.probabilities
@numeric.each_on_cpu(numeric.GATE_DROPOUT)
def test_dropout_probabilities(lib, memory, f, p):
    numeric.dropout_probability(lib, memory, f, p)
