# SPDX-License-Identifier: Apache-2.0
"""Embedding + layer norm: shapes [rows, cols, vocab, positions, types], indices (some out of range)
and the float64 oracle. The oracle is the closed form of layer norm and its gradient, independent of
the code under test."""

import cases
import numpy as np
import storage

# Rows with and without whole vectors; rows of one warp, several warps and a block; rows longer than
# a block holds in any dtype. More rows per index than a run of the sort, tables with more rows than
# a digit of the sort has values, and empty tensors.
SHAPES = [
    [(6, 16, 8, 4, 2), 0],
    [(5, 13, 9, 3, 2), 1],
    [(7, 64, 5, 6, 3), 0],
    [(66, 8, 3, 5, 1), 0],
    [(0, 8, 4, 2, 2), 0],
    [(6, 0, 4, 2, 2), 0],
    [(5, 8, 0, 2, 2), 0],
    [(5, 8, 3, 2, 0), 0],
    [(1, 1, 1, 1, 1), 1],
    [(9, 1024, 7, 4, 2), 0],
    [(700, 12, 300, 40, 2), 0],
    [(2, 2056, 4, 2, 2), 0],
    [(5, 512, 6, 3, 2), 0],
    [(4, 256, 3, 2, 2), 0],
    [(3, 8208, 3, 2, 2), 0],
    [(3, 24, 70000, 5, 2), 0],
    [(2, 4099, 3, 2, 1), 0],
]
MORE = [
    [(r, c, v, 7, 2), (r + c) % 3]
    for r in (1, 33, 257, 2000)
    for c in (1, 7, 16, 96, 257, 768)
    for v in (1, 255, 1000)
]
LARGE = (2**45, 1, 2, 2, 2)  # needs more blocks than a grid may have
OVERFLOWS = [
    ((2**30, 2**30, 3, 3, 3), "cols"),
    ((3, 2**30, 2**30, 3, 3), "cols"),
    ((3, 2**30, 3, 2**30, 3), "cols"),
    ((3, 2**30, 3, 3, 2**30), "cols"),
    ((2**59, 1, 1, 1, 1), "rows"),
    ((1, 1, 1, 1, 2**59), "types"),
]  # (sizes, the size that overflows)
# Launches per call: the rows, the sums of weights; per table three per digit of the sort, its
# bounds, two for the sums.
LAUNCHES = 34
CALLS = (
    [(1, 1, 1, 1, 1), (3, 5, 4, 3, 2), (2, 49, 3, 2, 2)],
    [(67, 97, 33, 40, 2), (301, 130, 65, 300, 2)],
)
TORCH = (3, 4, 7, 5, 2)  # sizes in the PyTorch tests
EXTENTS = {
    "rows": (2, 3),
    "cols": (8,),
    "vocab": (7,),
    "positions": (5,),
    "types": (2,),
}  # sizes in the tests of functions on tensors
COUNTED = [
    ("rows", "cols"),
    ("vocab", "cols"),
    ("positions", "cols"),
    ("types", "cols"),
]  # sizes of tensors whose elements are counted
LOOKUP = cases.of_family("embedding")
READS_SOME_ROWS, FAR, prepare = LOOKUP.READS_SOME_ROWS, LOOKUP.FAR, LOOKUP.prepare
TABLES = {"word": "index", "position_table": "position", "type_table": "type"}


def draw(rng, call, a, values):
    shape = storage.shape_of(call.f, call.sizes, a)
    if a["kind"] == "number":
        below = a["index"]["below"]
        most = call.sizes[call.f["sizes"].index(below)]
        found = rng.integers(0, max(most, 1), shape)
        padding = call.f["scalars"]["padding_idx"] if below == "vocab" else -1
        if values == "wide":  # all rows have a gradient: the last run ends with the rows
            return np.where(found == padding, 0, found).astype(storage.STORAGE[a["dtype"]])
        if below == "vocab":
            found = np.where(rng.random(shape) < 0.1, padding, found)
        outside = rng.choice([-1, most, FAR[a["dtype"]], -FAR[a["dtype"]]], shape)
        return np.where(rng.random(shape) < 0.06, outside, found).astype(
            storage.STORAGE[a["dtype"]]
        )
    accumulated = a["accumulated"] and call.scalars.get("beta")
    if a["role"] != "in" and not accumulated:
        return storage.from_float(np.full(shape, np.nan), a["dtype"])
    table = a["role"] == "in" and a["kind"] in ("table", "positions", "types")
    found = storage.draw(
        rng,
        shape,
        a["dtype"],
        values
        if table or values == "special" and a["name"] != "dout" and not accumulated
        else "normal",
    )
    if values == "wide" and table:  # values whose squares are finite
        found = storage.from_float(
            np.clip(storage.to_float(found, a["dtype"]), -(2.0**12), 2.0**12), a["dtype"]
        )
    return found


