# SPDX-License-Identifier: Apache-2.0
"""Products whose rows are no multiple of 16 bytes, in code for sm_90a. Needs a GPU of compute
capability 9.0.
"""

import checks
import kflib
import odd
import pytest
from conftest import BUILD

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)
if kflib.capability() != (9, 0):
    pytest.skip("the device has no wgmma", allow_module_level=True)

# Copies of the smallest operands, too.
FLAGS = ("-O3", "-gencode=arch=compute_90a,code=sm_90a", "-DKFI_REPACK_LEAST=1")
# Rows of one class and of many tiles, columns of one slab and of several tiles, K of one stage and
# several times around the pipeline; a vocabulary.
SHAPES = [
    *odd.ODD_COLS,
    *odd.ODD_SIZES,
    (1, 1000, 1031, 520),
    (1, 2050, 1033, 136),
    (2, 1024, 393, 264),
    (1, 200, 50257, 72),
]


@pytest.fixture(scope="module")
def lib():
    return kflib.build("cuda", odd.ALL, BUILD / "cuda", FLAGS)


@pytest.fixture(scope="module")
def memory():
    return checks.CudaMemory()


@pytest.mark.parametrize("f", odd.ALL, ids=lambda f: f["name"])
def test_odd_sizes(lib, memory, f):
    drop = odd.optional(f) if not f["bwd"] else ()
    for sizes in SHAPES:
        checks.run(lib, memory, f, sizes, drop=drop)
    checks.run(lib, memory, f, (1, 70, 29, 71), "special", drop=drop)
    odd.check_addresses(lib, memory, f, (1, 130, 131, 71), drop)


@pytest.mark.parametrize("f", odd.GRADIENTS, ids=lambda f: f["name"])
def test_nan_stays_in_its_row(lib, memory, f):
    for cols in (1029, 1031, 1033, 1034, 1036):
        odd.check_nan(lib, memory, f, (1, 1000, cols, 520))


@pytest.mark.parametrize("f", odd.FORWARDS, ids=lambda f: f["name"])
def test_nan_of_the_left_factor_stays_in_its_row(lib, memory, f):
    for cols in (517, 1031, 1034):
        odd.check_nan_of_forward(lib, memory, f, (1, 1000, cols, 136), odd.optional(f))
