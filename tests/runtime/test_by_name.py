# SPDX-License-Identifier: Apache-2.0
"""Functions by name, and plans: names, infos and errors. test_ops.py and test_emulated.py check
that they compute the same as their launchers.
"""

import ctypes

import numpy as np
import pytest
import runtime_ops
from runtime_calls import FUNCTIONS, of


def test_every_function(ops):
    """The list has every function, lookup finds each by name, and its info agrees with the
    manifest.
    """
    listed = [ops.info(ops.op_at(i)).launcher.decode() for i in range(ops.op_count())]
    assert sorted(listed) == sorted(f["name"] for f in FUNCTIONS)
    for f in FUNCTIONS:
        info = ops.info(ops.lookup(f))
        tensors = [a for a in f["arguments"] if "use" in a]
        assert (info.launcher.decode(), info.activation.decode(), info.activation_id) == (
            f["name"],
            f["activation"],
            ops.ids[f["activation"]],
        )
        assert (info.on_cpu, info.on_cuda, info.takes_dropout) == (1, 0, f["dropout"])
        assert [(t.name.decode(), t.dtype, t.is_output) for t in info.tensors if t.name] == [
            (a["name"], runtime_ops.DTYPES[a["dtype"]], a["role"] != "in") for a in tensors
        ], f["name"]
        for field, role in (
            ("integers", "integer"),
            ("scalars", "scalar"),
            ("act_scalars", "act_scalar"),
        ):
            assert [n.decode() for n in getattr(info, field) if n] == [
                a["name"] for a in f["arguments"] if a["role"] == role
            ], f["name"]


def test_other_names(ops):
    f = of("add_{act}")
    assert (
        ops.lookup(f, name="add")
        == ops.lookup(f, name="add_activation")
        == ops.lookup(f, name="elementwise_add")
        != 0
    )
    info = ops.info(ops.lookup(of("{act}", activation="leaky_relu")))
    assert info.act_scalars[0] == b"negative_slope" and info.act_defaults[0] == 0.01


def test_wrong_names(ops):
    one = (ctypes.c_int * 2)(0, 3)
    at = ctypes.addressof(one)
    for call, code, word in [
        ((b"subtract", 0, at, 1, 0), "ERROR_UNSUPPORTED", "kf_op_lookup: name is subtract"),
        ((None, 0, at, 1, 0), "ERROR_NULL_POINTER", "name is NULL"),
        (
            (b"add", 999, at, 1, 0),
            "ERROR_UNSUPPORTED",
            "activation is 999, which add does not have, expected one of none, ",
        ),
        (
            (b"softmax", ops.ids["leaky_relu"], at, 1, 0),
            "ERROR_UNSUPPORTED",
            f"activation is leaky_relu ({ops.ids['leaky_relu']}), which softmax does not have, "
            "expected one of none (",
        ),
        ((b"add", 0, at, 2, 0), "ERROR_DTYPE", "dtypes are f32, f64, which add does not have"),
        ((b"add", 0, at, 1, 2), "ERROR_DTYPE", "dtypes are f32"),  # on a GPU
        ((b"add", 0, at, 4, 0), "ERROR_INVALID_VALUE", "dtypes are 4"),
        ((b"add", 0, None, 1, 0), "ERROR_INVALID_VALUE", "expected 1 to 3"),
    ]:
        assert ops.fails(ops.op_lookup(*call), code, word)
    for index in (-1, ops.op_count()):
        assert ops.fails(
            ops.op_at(index),
            "ERROR_INVALID_VALUE",
            f"kf_op_at: index is {index}, expected 0 to {ops.op_count() - 1}",
        )
    assert ops.fails(ops.op_get_info(None, None), "ERROR_NULL_POINTER", "op is NULL")
    assert ops.fails(ops.op_get_info(ops.op_at(0), None), "ERROR_NULL_POINTER", "info is NULL")


