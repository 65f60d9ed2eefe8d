# SPDX-License-Identifier: Apache-2.0
"""kf.ops over NumPy arrays: shapes, strides, out=, dropout, aliases and errors."""

import inspect
import re

import kflib
import kfpython
import numpy as np
import pytest
from kfgen.interfaces import frontend, packed

TABLE = frontend.table(kflib.manifest())
RNG = np.random.default_rng(0)


def draw(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def close(got, want, tolerance=1e-5):
    assert got.shape == want.shape and got.dtype == want.dtype
    worst = np.abs(got - want).max() if got.size else 0
    assert worst <= tolerance, worst


def layer_norm(x, axis=-1, eps=1e-5):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


def test_values(kf):
    x, bias, label = draw(2, 3, 4), draw(4), np.array([[1, 3, 0], [2, 2, 1]])
    weight = 1 + bias
    close(kf.ops.bias_relu(x, bias), np.maximum(x + bias, 0))
    close(kf.ops.layer_norm_relu(x, weight, bias), np.maximum(layer_norm(x) * weight + bias, 0))
    close(kf.ops.layer_norm(x, bias=bias), layer_norm(x) + bias)
    close(kf.ops.relu_glu(x), np.maximum(x[..., :2], 0) * x[..., 2:])
    scores = x - np.log(np.exp(x).sum(-1, keepdims=True))
    close(kf.ops.cross_entropy(x, label), -np.take_along_axis(scores, label[..., None], -1)[..., 0])
    assert (
        kf.ops.cast(x * 1e10, "int32").dtype == np.int32
        and kf.ops.cast(np.array([np.nan]), np.int64)[0] == 0
    )
    close(kf.ops.call("bias", x, bias, activation="relu"), kf.ops.bias_relu(x, bias), 0)
    close(kf.ops.call("layer_norm_{act}", x, activation="relu"), kf.ops.layer_norm_relu(x), 0)


def test_axes(kf):
    x = draw(2, 3, 4, 5)
    for dim in (-1, 0, 1, 2, -2):
        close(kf.ops.sum(x, dim=dim), x.sum(dim))
    close(kf.ops.sum(x, dim=None), x.sum()[()] * np.ones((), np.float32))
    close(kf.ops.sum(draw(0, 3), dim=0), np.zeros(3, np.float32))
    for dim in (1, -1):
        own = tuple(d for d in range(4) if d != dim % 4)
        close(kf.ops.batch_norm_train(x, dim=dim), layer_norm(x, own))


def test_running_statistics_are_updated_in_place(kf):
    x, mean, var = draw(6, 3), np.zeros(3, np.float32), np.ones(3, np.float32)
    kf.ops.batch_norm_train(x, mean, var, momentum=1.0)
    close(mean, x.mean(0))
    close(var, x.var(0, ddof=1))
    with pytest.raises(ValueError, match="running_mean is updated in place, expected contiguous"):
        kf.ops.batch_norm_train(x, np.zeros(6, np.float32)[::2], var)


@pytest.mark.parametrize(
    "name, make, copies",
    [
        ("columns of a wider matrix", lambda: draw(6, 5, 8)[..., :4], 0),
        ("every other row", lambda: draw(6, 10, 4)[:, :8:2], 1),
        ("rows of one level apart", lambda: draw(12, 4)[::2], 0),
        ("one row for all", lambda: np.broadcast_to(draw(4), (6, 4)), 0),
        ("transposed", lambda: draw(4, 6).T, 1),
        ("backwards", lambda: draw(6, 4)[::-1], 1),
        ("columns apart", lambda: draw(6, 8)[:, ::2], 1),
        (
            "unaligned",
            lambda: (
                np.frombuffer(b"0" + draw(6, 4).tobytes(), np.uint8)[1:]
                .view(np.float32)
                .reshape(6, 4)
            ),
            1,
        ),
        ("one row", lambda: draw(8, 4)[:1], 0),
        ("no rows", lambda: draw(8, 8)[:0, :4], 0),
    ],
)
def test_strides(kf, name, make, copies):
    """Strided rows are read directly; other layouts are copied once, and counted."""
    x = make()
    before = kf.info()["copies"].get("layer_norm", 0)
    close(kf.ops.layer_norm(x), layer_norm(x).astype(np.float32))
    assert kf.info()["copies"].get("layer_norm", 0) - before == copies


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x[:, :, :3],
        lambda x: x[::2],
        lambda x: x.transpose(2, 0, 1),
        lambda x: x[:, :1],
    ],
)
def test_strides_of_reductions(kf, dim, view):
    x = view(draw(4, 5, 6))
    close(kf.ops.sum(x, dim=dim), x.sum(dim))


