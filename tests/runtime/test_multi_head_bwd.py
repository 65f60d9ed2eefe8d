# SPDX-License-Identifier: Apache-2.0
"""kf_fused_multi_head_attention_bwd on the CPU: compared with its formula in float64 and with
PyTorch's module; subsets of the gradients, layouts and empty sizes."""

import ctypes

import multi_head
import numpy as np
import pytest
import runtime_api
from multi_head import (
    CALLS,
    GRADIENT_BOUNDS,
    LAYOUTS,
    Sizes,
    close,
    exact,
    inside,
    masks,
    stored,
    turned,
)
from multi_head_gradients import SHARED, Call


def inputs_of(s):
    """Which of query, key and value calls of these sizes may give."""
    if s.queries != s.keys or not s.packed and s.key_embed != s.embed:
        return [("query", "key", "value")]
    return [("query",), ("query", "key"), ("query", "value"), ("query", "key", "value")]


@pytest.mark.parametrize("dtype", GRADIENT_BOUNDS)
@pytest.mark.parametrize("name", CALLS)
def test_formula(heads, ctx, name, dtype):
    """All gradients, for all masks, where key and value are NULL or given."""
    s, rng = CALLS[name], np.random.default_rng(len(name))
    kinds = masks(rng, s) | {
        f"shared by {axes}": ({"mask": rng.standard_normal(shape(s))}, {})
        for axes, shape in SHARED.items()
    }
    for kind, (mask, numbers) in kinds.items():
        for only in inputs_of(s):
            call = Call(heads, ctx, s, dtype, rng, mask, only, kind != "scale", **numbers)
            assert ("dmask" in call.wanted) == (bool(mask) and mask["mask"].dtype != np.uint8)
            assert {"dkey", "dvalue"} & call.wanted.keys() == {f"d{n}" for n in only[1:]}
            call.compare(call.backward())


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
@pytest.mark.parametrize("name", ["self", "packed", "cross"])
def test_the_module_of_pytorch(heads, ctx, name, dtype):
    """Autograd of torch.nn.MultiheadAttention in float64, with its own names of parameters. `self`:
    one tensor is query, key and value."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(7)
    rng = np.random.default_rng(8)
    queries, keys, (kdim, vdim) = 5, 5 if name == "self" else 7, (24, 24)
    if name == "cross":
        kdim, vdim = 10, 14
    module = torch.nn.MultiheadAttention(
        24, 4, kdim=kdim, vdim=vdim, batch_first=True, dtype=torch.float64
    )
    drawn = {
        n.replace(".", "_"): p.detach().numpy() + rng.standard_normal(p.shape) / 8
        for n, p in module.named_parameters()
    }
    drawn["query"] = rng.standard_normal((3, queries, 24))
    if name != "self":
        drawn["key"] = rng.standard_normal((3, keys, kdim))
        drawn["value"] = rng.standard_normal((3, keys, vdim))
    padding = np.arange(keys) >= np.array([keys, 4, 1])[:, None]
    numbers = rng.standard_normal((queries, keys))
    causal = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
    for kind in ("all", "causal", "padding", "numbers"):
        mask = {"padding": ~padding[:, None, None], "numbers": numbers}.get(kind)
        arrays = stored(drawn | ({} if mask is None else {"mask": mask}), dtype)
        if kind == "padding":
            arrays["mask"] = mask.astype(np.uint8)
        leaves = {
            n: torch.from_numpy(x).requires_grad_(n != "mask" or kind == "numbers")
            for n, x in exact(arrays, dtype).items()
            if n != "mask" or kind == "numbers"
        }
        options = {
            "causal": {"attn_mask": causal},
            "padding": {"key_padding_mask": torch.from_numpy(padding)},
            "numbers": {"attn_mask": leaves.get("mask")},
        }.get(kind, {})
        parameters = {n: leaves[n.replace(".", "_")] for n, _ in module.named_parameters()}
        query = leaves["query"]
        x = (query, leaves.get("key", query), leaves.get("value", query))
        wanted, _ = torch.func.functional_call(
            module, parameters, x, options | {"need_weights": False}
        )
        dout = stored({"dout": rng.standard_normal(wanted.shape)}, dtype)["dout"]
        wanted.backward(torch.from_numpy(exact({"dout": dout}, dtype)["dout"]))
        arrays |= stored({"out": np.full(wanted.shape, np.nan)}, dtype)
        options = {"heads": 4, "is_causal": int(kind == "causal")}
        arrays["saved"] = heads.memory(ctx, arrays, dtype, **options)
        assert heads.attend(ctx, arrays, dtype, **options) == 0, heads.detail
        found = stored({f"d{n}": np.full(t.shape, np.nan) for n, t in leaves.items()}, dtype)
        code = heads.gradients(ctx, arrays, {"dout": dout} | found, dtype, **options)
        assert code == 0, heads.detail
        for n, t in leaves.items():
            got = exact({n: found[f"d{n}"]}, dtype)[n]
            close(got, t.grad.numpy(), dtype, GRADIENT_BOUNDS)


@pytest.mark.parametrize("only", [("query",), ("query", "value"), ("query", "key", "value")])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "separate"])
def test_some_gradients(heads, ctx, packed, only):
    """Each gradient alone, and others with some of it, have the bits of all together."""
    rng = np.random.default_rng(11)
    s = Sizes(packed=packed, kv_heads=2)
    mask = {"mask": rng.standard_normal((s.heads, 1, s.keys))}
    call = Call(heads, ctx, s, "f32", rng, mask, only)
    whole, names = call.backward(), list(call.wanted)
    subsets = [[n] for n in names] + [[], ["dmask", "dout_proj_bias"]]
    subsets += [[n for n in names if rng.integers(2)] for _ in range(20)]
    for some in subsets:
        found = call.backward(call.empty(some))
        assert {n: x.tobytes() for n, x in found.items()} == {n: whole[n].tobytes() for n in some}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_accumulation(heads, ctx, dtype):
    """beta times the old contents of weights and biases, also in float32 beside 2-byte tensors;
    gradients of inputs and of the mask are overwritten."""
    rng = np.random.default_rng(12)
    for packed in (True, False):
        s = Sizes(packed=packed, kv_heads=2)
        mask = {"mask": rng.standard_normal((s.batch, s.heads, s.queries, s.keys))}
        call = Call(heads, ctx, s, dtype, rng, mask)
        for wide in (False, True):
            old = {n: rng.standard_normal(w.shape) for n, w in call.wanted.items()}
            own = {n: "f32" if wide and n[1:] in multi_head.PARAMETERS else dtype for n in old}
            found = {n: stored({n: x}, own[n])[n] for n, x in old.items()}
            before = {n: exact({n: x}, own[n])[n].copy() for n, x in found.items()}
            call.backward(found, beta=-0.5)
            for n, w in call.wanted.items():
                added = -0.5 * before[n] if n[1:] in multi_head.PARAMETERS else 0
                close(exact({n: found[n]}, own[n])[n], w + added, dtype, GRADIENT_BOUNDS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_layouts(heads, ctx, name, layout):
    """Strides of arguments, of dout and of gradients; arguments and gradients in other ones."""
    s, rng = CALLS[name], np.random.default_rng(4)
    mask = {"mask": rng.standard_normal((s.batch, s.heads, s.queries, s.keys))}
    call = Call(heads, ctx, s, "f64", rng, mask)
    if layout == "one sequence for all":
        for n in ("query", "key", "value"):
            call.arrays[n][:] = call.arrays[n][:1]
        call.dout[:] = call.dout[:1]
        call.wanted = multi_head.expected_gradients(call.arrays, s, call.dout)
        call.forward()

    def moved(n, x):
        if n in ("saved", "mask") or (layout == "one sequence for all" and x.ndim != 3):
            return x
        name = n if n in call.arrays else "query"  # dout moves as query does
        return LAYOUTS[layout](name, x)

    arrays = {n: moved(n, x) for n, x in call.arrays.items()}
    dout = moved("dout", call.dout)
    for other in (lambda n, x: x, LAYOUTS["all turned"], LAYOUTS["parts of larger ones"]):
        found = {n: other(n, x) for n, x in call.empty().items()}
        call.compare(call.backward(found, dout, arrays))
        found = {n: LAYOUTS["columns first"](n, x) for n, x in call.empty().items() if x.ndim < 4}
        mixed = {n: x if n == "saved" else other(n, x) for n, x in arrays.items()}
        call.compare(call.backward(found, dout, mixed))


def test_weights_that_follow_each_other(heads, ctx):
    """Three weights in one array, in order or not, and in arrays of their own: the gradient of a
    query that is key and value, too, has the same bits."""
    s, rng = Sizes(packed=False), np.random.default_rng(5)
    call = Call(heads, ctx, s, "f32", rng, {}, ("query",))
    wanted = call.backward()
    call.compare(wanted)
    for order in ("qkv", "vkq", "kqv"):
        every = np.concatenate([call.arrays[f"{n}_proj_weight"] for n in order])
        parts = {f"{n}_proj_weight": w for n, w in zip(order, np.split(every, 3))}
        found = call.backward(arrays=call.arrays | parts)
        assert [found[n].tobytes() for n in found] == [wanted[n].tobytes() for n in found]


def test_what_is_saved(heads, ctx):
    """The size follows from the sizes alone; the result has the same bits with `saved` and without,
    which may be larger; the backward changes none of its arguments, takes memory once, gives it
    back, and has the same bits again."""
    rng, stats = np.random.default_rng(13), runtime_api.Stats()
    for s in (Sizes(kv_heads=2), CALLS["cross"]):
        call = Call(heads, ctx, s, "bf16", rng, {}, is_causal=1)
        arrays, out = call.arrays, call.arrays["out"].copy()
        other = {n: inside(turned(x)) if x.ndim == 3 else x for n, x in arrays.items()}
        other.pop("saved"), other.pop("out")
        size = len(arrays["saved"])
        assert size == len(heads.memory(ctx, other, "bf16", **call.numbers))
        plain = {n: x for n, x in arrays.items() if n != "saved"}
        arrays["out"][:] = 0
        assert heads.attend(ctx, plain, "bf16", **call.numbers) == 0, heads.detail
        assert arrays["out"].tobytes() == out.tobytes()
        arrays["saved"] = np.full(size + 100, 0xFF, np.uint8)
        assert heads.attend(ctx, arrays, "bf16", **call.numbers) == 0, heads.detail
        assert (arrays["saved"][size:] == 0xFF).all()
        before = {n: x.tobytes() for n, x in arrays.items()}
        first = call.backward()
        call.compare(first)
        assert heads.pool_get_stats(ctx, ctypes.byref(stats)) == 0
        in_use, hits = stats.in_use, stats.hits
        again = call.backward()
        assert heads.pool_get_stats(ctx, ctypes.byref(stats)) == 0
        assert stats.in_use == in_use and stats.hits - hits <= 1
        assert [x.tobytes() for x in again.values()] == [x.tobytes() for x in first.values()]
        assert before == {n: x.tobytes() for n, x in arrays.items()}


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
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "separate"])
def test_empty_sizes(heads, ctx, change, packed):
    """Sums over nothing are 0, and so are gradients of what no result depends on."""
    rng = np.random.default_rng(6)
    s = Sizes(**({"queries": 3, "keys": 4, "packed": packed} | change))
    shared = {"mask": rng.standard_normal((s.heads, 1, s.keys))}
    for bias in (True, False):
        for mask, numbers in (({}, {}), ({}, {"is_causal": 1}), (shared, {})):
            call = Call(heads, ctx, s, "f64", rng, mask, bias=bias, **numbers)
            call.compare(call.backward())
