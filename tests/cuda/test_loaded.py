# SPDX-License-Identifier: Apache-2.0
"""Launchers compiled by g++ alone, over CUDA's driver and NVRTC's kernels, on a GPU: the bits of those that nvcc compiles, in every schedule."""

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

FUNCTIONS = kflib.on("cuda", selection.launches())
LONG = [[(40, 9000), 0], [(9, 70000), 0], [(5, 40001), 1]]  # walked down by blocks, and by clusters of them


@pytest.fixture(scope="session")
def lib(libraries):
    return libraries("default")


@pytest.fixture(scope="session")
def driver():
    return loaded.build(FUNCTIONS, BUILD / "cuda")


@pytest.mark.parametrize("f", FUNCTIONS, ids=[f["name"] for f in FUNCTIONS])
def test_the_same_bits(gpu, lib, driver, f):
    shapes = cases.of_form(f, robust.SHAPES) + cases.of_form(f, robust.LARGE)
    if f["family"] == "reduce":
        shapes = shapes + robust.PARTED
    if f["family"] == "row":
        shapes = shapes + cases.rows_of(f, LONG)
    for sizes, shift in shapes:
        robust.loaded(gpu, lib, driver, f, sizes, shift)
