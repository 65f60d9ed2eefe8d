# SPDX-License-Identifier: Apache-2.0
"""Tests strided rows on a GPU: they give the bits of contiguous tensors, and nothing between the
rows is written."""

import checks
import kflib
import numeric
import pytest
import strided

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)

FUNCTIONS = [f for f in kflib.on("cuda", numeric.FUNCTIONS) if strided.strided_tensors(f)]


@pytest.fixture
def lib(request, libraries):
    return libraries(request.param)


@pytest.fixture(scope="session")
def memory():
    return checks.CudaMemory()


@numeric.each_on_gpu(FUNCTIONS)
def test_strided(lib, memory, f):
    for sizes in strided.shapes(f):
        strided.same(lib, memory, f, sizes)
