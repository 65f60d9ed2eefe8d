# SPDX-License-Identifier: Apache-2.0
"""Invalid calls: each is refused with a code and a message that names function, argument, what it
got and what it expected.
"""

import ctypes
import re

import kflib
import pytest
import runtime_api
from kfgen.interfaces import runtime
from runtime_api import CUDA, F32, Memory, StreamConfig, prototypes

HANDLES = {
    "kf_context_t *": "context",
    "kf_tensor_t *": "tensor",
    "kf_stream_t *": "stream",
    "kf_event_t *": "event",
}


def handle_of(word):
    return HANDLES.get(word.removeprefix("const ").strip())


@pytest.fixture
def made(api, ctx):
    """One live object of each kind."""
    found = {
        "context": ctx,
        "tensor": api.create(ctx, (2, 3)),
        "stream": api.stream_create(ctx, None),
        "event": api.event_create(ctx),
    }
    yield found
    api.destroy(*((kind, found[kind]) for kind in ("tensor", "stream", "event")))


def arguments(made, parameters):
    """Arguments of a call whose handles are valid."""
    return [made[handle_of(p)] if handle_of(p) else None if "*" in p else 0 for p in parameters]


# This library has no ops, hence no plans: test_by_name.py.
WITH_HANDLES = [
    n
    for n, (_, parameters) in prototypes().items()
    if any(handle_of(p) for p in parameters) and n != "kf_plan_run"
]


@pytest.mark.parametrize("name", WITH_HANDLES)
def test_wrong_handles(api, ctx, made, name):
    """NULL, a destroyed handle and a handle of another kind, for each handle of every function."""
    result, parameters = prototypes()[name]
    dead = api.create(ctx, (1,))
    api.destroy(("tensor", dead))
    quiet = {None, -1} | {code for word, code in runtime_api.CODES.items() if word != "SUCCESS"}
    for i, p in enumerate(parameters):
        kind = handle_of(p)
        if not kind:
            continue
        wrong = {
            "a destroyed handle": dead,
            "a stream" if kind != "stream" else "an event": made[
                "stream" if kind != "stream" else "event"
            ],
        }
        if not (
            name.endswith("_destroy")
            or kind == "stream"
            and name not in ("kf_stream_synchronize", "kf_stream_native")
        ):
            wrong["is NULL"] = None
        for word, handle in wrong.items():
            call = arguments(made, parameters)
            call[i] = handle
            found = getattr(api, name.removeprefix("kf_"))(*call)
            assert found in quiet and (found not in (0,) or result.endswith("int")), (
                name,
                word,
                found,
            )
            assert word in api.detail and name.removeprefix("kf_").split("_")[0] in api.detail, (
                name,
                word,
                api.detail,
            )


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"ndim": 9}, "ERROR_INVALID_SIZE", ["ndim is 9, expected 0 to 8"]),
        ({"ndim": -1}, "ERROR_INVALID_SIZE", ["ndim is -1"]),
        ({"dtype": 7}, "ERROR_DTYPE", ["dtype is 7"]),
        (
            {"device_type": CUDA},
            "ERROR_DEVICE",
            ["device is 0 of type 2, expected the context's, 0 of type 1"],
        ),
        ({"device_id": 1}, "ERROR_DEVICE", ["device is 1"]),
        ({"shape": (2, -3)}, "ERROR_INVALID_SIZE", ["shape is [2, -3]"]),
        ({"shape": (2**40, 2**40)}, "ERROR_INVALID_SIZE", ["2^58"]),
        ({"strides": (-3, 1)}, "ERROR_INVALID_VALUE", ["strides is [-3, 1]"]),
        ({"strides": (2**62, 1)}, "ERROR_INVALID_SIZE", ["strides", "2^58"]),
        ({"shape": None}, "ERROR_NULL_POINTER", ["shape is NULL, expected 2 numbers"]),
    ],
)
def test_wrong_descriptions(api, ctx, change, code, words):
    d = api.describe(change.get("shape") or (2, 3), F32, change.get("strides"))
    for name, number in change.items():
        if name not in ("shape", "strides"):
            setattr(d, name, number)
    if change.get("shape", 0) is None:
        d.shape = None
    memory = Memory(4096, 0, 0)
    assert api.fails(api.tensor_create(ctx, ctypes.byref(d)), code, "kf_tensor_create: ", *words)
    assert api.fails(
        api.tensor_create_from_memory(ctx, ctypes.byref(memory), ctypes.byref(d)),
        code,
        "kf_tensor_create_from_memory: ",
        *words,
    )


