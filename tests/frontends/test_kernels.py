# SPDX-License-Identifier: Apache-2.0
"""kf.kernels: the C launchers called directly. test_native.py tests their numbers."""

import importlib
import inspect
import re

import numpy as np
import pytest

RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def test_every_function_is_in_one_group(kf):
    from kernel_fusion import _table

    found = [
        n
        for group in ("elementwise", "fusion", "reduction")
        for n in dir(getattr(kf.kernels, group))
    ]
    assert len(found) == len(set(found)) and {
        f"{op.word(a)}_f32"
        for op in _table.ops().values()
        for a in op.activations
        if ("f32",) in op.dtypes
    } <= set(found)
    assert {"add_gelu_f32", "relu_bwd_bf16", "mse_f64"} <= set(
        dir(kf.kernels.elementwise)
    ) and "sum_bwd_f16" in dir(kf.kernels.reduction)


def test_calls(kf):
    k, x, bias = kf.kernels, draw(3, 8), draw(8)
    out = np.full_like(x, np.nan)
    k.elementwise.relu_f32(x, out, x.size)
    assert (out == np.maximum(x, 0)).all()
    k.fusion.bias_gelu_f32(x, bias.ctypes.data, out, 3, 8)
    assert (out == kf.ops.bias_gelu(x, bias)).all()
    total = np.full(3, np.nan, np.float32)
    k.reduction.sum_f32(x, total, 3, 8, 1, None)
    assert (total == kf.ops.sum(x)).all()
    half = np.full((3, 4), np.nan, np.float32)  # strided rows, statistics not requested
    k.fusion.layer_norm_f32(x, None, None, half, None, None, 3, 4, (8, 0), 1e-5)
    assert (half == kf.ops.layer_norm(x[:, :4])).all()
    dx, dbias = np.full_like(x, np.nan), np.full(8, np.nan, np.float32)
    k.fusion.bias_relu_bwd_f32(
        x, bias, None, np.ones_like(x), dx, dbias, 3, 8
    )  # gradient by the inputs, without the result
    assert (dx == (x + bias > 0)).all() and (dbias == dx.sum(0)).all()
    k.elementwise.relu_dropout_f32(x, out, x.size, 0.5, 7, 9)
    assert (out == kf.ops.relu_dropout(x, p=0.5, rng=(7, 9))).all()


def test_tensors(kf):
    torch = pytest.importorskip("torch")
    x = torch.randn(6, requires_grad=True)
    out = torch.full((6,), torch.nan)
    kf.kernels.elementwise.gelu_f32(x, out, 6)
    assert torch.equal(out, kf.ops.gelu(x)) and not out.requires_grad


def test_what_is_refused(kf):
    x = draw(4)
    with pytest.raises(
        TypeError, match="kf.kernels.elementwise.relu_f32 takes 3 arguments, x, out, n; 2 are given"
    ):
        kf.kernels.elementwise.relu_f32(x, x)
    with pytest.raises(
        ValueError,
        match=r"^kf\.kernels\.elementwise\.relu_f32: a required pointer is NULL: out is NULL",
    ):
        kf.kernels.elementwise.relu_f32(x, None, 4)
    with pytest.raises(AttributeError, match=re.escape("kf.kernels.reduction has no `relu_f32`")):
        kf.kernels.reduction.relu_f32()
    assert list(inspect.signature(kf.kernels.fusion.bias_gelu_f32).parameters) == [
        "x",
        "bias",
        "out",
        "rows",
        "cols",
    ]
    fusion = importlib.import_module("kernel_fusion.kernels.fusion")
    assert fusion is kf.kernels.fusion and fusion.bias_gelu_f32.__name__ == "bias_gelu_f32"