def gather(call):
    """(rows whose indices are all in range, the rows' sums, the sums of their magnitudes)."""
    there = np.ones(call.sizes[0], bool)
    for i, number in enumerate(TABLES.values()):
        there &= (call.data[number] >= 0) & (call.data[number] < call.sizes[2 + i])
    x, size = np.zeros(call.sizes[:2]), np.zeros(call.sizes[:2])
    for table, number in TABLES.items():
        found = storage.to_float(call.data[table], call.f["dtypes"][0])[call.data[number][there]]
        x[there] += found
        size[there] += np.abs(found)
    return there, x, size


def moments(call, x):
    n = max(call.sizes[1], 1)
    mean = x.sum(1, keepdims=True) / n
    return mean, 1 / np.sqrt(
        ((x - mean) ** 2).sum(1, keepdims=True) / n + float(call.scalars["eps"])
    )


def fill(call):
    """Gives a backward the forward's mean and rstd; NaN for rows with an index out of range."""
    if not call.f["bwd"] or not {"mean", "rstd"} <= call.data.keys():  # an entry of a user
        return
    with np.errstate(all="ignore"):
        there, x, _ = gather(call)
        for name, value in zip(("mean", "rstd"), moments(call, x)):
            call.data[name] = storage.from_float(
                np.where(there, value[:, 0], np.nan), call.tensors[name]["dtype"]
            )


def weight_of(call):
    return (
        np.ones(call.sizes[1])
        if "weight" in call.drop
        else storage.to_float(call.data["weight"], call.f["dtypes"][0])
    )


def check(call, got, weights=None):
    compute = "f64" if call.f["dtypes"][0] == "f64" else "f32"
    with np.errstate(all="ignore"):
        (backward if call.f["bwd"] else forward)(
            call, got, compute, storage.MANTISSA[compute][2] / 4
        )


def compare(call, got, name, compute, k, want, size, slope, skip):
    if name in call.drop or not got[name].size:
        return
    dtype = call.tensors[name]["dtype"]
    found = storage.to_float(got[name], dtype)
    skip = np.broadcast_to(skip, found.shape)
    storage.compare(
        found,
        np.where(skip, found, want),
        dtype,
        compute,
        k,
        size,
        slope,
        size,
        False,
        f"{call.where}: {name}",
    )


def forward(call, got, compute, limit):
    dtype, n = call.f["dtypes"][0], call.sizes[1]
    there, x, size = gather(call)
    mean, r = moments(call, x)
    weight = weight_of(call)
    bias = np.zeros(n) if "bias" in call.drop else storage.to_float(call.data["bias"], dtype)
    off = size + size.sum(1, keepdims=True) / max(n, 1)  # error of x - mean
    unsure = 1 + r * r * (np.abs(x - mean) * off).sum(1, keepdims=True) / max(
        n, 1
    )  # error of r itself
    lost = there[:, None] & ~((size * size).sum(1, keepdims=True) < limit)  # compares NaN too
    outside = ~there[:, None]
    k = 8 + np.sqrt(n) / 4
    own = r * np.abs(weight) * (off + np.abs(x - mean) * unsure) + np.abs(bias)
    slope = 8 * (1 + np.abs(weight)) * (1 + r + np.abs(x - mean) * r * r * r)
    compare(
        call,
        got,
        "out",
        compute,
        k,
        np.where(outside, np.nan, (x - mean) * r * weight + bias),
        own,
        slope,
        lost,
    )
    lost = lost[:, 0] | (n == 0)
    mean, r = (np.where(outside, np.nan, value)[:, 0] for value in (mean, r))
    compare(call, got, "mean", compute, k, mean, off.sum(1) / max(n, 1), np.ones(len(x)), lost)
    compare(call, got, "rstd", compute, k, r, r * unsure[:, 0], 1 + r**3, lost)
    of_nan = np.isnan(x).any(1) & (n > 0)
    assert np.isnan(storage.to_float(got["out"], dtype)[of_nan]).all(), (
        f"{call.where}: a row with a NaN has others"
    )


