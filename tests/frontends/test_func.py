# SPDX-License-Identifier: Apache-2.0
"""Derivatives inside transforms of torch.func, compared with PyTorch's own functions."""

import kfpython
import pytest
import pytorch

torch = pytorch.load()
kfpython.use()
F, func = torch.nn.functional, torch.func
X = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
WEIGHT = X[0] + 2
MATRIX = X.cos()
# {name: (kf's function, PyTorch's, True if it has a second derivative)}
FUNCTIONS = {
    "gelu": (lambda kf, x: kf.ops.gelu(x), F.gelu, True),
    "bias_relu": (lambda kf, x: kf.ops.bias_relu(x, WEIGHT), lambda x: F.relu(x + WEIGHT), True),
    "sum": (lambda kf, x: kf.ops.sum(x * x, dim=-1), lambda x: (x * x).sum(-1), True),
    "layer_norm": (
        lambda kf, x: kf.ops.layer_norm(x, WEIGHT, WEIGHT),
        lambda x: F.layer_norm(x, (6,), WEIGHT, WEIGHT),
        False,
    ),
    "linear": (lambda kf, x: kf.ops.linear(x, MATRIX), lambda x: F.linear(x, MATRIX), False),
}
TRANSFORMS = {
    "grad": lambda f: func.grad(lambda x: f(x).square().sum())(X),
    "vjp": lambda f: func.vjp(f, X)[1](torch.ones_like(f(X)))[0],
    "a gradient per sample": lambda f: func.vmap(func.grad(lambda x: f(x).square().sum()))(X),
    "grad of vmap": lambda f: func.grad(lambda x: func.vmap(f)(x).square().sum())(X),
}
MORE = {"jacrev": lambda f: func.jacrev(f)(X)}


def outside(f):
    """Gradient of autograd around a vmap."""
    x = X.clone().requires_grad_()
    func.vmap(f)(x).square().sum().backward()
    return x.grad


def check(kf, name, transform):
    mine, theirs, _ = FUNCTIONS[name]
    assert torch.allclose(transform(lambda x: mine(kf, x)), transform(theirs), atol=1e-12)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms(kf, name):
    for transform in (*TRANSFORMS.values(), *MORE.values(), outside):
        check(kf, name, transform)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives(kf, name):
    def twice(f):
        return func.grad(lambda x: func.grad(lambda x: f(x).pow(3).sum())(x).sum())(X)

    if FUNCTIONS[name][2]:
        check(kf, name, twice)
    else:
        with pytest.raises(NotImplementedError, match=f"kf.{name} has no second derivative"):
            check(kf, name, twice)


def test_losses_and_saved_values(kf):
    """A loss whose gradient another op computes, and one that saves values of rows."""
    label = torch.tensor([1, 0, 2])
    for mine, theirs in (
        (lambda x: kf.ops.cross_entropy(x, label), lambda x: x),
        (lambda x: kf.ops.linear_cross_entropy(x, MATRIX, label), lambda x: F.linear(x, MATRIX)),
    ):
        got = func.grad(lambda x, f=mine: f(x).sum())(X)
        want = func.grad(lambda x, f=theirs: F.cross_entropy(f(x), label, reduction="sum"))(X)
        assert torch.allclose(got, want, atol=1e-12)


def test_ops_of_the_dispatcher_refuse(kf):
    with pytest.raises(
        NotImplementedError, match="no derivative inside transforms .*: call kf.ops"
    ):
        func.grad(lambda x: torch.ops.kf.layer_norm(x, None, None, 1e-5, 0.0, 0.0, 0, False).sum())(
            X
        )
