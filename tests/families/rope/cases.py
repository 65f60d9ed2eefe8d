# SPDX-License-Identifier: Apache-2.0
"""Rope: shapes, positions (some out of range) and the float64 oracle.

Shapes are [rows, heads, dim, pairs, positions]; with two tensors
[rows, heads, kv_heads, dim, pairs, positions].
"""

import types

import numpy as np
import storage

# Whole and partial vectors, whole and partial heads, no pairs, more vectors than threads in a
# block, several heads per block; empty tensors.
SHAPES = [
    [(4, 2, 8, 4, 6), 0],
    [(5, 3, 13, 5, 3), 1],
    [(7, 4, 64, 32, 20), 0],
    [(2, 3, 48, 16, 3), 0],
    [(1, 2, 10, 0, 2), 0],
    [(0, 2, 8, 4, 3), 0],
    [(2, 0, 8, 4, 3), 0],
    [(2, 3, 0, 0, 3), 0],
    [(2, 2, 8, 4, 0), 0],
    [(2, 1, 5000, 2400, 3), 0],
    [(1, 1, 301, 150, 2), 1],
    [(40, 5, 128, 64, 64), 0],
]
MORE = [
    [(r, h, d, p, 7), (r + d) % 3]
    for r in (1, 9)
    for h in (1, 6)
    for d in (2, 3, 32, 80, 256)
    for p in (1, d // 4, d // 2)
]
LARGE = (2**45, 1, 2, 1, 2)
OVERFLOWS = [
    ((2**30, 2**28, 3, 1, 1), "dim"),
    ((3, 1, 1, 2**30, 2**30), "pairs"),
    ((2**59, 1, 1, 1, 1), "rows"),
]  # (sizes, the size that overflows)
# Sizes for the program that calls every function (tests/support/builds/every_call.c): small ones,
# and ones with several units per thread.
CALLS = (
    [(1, 1, 2, 1, 1), (3, 2, 5, 2, 4), (2, 3, 49, 20, 3), (5, 1, 300, 150, 2)],
    [(67, 9, 97, 40, 33), (301, 2, 130, 65, 300)],
)
TORCH = (3, 2, 6, 2, 5)  # sizes in the PyTorch tests
EXTENTS = {
    "rows": (2, 3),
    "heads": (2,),
    "dim": (10,),
    "pairs": (4,),
    "positions": (9,),
}  # sizes in the tests of functions on tensors
COUNTED = [
    ("rows", "heads", "dim"),
    ("positions", "pairs"),
]  # sizes of tensors whose elements are counted
FAR = {"i64": 2**40, "i32": 2**31 - 1}


def extents(call):
    """(pairs, number of positions). Computed angles accept every position from 0 on."""
    return (call.sizes[-1], 2**62) if call.f["form"].startswith("computed") else call.sizes[-2:]


def prepare(call):
    pass


def draw(rng, call, a, values):
    shape = storage.shape_of(call.f, call.sizes, a)
    if a["kind"] == "number":
        positions = min(extents(call)[1], 5000)
        found = rng.integers(0, max(positions, 1), shape)
        outside = rng.choice([-1, positions, FAR[a["dtype"]], -FAR[a["dtype"]]], shape)
        return np.where(rng.random(shape) < 0.15, outside, found).astype(
            storage.STORAGE[a["dtype"]]
        )
    if a["role"] != "in":
        return storage.from_float(np.full(shape, np.nan), a["dtype"])
    if a["kind"] == "frequency":
        return storage.from_float(np.exp2(rng.uniform(-13, 0, shape)), a["dtype"])
    if a["kind"] == "angle":
        return storage.from_float(rng.uniform(-1, 1, shape), a["dtype"])
    return storage.draw(rng, shape, a["dtype"], values)


def sides(call, array, pairs):
    """Returns the two elements of each pair."""
    beside = call.kernel.neighbours
    return (
        (array[..., 0 : 2 * pairs : 2], array[..., 1 : 2 * pairs : 2])
        if beside
        else (array[..., :pairs], array[..., pairs : 2 * pairs])
    )


def check(call, got, weights=None):
    inputs = [
        a["name"]
        for a in call.f["arguments"]
        if a["role"] == "in" and a["kind"] not in ("angle", "frequency", "number")
    ]
    for name, source in zip(got, inputs[-len(got) :]):
        if name not in call.drop:
            check_one(call, got, name, source)


def check_one(call, got, name, source):
    dtype, (pairs, positions) = call.f["dtypes"][0], extents(call)
    compute, number = "f64" if dtype == "f64" else "f32", call.data["position"]
    number = np.arange(call.sizes[0]) if "position" in call.drop else number
    given = storage.to_float(call.data[source], dtype)
    there = (number >= 0) & (number < positions)
    place = np.where(there, number, 0)
    with np.errstate(all="ignore"):
        if "frequency" in call.data:
            angle = (place[:, None] * call.data["frequency"].astype(np.float64))[:, None]
            scale = float(call.scalars["scale"])
            cosine, sine, off = (
                np.cos(angle) * scale,
                np.sin(angle) * scale,
                (2 + np.abs(angle)) * scale,
            )  # the angle is rounded
        else:
            tables = (
                call.data[name_].astype(np.float64) if positions else np.zeros((1, pairs))
                for name_ in ("cosine", "sine")
            )
            (cosine, sine), off = (table[place][:, None] for table in tables), 0.0
        sine = -sine if call.f["bwd"] else sine  # the backward rotates back
        # The rounding of an angle may change the sign of these.
        unsure = there[:, None, None] & (
            np.minimum(np.abs(cosine), np.abs(sine)) <= storage.EPS[compute] * off
        )
        a, b = sides(call, given, pairs)
        want, size = given.copy(), np.abs(np.nan_to_num(given, posinf=0.0, neginf=0.0))
        for to, bound, terms in zip(
            sides(call, want, pairs),
            sides(call, size, pairs),
            ((a * cosine, -b * sine), (b * cosine, a * sine)),
        ):
            value = np.where(
                there[:, None, None], terms[0] + terms[1], 0.0 if call.f["bwd"] else np.nan
            )
            bound[...] = sum(
                np.abs(np.nan_to_num(t, posinf=0.0, neginf=0.0)) for t in (*terms, a * off, b * off)
            )
            to[...] = value
    found = storage.to_float(got[name], dtype)
    endless = unsure & ~(np.isfinite(a) & np.isfinite(b))
    for to, value in zip(sides(call, want, pairs), sides(call, found, pairs)):
        to[...] = np.where(
            endless & ~np.isfinite(value), value, to
        )  # infinite elements give an arbitrary sum of infinities
    storage.compare(
        found,
        want,
        dtype,
        compute,
        3,
        size,
        3 * np.ones_like(size),
        size,
        False,
        f"{call.where}: {name}",
    )


# Two tensors: equally many heads, fewer heads in the second, no heads in one of them.
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
        ],
        MORE=[
            [(r, h, k, d, p, 7), (r + d) % 3]
            for r in (1, 9)
            for h, k in ((1, 1), (6, 2))
            for d in (3, 32, 80)
            for p in (1, d // 2)
        ],
        LARGE=(2**45, 1, 1, 2, 1, 2),
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
# The forms without a table by position.
SINGLE = types.SimpleNamespace(
    SHAPES=SHAPES,
    MORE=MORE,
    LARGE=LARGE,
    OVERFLOWS=OVERFLOWS,
    CALLS=CALLS,
    TORCH=TORCH,
    EXTENTS=EXTENTS,
    COUNTED=COUNTED,
)
for _form, _of in (("computed_paired", SINGLE), ("computed_both", FORMS["both"])):
    FORMS[_form] = types.SimpleNamespace(
        SHAPES=[[s[:-1], shift] for s, shift in _of.SHAPES],
        MORE=[[s[:-1], shift] for s, shift in _of.MORE],
        LARGE=_of.LARGE[:-1],
        OVERFLOWS=[(s[:-1], word) for s, word in _of.OVERFLOWS if word != "pairs"],
        CALLS=tuple([s[:-1] for s in found] for found in _of.CALLS),
        TORCH=_of.TORCH[:-1],
        EXTENTS={size: n for size, n in _of.EXTENTS.items() if size != "positions"},
        COUNTED=[*_of.COUNTED[:-1], ("pairs",)],
        prepare=prepare,
        draw=draw,
        check=check,
    )


# Faults to plant and the functions that must fail: tests/emu/test_seeded.py.
FAULTS = {
    "the second tensor's first head is taken for the first tensor's": (
        "kf/ops/rope_qk.device.cuh",
        r"kfi_head >= g\.own",
        "kfi_head > g.own",
        ("kf_rope_qk_f32", "kf_rope_qk_bwd_bf16"),
        (),
    )
}
# Faults in C: tests/cpu/test_mutation.py.
BROKEN = {
    "rope: the second tensor has as many heads as the first": (
        "kf/core/rope/rope.h",
        r"heads = m->heads\[tensor\]",
        "heads = m->heads[0]",
        ("kf_cpu_rope_qk_f32", "kf_cpu_rope_interleaved_qk_bwd_bf16"),
    ),
    "rope: without positions all rows have the first one": (
        "kf/core/rope/rope.h",
        r"!m->numbers\s+\? row",
        "!m->numbers ? 0 * row",
        ("kf_cpu_rope_f32", "kf_cpu_rope_qk_bwd_f32"),
    ),
    "rope: frequencies are read by the position": (
        "kf/core/rope/rope.h",
        r"m->computed \? 0 : position",
        "m->computed ? position / 4096 : position",
        ("kf_cpu_rope_computed_f32",),
    ),
}
# Entries that tests/support/functions/odd_names.py renders with unusual names.
NAMES = {
    "rope": [
        """
operands.<x> = { kind = "halves", parts = ["<a>", "<b>"] }
operands.<k> = "more"
operands.<c> = { kind = "angle", dtype = "acc", grad = false }
operands.<d> = { kind = "angle", dtype = "acc", grad = false }
operands.<i> = { kind = "number", dtype = "I", grad = false }
scalars = { <s> = 2.0 }
outputs = { <u> = "(<a> * <c> - <b> * <d>) * <s>", <v> = "<a> * <d> + <b> * <c>" }
refs = { <u> = "(<a> * <c> - <b> * <d>) * <s>", <v> = "<a> * <d> + <b> * <c>" }
"""
    ]
}
# Expected functions: tests/gen/test_names.py.
FUNCTIONS = dict.fromkeys(
    (
        "rope",
        "rope_interleaved",
        "rope_qk",
        "rope_interleaved_qk",
        "rope_computed",
        "rope_computed_qk",
        "rope_interleaved_computed",
        "rope_interleaved_computed_qk",
    ),
    (0, True, "with numbers of 32 bits too", True),
)
# One function and the maximum tokens of its header: tests/headers/test_compile_cost.py.
COMPILED = {"rope": ("kf_rope_bf16", 44500)}
PACKAGED = ["rope_qk"]  # the Python package of level 1 has it
ON_TENSORS = [
    "rope",
    "rope_interleaved_qk",
    "rope_computed",
    "rope_computed_qk",
]  # functions on tensors tested at level 1


# Invalid entries: (text, entry, field, message, fix); tests/gen/test_spec_errors.py.
HALVES = '{ kind = "halves", parts = ["a", "b"] }'


def turned(operands, family="rope"):
    """The text of an op that swaps the elements of pairs."""
    place = '{ kind = "number", dtype = "I", grad = false }'
    return f'''[op.turn]
family = "{family}"
brief = "a, b to b, a"
operands = {{ {operands}, place = {place} }}
outputs = {{ first = "b", second = "a" }}
refs = {{ first = "b", second = "a" }}
'''


REFUSED = {
    "a second tensor of pairs twice": (
        turned(f'q = {HALVES}, k = "more", v = "more"'),
        "op.turn",
        "operands",
        "not one tensor of pairs",
        'k = "more"',
    ),
    "a second tensor of pairs alone": (
        turned('k = "more"'),
        "op.turn",
        "operands",
        "not one tensor of pairs",
        "halves",
    ),
    "an operand called as a result is": (
        turned(f'q_out = {HALVES}, q = "more"'),
        "op.turn",
        "operands",
        "`q_out` is a result",
        "rename it",
    ),
    "a table and frequencies": (
        turned(
            f'x = {HALVES}, c = {{ kind = "angle", dtype = "acc", grad = false }}, '
            'f = { kind = "frequency", dtype = "acc", grad = false }'
        ),
        "op.turn",
        "operands",
        "not one tensor of pairs",
        '"frequency"',
    ),
}
