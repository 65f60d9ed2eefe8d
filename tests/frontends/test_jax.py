# SPDX-License-Identifier: Apache-2.0
"""kernel_fusion.jax: values, gradients and transformations, compared with PyTorch tensors.

One op per family at level 1, all at level 2.
"""

import ctypes
import functools

import cases
import kfpython
import numpy as np
import pytest
import pytorch

torch = pytorch.load()
jax = pytest.importorskip("jax")

import jaxops  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from torchops import ids  # noqa: E402

WHOLE = cases.LEVEL > 1
of_each_family = pytest.mark.parametrize(
    "f", jaxops.FORWARD if WHOLE else jaxops.of_each_family(jaxops.BOTH), ids=ids
)
differentiable = pytest.mark.parametrize(
    "f", jaxops.BOTH if WHOLE else jaxops.of_each_family(jaxops.BOTH), ids=ids
)


@pytest.fixture(scope="module")
def kj(kf):
    import kernel_fusion.jax as kj

    return kj


def draw(*shape, seed=0, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(dtype))


@of_each_family
def test_results_and_gradients(kf, f):
    jaxops.equals_pytorch(kf, f)


@pytest.mark.check
@of_each_family
def test_vmap(kj, f):
    jaxops.vmapped(f)


@pytest.mark.check
@differentiable
def test_gradients_by_differences(kj, f):
    jaxops.check_gradients(f)


def test_vmap_extends_a_size(kj):
    """A batch of calls is one call, if the function computes its elements independently."""
    x, bias, weight = draw(3, 4, 6), draw(6), draw(5, 6)

    def launches(function, axes, *args):
        return str(jax.make_jaxpr(jax.vmap(function, axes))(*args))

    def gradient(w, x):
        return jax.grad(lambda w: kj.linear(x, w).sum())(w)

    assert "kf_bias_relu_f32(12, 6)" in launches(kj.bias_relu, (0, None), x, bias)
    assert "kf_layer_norm_f32(12, 6, 1e-05)" in launches(kj.layer_norm, 0, x)
    assert "kf_linear_f32(1, 12, 5, 6)" in launches(kj.linear, (0, None), x, weight)
    assert "kf_linear_bwd_f32(3, 4, 5, 6)" in launches(gradient, (None, 0), weight, x)
    for function, axes, args in (
        (kj.bias_relu, (0, 0), (x, x[:, 0])),  # a bias per element
        (kj.batch_norm_train, (0,), (x,)),  # statistics span the rows
        (lambda x: kj.relu_dropout(x, rng=(1, 2)), (0,), (x,)),  # a mask per call
    ):
        assert "scan" in launches(function, axes, *args)


def test_only_wanted_gradients_are_computed(kj):
    """The backward takes no pointer to a gradient that nobody asks for."""
    x, bias = draw(4, 6), draw(6)
    text = str(jax.make_jaxpr(jax.grad(lambda b: kj.bias_gelu(x, b).sum()))(bias))
    assert text.count("kf_bias_gelu_bwd_f32") == 1
    [line] = [line for line in text.splitlines() if "kf_bias_gelu_bwd_f32" in line]
    assert line.strip().split(":")[1].startswith("f32[6]"), line


def test_dropout(kf, kj):
    x, key = draw(40, 6), jax.random.key(42)
    want = kf.ops.gelu_dropout(np.asarray(x), p=0.4, rng=(42, 0))
    for rng in (key, jax.random.key_data(key), (42, 0)):
        assert np.array_equal(kj.gelu_dropout(x, p=0.4, rng=rng), want)
    wide = jax.random.key(7, impl="rbg")
    want = kf.ops.gelu_dropout(np.asarray(x), p=0.4, rng=(7, 7))
    assert np.array_equal(jax.jit(lambda k: kj.gelu_dropout(x, p=0.4, rng=k))(wide), want)
    assert np.array_equal(kj.gelu_dropout(x, training=False), kj.gelu(x))
    keys = jax.random.split(key, 3)
    each = jax.vmap(lambda k: kj.gelu_dropout(x, rng=k))(keys)
    assert np.array_equal(each[1], kj.gelu_dropout(x, rng=keys[1]))
    assert not np.array_equal(each[0], each[1])


