# SPDX-License-Identifier: Apache-2.0
"""Errors of kf.ops over PyTorch tensors."""

import re

import numpy as np
import pytest
import pytorch

torch = pytorch.load()

from torchops import close  # noqa: E402

REFUSED = [
    (
        lambda kf, x: kf.ops.bias_gelu(x, torch.zeros(7)),
        ValueError,
        "kf.bias_gelu: bias has the shape (7,), expected (5,) beside x of the shape (3, 5)",
    ),
    (
        lambda kf, x: kf.ops.bias_gelu(x, torch.zeros(5).double()),
        TypeError,
        "kf.bias_gelu: bias has the dtype f64, expected f32 beside x of f32",
    ),
    (
        lambda kf, x: kf.ops.bias_gelu(x.to(torch.complex64), x[0]),
        TypeError,
        "kf.bias_gelu: x has the dtype complex64, expected one of",
    ),
    (
        lambda kf, x: kf.ops.layer_norm(x, eps=-1.0),
        ValueError,
        "kf.layer_norm: eps is -1.0, expected at least 0",
    ),
    (
        lambda kf, x: kf.ops.layer_norm(x, torch.zeros(5, device="meta")),
        ValueError,
        "kf.layer_norm: weight is on meta, the others on cpu",
    ),
    (lambda kf, x: kf.ops.relu(x, out=x), TypeError, "kf.relu: out is for NumPy arrays"),
    (
        lambda kf, x: kf.ops.gelu_dropout(x, rng=torch.zeros(3).long()),
        ValueError,
        "kf.gelu_dropout: rng is torch.int64 with shape (3,)",
    ),
    (
        lambda kf, x: kf.ops.gelu_dropout(x, p=-0.5),
        ValueError,
        "kf.gelu_dropout: p is -0.5, expected at least 0 and at most 1",
    ),
    (
        lambda kf, x: kf.ops.sum(x, dim=2),
        ValueError,
        "kf.sum: x has the shape (3, 5), expected a dimension 2, the axis",
    ),
    (lambda kf, x: kf.ops.add(x, 1.0), TypeError, "kf.add: b is float, expected a tensor"),
    (
        lambda kf, x: kf.ops.bias_gelu(x, np.zeros(5, "f")),
        TypeError,
        "kf.bias_gelu: bias is ndarray, expected a tensor",
    ),
    (lambda kf, x: kf.ops.bias_gelu(x, None), TypeError, "kf.bias_gelu: bias is missing"),
    (
        lambda kf, x: torch.no_grad()(kf.ops.layer_norm_gelu)(x, [1.0] * 5),
        TypeError,
        "kf.layer_norm_gelu: weight is list, expected a tensor",
    ),
    (
        lambda kf, x: kf.ops.layer_norm(x, eps="small"),
        TypeError,
        "kf.layer_norm: eps is str, expected a number",
    ),
    (
        lambda kf, x: kf.ops.leaky_relu(x, negative_slope=None),
        TypeError,
        "kf.leaky_relu: negative_slope is NoneType, expected a number",
    ),
    (
        lambda kf, x: kf.ops.cross_entropy(x, torch.zeros(3).long(), ignore_index=0.5),
        TypeError,
        "kf.cross_entropy: ignore_index is float, expected a whole number",
    ),
    (
        lambda kf, x: kf.ops.sum(x, dim=(0, 1.5)),
        TypeError,
        "kf.sum: dim is float, expected a whole number, a tuple of them or None",
    ),
    (
        lambda kf, x: kf.ops.mse_mean(x, x.reshape(5, 3), dim=None),
        ValueError,
        "kf.mse_mean: target has the shape (5, 3), expected (3, 5) beside x of that shape",
    ),
    (lambda kf, x: kf.ops.mse_mean(x, None, dim=None), TypeError, "kf.mse_mean: target is missing"),
    (
        lambda kf, x: torch.autocast("cpu")(kf.ops.bias_gelu)(torch.ones(3, 5, device="cpu"), 1.0),
        TypeError,
        "kf.bias_gelu: bias is float, expected a tensor",
    ),
    (
        lambda kf, x: kf.ops.gelu_dropout(x, rng=(1.5, 0)),
        TypeError,
        "kf.gelu_dropout: rng is (1.5, 0), expected None, two whole numbers",
    ),
    (
        lambda kf, x: kf.ops.gelu_dropout(x, rng=3),
        TypeError,
        "kf.gelu_dropout: rng is 3, expected None, two whole numbers of 64 bits",
    ),
]


