# SPDX-License-Identifier: Apache-2.0
"""Matrix products in kf.ops: shapes, strides, autocast, accumulation and errors."""

import functools
import re

import kfpython
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
    same(
        lambda x, w, s: kf.ops.relu_linear(x, w, s),
        lambda x, w, s: F.linear(torch.relu(x + s), w),
        x,
        weight,
        draw(4),
    )
    same(kf.ops.matmul_nn, torch.matmul, x, draw(4, 3))


def test_batches(kf):
    """Leading dimensions of a weight are batch dimensions; x may have several row dimensions."""

    def layer(x, w, b):
        return F.relu(
            torch.einsum("b...i,boi->b...o", x, w) + b.view(b.shape[0], *[1] * (x.dim() - 2), -1)
        )

    for lead in ((3, 5), (3, 2, 5), (3,)):
        same(kf.ops.linear_relu, layer, draw(*lead, 4), draw(3, 6, 4), draw(3, 6))
    a, b = draw(2, 3, 4, 5), draw(2, 3, 5, 6)
    same(kf.ops.matmul_nn, torch.matmul, a, b)
    same(kf.ops.matmul_nt, lambda a, b: a @ b.mT, a, draw(2, 3, 6, 5))
    same(
        lambda a, b: kf.ops.matmul_tn(a, b, alpha=-0.5),
        lambda a, b: -0.5 * a.mT @ b,
        draw(2, 3, 5, 4),
        b,
    )
    same(kf.ops.matmul_tn, lambda a, b: a.mT @ b, draw(5, 4), draw(5, 6))


def test_two_weights_in_one(kf):
    """Gate and up projection in one weight, over arrays too."""

    def layer(x, w, b=None):
        gate, up = torch.einsum("b...i,boi->b...o" if w.dim() > 2 else "...i,oi->...o", x, w).chunk(
            2, -1
        )
        more = (
            (0, 0)
            if b is None
            else b.view(*b.shape[:-1], *[1] * (x.dim() - w.dim() + 1), -1).chunk(2, -1)
        )
        return F.gelu(gate + more[0]) * (up + more[1])

    for x, w, b in (
        (draw(5, 4), draw(12, 4), draw(12)),
        (draw(2, 3, 4), draw(6, 4), draw(6)),
        (draw(3, 2, 5, 4), draw(3, 8, 4), draw(3, 8)),
    ):
        same(kf.ops.linear_gelu_glu, layer, x, w, b)
        same(kf.ops.linear_gelu_glu, layer, x, w)
        assert np.array_equal(
            kf.ops.linear_gelu_glu(*(t.detach().numpy() for t in (x, w, b))),
            kf.ops.linear_gelu_glu(x, w, b).detach().numpy(),
        )
    x, total = draw(5, 4), torch.ones(6, 4, dtype=torch.float64)
    w = draw(6, 4)
    kf.ops.linear_gelu_glu(x, w, grads={"weight": total}).sum().backward()
    assert torch.allclose(total - 1, torch.autograd.grad(layer(x, w).sum(), [w])[0], 1e-10, 1e-12)


def test_no_depth(kf):
    """A product over no elements is zero; bias and activation are applied."""
    bias = draw(6)
    same(
        kf.ops.linear_relu, lambda x, w, b: F.relu(F.linear(x, w, b)), draw(3, 0), draw(6, 0), bias
    )


def copies(kf, name, call, *tensors):
    before = kf.info()["copies"].get(name, 0)
    call(*tensors)
    return kf.info()["copies"].get(name, 0) - before


