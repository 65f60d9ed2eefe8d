# SPDX-License-Identifier: Apache-2.0
"""Calls of kf_fused_multi_head_attention, and its formula in float64. Used by tests/runtime."""

import ctypes
import dataclasses

import numpy as np
import runtime_ops
import storage

OPS = ["linear", "attention", "causal_attention", "mask_attention", "bias_attention"]
TENSORS = (
    *("query", "key", "value"),
    *("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"),
    *("out_proj_weight", "out_proj_bias", "mask", "out"),
)

# Errors in units of the largest result: a few roundings, of three products one after the other.
BOUNDS = {"f64": 8 * 2.0**-52, "f32": 8 * 2.0**-23, "f16": 2 * 2.0**-10, "bf16": 2 * 2.0**-7}


class Arguments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in TENSORS),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads")),
        ("scale", ctypes.c_double),
        ("is_causal", ctypes.c_int32),
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


def expected(given, s, scale=0, is_causal=0, rounded=lambda x: x):
    """Returns the result in float64. rounded: applied to intermediate tensors."""
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
    scores = q @ k.swapaxes(2, 3) * (scale or s.dim**-0.5)
    mask = given.get("mask")
    if mask is not None:
        scores = np.where(mask != 0, scores, -np.inf) if mask.dtype == np.uint8 else scores + mask
    if is_causal:
        queries, keys = scores.shape[2:]
        seen = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
        scores = np.where(seen, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    total = np.nan_to_num(e).sum(-1, keepdims=True)
    found = np.nan_to_num(e) / np.where(total, total, 1) @ v
    found = rounded(found.swapaxes(1, 2).reshape(*x[0].shape[:2], s.heads * s.dim_v))
    return found @ given["out_proj_weight"].T + given.get("out_proj_bias", 0)


class Heads(runtime_ops.Ops):
    """A library that has the function."""

    def __init__(self, library):
        super().__init__(library, runtime_ops.choose(OPS, None, ["none"]))
        self.function_on_heads = self.dll.kf_fused_multi_head_attention
        self.function_on_heads.restype = ctypes.c_int
        self.function_on_heads.argtypes = [ctypes.c_void_p] * 3

    def attend(self, ctx, arrays, dtype, stream=None, **numbers):
        """Makes the call with tensors over these arrays; returns its code.

        Args:
            arrays: by argument, in storage of `dtype`; those of bytes and of float32 keep theirs
            numbers: the other arguments
        """
        words = {np.dtype(np.uint8): "u8", np.dtype(np.float32): "f32"}
        handles = {
            n: self.over(ctx, x, runtime_ops.DTYPES[words.get(x.dtype, dtype)])
            for n, x in arrays.items()
        }
        arguments = Arguments(**handles, **numbers)
        code = self.function_on_heads(ctx, ctypes.addressof(arguments), stream)
        self.destroy(*(("tensor", h) for h in handles.values()))
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


def close(found, wanted, dtype):
    """Checks a result in float64 against the expected one."""
    error = np.abs(found - wanted).max(initial=0) / np.abs(wanted).max(initial=1)
    assert error <= BOUNDS[dtype], error
