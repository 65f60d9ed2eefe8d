# SPDX-License-Identifier: Apache-2.0
"""Functions on tensors: every function of the manifest through them gives its launcher's bits, with tensors of many dimensions, rows that lie apart,
elements that lie in any way; and wrong calls are refused by name."""

import ctypes
import itertools

import checks
import kflib
import numpy as np
import pytest
import runtime_api
import runtime_ops
from runtime_calls import FUNCTION_OF, FUNCTIONS, Call, apart, of


@pytest.mark.parametrize("f", FUNCTIONS, ids=[f["name"] for f in FUNCTIONS])
def test_the_launchers_bits(ops, ctx, launchers, f):
    """By the function on tensors, by its name, and by a plan."""
    call = Call(launchers, f, ops, ctx)
    for way in runtime_ops.WAYS:
        call.same(way=way)
    unread = [n for n, a in call.tensors() if a["unread"]]
    if unread:  # what is not read may be absent, where the shape is known from another one
        function, _ = ops.function(f)
        call.same(absent=[n for n in unread if n != function.shaped_by["name"]])
    if checks.result_of(f):  # by the activation's result, and by the inputs
        call.same(absent=checks.instead_of(f))
        Call(launchers, f, ops, ctx, (checks.result_of(f),)).same(absent=(checks.result_of(f),))
        assert (
            call.run(absent=(checks.result_of(f), *checks.instead_of(f)))[0] == 1
        )  # KF_ERROR_NULL_POINTER


ELEMENTWISE = [f for f in FUNCTIONS if f["form"] == "flat" and f["permutable"]]


@pytest.mark.parametrize("f", ELEMENTWISE, ids=[f["name"] for f in ELEMENTWISE])
def test_elements_in_any_order(ops, ctx, launchers, f):
    rng = np.random.default_rng(len(f["name"]))
    call = Call(launchers, f, ops, ctx)
    for _ in range(3):
        call.same({n: apart(call.arrays[n], rng) for n in call.arrays if rng.random() < 0.7})
    call.same({n: apart(call.arrays[n], rng) for n in call.arrays}, way="plan")


def test_more_elements_than_a_block(ops, ctx):
    """Broadcast in both directions, in place, over several blocks: as NumPy adds."""
    rng = np.random.default_rng(0)
    f = next(
        f
        for f in FUNCTIONS
        if f["op"] == "add_{act}"
        and f["dtypes"] == ["f32"]
        and f["activation"] == "none"
        and not f["bwd"]
    )
    for a_shape, b_shape in [
        ((70, 1, 33), (5, 33)),
        ((1, 5, 33), (70, 5, 1)),
        ((), (70, 50)),
        ((33, 70), (33, 70)),
    ]:
        a, b = (rng.standard_normal(s).astype(np.float32) for s in (a_shape, b_shape))
        out = (
            np.zeros(np.broadcast_shapes(a_shape, b_shape), np.float32).T.copy().T
        )  # column by column
        handles = {
            n: ops.over(ctx, x, runtime_api.F32) for n, x in (("a", a), ("b", b), ("out", out))
        }
        assert ops.call(ctx, f, handles, 0, {}) == 0, ops.detail
        assert np.array_equal(out, a + b)
        wanted = out + b
        handles["a"], kept = handles["out"], handles["a"]
        assert ops.call(ctx, f, handles, 0, {}) == 0, ops.detail
        assert np.array_equal(out, wanted)
        ops.destroy(*(("tensor", h) for h in (kept, handles["b"], handles["out"])))


ROWS = [
    f for f in FUNCTIONS if any(a.get("strides") for a in f["arguments"]) and f["form"] != "axis"
]


@pytest.mark.parametrize("f", ROWS, ids=[f["name"] for f in ROWS])
def test_rows_apart(ops, ctx, launchers, f):
    """Every tensor of rows with something behind each of them."""
    call = Call(launchers, f, ops, ctx)
    of = runtime_ops.extents(f)  # a group's channels lie side by side
    side = (
        len(of["inner"]) + (len(of["channels"]) if f["form"] == "groups" else 0)
        if "inner" in of
        else 1
    )
    moved = {}
    for name, a in call.tensors():
        if a.get("strides"):
            array = call.arrays[name]
            room = np.zeros(
                (*array.shape[:-side], int(np.prod(array.shape[-side:])) + 3), array.dtype
            )
            view = np.lib.stride_tricks.as_strided(
                room,
                array.shape,
                (*room.strides[:-1], *np.array(array[(0,) * (array.ndim - side)]).strides),
            )
            view[...] = array
            moved[name] = view
    assert moved
    call.same(moved)


