# SPDX-License-Identifier: Apache-2.0
"""Tensors of decoding functions and their comparison with the float64 oracle (cases.py)."""

import numpy as np
import storage
from kfgen.families.decoding import reference

# Relative to the largest result: 2-byte probabilities and results are rounded.
TOLERANCE = {"bf16": 0.01, "f16": 0.0015, "f32": 4e-6, "f64": 1e-14}
LSE = {"bf16": 2e-5, "f16": 2e-5, "f32": 4e-6, "f64": 1e-13}
EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52}


def named(call):
    """Returns {size: value}."""
    return dict(zip(call.f["sizes"], call.sizes))


def given(call, name):
    """Returns an input, None if the call has none."""
    return None if name in call.drop else call.data[name]


def wide(call, name):
    """Returns an input in float64."""
    return storage.to_float(call.data[name], call.tensors[name]["dtype"])


def of_a_result(call, a):
    """True if the tensor is the gradient of a result."""
    return any(s.name == a["name"] and s.of for s in call.kernel.inputs)


def prepare(call):
    """Sets nothing: shape structs of the family have no options."""


def draw(rng, call, a, values):
    """Draws a tensor; `fill` makes the parts depend on each other."""
    shape, n = storage.shape_of(call.f, call.sizes, a), named(call)
    if a["role"] == "out":
        return storage.from_float(np.full(shape, np.nan), a["dtype"])
    if a["kind"] == "table":  # each block belongs to one sequence, if there are enough
        count = int(np.prod(shape))
        blocks = np.arange(max(n["blocks"], count))[:count] if n["blocks"] else np.zeros(count)
        found = rng.permutation(blocks).reshape(shape)
        if values == "special" and count > 1:
            found.reshape(-1)[rng.integers(count)] = rng.choice([-1, n["blocks"], 2**31 - 1])
        return found.astype(np.int32)
    if a["kind"] == "position":
        return rng.integers(-1, n["positions"] + 1, shape).astype(np.int32)
    if a["kind"] == "count":
        return counts(rng, call, shape, values)
    if a["kind"] == "per_query" and not of_a_result(call, a):
        found = rng.standard_normal(shape) * 3
        found[rng.random(shape) < 0.2] = -np.inf
        return storage.from_float(found, a["dtype"])
    return storage.from_float(rng.standard_normal(shape), a["dtype"])


def counts(rng, call, shape, values):
    """Draws the rows of sequences: all, none, and any number."""
    n = named(call)
    rows = (1 if "page_table" in call.drop else n["pages"]) * n["page_size"]
    found = rng.integers(0, rows + 1, shape)
    found[:1] = rows
    if call.f["form"] == "append":  # rows before the new ones
        found = np.maximum(found - rng.integers(0, n["queries"] + 1, shape), 0)
    if values == "special" and len(found) > 1:
        found[1] = rng.choice([-1, rows + 1, 2**31 - 1, -(2**31)])
    return found.astype(np.int32)


def check_close(call, name, found, wanted, limit):
    """Compares a result; limit: a number, or one per element."""
    where, finite = f"{call.where} without {call.drop}: {name}", np.isfinite(wanted)
    assert np.array_equal(found[~finite], wanted[~finite], equal_nan=True), where
    error = np.abs(found[finite] - wanted[finite])
    wrong = ~(error <= np.broadcast_to(limit, wanted.shape)[finite])
    assert not wrong.any(), f"{where} differs by {error[wrong].max():.3g}"


# ---- attention_decode


def fill_decode(call):
    """Puts NaN where no query of a call looks: behind sequences and in blocks of none."""
    n, table = named(call), given(call, "page_table")
    used = np.zeros((n["blocks"], n["page_size"]), bool)
    rows = (1 if table is None else n["pages"]) * n["page_size"]
    for s, count in enumerate(call.data["key_length"]):
        for row in range(count if 0 <= count <= rows else 0):
            at = reference.row_of(table, n["page_size"], n["blocks"], s, row)
            if at is not None:
                used[at] = True
    for name in ("k_cache", "v_cache"):
        word, cache = call.tensors[name]["dtype"], call.data[name]
        cache[~used] = storage.from_float(np.array([np.nan]), word)[0]


def check_decode(call, got, weights=None):
    dtype, n = call.f["dtypes"][0], named(call)
    q, k, v = (wide(call, name) for name in ("q", "k_cache", "v_cache"))
    if not n["dim_v"]:
        v = np.zeros((*v.shape[:3], 0))
    bounds = [call.scalars[name] for name in ("left", "right", "scale")]
    table = given(call, "page_table")
    want = dict(
        zip(("out", "lse"), reference.decode(q, k, v, table, call.data["key_length"], *bounds))
    )
    for name, limits in (("out", TOLERANCE), ("lse", LSE)):
        if name in call.drop:
            continue
        finite = want[name][np.isfinite(want[name])]
        limit = limits[dtype] * max(1.0, np.abs(finite).max(initial=0))
        found = storage.to_float(got[name], call.tensors[name]["dtype"])
        check_close(call, name, found, want[name], limit)


def of_sequence(call, index):
    """Returns {size: the slice of it that belongs to a sequence}, of the outputs' axes."""
    return {"batch": slice(index, index + 1)}


# ---- kv_append


def of_row(call, sequence):
    """Returns {cache: mask of the rows of its blocks that the new rows of a sequence replace}."""
    n, table, counts_ = named(call), given(call, "page_table"), call.data["key_length"]
    written = np.zeros((n["blocks"], n["page_size"]), bool)
    for i in range(n["queries"]):
        row = int(counts_[sequence]) + i
        at = reference.row_of(table, n["page_size"], n["blocks"], sequence, row)
        if at is not None:
            written[at] = True
    return dict.fromkeys(("k_cache", "v_cache"), written)


