# SPDX-License-Identifier: Apache-2.0
"""Products of matrices in kf.ops: which shapes they take, over arrays and tensors, how factors may lie, autocast, and what is refused. Values and
gradients of each op by itself are test_torch.py's."""

import re

import numpy as np
import pytest
import pytorch

torch = pytorch.load()

import torch.nn.functional as F  # noqa: E402
from torchops import draw, same  # noqa: E402


@pytest.mark.parametrize("lead", [(), (5,), (1,), (2, 3), (2, 1, 3), (0,)], ids=str)
def test_rows_of_any_dimensions(kf, lead):
    x, weight, bias = draw(*lead, 4), draw(6, 4), draw(6)
    same(kf.ops.linear, F.linear, x, weight, bias)
    same(lambda x, w: kf.ops.linear_gelu(x, w), lambda x, w: F.gelu(F.linear(x, w)), x, weight)
    same(lambda x, w, s: kf.ops.relu_linear(x, w, s), lambda x, w, s: F.linear(torch.relu(x + s), w), x, weight, draw(4))
    same(kf.ops.matmul_nn, torch.matmul, x, draw(4, 3))


def test_batches(kf):
    """The weight's dimensions before its two are a batch's; rows may have several behind them."""
    def layer(x, w, b):
        return F.relu(torch.einsum("b...i,boi->b...o", x, w) + b.view(b.shape[0], *[1] * (x.dim() - 2), -1))

    for lead in ((3, 5), (3, 2, 5), (3,)):
        same(kf.ops.linear_relu, layer, draw(*lead, 4), draw(3, 6, 4), draw(3, 6))
    a, b = draw(2, 3, 4, 5), draw(2, 3, 5, 6)
    same(kf.ops.matmul_nn, torch.matmul, a, b)
    same(kf.ops.matmul_nt, lambda a, b: a @ b.mT, a, draw(2, 3, 6, 5))
    same(lambda a, b: kf.ops.matmul_tn(a, b, alpha=-0.5), lambda a, b: -0.5 * a.mT @ b, draw(2, 3, 5, 4), b)
    same(kf.ops.matmul_tn, lambda a, b: a.mT @ b, draw(5, 4), draw(5, 6))


def test_no_depth(kf):
    """A product of nothing is zero; bias and activation are applied."""
    bias = draw(6)
    same(kf.ops.linear_relu, lambda x, w, b: F.relu(F.linear(x, w, b)), draw(3, 0), draw(6, 0), bias)


def copies(kf, name, call, *tensors):
    before = kf.info()["copies"].get(name, 0)
    call(*tensors)
    return kf.info()["copies"].get(name, 0) - before


def test_factors_as_they_lie(kf):
    """Rows apart, matrices apart, one for all matrices of a batch: as they are; anything else is copied once, and counted."""
    x, weight, deep = (draw(*s).detach() for s in ((8, 6), (7, 6), (3, 7, 6)))
    for given, count in (((x[:, :4], weight[:, :4]), 0), ((x[::2], weight[1::2]), 0), ((x[:1, :4], weight[:, :4]), 0), ((x[:, :1], weight[:, :1]), 0),
                         ((x.expand(3, 8, 6), deep), 0), ((draw(3, 8, 6).detach()[:, ::2], deep[:, :5]), 0),
                         ((draw(3, 2, 6).detach(), weight.expand(3, 7, 6)), 0), ((draw(4, 3, 6).detach().transpose(0, 1), deep), 0),
                         ((x[:, ::2], weight[:, ::2]), 2), ((draw(6, 8).detach().t(), weight), 1), ((draw(4, 5, 6).detach()[:, :3], weight), 1)):
        def call(x, w, given=given):
            got = kf.ops.linear(x, w)
            assert torch.allclose(torch.as_tensor(got), torch.einsum("b...i,boi->b...o" if w.ndim > 2 else "...i,oi->...o", *given), 1e-12, 1e-12)

        assert copies(kf, "linear", call, *given) == count, [(t.shape, t.stride()) for t in given]
        assert copies(kf, "linear", call, *(t.numpy() for t in given)) == count


def test_a_gradient_as_it_lies(kf):
    """One number for all, as a sum's gradient is, and a tensor whose rows are apart."""
    x, weight = draw(5, 4), draw(6, 4)
    for up in (torch.ones((), dtype=torch.float64).expand(5, 6), draw(5, 9).detach()[:, :6], draw(6, 5).detach().t()):
        mine, theirs = (torch.autograd.grad(f(x, weight), [x, weight], up) for f in (kf.ops.linear_gelu, lambda x, w: F.gelu(F.linear(x, w))))
        assert all(torch.allclose(m, t, 1e-10, 1e-12) for m, t in zip(mine, theirs))


def test_matmul_reads_a_transposed_factor_as_it_lies(kf):
    a, b = draw(5, 4).detach(), draw(4, 3).detach()
    turned = a.t().contiguous().t(), b.t().contiguous().t()
    for x, y in ((a, b), (turned[0], b), (a, turned[1]), (draw(2, 5, 4).detach(), b), (draw(2, 5, 4).detach(), draw(2, 3, 4).detach().mT)):
        for given in ((x, y), (x.numpy(), y.numpy())):
            for name in ("matmul_nn", "matmul_nt", "matmul_tn"):
                assert copies(kf, name, lambda *t: kf.ops.matmul(*t), *given) == 0
            assert np.allclose(kf.ops.matmul(*given, alpha=2), 2 * (x @ y), 1e-12, 1e-12)
    same(kf.ops.matmul, torch.matmul, draw(5, 4), draw(4, 3))


