# SPDX-License-Identifier: Apache-2.0
"""Rope + RMS norm: shapes [rows, heads, kv_heads, dim, pairs, positions] of two tensors, positions
(some out of range) and the float64 oracle. The oracle is the closed form of the root mean square
norm and its gradient, independent of the code under test."""

import types

import cases
import numpy as np
import storage

FAR = {"i64": 2**40, "i32": 2**31 - 1}


def prepare(call):
    pass


def draw(rng, call, a, values):
    shape = storage.shape_of(call.f, call.sizes, a)
    if a["kind"] == "number":
        positions = call.sizes[-1]
        found = rng.integers(0, max(positions, 1), shape)
        outside = rng.choice([-1, positions, FAR[a["dtype"]], -FAR[a["dtype"]]], shape)
        return np.where(rng.random(shape) < 0.15, outside, found).astype(
            storage.STORAGE[a["dtype"]]
        )
    if a["role"] != "in":
        return storage.from_float(np.full(shape, np.nan), a["dtype"])
    if a["kind"] == "angle":
        return storage.from_float(rng.uniform(-1, 1, shape), a["dtype"])
    found = storage.draw(
        rng, shape, a["dtype"], "normal" if values == "wide" and a["kind"] == "scale" else values
    )
    # Squares of the largest values overflow, so every other row has values whose squares are
    # finite.
    if values == "wide" and len(shape) == 3:
        some = storage.to_float(found[::2], a["dtype"])
        found[::2] = storage.from_float(np.clip(some, -(2.0**12), 2.0**12), a["dtype"])
    return found


def sides(call, array, pairs):
    """Returns the two elements of each pair."""
    beside = call.kernel.neighbours
    return (
        (array[..., 0 : 2 * pairs : 2], array[..., 1 : 2 * pairs : 2])
        if beside
        else (array[..., :pairs], array[..., pairs : 2 * pairs])
    )


def turned(call, given, size, outside):
    """Returns (rotated values, magnitudes of their terms); a backward rotates back."""
    pairs, positions, number = call.sizes[-2], call.sizes[-1], call.data["position"]
    number = np.arange(call.sizes[0]) if "position" in call.drop else number
    there = (number >= 0) & (number < positions)
    place = np.where(there, number, 0)
    tables = (
        call.data[name].astype(np.float64) if positions else np.zeros((1, pairs))
        for name in ("cosine", "sine")
    )
    cosine, sine = (table[place][:, None] for table in tables)
    sine = -sine if call.f["bwd"] else sine
    (a, b), (x, y) = sides(call, given, pairs), sides(call, size, pairs)
    want, terms = given.copy(), size.copy()
    both = (
        (a * cosine - b * sine, x * np.abs(cosine) + y * np.abs(sine)),
        (b * cosine + a * sine, y * np.abs(cosine) + x * np.abs(sine)),
    )
    for to, bound, (value, of) in zip(sides(call, want, pairs), sides(call, terms, pairs), both):
        to[...] = np.where(there[:, None, None], value, outside)
        bound[...] = np.where(there[:, None, None], of, 0.0)
    return want, terms


def reach(weight):
    """Factor by which a weight enlarges values that were rounded to 0 before it."""
    return 1 + np.abs(weight[np.isfinite(weight)]).max(initial=0)


def gradients(call, x, weight, dout, r, limit):
    """({result: (value, terms, reach of a rounding to 0)}, the heads whose sums overflow)."""
    dim = call.sizes[3]
    dy, size = turned(call, dout, np.abs(dout), 0.0)
    added, terms = (
        (dy * weight * x).sum(-1, keepdims=True),
        (size * np.abs(weight * x)).sum(-1, keepdims=True),
    )
    most = reach(weight)
    slope = 8 * most * (1 + r + np.abs(x) * (r**3 + dim * r**3 + 1) + np.abs(added) * r**3)
    own = (
        r * dy * weight - x * r**3 / dim * added,
        r * size * np.abs(weight) + np.abs(x) * r**3 / dim * terms,
        slope,
    )
    normed = np.abs(x) * r
    of_weight = (
        (dy * x * r).sum((0, 1)),
        (size * normed).sum((0, 1)),
        (8 * (1 + normed + size)).sum((0, 1)),
    )
    largest = (np.abs(x).max(-1, keepdims=True, initial=0) + 1) * (
        np.abs(dy).max(-1, keepdims=True, initial=0) + 1
    )
    return (
        own,
        of_weight,
        ~((terms + 1) * np.maximum(r**3, 1) * largest * most < limit) | ~(r**3 > limit**-0.75),
    )  # too large or too small


def check(call, got, weights=None):
    for i, name in enumerate(("q", "k")):
        check_one(call, got, name, call.sizes[1 + i])