def backward(call, got, compute, limit):
    dtype, (rows, n) = call.f["dtypes"][0], call.sizes[:2]
    there, x, size = gather(call)
    mean, r = (
        np.where(there, storage.to_float(call.data[name], call.tensors[name]["dtype"]), 0.0)[
            :, None
        ]
        for name in ("mean", "rstd")
    )
    dout = np.where(there[:, None], storage.to_float(call.data["dout"], dtype), 0.0)
    t, off, d = x - mean, size + np.abs(mean), dout * weight_of(call)
    scale = r**3 / max(n, 1)
    added, terms = (d * t).sum(1, keepdims=True), (np.abs(d) * off).sum(1, keepdims=True)
    value = d * r - t * scale * added - d.sum(1, keepdims=True) * r / max(n, 1)
    own = np.abs(d) * r + off * scale * terms + np.abs(d).sum(1, keepdims=True) * r / max(n, 1)
    slope = 8 * there[:, None] * (1 + r + off) * (1 + scale * n) * (1 + terms)
    lost = there & ~((own + (1 + scale) * (1 + terms) * (1 + off)).max(1, initial=0) < limit)
    k = 8 + np.sqrt(n) / 2
    of_weight = (dout * t * r, np.abs(dout) * off * r, 8 * (1 + r + off + np.abs(dout)))
    for name, (want, bound, least) in {
        "dweight": of_weight,
        "dbias": (dout, np.abs(dout), np.ones_like(dout)),
    }.items():
        compare(
            call,
            got,
            name,
            compute,
            8 + np.sqrt(rows),
            want.sum(0),
            bound.sum(0),
            least.sum(0),
            lost.any(),
        )
    beta = call.scalars.get("beta", 0.0)
    for table, number in TABLES.items():
        name, at = f"d{table}", call.data[number]
        if name in call.drop:
            continue
        some = there & ((at != call.f["scalars"]["padding_idx"]) | (number != "index"))
        want, bound, least = (np.zeros(got[name].shape) for _ in range(3))
        for to, terms_ in ((want, value), (bound, own), (least, slope)):
            np.add.at(to, at[some], terms_[some])
        skip = np.zeros(len(want), bool)
        skip[at[some & lost]] = True
        count = np.bincount(at[some], minlength=len(want))[: len(want)].max(initial=0)
        if beta:
            old = beta * storage.to_float(call.data[name], dtype)
            want, bound = want + old, bound + np.abs(old)
        compare(call, got, name, compute, k + np.sqrt(count), want, bound, least + 1, skip[:, None])


# Entries that tests/support/functions/odd_names.py renders with unusual names.
NAMES = {
    "embedding_layer_norm": [
        """
operands.<w> = "table"
operands.<p> = "positions"
operands.<t> = "types"
operands.<i> = { kind = "number", dtype = "I", grad = false }
operands.<j> = { kind = "number", dtype = "I", grad = false }
operands.<k> = { kind = "number", dtype = "I", grad = false }
operands.<g> = { kind = "row", absent = 1 }
scalars = { padding_idx = { kind = "int", value = 2, default = -1 }, <s> = 2.0, <e> = 1.0 }
saved = { <l> = "sum(<w> * <e> + <p> - <t>)" }
expr = "(<w> * <e> + <p> - <t>) * <g> * <s> - <l>"
ref = "(<w> * <e> + <p> - <t>) * <g> * <s> - sum(<w> * <e> + <p> - <t>)"
"""
    ]
}


# Faults to plant, and the tests that must notice: tests/emu/test_seeded.py.
FAULTS = {
    "a gathered row's sums leave out the second warp": (
        "kf/core/embedding_layer_norm/embedding_layer_norm.cuh",
        r"unsigned w = 1; w < warps",
        "unsigned w = 2; w < warps",
        ("kf_embedding_add_layer_norm_f32",),
        (),
    ),
    "a gathered row's sums are read without a barrier": (
        "kf/core/embedding_layer_norm/embedding_layer_norm.cuh",
        r"= v\[i\];\n\s*__syncthreads\(\);",
        "= v[i];",
        ("kf_embedding_add_layer_norm_f32",),
        (),
    ),
    "a token's gradient leaves out the part behind its last cut": (
        "kf/core/embedding_layer_norm/embedding_layer_norm.cuh",
        r"cut \+ 1, last \+ 1",
        "cut + 1, last",
        ("kf_embedding_add_layer_norm_bwd_f32",),
        (),
    ),
    "a token's gradient leaves out the part before its first cut": (
        "kf/core/embedding_layer_norm/embedding_layer_norm.cuh",
        r"begin < first \|\| end <= behind",
        "begin <= first || end <= behind",
        ("kf_embedding_add_layer_norm_bwd_f32",),
        (),
    ),
}
# The same in C: tests/cpu/test_mutation.py.
BROKEN = {
    "embeddings: the gradient of a token outside is not cleared": (
        "kf/core/embedding_layer_norm/embedding_layer_norm.h",
        r"memset\(row_grads \+ \(size_t\)\(p \* m->rows\) \* bytes, 0, bytes\)",
        "(void)bytes",
        ("kf_cpu_embedding_add_layer_norm_bwd_f32",),
    ),
    "embeddings: all tables skip the first one's padding token": (
        "kf/core/embedding_layer_norm/embedding_layer_norm.h",
        r"m->skipped\[i\]",
        "m->skipped[0]",
        ("kf_cpu_embedding_add_layer_norm_bwd_f32",),
    ),
}
# Expected functions: tests/gen/test_names.py.
FUNCTIONS = dict.fromkeys(
    ("embedding_add_layer_norm",), (0, True, "with numbers of 32 bits too", True)
)
ON_TENSORS = ["embedding_add_layer_norm"]  # level 1 tests these functions on tensors
# One function, and the maximum tokens of its header: tests/headers/test_compile_cost.py.
COMPILED = {"embedding_layer_norm": ("kf_embedding_add_layer_norm_bwd_bf16", 75000)}
