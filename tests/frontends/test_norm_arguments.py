# SPDX-License-Identifier: Apache-2.0
"""Arguments as other libraries write them, in every frontend: norms in PyTorch's order, keywords,
arrays that a library traces."""

import functools

import frontend
import numpy as np
import pytest


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X, W, B = draw(3, 8, 4), draw(4, seed=1), draw(4, seed=2)
C, D = draw(8, seed=3), draw(8, seed=4)
W2, B2 = draw(8, 4, seed=5), draw(8, 4, seed=6)
# (function, arguments as of PyTorch, the same as kf's own)
CALLS = [
    ("layer_norm", ((4,), W, B, 1e-3), (W, B, 1e-3), {}),
    ("layer_norm", ([4], W), (W,), {}),
    ("layer_norm", (4,), (), {}),
    ("layer_norm_gelu", ((4,), None, B), (None, B), {}),
    ("rms_norm", ((4,), W, 1e-3), (W, 1e-3), {}),
    ("add_rms_norm", (X, (4,), W), (X, W), {}),
    ("group_norm", (2, C, D, 1e-3), (C, D, 1e-3), {"groups": 2}),
]


@frontend.parametrize()
@pytest.mark.parametrize("name, given, own, more", CALLS, ids=range(len(CALLS)))
def test_the_order_of_pytorch(kf, which, name, given, own, more):
    call = frontend.Frontend(which, kf)
    for got, want in zip(
        *(np.atleast_2d(call(name, X, *a, **m)) for a, m in ((given, {}), (own, more)))
    ):
        assert np.array_equal(got, want)


@frontend.parametrize()
def test_several_dimensions(kf, which):
    """Tensors of all kinds become rows for the call."""
    call = frontend.Frontend(which, kf)
    flat = X.reshape(3, 32)
    want = call("layer_norm", flat, W2.reshape(-1), B2.reshape(-1)).reshape(X.shape)
    assert np.array_equal(call("layer_norm", X, (8, 4), W2, B2), want)
    assert np.array_equal(call("layer_norm", X, weight=W2, bias=B2, normalized_shape=(8, 4)), want)
    want = call("add_layer_norm", flat, flat, W2.reshape(-1))
    got = call("add_layer_norm", X, X, (8, 4), W2)
    assert all(np.array_equal(a, b.reshape(X.shape)) for a, b in zip(got, want))


@frontend.parametrize("numpy", "torch")
def test_batch_norm(kf, which):
    """training, momentum and eps follow the weights; kf's own order has dim there."""
    call = frontend.Frontend(which, kf)
    means = []
    for given, more in (((C, D, True, 0.5, 1e-3), {}), ((C, D), {"momentum": 0.5, "eps": 1e-3})):
        mean, var = np.zeros(8, "f"), np.ones(8, "f")
        means.append((call("batch_norm_train", X, mean, var, *given, **more), mean, var))
    assert all(map(np.array_equal, *means))


REFUSED = [
    ("layer_norm", ((8,), C), ValueError, r"kf\.layer_norm: normalized_shape is \(8,\), expected"),
    ("rms_norm", ((2, 4), W), ValueError, r"kf\.rms_norm: normalized_shape is \(2, 4\), expected"),
    ("layer_norm", ((4,), C), ValueError, r"weight has the shape \(8,\), expected normalized_sh"),
    ("layer_norm", ([0.5],), TypeError, "kf.layer_norm: weight is list, expected a"),
    ("layer_norm", ((4,), (4,)), TypeError, "kf.layer_norm: weight is tuple, expected a"),
    ("group_norm", (3, C), ValueError, "groups is 3, expected a divisor"),
    ("group_norm", ((4,), C), TypeError, r"kf\.group_norm: weight is \(4,\), expected groups"),
    ("instance_norm", (8,), TypeError, "kf.instance_norm: weight is 8, expected a tensor"),
    ("batch_norm_train", (C, D, C, D, False), ValueError, "training is False, expected True"),
]


@frontend.parametrize("numpy", "torch")
@pytest.mark.parametrize("name, given, kind, text", REFUSED, ids=range(len(REFUSED)))
def test_what_fits_neither_order(kf, which, name, given, kind, text):
    with pytest.raises(kind, match=text):
        frontend.Frontend(which, kf)(name, X, *given)


KEYWORDS = [
    ("softmax", {"axis": 1}, {"dim": 1}),
    ("sum", {"axis": (0, 1), "keepdims": True}, {"dim": (0, 1), "keepdim": True}),
    ("argmax", {"axis": 1}, {"dim": 1}),
    ("group_norm", {"num_groups": 4}, {"groups": 4}),
]


@frontend.parametrize()
@pytest.mark.parametrize("name, given, own", KEYWORDS, ids=[name for name, *_ in KEYWORDS])
def test_keywords_of_other_libraries(kf, which, name, given, own):
    """NumPy's, JAX's and TensorFlow's axis and keepdims, and PyTorch's num_groups."""
    call = frontend.Frontend(which, kf)
    assert np.array_equal(call(name, X, **given), call(name, X, **own))
    with pytest.raises(TypeError, match="is given twice"):
        call(name, X, **given, **own)


@frontend.parametrize("jax", "tensorflow")
@pytest.mark.parametrize("name", ["gelu", "softmax", "add_relu"])
def test_a_traced_array_names_its_frontend(kf, which, name):
    """kf.ops inside jax.jit or tf.function says which module works there."""
    library = frontend.Frontend(which, kf).library
    jit = library.jit if which == "jax" else functools.partial(library.function, autograph=False)
    text = rf"kf\.{name}: . is \w+, which has no values .*: call {frontend.OWN[which]}.{name} there"
    with pytest.raises(TypeError, match=text):
        jit(getattr(kf.ops, name))(*[X] * (2 if name == "add_relu" else 1))
