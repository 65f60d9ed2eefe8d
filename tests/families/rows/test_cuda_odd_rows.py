# SPDX-License-Identifier: Apache-2.0
"""Tests rows of any length at any address, read by vectors (core/rows/shift.cuh), on a GPU."""

import checks
import kflib
import numeric
import odd_rows
import pytest
from conftest import BUILD

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)

# Lengths with every remainder modulo 8: lanes of a warp, a warp, several, persistent blocks,
# clusters of two and more blocks.
LENGTHS = (
    1,
    3,
    7,
    8,
    10,
    13,
    47,
    129,
    510,
    520,
    767,
    768,
    1023,
    1028,
    4097,
    4098,
    4100,
    8191,
    16381,
    50257,
)


@pytest.fixture(scope="session")
def lib():
    return kflib.build(
        "cuda", odd_rows.FUNCTIONS, BUILD / "cuda", numeric.BUILDS["cuda"]["default"]
    )


@pytest.fixture(scope="session")
def memory():
    return checks.CudaMemory()


@numeric.each(odd_rows.FUNCTIONS, "name")
def test_any_length_and_address(lib, memory, f):
    for cols in LENGTHS:
        odd_rows.check(lib, memory, f, 3 if cols > 20000 else 7, cols)
