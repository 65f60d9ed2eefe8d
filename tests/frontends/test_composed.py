# SPDX-License-Identifier: Apache-2.0
"""Functions of _composed.py and kf.ops.call, compared with PyTorch."""

import re

import kfpython
import numpy as np
import pytest
import pytorch

torch = pytorch.load()

import torch.nn.functional as F  # noqa: E402
from torchops import draw, same  # noqa: E402


def test_gelu(kf):
    x = draw(3, 4)
    same(kf.ops.gelu, F.gelu, x)
    same(lambda x: kf.ops.gelu(x, approximate="none"), F.gelu, x)
    if kfpython.WHOLE:
        same(
            lambda x: kf.ops.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh"), x
        )
    out = np.empty((3, 4))
    assert kf.ops.gelu(x.detach().numpy(), out=out) is out
    with pytest.raises(
        ValueError, match="kf.gelu: approximate is 'erf', expected 'none' or 'tanh'"
    ):
        kf.ops.gelu(x, approximate="erf")


def test_prelu_of_a_sum(kf):
    def of_sum(x, alpha, bias):
        return kf.ops.prelu_bias(x, alpha=alpha, bias=bias)

    def expected(x, alpha, bias):
        return torch.where(x + bias > 0, x + bias, alpha * (x + bias))

    given = draw(3, 4), draw(4), draw(4)
    same(of_sum, expected, *given)
    got = torch.compile(of_sum, fullgraph=True, backend="eager")(*given)
    assert torch.allclose(got, expected(*given))
    with pytest.raises(ValueError, match=r"kf.prelu_bias: alpha has the shape \(3,\), expected"):
        of_sum(given[0], draw(3), given[2])
    with pytest.raises(TypeError, match="prelu_bias.* missing 2 required positional arguments"):
        kf.ops.prelu_bias(given[0])


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_linear(kf, activation):
    act = {"none": lambda x: x, "relu": F.relu, "gelu": F.gelu}[activation]
    for x in (draw(5, 4), draw(2, 3, 4)):
        same(
            lambda x, w, b: kf.ops.fused_linear_activation(x, w, b, activation),
            lambda x, w, b: act(F.linear(x, w, b)),
            x,
            draw(6, 4),
            draw(6),
        )
        same(
            lambda x, w: kf.ops.fused_linear_activation(x, w, activation=activation),
            lambda x, w: act(F.linear(x, w)),
            x,
            draw(6, 4),
        )


