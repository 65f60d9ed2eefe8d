# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own sample inputs on a GPU (support/python/torch_samples.py)."""

import kfpython
import pytest
import pytorch

torch = pytorch.load()
pytest.importorskip("expecttest", reason="torch's samples need it")

import torch_samples as samples  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU, or a PyTorch without CUDA"
)


@pytest.fixture(scope="module")
def kf():
    kfpython.use()
    import kernel_fusion

    return kernel_fusion


@pytest.mark.parametrize("name", samples.CALLS)
def test_samples(kf, name):
    samples.check(kf, name, "cuda")
