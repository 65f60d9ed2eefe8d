# SPDX-License-Identifier: Apache-2.0
"""PyTorch's sample inputs of scaled_dot_product_attention on a GPU, in every dtype."""

import pytest
import pytorch

torch = pytorch.load()
pytest.importorskip("expecttest", reason="torch's samples need it")

import sdpa_samples  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU, or a PyTorch without CUDA"
)


@pytest.mark.parametrize("dtype", sdpa_samples.TOLERANCE, ids=str)
def test_samples(kf, dtype):
    compared, dropped = sdpa_samples.check(kf.ops.scaled_dot_product_attention, "cuda", dtype)
    assert compared > 10 and dropped > 10