def check_one(call, got, name, heads):
    dtype, dim, bwd = call.f["dtypes"][0], call.sizes[3], call.f["bwd"]
    compute = "f64" if dtype == "f64" else "f32"
    limit, eps = storage.MANTISSA[compute][2] / 4, float(call.scalars["eps"])
    x, weight = (storage.to_float(call.data[n], dtype) for n in (name, f"{name}_weight"))

    def compare(result, k, value, size, slope, skip):
        if result in call.drop or not np.size(got[result]):
            return
        found = storage.to_float(got[result], dtype)
        skip = np.broadcast_to(skip, found.shape)
        storage.compare(
            found,
            np.where(skip, found, value),
            dtype,
            compute,
            k,
            size,
            slope,
            size,
            False,
            f"{call.where}: {result}",
        )

    with np.errstate(all="ignore"):
        squares = (x * x).sum(-1, keepdims=True)
        r = 1 / np.sqrt(squares / max(dim, 1) + eps)
        lost = ~(squares < limit)  # compares NaN too
        if not bwd:
            normed = x * r * weight
            want, size = turned(call, normed, np.abs(normed), np.nan)
            lost |= ~np.isfinite(normed).all(-1, keepdims=True)
            outside = np.isnan(want)
            compare(
                f"{name}_out",
                6 + np.sqrt(dim) / 4,
                want,
                size,
                8 * reach(weight) * np.ones_like(size),
                lost & ~outside,
            )
            of_nan = np.isnan(x).any(-1) & (x.shape[-1] > 0)
            assert np.isnan(storage.to_float(got[f"{name}_out"], dtype)[of_nan]).all(), (
                f"{call.where}: a head with a NaN has others"
            )
            return
        own, of_weight, large = gradients(
            call, x, weight, storage.to_float(call.data[f"d{name}_out"], dtype), r, limit
        )
        lost |= large
        compare(f"d{name}", 8 + np.sqrt(dim) / 2, *own, lost)
        terms = 6 + np.sqrt(call.sizes[0] * heads) + np.sqrt(dim) / 4
        compare(f"d{name}_weight", terms, *of_weight, lost.any() | np.zeros(dim, bool))