@pytest.fixture
def sum_of(ops, ctx):
    """Makes a plan of row sums whose tensors are destroyed before it runs, and memory for it."""
    f, x, out = of("sum"), np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros(3, np.float32)
    handles = {"x": ops.over(ctx, x, 0), "out": ops.over(ctx, out, 0)}
    arguments = ops.arguments(f, handles, {}, (0, 0), 0.0, -1, None)
    plan = ops.plan_create(ctx, ops.lookup(f), ctypes.addressof(arguments))
    assert plan, ops.detail
    ops.destroy(*(("tensor", h) for h in handles.values()))
    yield plan, x, out
    ops.plan_destroy(plan)


def pointers(*arrays):
    return (ctypes.c_void_p * len(arrays))(*(a if a is None else a.ctypes.data for a in arrays))


def test_a_plan_at_other_addresses(ops, ctx, sum_of):
    plan, x, _ = sum_of
    for factor in (1, 2, 3):
        values, out = x * factor, np.zeros(3, np.float32)
        assert ops.plan_run(plan, pointers(values, out), None) == 0, ops.detail
        assert np.array_equal(out, values.sum(1))


def test_wrong_plans(ops, ctx, sum_of):
    plan, x, out = sum_of
    f, op = of("sum"), ops.lookup(of("sum"))
    other = ops.context()
    stream, dead = ops.stream_create(other, None), ops.event_create(ctx)
    ops.destroy(("event", dead))
    given = pointers(x, out)
    for call, code, words in [
        ((None, given, None), "ERROR_NULL_POINTER", "kf_plan_run: plan is NULL, expected a plan"),
        ((dead, given, None), "ERROR_HANDLE", "plan is a destroyed handle, expected a plan"),
        ((ctx, given, None), "ERROR_HANDLE", "plan is a context, expected a plan"),
        ((plan, None, None), "ERROR_NULL_POINTER", "pointers is NULL, expected 2"),
        ((plan, given, stream), "ERROR_DEVICE", "stream is of another context"),
        ((plan, pointers(x, None), None), "ERROR_NULL_POINTER", "kf_cpu_sum_f32: out is NULL"),
        ((plan, pointers(None, out), None), "ERROR_NULL_POINTER", "kf_cpu_sum_f32: x is NULL"),
        ((plan, pointers(x, x), None), "ERROR_OVERLAP", "kf_cpu_sum_f32"),
    ]:
        assert ops.fails(ops.plan_run(*call), code, words)
    a, b = ops.create(ctx, (3, 4)), ops.create(ctx, (5,))
    arguments = ops.arguments(f, {"x": a, "out": b}, {}, (0, 0), 0.0, -1, None)
    at = ctypes.addressof(arguments)
    assert ops.fails(
        ops.plan_create(ctx, op, at), "ERROR_SHAPE", "kf_fused_sum: out is [5], expected [3]"
    )
    assert ops.fails(
        ops.plan_create(ctx, None, at), "ERROR_NULL_POINTER", "kf_plan_create: op is NULL"
    )
    assert ops.fails(
        ops.plan_create(ctx, op, None),
        "ERROR_NULL_POINTER",
        "kf_plan_create: arguments is NULL, expected those of kf_sum_f32",
    )
    assert ops.fails(
        ops.op_call(ctx, ops.lookup(of("sum", "bf16")), at, None),
        "ERROR_DTYPE",
        "x has f32, which is kf_sum_f32",
        "for kf_sum_bf16",
    )
    scaled = ops.lookup(of("layer_norm_{act}"))
    arguments.scalars = None
    assert ops.fails(
        ops.op_call(ctx, scaled, at, None),
        "ERROR_NULL_POINTER",
        "kf_op_call: scalars is NULL, expected those of kf_layer_norm_f32",
    )
    assert ops.plan_destroy(None) == 0
    ops.destroy(("stream", stream), ("tensor", a), ("tensor", b), ("context", other))


