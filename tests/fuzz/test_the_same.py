# SPDX-License-Identifier: Apache-2.0
"""Random inputs must be the same in every run, whatever modules a worker has imported before."""

import sys

import cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples

FOUND = []


@examples(300)
@given(st.integers(0, 2**62))
def draws(n):
    FOUND.append(n)


@pytest.mark.skipif(cases.LEVEL > 2, reason="KF_LEVEL=3 draws new ones")
def test_modules_do_not_matter(tmp_path, monkeypatch):
    draws()
    before = FOUND[:]
    FOUND.clear()
    (tmp_path / "kf_constants.py").write_text(
        f"VALUES = {[2**40 + 12345 * i for i in range(400)]}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kf_constants", raising=False)
    __import__("kf_constants")
    draws()
    assert len(before) >= 300 and before == FOUND
