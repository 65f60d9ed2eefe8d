# SPDX-License-Identifier: Apache-2.0
"""Decoding: shapes, tensors and the float64 oracle of the generic tests."""

import types

import numpy as np
import storage
from kfgen.families.decoding import reference

# Relative to the largest result: 2-byte probabilities and results are rounded.
TOLERANCE = {"bf16": 0.01, "f16": 0.0015, "f32": 4e-6, "f64": 1e-14}
LSE = {"bf16": 2e-5, "f16": 2e-5, "f32": 4e-6, "f64": 1e-13}
EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52}
# [batch, heads, kv_heads, queries, blocks, page_size, pages, dim, dim_v]
DECODE = [
    [(2, 4, 2, 1, 4, 4, 2, 8, 8), 0],
    [(3, 4, 1, 3, 12, 5, 4, 8, 4), 0],
    [(2, 8, 1, 2, 8, 160, 4, 64, 64), 0],
    [(1, 2, 2, 1, 40, 32, 40, 128, 128), 0],
    [(1, 3, 3, 5, 4, 7, 3, 7, 3), 1],
    [(2, 4, 2, 1, 7, 16, 3, 64, 64), 1],
    [(2, 2, 1, 1, 7, 1, 3, 24, 40), 0],
    [(0, 2, 2, 1, 3, 4, 2, 8, 8), 0],
    [(2, 0, 1, 1, 3, 4, 2, 8, 8), 0],
    [(2, 2, 1, 0, 3, 4, 2, 8, 8), 0],
    [(2, 2, 1, 2, 0, 4, 2, 8, 8), 0],
    [(2, 2, 1, 2, 3, 0, 2, 8, 8), 0],
    [(2, 2, 1, 2, 3, 4, 0, 8, 8), 0],
    # dim_v 0 stands for dim; without a dim the weights are equal.
    [(1, 1, 1, 1, 2, 4, 2, 0, 8), 0],
    [(1, 1, 1, 1, 2, 4, 2, 0, 0), 0],
    [(1, 4, 1, 16, 3, 64, 3, 128, 128), 0],
    [(1, 1, 1, 1, 5, 48, 5, 264, 300), 0],
]
MORE_DECODE = [
    [(b, 2 * g, 2, q, b * 9, size, 8, d, d), (q + size) % 2]
    for b, g in ((1, 1), (3, 4))
    for q in (1, 2, 9)
    for size in (3, 16, 100)
    for d in (16, 64, 128)
]
# Integers of a valid call: tests/support/functions/refusals.py.
VALID = {"table": 0, "count": 1, "position": 0}


def named(call):
    """Returns {size: value}."""
    return dict(zip(call.f["sizes"], call.sizes))


def given(call, name):
    """Returns an input, None if the call has none."""
    return None if name in call.drop else call.data[name]


def wide(call, name):
    """Returns an input in float64."""
    return storage.to_float(call.data[name], call.tensors[name]["dtype"])


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
    if a["kind"] == "per_query" and a["name"][0] != "d":
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
    error = np.abs(found - wanted)[finite]
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