def test_dtypes_and_indices(kf, kj):
    x = draw(5, 6)
    half = kj.gelu(x.astype(jnp.bfloat16))
    want = kf.ops.gelu(np.asarray(x.astype(jnp.bfloat16)))
    assert half.dtype == jnp.bfloat16 and np.array_equal(jaxops.bits(half), jaxops.bits(want))
    label = np.array([1, 0, 5, -100, 7])
    loss = kj.cross_entropy(x, jnp.asarray(label))
    assert loss[3] == 0 and np.isnan(loss[4])
    inside = kf.ops.cross_entropy(np.asarray(x[:4]), label[:4])
    assert np.array_equal(loss[:4], inside) and np.array_equal(
        kj.cross_entropy(x, label)[:4], inside
    )
    assert np.array_equal(kj.argmax(x)[1], x.argmax(-1)) and kj.argmax(x)[1].dtype == jnp.int32
    with jax.enable_x64(True):
        wide = np.asarray(x).astype(np.float64)
        assert np.array_equal(kj.gelu(jnp.asarray(wide)), kf.ops.gelu(wide))
        assert kj.argmax(x)[1].dtype == jnp.int64
        assert np.array_equal(kj.cross_entropy(x, jnp.asarray(label))[:4], inside)


def test_running_statistics_are_results(kf, kj):
    x = draw(6, 3)
    mean, var = np.zeros(3, np.float32), np.ones(3, np.float32)
    out, *found = kj.batch_norm_train(x, mean, var, momentum=0.5)
    assert np.array_equal(out, kf.ops.batch_norm_train(np.asarray(x), mean, var, momentum=0.5))
    assert all(np.array_equal(g, w) for g, w in zip(found, (mean, var), strict=True))
    assert kj.batch_norm_train(x).shape == x.shape


def test_axes_and_composed_functions(kf, kj):
    x = draw(2, 3, 4)
    for dim in (0, 1, -1, None):
        assert np.array_equal(kj.sum(x, dim=dim), kf.ops.sum(np.asarray(x), dim=dim))
    for dim in ((0, 2), (-1, 1), (), None, 1):
        reduce = functools.partial(kj.sum, dim=dim, keepdim=True)
        for found in (reduce(x), jax.jit(reduce)(x)):
            assert np.array_equal(found, kf.ops.sum(np.asarray(x), dim=dim, keepdim=True))
        gradient = jax.grad(lambda x, f=reduce: (f(x) * 3).sum())(x)
        assert np.array_equal(gradient, np.full(x.shape, 3, np.float32))
    a = draw(3, 4, seed=1)
    assert np.allclose(kj.matmul(a, a.T), a @ a.T, 1e-5, 1e-5)
    q = draw(1, 5, 8)
    attend = jax.jit(lambda q: kj.fused_multihead_attention(q, q, q, 2, causal=True))
    n = np.asarray(q)
    assert np.allclose(
        attend(q), kf.ops.fused_multihead_attention(n, n, n, 2, causal=True), 1e-5, 1e-5
    )
    tanh = kj.gelu(x, approximate="tanh")
    assert np.array_equal(tanh, kj.gelu_tanh(x)) and np.array_equal(kj.gelu(x), kf.ops.gelu(x))


def test_prelu_of_a_sum(kj):
    """It calls an op of kf.fuse, also in a program."""
    x, alpha, bias = draw(3, 4), draw(4, seed=1), draw(4, seed=2)

    def loss(function):
        return jax.value_and_grad(lambda *given: (function(*given) ** 2).sum(), (0, 1, 2))

    def mine(x, alpha, bias):
        return kj.prelu_bias(x, alpha=alpha, bias=bias)

    want = loss(lambda x, alpha, bias: jnp.where(x + bias > 0, 1, alpha) * (x + bias))
    for function in (loss(mine), jax.jit(loss(mine))):
        got = jax.tree.leaves(function(x, alpha, bias))
        for g, w in zip(got, jax.tree.leaves(want(x, alpha, bias)), strict=True):
            assert np.allclose(g, w, 1e-5, 1e-5)


