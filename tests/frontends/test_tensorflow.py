# SPDX-License-Identifier: Apache-2.0
"""kernel_fusion_tensorflow: bits and gradients of each op, graphs, Keras, dropout, errors."""

import importlib
import inspect

import cases
import numpy as np
import pytest
import pytorch

tf = pytest.importorskip("tensorflow")
torch = pytorch.load()

import tfops  # noqa: E402
import torchops  # noqa: E402
from torchops import ids  # noqa: E402

RNG = np.random.default_rng(0)


def draw(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


@pytest.fixture(scope="module")
def kf_tf(kf):
    return importlib.import_module("kernel_fusion_tensorflow")


@pytest.mark.parametrize(
    "f", torchops.ALL if cases.LEVEL > 1 else tfops.one_of_each_family(), ids=ids
)
def test_bits_and_gradients_of_a_graph(kf, kf_tf, f):
    for dtype in ("f32", "f16", "bf16", "f64") if cases.LEVEL > 1 else ("bf16",):
        tfops.same_bits(kf, kf_tf, f, dtype, eager=False)


@pytest.mark.check
@pytest.mark.parametrize("f", torchops.of_each_op(torchops.ALL), ids=ids)
def test_bits_and_gradients_of_an_eager_call(kf, kf_tf, f):
    tfops.same_bits(kf, kf_tf, f, "f32", eager=True)


def test_names(kf, kf_tf):
    """Every function but compositions, with and without fused_, under its own signature."""
    composed = {"fused_linear_activation", "fused_attention_score", "fused_multihead_attention"}
    assert {*dir(kf.ops)} - {*dir(kf_tf)} == composed | {"call", "matmul"}
    x, y = draw(2, 3), draw(2, 3)
    want = kf.ops.add_relu(x, y)
    for name in ("fused_add_relu", "add_relu", "elementwise_add_relu"):
        tfops.equal(getattr(kf_tf, name)(x, y), want, name)
    tfops.equal(kf_tf.gelu(x, approximate="tanh"), kf.ops.gelu_tanh(x), "gelu")
    assert "out" not in inspect.signature(kf_tf.layer_norm).parameters
    assert "eps" in inspect.signature(kf_tf.layer_norm).parameters


def test_dropout(kf, kf_tf):
    """Seeds of tf.random and rng determine the mask; each call of a graph draws again."""
    x = np.ones((64, 64), np.float32)
    tfops.equal(kf_tf.dropout(x, rng=(3, 4)), kf.ops.dropout(x, rng=(3, 4)), "rng")
    traced = tf.function(lambda: kf_tf.dropout(x))
    drawn = []
    for _ in range(2):
        tf.random.set_seed(1)
        drawn += [traced().numpy(), traced().numpy()]
    assert (drawn[0] == drawn[2]).all() and (drawn[0] != drawn[1]).any()
    generators = [tf.random.Generator.from_seed(2) for _ in range(2)]
    first, second = (kf_tf.dropout(x, rng=g).numpy() for g in generators)
    assert (first == second).all()
    tfops.equal(kf_tf.dropout(x, training=False), x, "training")
    given = tf.constant([3, 4], tf.int64)
    tfops.equal(kf_tf.dropout(x, rng=given), kf.ops.dropout(x, rng=(3, 4)), "rng")


def test_variables_are_updated_in_a_graph(kf, kf_tf):
    x, mean, var = draw(6, 3), tf.Variable(np.zeros(3, "f")), tf.Variable(np.ones(3, "f"))
    out = tf.function(lambda x: kf_tf.batch_norm_train(x, mean, var, momentum=1.0))(x)
    own = np.zeros(3, "f"), np.ones(3, "f")
    tfops.equal(out, kf.ops.batch_norm_train(x, *own, momentum=1.0), "out")
    tfops.equal(mean, own[0], "mean")
    tfops.equal(var, own[1], "var")


def test_gradients_that_are_asked_for(kf_tf):
    """Unwatched inputs cost nothing and have none; absent inputs and further results do no harm."""
    x, weight = tf.constant(draw(4, 8)), tf.constant(draw(8))
    with tf.GradientTape() as tape:
        tape.watch(weight)
        out, total = kf_tf.add_rms_norm(x, x, weight)
    assert tape.gradient(out, [x, weight])[0] is None
    with tf.GradientTape() as tape:
        tape.watch(x)
        out, total = kf_tf.add_rms_norm(x, tf.zeros_like(x), weight)
    tfops.equal(tape.gradient(total, x), np.ones((4, 8), "f"), "only the sum is used")


def test_what_has_no_gradient(kf_tf):
    x = tf.constant(draw(4, 8))
    with (
        pytest.raises(LookupError, match="second derivative|KernelFusionCall")
        if 0
        else (pytest.raises(NotImplementedError, match="kf.layer_norm has no second derivative"))
    ):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                out = kf_tf.layer_norm(x)
            first = tape.gradient(out, x)
        outer.gradient(first, x)
    with pytest.raises(NotImplementedError, match="kf.cast has no gradient"):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = kf_tf.cast(x, tf.float64)
        tape.gradient(out, x)