def test_out(kf):
    x = draw(3, 4)
    out = np.full_like(x, np.nan)
    assert kf.ops.relu(x, out=out) is out
    close(out, np.maximum(x, 0))
    assert kf.ops.relu(x, out=x) is x and (x >= 0).all()
    for wrong, why in (
        (
            np.empty((3, 5), "f"),
            "out is float32 with shape .3, 5., expected float32 with shape .3, 4.",
        ),
        (np.empty((3, 4)), "out is float64"),
        (
            np.empty((3, 8), "f")[:, ::2],
            "out is an output, expected contiguous, writable memory: it is strided by .32, 8. "
            "bytes",
        ),
    ):
        with pytest.raises(ValueError, match=f"kf.relu: {why}"):
            kf.ops.relu(x, out=wrong)
    frozen = np.empty_like(x)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="writable memory: it is read-only"):
        kf.ops.relu(x, out=frozen)


def test_a_scalar_named_beta(kf):
    """The beta of axpby is a scalar of the op, not the factor of `out`."""
    from kernel_fusion import _arguments, _table

    x = np.ones(3, "f")
    bound = _arguments.bind(_table.ops()["axpby"], "none", (x, x), {"alpha": 2.0, "beta": 3.0})
    assert bound.scalars == (2.0, 3.0) and bound.beta == 0
    if kfpython.WHOLE:
        assert kf.ops.axpby(x, x, alpha=2.0, beta=3.0).tolist() == [5, 5, 5]


def test_dropout(kf):
    x = np.ones((100, 100), np.float32)
    same = [kf.ops.relu_dropout(x, p=0.25, rng=(7, 9)) for _ in range(2)]
    assert (
        (same[0] == same[1]).all()
        and set(np.unique(same[0])) == {0, np.float32(1 / 0.75)}
        and abs((same[0] == 0).mean() - 0.25) < 0.02
    )
    assert (kf.ops.dropout(x, p=0.25) != kf.ops.dropout(x, p=0.25)).any()
    seeded = [kf.ops.dropout(x, p=0.25, rng=np.random.default_rng(3)) for _ in range(2)]
    used, fresh = np.random.default_rng(3), np.random.default_rng(3)
    assert (
        (seeded[0] == seeded[1]).all()
        and (kf.ops.dropout(x, p=0.25, training=False, rng=used) == x).all()
        and used.random() == fresh.random()
    )
    of = [kf.ops.dropout(x, p=0.25, rng=(seed, 2**64 - 9)) for seed in (2**64 - 7, -7)]
    assert (of[0] == of[1]).all() and (
        of[0] == kf.ops.dropout(x, p=0.25, rng=np.array([2**64 - 7, 2**64 - 9], np.uint64))
    ).all()
    with pytest.raises(ValueError, match="kf.dropout: p is 1.5, expected at least 0 and at most 1"):
        kf.ops.dropout(x, p=1.5)
    with pytest.raises(
        ValueError, match=r"kf.dropout: rng has the shape \(3,\), expected \(2,\): seed and offset"
    ):
        kf.ops.dropout(x, rng=(1, 2, 3))
    with pytest.raises(
        TypeError,
        match="kf.dropout: rng is 'seed', expected None, a numpy.random.Generator or two whole "
        "numbers",
    ):
        kf.ops.dropout(x, rng="seed")


def test_aliases(kf):
    """Every alias calls its function with the arguments in the alias's order."""
    names = dir(kf.ops)
    assert {a["name"] for a in TABLE["aliases"]} <= set(names)
    x, bias = draw(3, 4), draw(4)
    close(kf.ops.fused_bias_relu(x, bias=bias), kf.ops.bias_relu(x, bias), 0)
    close(
        kf.ops.fused_layer_norm_gelu(x, None, bias, 0.1),
        kf.ops.layer_norm_gelu(x, bias=bias, eps=0.1),
        0,
    )
    close(kf.ops.reduce_sum(x, dim=0), kf.ops.sum(x, dim=0), 0)
    with pytest.raises(TypeError, match="kf.fused_bias_relu takes x, bias, each once"):
        kf.ops.fused_bias_relu(x, bias, x=x)


