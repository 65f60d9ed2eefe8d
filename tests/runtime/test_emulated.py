# SPDX-License-Identifier: Apache-2.0
"""Functions on a GPU's tensors, and strided copies: the kernels' source on the emulation."""

import ctypes

import cases
import emulator
import kflib
import numpy as np
import pytest
import runtime_api
import runtime_ops
from kfgen.interfaces import runtime
from runtime_calls import Call, strided

MADE = runtime_ops.choose(
    ["add", "act_dropout", "bias", "layer_norm", "sum", "matmul_nt"] if cases.LEVEL == 1 else None,
    ["f32"] if cases.LEVEL == 1 else None,
    (["none", "gelu"], ["none", "gelu", "leaky_relu"], None)[cases.LEVEL - 1],
)
FUNCTIONS = [f for f in MADE["functions"] if runtime.takes_tensors(f) and not f["state"]]
IDS = [f["name"] for f in FUNCTIONS]


@pytest.fixture(scope="session")
def library(once):
    return once(
        "functions on tensors, emulated", lambda folder: runtime_ops.compile_emulated(folder, MADE)
    )


@pytest.fixture
def ops(library):
    return runtime_ops.Ops(library, MADE)


@pytest.fixture
def ctx(ops):
    found = ops.context(0)
    yield found
    assert ops.context_destroy(found) == 0


@pytest.fixture(scope="session")
def launchers():
    return emulator.build(FUNCTIONS, kflib.ROOT / "build/tests/runtime")


@pytest.mark.parametrize("f", FUNCTIONS, ids=IDS)
def test_the_launchers_bits(ops, ctx, launchers, f):
    call = Call(launchers, f, ops, ctx)
    for via in runtime_ops.ENTRY_POINTS:
        call.same(via=via)
    if f["permutable"] and f["form"] == "flat" or ops.functions[f["op"], f["bwd"]].batch() >= 0:
        rng = np.random.default_rng(len(f["name"]))
        for _ in range(2):
            call.same({n: strided(call.arrays[n], rng) for n in call.arrays if rng.random() < 0.7})


def test_a_stream(ops, ctx):
    """Tensors keep the streams that work on them: a stream is destroyed before its tensor."""
    f = next(f for f in FUNCTIONS if f["op"] == "add_{act}" and not f["bwd"])
    x = np.arange(6, dtype=np.float32)
    out = np.zeros(6, np.float32)
    handles = {"a": ops.over(ctx, x, 0), "b": ops.over(ctx, x, 0), "out": ops.over(ctx, out, 0)}
    stream = ops.stream_create(ctx, None)
    assert ops.call(ctx, f, handles, 0, {}, stream=stream) == 0, ops.detail
    ops.destroy(("stream", stream), *(("tensor", h) for h in handles.values()))
    assert np.array_equal(out, 2 * x)


def test_sums_of_nothing_lie_where_the_result_does(ops, ctx):
    """Sums over an empty dimension write the elements of a strided result, and nothing between
    them.
    """
    f = next(f for f in FUNCTIONS if f["op"] == "matmul_nt" and not f["bwd"])
    room = np.full((3, 8), 7, np.float32)
    handles = {
        "a": ops.create(ctx, (3, 0)),
        "b": ops.create(ctx, (4, 0)),
        "out": ops.over(ctx, room[:, ::2], 0),
    }
    assert ops.call(ctx, f, handles, 0, {"alpha": 1.0, "beta": 0.0}) == 0, ops.detail
    assert not room[:, ::2].any() and (room[:, 1::2] == 7).all(), room
    ops.destroy(*(("tensor", h) for h in handles.values()))


