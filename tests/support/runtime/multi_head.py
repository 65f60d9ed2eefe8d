# SPDX-License-Identifier: Apache-2.0
"""Calls of kf_fused_multi_head_attention and of its backward, and their formulas in float64. Used
by tests/runtime."""

import ctypes
import dataclasses

import numpy as np
import runtime_ops
import storage

OPS = ["linear", "attention", "causal_attention", "mask_attention", "bias_attention"]
TENSORS = (
    *("query", "key", "value"),
    *("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"),
    *("out_proj_weight", "out_proj_bias", "mask", "out", "saved"),
)
PARAMETERS = (*TENSORS[3:10],)
GRADIENTS = (*(f"d{name}" for name in (*TENSORS[:3], *PARAMETERS)), "dmask")

# Errors in units of the largest result: a few roundings, of three products one after the other.
BOUNDS = {"f64": 8 * 2.0**-52, "f32": 8 * 2.0**-23, "f16": 2 * 2.0**-10, "bf16": 2 * 2.0**-7}
# A gradient has as many roundings behind those of the forward.
GRADIENT_BOUNDS = {dtype: 2 * bound for dtype, bound in BOUNDS.items()}


class Arguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in TENSORS),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads")),
        ("scale", ctypes.c_double),
        ("is_causal", ctypes.c_int32),
    ]


class Gradients(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("dout", *GRADIENTS)),
        ("beta", ctypes.c_double),
    ]


@dataclasses.dataclass
class Sizes:
    """Sizes of a call. packed: one weight for query, key and value."""

    batch: int = 2
    queries: int = 5
    keys: int = 5
    embed: int = 12
    heads: int = 4
    kv_heads: int = 4
    dim: int = 4
    dim_v: int = 4
    key_embed: int = 12
    value_embed: int = 12
    out_embed: int = 10
    packed: bool = True

    @property
    def rows(self):
        return self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim_v


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


def weights(rng, s, bias=True):
    """Draws the weights and biases of a call in float64."""
    q, k, v = s.rows
    shapes = {"out_proj_weight": (s.out_embed, s.heads * s.dim_v)}
    if s.packed:
        shapes["in_proj_weight"] = q + k + v, s.embed
    else:
        shapes |= {"q_proj_weight": (q, s.embed), "k_proj_weight": (k, s.key_embed)}
        shapes["v_proj_weight"] = v, s.value_embed
    if bias:
        shapes |= {"in_proj_bias": (q + k + v,), "out_proj_bias": (s.out_embed,)}
    return {n: rng.standard_normal(shape) / max(shape[-1], 1) ** 0.5 for n, shape in shapes.items()}


def inputs(rng, s):
    """Draws query, key and value in float64."""
    shapes = (
        (s.batch, s.queries, s.embed),
        (s.batch, s.keys, s.embed if s.packed else s.key_embed),
        (s.batch, s.keys, s.embed if s.packed else s.value_embed),
    )
    return {n: rng.standard_normal(shape) for n, shape in zip(("query", "key", "value"), shapes)}


def compute(given, s, scale=0, is_causal=0, rounded=lambda x: x):
    """Returns the tensors of all steps, in float64. rounded: applied to intermediate tensors."""
    q, k, v = s.rows
    x = [given["query"], given.get("key", given["query"])]
    x.append(given.get("value", x[1]))
    if s.packed:
        of = np.split(given["in_proj_weight"], [q, q + k])
    else:
        of = [given[f"{n}_proj_weight"] for n in "qkv"]
    biases = np.split(given.get("in_proj_bias", np.zeros(q + k + v)), [q, q + k])
    dims = (s.heads, s.dim), (s.kv_heads, s.dim), (s.kv_heads, s.dim_v)
    q, k, v = (
        rounded(a @ w.T + b).reshape(*a.shape[:2], *heads).swapaxes(1, 2)
        for a, w, b, heads in zip(x, of, biases, dims)
    )
    k, v = (np.repeat(t, s.heads // s.kv_heads, 1) for t in (k, v))
    scale = scale or max(s.dim, 1) ** -0.5
    scores = q @ k.swapaxes(2, 3) * scale
    mask = given.get("mask")
    if mask is not None:
        scores = np.where(mask != 0, scores, -np.inf) if mask.dtype == np.uint8 else scores + mask
    if is_causal:
        queries, keys = scores.shape[2:]
        seen = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
        scores = np.where(seen, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.nan_to_num(np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf)))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total, total, 1)
    found = rounded((p @ v).swapaxes(1, 2).reshape(*x[0].shape[:2], s.heads * s.dim_v))
    out = found @ given["out_proj_weight"].T + given.get("out_proj_bias", 0)
    return {"x": x, "of": of, "q": q, "k": k, "v": v, "p": p, "scale": scale} | {
        "attended": found,
        "out": out,
    }


def expected(given, s, scale=0, is_causal=0, rounded=lambda x: x):
    """Returns the result in float64."""
    return compute(given, s, scale, is_causal, rounded)["out"]


def summed_to(x, shape):
    """Sums an array over the axes along which a shape broadcasts to it."""
    whole = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(i for i, n in enumerate(whole) if n != x.shape[i])
    return x.sum(axes, keepdims=True).reshape(shape)