def test_long_names_are_whole(api):
    """The longest function name, and the longest text about an argument."""
    long = max((f.name for f in runtime.functions(kflib.manifest())), key=len)
    text = (kflib.ROOT / "include/kf/runtime/state.h").read_text()
    assert len(long) <= int(re.search(r'"%\.(\d+)s: %\.32s %s"', text)[1])


def test_wrong_memory(api, ctx):
    d = ctypes.byref(api.describe((2, 3), F32, (4, 1)))
    for memory, code, words in [
        (Memory(None, 0, 0), "ERROR_NULL_POINTER", ["memory->data is NULL, expected 28 bytes"]),
        (
            Memory(4096, 27, 0),
            "ERROR_INVALID_SIZE",
            ["memory->size is 27, expected 28 for shape [2, 3]"],
        ),
        (Memory(4098, 28, 0), "ERROR_MISALIGNED", ["memory->data", "a multiple of 4"]),
    ]:
        assert api.fails(api.tensor_create_from_memory(ctx, ctypes.byref(memory), d), code, *words)
    assert api.fails(
        api.tensor_create_from_memory(ctx, None, d), "ERROR_NULL_POINTER", "memory is NULL"
    )
    assert api.fails(api.tensor_create(ctx, None), "ERROR_NULL_POINTER", "desc is NULL")


def test_wrong_views(api, ctx):
    t = api.create(ctx, (4, 6))
    three, pair = (ctypes.c_int64 * 3)(4, 6, 2), (ctypes.c_int64 * 2)(4, 5)
    for call, code, words in [
        (
            lambda: api.tensor_slice(t, 2, 0, 1, 1),
            "ERROR_INVALID_VALUE",
            ["dim is 2, expected 0 to 1"],
        ),
        (lambda: api.tensor_slice(t, 0, 0, 1, 0), "ERROR_INVALID_VALUE", ["step is 0"]),
        (
            lambda: api.tensor_slice(t, 1, 3, 7, 1),
            "ERROR_INVALID_VALUE",
            ["3 to 7, expected numbers from 0 to 6"],
        ),
        (lambda: api.tensor_slice(t, 1, 3, 2, 1), "ERROR_INVALID_VALUE", ["3 to 2"]),
        (
            lambda: api.tensor_transpose(t, 0, -1),
            "ERROR_INVALID_VALUE",
            ["0 and -1, expected 0 to 1"],
        ),
        (
            lambda: api.tensor_permute(t, (ctypes.c_int * 2)(1, 1), 2),
            "ERROR_INVALID_VALUE",
            ["has 1 at 1, expected each of 0 to 1 once"],
        ),
        (
            lambda: api.tensor_permute(t, (ctypes.c_int * 2)(1, 0), 1),
            "ERROR_INVALID_VALUE",
            ["count is 1, expected 2"],
        ),
        (lambda: api.tensor_permute(t, None, 2), "ERROR_NULL_POINTER", ["dims is NULL"]),
        (
            lambda: api.tensor_reshape(t, three, 3),
            "ERROR_SHAPE",
            ["[4, 6, 2]", "24 elements", "[4, 6]"],
        ),
        (lambda: api.tensor_reshape(t, None, 1), "ERROR_NULL_POINTER", ["shape is NULL"]),
        (lambda: api.tensor_reshape(t, three, 9), "ERROR_INVALID_SIZE", ["ndim is 9"]),
        (lambda: api.tensor_broadcast_to(t, pair, 2), "ERROR_SHAPE", ["[4, 6]", "[4, 5]"]),
        (lambda: api.tensor_broadcast_to(t, pair, 1), "ERROR_SHAPE", ["tensor is [4, 6]"]),
    ]:
        assert api.fails(call(), code, *words)
    api.destroy(("tensor", t))


