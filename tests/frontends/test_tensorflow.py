# SPDX-License-Identifier: Apache-2.0
"""kernel_fusion_tensorflow: bits and gradients of each op, graphs, Keras, dropout, errors."""

import importlib
import inspect

import cases
import host_gpu
import kfpython
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
    "f", torchops.FUNCTIONAL if cases.LEVEL > 1 else tfops.one_of_each_family(), ids=ids
)
def test_bits_and_gradients_of_a_graph(kf, kf_tf, f):
    for dtype in ("f32", "f16", "bf16", "f64") if cases.LEVEL > 1 else ("bf16",):
        tfops.same_bits(kf, kf_tf, f, dtype, eager=False)


@pytest.mark.check
@pytest.mark.parametrize("f", torchops.of_each_op(torchops.FUNCTIONAL), ids=ids)
def test_bits_and_gradients_of_an_eager_call(kf, kf_tf, f):
    tfops.same_bits(kf, kf_tf, f, "f32", eager=True)


def test_names(kf, kf_tf):
    """Every function but compositions and updates, with and without fused_, under its own
    signature.
    """
    from kernel_fusion import _table

    composed = {"fused_linear_activation", "fused_attention_score", "fused_multihead_attention"}
    updates = {name for name, (op, _) in _table.functions().items() if op.forward.updates}
    assert {*dir(kf.ops)} - {*dir(kf_tf)} == composed | updates | {"call"}
    x, y = draw(2, 3), draw(2, 3)
    want = kf.ops.add_relu(x, y)
    for name in ("fused_add_relu", "add_relu", "elementwise_add_relu"):
        tfops.equal(getattr(kf_tf, name)(x, y), want, name)
    tfops.equal(kf_tf.gelu(x, approximate="tanh"), kf.ops.gelu_tanh(x), "gelu")
    assert "out" not in inspect.signature(kf_tf.layer_norm).parameters
    assert "eps" in inspect.signature(kf_tf.layer_norm).parameters


