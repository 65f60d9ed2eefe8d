# SPDX-License-Identifier: Apache-2.0
"""Every function of the CUDA backend against the float64 oracle, on the axes of cases.py, in two builds. Needs a GPU."""

import checks
import kflib
import numeric
import pytest

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)


@pytest.fixture(scope="session", params=sorted(numeric.BUILDS["cuda"]))
def lib(request, libraries):
    return libraries(request.param)


@pytest.fixture(scope="session")
def memory():
    return checks.CudaMemory()


@numeric.each(numeric.FUNCTIONS, "name")
def test_numbers(lib, memory, f):
    numeric.numbers(lib, memory, f)


@numeric.each(numeric.SKIPPED, "name")
def test_skipped_gradients(lib, memory, f):
    numeric.skipped_gradients(lib, memory, f)


@numeric.each(numeric.IN_PLACE, "name")
def test_in_place(lib, memory, f):
    numeric.in_place(lib, memory, f)


@numeric.probabilities
@numeric.each(numeric.DROPOUT, "name")
def test_dropout_probabilities(lib, memory, f, p):
    numeric.dropout_probability(lib, memory, f, p)