def expected_gradients(given, s, dout, scale=0, is_causal=0, rounded=lambda x: x):
    """Returns {argument: its gradient in float64}, of all arguments that are given."""
    f = compute(given, s, scale, is_causal, rounded)
    dattended = rounded(dout @ given["out_proj_weight"])
    found = {
        "dout_proj_weight": np.einsum("bno,bnc->oc", dout, f["attended"]),
        "dout_proj_bias": dout.sum((0, 1)),
    }
    d = dattended.reshape(*dout.shape[:2], s.heads, s.dim_v).swapaxes(1, 2)
    dp = d @ f["v"].swapaxes(2, 3)
    scores = f["p"] * (dp - (f["p"] * dp).sum(-1, keepdims=True))
    mask = given.get("mask")
    if mask is not None and mask.dtype != np.uint8:
        found["dmask"] = summed_to(scores, mask.shape)
    by_heads = (
        scores @ f["k"] * f["scale"],
        scores.swapaxes(2, 3) @ f["q"] * f["scale"],
        f["p"].swapaxes(2, 3) @ d,
    )
    rows, dx = [], []
    for t, heads, x, w in zip(by_heads, (s.heads, s.kv_heads, s.kv_heads), f["x"], f["of"]):
        t = t.reshape(t.shape[0], heads, s.heads // heads, *t.shape[2:]).sum(2)
        rows.append(rounded(t.swapaxes(1, 2).reshape(*x.shape[:2], len(w))))
        dx.append(rows[-1] @ w)
    weights = [np.einsum("bnr,bne->re", r, x) for r, x in zip(rows, f["x"])]
    found |= {f"d{n}_proj_weight": w for n, w in zip("qkv", weights)}
    if s.packed:
        found["din_proj_weight"] = np.concatenate(weights)
    found["din_proj_bias"] = np.concatenate([r.sum((0, 1)) for r in rows])
    found["dquery"], found["dkey"], found["dvalue"] = dx
    if "value" not in given:
        found["dkey"] = dx[1] + dx[2]
    if "key" not in given:
        found["dquery"] = dx[0] + found["dkey"] if "value" not in given else dx[0] + dx[1]
    return {n: x for n, x in found.items() if n[1:] in given}


class Heads(runtime_ops.Ops):
    """A library that has the function."""

    def __init__(self, library):
        super().__init__(library, runtime_ops.choose(OPS, None, ["none"]))
        self.function_on_heads = self.dll.kf_fused_multi_head_attention
        self.function_on_heads.restype = ctypes.c_int
        self.function_on_heads.argtypes = [ctypes.c_void_p] * 3
        self.backward = self.dll.kf_fused_multi_head_attention_bwd
        self.backward.restype = ctypes.c_int
        self.backward.argtypes = [ctypes.c_void_p] * 4
        self.saved_bytes = self.dll.kf_fused_multi_head_attention_saved_bytes
        self.saved_bytes.restype = ctypes.c_int64
        self.saved_bytes.argtypes = [ctypes.c_void_p] * 2

    def handles(self, ctx, arrays, dtype):
        """Makes tensors over arrays in storage of `dtype`; those of bytes and of float32 keep
        theirs."""
        words = {np.dtype(np.uint8): "u8", np.dtype(np.float32): "f32"}
        return {
            n: self.over(ctx, x, runtime_ops.DTYPES[words.get(x.dtype, dtype)])
            for n, x in arrays.items()
        }

    def attend(self, ctx, arrays, dtype, stream=None, **numbers):
        """Makes the call with tensors over these arrays; returns its code.

        Args:
            arrays: by argument, in storage of `dtype`; those of bytes and of float32 keep theirs
            numbers: the other arguments
        """
        handles = self.handles(ctx, arrays, dtype)
        arguments = Arguments(**handles, **numbers)
        code = self.function_on_heads(ctx, ctypes.addressof(arguments), stream)
        self.destroy(*(("tensor", h) for h in handles.values()))
        return code

    def memory(self, ctx, arrays, dtype, **numbers):
        """Returns an array of bytes for what a backward reads of these arguments."""
        handles = self.handles(ctx, arrays, dtype)
        arguments = Arguments(**handles, **numbers)
        count = self.saved_bytes(ctx, ctypes.addressof(arguments))
        self.destroy(*(("tensor", h) for h in handles.values()))
        assert count >= 0, self.detail
        return np.full(count, 0xFF, np.uint8)

    def gradients(self, ctx, arrays, gradients, dtype, stream=None, beta=0.0, **numbers):
        """Makes the call of the backward; returns its code.

        Args:
            arrays: the arguments of the forward, as for `attend`
            gradients: dout and the arrays to write to, by field
        """
        handles = self.handles(ctx, arrays, dtype)
        made = self.handles(ctx, gradients, dtype)
        arguments, results = Arguments(**handles, **numbers), Gradients(**made, beta=beta)
        addresses = ctypes.addressof(arguments), ctypes.addressof(results)
        code = self.backward(ctx, *addresses, stream)
        self.destroy(*(("tensor", h) for h in (*handles.values(), *made.values())))
        return code


def stored(given, dtype):
    """Rounds float64 arrays to storage of a dtype; masks of bytes stay."""
    return {
        n: x if x.dtype == np.uint8 else storage.from_float(x, dtype).reshape(x.shape)
        for n, x in given.items()
    }


def exact(arrays, dtype):
    """Returns stored arrays as float64."""
    return {
        n: x if x.dtype == np.uint8 else storage.to_float(x, dtype).reshape(x.shape)
        for n, x in arrays.items()
    }


def close(found, wanted, dtype, bounds=BOUNDS):
    """Checks a result in float64 against the expected one."""
    error = np.abs(found - wanted).max(initial=0) / np.abs(wanted).max(initial=1)
    assert error <= bounds[dtype], error