@pytest.mark.check
def test_stubs_are_the_functions(kf_tf):
    """Stubs have the arguments, order and defaults of inspect.signature."""
    stub = kfpython.package() / "kernel_fusion_tensorflow/__init__.pyi"
    names = {}
    exec(compile(stub.read_text(), stub.name, "exec"), names)
    for name in set(dir(kf_tf)) - {"layers", "info"}:
        own, wanted = (inspect.signature(f).parameters for f in (names[name], getattr(kf_tf, name)))
        if [p.kind for p in wanted.values()][:1] != [inspect.Parameter.VAR_POSITIONAL]:
            assert [(p.name, p.kind, p.default) for p in own.values()] == [
                (p.name, p.kind, p.default) for p in wanted.values()
            ], name


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
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = kf_tf.layer_norm(x)
        first = tape.gradient(out, x)
    with pytest.raises(NotImplementedError, match="kf.layer_norm has no second derivative"):
        outer.gradient(first, x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = kf_tf.cast(x, tf.float64)
    with pytest.raises(NotImplementedError, match="kf.cast has no gradient"):
        tape.gradient(out, x)


X = draw(4, 8)


@pytest.mark.parametrize("dim", [(0, 2), (-1, 1), (), None, 1], ids=str)
def test_several_axes(kf, kf_tf, dim):
    """Axes of eager calls and of graphs with unknown dimensions, and their gradients."""
    x = tf.constant(draw(2, 3, 4))
    want = kf.ops.sum(x.numpy(), dim=dim, keepdim=True)
    unknown = tf.function(
        lambda x: kf_tf.sum(x, dim=dim, keepdim=True),
        input_signature=[tf.TensorSpec([None, 3, None])],
    )
    for reduce in (lambda x: kf_tf.sum(x, dim=dim, keepdim=True), unknown):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = reduce(x)
        assert np.array_equal(found, want)
        assert np.array_equal(tape.gradient(found, x), np.ones(x.shape, np.float32))


WRONG = {
    "shape": (
        lambda kf: kf.add_relu(X, X[:2]),
        ValueError,
        "kf.add_relu: b has the shape (2, 8), expected (4, 8) beside a of the shape (4, 8)",
    ),
    "dtype": (
        lambda kf: kf.add_relu(X, X.astype("d")),
        TypeError,
        "kf.add_relu: b has the dtype f64, expected f32 beside a of f32",
    ),
    "no dtype of kf": (
        lambda kf: kf.relu(tf.constant([1j])),
        TypeError,
        "kf.relu: x has the dtype complex128, expected one of f32",
    ),
    "missing": (
        lambda kf: kf.add_relu(X),
        TypeError,
        "kf.add_relu(a, b): missing a required argument: 'b'",
    ),
    "out": (lambda kf: kf.relu(X, out=X), TypeError, "kf.relu: out is for other frameworks"),
    "number": (
        lambda kf: kf.layer_norm(X, eps=tf.constant(X)),
        TypeError,
        "kf.layer_norm: eps is a tensor of the shape (4, 8), expected a number",
    ),
    "bounds": (
        lambda kf: kf.layer_norm(X, eps=-1.0),
        ValueError,
        "kf.layer_norm: eps is -1.0, expected at least 0",
    ),
    "ragged": (
        lambda kf: kf.relu(tf.RaggedTensor.from_row_lengths([1.0], [1])),
        TypeError,
        "kf.relu: x is RaggedTensor, expected a dense tensor",
    ),
    "symbol": (
        lambda kf: kf.relu(tf.keras.Input((3,))),
        TypeError,
        "kf.relu: x is Keras's symbol of a tensor, expected a tensor",
    ),
    "no variable": (
        lambda kf: kf.batch_norm_train(X, X[0], X[1]),
        TypeError,
        "kf.batch_norm_train: running_mean is ndarray, expected a variable",
    ),
    "index": (
        lambda kf: kf.cross_entropy(X, np.array([1, 2, 9, 1])),
        IndexError,
        "kf.cross_entropy: label is 9 at (2,), expected at least 0 and less than 8",
    ),
    "rng": (
        lambda kf: kf.dropout(X, rng=(1, 2, 3)),
        TypeError,
        "kf.dropout: rng is (1, 2, 3), expected None, a tf.random.Generator",
    ),
    "axis": (
        lambda kf: kf.sum(X, dim=4),
        ValueError,
        "kf.sum: x has the shape (4, 8), expected a dimension 4, the axis",
    ),
    "name": (lambda kf: kf.nothing, AttributeError, "kernel_fusion_tensorflow has no `nothing`"),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors(kf_tf, what):
    call, kind, text = WRONG[what]
    with pytest.raises(kind) as e:
        call(kf_tf)
    assert str(e.value).startswith(text)


@pytest.mark.parametrize(
    "name, first, second, text",
    [
        ("add", (4, 8), (2, 8), "b has the shape (2, 8), expected (4, 8) beside a of the shape"),
        ("act_glu", (4, 7), None, "x has the shape (4, 7), expected a dimension 1"),
        ("layer_norm", (), None, "x has the shape (), expected at least 1 dimensions"),
    ],
)
def test_errors_of_a_running_graph(kf_tf, name, first, second, text):
    """Shapes that a graph does not know are checked when it runs."""
    given = [np.ones(shape, "f") for shape in (first, second) if shape is not None]
    function = kf_tf.relu_glu if name == "act_glu" else getattr(kf_tf, name)
    specs = [tf.TensorSpec(None)] * len(given)
    traced = tf.function(lambda *xs: function(*xs), input_signature=specs)
    with pytest.raises(tf.errors.InvalidArgumentError) as e:
        traced(*given)
    assert f"kf.{function.__name__}: {text}" in str(e.value)


@pytest.mark.check
def test_xla_is_refused(kf_tf):
    with pytest.raises(tf.errors.InvalidArgumentError, match="unsupported operations"):
        tf.function(lambda x: kf_tf.relu(x), jit_compile=True)(X)


def test_missing_compilers(kf_tf, monkeypatch, tmp_path):
    from kernel_fusion import _compilers, _cxx_library
    from kernel_fusion_tensorflow import _library

    monkeypatch.setenv("KF_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("KF_OFFLINE", "1")
    with pytest.raises(RuntimeError, match="KF_OFFLINE is set: call a function of kernel_fusion_t"):
        _cxx_library.find(_library._source())
    monkeypatch.setattr(_compilers, "cxx", lambda: None)
    with pytest.raises(RuntimeError, match="C.. compiler, and none was found: install g.."):
        _cxx_library.find(_library._source())


# Names and functions of Keras's activations, which kf's layers know too.
OF_KERAS = (
    "linear",
    "swish",
    "silu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "gelu",
)


@pytest.mark.parametrize("name", OF_KERAS)
def test_activations_of_keras(kf_tf, name):
    x = tf.constant(draw(4, 8))
    theirs = tf.keras.layers.Dense(3, activation=name)
    want = theirs(x)
    for activation in (name, getattr(tf.keras.activations, name)):
        layer = kf_tf.layers.Dense(3, activation=activation)
        layer.build(x.shape)
        layer.set_weights(theirs.get_weights())
        assert np.allclose(layer(x), want, 1e-5, 1e-5)
        again = kf_tf.layers.Dense.from_config(layer.get_config())
        assert again.fused_activation == layer.fused_activation


def test_activations_that_are_not_kf_s(kf_tf):
    """leaky_relu of Keras has another slope than kf's, so its function is refused."""
    for activation in ("softmax", tf.keras.activations.leaky_relu, tf.nn.relu, 3):
        with pytest.raises(ValueError, match="kf.layers.Dense: activation is .*swish"):
            kf_tf.layers.Dense(3, activation=activation)


@pytest.mark.check
def test_keras(kf_tf, tmp_path):
    """Layers fit, equal Keras's with the same weights, and survive saving."""
    keras, layers = tf.keras, kf_tf.layers
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="gelu"),
            layers.LayerNormalization(activation="relu"),
            layers.DenseDropout(16, rate=0.1, activation="relu"),
            layers.DenseDropout(16, rate=0.1, activation="elu"),
            layers.Dropout(0.1, activation="tanh"),
            layers.Dense(1),
        ]
    )
    own = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="gelu"),
            keras.layers.LayerNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(16, activation="elu"),
            keras.layers.Activation("tanh"),
            keras.layers.Dense(1),
        ]
    )
    x = draw(64, 8)
    model.compile("adam", "mse")
    assert not model.jit_compile
    loss = model.fit(x, x[:, :1], epochs=12, verbose=0).history["loss"]
    assert loss[-1] < 0.9 * loss[0]
    own.set_weights([w for w in model.get_weights() if w.dtype == np.float32])
    want = own.predict(x, verbose=0)
    assert np.abs(model.predict(x, verbose=0) - want).max() < 1e-5
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    tfops.equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0), "loaded")
    for make, text in (
        (lambda: layers.Dense(2, activation="cosine"), "kf.layers.Dense: activation is 'cosine'"),
        (lambda: layers.DenseDropout(2, rate=1.0), "kf.layers.DenseDropout: rate is 1.0"),
        (lambda: layers.LayerNormalization(axis=1).build((2, 3, 4)), "axis is 1, expected"),
        (lambda: layers.Dropout(0.5, noise_shape=(1, 2)), "noise_shape is given, expected None"),
    ):
        with pytest.raises(ValueError, match=text):
            make()


