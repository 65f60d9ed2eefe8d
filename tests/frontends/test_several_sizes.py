# SPDX-License-Identifier: Apache-2.0
"""Ops whose sizes several inputs say between them, beside products (test_products.py): rows of a table, rotary embeddings, a layer's loss."""

import numpy as np
import pytest
import pytorch

torch = pytorch.load()
F = torch.nn.functional


def draw(*shape, grad=True, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape))).requires_grad_(grad)


def alike(got, want, inputs):
    """Values and gradients, of float64."""
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and torch.allclose(g, w, 1e-10, 1e-10)
    ups = [draw(*w.shape, grad=False, seed=9) for w in want]
    for m, t in zip(*(torch.autograd.grad(sum((r * u).sum() for r, u in zip(found, ups)), inputs) for found in (got, want))):
        assert torch.allclose(m, t, 1e-9, 1e-9)


def test_embedding(kf):
    weight, index = draw(7, 4), torch.tensor([[1, 6, 2], [2, 2, 0]])
    for padding in (2, -100):
        want = F.embedding(index, weight, padding_idx=padding if padding >= 0 else None) * 1.5
        alike([kf.ops.embedding(weight, index, padding_idx=padding, scale=1.5)], [want], [weight])
    found = kf.ops.embedding(weight.detach().numpy(), index.numpy(), scale=1.5)
    assert np.array_equal(found, (F.embedding(index, weight) * 1.5).detach().numpy())
    assert kf.ops.embedding(weight, torch.tensor(3)).shape == (4,)


def rope(x, cosine, sine, position):
    """Over the first elements of each head, the halves of which are pairs."""
    pairs = cosine.shape[1]
    c, s = (t[position].unsqueeze(-2) for t in (cosine, sine))
    a, b, rest = x.split((pairs, pairs, x.shape[-1] - 2 * pairs), -1)
    return torch.cat((a * c - b * s, b * c + a * s, rest), -1)


def test_rotary_embeddings(kf):
    """Of q and k of [batch, length, heads, dim]; without positions a row's is its own number."""
    q, k, cosine, sine = draw(2, 3, 4, 6), draw(2, 3, 2, 6), draw(8, 2, grad=False), draw(8, 2, grad=False, seed=1)
    position = torch.tensor([[0, 1, 2], [5, 6, 7]])
    for given, of in ((position, position), (None, torch.arange(6).reshape(2, 3))):
        alike(kf.ops.rope_qk(q, k, cosine, sine, given), [rope(x, cosine, sine, of) for x in (q, k)], [q, k])
    found = kf.ops.rope_qk(*(t.detach().numpy() for t in (q, k, cosine, sine, position)))
    assert all(np.allclose(f, rope(x, cosine, sine, position).detach().numpy(), 1e-12, 1e-12) for f, x in zip(found, (q, k)))


def loss(x, weight, bias, label, **options):
    return F.cross_entropy(F.linear(x, weight, bias).flatten(0, -2), label.flatten(), reduction="none", **options).reshape(label.shape)


def test_a_layers_loss(kf):
    """The gradients compute the logits anew, a part at a time."""
    x, weight, bias, label = draw(2, 3, 4), draw(9, 4), draw(9), torch.tensor([[0, 8, 3], [-100, 5, 5]])
    for options in ({}, {"label_smoothing": 0.1}):
        alike([kf.ops.linear_cross_entropy(x, weight, bias, label, **options)], [loss(x, weight, bias, label, **options)], [x, weight, bias])
    alike([kf.ops.linear_cross_entropy(x, weight, label=label)], [loss(x, weight, None, label)], [x, weight])
    found = kf.ops.linear_cross_entropy(*(t.detach().numpy() for t in (x, weight)), label=label.numpy())
    assert np.allclose(found, loss(x, weight, None, label).detach().numpy(), 1e-11, 1e-11)
    [dx] = torch.autograd.grad(kf.ops.linear_cross_entropy(x, weight, bias, label).sum(), [x], create_graph=False)
    assert dx.shape == x.shape
    with pytest.raises(RuntimeError, match="kf.linear_cross_entropy has no second derivative"):
        torch.autograd.grad(kf.ops.linear_cross_entropy(x, weight, bias, label).sum(), [x], create_graph=True)


@pytest.mark.parametrize("name", ["embedding", "rope_qk", "linear_cross_entropy"])
def test_compiled(kf, name):
    """As one graph, of sizes that change."""
    torch._dynamo.reset()
    compiled = torch.compile(getattr(kf.ops, name), fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (3, 5):
        given = {"embedding": lambda n: [draw(7, 4), torch.arange(n)], "rope_qk": lambda n: [draw(n, 4, 6), draw(n, 2, 6), draw(8, 2), draw(8, 2)],
                 "linear_cross_entropy": lambda n: [draw(n, 4), draw(9, 4), draw(9), torch.arange(n)]}[name](rows)
        inputs = [t for t in given if t.is_floating_point()][:2]
        got, want = ([*found] if isinstance(found, tuple) else [found] for found in (compiled(*given), getattr(kf.ops, name)(*given)))
        alike(got, want, inputs if name != "embedding" else given[:1])


def test_opcheck(kf):
    names = {name: getattr(torch.ops.kf, name).default for name in ("embedding", "embedding_bwd", "rope_qk", "rope_qk_bwd", "linear_cross_entropy",
                                                                    "linear_cross_entropy_with_grad")}
    weight, index, q, k, table = draw(7, 4, grad=False), torch.tensor([1, 6, 1]), draw(3, 4, 6), draw(3, 2, 6), draw(8, 2, grad=False)
    q, k, x, label = q.detach(), k.detach(), draw(3, 4, grad=False), torch.tensor([1, 0, 6])
    calls = {"embedding": (weight, index, -1, 1.0), "embedding_bwd": (weight, index, draw(3, 4, grad=False), -1, 1.0, 1),
             "rope_qk": (q, k, table, table, index), "rope_qk_bwd": (q, k, table, table, None, q, k, 3),
             "linear_cross_entropy": (x, weight, None, label, -100, 0.1, 0.0, True),
             "linear_cross_entropy_with_grad": (x, weight, None, label, None, -100, 0.1, 0.0, True)}
    for name, args in calls.items():
        torch.library.opcheck(names[name], args)


@pytest.mark.parametrize("call, error, text", [
    (lambda kf: kf.ops.embedding(draw(7, 4), None), TypeError, "kf.embedding: index is missing"),
    (lambda kf: kf.ops.embedding(draw(7, 4), torch.zeros(3)), TypeError, "index has the dtype f32, expected i64"),
    (lambda kf: kf.ops.embedding(draw(7), torch.zeros(3).long()), ValueError, r"kf.embedding: weight has the shape \(7,\), expected 2 dimensions"),
    (lambda kf: kf.ops.rope_qk(draw(3, 4, 6), draw(2, 2, 6), draw(8, 2), draw(8, 2)), ValueError, "kf.rope_qk: "),
    (lambda kf: kf.ops.rope_qk(draw(3, 4, 6), draw(3, 2, 6), draw(8, 2), draw(7, 2)), ValueError, r"sine has the shape \(7, 2\), expected \(8, 2\)"),
    (lambda kf: kf.ops.linear_cross_entropy(draw(3, 4), draw(9, 5), label=torch.arange(3)), ValueError, "kf.linear_cross_entropy: ")])
def test_errors(kf, call, error, text):
    with pytest.raises(error, match=text):
        call(kf)