def test_tensors_that_are_not_dense(kf):
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    for given, text in (
        (nested, "kf.relu: x is a nested tensor, expected a dense one"),
        (torch.eye(3).to_sparse(), "kf.relu: x is a sparse tensor, expected a dense one"),
        (
            torch.zeros(2, dtype=torch.complex64),
            "kf.relu: x has the dtype complex64, expected one of bf16, f16, f32, f64$",
        ),
    ):
        with pytest.raises(TypeError, match=text):
            kf.ops.relu(given)
    x, table = torch.randn(2, 1, 4), torch.randn(2, 4)
    with pytest.raises(ValueError, match="pairs is 4, expected at most half of dim, 4") as e:
        kf.ops.rope_qk(x, x, table, table)
    assert "address space" not in str(e.value)


def test_scalars_have_no_gradient(kf):
    """torch.nn.functional refuses them as well; a tensor of one number is a number."""
    x, eps = torch.randn(4, 6), torch.nn.Parameter(torch.tensor(1e-5))
    fused = kf.fuse("x * s", x="elem", s=2.0)
    for call, name in (
        (lambda: kf.ops.layer_norm(x, eps=eps), "kf.layer_norm: eps"),
        (lambda: kf.ops.gelu_dropout(x, p=eps), "kf.gelu_dropout: p"),
        (lambda: fused(x, s=eps), "s"),
    ):
        for traced in (call, torch.compile(call, fullgraph=True, backend="eager")):
            with pytest.raises(Exception, match=f"{name} requires a gradient, which scalars do no"):
                traced()
    with pytest.raises(TypeError, match=r"kf.layer_norm: eps is a tensor of the shape \(2,\)"):
        kf.ops.layer_norm(x, eps=torch.tensor([1e-5, 1e-6]))
    assert torch.equal(kf.ops.layer_norm(x, eps=eps.detach()), kf.ops.layer_norm(x, eps=1e-5))


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_refused(kf, number):
    """Errors are the same for tensors and fake tensors; they name op, argument, shapes
    and dtypes.
    """
    call, error, text = REFUSED[number]
    x = torch.randn(3, 5)
    with pytest.raises(error, match=re.escape(text)):
        call(kf, x)
    if "meta" not in text:
        with torch.device("meta"), pytest.raises(error, match=re.escape(text)):
            call(kf, x.to("meta"))


def test_transforms_that_would_lose_a_derivative(kf):
    """Forward-mode autograd raises instead of treating the result as a constant."""
    from torch.autograd import forward_ad

    x, weight = torch.randn(4, 6), torch.ones(6)
    with forward_ad.dual_level():
        close(kf.ops.bias_relu(x, weight), torch.relu(x + weight), 0)
        for of in (x, x.clone().requires_grad_()):
            with pytest.raises(
                NotImplementedError, match="kf.layer_norm has no forward-mode derivative"
            ):
                kf.ops.layer_norm(x, forward_ad.make_dual(weight, of[0]))
    for call, why in (
        (lambda: torch.func.jvp(kf.ops.relu, (x,), (x,)), "kf.relu has no forward-mode derivative"),
        (
            lambda: torch.autograd.functional.jacobian(
                kf.ops.relu, x, vectorize=True, strategy="forward-mode"
            ),
            "no forward-mode",
        ),
    ):
        with pytest.raises(NotImplementedError, match=why):
            call()
    close(
        torch.func.vmap(kf.ops.layer_norm, in_dims=(0, None))(x[:, None].expand(4, 3, 6), weight),
        torch.nn.functional.layer_norm(x[:, None].expand(4, 3, 6), (6,)),
        1e-5,
    )