def test_autocast(kf):
    """In its own dtype of 2 bytes, as PyTorch's products are; leaves keep theirs, and float64 stays."""
    x, w, b = (draw(*s).detach().float().requires_grad_() for s in ((5, 4), (6, 4), (6,)))
    with torch.autocast("cpu", torch.bfloat16):
        got, want = kf.ops.linear_relu(x, w, b), torch.relu(F.linear(x, w, b))
        assert got.dtype == want.dtype == torch.bfloat16 and torch.allclose(got.float(), want.float(), atol=2e-2)
        assert kf.ops.linear(x.double(), w.double()).dtype == torch.float64
    got.sum().backward()
    assert x.grad.dtype == w.grad.dtype == b.grad.dtype == torch.float32


def test_dropout(kf):
    x, w, r = draw(50, 4), draw(60, 4), draw(50, 60)
    got, [dx] = kf.ops.linear_dropout_add(x, w, r, p=0.25, rng=(3, 4)), [None]
    kept = (got - r).abs() > 0
    assert abs(kept.double().mean() - 0.75) < 0.05
    want = F.linear(x, w) * kept / round(0.75 * 65536) * 65536 + r
    assert torch.allclose(got, want, 1e-10, 1e-10)
    for m, t in zip(torch.autograd.grad(got.square().sum(), [x, w, r]), torch.autograd.grad(want.square().sum(), [x, w, r])):
        assert torch.allclose(m, t, 1e-9, 1e-9)
    arrays = kf.ops.linear_dropout_add(*(t.detach().numpy() for t in (x, w, r)), p=0.25, rng=(3, 4))
    assert np.array_equal(arrays, got.detach().numpy())
    assert torch.allclose(kf.ops.linear_dropout_add(x, w, r, training=False), F.linear(x, w) + r, 1e-12, 1e-12) and dx is None


def test_fused_linear_activation_compiled(kf):
    """It runs the one kernel, and torch.compile sees it in one graph; of an activation that linear has not, two."""
    x, w, b = draw(5, 4), draw(6, 4), draw(6)
    for activation, ops in (("gelu", ["kf.linear"]), ("none", ["kf.linear"])):
        torch._dynamo.reset()
        seen = []

        def backend(graph, _inputs, seen=seen):
            seen += [str(n.target) for n in graph.graph.nodes if n.op == "call_function" and str(n.target).startswith("kf.")]
            return graph.forward

        def layer(x, w, b, activation=activation):
            return kf.ops.fused_linear_activation(x, w, b, activation)

        with torch.no_grad():
            assert torch.equal(torch.compile(layer, fullgraph=True, backend=backend)(x, w, b), layer(x, w, b))
        assert [name.removesuffix(".default") for name in seen] == ops
    torch._dynamo.reset()
    compiled = torch.compile(kf.ops.matmul, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, w.t()), kf.ops.matmul_nt(x, w))


SAID = [
    (lambda kf, x: kf.ops.linear(x, x[:, :3]), "kf.linear: weight has the shape (5, 3), expected (5, 4) beside x of the shape (5, 4)"),
    (lambda kf, x: kf.ops.linear(x, x[0]), "kf.linear: weight has the shape (4,), expected at least 2 dimensions"),
    (lambda kf, x: kf.ops.linear(x[0], x[None]),
     "kf.linear: x has the shape (4,), expected at least 2 dimensions beside weight of the shape (1, 5, 4)"),
    (lambda kf, x: kf.ops.linear(x, x, x[0]), "kf.linear: bias has the shape (4,), expected (5,) beside x of the shape (5, 4)"),
    (lambda kf, x: kf.ops.linear(x[None], x[None], x[:, 0]), "kf.linear: bias has the shape (5,), expected (1, 5) beside x of the shape (1, 5, 4)"),
    (lambda kf, x: kf.ops.matmul_tn(x[None], x), "kf.matmul_tn: a has the shape (1, 5, 4), expected 2 dimensions beside b of the shape (5, 4)"),
    (lambda kf, x: kf.ops.matmul(x[None, None], x[None]), "kf.matmul: b has the shape (1, 5, 4), expected two dimensions or as many as a of the "
     "shape (1, 1, 5, 4)"),
    (lambda kf, x: kf.ops.linear_dropout_add(x, x, x), "kf.linear_dropout_add: residual has the shape (5, 4), expected (5, 5) beside x of")]


@pytest.mark.parametrize("number", range(len(SAID)))
def test_what_is_refused(kf, number):
    """The same words over tensors and arrays."""
    call, text = SAID[number]
    x = torch.ones(5, 4)
    for given in (x, x.numpy()):
        with pytest.raises(ValueError, match=re.escape(text)):
            call(kf, given)


def test_other_dtypes_are_refused(kf):
    x = torch.ones(5, 4)
    with pytest.raises(TypeError, match="kf.linear: weight has the dtype f64, expected f32 beside x of f32"):
        kf.ops.linear(x, x.double())
    with pytest.raises(TypeError, match="kf.linear: x has the dtype i64, expected one of bf16, f16, f32, f64"):
        kf.ops.linear(x.long(), x.long())