# [batch, kv_heads, queries, blocks, page_size, pages, dim, dim_v, positions, pairs]
APPEND = [
    [(2, 2, 3, 7, 4, 3, 8, 8, 9, 4), 0],
    [(3, 1, 2, 12, 5, 4, 8, 4, 9, 3), 0],
    [(1, 3, 1, 4, 7, 3, 7, 3, 30, 3), 1],
    [(2, 2, 17, 8, 16, 4, 64, 128, 70, 32), 0],
    [(2, 2, 1, 8, 16, 4, 64, 64, 70, 16), 1],
    [(1, 2, 2, 3, 8, 2, 300, 8, 20, 150), 0],
    [(0, 2, 1, 3, 4, 2, 8, 8, 5, 4), 0],
    [(2, 0, 1, 3, 4, 2, 8, 8, 5, 4), 0],
    [(2, 2, 0, 3, 4, 2, 8, 8, 5, 4), 0],
    [(2, 2, 1, 0, 4, 2, 8, 8, 5, 4), 0],
    [(2, 2, 1, 3, 0, 2, 8, 8, 5, 4), 0],
    [(2, 2, 1, 3, 4, 0, 8, 8, 5, 4), 0],
    [(2, 2, 1, 4, 4, 2, 8, 8, 0, 4), 0],
    [(2, 2, 1, 4, 4, 2, 8, 8, 5, 0), 0],
    [(2, 2, 1, 4, 4, 2, 0, 8, 5, 0), 0],
]
MORE_APPEND = [
    [(b, 2, q, b * 9, size, 8, d, d, 100, d // 2), (q + size) % 2]
    for b in (1, 3)
    for q in (1, 2, 9)
    for size in (3, 16)
    for d in (16, 72, 128)
]


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


def wrong_heads(sizes):
    """Returns the size that a call refuses because it does not fit the others, or None."""
    heads, kv_heads = sizes["heads"], sizes["kv_heads"]
    return "kv_heads" if (heads % kv_heads if kv_heads else heads) else None


def wrong_pairs(sizes):
    """The same for rotations."""
    some = all(sizes[name] for name in ("batch", "kv_heads", "queries", "dim"))
    return "pairs" if some and sizes["pairs"] > sizes["dim"] // 2 else None


# ---- attention_merge

# [batch, rows, heads, dim]
MERGE = [
    [(2, 3, 2, 8), 0],
    [(1, 5, 3, 64), 0],
    [(2, 2, 1, 300), 1],
    [(1, 7, 2, 7), 1],
    [(0, 3, 2, 8), 0],
    [(2, 0, 2, 8), 0],
    [(2, 3, 0, 8), 0],
    [(2, 3, 2, 0), 0],
    [(1, 1, 1, 1), 0],
    [(3, 40, 4, 128), 0],
]
MORE_MERGE = [[(2, r, h, d), (r + d) % 2] for r in (1, 33) for h in (1, 3) for d in (5, 72, 520)]


def weights_of(call):
    """Returns the weights of both parts [batch, rows, heads, 1], and the lse [batch, heads, rows]."""
    a, b = (wide(call, f"lse_{part}") for part in "ab")
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
    for part in "ab":
        none = np.isneginf(wide(call, f"lse_{part}")).swapaxes(1, 2)
        word, out = call.tensors[f"out_{part}"]["dtype"], call.data[f"out_{part}"]
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


def merged(t, s):
    """attention_merge in PyTorch's plain operations (tests/support/python/torchops.py)."""
    import torch

    lse = torch.logaddexp(t["lse_a"], t["lse_b"])
    wa, wb = ((t[f"lse_{part}"] - lse).exp().transpose(1, 2)[..., None] for part in "ab")
    return [t["out_a"] * wa + t["out_b"] * wb, lse]


def decoded(t, s):
    """The same of attention_decode."""
    import torch

    q, k, v = (t[name].double().numpy() for name in ("q", "k_cache", "v_cache"))
    more = t["page_table"].numpy(), t["key_length"].numpy(), s["left"], s["right"], s["scale"]
    return [torch.from_numpy(reference.decode(q, k, v, *more)[0]).to(t["q"].dtype)]


REFERENCES = {"attention_merge": merged, "attention_decode": decoded}


def work(f, size):
    """Returns the dimensions of the elementwise pass and the operations of products, with all sizes
    equal.
    """
    return 4, 4 * size**5 if f["form"] == "decode" else 0


FORMS = {
    "decode": types.SimpleNamespace(
        SHAPES=DECODE,
        MORE=MORE_DECODE,
        RESULTS_IN_PARTS=True,  # sums of chunks
        LAUNCHES=3,
        LARGE=(2**30, 2**10, 1, 1, 1, 1, 1, 1, 1),
        OVERFLOWS=[
            ((2**30, 2**28, 1, 1, 1, 1, 1, 3, 1), "q"),
            ((1, 1, 1, 1, 2**30, 2**28, 1, 3, 1), "k_cache"),
            ((2**30, 1, 1, 1, 1, 1, 2**30, 1, 1), "page_table"),
        ],
        CALLS=(
            [(1, 1, 1, 1, 2, 4, 2, 8, 8), (2, 2, 1, 3, 9, 7, 3, 16, 8)],
            [(2, 8, 2, 1, 9, 64, 4, 64, 64), (1, 4, 1, 2, 30, 16, 30, 128, 128)],
        ),
        SANITIZED=[
            [(2, 8, 2, 1, 9, 64, 4, 64, 64), 0],
            [(3, 4, 1, 3, 12, 5, 4, 8, 4), 0],
            [(2, 4, 2, 1, 7, 16, 3, 64, 64), 1],
        ],
        TORCH=(2, 4, 2, 3, 7, 4, 3, 8, 8),
        GIVEN={"table": (0, 4, 2, 6, 1, 3), "count": (12, 5)},
        EXTENTS={
            "batch": (2,),
            "heads": (4,),
            "kv_heads": (2,),
            "queries": (2,),
            "blocks": (7,),
            "page_size": (4,),
            "pages": (3,),
            "dim": (8,),
            "dim_v": (8,),
        },
        COUNTED=[
            ("batch", "queries", "heads", "dim"),
            ("blocks", "page_size", "kv_heads", "dim_v"),
        ],
        READS_SOME_ROWS=True,
        VALID=VALID,
        prepare=prepare,
        draw=draw,
        fill=fill_decode,
        check=check_decode,
        wrong_size=wrong_heads,
        work=work,
        of_sequence=of_sequence,
    ),
    "append": types.SimpleNamespace(
        SHAPES=APPEND,
        MORE=MORE_APPEND,
        LARGE=(2**30, 2**10, 4, 1, 1, 1, 1, 1, 1, 0),
        OVERFLOWS=[
            ((2**30, 2**28, 1, 1, 1, 1, 3, 1, 1, 1), "k"),
            ((1, 1, 1, 2**30, 2**28, 1, 3, 1, 1, 1), "k_cache"),
            ((1, 1, 1, 1, 1, 1, 2**32, 1, 2**30, 2**30), "cosine"),
        ],
        CALLS=(
            [(1, 1, 1, 2, 4, 2, 8, 8, 9, 4), (2, 1, 3, 9, 7, 3, 16, 8, 20, 8)],
            [(2, 2, 5, 9, 64, 4, 64, 64, 300, 32)],
        ),
        TORCH=(2, 2, 3, 7, 4, 3, 8, 8, 20, 3),
        GIVEN={"table": (0, 4, 2, 6, 1, 3), "count": (9, 5), "position": (0, 1, 2, 3, 4, 5)},
        EXTENTS={
            "batch": (2,),
            "kv_heads": (2,),
            "queries": (2,),
            "blocks": (7,),
            "page_size": (4,),
            "pages": (3,),
            "dim": (8,),
            "dim_v": (8,),
            "positions": (9,),
            "pairs": (3,),
        },
        COUNTED=[
            ("batch", "queries", "kv_heads", "dim"),
            ("blocks", "page_size", "kv_heads", "dim_v"),
        ],
        READS_SOME_ROWS=True,
        VALID=VALID,
        prepare=prepare,
        draw=draw,
        check=check_append,
        wrong_size=wrong_pairs,
        work=work,
    ),
    "merge": types.SimpleNamespace(
        SHAPES=MERGE,
        MORE=MORE_MERGE,
        LARGE=(2**30, 2**14, 2**10, 1),
        OVERFLOWS=[
            ((2**30, 2**20, 2**10, 1), "heads"),
            ((2**32, 2**32, 1, 1), "rows"),
            ((2, 1, 2**62, 1), "heads"),
        ],
        CALLS=([(1, 1, 1, 1), (2, 3, 2, 8)], [(2, 9, 3, 130)]),
        TORCH=(2, 3, 2, 8),
        EXTENTS={"batch": (2,), "rows": (3,), "heads": (2,), "dim": (8,)},
        prepare=prepare,
        draw=draw,
        fill=fill_merge,
        check=check_merge,
        wrong_size=lambda sizes: None,
        work=work,
    ),
}
# Kinds of tensors that may be strided, with the suffix of the first stride:
# tests/gen/test_manifest.py.
STRIDED = {
    "decoding": dict.fromkeys(
        ("query", "keys", "values", "elem", "new_keys", "new_values", "key_cache", "value_cache"),
        "_head",
    )
    | {"part": "_head"}
}
# Expected functions: tests/gen/test_names.py.
FUNCTIONS = {
    "attention_decode": (0, True, 4, False),
    "kv_append": (0, True, 4, False),
    "kv_append_interleaved": (0, True, 4, False),
    "attention_merge": (0, True, 4, True),
}
# One function and the maximum tokens of its header: tests/headers/test_compile_cost.py.
COMPILED = {"decoding": ("kf_attention_decode_bf16", 80000)}
# The Python package of level 1 has them.
PACKAGED = ["attention_decode", "kv_append", "kv_append_interleaved", "attention_merge"]


# Entries that tests/support/functions/odd_names.py renders with unusual names.
NAMES = {
    "decoding": [
        """
operands.<x> = { kind = "part", grad = true }
operands.<y> = { kind = "per_query", dtype = "acc" }
operands.<z> = "part"
operands.<b> = { kind = "per_query", dtype = "acc" }
outputs = { out = "weighted(<x>, <y>, <z>, <b>)", lse = "log_add(<y>, <b>)" }
refs = { out = "<x>", lse = "<y>" }
"""
    ]
}


# Invalid entries: (text, entry, field, message, fix); tests/gen/test_spec_errors.py.
def entry(expr="softmax(dot * scale) * v_cache", more="", drop=""):
    operands = "\n".join(
        line
        for line in (
            'operands.q = { kind = "query", grad = false }',
            'operands.k_cache = { kind = "keys", grad = false }',
            'operands.v_cache = { kind = "values", grad = false }',
            'operands.page_table = { kind = "table", dtype = "i32", grad = false }',
            'operands.key_length = { kind = "count", dtype = "i32", grad = false }',
        )
        if not drop or drop not in line
    )
    return f"""[op.seen]
family = "decoding"
brief = "b"
{operands}
expr = "{expr}"
ref = "{expr}"
[op.seen.scalars]
left = {{ kind = "int", value = 20 }}
right = {{ kind = "int", value = 0 }}
scale = 0.125
{more}
"""


REFUSED = {
    "another score": (
        entry("softmax(dot * scale * 2) * v_cache"),
        "op.seen",
        "expr",
        "is `softmax(dot * scale * 2) * v_cache`",
        "write it as attention_decode has it",
    ),
    "a further scalar": (
        entry(more="softcap = 2"),
        "op.seen",
        "scalars",
        "are left, right, scale, softcap",
        "name left, right, scale",
    ),
    "a cache without a table": (
        entry(drop="table"),
        "op.seen",
        "operands",
        'has 0 operands of kind "table" beside a "keys"',
        "add one",
    ),
    "no numbers of keys": (entry(drop="count"), "op.seen", "operands", "are q =", "in order"),
    "three arguments of softmax": (
        entry("softmax(dot, scale) * v_cache"),
        "op.seen",
        "expr",
        "calls `softmax` with 2 arguments, it takes 1",
        "see the expression language",
    ),
}
