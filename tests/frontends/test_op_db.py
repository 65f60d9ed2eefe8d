# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own sample inputs on the CPU (support/python/torch_samples.py)."""

import pytest
import pytorch

pytorch.load()
pytest.importorskip("expecttest", reason="torch's samples need it")

import torch_samples as samples  # noqa: E402


@pytest.mark.xdist_group("op_db")  # slow to import, so it is imported in the test
@pytest.mark.parametrize("name", samples.CALLS)
def test_samples(kf, name):
    samples.check(kf, name, "cpu")