LOADED = """
import sys, numpy as np, tensorflow as tf, kernel_fusion_tensorflow as kf
kf.register_op()
f = tf.saved_model.load(sys.argv[1]).f
x = tf.constant(np.arange(24, dtype="f").reshape(3, 8))
with tf.GradientTape() as tape:
    tape.watch(x)
    y = f(x)
print(y.numpy().sum() == f(x).numpy().sum(), tape.gradient(y, x).shape)
"""


@pytest.mark.check
def test_a_saved_model(kf_tf, tmp_path):
    """A new process runs a graph, and differentiates it."""
    module = tf.Module()
    module.f = tf.function(
        lambda x: kf_tf.layer_norm_gelu(x), input_signature=[tf.TensorSpec([None, 8])]
    )
    tf.saved_model.save(module, str(tmp_path))
    program = LOADED.replace("sys.argv[1]", repr(str(tmp_path)))
    assert kfpython.python(program) == "True (3, 8)"


def test_graphs_of_another_version(kf_tf):
    from kernel_fusion import _described

    call = _described.Call("act", "relu", False, (True,), (True,), (), ())
    assert _described.parse(call.text()) == call
    with pytest.raises(ValueError, match="the graph has ABI version 99, expected"):
        _described.parse(call.text().replace(f'"abi": {_described._table.abi()}', '"abi": 99'))