BY_BATCH = [
    f for f in FUNCTIONS if f["form"] != "flat" and FUNCTION_OF[f["op"], f["bwd"]].batch() >= 0
]


@pytest.mark.parametrize("f", BY_BATCH, ids=[f["name"] for f in BY_BATCH])
def test_batches_in_any_order(ops, ctx, launchers, f):
    """What is computed for each index of a batch, of tensors whose elements lie apart: some indices at a time."""
    rng = np.random.default_rng(len(f["name"]))
    call = Call(launchers, f, ops, ctx)
    for way in ("function", "plan"):
        call.same(
            {
                n: apart(call.arrays[n], rng)
                for n in call.arrays
                if way == "plan" or rng.random() < 0.7
            },
            way=way,
        )


def test_more_rows_than_a_block(ops, ctx):
    """Rows of a transposed matrix, in several blocks, the last one smaller; and in place."""
    rng = np.random.default_rng(0)
    for rows, cols in ((157, 40), (3, 5000)):
        x = rng.standard_normal((cols, rows)).astype(np.float32).T
        wanted = np.exp(x - x.max(1, keepdims=True))
        wanted /= wanted.sum(1, keepdims=True)
        handles = {n: ops.over(ctx, x, 0) for n in ("x", "out")}
        assert ops.call(ctx, of("softmax"), handles, 0, {}) == 0, ops.detail
        assert np.allclose(x, wanted, atol=1e-6)
        ops.destroy(*(("tensor", h) for h in handles.values()))


def test_in_place_of_what_all_blocks_read(ops, ctx):
    """A result in the place of the table whose rows it is made of, both transposed: a block would read what another has written."""
    table, index = np.arange(8000, dtype=np.float32).reshape(40, 200).T, np.arange(200)[::-1].copy()
    handles = over(ops, ctx, weight=table, out=table) | {
        "index": ops.over(ctx, index, runtime_api.I64)
    }
    code = ops.call(ctx, of("embedding"), handles, 0, {"padding_idx": -1, "scale": 1.0})
    assert ops.fails(code, "ERROR_OVERLAP", "kf_fused_embedding: out at", "overlaps weight at"), (
        table[:3, :3]
    )
    ops.destroy(*(("tensor", h) for h in handles.values()))


def test_what_takes_a_copy(ops, ctx, launchers):
    """A sum over rows that lie in no launcher's way, a mask by an element's number, and one row of millions."""
    for f, name in (
        (of("layer_norm_{act}", bwd=True), "x"),
        (of("layer_norm_{act}", bwd=True), "dx"),
        (of("{act}_dropout", activation="gelu"), "x"),
    ):
        call = Call(launchers, f, ops, ctx)
        array = np.ascontiguousarray(call.arrays[name].T).T
        code, _ = call.run({name: array})
        shape = ", ".join(map(str, array.shape))
        assert ops.fails(
            code,
            "ERROR_UNSUPPORTED",
            f": {name} is [{shape}] with strides",
            "kf_tensor_copy makes one",
        )
    x = np.zeros((2**20 + 1, 2), np.float32)[:, 0]
    handles = {n: ops.over(ctx, x, 0) for n in ("x", "out")}
    assert ops.fails(
        ops.call(ctx, of("softmax"), handles, 0, {}),
        "ERROR_UNSUPPORTED",
        "x is [1048577] with strides [2], which takes a copy",
    )
    ops.destroy(*(("tensor", h) for h in handles.values()))