# Equal head counts, fewer in the second tensor, none in one of them; one vector per side and
# thread, and several; whole vectors or not; heads of one thread and of a warp; several heads per
# block and more than a block; no elements after the pairs, no pairs, empty shapes.
FORMS = {
    "both": types.SimpleNamespace(
        SHAPES=[
            [(4, 2, 2, 8, 4, 6), 0],
            [(5, 3, 1, 13, 5, 3), 1],
            [(7, 4, 2, 64, 32, 20), 0],
            [(2, 0, 3, 48, 16, 3), 0],
            [(3, 2, 0, 16, 8, 2), 0],
            [(0, 2, 1, 8, 4, 3), 0],
            [(2, 3, 1, 0, 0, 3), 0],
            [(2, 1, 2, 5000, 2400, 3), 0],
            [(40, 6, 2, 128, 64, 64), 0],
            [(3, 1, 2, 301, 150, 2), 1],
            [(2, 2, 1, 10, 0, 2), 0],
            [(3, 1, 1, 1, 0, 2), 0],
            [(90, 9, 3, 16, 4, 50), 0],
            [(700, 4, 1, 32, 16, 5), 0],
        ],
        MORE=[
            [(r, h, k, d, p, 7), (r + d) % 3]
            for r in (1, 9)
            for h, k in ((1, 1), (6, 2))
            for d in (3, 32, 80, 256)
            for p in (1, d // 2)
        ],
        LARGE=(2**45, 1, 1, 2, 1, 2),
        FEW_BLOCKS=True,
        OVERFLOWS=[
            ((2**30, 2**28, 1, 3, 1, 1), "dim"),
            ((2**30, 1, 2**28, 3, 1, 1), "dim"),
            ((3, 1, 1, 1, 2**30, 2**30), "pairs"),
        ],
        CALLS=(
            [(1, 1, 1, 2, 1, 1), (3, 2, 1, 5, 2, 4), (2, 1, 3, 49, 20, 3)],
            [(67, 6, 3, 97, 40, 33), (301, 1, 1, 130, 65, 300)],
        ),
        TORCH=(3, 4, 2, 6, 2, 5),
        EXTENTS={
            "rows": (2, 3),
            "heads": (4,),
            "kv_heads": (2,),
            "dim": (10,),
            "pairs": (4,),
            "positions": (9,),
        },
        COUNTED=[("rows", "heads", "dim"), ("rows", "kv_heads", "dim"), ("positions", "pairs")],
        prepare=prepare,
        draw=draw,
        check=check,
    )
}


# Faults to plant, and the tests that must notice: tests/emu/test_seeded.py.
FAULTS = {
    "a weight's gradient leaves out a block's last head": (
        "kf/ops/rope_rms_norm_qk.device.cuh",
        r"l < per_block; \+\+l",
        "l + 1 < per_block; ++l",
        ("kf_rope_rms_norm_qk_bwd_f32",),
        (),
    ),
    "a weight's sums are read without a barrier": (
        "kf/ops/rope_rms_norm_qk.device.cuh",
        r"= sum\[e\];\n\s*__syncthreads\(\);",
        "= sum[e];",
        ("kf_rope_rms_norm_qk_bwd_f32",),
        (),
    ),
    "a head's sum leaves out half of its threads": (
        "kf/core/rope_norm/rope_norm.cuh",
        r"by = across / 2",
        "by = across / 4",
        ("kf_rope_rms_norm_qk_f32", "kf_rope_rms_norm_qk_bwd_f32"),
        (),
    ),
}
# The same in C: tests/cpu/test_mutation.py.
BROKEN = {
    "rope_norm: both weights' partial sums have one place": (
        "kf/core/rope_norm/rope_norm.h",
        r"kfi_partial\(m->sums, block, tensor\)",
        "kfi_partial(m->sums, block, 0)",
        ("kf_cpu_rope_rms_norm_qk_bwd_f32",),
    ),
    "rope_norm: elements behind the pairs are read at the row's start": (
        "kf/core/rope_norm/rope_norm.h",
        r"p->first\[0\] = paired \? p->at \* p->step : m->pairs \+ p->at",
        "p->first[0] = paired ? p->at * p->step : p->at",
        ("kf_cpu_rope_rms_norm_qk_f32",),
    ),
}
# Entries that tests/support/functions/odd_names.py renders with unusual names.
NAMES = {
    "rope_norm": [
        """
operands.<x> = { kind = "neighbours", parts = ["<a>", "<b>"] }
operands.<k> = "more"
operands.<w> = "scale"
operands.<v> = "scale"
operands.<c> = { kind = "angle", dtype = "acc", grad = false }
operands.<d> = { kind = "angle", dtype = "acc", grad = false }
operands.<i> = { kind = "number", dtype = "I", grad = false }
scalars = { <s> = 2.0, <e> = 1.0 }
norm = "head * rsqrt(mean(head * head) + <s>) * weight"
outputs = { <u> = "(<a> * <c> - <b> * <d>) * <e>", <t> = "<a> * <d> + <b> * <c>" }
refs = { <u> = "(<a> * <c> - <b> * <d>) * <e>", <t> = "<a> * <d> + <b> * <c>" }
"""
    ]
}
# Expected functions: tests/gen/test_names.py.
FUNCTIONS = dict.fromkeys(
    ("rope_rms_norm_qk", "rope_interleaved_rms_norm_qk"),
    (0, True, "with numbers of 32 bits too", True),
)
# One function, and the maximum tokens of its header: tests/headers/test_compile_cost.py.
COMPILED = {"rope_norm": ("kf_rope_rms_norm_qk_bwd_bf16", 61000)}
ON_TENSORS = ["rope_rms_norm_qk"]  # level 1 tests these functions on tensors


# Faulty entries: (text, entry, field, message, fix); tests/gen/test_spec_errors.py.
HALVES = '{ kind = "halves", parts = ["a", "b"] }'


def normed(operands, norm):
    """An op of pairs after a norm of each head."""
    return cases.of_family("rope").turned(operands, "rope_norm") + f"norm = {norm}\n"


REFUSED = {
    "one weight for two tensors": (
        normed(f'q = {HALVES}, k = "more", w = "scale"', '"head * weight * sum(head)"'),
        "op.turn",
        "operands",
        "with a weight for each",
        'k_weight = "scale"',
    ),
    "a norm without a weight": (
        normed(f'q = {HALVES}, k = "more", w = "scale", v = "scale"', '"head * sum(head)"'),
        "op.turn",
        "norm",
        "not an element made of `head`, `weight`",
        "rsqrt",
    ),
    "a norm of the largest": (
        normed(
            f'q = {HALVES}, k = "more", w = "scale", v = "scale"', '"head * weight / max(head)"'
        ),
        "op.turn",
        "norm",
        "not an element made of `head`, `weight`",
        "rsqrt",
    ),
    "a norm that reads an operand": (
        normed(f'q = {HALVES}, k = "more", w = "scale", v = "scale"', '"head * w * sum(head)"'),
        "op.turn",
        "norm",
        "reads `w`",
        "docs/expressions.md",
    ),
    "no norm": (
        normed(f'q = {HALVES}, k = "more", w = "scale", v = "scale"', "1"),
        "op.turn",
        "norm",
        "is 1",
        "head * rsqrt",
    ),
}