def test_factors_as_they_lie(kf):
    """Strided rows and matrices and broadcast matrices are read directly; other layouts are copied
    once, and counted.
    """
    x, weight, deep = (draw(*s).detach() for s in ((8, 6), (7, 6), (3, 7, 6)))
    for given, count in (
        ((x[:, :4], weight[:, :4]), 0),
        ((x[::2], weight[1::2]), 0),
        ((x[:1, :4], weight[:, :4]), 0),
        ((x[:, :1], weight[:, :1]), 0),
        ((x.expand(3, 8, 6), deep), 0),
        ((draw(3, 8, 6).detach()[:, ::2], deep[:, :5]), 0),
        ((draw(3, 2, 6).detach(), weight.expand(3, 7, 6)), 0),
        ((draw(4, 3, 6).detach().transpose(0, 1), deep), 0),
        ((x[:, ::2], weight[:, ::2]), 2),
        ((draw(6, 8).detach().t(), weight), 1),
        ((draw(4, 5, 6).detach()[:, :3], weight), 1),
    ):

        def call(x, w, given=given):
            got = kf.ops.linear(x, w)
            assert torch.allclose(
                torch.as_tensor(got),
                torch.einsum("b...i,boi->b...o" if w.ndim > 2 else "...i,oi->...o", *given),
                1e-12,
                1e-12,
            )

        assert copies(kf, "linear", call, *given) == count, [(t.shape, t.stride()) for t in given]
        assert copies(kf, "linear", call, *(t.numpy() for t in given)) == count


def test_a_gradient_as_it_lies(kf):
    """A broadcast incoming gradient, and one with strided rows."""
    x, weight = draw(5, 4), draw(6, 4)
    for up in (
        torch.ones((), dtype=torch.float64).expand(5, 6),
        draw(5, 9).detach()[:, :6],
        draw(6, 5).detach().t(),
    ):
        mine, theirs = (
            torch.autograd.grad(f(x, weight), [x, weight], up)
            for f in (kf.ops.linear_gelu, lambda x, w: F.gelu(F.linear(x, w)))
        )
        assert all(torch.allclose(m, t, 1e-10, 1e-12) for m, t in zip(mine, theirs))


def test_matmul_reads_a_transposed_factor_as_it_lies(kf):
    a, b = draw(5, 4).detach(), draw(4, 3).detach()
    turned = a.t().contiguous().t(), b.t().contiguous().t()
    for x, y in (
        (a, b),
        (turned[0], b),
        (a, turned[1]),
        (draw(2, 5, 4).detach(), b),
        (draw(2, 5, 4).detach(), draw(2, 3, 4).detach().mT),
    ):
        for given in ((x, y), (x.numpy(), y.numpy())):
            for name in ("matmul_nn", "matmul_nt", "matmul_tn"):
                assert copies(kf, name, lambda *t: kf.ops.matmul(*t), *given) == 0
            assert np.allclose(kf.ops.matmul(*given, alpha=2), 2 * (x @ y), 1e-12, 1e-12)
    same(kf.ops.matmul, torch.matmul, draw(5, 4), draw(4, 3))


def test_autocast(kf):
    """Products use autocast's 2-byte dtype as PyTorch's do; leaves keep their dtype, and float64
    is unchanged.
    """
    x, w, b = (draw(*s).detach().float().requires_grad_() for s in ((5, 4), (6, 4), (6,)))
    with torch.autocast("cpu", torch.bfloat16):
        got, want = kf.ops.linear_relu(x, w, b), torch.relu(F.linear(x, w, b))
        assert got.dtype == want.dtype == torch.bfloat16 and torch.allclose(
            got.float(), want.float(), atol=2e-2
        )
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
    for m, t in zip(
        torch.autograd.grad(got.square().sum(), [x, w, r]),
        torch.autograd.grad(want.square().sum(), [x, w, r]),
    ):
        assert torch.allclose(m, t, 1e-9, 1e-9)
    arrays = kf.ops.linear_dropout_add(*(t.detach().numpy() for t in (x, w, r)), p=0.25, rng=(3, 4))
    assert np.array_equal(arrays, got.detach().numpy())
    assert (
        torch.allclose(
            kf.ops.linear_dropout_add(x, w, r, training=False), F.linear(x, w) + r, 1e-12, 1e-12
        )
        and dx is None
    )


