# SPDX-License-Identifier: Apache-2.0
"""kf_fused_multi_head_attention on the CPU: compared with its formula in float64, with PyTorch's
module, and bitwise with the functions that it calls."""

import ctypes

import multi_head
import numpy as np
import pytest
import runtime_api
import runtime_ops
from multi_head import BOUNDS, Sizes, close

CROSS = Sizes(queries=3, keys=7, kv_heads=2, packed=False, dim_v=6, key_embed=9, value_embed=5)
CALLS = {
    "packed": Sizes(),
    "grouped": Sizes(kv_heads=2, dim=8, dim_v=8),
    "separate": Sizes(packed=False),
    "cross": CROSS,
    "one query": Sizes(batch=3, queries=1, keys=40, heads=2, kv_heads=1, dim=5, dim_v=5),
}


def masks(rng, s):
    """Masks of every kind, with and without dimensions that broadcast; one hides all keys."""
    seen = rng.integers(0, 2, (s.batch, 1, 1, s.keys)).astype(np.uint8)
    seen[0] = 0
    return {
        "full": ({}, {}),
        "causal": ({}, {"is_causal": 1}),
        "scale": ({}, {"scale": -0.3}),
        "padding": ({"mask": seen}, {}),
        "bool": ({"mask": rng.integers(0, 2, (s.queries, s.keys)).astype(np.uint8)}, {}),
        "added": ({"mask": rng.standard_normal((s.batch, s.heads, s.queries, s.keys))}, {}),
        "shared": ({"mask": rng.standard_normal((s.heads, 1, s.keys))}, {}),
    }


def empty(s, dtype):
    """An array for the result, filled with NaN."""
    return multi_head.stored({"out": np.full((s.batch, s.queries, s.out_embed), np.nan)}, dtype)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", CALLS)
def test_formula(heads, ctx, name, dtype):
    s, rng = CALLS[name], np.random.default_rng(len(name))
    for kind, (mask, numbers) in masks(rng, s).items():
        x = multi_head.inputs(rng, s)
        if s.queries == s.keys and kind != "added":
            x = {"query": x["query"]}
        arrays = multi_head.stored(x | multi_head.weights(rng, s, kind != "scale") | mask, dtype)
        arrays |= empty(s, dtype)
        given = multi_head.exact(arrays, dtype)
        numbers = numbers | {"heads": s.heads, "kv_heads": s.kv_heads}
        assert heads.attend(ctx, arrays, dtype, **numbers) == 0, heads.detail
        wanted = multi_head.expected(given, s, numbers.get("scale", 0), numbers.get("is_causal", 0))
        close(multi_head.exact(arrays, dtype)["out"], wanted, dtype)


def functions(heads, ctx, s, arrays, dtype, is_causal):
    """The same by the functions of the ops, with the three projections in tensors of their own."""
    word, live = runtime_ops.DTYPES[dtype], []

    def over(x):
        live.append(heads.over(ctx, x, word))
        return live[-1]

    def linear(x, weight, bias, out):
        code = heads.dll.kf_fused_linear_activation_with(
            *map(ctypes.c_void_p, (ctx, over(x), over(weight), over(bias), over(out))),
            *(None, 0, None, None),
        )
        assert code == 0, heads.detail

    q, k, _ = s.rows
    x = [arrays["query"], arrays.get("key", arrays["query"])]
    x.append(arrays.get("value", x[1]))
    of = np.split(arrays["in_proj_weight"], [q, q + k])
    biases = np.split(arrays["in_proj_bias"], [q, q + k])
    projected = [np.zeros((*a.shape[:2], len(w)), a.dtype) for a, w in zip(x, of)]
    for call in zip(x, of, biases, projected):
        linear(*call)
    dims = (s.heads, s.dim), (s.kv_heads, s.dim), (s.kv_heads, s.dim_v)
    tensors = [over(t.reshape(*t.shape[:2], *n)) for t, n in zip(projected, dims)]
    attended = np.zeros((s.batch, s.queries, s.heads, s.dim_v), x[0].dtype)
    attend = heads.dll["kf_fused_causal_attention" if is_causal else "kf_fused_attention"]
    code = attend(
        *map(ctypes.c_void_p, (ctx, *tensors, over(attended), None, None, None)),
        *(ctypes.c_int64(0) for _ in range(6)),
        ctypes.c_double(s.dim**-0.5),
        None,
    )
    assert code == 0, heads.detail
    found = empty(s, dtype)["out"]
    rows = attended.reshape(s.batch, s.queries, -1)
    linear(rows, arrays["out_proj_weight"], arrays["out_proj_bias"], found)
    heads.destroy(*(("tensor", t) for t in live))
    return found