def test_one_number_says_how_they_lie(ops, ctx):
    """Rows that are the same everywhere, rows of one element apart, an axis behind which there is nothing."""
    x = np.random.default_rng(3).standard_normal((2, 3, 5)).astype(np.float32)
    out = np.zeros((2, 3, 5), np.float32)
    one = ops.over(ctx, np.ascontiguousarray(x[:1, :1]), 0)
    wide, result = (
        ops.tensor_broadcast_to(one, (ctypes.c_int64 * 3)(2, 3, 5), 3),
        ops.over(ctx, out, 0),
    )
    assert ops.call(ctx, of("softmax"), {"x": wide, "out": result}, 0, {}) == 0, ops.detail
    assert (out == out[0, 0]).all() and abs(out.sum() - 6) < 1e-5
    column = x[..., 2:3]  # rows of one element
    apart, results = ops.over(ctx, column, 0), ops.create(ctx, (2, 3, 1))
    assert ops.call(ctx, of("softmax"), {"x": apart, "out": results}, 0, {}) == 0, ops.detail
    assert (ops.array(results) == 1).all()
    sums = ops.create(ctx, (2, 3))
    rows = ops.over(ctx, x[..., :4], 0)
    assert ops.call(ctx, of("sum"), {"x": rows, "out": sums}, 0, {}, dim=-1) == 0, ops.detail
    assert np.allclose(ops.array(sums), x[..., :4].sum(-1), atol=1e-6)
    ops.destroy(*(("tensor", t) for t in (one, wide, result, apart, results, sums, rows)))


def test_wrong_calls(ops, ctx):
    f = of("add_{act}")
    x, y, z, half = (
        ops.create(ctx, s, d) for s, d in (((2, 3), 0), ((2, 4), 0), ((2, 3), 0), ((2, 3), 2))
    )
    other = ops.context()
    foreign = ops.create(other, (2, 3))
    name = "kf_fused_add_activation: "
    for a, b, out, act, code, words in [
        (None, x, z, 0, "ERROR_NULL_POINTER", [name + "a is NULL, expected a tensor"]),
        (x, y, z, 0, "ERROR_SHAPE", [name + "b is [2, 4]", "[2, 3]"]),
        (x, x, y, 0, "ERROR_SHAPE", [name + "out is [2, 4], expected [2, 3]"]),
        (x, half, z, 0, "ERROR_DTYPE", [name + "b is bf16, expected f32 beside a of f32"]),
        (
            x,
            x,
            z,
            999,
            "ERROR_UNSUPPORTED",
            [name + "activation is 999", "kfgen runtime --activations"],
        ),
        (foreign, x, z, 0, "ERROR_DEVICE", [name + "a is of another context"]),
    ]:
        assert ops.fails(ops.call(ctx, f, {"a": a, "b": b, "out": out}, act, {}), code, *words)
    assert ops.fails(
        ops.call(None, f, {"a": x, "b": x, "out": z}, 0, {}),
        "ERROR_NULL_POINTER",
        name + "ctx is NULL",
    )
    bytes_ = ops.create(ctx, (2, 3), runtime_api.U8)
    assert ops.fails(
        ops.call(ctx, f, {"a": bytes_, "b": bytes_, "out": bytes_}, 0, {}),
        "ERROR_DTYPE",
        "a has u8",
        "kfgen runtime --dtypes",
    )
    wide = ops.tensor_broadcast_to(x, (ctypes.c_int64 * 3)(4, 2, 3), 3)
    assert ops.fails(
        ops.call(ctx, f, {"a": wide, "b": wide, "out": wide}, 0, {}),
        "ERROR_OVERLAP",
        name + "out is [4, 2, 3]",
        "lie apart",
    )
    line = ops.create(ctx, (8,))
    parts = [ops.tensor_slice(line, 0, i, i + 4, 1) for i in (0, 1)]
    sparse = [ops.tensor_slice(line, 0, i, i + 6, 2) for i in (0, 1)]
    assert ops.fails(
        ops.call(ctx, f, {"a": parts[0], "b": parts[0], "out": parts[1]}, 0, {}),
        "ERROR_OVERLAP",
        "out",
    )
    assert ops.fails(
        ops.call(ctx, f, {"a": sparse[0], "b": sparse[0], "out": sparse[1]}, 0, {}),
        "ERROR_OVERLAP",
        name + "out at",
        "overlaps a",
    )
    ops.destroy(
        *(("tensor", t) for t in (x, y, z, half, foreign, bytes_, wide, line, *parts, *sparse)),
        ("context", other),
    )