def test_fused_linear_activation_compiled(kf):
    """Runs one kernel in one graph; two kernels if linear lacks the activation."""
    x, w, b = draw(5, 4), draw(6, 4), draw(6)
    for activation, ops in (("gelu", ["kf.linear"]), ("none", ["kf.linear"])):
        torch._dynamo.reset()
        seen = []

        def backend(graph, _inputs, seen=seen):
            seen += [
                str(n.target)
                for n in graph.graph.nodes
                if n.op == "call_function" and str(n.target).startswith("kf.")
            ]
            return graph.forward

        def layer(x, w, b, activation=activation):
            return kf.ops.fused_linear_activation(x, w, b, activation)

        with torch.no_grad():
            assert torch.equal(
                torch.compile(layer, fullgraph=True, backend=backend)(x, w, b), layer(x, w, b)
            )
        assert [name.rpartition(".")[0] for name in seen] == ops
    torch._dynamo.reset()
    compiled = torch.compile(kf.ops.matmul, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, w.t()), kf.ops.matmul_nt(x, w))


def test_gradients_that_are_added(kf):
    """Gradients accumulate in the caller's tensors; other operands get theirs from autograd."""
    same_for_both = [(dtype, dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16)]
    for dtype, wide in (*same_for_both, (torch.bfloat16, torch.float32)):
        x, w, b, up = (
            draw(*s).detach().to(dtype).requires_grad_() for s in ((5, 4), (6, 4), (6,), (5, 6))
        )
        for name in ("linear_gelu", "linear_relu", "linear"):
            f = getattr(kf.ops, name)
            dx, dw, db = torch.autograd.grad(f(x, w, b), [x, w, b], up)
            to = torch.full((6, 9), 3.0, dtype=wide)
            for _ in range(2):
                out = f(x, w, b, grads={"weight": to[:, :4]})
                assert torch.equal(out, f(x, w, b))
                mine = torch.autograd.grad(out, [x, w, b], up, allow_unused=True)
                assert (
                    torch.equal(mine[0], dx)
                    and mine[1] is None
                    and torch.allclose(mine[2], db)
                    and mine[2].dtype == dtype
                )
            tolerance = (
                1e-12 if dtype == torch.float64 else 1e-5 if dtype == torch.float32 else 4e-2
            )
            assert ((to[:, :4] - 3 - 2 * dw).abs() <= tolerance * (3 + 2 * dw.abs())).all() and (
                to[:, 4:] == 3
            ).all()
            both = {"weight": torch.zeros(6, 4, dtype=wide), "bias": torch.zeros(6, dtype=wide)}
            f(x.detach(), w, b, grads=both).backward(up)
            assert torch.allclose(both["weight"].to(dtype), dw, 1e-2) and torch.allclose(
                both["bias"].to(dtype), db, 1e-2
            )
            assert w.grad is None and b.grad is None
    a, b = draw(3, 4, 5), draw(3, 4, 6)
    to = torch.zeros(3, 4, 6, dtype=torch.float64)
    kf.ops.matmul_tn(a, b, grads={"b": to}).sum().backward()
    assert torch.allclose(to, torch.autograd.grad(kf.ops.matmul_tn(a, b).sum(), [b])[0])
    w, r = draw(6, 4), draw(5, 6)
    to = torch.zeros(6, 4, dtype=torch.float64)
    kf.ops.linear_dropout_add(
        draw(5, 4), w, r, p=0.5, rng=(1, 2), grads={"weight": to}
    ).sum().backward()
    assert torch.allclose(
        to,
        torch.autograd.grad(
            kf.ops.linear_dropout_add(draw(5, 4), w, r, p=0.5, rng=(1, 2)).sum(), [w]
        )[0],
    )


def test_what_is_kept_for_the_backward(kf):
    """relu saves its result only, and the value before it is not stored; gelu and negative slopes
    save that value.
    """
    x, w = draw(50, 4), draw(60, 4)
    calls = [
        (kf.ops.linear_relu, F.relu, 1),
        (kf.ops.linear_gelu, F.gelu, 1),
        (kf.ops.linear, lambda x: x, 0),
    ]
    if kfpython.WHOLE:
        calls += [
            tuple(
                functools.partial(f, negative_slope=s)
                for f in (kf.ops.linear_leaky_relu, F.leaky_relu)
            )
            + (1,)
            for s in (0.3, -0.3)
        ]
    for call, act, count in calls:
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, kept=kept: kept.append(tuple(t.shape)) or t, lambda t: t
        ):
            out = call(x, w)
        assert kept.count((50, 60)) == count
        up = torch.randn_like(out)
        for mine, theirs in zip(
            torch.autograd.grad(out, [x, w], up),
            torch.autograd.grad(act(F.linear(x, w)), [x, w], up),
        ):
            assert torch.allclose(mine, theirs, 1e-10, 1e-12)


