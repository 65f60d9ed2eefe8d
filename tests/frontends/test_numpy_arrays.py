# SPDX-License-Identifier: Apache-2.0
"""kf.ops over 2-byte dtypes, foreign arrays and subclasses of NumPy arrays."""

import sys
import types
import warnings

import numpy as np
import pytest

RNG = np.random.default_rng(0)


def draw(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def close(got, want, tolerance=1e-5):
    assert got.shape == want.shape and got.dtype == want.dtype
    worst = np.abs(got - want).max() if got.size else 0
    assert worst <= tolerance, worst


def layer_norm(x, axis=-1, eps=1e-5):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


def test_two_byte_dtypes(kf):
    x = draw(8, 16)
    close(kf.ops.layer_norm(x.astype(np.float16)), layer_norm(x).astype(np.float16), 4e-3)
    close(
        kf.ops.layer_norm(x.astype(np.float16), np.full(16, 2, np.float32)),
        (2 * layer_norm(x)).astype(np.float16),
        8e-3,
    )


def test_bfloat16(kf, monkeypatch):
    """bfloat16 from ml_dtypes, and the error without it."""
    x, bfloat16 = draw(8, 16), pytest.importorskip("ml_dtypes").bfloat16
    low = kf.ops.cast(x, "bfloat16")
    assert (
        low.dtype == bfloat16
        and (low == x.astype(bfloat16)).all()
        and kf.ops.cast(low, np.float32).dtype == np.float32
    )
    close(kf.ops.layer_norm(low).astype(np.float32), layer_norm(low.astype(np.float32)), 3e-2)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TypeError, match="NumPy has no bfloat16: pip install ml_dtypes"):
        kf.ops.cast(x, "bfloat16")


def test_other_arrays(kf):
    """Objects with DLPack or the array interface."""
    x = draw(3, 4)
    offers = (
        {"__array_interface__": x.__array_interface__},
        {"__dlpack__": x.__dlpack__, "__dlpack_device__": x.__dlpack_device__},
    )
    for offer in offers:
        close(kf.ops.relu(types.SimpleNamespace(**offer)), np.maximum(x, 0))


def test_a_tensor_beside_an_array(kf):
    """A tensor that NumPy cannot convert is refused, since its gradient would be lost."""
    torch = pytest.importorskip("torch")
    x = np.ones((2, 3), np.float32)
    close(kf.ops.bias_relu(x, torch.ones(3)), x + 1)
    for bias, why in (
        (torch.ones(3, requires_grad=True), "require gradient"),
        (torch.ones(3, dtype=torch.bfloat16), "[Uu]nsupported dtype"),
    ):
        with pytest.raises(
            TypeError, match=f"kf.bias_relu: bias is Tensor, which NumPy cannot convert: .*{why}"
        ):
            kf.ops.bias_relu(x, bias)


def test_a_matrix_is_an_array(kf):
    """np.matrix is always two-dimensional."""
    with warnings.catch_warnings(action="ignore"):
        x = np.matrix(draw(2, 3))
    got = kf.ops.sum(x, dim=None)
    assert (
        type(kf.ops.relu(x)) is np.ndarray
        and got.shape == ()
        and abs(got - np.asarray(x).sum()) < 1e-5
    )