REFUSED = [
    (
        "bias_relu",
        (np.ones((2, 3), "f"), np.ones(4, "f")),
        {},
        ValueError,
        "kf.bias_relu: bias has the shape (4,), expected (3,) beside x of the shape (2, 3)",
    ),
    (
        "bias_relu",
        (np.ones((2, 3), "f"), np.ones(3)),
        {},
        TypeError,
        "kf.bias_relu: bias has the dtype f64, expected f32 beside x of f32",
    ),
    (
        "bias_relu",
        (np.ones((2, 3), "f"),),
        {},
        TypeError,
        "kf.bias_relu(x, bias, *, out=None): missing a required argument: 'bias'",
    ),
    ("bias_relu", (np.ones((2, 3), "f"), None), {}, TypeError, "kf.bias_relu: bias is missing"),
    (
        "bias_relu",
        (np.ones(3), np.ones(3), None),
        {},
        TypeError,
        "kf.bias_relu(x, bias, *, out=None): too many positional arguments",
    ),
    (
        "bias_relu",
        (np.ones(3), np.ones(3)),
        {"x": 1},
        TypeError,
        "kf.bias_relu(x, bias, *, out=None): multiple values for argument 'x'",
    ),
    (
        "bias_relu",
        (np.ones(3), np.ones(3)),
        {"eps": 1},
        TypeError,
        "kf.bias_relu(x, bias, *, out=None): got an unexpected keyword argument 'eps'",
    ),
    (
        "bias_relu",
        ([[1.0]], np.ones(1)),
        {},
        TypeError,
        "kf.bias_relu: x is list, expected an array",
    ),
    (
        "bias_relu",
        (np.ones((2, 3), "c8"), np.ones(3)),
        {},
        TypeError,
        "kf.bias_relu: x has the dtype complex64, expected one of bf16, f16, f32, f64",
    ),
    (
        "bias_relu",
        (np.ones((2, 3), ">f4"), np.ones(3, "f")),
        {},
        TypeError,
        "kf.bias_relu: x has the dtype >f4, expected this machine's byte order",
    ),
    (
        "bias_relu",
        (np.ones((2, 3), "i4"), np.ones(3, "i4")),
        {},
        TypeError,
        "kf.bias_relu: x has the dtype i32, expected one of bf16, f16, f32, f64",
    ),
    (
        "bias_relu",
        (np.ones((), "f"), np.ones(3, "f")),
        {},
        ValueError,
        "kf.bias_relu: x has the shape (), expected at least 1 dimensions",
    ),
    (
        "add_gelu",
        (np.ones(3, "i4"), np.ones(3, "i4")),
        {},
        TypeError,
        "kf.add_gelu: a has the dtype i32, expected a floating-point dtype: the activations for "
        "integers are none, relu",
    ),
    (
        "layer_norm",
        (np.ones((2, 3), "f"), np.ones(3, "f2")),
        {},
        TypeError,
        "kf.layer_norm: weight has the dtype f16, expected f32 beside x of f32",
    ),
    (
        "layer_norm",
        (np.ones((2, 3), "f2"), np.ones(3, "f"), np.ones(3, "f2")),
        {},
        TypeError,
        "kf.layer_norm: bias has the dtype f16, expected f32 beside x of f16",
    ),
    (
        "layer_norm",
        (np.ones((2, 3), "f"),),
        {"eps": -1},
        ValueError,
        "kf.layer_norm: eps is -1, expected at least 0",
    ),
    (
        "layer_norm",
        (np.ones((2, 3), "f"),),
        {"eps": float("nan")},
        ValueError,
        "kf.layer_norm: eps is nan, expected at least 0",
    ),
    (
        "layer_norm",
        (np.ones((2, 3), "f"),),
        {"eps": "small"},
        TypeError,
        "kf.layer_norm: eps is str, expected a number",
    ),
    (
        "cross_entropy",
        (np.ones((2, 3), "f"), np.ones(2)),
        {},
        TypeError,
        "kf.cross_entropy: label has the dtype f64, expected i64 beside x of f32",
    ),
    (
        "cross_entropy",
        (np.ones((2, 3), "f"), np.ones(2, "i8")),
        {"ignore_index": 0.5},
        TypeError,
        "kf.cross_entropy: ignore_index is float, expected a whole number",
    ),
    (
        "relu_glu",
        (np.ones((2, 3), "f"),),
        {},
        ValueError,
        "kf.relu_glu: x has the shape (2, 3), expected an even last dimension: two halves",
    ),
    (
        "sum",
        (np.ones((2, 3), "f"),),
        {"dim": 2},
        ValueError,
        "kf.sum: x has the shape (2, 3), expected a dimension 2, the axis",
    ),
    (
        "amax",
        (np.ones((2, 0), "f"),),
        {},
        ValueError,
        "kf.amax: the axis 1 of the shape (2, 0) has no elements, so amax is undefined",
    ),
    (
        "group_norm",
        (np.ones((2, 6, 2), "f"),),
        {"groups": 4},
        ValueError,
        "kf.group_norm: groups is 4, expected a divisor of the 6 channels",
    ),
    (
        "group_norm",
        (np.ones((2, 6, 2), "f"),),
        {"groups": "2"},
        TypeError,
        "kf.group_norm: groups is str, expected a whole number",
    ),
    (
        "sum",
        (np.ones((2, 3), "f"),),
        {"dim": (0, 0.5)},
        TypeError,
        "kf.sum: dim is float, expected a whole number, a tuple of them or None",
    ),
    (
        "batch_norm_train",
        (np.ones((2, 3), "f"),),
        {"dim": None},
        TypeError,
        "kf.batch_norm_train: dim is NoneType, expected a whole number",
    ),
    (
        "mse_mean",
        (np.ones((2, 3), "f"), np.ones((3, 2), "f")),
        {"dim": None},
        ValueError,
        "kf.mse_mean: target has the shape (3, 2), expected (2, 3) beside x of that shape",
    ),
    (
        "add_layer_norm",
        (np.ones((2, 3), "f"), np.ones((2, 3), "f")),
        {"out": np.ones((2, 3), "f")},
        TypeError,
        "kf.add_layer_norm: out is ndarray, expected a dictionary of arrays with the keys out, "
        "residual_out",
    ),
    (
        "add_layer_norm",
        (np.ones((2, 3), "f"), np.ones((2, 3), "f")),
        {"out": {"sum": None}},
        ValueError,
        "kf.add_layer_norm: out has 'sum', expected some of out, residual_out",
    ),
    (
        "relu",
        (np.ma.masked_array(np.ones(2, "f"), [True, False]),),
        {},
        TypeError,
        "kf.relu: x has a mask, which kf does not read",
    ),
    (
        "dropout",
        (np.ones(3, "f"),),
        {"rng": (1.5, 0)},
        TypeError,
        "kf.dropout: rng is (1.5, 0), expected None, a numpy.random.Generator or two",
    ),
    (
        "dropout",
        (np.ones(3, "f"),),
        {"rng": (2**64, 0)},
        TypeError,
        "kf.dropout: rng is (18446744073709551616, 0), expected",
    ),
    (
        "cast",
        (np.ones(3, "f"), "int8"),
        {},
        TypeError,
        "kf.cast: dtype is int8, expected one of f32, f16, bf16, f64, i32, i64",
    ),
    (
        "cast",
        (np.ones(3, "f"), "f32"),
        {},
        TypeError,
        "kf.cast: the result has the dtype f32, expected bf16 or f16 or f64 or i32 or i64 beside "
        "x of f32",
    ),
]