@pytest.fixture
def gpu(kf, library, monkeypatch):
    """A GPU in host memory that holds all eager tensors."""
    from kernel_fusion import _dlpack, _gpu
    from kernel_fusion_tensorflow import _on_gpu

    host = type("OfHost", (host_gpu.Host, _gpu.Gpu), {})(library)
    monkeypatch.setattr(_gpu, "library", lambda: host)
    monkeypatch.setattr(_dlpack, "CUDA", (1,))  # the CPU's device type
    monkeypatch.setattr(_on_gpu, "holds", lambda x: tf.executing_eagerly())
    return host


def test_eager_calls_on_a_gpu(kf, kf_tf, gpu):
    """A call launches, waits, and records its gradient, which launches as well."""
    x, weight = tf.constant(draw(4, 8)), tf.constant(draw(8))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, weight])
        out = kf_tf.layer_norm_gelu(x, weight)
    tfops.equal(out, kf.ops.layer_norm_gelu(x.numpy(), weight.numpy()), "out")
    assert [what for what, *_ in gpu.log if what != "free"] == ["call", "wait"]
    found = tape.gradient(out, [x, weight])
    assert [what for what, *_ in gpu.log if what != "free"] == ["call", "wait"] * 2
    given = [torch.tensor(t.numpy(), requires_grad=True) for t in (x, weight)]
    wanted = torch.autograd.grad(kf.ops.layer_norm_gelu(*given).sum(), given)
    for got, want in zip(found, wanted):
        tfops.equal(got, want.numpy(), "gradient")
    tfops.equal(kf_tf.dropout(x, rng=(3, 4)), kf.ops.dropout(x.numpy(), rng=(3, 4)), "dropout")
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = kf_tf.layer_norm(x)
        first = tape.gradient(out, x)
    with pytest.raises(NotImplementedError, match="kf.layer_norm has no second derivative"):
        outer.gradient(first, x)
    with pytest.raises(ValueError, match="kf.add: b has the shape .2, 8., expected .4, 8. beside"):
        kf_tf.add(x, x[:2])


OWN = """
import kernel_fusion, numpy as np, tensorflow as tf, kernel_fusion_tensorflow as kf
from kernel_fusion import tvm_ffi as fused
kernel_fusion.load(FILE)
x, gamma, out = np.full((2, 3), 2, "f"), tf.ones(3), np.empty((2, 3), "f")
def step(gamma):
    with tf.GradientTape() as tape:
        tape.watch(gamma)
        return tape.gradient(kf.own_layer_scale(x, gamma, x), gamma)
print(tf.function(step)(gamma).numpy().tolist())
fused.register(["own_layer_scale"], ["float32"])
fused.get("own_layer_scale_f32")(x, gamma.numpy(), x, out)
print(out.sum())
"""


SPEC = """
[op.own_layer_scale]
brief = "residual + gamma * max(x, 0)"
operands = { x = "elem", gamma = "row", residual = "elem" }
expr = "residual + gamma * max(x, 0)"
ref = "residual + gamma * np.maximum(x, 0)"
source = "Touvron et al. 2021, LayerScale (arXiv:2103.17239)"
"""


@pytest.mark.check
def test_ops_of_ones_own(tmp_path):
    """Ops of kf.load, and of new families, are functions here and of tvm_ffi."""
    pytest.importorskip("tvm_ffi")
    (tmp_path / "own.toml").write_text(SPEC)
    found = kfpython.python(OWN.replace("FILE", repr(str(tmp_path / "own.toml"))))
    assert found.splitlines() == ["[4.0, 4.0, 4.0]", "24.0"]