def test_wrong_axes(ops, ctx):
    f = of("sum")
    x, out, empty, nothing = (
        ops.create(ctx, (2, 3)),
        ops.create(ctx, (2,)),
        ops.create(ctx, (2, 0)),
        ops.create(ctx, (2,)),
    )
    for dim in (2, -3):
        code = ops.call(ctx, f, {"x": x, "out": out}, 0, {}, dim=dim)
        assert ops.fails(
            code, "ERROR_INVALID_VALUE", f"kf_fused_sum: dim is {dim}, expected -2 to 1"
        )
    assert ops.fails(
        ops.call(ctx, f, {"x": x, "out": out}, 0, {}, dim=0),
        "ERROR_SHAPE",
        "out is [2], expected [3]",
    )
    assert (
        ops.call(ctx, f, {"x": empty, "out": nothing}, 0, {}, dim=-1) == 0
        and (ops.array(nothing) == 0).all()
    )
    assert ops.fails(
        ops.call(ctx, of("amax"), {"x": empty, "out": nothing}, 0, {}, dim=1),
        "ERROR_INVALID_SIZE",
        "dim is 1 of [2, 0]",
    )
    scalar = ops.create(ctx, ())
    assert ops.fails(
        ops.call(ctx, f, {"x": scalar, "out": out}, 0, {}, dim=-1),
        "ERROR_SHAPE",
        "x is [], expected 1 dimensions or more",
    )
    ops.destroy(*(("tensor", t) for t in (x, out, empty, nothing, scalar)))


def over(ops, ctx, **arrays):
    return {name: ops.over(ctx, x, runtime_api.F32) for name, x in arrays.items()}


def test_rows_and_batches_of_products(ops, ctx):
    """A weight alone is for all rows, of any number of dimensions; one of three dimensions has a batch; one for all matrices is no copy."""
    rng = np.random.default_rng(5)
    for x_shape, weight_shape in (
        ((4,), (6, 4)),
        ((5, 4), (6, 4)),
        ((2, 3, 5, 4), (6, 4)),
        ((2, 3, 4), (2, 6, 4)),
        ((2, 4), (2, 6, 4)),
        ((2, 1, 2, 1, 2, 1, 3, 4), (6, 4)),
        ((2, 3, 1, 2, 5, 4), (2, 3, 1, 6, 4)),
    ):
        x, weight = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, weight_shape))
        batch, rows = x_shape[: len(weight_shape) - 2], x_shape[len(weight_shape) - 2 : -1]
        out = np.zeros((*batch, *rows, 6), np.float32)
        handles = over(ops, ctx, x=x, weight=weight, out=out) | {"bias": None, "pre": None}
        assert ops.call(ctx, of("linear_{act}"), handles, 0, {}) == 0, ops.detail
        wanted = np.einsum(
            "b...i,boi->b...o", x.reshape(-1, *rows, 4), weight.reshape(-1, 6, 4)
        ).reshape(out.shape)
        assert np.allclose(out, wanted, atol=1e-5)
        ops.destroy(*(("tensor", h) for h in handles.values() if h))
    x, weight, out = (
        np.zeros(s, np.float32) for s in ((3, 64, 128), (200, 130), (3, 64, 200))
    )  # too large to go by way of dense memory
    x[...], weight[...] = rng.standard_normal(x.shape), rng.standard_normal(weight.shape)
    handles = over(ops, ctx, x=x, weight=weight[:, :128], out=out) | {"bias": None, "pre": None}
    one, handles["weight"] = (
        handles["weight"],
        ops.tensor_broadcast_to(handles["weight"], (ctypes.c_int64 * 3)(3, 200, 128), 3),
    )
    assert ops.call(ctx, of("linear_{act}"), handles, 0, {}) == 0, ops.detail
    assert np.allclose(out, x @ weight[:, :128].T, atol=1e-3)
    columns = np.ascontiguousarray(weight[:, :128].T)
    turned = over(ops, ctx, x=x[0], weight=columns.T, out=out[0])
    assert ops.fails(
        ops.call(ctx, of("linear_{act}"), {**handles, **turned}, 0, {}),
        "ERROR_UNSUPPORTED",
        "weight is [200, 128] with strides [1, 200], which takes a copy",
    )
    ops.destroy(*(("tensor", h) for h in (one, *handles.values(), *turned.values()) if h))