def test_the_cpu_beside_it(ops):
    """One library serves both devices and reports the devices of each function."""
    f = next(f for f in FUNCTIONS if f["op"] == "add_{act}" and not f["bwd"])
    info = ops.info(ops.lookup(f, runtime_api.CUDA))
    assert (info.launcher, info.on_cpu, info.on_cuda) == (b"kf_add_f32", 1, 1)
    cpu, x, out = ops.context(), np.arange(6, dtype=np.float32), np.zeros(6, np.float32)
    handles = {"a": ops.over(cpu, x, 0), "b": ops.over(cpu, x, 0), "out": ops.over(cpu, out, 0)}
    assert ops.call(cpu, f, handles, 0, {}) == 0 and np.array_equal(out, 2 * x)
    ops.destroy(*(("tensor", h) for h in handles.values()), ("context", cpu))


DTYPES = {
    runtime_api.U8: np.uint8,
    runtime_api.F16: np.float16,
    runtime_api.F32: np.float32,
    runtime_api.F64: np.float64,
}


def drawn(rng, shape, dtype):
    """An array of that shape with random strides: dense, permuted, stepped, or with gaps after
    rows.
    """
    x = rng.integers(0, 100, shape).astype(dtype)
    if len(shape) > 1 and rng.random() < 0.3:
        room = np.zeros((*shape[:-1], shape[-1] + int(rng.integers(1, 9))), dtype)
        room[..., : shape[-1]] = x
        return room[..., : shape[-1]]
    return x if rng.random() < 0.3 else strided(x, rng)


@pytest.mark.parametrize("seed", range(4 if cases.LEVEL == 1 else 200))
def test_copies(ops, ctx, seed):
    """Copies between any strides, broadcast too, equal NumPy's and write nothing else."""
    rng = np.random.default_rng(seed)
    for _ in range(25 if cases.LEVEL == 1 else 10):
        dtype = list(DTYPES)[rng.integers(len(DTYPES))]
        shape = tuple(int(n) for n in rng.integers(1, [70, 70, 9, 5, 3][: rng.integers(1, 6)]))
        source = drawn(rng, tuple(1 if rng.random() < 0.15 else n for n in shape), DTYPES[dtype])
        target = drawn(rng, shape, DTYPES[dtype])
        around = target
        while around.base is not None:
            around = around.base
        wanted = around.copy()
        at = (
            target.__array_interface__["data"][0] - around.__array_interface__["data"][0]
        ) // target.itemsize
        np.lib.stride_tricks.as_strided(wanted.reshape(-1)[at:], target.shape, target.strides)[
            ...
        ] = source
        to, start = ops.over(ctx, target, dtype), ops.over(ctx, source, dtype)
        wide = ops.tensor_broadcast_to(start, (ctypes.c_int64 * len(shape))(*shape), len(shape))
        assert ops.tensor_copy(to, wide, None) == 0, ops.detail
        assert np.array_equal(around, wanted), (seed, shape, source.strides, target.strides)
        ops.destroy(*(("tensor", t) for t in (to, start, wide)))


@pytest.mark.parametrize("dtype", DTYPES, ids=[str(np.dtype(t)) for t in DTYPES.values()])
def test_copies_of_long_rows(ops, ctx, dtype):
    """Long rows that span CTAs, in vectors and in single elements, with a partial last CTA; planes
    larger than a tile.
    """
    rng = np.random.default_rng(dtype)
    for shape, pitches, other in [
        ((3, 4099), (5, 3), False),
        ((2, 4112), (16, 48), False),
        ((2, 1030), (0, 9), False),
        ((150, 67), (0, 5), True),
    ]:
        room = [np.zeros((shape[0], shape[1] + more), DTYPES[dtype]) for more in pitches]
        target, source = (r[:, : shape[1]] for r in room)
        if other:
            source = np.zeros(shape[::-1], DTYPES[dtype]).T
        source[...] = rng.integers(0, 100, shape)
        wanted = room[0].copy()
        wanted[:, : shape[1]] = source
        to, start = ops.over(ctx, target, dtype), ops.over(ctx, source, dtype)
        assert ops.tensor_copy(to, start, None) == 0, ops.detail
        assert np.array_equal(room[0], wanted), shape
        ops.destroy(("tensor", to), ("tensor", start))