def test_names(kf, kj):
    x = draw(4, 6)
    want = np.maximum(np.asarray(x) * 2, 0)
    for function in (kj.fused_add_relu_jax, kf.fused_add_relu_jax, kf.jax.fused_add_relu):
        assert np.array_equal(jax.jit(function)(x, x), want)
    assert np.array_equal(kj.call("add", x, x, activation="relu"), want)
    assert {"bias_gelu", "fused_bias_gelu", "fused_bias_gelu_jax", "matmul", "call"} <= {*dir(kj)}
    assert "key of JAX" in kj.gelu_dropout.__doc__ and "NumPy" not in kj.bias_gelu.__doc__
    with pytest.raises(AttributeError, match="kf.jax has no `bias_gelo`"):
        kj.bias_gelo  # noqa: B018
    fused = kf.fuse("max(x, 0) * y", x="elem", y="row")
    of_jax = kj.of(fused)
    assert np.array_equal(jax.jit(of_jax)(x, x[0]), fused(np.asarray(x), np.asarray(x[0])))
    assert np.array_equal(jax.grad(lambda x: of_jax(x, x[0] * 0 + 2).sum())(x), 2.0 * (x > 0))


def test_shard_map(kj):
    """Rows on four devices; the gradient of a weight is the sum over them."""
    x, bias = draw(8, 6), draw(6)
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    over = jax.shard_map(kj.bias_gelu, mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"))
    assert np.array_equal(jax.jit(over)(x, bias), kj.bias_gelu(x, bias))
    got, want = (
        jax.jit(jax.grad(lambda x, b: f(x, b).sum(), (0, 1)))(x, bias)  # noqa: B023
        for f in (over, kj.bias_gelu)
    )
    assert np.array_equal(got[0], want[0]) and np.allclose(got[1], want[1], 1e-5, 1e-6)


@pytest.mark.check
def test_training_has_pytorchs_losses(kf, kj):
    """An MLP in flax, trained by optax, beside the same one in PyTorch: 20 steps of descent."""
    import flax.linen as nn
    import optax

    start = {"w0": draw(32, 8), "b0": draw(32, seed=1), "w1": draw(4, 32, seed=2)}
    x = draw(64, 8, seed=3)
    label = np.asarray(x[:, :4]).argmax(-1)

    class MLP(nn.Module):
        @nn.compact
        def __call__(self, x):
            w0, b0, w1 = (self.param(name, lambda _, n=name: start[n] / 8) for name in start)
            return kj.linear(kj.linear_gelu(x, w0, b0), w1)

    model, optimizer = MLP(), optax.sgd(0.5)
    params = model.init(jax.random.key(0), x)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(
            lambda p: kj.cross_entropy(model.apply(p, x), label).mean()
        )(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    own = [torch.tensor(np.asarray(t) / 8, requires_grad=True) for t in start.values()]
    descent, inputs = torch.optim.SGD(own, 0.5), torch.tensor(np.asarray(x))
    losses = []
    for _ in range(20):
        params, state, value = step(params, state)
        descent.zero_grad()
        logits = kf.ops.linear(kf.ops.linear_gelu(inputs, own[0], own[1]), own[2])
        loss = kf.ops.cross_entropy(logits, torch.tensor(label)).mean()
        loss.backward()
        descent.step()
        losses.append((float(value), loss.item()))
    got, want = np.array(losses).T
    assert want[-1] < 0.8 * want[0] and np.abs(got - want).max() < 1e-5, losses


RESTORED = """
import jax, numpy as np
import kernel_fusion.jax as kj
kj.register()
program = jax.export.deserialize(open({path!r}, "rb").read())
print(np.asarray(program.call(np.ones((4, 6), np.float32), np.ones(6, np.float32))).tolist())
"""


@pytest.mark.check
def test_export(kj, tmp_path):
    x, bias = jnp.ones((4, 6)), jnp.ones(6)
    program = jax.export.export(jax.jit(kj.bias_gelu), disabled_checks=kj.EXPORT_CHECKS)(x, bias)
    path = tmp_path / "program"
    path.write_bytes(program.serialize())
    assert kfpython.python(RESTORED.format(path=str(path))) == str(kj.bias_gelu(x, bias).tolist())


@pytest.mark.parametrize(
    "call, kind, why",
    [
        (lambda kj, x: kj.relu(np.ones(3)), TypeError, r"float64.*jax_enable_x64"),
        (lambda kj, x: kj.bias_relu(x, 1.0), TypeError, "kf.bias_relu: bias is float, expected"),
        (lambda kj, x: kj.bias_relu(x, x), ValueError, r"kf.bias_relu: bias has the shape \(4, 6"),
        (lambda kj, x: kj.bias_relu(x), TypeError, "kf.bias_relu.*missing a required argument"),
        (lambda kj, x: kj.relu(x, out=x), TypeError, "kf.relu: out is for other arrays"),
        (lambda kj, x: kj.relu_dropout(x), TypeError, "kf.relu_dropout: rng is missing"),
        (lambda kj, x: kj.relu_dropout(x, rng=x), TypeError, "expected a key of JAX"),
        (lambda kj, x: kj.layer_norm(x, eps=-1.0), ValueError, "eps is -1.0, expected at least 0"),
        (
            lambda kj, x: jax.jit(lambda x, e: kj.layer_norm(x, eps=e))(x, 1e-5),
            TypeError,
            "kf.layer_norm: eps is traced, expected a number",
        ),
        (
            lambda kj, x: jax.jvp(kj.relu, (x,), (x,)),
            NotImplementedError,
            "kf.relu has no forward-mode derivative",
        ),
        (
            lambda kj, x: jax.grad(lambda x: jax.grad(lambda x: kj.gelu(x).sum())(x).sum())(x),
            NotImplementedError,
            "kf.gelu has no second derivative",
        ),
        (
            lambda kj, x: jax.export.export(jax.jit(kj.relu))(
                jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 6"), x.dtype)
            ),
            NotImplementedError,
            "kf.relu: x has the symbolic shape",
        ),
        (
            lambda kj, x: jax.grad(lambda x: kj.cast(x, "float16").sum().astype(jnp.float32))(x),
            NotImplementedError,
            "kf.cast has no gradient",
        ),
    ],
)
def test_refusals(kj, call, kind, why):
    with pytest.raises(kind, match=why):
        call(kj, draw(4, 6))


def test_what_is_missing_is_named(kj, monkeypatch, tmp_path):
    from kernel_fusion import _compilers
    from kernel_fusion.jax import _native

    monkeypatch.setattr(_native, "_path", lambda: tmp_path / "handlers.so")
    monkeypatch.setenv("KF_OFFLINE", "1")
    with pytest.raises(RuntimeError, match="KF_OFFLINE is set"):
        _native.library.__wrapped__()
    monkeypatch.setattr(_compilers, "cxx", lambda: None)
    with pytest.raises(RuntimeError, match="apt install g"):
        _native.library.__wrapped__()
    why = _native._open(b"kf_nonesuch_f32", 0)
    assert b"make or load its op first" in ctypes.string_at(why)
    script = "import sys; sys.modules['jax'] = None\nimport kernel_fusion as kf\n"
    script += "try: kf.jax\nexcept ImportError as e: print(e)"
    assert kfpython.python(script).startswith(
        "kernel_fusion.jax needs JAX: pip install 'kernel_fusion[jax]'"
    )