def test_products_that_are_added(ops, ctx):
    """beta, of dense results and of those that go by way of dense memory, which begins with what is there."""
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4, 5), (3, 4, 6)))
    for make in (lambda: np.ones((3, 5, 6), np.float32), lambda: np.ones((6, 5, 3), np.float32).T):
        for beta in (0.0, 2.0):
            out = make() if beta else make() * np.float32(np.nan)
            handles = over(ops, ctx, a=a, b=b, out=out)
            assert ops.call(ctx, of("matmul_tn"), handles, 0, {"alpha": 0.5, "beta": beta}) == 0, (
                ops.detail
            )
            assert np.allclose(out, 0.5 * a.transpose(0, 2, 1) @ b + beta, atol=1e-5)
            ops.destroy(*(("tensor", h) for h in handles.values()))


def test_sums_of_nothing_lie_where_the_result_does(ops, ctx):
    """Over a dimension without elements: a result that lies in no launcher's way has its own elements, and what lies between them stays."""
    for f, shapes, scalars, axis in (
        (of("matmul_tn"), {"a": (0, 3), "b": (0, 4)}, {"alpha": 1.0, "beta": 0.0}, None),
        (of("sum"), {"x": (3, 0, 4)}, {}, 1),
    ):
        room = np.full((3, 8), 7, np.float32)
        handles = over(ops, ctx, out=room[:, ::2]) | {
            n: ops.create(ctx, s) for n, s in shapes.items()
        }
        assert ops.call(ctx, f, handles, 0, scalars, dim=axis) == 0, ops.detail
        assert not room[:, ::2].any() and (room[:, 1::2] == 7).all(), room
        ops.destroy(*(("tensor", h) for h in handles.values()))


def test_more_elements_than_a_tensor_has(ops, ctx):
    """What small tensors broadcast to, or are factors of: no overflow on the way to the message."""

    def large(*shape):
        handles.append(
            ops.tensor_broadcast_to(one, (ctypes.c_int64 * len(shape))(*shape), len(shape))
        )
        return handles[-1]

    one = ops.create(ctx, ())
    handles = [one, ops.create(ctx, (3, 4)), ops.create(ctx, (3, 4, 4))]
    column, row, small, batch = large(2**40, 1), large(1, 2**40), *handles[1:3]
    wrong = ops.call(ctx, of("add_{act}"), {"a": column, "b": row, "out": small}, 0, {})
    assert ops.fails(wrong, "ERROR_SHAPE", f"out is [3, 4], expected [{2**40}, {2**40}]")
    gradients = {"a": column, "b": row, "out": None, "dout": one, "da": None, "db": None}
    wrong = ops.call(ctx, of("add_{act}", bwd=True), gradients, 0, {})
    assert ops.fails(
        wrong,
        "ERROR_INVALID_SIZE",
        f"kf_fused_add_activation_bwd: dout makes [{2**40}, {2**40}] of all, expected at most 2^58",
    )
    factors = {"a": large(2**20, 2**18, 2**20), "b": large(2**20, 2**18, 2**20), "out": batch}
    wrong = ops.call(ctx, of("matmul_tn"), factors, 0, {"alpha": 1.0, "beta": 0.0})
    assert ops.fails(
        wrong, "ERROR_SHAPE", f"out is [3, 4, 4], expected [{2**20}, {2**20}, {2**20}]"
    )
    ops.destroy(*(("tensor", t) for t in handles))


