# SPDX-License-Identifier: Apache-2.0
"""Embedding ops over arrays and tensors, compared with PyTorch; compilation and errors."""

import numpy as np
import pytest
import pytorch

torch = pytorch.load()

import torch.nn.functional as F  # noqa: E402
from torchops import draw  # noqa: E402


def numbers(*shape, below=7):
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 1, 4), (0,), ()], ids=str)
def test_rows_and_their_gradient(kf, shape):
    weight, index = draw(7, 4), numbers(*shape)
    found = (
        kf.ops.embedding(weight, index, padding_idx=2, scale=1.5),
        F.embedding(index, weight, padding_idx=2) * 1.5,
    )
    assert torch.equal(*found)
    own, want = (torch.autograd.grad(out.square().sum(), weight)[0] for out in found)
    assert torch.allclose(own, want, 1e-12, 1e-12) and not own[2].any()
    assert np.array_equal(
        kf.ops.embedding(weight.detach().numpy(), index.numpy(), scale=1.5),
        found[1].detach().numpy(),
    )


def test_gradients_further_on(kf):
    weight, index = draw(7, 4), numbers(5)
    assert torch.autograd.gradcheck(lambda w: kf.ops.embedding(w, index, padding_idx=1), [weight])
    assert torch.autograd.gradgradcheck(lambda w: kf.ops.embedding(w, index).square(), [weight])


def test_no_such_row(kf):
    """An index outside of the table raises where its value is known. A compiled call gives NaN and
    no gradient.
    """
    weight, index = draw(7, 4), torch.tensor([1, 7, -1])
    text = "kf.embedding: index is 7 at .1,., expected at least 0 and less than 7$"
    with pytest.raises(IndexError, match=text):
        kf.ops.embedding(weight, index)
    torch._dynamo.reset()
    out = torch.compile(kf.ops.embedding, fullgraph=True, backend="aot_eager")(weight, index)
    assert out[1:].isnan().all() and torch.equal(out[0], weight[1])
    [found] = torch.autograd.grad(out.nan_to_num().sum(), weight)
    assert found.sum() == 4 and (found[1] == 1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_dtypes(kf, dtype):
    weight, index = draw(7, 4).detach().to(dtype).requires_grad_(), numbers(5)
    out = kf.ops.embedding(weight, index)
    assert out.dtype == dtype and torch.equal(out, F.embedding(index, weight))
    assert torch.autograd.grad(out.sum(), weight)[0].dtype == dtype


def test_opcheck(kf):
    weight, index = draw(7, 4).detach(), numbers(2, 3)
    torch.library.opcheck(torch.ops.kf.embedding.default, (weight, index, -1, 1.5))
    torch.library.opcheck(
        torch.ops.kf.embedding_bwd.default, (weight, index, draw(2, 3, 4).detach(), -1, 1.5, 1)
    )


def test_compile(kf):
    torch._dynamo.reset()
    compiled = torch.compile(kf.ops.embedding, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (5, 9):
        weight, index = draw(7, 4), numbers(rows)
        got, want = (f(weight, index, scale=0.5) for f in (compiled, kf.ops.embedding))
        assert torch.equal(got, want)
        assert torch.equal(
            *(torch.autograd.grad(out.square().sum(), weight)[0] for out in (got, want))
        )


def test_gradients_that_are_added(kf):
    weight, index = draw(7, 4), numbers(5)
    total = torch.ones(7, 4, dtype=torch.float64)
    kf.ops.embedding(weight, index, grads={"weight": total}).sum().backward()
    [want] = torch.autograd.grad(F.embedding(index, weight).sum(), weight)
    assert weight.grad is None and torch.equal(total - 1, want)


@pytest.mark.parametrize(
    "given, error, text",
    [
        ((draw(7), numbers(3)), ValueError, "weight has the shape (7,), expected 2 dimensions"),
        (
            (draw(2, 7, 4), numbers(3)),
            ValueError,
            "weight has the shape (2, 7, 4), expected 2 dimensions",
        ),
        ((draw(7, 4), draw(3)), TypeError, "index has the dtype f64, expected i64"),
    ],
)
def test_what_is_refused(kf, given, error, text):
    for tensors in (given, tuple(t.detach().numpy() for t in given)):
        with pytest.raises(error) as raised:
            kf.ops.embedding(*tensors)
        assert f"kf.embedding: {text}" in str(raised.value)


@pytest.mark.level(2)
def test_the_embeddings_of_bert(kf):
    """Three tables and a norm in one call, compared with PyTorch's functions."""
    rng = torch.Generator().manual_seed(5)
    tables = [
        torch.randn(n, 4, generator=rng, dtype=torch.float64).requires_grad_() for n in (7, 5, 2)
    ]
    norm = [torch.randn(4, generator=rng, dtype=torch.float64).requires_grad_() for _ in range(2)]
    numbers = [torch.randint(0, n, (2, 3), generator=rng) for n in (7, 5, 2)]

    def own(*given):
        return kf.ops.embedding_add_layer_norm(
            *given[:3], *numbers, *given[3:], padding_idx=1, eps=1e-5
        )

    def reference(*given):
        x = (
            F.embedding(numbers[0], given[0], padding_idx=1)
            + F.embedding(numbers[1], given[1])
            + F.embedding(numbers[2], given[2])
        )
        return F.layer_norm(x, (4,), *given[3:], 1e-5)

    leaves = [*tables, *norm]
    found, want = own(*leaves), reference(*leaves)
    assert found.shape == (2, 3, 4) and (found - want).abs().max() <= 1e-12
    up = torch.randn(found.shape, generator=rng, dtype=torch.float64)
    for got, expected in zip(
        torch.autograd.grad(found, leaves, up), torch.autograd.grad(want, leaves, up)
    ):
        assert got.shape == expected.shape and (got - expected).abs().max() <= 1e-12
    assert torch.autograd.gradcheck(
        lambda *g: kf.ops.embedding_add_layer_norm(*g[:3], *numbers, *g[3:]), leaves
    )
    torch.library.opcheck(
        torch.ops.kf.embedding_add_layer_norm.default, (*leaves[:3], *numbers, *norm, 1, 1e-5, True)
    )
    array = kf.ops.embedding_add_layer_norm(
        *(t.detach().numpy() for t in tables),
        *(n.numpy() for n in numbers),
        padding_idx=1,
        eps=1e-5,
    )
    assert abs(array - reference(*tables, None, None).detach().numpy()).max() <= 1e-12
