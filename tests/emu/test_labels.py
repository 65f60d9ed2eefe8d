# SPDX-License-Identifier: Apache-2.0
"""Tests labels of 32 and 64 bits in CUDA functions, and columns and ignore_index of 64 bits."""

import checks
import emulator
import labels
import pytest
import toolkit
import user_ops
from conftest import BUILD

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")


@pytest.fixture(scope="module")
def lib():
    return emulator.build(labels.FUNCTIONS, BUILD / "emu")


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
    functions = [f for f in functions if f["dtypes"][0] in ("f32", "bf16")]
    own = emulator.build(functions, tmp_path / "lib", [*include, tmp_path])
    memory = emulator.Memory(emulator.Emulator(own))
    for f in functions:
        # rows in registers, and rows that are read again
        for sizes in ((5, 7), (3, 300), (2, 20001)):
            checks.run(own, memory, f, sizes, files=(path,))
