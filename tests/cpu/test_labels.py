# SPDX-License-Identifier: Apache-2.0
"""Tests labels of 32 and 64 bits in C functions, and columns and ignore_index of 64 bits."""

import checks
import kflib
import labels
import numpy as np
import pytest
import user_ops
from conftest import BUILD


@pytest.fixture(scope="module")
def lib():
    return kflib.build("cpu", labels.FUNCTIONS, BUILD / "cpu", ("-O1",))


def test_labels_of_no_column(lib):
    labels.check_beyond(lib)


def test_the_ignored_label(lib):
    labels.check_ignored(lib)


def test_an_ignored_number_that_is_no_label(lib):
    labels.check_ignored_beyond(lib)


def test_masked_columns(lib):
    labels.check_masked(lib)


def test_both_dtypes_give_the_same(lib):
    labels.check_same(lib)


def test_whole_numbers_of_an_own_op(include, tmp_path):
    path, _, functions = user_ops.load(labels.OWN, tmp_path)
    own = kflib.build("cpu", functions, tmp_path / "lib", ("-O1",), include=[*include, tmp_path])
    for f in functions:
        for sizes in ((5, 7), (3, 300)):
            checks.run(own, checks.CpuMemory(), f, sizes, files=(path,))


def test_columns_that_float32_does_not_tell_apart(lib):
    """The label selects one of three adjacent columns beyond 2^24, which float32 cannot tell
    apart."""
    first = 2**24 + 1
    for f in labels.FUNCTIONS:
        if f["op"] != "cross_entropy" or not f["bwd"]:
            continue
        x = np.zeros((1, 2**24 + 64), np.float32)
        for label in (first, first + 2, first + 62):
            found = labels.call(lib, f, x, [label], -100)["dx"]
            assert list(np.flatnonzero(found[0] < -0.5)) == [label]
