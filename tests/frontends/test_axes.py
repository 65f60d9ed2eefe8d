# SPDX-License-Identifier: Apache-2.0
"""dim and keepdim of reductions: several axes, none, negative ones, and refused arguments."""

import itertools

import cases
import numpy as np
import pytest
import pytorch

torch = pytorch.load()


SHAPE = (2, 3, 4, 5)
AXES = [
    axes
    for n in range(len(SHAPE) + 1)
    for axes in itertools.combinations(range(len(SHAPE)), n)
    if cases.LEVEL > 1 or n < 3 or axes == (0, 1, 3)
]
# PyTorch's functions. The package of level 1 has the first one, the others compile when called.
OWN = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "amin": torch.amin,
    "var": torch.var,
    "std": torch.std,
    "logsumexp": torch.logsumexp,
    "l2_norm": lambda x, dim, keepdim: torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim),
    "mean_abs": lambda x, dim, keepdim: x.abs().mean(dim, keepdim),
    "sum_squared": lambda x, dim, keepdim: (x * x).sum(dim, keepdim),
}
NAMES = cases.by_level(("sum",), tuple(OWN))


def draw(*shape, **more):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), **more)


def compare(kf, name, x, dim, keepdim):
    """Compares value and gradient with PyTorch's."""
    x = x.detach().requires_grad_()
    got = getattr(kf.ops, name)(x, dim=dim, keepdim=keepdim)
    # PyTorch's logsumexp refuses an empty tuple, which its other functions take as all axes.
    every = tuple(range(x.dim())) if dim is None or dim == () else dim
    want = OWN[name](x, dim=every, keepdim=keepdim)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    up = torch.randn_like(want)
    [mine], [theirs] = (torch.autograd.grad(r, [x], up) for r in (got, want))
    torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients(kf, name):
    x = draw(*SHAPE)
    for dim, keepdim in itertools.product([None, *AXES, (-1, 0), [1, -1], 2, -2], (False, True)):
        compare(kf, name, x, dim, keepdim)
    for view in (x.permute(0, 2, 3, 1), x[:, ::2], x.transpose(0, 3), x[:, :1]):
        for dim in ((2, 3), (1, 3), (0, 2), 1, None):
            compare(kf, name, view, dim, True)


@pytest.mark.parametrize("name", NAMES)
def test_a_scalar_is_one_element(kf, name):
    """A tensor without dimensions has the axes 0 and -1, as PyTorch's has."""
    x = torch.tensor(-1.5)
    for dim, keepdim in itertools.product((0, -1, None, (), (0,), (-1,)), (False, True)):
        if name in ("var", "std"):  # NaN: one element has no variance
            assert getattr(kf.ops, name)(x, dim=dim, keepdim=keepdim).isnan()
        else:
            compare(kf, name, x, dim, keepdim)


def test_bits_do_not_depend_on_the_spelling(kf):
    """Adjacent axes are one axis of a reshaped tensor, which is not copied."""
    x = draw(2, 3, 4, 5)
    want = kf.ops.sum(x.reshape(2, 12, 5), dim=1)
    before = dict(kf.info()["copies"])
    for dim in ((1, 2), (2, 1), (-3, -2)):
        assert torch.equal(kf.ops.sum(x, dim), want)
        assert torch.equal(kf.ops.sum(x, dim, True), want.reshape(2, 1, 1, 5))
    assert kf.info()["copies"] == before
    kf.ops.sum(x, dim=(1, 3))
    assert kf.info()["copies"]["sum"] == before.get("sum", 0) + 1


def test_empty_axes(kf):
    """Results are PyTorch's: the neutral element, or nothing."""
    for shape, dim in (((2, 0, 3), (1, 2)), ((2, 0, 3), (0, 2)), ((0, 4, 0), (0, 2))):
        for keepdim in (False, True):
            compare(kf, "sum", torch.zeros(shape), dim, keepdim)


def test_half_precision_rounds_once(kf):
    x = draw(64, 3, 65, dtype=torch.float64).to(torch.bfloat16)
    got = kf.ops.sum(x, dim=(0, 2), keepdim=True)
    assert torch.equal(got, x.double().sum((0, 2), keepdim=True).to(torch.bfloat16))