def test_a_plan_that_takes_blocks(ops, ctx):
    """A plan in blocks checks overlap at each run's addresses; the same view is in place."""
    f, x = of("add_{act}"), np.arange(12, dtype=np.float32)
    room = np.zeros(40, np.float32)
    column = room[:24:2]
    handles = {"a": ops.over(ctx, x, 0), "b": ops.over(ctx, x, 0), "out": ops.over(ctx, column, 0)}
    arguments = ops.arguments(f, handles, {}, (0, 0), 0.0, None, None)
    plan = ops.plan_create(ctx, ops.lookup(f), ctypes.addressof(arguments))
    assert ops.plan_run(plan, pointers(x, x, room), None) == 0 and np.array_equal(column, 2 * x)
    assert ops.plan_run(plan, pointers(x, x, room[3:]), None) == 0 and np.array_equal(
        room[3:27:2], 2 * x
    )
    assert ops.fails(
        ops.plan_run(plan, pointers(x, room[1:], room), None),
        "ERROR_OVERLAP",
        "kf_fused_add_activation: out at",
    )
    before = room.copy()
    assert ops.fails(
        ops.plan_run(plan, pointers(x, None, room), None),
        "ERROR_NULL_POINTER",
        "kf_cpu_add_f32: b is NULL",
    )
    assert np.array_equal(room, before)
    odd = (ctypes.c_void_p * 3)(x.ctypes.data, x.ctypes.data, room.ctypes.data + 2)
    assert ops.fails(
        ops.plan_run(plan, odd, None),
        "ERROR_MISALIGNED",
        "kf_plan_run: out is 0x",
        "expected a multiple of 4",
    )
    assert ops.pool_set_cap(ctx, 1) == 0
    code = ops.plan_run(plan, pointers(x, x, room), None)
    assert ops.fails(
        code, "ERROR_OUT_OF_MEMORY", "kf_fused_add_activation: bytes is", "the pool's cap of 1"
    )
    assert ops.pool_set_cap(ctx, 0) == 0 and np.array_equal(room, before)
    ops.destroy(("plan", plan), *(("tensor", h) for h in handles.values()))


def test_a_plan_outlives_its_context(ops):
    """Holds for plans with and without memory from the pool."""
    f, x, room = of("add_{act}"), np.arange(12, dtype=np.float32), np.zeros(24, np.float32)
    for out in (room[::2], room[:12]):
        ctx = ops.context()
        handles = {"a": ops.over(ctx, x, 0), "b": ops.over(ctx, x, 0), "out": ops.over(ctx, out, 0)}
        arguments = ops.arguments(f, handles, {}, (0, 0), 0.0, None, None)
        plan = ops.plan_create(ctx, ops.lookup(f), ctypes.addressof(arguments))
        ops.destroy(("context", ctx), *(("tensor", h) for h in handles.values()))
        assert ops.plan_run(plan, pointers(x, x, room), None) == 0, ops.detail
        assert np.array_equal(out, 2 * x)
        ops.destroy(("plan", plan))


def test_sizes_that_several_tensors_say(ops, ctx):
    """Errors of embeddings and rope name the missing tensor, or the one that does not fit the
    others.
    """
    f = of("embedding")
    table, index, out = (
        ops.create(ctx, shape, dtype) for shape, dtype in [((5, 3), 0), ((2, 2), 5), ((2, 2, 3), 0)]
    )
    wrong, column = ops.create(ctx, (2, 3, 3)), ops.create(ctx, (5,))
    for tensors, code, words in [
        ({}, "SUCCESS", ()),
        ({"weight": None}, "ERROR_NULL_POINTER", ("kf_fused_embedding: weight is NULL",)),
        ({"out": wrong}, "ERROR_SHAPE", ("out is [2, 3, 3], expected [2, 2, 3]",)),
        ({"weight": column}, "ERROR_SHAPE", ("weight is [5], expected 2 dimensions",)),
        ({"out": column}, "ERROR_SHAPE", ("out is [5], expected [2, 2, 3]",)),
    ]:
        found = ops.call(
            ctx,
            f,
            {"weight": table, "index": index, "out": out} | tensors,
            0,
            {"padding_idx": -1, "scale": 1.0},
        )
        assert found == 0 if code == "SUCCESS" else ops.fails(found, code, *words), ops.detail
    ops.destroy(*(("tensor", t) for t in (table, index, out, wrong, column)))
