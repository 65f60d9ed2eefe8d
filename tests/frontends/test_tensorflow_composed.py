# SPDX-License-Identifier: Apache-2.0
"""matmul, prelu_bias and scaled_dot_product_attention of kernel_fusion_tensorflow: gradients,
graphs, saved models, errors. tests/frontends/test_same_arguments.py compares their numbers.
"""

import kfpython
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
kfpython.use()


@pytest.fixture(scope="module")
def kt(kf):
    import kernel_fusion_tensorflow

    return kernel_fusion_tensorflow


def draw(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape)


def plain_attention(q, k, v, mask=None, scale=None, keep=1.0):
    """Attention in TensorFlow's functions. keep: what the weights are multiplied by."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = tf.matmul(q, k, transpose_b=True) * scale
    if mask is not None and mask.dtype == tf.bool:
        scores = tf.where(mask, scores, tf.constant(-np.inf, scores.dtype))
    elif mask is not None:
        scores += mask
    return tf.matmul(tf.nn.softmax(scores) * keep, v)


def gradients(function, given, up):
    with tf.GradientTape() as tape:
        tape.watch(given)
        found = function(*given)
    return [found, *tape.gradient(found, given, up)]


def same(mine, theirs, given, up, tolerance=1e-12):
    """Compares results and gradients, eagerly and in a graph of unknown dimensions."""
    given, up = [tf.constant(x) for x in given], tf.constant(up)
    want = gradients(theirs, given, up)
    specs = [tf.TensorSpec([None] * x.shape.rank, x.dtype) for x in given]
    step = tf.function(lambda given, up: gradients(mine, given, up))
    graph = step.get_concrete_function(specs, tf.TensorSpec([None] * up.shape.rank, up.dtype))
    for got in (gradients(mine, given, up), graph(given, up)):
        for g, w in zip(got, want, strict=True):
            assert g.shape == w.shape and g.dtype == w.dtype
            assert np.allclose(g, w, tolerance, tolerance)


Q, K, V = draw(2, 4, 5, 8), draw(2, 4, 7, 8), draw(2, 4, 7, 6)
LOWER = np.tril(np.ones((5, 7), bool))
RNG = 7, 2**33 + 1


@pytest.mark.parametrize(
    "more, mask",
    [
        ({}, None),
        ({"scale": 0.3}, None),
        ({"attn_mask": draw(5, 7) > -1}, draw(5, 7) > -1),
        ({"is_causal": True}, LOWER),
    ],
    ids=str,
)
def test_attention(kt, more, mask):
    more = {"scale": 8**-0.5} | more  # a graph of unknown dimensions has no default

    def mine(q, k, v):
        return kt.scaled_dot_product_attention(q, k, v, **more)

    seen = None if mask is None else tf.constant(mask)
    same(
        mine,
        lambda q, k, v: plain_attention(q, k, v, seen, more["scale"]),
        (Q, K, V),
        1 + Q[..., :6],
    )


def test_attention_with_a_bias(kt):
    """The bias has a gradient, which adds up what it broadcasts to."""

    def mine(q, k, v, bias):
        return kt.scaled_dot_product_attention(q, k, v, bias, scale=0.3)

    def theirs(q, k, v, bias):
        return plain_attention(q, k, v, bias, 0.3)

    same(mine, theirs, (Q, K, V, draw(1, 4, 5, 7)), 1 + Q[..., :6])


def test_attention_of_groups_of_heads(kt):
    def theirs(q, k, v):
        return plain_attention(q, *(tf.repeat(t, 2, 1) for t in (k, v)), scale=0.3)

    def mine(q, k, v):
        return kt.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True)

    same(mine, theirs, (Q, K[:, :2], V[:, :2]), 1 + Q[..., :6])


def test_dropout_of_attention(kt):
    """Weights are dropped and scaled; the mean over many draws is the result without dropout."""
    q, k, v = (tf.constant(np.float32(x)) for x in (Q, K, V))
    tf.random.set_seed(1)
    found = [kt.scaled_dot_product_attention(q, k, v, dropout_p=0.5).numpy() for _ in range(400)]
    want = kt.scaled_dot_product_attention(q, k, v)
    assert not np.array_equal(found[0], found[1])
    assert np.abs(np.mean(found, 0) - want).max() < 0.3
    assert not kt.scaled_dot_product_attention(q, k, v, dropout_p=1.0).numpy().any()


@pytest.mark.parametrize("masked", ["none", "causal", "bool", "bias"])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_gradients_with_dropout(kt, masked, graph):
    """They have the mask that the forward has drawn, and so has that of a bias."""
    from kernel_fusion_tensorflow import _functions

    seen = {"causal": LOWER, "bool": draw(5, 7) > -1}.get(masked)
    given = [tf.constant(x) for x in (Q, K[:, :2], V[:, :2])]
    given += [tf.constant(draw(1, 4, 5, 7))] * (masked == "bias")
    more = {"is_causal": True} if masked == "causal" else {}

    def mine(q, k, v, bias=None):
        mask = seen if masked == "bool" else bias
        return kt.scaled_dot_product_attention(
            q, k, v, mask, dropout_p=0.4, enable_gqa=True, **more
        )

    def theirs(q, k, v, bias=None):
        mask = bias if seen is None else tf.constant(seen)
        return plain_attention(q, *(tf.repeat(t, 2, 1) for t in (k, v)), mask, keep=keep)

    def both():
        kept = kt.dropout(tf.ones([2, 4, 5, 7], tf.float64), p=0.4, rng=RNG)
        return kept, gradients(mine, given, tf.constant(1 + Q[..., :6]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_functions, "seed_of", lambda where, rng: tf.constant(RNG, tf.int64))
        keep, got = (tf.function(both) if graph else both)()
    assert 0.2 < np.mean(keep == 0) < 0.6
    want = gradients(theirs, given, tf.constant(1 + Q[..., :6]))
    for g, w in zip(got, want, strict=True):
        assert np.allclose(g, w, 1e-11, 1e-11)


def test_no_second_derivative(kt):
    x = tf.constant(Q)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = kt.scaled_dot_product_attention(x, K, V)
        first = tape.gradient(found, x)
    with pytest.raises(NotImplementedError, match="has no second derivative"):
        outer.gradient(first, x)


def test_matmul(kt):
    given = draw(2, 3, 4), draw(2, 4, 5)
    same(lambda a, b: kt.matmul(a, b, alpha=0.5), lambda a, b: 0.5 * a @ b, given, draw(2, 3, 5))
    same(kt.matmul, tf.matmul, (draw(3, 4), draw(4, 5)), draw(3, 5))


def test_prelu_of_a_sum(kt):
    def theirs(x, alpha, bias):
        return tf.where(x + bias > 0, x + bias, alpha * (x + bias))

    def mine(x, alpha, bias):
        return kt.prelu_bias(x, alpha=alpha, bias=bias)

    same(mine, theirs, (draw(3, 4), draw(4), draw(1, 4)[0]), draw(4, 3).T.copy())


SAVE = """
import tensorflow as tf, kernel_fusion_tensorflow as kf
class Module(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([2, 3])])
    def __call__(self, x):
        return kf.prelu_bias(x, alpha=tf.fill([3], 0.5), bias=tf.fill([3], -1.0))
