# SPDX-License-Identifier: Apache-2.0
"""Linear cross entropy compared with PyTorch's layer and loss, which materialise the logits."""

import numpy as np
import pytest
import pytorch

torch = pytorch.load()

import torch.nn.functional as F  # noqa: E402
from torchops import draw  # noqa: E402

computes = pytest.mark.level(2)  # kfpython.OPS
OPTIONS = ({}, {"label_smoothing": 0.25, "z_loss": 0.125}, {"ignore_index": 2})


def labels(*shape):
    found = torch.randint(0, 7, shape, generator=torch.Generator().manual_seed(len(shape)))
    return torch.where(
        torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.3, -100, found
    )


def reference(x, weight, label, bias=None, ignore_index=-100, label_smoothing=0.0, z_loss=0.0):
    logits = F.linear(x, weight, bias)
    label = torch.where(label == -100, ignore_index, label)
    loss = F.cross_entropy(
        logits.flatten(0, -2),
        label.flatten(),
        reduction="none",
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    return loss.view(label.shape) + z_loss * torch.where(
        label == ignore_index, 0, logits.logsumexp(-1).square()
    )


@computes
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("lead", [(5,), (2, 3), (1, 2, 4)], ids=str)
def test_loss_and_gradients(kf, lead, options):
    x, weight, bias, label = draw(*lead, 4), draw(7, 4), draw(7), labels(*lead)
    label = torch.where(label == -100, options.get("ignore_index", -100), label)
    for tensors in ((x, weight), (x, weight, bias)):
        found = [
            f(x, weight, label, *tensors[2:], **options)
            for f in (kf.ops.linear_cross_entropy, reference)
        ]
        assert torch.allclose(*found, 1e-12, 1e-12)
        own, want = (
            torch.autograd.grad(
                (loss * torch.arange(1.0, 1 + loss.numel()).view(loss.shape)).sum(), tensors
            )
            for loss in found
        )
        assert all(torch.allclose(a, b, 1e-11, 1e-12) for a, b in zip(own, want))
    arrays = kf.ops.linear_cross_entropy(
        *(t.detach().numpy() for t in (x, weight, label, bias)), **options
    )
    assert np.allclose(arrays, found[1].detach().numpy(), 1e-12, 1e-12)


@computes
def test_gradcheck(kf):
    x, weight, bias, label = draw(2, 3, 4), draw(7, 4), draw(7), labels(2, 3)
    more = {"label_smoothing": 0.1, "z_loss": 0.01}
    assert torch.autograd.gradcheck(
        lambda x, w, b: kf.ops.linear_cross_entropy(x, w, label, b, **more), [x, weight, bias]
    )
    frozen = weight.detach()
    assert torch.autograd.gradcheck(lambda x: kf.ops.linear_cross_entropy(x, frozen, label), [x])


@computes
def test_gradients_with_the_loss(kf):
    """Loss and gradients in one call, for the gradient of a mean."""
    x, weight, bias, label = draw(6, 4), draw(7, 4), draw(7), labels(6)
    mean = F.cross_entropy(F.linear(x, weight, bias), label)
    each = torch.full((6,), 1 / (label != -100).sum().item(), dtype=torch.float64)
    loss, *found = kf.ops.linear_cross_entropy_with_grad(x, weight, label, bias, each)
    assert torch.allclose((loss * each).sum(), mean, 1e-12)
    assert all(
        torch.allclose(a, b, 1e-11, 1e-12)
        for a, b in zip(found, torch.autograd.grad(mean, [x, weight, bias]))
    )
    with pytest.raises(
        NotImplementedError, match="kf.linear_cross_entropy_with_grad has no gradient"
    ):
        kf.ops.linear_cross_entropy_with_grad(x, weight, label, bias, each)[0].sum().backward()


@computes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_dtypes(kf, dtype):
    """The loss is float32; autocast determines the layer's dtype."""
    x, weight, label = (
        draw(6, 4).detach().to(dtype).requires_grad_(),
        draw(7, 4).detach().to(dtype),
        labels(6),
    )
    loss = kf.ops.linear_cross_entropy(x, weight, label)
    want = reference(x.double(), weight.double(), label)
    assert loss.dtype == torch.float32 and torch.allclose(loss.double(), want, 2e-2, 2e-2)
    assert torch.autograd.grad(loss.sum(), x)[0].dtype == dtype
    with torch.autocast("cpu", torch.bfloat16):
        cast = kf.ops.linear_cross_entropy(x.float(), weight.float(), label)
    assert torch.equal(cast, kf.ops.linear_cross_entropy(x.bfloat16(), weight.bfloat16(), label))


@computes
def test_rows_as_they_lie(kf):
    x, weight, label = draw(8, 6).detach(), draw(7, 6).detach(), labels(4)
    before = kf.info()["copies"].get("linear_cross_entropy", 0)
    got = kf.ops.linear_cross_entropy(x[::2, :4], weight[:, 1:5], label)
    assert kf.info()["copies"].get("linear_cross_entropy", 0) == before and torch.allclose(
        got, reference(x[::2, :4], weight[:, 1:5], label), 1e-12
    )


@computes
def test_opcheck(kf):
    tensors = *(draw(*shape).detach() for shape in ((2, 3, 4), (7, 4), (7,))), labels(2, 3)
    torch.library.opcheck(
        torch.ops.kf.linear_cross_entropy.default, (*tensors, -100, 0.1, 0.0, True)
    )
    torch.library.opcheck(
        torch.ops.kf.linear_cross_entropy_with_grad.default,
        (*tensors, draw(2, 3).detach(), -100, 0.1, 0.0, True),
    )


@computes
def test_compile(kf):
    """One graph with dynamic shapes gives the same bits as eager mode."""
    torch._dynamo.reset()
    compiled = torch.compile(
        kf.ops.linear_cross_entropy, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for rows in (5, 9):
        x, weight, label = draw(rows, 4), draw(7, 4), labels(rows)
        got, want = (
            f(x, weight, label, label_smoothing=0.1)
            for f in (compiled, kf.ops.linear_cross_entropy)
        )
        own, other = (torch.autograd.grad(loss.square().sum(), [x, weight]) for loss in (got, want))
        assert torch.equal(got, want) and all(torch.equal(a, b) for a, b in zip(own, other))


@computes
def test_no_second_derivative(kf):
    x, weight, label = draw(5, 4), draw(7, 4), labels(5)
    [dx] = torch.autograd.grad(
        kf.ops.linear_cross_entropy(x, weight, label).sum(), x, create_graph=True
    )
    with pytest.raises(
        NotImplementedError, match="kf.linear_cross_entropy_with_grad has no gradient"
    ):
        dx.sum().backward()


@pytest.mark.parametrize(
    "given, text",
    [
        ((draw(5, 4), draw(7, 3), labels(5)), "weight has the shape (7, 3), expected (7, 4)"),
        (
            (draw(5, 4), draw(7, 4), labels(6)),
            "label has the shape (6,), expected (5,) beside x of the shape (5, 4)",
        ),
        (
            (draw(5, 4), draw(7, 4), labels(5), draw(6)),
            "bias has the shape (6,), expected (7,) beside x of the shape (5, 4)",
        ),
    ],
)
def test_what_is_refused(kf, given, text):
    for tensors in (given, tuple(t.detach().numpy() for t in given)):
        with pytest.raises(ValueError) as error:
            kf.ops.linear_cross_entropy(*tensors)
        assert f"kf.linear_cross_entropy: {text}" in str(error.value)