def test_two_weights_in_one(ops, ctx):
    """Twice as many columns, which must be an even number."""
    rng = np.random.default_rng(7)
    for x_shape, weight_shape in (((5, 4), (6, 4)), ((2, 3, 5, 4), (6, 4)), ((2, 5, 4), (2, 6, 4))):
        x, weight, bias = (
            rng.standard_normal(s).astype(np.float32)
            for s in (x_shape, weight_shape, weight_shape[:-1])
        )
        out, pre = (np.zeros((*x_shape[:-1], cols), np.float32) for cols in (3, 6))
        handles = over(ops, ctx, x=x, weight=weight, bias=bias, out=out, pre=pre)
        assert ops.call(ctx, of("linear_{act}_glu"), handles, 0, {}) == 0, ops.detail
        more = bias if len(weight_shape) == 2 else bias[:, None]
        wanted = x @ np.swapaxes(weight, -1, -2) + more
        assert np.allclose(pre, wanted, atol=1e-5) and np.allclose(
            out, wanted[..., :3] * wanted[..., 3:], atol=1e-5
        )
        ops.destroy(*(("tensor", h) for h in handles.values()))
    made = {s: ops.create(ctx, s) for s in ((2, 3), (5, 3), (6, 3), (2, 2), (2, 5))}
    for weight, pre, words in (
        ((5, 3), None, "weight is [5, 3], expected an even dimension 0: two tensors in one"),
        ((6, 3), (2, 5), "out is [2, 2], expected [2, 3]"),
    ):
        handles = {
            "x": made[2, 3],
            "weight": made[weight],
            "bias": None,
            "out": made[2, 2],
            "pre": pre and made[pre],
        }
        assert ops.fails(
            ops.call(ctx, of("linear_{act}_glu"), handles, 0, {}),
            "ERROR_SHAPE",
            "kf_fused_linear_activation_glu: " + words,
        )
    ops.destroy(*(("tensor", t) for t in made.values()))


def test_wrong_products(ops, ctx):
    name = "kf_fused_linear_activation: "
    made = {
        s: ops.create(ctx, s)
        for s in ((2, 3), (5, 3), (5, 4), (2, 5), (2, 6), (3,), (2, 5, 3), (5,))
    }
    for x, weight, bias, out, words in (
        ((2, 3), (5, 4), None, (2, 5), "weight is [5, 4], expected [5, 3]"),
        ((2, 3), (3,), None, (2, 5), "weight is [3], expected 2 dimensions or more"),
        ((3,), (2, 5, 3), None, (5,), "x is [3], expected 2 dimensions or more"),
        ((2, 3), (5, 3), None, (2, 6), "out is [2, 6], expected [2, 5]"),
        ((2, 3), (5, 3), (3,), (2, 5), "bias is [3], expected [5]"),
    ):
        handles = {
            "x": made[x],
            "weight": made[weight],
            "bias": bias and made[bias],
            "out": made[out],
            "pre": None,
        }
        assert ops.fails(
            ops.call(ctx, of("linear_{act}"), handles, 0, {}), "ERROR_SHAPE", name + words
        )
    handles = {"x": None, "weight": made[5, 3], "bias": None, "out": made[2, 5], "pre": None}
    assert ops.fails(
        ops.call(ctx, of("linear_{act}"), handles, 0, {}),
        "ERROR_NULL_POINTER",
        name + "x is NULL, expected a tensor",
    )
    handles = {"a": made[2, 5, 3], "b": made[2, 3], "out": made[5, 3]}
    code = ops.call(ctx, of("matmul_tn"), handles, 0, {"alpha": 1.0, "beta": 0.0})
    assert ops.fails(code, "ERROR_SHAPE", "a is [2, 5, 3], expected 2 dimensions")
    ops.destroy(*(("tensor", t) for t in made.values()))


def test_every_function_has_one():
    """Of the whole manifest: a name for each op and direction, and no name twice."""
    from kfgen import runtime

    everything = kflib.manifest()
    made = runtime.functions(everything)
    names = [n for f in made for n in (f.name, f.plain) if n]
    names += [name for name, _, _ in runtime.aliases(everything, made)]
    assert len(names) - len({f.name for f in made if f.name == f.plain}) == len(set(names))
    covered = {(f.op, f.bwd, m["activation"], tuple(m["dtypes"])) for f in made for m in f.members}
    assert covered == {
        (f["op"], f["bwd"], f["activation"], tuple(f["dtypes"]))
        for f in everything["functions"]
        if "tf32" not in f["dtypes"]
    }
    assert {
        "kf_fused_elementwise_add_activation",
        "kf_fused_elementwise_mul",
        "kf_fused_layer_norm",
    } <= set(names)


def test_all_combinations_of_absent_gradients(ops, ctx, launchers):
    call = Call(launchers, of("layer_norm_{act}", bwd=True), ops, ctx)
    outputs = list(call.wanted)
    for absent in itertools.chain.from_iterable(
        itertools.combinations(outputs, n) for n in range(len(outputs) + 1)
    ):
        call.same(absent=absent)
