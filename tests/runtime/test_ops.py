# SPDX-License-Identifier: Apache-2.0
"""Functions on tensors: every function of the manifest gives its launcher's bits, for many
dimensions, strided rows and strided elements; errors name the argument.
"""

import ctypes
import itertools

import checks
import kflib
import numpy as np
import pytest
import runtime_api
import runtime_ops
from runtime_calls import FUNCTION_OF, FUNCTIONS, Call, of, strided


@pytest.mark.parametrize("f", FUNCTIONS, ids=[f["name"] for f in FUNCTIONS])
def test_the_launchers_bits(ops, ctx, launchers, f):
    """Calls each function directly, by its name, and through a plan."""
    call = Call(launchers, f, ops, ctx)
    for via in runtime_ops.ENTRY_POINTS:
        call.same(via=via)
    unread = [n for n, a in call.tensors() if a["unread"]]
    if unread:  # a tensor that is not read may be absent if another one gives the shape
        function, _ = ops.function(f)
        call.same(absent=[n for n in unread if n != function.shaped_by["name"]])
    # computes the gradient from the activation's result, and from the inputs
    if checks.result_of(f):
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
        call.same({n: strided(call.arrays[n], rng) for n in call.arrays if rng.random() < 0.7})
    call.same({n: strided(call.arrays[n], rng) for n in call.arrays}, via="plan")


def test_more_elements_than_a_block(ops, ctx):
    """Broadcasts in both directions and in place, over several blocks: equal to NumPy."""
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
        out = np.zeros(np.broadcast_shapes(a_shape, b_shape), np.float32).T.copy().T  # column-major
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
    """Every tensor of rows has gaps after its rows."""
    call = Call(launchers, f, ops, ctx)
    of = runtime_ops.extents(f)  # the channels of a group are contiguous
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
    """Ops with a batch accept strided elements: they compute some batch indices at a time."""
    rng = np.random.default_rng(len(f["name"]))
    call = Call(launchers, f, ops, ctx)
    for via in ("function", "plan"):
        call.same(
            {
                n: strided(call.arrays[n], rng)
                for n in call.arrays
                if via == "plan" or rng.random() < 0.7
            },
            via=via,
        )


def test_more_rows_than_a_block(ops, ctx):
    """Rows of a transposed matrix, in several blocks with a smaller last one; and in place."""
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
    """The result in place of the table that it gathers from, both transposed: a block would read
    what another one wrote.
    """
    table, index = np.arange(8000, dtype=np.float32).reshape(40, 200).T, np.arange(200)[::-1].copy()
    handles = {name: ops.over(ctx, table, runtime_api.F32) for name in ("weight", "out")}
    handles["index"] = ops.over(ctx, index, runtime_api.I64)
    code = ops.call(ctx, of("embedding"), handles, 0, {"padding_idx": -1, "scale": 1.0})
    assert ops.fails(code, "ERROR_OVERLAP", "kf_fused_embedding: out at", "overlaps weight at"), (
        table[:3, :3]
    )
    ops.destroy(*(("tensor", h) for h in handles.values()))


def test_what_takes_a_copy(ops, ctx, launchers):
    """Refuses a sum over rows of any strides, a mask by element index, and one row of over a
    million elements.
    """
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
    """Broadcast rows, rows of one strided element, and an axis without inner dimensions."""
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


def test_more_elements_than_a_tensor_has(ops, ctx):
    """Small tensors that broadcast or multiply to more elements than a tensor may have: the sizes
    do not overflow before the message.
    """

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


def test_every_function_has_one():
    """Each op and direction of the manifest must have a function on tensors if its arguments allow
    one, and no name twice. TF32 products have the tensors of the f32 launcher."""
    from kfgen.interfaces import runtime

    everything = kflib.manifest()
    made = runtime.functions(everything)
    names = [n for f in made for n in (f.name, f.plain) if n]
    names += [name for name, _, _ in runtime.aliases(everything, made)]
    assert len(names) - len({f.name for f in made if f.name == f.plain}) == len(set(names))
    covered = {(f.op, f.bwd, m["activation"], tuple(m["dtypes"])) for f in made for m in f.members}
    assert covered == {
        (f["op"], f["bwd"], f["activation"], tuple(f["dtypes"]))
        for f in everything["functions"]
        if "tf32" not in f["dtypes"] and runtime_ops.takes_handles(f)
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
