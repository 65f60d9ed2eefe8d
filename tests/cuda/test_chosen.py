# SPDX-License-Identifier: Apache-2.0
"""Tests functions with a run-time activation on a GPU. Without FMA contraction they have the bits
of the functions with that activation; with it they agree with the oracle."""

import checks
import chosen
import kflib
import numeric
import pytest
from conftest import BUILD

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)

PAIRS = chosen.chosen(chosen.SOME)
each = pytest.mark.parametrize(("f", "g"), PAIRS, ids=[g["name"] for _, g in PAIRS])
FIRST = list({f["name"]: (f, g) for f, g in PAIRS}.values())


def build(name):
    return kflib.build(
        "cuda", chosen.library_of(PAIRS), BUILD / "cuda_chosen", numeric.BUILDS["cuda"][name]
    )


@pytest.fixture(scope="module")
def plain():
    return build("nofma")


@pytest.fixture(scope="module")
def contracted():
    return build("default")


@pytest.fixture(scope="module")
def memory():
    return checks.CudaMemory()


@each
def test_same_bits(plain, memory, f, g):
    chosen.compare(plain, memory, f, g)


@each
def test_numbers(contracted, memory, f, g):
    chosen.compare(contracted, memory, f, g, exact=False)


@pytest.mark.parametrize(("f", "g"), FIRST, ids=[f["name"] for f, _ in FIRST])
def test_what_there_is_not(plain, memory, f, g):
    chosen.refuses(plain, memory, f, g)