@pytest.mark.parametrize("dtype", BOUNDS)
def test_the_bits_of_its_functions(heads, ctx, dtype):
    """One product for all projections, and attention that reads them in place, change no bit. The
    call takes its memory from the pool at once, and gives it back.
    """
    rng, stats = np.random.default_rng(3), runtime_api.Stats()
    for s, of in (
        (Sizes(queries=40, keys=40, embed=64, heads=4, kv_heads=2, dim=16, dim_v=16), ("query",)),
        (Sizes(queries=3, keys=9, kv_heads=1), ("query", "key", "value")),
        (Sizes(queries=3, keys=9), ("query", "key")),
    ):
        x = multi_head.inputs(rng, s)
        arrays = {n: x[n] for n in of} | multi_head.weights(rng, s)
        arrays = multi_head.stored(arrays, dtype)
        for is_causal in (0, 1):
            wanted = functions(heads, ctx, s, arrays, dtype, is_causal)
            given = arrays | empty(s, dtype)
            numbers = {"heads": s.heads, "kv_heads": s.kv_heads, "is_causal": is_causal}
            assert heads.pool_get_stats(ctx, ctypes.byref(stats)) == 0
            before = stats.in_use, stats.hits
            assert heads.attend(ctx, given, dtype, **numbers) == 0, heads.detail
            assert given["out"].tobytes() == wanted.tobytes()
            assert heads.pool_get_stats(ctx, ctypes.byref(stats)) == 0
            assert (stats.in_use, stats.hits - before[1] <= 1) == (before[0], True)


def turned(x):
    """The same array with its rows before its batch in memory, as without batch_first."""
    return np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1)


def inside(x):
    """The same array as a part of a larger one."""
    room = np.zeros([n + 3 for n in x.shape], x.dtype)
    room[tuple(slice(1, 1 + n) for n in x.shape)] = x
    return room[tuple(slice(1, 1 + n) for n in x.shape)]


