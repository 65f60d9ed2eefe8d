# SPDX-License-Identifier: Apache-2.0
"""Each op of kf.ops over PyTorch tensors on a GPU: one op per family at level 1, all
from level 2.
"""

import cases
import kfpython
import pytest
import pytorch

torch = pytorch.load()

import torch_checks  # noqa: E402
import torchops  # noqa: E402
from torchops import ids  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU, or a PyTorch without CUDA"
)
# A kernel is compiled at its first call, so one function per op is tested.
of_each_family = pytest.mark.parametrize(
    "f", cases.by_level(torchops.few_of_each_family(), torchops.of_each_op(torchops.PLAIN)), ids=ids
)


@pytest.fixture(scope="module")
def kf():
    kfpython.use()
    import kernel_fusion

    return kernel_fusion


@pytest.mark.parametrize("f", torchops.PLAIN, ids=ids)
def test_values_and_gradients(kf, f):
    torch_checks.values_and_gradients(kf, f, "cuda")


@pytest.mark.parametrize(
    "f", cases.by_level(torchops.few_of_each_family(), torchops.of_each_op(torchops.ALL)), ids=ids
)
def test_opcheck(kf, f):
    torch_checks.opcheck(kf, f, "cuda")


@of_each_family
def test_gradcheck(kf, f):
    torch_checks.gradcheck(kf, f, "cuda")


@of_each_family
def test_compile(kf, f, monkeypatch):
    """Inductor calls the op once."""
    monkeypatch.setattr(kf.config, "compile_ops", "opaque")
    torch_checks.compiled(kf, f, "cuda", "inductor")