def test_arrays_that_are_added_to(kf):
    a, b = (draw(*s).detach().numpy() for s in ((4, 5), (5, 6)))
    out = np.ones((4, 6))
    assert kf.ops.matmul_nn(a, b, alpha=2.0, beta=-0.5, out=out) is out and np.allclose(
        out, 2 * (a @ b) - 0.5, 1e-12, 1e-12
    )
    out[:] = np.nan
    assert np.allclose(kf.ops.matmul_nn(a, b, out=out), a @ b, 1e-12, 1e-12)


REFUSED = [
    (
        lambda kf, x, w: kf.ops.linear_gelu_glu(x, w[:5]),
        ValueError,
        "kf.linear_gelu_glu: weight has the shape (5, 4), expected a dimension 0 that is a "
        "multiple of 2",
    ),
    (
        lambda kf, x, w: kf.ops.linear_gelu_glu(x, w, w[0]),
        ValueError,
        "kf.linear_gelu_glu: bias has the shape (4,), expected (6,)",
    ),
    (
        lambda kf, x, w: kf.ops.linear(x, w, grads={"x": x}),
        ValueError,
        "kf.linear: grads has 'x', expected some of weight",
    ),
    (
        lambda kf, x, w: kf.ops.linear(x, w, grads={"bias": w[:, 0]}),
        ValueError,
        "kf.linear: grads has 'bias', expected some of weight",
    ),
    (
        lambda kf, x, w: kf.ops.linear(x, w, grads={"weight": 1}),
        TypeError,
        "kf.linear: grads['weight'] is int, expected a tensor",
    ),
    (
        lambda kf, x, w: kf.ops.linear(x, w, grads={"weight": w.detach().double()}),
        TypeError,
        "kf.linear: grads['weight'] has the dtype torch.float64, expected torch.float32, the same "
        "for all",
    ),
    (
        lambda kf, x, w: kf.ops.linear(x, w, grads={"weight": w.detach().t()}),
        ValueError,
        "kf.linear: grads['weight'] has the shape (4, 6) on cpu, expected (6, 4) on cpu",
    ),
    (
        lambda kf, x, w: kf.ops.linear(x, w, grads={"weight": w}),
        ValueError,
        "kf.linear: grads['weight'] requires a gradient, expected a tensor without",
    ),
    (
        lambda kf, x, w: (
            kf.ops.linear(x, w, grads={"weight": torch.zeros(4, 6).t()}).sum().backward()
        ),
        ValueError,
        "kf.linear (backward): grads['weight'] has the strides (1, 6), expected contiguous or "
        "strided rows",
    ),
    (
        lambda kf, x, w: kf.ops.linear(x, w, grads={"weight": w.detach()}).sum().backward(),
        ValueError,
        "kf.linear (backward): tensors overlap in a way the function does not allow: dweight at 0x",
    ),
    (
        lambda kf, x, w: kf.ops.linear(x, w[:, :3], grads={"weight": torch.zeros(6, 3)}),
        ValueError,
        "kf.linear: weight has the shape (6, 3), expected (6, 4) beside x of the shape (5, 4)",
    ),
    (
        lambda kf, x, w: kf.ops.matmul_nn(x, w.t(), beta=1.0),
        TypeError,
        "kf.matmul_nn: beta is for NumPy arrays, which have out",
    ),
    (
        lambda kf, x, w: kf.ops.matmul_nn(x.numpy(), w.detach().numpy().T, beta=1.0),
        ValueError,
        "kf.matmul_nn: beta is 1, expected 0 without out",
    ),
    (
        lambda kf, x, w: kf.ops.linear(x.numpy(), x.numpy(), grads={}),
        TypeError,
        "kf.linear: grads is for PyTorch tensors",
    ),
    (
        lambda kf, x, w: torch.compile(
            lambda x, w: kf.ops.linear(x, w, grads={"weight": torch.zeros(6, 4)}),
            fullgraph=True,
            backend="eager",
        )(x, w),
        Exception,
        "kf.linear: grads is not traced by torch.compile",
    ),
    (
        lambda kf, x, w: torch.autograd.grad(
            kf.ops.linear_gelu(x, w, grads={"weight": torch.zeros(6, 4)}).sum(),
            [w],
            create_graph=True,
        ),
        NotImplementedError,
        "kf.linear_gelu has no second derivative where gradients are added to tensors (grads)",
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_refused_of_what_is_added(kf, number):
    call, error, text = REFUSED[number]
    with pytest.raises(error, match=re.escape(text)):
        call(kf, torch.ones(5, 4), torch.ones(6, 4, requires_grad=True))


MISMATCHED = [
    (
        lambda kf, x: kf.ops.linear(x, x[:, :3]),
        "kf.linear: weight has the shape (5, 3), expected (5, 4) beside x of the shape (5, 4)",
    ),
    (
        lambda kf, x: kf.ops.linear(x, x[0]),
        "kf.linear: weight has the shape (4,), expected at least 2 dimensions",
    ),
    (
        lambda kf, x: kf.ops.linear(x[0], x[None]),
        "kf.linear: x has the shape (4,), expected at least 2 dimensions beside weight of the "
        "shape (1, 5, 4)",
    ),
    (
        lambda kf, x: kf.ops.linear(x, x, x[0]),
        "kf.linear: bias has the shape (4,), expected (5,) beside x of the shape (5, 4)",
    ),
    (
        lambda kf, x: kf.ops.linear(x[None], x[None], x[:, 0]),
        "kf.linear: bias has the shape (5,), expected (1, 5) beside x of the shape (1, 5, 4)",
    ),
    (
        lambda kf, x: kf.ops.matmul_tn(x[None], x),
        "kf.matmul_tn: a has the shape (1, 5, 4), expected 2 dimensions beside b of the shape (5, "
        "4)",
    ),
    (
        lambda kf, x: kf.ops.matmul(x[None, None], x[None]),
        "kf.matmul: b has the shape (1, 5, 4), expected two dimensions or as many as a of the "
        "shape (1, 1, 5, 4)",
    ),
    (
        lambda kf, x: kf.ops.matmul(x, x),
        "kf.matmul: b has the shape (5, 4), expected (4, 4) beside a of the shape (5, 4)",
    ),
    (
        lambda kf, x: kf.ops.matmul(x, x[:, :3].T),
        "kf.matmul: b has the shape (3, 5), expected (4, 5) beside a of the shape (5, 4)",
    ),
    (
        lambda kf, x: kf.ops.matmul(x[0, 0], x),
        "kf.matmul: a has the shape (), expected at least 1 dimensions beside b of the shape (5, "
        "4)",
    ),
    (
        lambda kf, x: kf.ops.linear_dropout_add(x, x, x),
        "kf.linear_dropout_add: residual has the shape (5, 4), expected (5, 5) beside x of",
    ),
]


@pytest.mark.parametrize("number", range(len(MISMATCHED)))
def test_what_is_refused(kf, number):
    """Errors are the same for tensors and arrays."""
    call, text = MISMATCHED[number]
    x = torch.ones(5, 4)
    for given in (x, x.numpy()):
        with pytest.raises(ValueError, match=re.escape(text)):
            call(kf, given)


def test_other_dtypes_are_refused(kf):
    x = torch.ones(5, 4)
    with pytest.raises(
        TypeError, match="kf.linear: weight has the dtype f64, expected f32 beside x of f32"
    ):
        kf.ops.linear(x, x.double())
    with pytest.raises(
        TypeError, match="kf.linear: x has the dtype i64, expected one of bf16, f16, f32, f64"
    ):
        kf.ops.linear(x.long(), x.long())
