# SPDX-License-Identifier: Apache-2.0
"""kf.ops on PyTorch tensors: PyTorch's own convolution, both gradients, torch.compile with symbolic
sizes and options, fake tensors, opcheck."""

import kernel_fusion as kf
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

OPTIONS = {"stride": 2, "pad_left": 1, "pad_right": 2, "dilation": 2, "groups": 2}
torch.manual_seed(0)


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def expected(x, weight, bias, stride=1, pad_left=0, pad_right=0, dilation=1, groups=1):
    x = torch.nn.functional.pad(x.transpose(1, 2), (pad_left, pad_right))
    weight, conv1d = weight.transpose(1, 2), torch.nn.functional.conv1d
    return conv1d(x, weight, bias, stride, 0, dilation, groups).transpose(1, 2)


def compiled(function):
    return torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")


x, weight, bias, offsets = randn(2, 9, 4), randn(6, 3, 2), randn(6), torch.tensor([0, 4, 4, 9])
packed = randn(9, 4)


def dense(*tensors):
    return kf.ops.conv1d(*tensors, **OPTIONS)


def varlen(x, weight, bias):
    return kf.ops.conv1d_varlen(x, offsets, weight, bias, pad_left=1, groups=2)


assert torch.allclose(dense(x, weight, bias), expected(x, weight, bias, **OPTIONS))
assert gradcheck(dense, (x, weight, bias)) and gradcheck(dense, (x, weight))
assert gradgradcheck(dense, (x, weight, bias))
assert gradcheck(varlen, (packed, weight, bias)) and gradgradcheck(varlen, (packed, weight, bias))

traced = compiled(dense)
for length in (9, 12, 17):
    given = randn(2, length, 4), weight, bias
    pairs = [
        (out, *torch.autograd.grad(out.sin().sum(), given))
        for out in (traced(*given), expected(*given, **OPTIONS))
    ]
    assert all(torch.allclose(got, want) for got, want in zip(*pairs)), length
traced = compiled(lambda stride: kf.ops.conv1d(x, weight, bias, stride=stride, groups=2))
for stride in (2, 3, 4):
    assert torch.allclose(traced(stride), expected(x, weight, bias, stride, groups=2)), stride
assert torch.allclose(compiled(varlen)(packed, weight, bias), varlen(packed, weight, bias))

with FakeTensorMode():
    fake = torch.empty(2, 9, 4), torch.empty(6, 3, 2)
    assert kf.ops.conv1d(*fake, **OPTIONS).shape == (2, 4, 6)
for tensors, options, error in (
    ((x, weight, bias), {"stride": 0}, "kf.conv1d: stride is 0, expected at least 1"),
    ((x, weight, bias), {"groups": 1}, "kf.conv1d: weight has the shape (6, 3, 2), expected"),
):
    try:
        kf.ops.conv1d(*tensors, **options)
    except ValueError as e:
        assert str(e).startswith(error), str(e)
    else:
        raise AssertionError(options)
# An option of 0 has its default in all evaluators.
assert torch.equal(
    torch.ops.kf.conv1d.kernel(x, weight, bias, 0, 0, 0, 0, 2),
    kf.ops.conv1d(x, weight, bias, groups=2),
)
torch.library.opcheck(torch.ops.kf.conv1d.default, (x, weight, bias, *OPTIONS.values()))
