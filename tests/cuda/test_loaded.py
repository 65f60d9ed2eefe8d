# SPDX-License-Identifier: Apache-2.0
"""Tests launchers compiled by g++ alone, with the CUDA driver and kernels from NVRTC, on a GPU.
They must have the bits of nvcc's, for every schedule and its dtypes; at level 3 for every function
that launches, three seconds each."""

import cases
import kflib
import loaded
import pytest
import robust
import selection
import toolkit
from conftest import BUILD

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)
if not toolkit.nvrtc_to_link():
    pytest.skip("no NVRTC", allow_module_level=True)

FUNCTIONS = kflib.on("cuda", selection.launches() if cases.LEVEL > 2 else selection.of_schedules())
# rows for persistent blocks, and for clusters of them
LONG = [[(40, 9000), 0], [(9, 70000), 0], [(5, 40001), 1]]
# one shape for each wgmma schedule
PRODUCTS = [(2, 16, 136, 1032), (1, 64, 520, 72), (1, 300, 136, 264)]


@pytest.fixture(scope="session")
def lib():
    """On 9.0 the loader compiles for sm_90a, which has kernels of its own."""
    flags = (
        ("-gencode=arch=compute_90a,code=sm_90a",)
        if kflib.capability() == (9, 0)
        else ("-arch=native",)
    )
    return kflib.build("cuda", FUNCTIONS, BUILD / "cuda", ("-O3", *flags))


@pytest.fixture(scope="session")
def driver():
    return loaded.build(FUNCTIONS, BUILD / "cuda")


@pytest.mark.parametrize("f", FUNCTIONS, ids=[f["name"] for f in FUNCTIONS])
def test_the_same_bits(gpu, lib, driver, f):
    shapes = cases.of_form(f, robust.SHAPES) + cases.of_form(f, robust.LARGE)
    if f["family"] == "reduction":
        shapes = shapes + robust.PARTED
    if f["family"] == "rows":
        shapes = shapes + cases.rows_of(f, LONG)
    for sizes, shift in shapes:
        robust.loaded(gpu, lib, driver, f, sizes, shift)
    for sizes in PRODUCTS if f["family"] == "matmul" else []:
        robust.loaded(gpu, lib, driver, f, sizes, 0)
