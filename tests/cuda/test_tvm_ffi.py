# SPDX-License-Identifier: Apache-2.0
"""kernel_fusion.tvm_ffi over tensors on a GPU: bits, streams, dropout, missing devices."""

import importlib

import kfpython
import pytest
import pytorch

tvm_ffi = pytest.importorskip("tvm_ffi")
torch = pytorch.load()

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU, or a PyTorch without CUDA"
)


@pytest.fixture(scope="module")
def functions():
    kfpython.use()
    found = importlib.import_module("kernel_fusion.tvm_ffi")
    found.register(["layer_norm_gelu", "gelu_dropout", "linear_relu"], ["bfloat16"])
    return found


@pytest.fixture(scope="module")
def kf(functions):
    return importlib.import_module("kernel_fusion")


def draw(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def test_both_directions(kf, functions):
    x, weight, up = draw(64, 512).requires_grad_(), draw(512).requires_grad_(), draw(64, 512)
    want = kf.ops.layer_norm_gelu(x, weight)
    gradients = torch.autograd.grad(want, [x, weight], up)
    out, dx = torch.empty_like(up), torch.empty_like(up)
    dweight = torch.empty_like(weight.detach())
    mean, rstd = (torch.empty(64, device="cuda") for _ in range(2))
    given = x.detach(), weight.detach(), None
    functions.get("layer_norm_gelu_bf16")(*given, out, mean, rstd, 1e-5)
    functions.get("layer_norm_gelu_bwd_bf16")(*given, out, mean, rstd, up, dx, dweight, None, 1e-5)
    for got, wanted in zip((out, dx, dweight), (want.detach(), *gradients)):
        assert torch.equal(got, wanted)


def test_a_product_on_another_stream(kf, functions):
    x, weight, bias, out = draw(128, 256), draw(64, 256), draw(64), draw(128, 64)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with tvm_ffi.use_torch_stream(torch.cuda.stream(stream)):
        functions.get("linear_relu_bf16")(x, weight, bias, out, None)
    stream.synchronize()
    assert torch.equal(out, kf.ops.linear_relu(x, weight, bias))


def test_dropout(kf, functions):
    x, out = draw(1000), draw(1000)
    functions.get("gelu_dropout_bf16")(x, out, 0.4, 3, -4)
    assert torch.equal(out, kf.ops.gelu_dropout(x, p=0.4, rng=(3, -4)))


def test_tensors_of_two_devices(functions):
    x, out = draw(8), torch.empty(8, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="out is on another device than the first tensor"):
        functions.get("gelu_dropout_bf16")(x, out, 0.4, 3, 4)
