# SPDX-License-Identifier: Apache-2.0
"""Views equal NumPy's: shape, strides, address, and the shapes that need a copy."""

import ctypes

import numpy as np
import pytest
import runtime_api
from runtime_api import F32, F64, U8


def numbers(values):
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def same(api, tensor, array):
    """Compares a tensor with an array. Strides of dimensions with fewer than two elements are
    ignored.
    """
    shape, strides = api.layout(tensor)
    assert shape == array.shape
    if array.size:
        assert api.tensor_data(tensor) == array.ctypes.data
        assert all(
            n == 1 or s == t // array.itemsize for n, s, t in zip(shape, strides, array.strides)
        ), (shape, strides, array.strides)
        assert api.tensor_is_dense(tensor) == array.flags.c_contiguous
    assert api.tensor_count(tensor) == array.size
    return True


def reshaped(array, shape):
    """NumPy's view of this shape; None if NumPy would copy."""
    try:
        return np.reshape(array, shape, copy=False)
    except ValueError:
        return None


def shape_of(rng, count):
    """A random shape of `count` elements."""
    found = []
    while count > 1 and len(found) < 5:
        divisors = [d for d in range(1, count + 1) if count % d == 0]
        found.append(int(rng.choice(divisors)))
        count //= found[-1]
    found.append(count)
    for _ in range(rng.integers(3)):
        found.insert(rng.integers(len(found) + 1), 1)
    return tuple(found)


def step(api, rng, tensor, array):
    """Returns a random view of a view: (tensor, array). tensor is None if NumPy would copy."""
    what, n = rng.integers(5), array.ndim
    if what == 0 and n:
        dim = int(rng.integers(n))
        start, stop = sorted(int(i) for i in rng.integers(0, array.shape[dim] + 1, 2))
        by = int(rng.integers(1, 4))
        return api.tensor_slice(tensor, dim, start, stop, by), array[
            (slice(None),) * dim + (slice(start, stop, by),)
        ]
    if what == 1:
        dims = [int(d) for d in rng.permutation(n)]
        return api.tensor_permute(tensor, (ctypes.c_int * max(n, 1))(*dims), n), array.transpose(
            dims
        )
    if what == 2 and n:
        a, b = (int(d) for d in rng.integers(0, n, 2))
        return api.tensor_transpose(tensor, a, b), array.swapaxes(a, b)
    if what == 3 and n < 6:
        shape = tuple(int(rng.integers(1, 4)) if s == 1 else s for s in array.shape)
        shape = (2,) * int(rng.integers(2)) + shape
        return api.tensor_broadcast_to(tensor, numbers(shape), len(shape)), np.broadcast_to(
            array, shape
        )
    shape = shape_of(rng, array.size) if array.size else (0, 3)
    return api.tensor_reshape(tensor, numbers(shape), len(shape)), reshaped(array, shape)


@pytest.mark.parametrize("seed", range(8))
def test_chains_of_views(api, ctx, seed):
    rng = np.random.default_rng(seed)
    copies = views = 0
    for _ in range(250):
        shape = tuple(
            int(n) for n in rng.integers(0 if rng.random() < 0.1 else 1, 6, rng.integers(0, 5))
        )
        array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
        tensor = api.over(ctx, array, F32)
        made = [("tensor", tensor)]
        for _ in range(4):
            if array.ndim > 7 or array.size > 4096:
                break
            new, expected = step(api, rng, tensor, array)
            if expected is None:
                assert api.fails(
                    new, "ERROR_UNSUPPORTED", "kf_tensor_reshape: shape", "takes a copy"
                )
                copies += 1
                continue
            assert new, api.detail
            made.append(("tensor", new))
            assert same(api, new, expected)
            tensor, array, views = new, expected, views + 1
        rng.shuffle(made)
        api.destroy(*made)
    assert copies > 20 and views > 500


def test_reshape_of_what_is_dense_in_another_order(api, ctx):
    """Dimensions of a transposed tensor merge only if their strides allow it."""
    x = np.zeros((4, 6, 5), np.float64).transpose(1, 0, 2)
    t = api.over(ctx, x, F64)
    assert api.fails(
        api.tensor_reshape(t, numbers((24, 5)), 2),
        "ERROR_UNSUPPORTED",
        "[24, 5]",
        "[6, 4, 5]",
        "[5, 30, 1]",
    )
    v = api.tensor_reshape(t, numbers((2, 3, 2, 2, 5)), 5)
    assert api.layout(v) == ((2, 3, 2, 2, 5), (15, 5, 60, 30, 1))
    api.destroy(("tensor", t), ("tensor", v))


def test_memory_lives_as_long_as_a_view(api, ctx):
    t = api.create(ctx, (4, 8), U8)
    np.asarray(api.array(t))[:] = np.arange(32, dtype=np.uint8).reshape(4, 8)
    v = api.tensor_slice(t, 1, 2, 8, 3)
    api.destroy(("tensor", t))
    stats = runtime_api.Stats()
    assert api.pool_get_stats(ctx, ctypes.byref(stats)) == 0 and stats.in_use == 256
    assert np.array_equal(api.array(v), np.arange(32).reshape(4, 8)[:, 2:8:3])
    api.destroy(("tensor", v))
    assert api.pool_get_stats(ctx, ctypes.byref(stats)) == 0 and stats.in_use == 0


def test_memory_that_is_owned_is_freed_once(api, ctx):
    """The last reference frees the memory: valgrind or a double free would end the process."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    for order in (1, -1):
        memory = runtime_api.Memory(libc.malloc(96), 96, 1)
        t = api.tensor_create_from_memory(
            ctx, ctypes.byref(memory), ctypes.byref(api.describe((4, 6)))
        )
        both = [("tensor", t), ("tensor", api.tensor_transpose(t, 0, 1))]
        api.destroy(*both[::order])


def test_objects_outlive_their_context(api):
    ctx = api.context()
    t, event, stream = api.create(ctx, (3,)), api.event_create(ctx), api.stream_create(ctx, None)
    assert api.context_destroy(ctx) == 0
    assert api.fails(
        api.tensor_create(ctx, ctypes.byref(api.describe((3,)))),
        "ERROR_HANDLE",
        "a destroyed context",
    )
    assert api.event_record(event, stream) == 0 and api.tensor_size(t, 0) == 3
    api.destroy(("event", event), ("tensor", t), ("stream", stream))