def check_append(call, got, weights=None):
    """Rows that no new one replaces, and values, keep their bits."""
    dtype, n = call.f["dtypes"][0], named(call)
    names = ("cosine", "sine", "position", "page_table")
    cosine, sine, position, table = (given(call, name) for name in names)
    cosine, sine = (x if x is None else x.astype(np.float64) for x in (cosine, sine))
    before = [wide(call, name) for name in ("k_cache", "v_cache")]
    new, neighbours = [wide(call, name) for name in "kv"], "interleaved" in call.f["op"]
    counts_ = call.data["key_length"]
    rest = (position, counts_, n["pairs"], neighbours)
    fresh = [reference.rotated(new[0], cosine, sine, *rest), new[1]]
    # The terms of a rotation, which may cancel.
    c, s = (None if x is None else np.abs(x) for x in (cosine, sine))
    both = (s, None if s is None else -s)
    sums = [np.abs(reference.rotated(np.abs(new[0]), c, sign, *rest)) for sign in both]
    size = np.maximum(*sums), np.abs(new[1])
    want = [reference.stored(x, table, counts_, old) for x, old in zip(fresh, before)]
    size = [reference.stored(x, table, counts_, old) for x, old in zip(size, before)]
    for i, name in enumerate(("k_cache", "v_cache")):
        found = storage.to_float(got[name], dtype)
        limit = 4 * EPSILON["f64" if dtype == "f64" else "f32"] * np.abs(size[i])
        if dtype in ("f16", "bf16"):
            limit = limit + storage.ulp(want[i], dtype)
        rotated = i == 0 and (cosine is not None or sine is not None)
        changed = want[i] != before[i] if rotated else np.zeros(want[i].shape, bool)
        check_close(call, name, found, want[i], np.where(changed, np.nan_to_num(limit), 0.0))


# ---- attention_merge


def parts_of(call):
    """Returns the names of both parts' results, and of their lse."""
    names = [s.name for s in call.kernel.operands]
    return names[::2], names[1::2]


def weights_of(call):
    """Returns both weights [batch, rows, heads, 1], and the lse [batch, heads, rows]."""
    a, b = (wide(call, name) for name in parts_of(call)[1])
    most = np.maximum(a, b)
    shift = np.where(np.isneginf(most), 0, most)
    of_a, of_b = np.exp(a - shift), np.exp(b - shift)
    total = of_a + of_b
    with np.errstate(divide="ignore"):
        lse = shift + np.log(total)
    total = np.where(total == 0, 1, total)
    return *((x / total).swapaxes(1, 2)[..., None] for x in (of_a, of_b)), lse


def fill_merge(call):
    """Puts NaN and infinities into results without a key, which have no weight."""
    for part, lse in zip(*parts_of(call)):
        none = np.isneginf(wide(call, lse)).swapaxes(1, 2)
        word, out = call.tensors[part]["dtype"], call.data[part]
        for value, odd in ((np.nan, 0), (-np.inf, 1)):
            at = none & (np.indices(none.shape).sum(0) % 2 == odd)
            out[at] = storage.from_float(np.array([value]), word)[0]


def check_merge(call, got, weights=None):
    dtype = call.f["dtypes"][0]
    wa, wb, lse = weights_of(call)
    a, b = (np.where(w == 0, 0, wide(call, f"out_{part}")) for w, part in ((wa, "a"), (wb, "b")))
    eps = 8 * EPSILON["f64" if dtype == "f64" else "f32"]
    # A weight has the relative error of an exponential of a difference.
    spread = np.nan_to_num(np.abs(wide(call, "lse_a")) + np.abs(wide(call, "lse_b")), posinf=0)
    eps = eps * (1 + spread.swapaxes(1, 2)[..., None])
    if call.f["bwd"]:
        want, limits = expected_gradients(call, wa, wb, a, b, eps)
    else:
        finite = np.isfinite(lse)
        want = {"out": wa * a + wb * b, "lse": lse}
        limits = {
            "out": eps * (np.abs(wa * a) + np.abs(wb * b)),
            "lse": np.where(finite, eps[..., 0].swapaxes(1, 2) * (1 + spread), 0),
        }
    for name, value in got.items():
        if name in call.drop:
            continue
        word, limit = call.tensors[name]["dtype"], limits[name]
        if word in ("f16", "bf16"):
            limit = limit + storage.ulp(want[name], word)
        check_close(call, name, storage.to_float(value, word), want[name], limit)


def expected_gradients(call, wa, wb, a, b, eps):
    dout = wide(call, "dout")
    dlse = wide(call, "dlse") if "dlse" not in call.drop else np.zeros_like(wide(call, "lse_a"))
    both, terms = ((x * wa * wb).sum(3) for x in (dout * (a - b), np.abs(dout * (a - b))))
    want, limits = {}, {}
    for part, w, sign in (("a", wa, 1), ("b", wb, -1)):
        want[f"dout_{part}"] = w * dout
        limits[f"dout_{part}"] = eps * np.abs(w * dout)
        own = w[..., 0] * dlse.swapaxes(1, 2)
        want[f"dlse_{part}"] = (own + sign * both).swapaxes(1, 2)
        limits[f"dlse_{part}"] = (eps[..., 0] * (np.abs(own) + 4 * terms)).swapaxes(1, 2)
    return want, limits
