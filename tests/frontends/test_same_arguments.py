# SPDX-License-Identifier: Apache-2.0
"""The same functions with the same arguments in every frontend; differences are listed here."""

import inspect

import frontend
import numpy as np
import pytest

# Arguments that a frontend lacks: results are new arrays, and autograd is PyTorch's.
LACKS = {"jax": {"out", "grads", "beta"}, "tensorflow": {"out", "grads", "beta", "return_lse"}}
# Functions that compose several ops, which TensorFlow lacks.
COMPOSED = {
    "tensorflow": {
        "fused_attention_score",
        "fused_linear_activation",
        "fused_multihead_attention",
        "call",
    },
    "jax": set(),
}


def arguments(module, name, left_out):
    found = inspect.signature(getattr(module, name)).parameters.values()
    return [(p.name, p.default) for p in found if p.name not in left_out]


@frontend.parametrize("jax", "tensorflow")
def test_functions_and_arguments(kf, which):
    from kernel_fusion import _dispatch

    ops = frontend.Frontend(which, kf).ops
    names = {n for n in dir(kf.ops) if not _dispatch.overwrites(n)}
    assert names - set(dir(ops)) == COMPOSED[which]
    for name in sorted(names - COMPOSED[which]):
        left_out = LACKS[which] - ({"beta"} if name.startswith("axpby") else set())
        assert arguments(ops, name, left_out) == arguments(kf.ops, name, left_out), name


def draw(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


SCORES, LABELS = draw(2, 3, 4, 5), np.array([1, 0, 3])
QKV = draw(2, 4, 5, 8), draw(2, 4, 7, 8), draw(2, 4, 7, 6)
# Calls that PyTorch's users write: masks that broadcast, int32, dtypes, dimensions.
CALLS = [
    ("softmax", (SCORES, 1), {}),
    ("log_softmax", (SCORES,), {"dim": 0}),
    ("softmax", (SCORES,), {"axis": 2, "dtype": "float64"}),
    ("softmax", (draw(5)[0].reshape(()),), {}),
    ("sum", (SCORES, (0, 2)), {}),
    ("mean", (SCORES, None, True), {}),
    ("sum", (SCORES,), {"dtype": "float64"}),
    ("scale_mask_softmax", (SCORES, draw(4, 5)), {"scale": 0.3}),
    ("scale_mask_softmax", (SCORES, draw(2, 1, 1, 5)), {}),
    ("scale_mask_softmax", (SCORES, draw(2, 4, 5).astype(np.float64)), {}),
    ("scale_bool_mask_softmax", (SCORES, draw(1, 4, 5) > -2), {}),
    ("cross_entropy", (draw(3, 5), LABELS.astype(np.int32)), {}),
    ("matmul", (SCORES, SCORES.swapaxes(2, 3)), {"alpha": 0.5}),
    ("matmul", (draw(3, 4), draw(4, 2)), {}),
    ("prelu_bias", (draw(3, 4), draw(4), draw(1, 4)[0]), {}),
    ("prelu_bias", (draw(3, 4),), {"alpha": draw(4), "bias": draw(1, 4)[0]}),
    ("scaled_dot_product_attention", QKV, {}),
    ("scaled_dot_product_attention", QKV, {"is_causal": True, "scale": 0.3}),
    ("scaled_dot_product_attention", (*QKV, draw(5, 7)), {}),
    ("scaled_dot_product_attention", (*QKV, draw(2, 1, 5, 7) > -1), {}),
    ("scaled_dot_product_attention", (QKV[0][0, 0], QKV[1][0, 0], QKV[2][0, 0]), {}),
    ("scaled_dot_product_attention", (QKV[0][0], QKV[1], QKV[2]), {}),
    (
        "scaled_dot_product_attention",
        (QKV[0], QKV[1][:, :2], QKV[2][:, :2]),
        {"enable_gqa": True, "is_causal": True},
    ),
    ("rope_qk", (draw(2, 3, 2, 8), draw(2, 3, 1, 8), draw(6, 4), draw(6, 4), np.arange(3)), {}),
]


AGREE = [
    pytest.param(which, *call, id=f"{which}-{i}")
    for i, call in enumerate(CALLS)
    for which in frontend.NAMES[1:]
    if which != "jax" or "float64" not in f"{call[2]} {[getattr(x, 'dtype', '') for x in call[1]]}"
]


@pytest.mark.parametrize("which, name, given, more", AGREE)
def test_calls_agree(kf, which, name, given, more):
    """Each frontend computes what kf.ops computes of NumPy's arrays; JAX has no float64."""
    got, want = (frontend.Frontend(n, kf)(name, *given, **more) for n in (which, "numpy"))
    both = zip(*(x if isinstance(x, list) else [x] for x in (got, want)))
    for x, y in both:
        assert x.dtype == y.dtype and x.shape == y.shape
        assert np.allclose(x, y, 1e-6, 1e-6)