tf.saved_model.save(Module(), PATH)
"""
LOAD = """
import tensorflow as tf, kernel_fusion_tensorflow as kf
kf.register_op()
print(tf.saved_model.load(PATH)(tf.constant([[0.0, 1.0, 3.0]] * 2)).numpy().tolist())
"""


@pytest.mark.check
def test_prelu_of_a_sum_in_a_saved_model(tmp_path):
    """The op of kf.fuse is made by the process that loads it."""
    kfpython.python(SAVE.replace("PATH", repr(str(tmp_path))))
    found = kfpython.python(LOAD.replace("PATH", repr(str(tmp_path))))
    assert found == str([[-0.5, 0.0, 2.0]] * 2)


@pytest.mark.parametrize(
    "call, kind, text",
    [
        (lambda k: k.matmul(Q, K[0, 0]), ValueError, "b has the shape"),
        (lambda k: k.matmul(Q, 3), ValueError, "b has the shape"),
        (lambda k: k.prelu_bias(Q, Q[0, 0, 0], alpha=3), TypeError, "weight is given beside alpha"),
        (
            lambda k: k.scaled_dot_product_attention(Q, K[..., :3], V),
            ValueError,
            "key has the shape (2, 4, 7, 3), expected ('...', 'any', 8)",
        ),
        (
            lambda k: k.scaled_dot_product_attention(Q, np.float32(K), V),
            TypeError,
            "key has the dtype float32, expected float64 as query",
        ),
        (
            lambda k: k.scaled_dot_product_attention(Q, K, V, LOWER, is_causal=True),
            ValueError,
            "attn_mask is given beside is_causal",
        ),
        (
            lambda k: k.scaled_dot_product_attention(Q, K, V, LOWER[:3]),
            ValueError,
            "the mask has the shape (3, 7), expected one that broadcasts to (2, 4, 5, 7)",
        ),
        (
            lambda k: k.scaled_dot_product_attention(Q, K, V, LOWER.astype(int)),
            TypeError,
            "attn_mask has the dtype int64, expected bool or float64",
        ),
        (
            lambda k: k.scaled_dot_product_attention(Q, K[:, :3], V[:, :3], enable_gqa=True),
            ValueError,
            "query, key and value have 4, 3 and 3 heads",
        ),
        (
            lambda k: k.scaled_dot_product_attention(Q, K[:, :3], V),
            ValueError,
            "query, key and value have the leading dimensions",
        ),
        (lambda k: k.scaled_dot_product_attention(Q, K, V, dropout_p=2), ValueError, "0 to 1"),
        (lambda k: k.scaled_dot_product_attention(Q[0, 0, 0], K, V), ValueError, "two dimensions"),
    ],
)
def test_refused(kt, call, kind, text):
    with pytest.raises(kind) as e:
        call(kt)
    assert text in str(e.value)