def test_attention(kf):
    q, k, v = draw(2, 3, 8), draw(2, 5, 8), draw(2, 5, 12)
    seen = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0)) > 0.3
    seen[..., 0] = True
    added = torch.randn(2, 3, 5, dtype=torch.float64)

    def heads(t):
        return t.unflatten(-1, (4, t.shape[-1] // 4)).transpose(1, 2)

    def reference(q, k, v, **more):
        return (
            F.scaled_dot_product_attention(heads(q), heads(k), heads(v), **more)
            .transpose(1, 2)
            .flatten(-2)
        )

    for own, theirs in (
        ({}, {}),
        ({"scale": 0.3}, {"scale": 0.3}),
        ({"mask": added}, {"attn_mask": added[:, None]}),
        ({"mask": seen}, {"attn_mask": seen[:, None]}),
        ({"mask": seen[0]}, {"attn_mask": seen[0]}),
    ):

        def call(q, k, v, own=own):
            mask = own.get("mask")
            mask = mask.numpy() if mask is not None and isinstance(q, np.ndarray) else mask
            mask = (
                mask
                if mask is None or mask.ndim == 3
                else np.stack([mask] * 2)
                if isinstance(mask, np.ndarray)
                else mask.expand(2, 3, 5)
            )
            return kf.ops.fused_multihead_attention(q, k, v, 4, **{**own, "mask": mask})

        same(call, lambda q, k, v, theirs=theirs: reference(q, k, v, **theirs), q, k, v)
    square = k, k.detach().clone().requires_grad_(), v
    same(
        lambda *t: kf.ops.fused_multihead_attention(*t, 4, causal=True),
        lambda *t: reference(*t, is_causal=True),
        *square,
    )
    same(
        kf.ops.fused_attention_score,
        lambda q, k: (q @ k.T / 8**0.5).softmax(-1),
        draw(3, 8),
        draw(5, 8),
    )


REFUSED = [
    (
        lambda ops: ops.fused_linear_activation(draw(3, 4), draw(6, 5)),
        ValueError,
        "kf.fused_linear_activation: weight has the shape (6, 5), expected ('any', 4) beside x of "
        "the shape (3, 4)",
    ),
    (
        lambda ops: ops.fused_linear_activation(draw(3, 4), draw(6, 4).float()),
        TypeError,
        "kf.fused_linear_activation: weight has the dtype torch.float32, expected torch.float64 "
        "as x",
    ),
    (
        lambda ops: ops.fused_linear_activation(draw(3, 4), draw(6, 4), activation="swish"),
        ValueError,
        "kf.fused_linear_activation: activation is swish, expected one of elu, gelu, ",
    ),
    (
        lambda ops: ops.fused_attention_score(draw(2, 3, 8), draw(3, 5, 8)),
        ValueError,
        "kf.fused_attention_score: k has the shape (3, 5, 8), expected (2, 'any', 8) beside q of "
        "the shape (2, 3, 8)",
    ),
    (
        lambda ops: ops.fused_multihead_attention(draw(3, 8), draw(5, 8), draw(5, 9), 2),
        ValueError,
        "kf.fused_multihead_attention: v has the shape (5, 9), expected a last dimension that "
        "num_heads = 2 divides",
    ),
    (
        lambda ops: ops.fused_multihead_attention(draw(3, 8), draw(5, 8), draw(4, 8), 2),
        ValueError,
        "v has the shape (4, 8), expected (5, 'any')",
    ),
    (
        lambda ops: ops.fused_multihead_attention(draw(3, 8), draw(5, 8), draw(5, 8), 2.0),
        TypeError,
        "num_heads is float, expected a whole number",
    ),
    (
        lambda ops: ops.fused_attention_score(draw(3, 8), draw(5, 8), mask=draw(3, 5), causal=True),
        ValueError,
        "mask is given beside causal",
    ),
    (
        lambda ops: ops.matmul([[1.0]], draw(3, 5)),
        TypeError,
        "kf.matmul: a is list, expected an array",
    ),
    (
        lambda ops: ops.fused_attention_score(draw(3, 8), None),
        TypeError,
        "kf.fused_attention_score: k is NoneType, expected an array",
    ),
    (
        lambda ops: ops.matmul(draw(3, 8), draw(8, 5).float()),
        TypeError,
        "kf.matmul: b has the dtype f32, expected f64 beside a of f64",
    ),
    (
        lambda ops: ops.call("laier_norm", draw(3)),
        ValueError,
        "kf: there is no op `laier_norm`, expected one of",
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_refused(kf, number):
    call, error, text = REFUSED[number]
    with pytest.raises(error, match=re.escape(text)):
        call(kf.ops)


def test_compile(kf):
    """kf.ops.call and composed functions compile into one graph."""
    torch._dynamo.reset()
    x, w, b = draw(3, 4), draw(6, 4), draw(6)

    def model(x, w, b):
        return kf.ops.call(
            "layer_norm",
            kf.ops.gelu(kf.ops.fused_linear_activation(x, w, b, "relu")),
            activation="gelu",
        )

    assert torch.allclose(
        torch.compile(model, fullgraph=True, backend="aot_eager")(x, w, b), model(x, w, b), 1e-12
    )


def test_names_that_are_none(kf):
    with pytest.raises(AttributeError, match=r"`gleu`; did you mean `gelu`\? dir\(kf.ops\) lists"):
        _ = kf.ops.gleu
    with pytest.raises(AttributeError, match="kf.ops has no `nothing`"):
        _ = kf.ops.nothing
    with pytest.raises(AttributeError, match="linear has no softplus; it has: none, relu, .*mish"):
        _ = kf.ops.linear_softplus
    with pytest.raises(ValueError, match="there is no op `nothing`, expected one of .*linear"):
        kf.ops.call("nothing", np.ones(3, np.float32))
    with pytest.raises(
        ValueError, match="kf.bias: activation is swish, expected one of none, relu"
    ):
        kf.ops.call("bias", np.ones(3, np.float32), np.ones(3, np.float32), activation="swish")