@pytest.mark.parametrize(
    "name, args, kwargs, error, text", REFUSED, ids=[f"{i}-{s[0]}" for i, s in enumerate(REFUSED)]
)
def test_what_is_refused(kf, name, args, kwargs, error, text):
    """Errors name op, argument, shapes and dtypes."""
    with pytest.raises(error, match=re.escape(text)):
        getattr(kf.ops, name)(*args, **kwargs)


def test_a_launcher_s_refusal_names_what_was_called(kf):
    """Errors of a launcher name the Python function instead of the C function."""
    memory, x = np.ones(9, "f"), np.ones((2, 3), "f")
    overlaps = "tensors overlap in a way the function does not allow: out at 0x.* overlaps"
    for name, call in (
        ("relu", lambda: kf.ops.relu(memory[:-1], out=memory[1:])),
        ("bias_relu", lambda: kf.ops.bias_relu(x, memory[:3], out=memory[:6].reshape(2, 3))),
        ("bias_relu", lambda: kf.fused_bias_relu(x, memory[:3], out=memory[:6].reshape(2, 3))),
    ):
        with pytest.raises(ValueError, match=rf"^kf\.{name}: {overlaps}"):
            call()


def test_every_function_has_a_signature_and_a_docstring(kf):
    """Docstrings describe each argument, the results and the errors."""
    functions = {(f["op"], f["activation"]) for f in packed.functions(kflib.manifest())}
    found = {}
    for name in kfpython.packaged(kf):
        function = getattr(kf.ops, name)
        assert function.__name__ == name
        found[name] = function
        if name not in [a["name"] for a in TABLE["aliases"]] and name != "call":
            arguments = [
                p
                for p in inspect.signature(function).parameters
                if p not in ("dtype", "training", "rng", "out")
            ]
            assert [a for a in arguments if not re.search(rf"\b{a}: ", function.__doc__)] == [], (
                function.__doc__
            )
            assert re.search(r"Returns(:\n| None\.)", function.__doc__)
            assert "TypeError: " in function.__doc__
    assert (
        len(found) == len(functions) + len(TABLE["aliases"]) + 10
    )  # call, five functions of _composed.py, three of _flash.py and one of _block_masks.py


def test_a_docstring_says_whether_the_axis_may_be_none(kf):
    x, sentence = draw(2, 3), "None reduces all dimensions"
    assert sentence in kf.ops.sum.__doc__ and kf.ops.sum(x, dim=None).shape == ()
    norm = kf.ops.batch_norm_train
    assert "    dim: " in norm.__doc__ and sentence not in norm.__doc__
    with pytest.raises(TypeError, match="dim"):
        norm(x, dim=None)