def test_arrays(kf):
    """NumPy arrays, strided ones and results in given memory."""
    x = draw(*SHAPE).numpy()
    for given in (x, x[:, ::2], x.transpose(3, 0, 2, 1), np.asfortranarray(x)):
        for dim, keepdim in itertools.product((*AXES, 1, None), (False, True)):
            axis = dim if dim or dim == 0 else None
            got = kf.ops.sum(given, dim=dim, keepdim=keepdim)
            np.testing.assert_allclose(got, given.sum(axis, keepdims=keepdim), 2e-5, 2e-5)
    out = np.empty((2, 1, 4, 1), np.float32)
    assert kf.ops.sum(x, dim=(1, 3), keepdim=True, out=out) is out
    np.testing.assert_allclose(out, x.sum((1, 3), keepdims=True), 2e-5, 2e-5)
    assert kf.ops.sum(np.float32(2).reshape(()), dim=0) == 2


@pytest.mark.check
def test_an_index_keeps_its_dimension(kf):
    x = draw(2, 3, 4)
    for dim in (1, -1):
        value, index = kf.ops.argmax(x, dim=dim, keepdim=True)
        want = x.max(dim, keepdim=True)
        assert torch.equal(value, want.values) and torch.equal(index, want.indices)
    value, index = kf.ops.argmax(x, dim=None, keepdim=True)
    assert value.shape == (1, 1, 1) and index.item() == x.argmax().item()
    with pytest.raises(TypeError, match="kf.argmax: dim is .0, 1., expected a whole number or No"):
        kf.ops.argmax(x, dim=(0, 1))


@pytest.mark.check
def test_losses(kf):
    """Losses of several tensors reduce the same axes of each."""
    x, y = draw(2, 3, 4), torch.ones(2, 3, 4)
    got = kf.ops.mse_mean(x, y, dim=(0, 2), keepdim=True)
    torch.testing.assert_close(got, ((x - y) ** 2).mean((0, 2), keepdim=True))
    with pytest.raises(ValueError, match="kf.mse_mean: target has the shape"):
        kf.ops.mse_mean(x, torch.ones(1, 3, 4), dim=(0, 2))


REFUSED = [
    ({"dim": (0, 0)}, ValueError, "dim is (0, 0), expected different dimensions: dim 0 appears "),
    ({"dim": (1, -1)}, ValueError, "dim is (1, -1), expected different dimensions: dim 1 appears"),
    ({"dim": (0, 2)}, ValueError, "x has the shape (2, 3), expected a dimension 2, the axis"),
    ({"dim": (-3,)}, ValueError, "x has the shape (2, 3), expected a dimension -3, the axis"),
    ({"dim": 2, "keepdim": True}, ValueError, "x has the shape (2, 3), expected a dimension 2"),
    ({"dim": (0, 1.0)}, TypeError, "dim is float, expected a whole number, a tuple of them or No"),
    ({"dim": "rows"}, TypeError, "dim is str, expected a whole number"),
    ({"dim": True}, TypeError, "dim is bool, expected a whole number"),
    ({"keepdim": 1}, TypeError, "keepdim is int, expected True or False"),
]


@pytest.mark.parametrize("given, kind, message", REFUSED, ids=lambda v: str(v)[:24])
def test_refused(kf, given, kind, message):
    for x in (torch.ones(2, 3), np.ones((2, 3), np.float32)):
        with pytest.raises(kind) as e:
            kf.ops.sum(x, **given)
        assert str(e.value).startswith(f"kf.sum: {message}"), e.value


@pytest.mark.check
@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("compile_ops", ("decompose", "opaque"))
def test_compiled(kf, monkeypatch, dynamic, compile_ops):
    """torch.compile traces the call into one graph, whose gradient is the eager one's."""
    monkeypatch.setattr(kf.config, "compile_ops", compile_ops)

    def f(x):
        return kf.ops.sum(x, dim=(1, 3), keepdim=True) + kf.ops.sum(x, dim=(-2, -1), keepdim=True)

    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for shape in (SHAPE, (3, 2, 5, 4)):
        x = draw(*shape, requires_grad=True)
        got, want = compiled(x), f(x)
        torch.testing.assert_close(got, want)
        [mine], [theirs] = (torch.autograd.grad(r.sum(), [x]) for r in (got, want))
        torch.testing.assert_close(mine, theirs)


def test_every_reduction_has_both(kf):
    """The signature and help of each reduction name dim and keepdim."""
    import inspect

    from kernel_fusion import _table

    found = [op for op in _table.ops().values() if op.reduces]
    assert len(found) > 15
    for op in found:
        function = getattr(kf.ops, op.word(op.activations[0]))
        given = inspect.signature(function).parameters
        assert given["keepdim"].default is False and "keepdim: if True" in function.__doc__
