# SPDX-License-Identifier: Apache-2.0
"""Tests that a row's bits do not depend on other rows, for every C function. The check is
support/gpu/robust.py's, which tests/cuda/test_robust.py applies to the launchers."""

import cases
import fakegpu
import numeric
import pytest
import robust
from conftest import BUILD

# A row longer than those that are repeated, and planes wider and narrower than a tile.
MORE = {
    "flat": [],
    "rows": [((3, 2311), 0)],
    "planes": [((3, 3, 700), 0), ((3, 32, 66), 1)],
    "heads": [((3, 2, 2, 2311), 0)],
    "groups": [((3, 1, 2, 6, 700), 0), ((3, 40, 2, 14, 1), 1)],
}


@pytest.fixture(scope="module")
def lib():
    return numeric.build_cpu("native", BUILD)


@pytest.fixture(scope="module")
def memory():
    return fakegpu.FakeGpu()


@pytest.mark.parametrize("group", numeric.GROUPS, ids=lambda g: "_".join(g).removeprefix("kf/ops/"))
def test_alone(lib, memory, group):
    calls = fakegpu.FakeLib(lib, memory)
    for f in numeric.GROUPS[group]:
        for sizes, shift in cases.of_form(f, robust.SHAPES) + cases.of_form(f, MORE):
            robust.alone(memory, calls, f, sizes, shift)