def test_wrong_contexts(api):
    assert api.fails(
        api.context_create_abi(0, runtime_api.ABI),
        "ERROR_UNSUPPORTED",
        "kf_context_create: device is 0",
        "compiled without CUDA",
    )
    assert api.fails(
        api.context_create_abi(-2, runtime_api.ABI),
        "ERROR_INVALID_VALUE",
        "device is -2, expected -1 (the CPU)",
    )
    assert api.fails(
        api.context_create_abi(-1, 99),
        "ERROR_UNSUPPORTED",
        f"is 99 in the caller's file, expected {runtime_api.ABI}",
    )
    assert api.context_destroy(None) == 0


def test_wrong_streams_and_events(api, ctx, made):
    other = api.context()
    stream, event, answer = api.stream_create(other, None), api.event_create(ctx), ctypes.c_float()
    assert api.fails(
        api.event_record(made["event"], stream), "ERROR_DEVICE", "stream is of another context"
    )
    assert api.fails(
        api.stream_create(ctx, ctypes.byref(StreamConfig(0, 2, 0))),
        "ERROR_INVALID_VALUE",
        "flags is 2",
    )
    assert api.fails(
        api.stream_create(ctx, ctypes.byref(StreamConfig(0, 0, 3))),
        "ERROR_DEVICE",
        "device_id is 3",
    )
    assert api.fails(
        api.event_elapsed_ms(made["event"], event, ctypes.byref(answer)),
        "ERROR_INVALID_VALUE",
        "begin was not recorded",
    )
    assert api.fails(api.event_query(event, None), "ERROR_NULL_POINTER", "is_done is NULL")
    assert (
        api.event_record(event, None) == 0 and api.event_record(made["event"], made["stream"]) == 0
    )
    assert api.fails(
        api.event_elapsed_ms(event, made["event"], None), "ERROR_NULL_POINTER", "ms is NULL"
    )
    assert (
        api.event_elapsed_ms(event, made["event"], ctypes.byref(answer)) == 0
        and 0 <= answer.value < 1000
    )
    assert api.stream_wait_event(None, event) == 0 and api.event_synchronize(event) == 0
    api.destroy(("stream", stream), ("event", event), ("context", other))


def test_wrong_pools(api, ctx):
    kept = api.pool_allocate(ctx, 1000, None)
    assert kept % 256 == 0
    assert api.fails(
        api.pool_deallocate(ctx, kept + 256, None),
        "ERROR_INVALID_VALUE",
        "kf_pool_deallocate: ptr is",
        "nobody has deallocated",
    )
    assert api.pool_deallocate(ctx, kept, None) == 0
    assert api.fails(
        api.pool_deallocate(ctx, kept, None), "ERROR_INVALID_VALUE", "nobody has deallocated"
    )
    assert api.pool_set_cap(ctx, 4096) == 0
    first = api.pool_allocate(ctx, 3000, None)
    assert api.fails(
        api.pool_allocate(ctx, 2000, None),
        "ERROR_OUT_OF_MEMORY",
        "bytes is 2000, with 3072 in use of the pool's cap of 4096",
    )
    assert api.pool_deallocate(ctx, first, None) == 0 and api.pool_allocate(ctx, 0, None)
    assert api.fails(api.pool_get_stats(ctx, None), "ERROR_NULL_POINTER", "stats is NULL")
    assert api.fails(api.pool_allocate(ctx, 2**60, None), "ERROR_INVALID_SIZE", "bytes is")
    assert api.pool_set_cap(ctx, 0) == 0
    assert api.fails(
        api.pool_allocate(ctx, 2**57, None), "ERROR_OUT_OF_MEMORY", "the system has no more"
    )