LAYOUTS = {
    "turned inputs": lambda n, x: turned(x) if n in ("query", "key", "value") else x,
    "turned result": lambda n, x: turned(x) if n == "out" else x,
    "all turned": lambda n, x: turned(x) if x.ndim == 3 else x,
    "parts of larger ones": lambda n, x: inside(x),
    "one sequence for all": lambda n, x: np.broadcast_to(x[:1], x.shape) if n != "out" else x,
    "columns first": lambda n, x: np.asfortranarray(x),
    "every other element": lambda n, x: np.repeat(x, 2, -1)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_layouts(heads, ctx, name, layout):
    """Strides of all tensors but the mask's last dimension."""
    s, rng = CALLS[name], np.random.default_rng(4)
    arrays = multi_head.inputs(rng, s) | multi_head.weights(rng, s) | empty(s, "f64")
    if layout == "one sequence for all":
        for n in ("query", "key", "value"):
            arrays[n][:] = arrays[n][:1]
    mask = rng.standard_normal((s.batch, s.heads, s.queries, s.keys))
    moved = {
        n: LAYOUTS[layout](n, x) if x.ndim == 3 or layout != "one sequence for all" else x
        for n, x in arrays.items()
    }
    moved["mask"] = mask.swapaxes(1, 2).copy().swapaxes(1, 2)
    code = heads.attend(ctx, moved, "f64", heads=s.heads, kv_heads=s.kv_heads)
    assert code == 0, heads.detail
    close(moved["out"], multi_head.expected(arrays | {"mask": mask}, s), "f64")


def test_weights_that_follow_each_other(heads, ctx):
    """Three weights in one array, in order and in another order; the result in place of query."""
    s, rng = Sizes(packed=False, out_embed=12), np.random.default_rng(5)
    for order in ("qkv", "vkq", "kqv"):
        given = multi_head.inputs(rng, s) | multi_head.weights(rng, s)
        given["key"] = given["value"] = given["query"]
        every = np.concatenate([given[f"{n}_proj_weight"] for n in order])
        arrays = given | {f"{n}_proj_weight": w for n, w in zip(order, np.split(every, 3))}
        wanted = multi_head.expected(given, s)
        arrays["query"] = arrays["key"] = arrays["value"] = arrays["out"] = given["query"].copy()
        assert heads.attend(ctx, arrays, "f64", heads=s.heads) == 0, heads.detail
        close(arrays["out"], wanted, "f64")


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 0},
        {"queries": 0},
        {"keys": 0},
        {"queries": 0, "keys": 0},
        {"embed": 0},
        {"dim": 0, "dim_v": 0},
        {"out_embed": 0},
    ],
    ids=lambda change: " and ".join(change),
)
def test_empty_sizes(heads, ctx, change):
    """Without keys the result is out_proj_bias; without features a projection is its bias."""
    rng = np.random.default_rng(6)
    s = Sizes(**({"queries": 3, "keys": 4} | change))
    for bias in (True, False):
        arrays = multi_head.inputs(rng, s) | multi_head.weights(rng, s, bias) | empty(s, "f64")
        for numbers in ({}, {"is_causal": 1}):
            code = heads.attend(ctx, arrays, "f64", heads=s.heads, **numbers)
            assert code == 0, heads.detail
            if s.dim:
                wanted = multi_head.expected(arrays, s, **numbers)
            else:
                wanted = np.broadcast_to(arrays.get("out_proj_bias", 0), arrays["out"].shape)
            close(arrays["out"], wanted, "f64")


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", ["packed", "cross"])
def test_the_module_of_pytorch(heads, ctx, name, bias):
    """torch.nn.MultiheadAttention with batch_first: its own parameters, and its masks, in which
    True hides a key.
    """
    torch = pytest.importorskip("torch")
    torch.manual_seed(7)
    kdim, vdim = (24, 24) if name == "packed" else (10, 14)
    module = torch.nn.MultiheadAttention(
        24, 4, bias=bias, kdim=kdim, vdim=vdim, batch_first=True, dtype=torch.float64
    )
    parameters = {
        n.replace(".", "_"): p.detach().numpy().copy() for n, p in module.named_parameters()
    }
    if bias:  # PyTorch initialises them with zeros
        for n in ("in_proj_bias", "out_proj_bias"):
            parameters[n] += np.random.default_rng(8).standard_normal(parameters[n].shape)
        module.in_proj_bias.data = torch.from_numpy(parameters["in_proj_bias"])
        module.out_proj.bias.data = torch.from_numpy(parameters["out_proj_bias"])
    query, key, value = torch.randn(3, 5, 24), torch.randn(3, 7, kdim), torch.randn(3, 7, vdim)
    query, key, value = (t.double() for t in (query, key, value))
    padding = torch.arange(7) >= torch.tensor([7, 4, 1])[:, None]
    numbers = torch.randn(5, 7, dtype=torch.float64)
    for mask, options in (
        (None, {}),
        (~padding[:, None, None], {"key_padding_mask": padding}),
        (numbers, {"attn_mask": numbers}),
    ):
        wanted, _ = module(query, key, value, need_weights=False, **options)
        given = dict(zip(("query", "key", "value"), (t.numpy() for t in (query, key, value))))
        if mask is not None:
            given["mask"] = (
                mask.numpy().astype(np.uint8) if mask.dtype == torch.bool else mask.numpy()
            )
        given["out"] = np.full(wanted.shape, np.nan)
        assert heads.attend(ctx, given | parameters, "f64", heads=4) == 0, heads.detail
        close(given["out"], wanted.detach().numpy(), "f64")
