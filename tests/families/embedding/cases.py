# SPDX-License-Identifier: Apache-2.0
"""Embedding: shapes [rows, cols, vocab], indices (some out of range) and the float64 oracle."""

import numpy as np
import storage

# Rows for four vectors per thread, for one, and of single elements; more vectors than threads in a
# block; tables with more rows than a digit of the sort has values; more rows than a tile of the
# sort; empty tensors.
SHAPES = [
    [(6, 14, 8), 0],
    [(5, 13, 9), 1],
    [(7, 64, 5), 0],
    [(66, 8, 3), 0],
    [(3, 300, 11), 0],
    [(0, 8, 4), 0],
    [(6, 0, 4), 0],
    [(5, 8, 0), 0],
    [(1, 1, 1), 1],
    [(9, 1024, 7), 0],
    [(700, 12, 300), 0],
    [(2, 2056, 4), 0],
    [(2, 4096, 3), 0],
    [(3, 24, 70000), 0],
    [(70, 130, 2), 0],
]
MORE = [
    [(r, c, v), (r + c) % 3]
    for r in (1, 33, 257, 5000)
    for c in (1, 7, 16, 96, 257)
    for v in (1, 2, 255, 256, 1000)
]
LARGE = (2**45, 1, 2)  # needs more blocks than a grid may have
OVERFLOWS = [
    ((2**30, 2**30, 3), "cols"),
    ((3, 2**30, 2**30), "cols"),
    ((2**59, 1, 1), "rows"),
    ((1, 1, 2**59), "vocab"),
]  # (sizes, the size that overflows)
# Launches for a table of 70,000 rows: three per digit of the sort, its bounds, the sums.
LAUNCHES = 11


TORCH = (3, 4, 7)  # sizes in the PyTorch tests
EXTENTS = {
    "rows": (2, 3),
    "cols": (8,),
    "vocab": (7,),
}  # sizes in the tests of functions on tensors
COUNTED = [("rows", "cols"), ("vocab", "cols")]  # sizes of tensors whose elements are counted
READS_SOME_ROWS = True  # only the table rows that are read count as traffic
FAR = {"i64": 2**40, "i32": 2**31 - 1}


def prepare(call):
    """Sets beta = 0.5 in some backward calls."""
    if call.f["bwd"] and sum(call.sizes) % 2:
        call.scalars["beta"] = 0.5


def draw(rng, call, a, values):
    shape = storage.shape_of(call.f, call.sizes, a)
    if a["kind"] == "number":
        vocab = call.sizes[2]
        found = rng.integers(0, max(vocab, 1), shape)
        padding = call.f["scalars"]["padding_idx"]
        if values == "wide":  # every index is valid: the last token ends with the last row
            return np.where(found == padding, 0, found).astype(storage.STORAGE[a["dtype"]])
        found = np.where(rng.random(shape) < 0.1, padding, found)
        outside = rng.choice([-1, vocab, FAR[a["dtype"]], -FAR[a["dtype"]]], shape)
        return np.where(rng.random(shape) < 0.1, outside, found).astype(storage.STORAGE[a["dtype"]])
    if a["role"] != "in" and not call.scalars.get("beta"):
        return storage.from_float(np.full(shape, np.nan), a["dtype"])
    return storage.draw(rng, shape, a["dtype"], values if a["role"] == "in" else "normal")


def check(call, got, weights=None):
    scale, beta = call.scalars["scale"], call.scalars.get("beta", 0.0)
    dtype, number = call.f["dtypes"][0], call.data["index"]
    compute = "f64" if dtype == "f64" else "f32"
    vocab, there = call.sizes[2], (number >= 0) & (number < call.sizes[2])
    [name] = got
    with np.errstate(all="ignore"):
        if not call.f["bwd"]:
            weight = storage.to_float(call.data["weight"], dtype)
            want = np.full((*call.sizes[:2],), np.nan)
            want[there] = weight[number[there]] * scale
            size, terms = np.abs(np.nan_to_num(want, posinf=0.0, neginf=0.0)), 1
        else:
            there &= number != call.f["scalars"]["padding_idx"]
            dout = storage.to_float(call.data["dout"], dtype) * scale
            want, size, count = (
                np.zeros(got[name].shape),
                np.zeros(got[name].shape),
                np.bincount(number[there], minlength=vocab),
            )
            np.add.at(want, number[there], dout[there])
            np.add.at(
                size, number[there], np.abs(np.nan_to_num(dout[there], posinf=0.0, neginf=0.0))
            )
            if beta:
                old = beta * storage.to_float(call.data[name], dtype)
                want, size = want + old, size + np.abs(old)
            terms = 2 + np.sqrt(count[:vocab]).reshape(-1, 1)
    if name in call.drop:
        return
    found = storage.to_float(got[name], dtype)
    storage.compare(
        found,
        want,
        dtype,
        compute,
        2 * terms,
        size,
        terms * np.ones_like(size),
        size,
        False,
        f"{call.where}: {name}",
    )


# Entries that tests/support/functions/odd_names.py renders with unusual names.
NAMES = {
    "embedding": [
        """
operands = { <w> = "table", <i> = { kind = "number", dtype = "I", grad = false } }
scalars = { padding_idx = { kind = "int", value = 2, default = -1 }, <s> = 2.0 }
expr = "<w> * <s>"
ref = "<w> * <s>"
"""
    ]
}
# Invalid entries: (text, entry, field, message, fix); tests/gen/test_spec_errors.py.
REFUSED = {
    "a number without its dtype": (
        '[op.rows_of]\nfamily = "embedding"\nbrief = "b"\n'
        'operands = { w = "table", i = "number" }\nexpr = "w"\nref = "w"\n',
        "op.rows_of",
        "operands",
        'i = { kind = "number", dtype = "T", grad = true }',
        'index = { kind = "number", dtype = "I", grad = false }',
    )
}
# Expected functions: tests/gen/test_names.py.
FUNCTIONS = dict.fromkeys(("embedding",), (0, True, "with numbers of 32 bits too", True))
# One function and the maximum tokens of its header: tests/headers/test_compile_cost.py.
COMPILED = {"embedding": ("kf_embedding_bwd_bf16", 44500)}
PACKAGED = ["embedding"]  # the Python package of level 1 has it
ON_TENSORS = ["embedding"]  # functions on tensors tested at level 1


def reference(t, s):
    """PyTorch's embedding, which refuses the index -1 (tests/support/python/torchops.py)."""
    import torch

    return [torch.nn.functional.embedding(t["index"], t["weight"])]


REFERENCES = {"embedding": reference}
# Faults to plant and the functions that must fail: tests/emu/test_seeded.py.
FAULTS = {
    "the search ends behind the last token's positions": (
        "kf/core/index_sort.cuh",
        r"\(high - low\) / \(probes \+ 1\) \+ 1",
        "(high - low + probes) / (probes + 1)",
        ("kf_embedding_bwd_f32",),
        (),
    ),
    "the sort reads the first digits of a tile again": (
        "kf/core/index_sort.cuh",
        r"first \+ r \* stride",
        "first + 0 * stride",
        ("kf_embedding_bwd_f32",),
        (),
    ),
}
