# SPDX-License-Identifier: Apache-2.0
"""Tests the CUDA functions on a GPU against the float64 oracle, on the axes of cases.py, in two
builds (numeric.CUDA). Level 2 tests some activations of each op, level 3 all."""

import checks
import kflib
import numeric
import pytest

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)


@pytest.fixture
def lib(request, libraries):
    return libraries(request.param)


@pytest.fixture(scope="session")
def memory():
    return checks.CudaMemory()


@numeric.each_on_gpu(numeric.FUNCTIONS)
def test_numbers(lib, memory, f):
    numeric.numbers(lib, memory, f)


@numeric.each_on_gpu(numeric.SKIPPED)
def test_skipped_gradients(lib, memory, f):
    numeric.skipped_gradients(lib, memory, f)


@numeric.each_on_gpu(numeric.IN_PLACE)
def test_in_place(lib, memory, f):
    numeric.in_place(lib, memory, f)


@numeric.probabilities
@numeric.each_on_gpu(numeric.DROPOUT)
def test_dropout_probabilities(lib, memory, f, p):
    numeric.dropout_probability(lib, memory, f, p)
