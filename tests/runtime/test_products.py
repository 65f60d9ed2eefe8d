# SPDX-License-Identifier: Apache-2.0
"""Matrix products on tensors: batches, rows of many dimensions, beta, empty sums, errors."""

import ctypes

import numpy as np
import runtime_api
from runtime_calls import of


def over(ops, ctx, **arrays):
    return {name: ops.over(ctx, x, runtime_api.F32) for name, x in arrays.items()}


def test_rows_and_batches_of_products(ops, ctx):
    """A 2-D weight serves all rows of any number of dimensions; a 3-D weight has a batch;
    broadcasting one weight makes no copy.
    """
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
    )  # too large for blocks
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
    """beta works for dense results, and for results computed in blocks, which start from the old
    contents.
    """
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
    """Sums over an empty dimension write the elements of a strided result, and nothing between
    them.
    """
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


def test_two_weights_in_one(ops, ctx):
    """The weight has twice as many columns, which must be even."""
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
