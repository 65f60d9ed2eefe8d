# SPDX-License-Identifier: Apache-2.0
"""Copies to another layout: shapes [batch, rows, cols] and the exact oracle."""

import types

import numpy as np
import storage

# Whole tiles, partial ones, several in a row and below each other; vectors on both sides, on one
# side and on none; narrow matrices of both directions; empty tensors. The first one is small:
# tests/errors places its tensors at a fixed distance.
SHAPES = [
    [(1, 16, 24), 0],
    [(1, 64, 64), 0],
    [(2, 72, 136), 0],
    [(1, 128, 72), 1],
    [(2, 65, 64), 0],
    [(2, 64, 65), 0],
    [(3, 67, 129), 0],
    [(1, 3, 500), 0],
    [(2, 300, 5), 0],
    [(5, 16, 24), 0],
    [(0, 8, 8), 0],
    [(2, 0, 8), 0],
    [(2, 8, 0), 0],
    [(1, 1, 1), 1],
]
MORE = [
    [(b, r, c), (r + c) % 3]
    for b in (1, 7)
    for r in (1, 15, 16, 32, 63, 200)
    for c in (2, 17, 31, 64, 264)
]
LARGE = (2**45, 1, 2)  # needs more blocks than a grid may have
# Sizes for the program that calls every function (tests/support/builds/every_call.c).
CALLS = ([(1, 1, 2), (3, 2, 5), (2, 70, 33), (1, 64, 128)], [(6, 97, 140), (2, 1000, 3)])
TORCH = (2, 3, 5)  # sizes in the PyTorch tests


def prepare(call):
    pass


def draw(rng, call, a, values):
    shape = storage.shape_of(call.f, call.sizes, a)
    if a["role"] != "in":
        return storage.from_float(np.full(shape, np.nan), a["dtype"])
    return storage.draw(rng, shape, a["dtype"], values)


def check(call, got, weights=None):
    """Compares bits: a copy keeps the payload of NaN, too."""
    source = [a["name"] for a in call.f["arguments"] if a["role"] == "in"][-1]
    for name, found in got.items():
        if name in call.drop:
            continue
        want = np.ascontiguousarray(call.data[source].swapaxes(1, 2))
        bits = f"u{want.dtype.itemsize}"
        wrong = np.flatnonzero(found.view(bits) != want.view(bits))
        if wrong.size:
            first = np.unravel_index(wrong[0], want.shape)
            raise storage.Failure(
                f"{call.where}: {name}: {wrong.size} elements wrong, first at "
                f"{tuple(map(int, first))}: got {found[first]}, expected {want[first]}"
            )


def of_form(size, other, extents):
    """The same for one layout, whose sizes after the batch are `size` and `other`."""
    return types.SimpleNamespace(
        SHAPES=SHAPES,
        MORE=MORE,
        LARGE=LARGE,
        OVERFLOWS=[((2**30, 2**28, 3), other), ((2**30, 2**30, 1), size), ((2**59, 1, 1), "batch")],
        CALLS=CALLS,
        TORCH=TORCH,
        EXTENTS=extents,
        COUNTED=[("batch", size, other)],
        prepare=prepare,
        draw=draw,
        check=check,
    )


IMAGES = {"batch": (2,), "channels": (3,), "pixels": (4, 5)}
FORMS = {
    "matrices": of_form("rows", "cols", {"batch": (2, 3), "rows": (4,), "cols": (5,)}),
    "channels_last": of_form("channels", "pixels", IMAGES),
    "channels_first": of_form("channels", "pixels", IMAGES),
}
NAMES_OF_OPS = ("transpose", "nchw_to_nhwc", "nhwc_to_nchw")
FUNCTIONS = dict.fromkeys(NAMES_OF_OPS, (0, True, 6, True))  # tests/gen/test_names.py
# One function and the maximum tokens of its header: tests/headers/test_compile_cost.py.
COMPILED = {"transpose": ("kf_transpose_bf16", 44500)}
PACKAGED = ["transpose", "nchw_to_nhwc"]  # the Python package of level 1 has them
ON_TENSORS = list(NAMES_OF_OPS)  # functions on tensors tested at level 1
REFERENCES = dict.fromkeys(NAMES_OF_OPS, lambda t, s: [t["x"].transpose(1, 2)])

# Entries that tests/support/functions/odd_names.py renders with unusual names.
NAMES = {
    "transpose": [
        """
operands = { <x> = "elem" }
expr = "<x>"
ref = "<x>"
"""
    ]
}
FEW_NAMES = {"transpose": 15}  # its code has few names that do not begin with kfi_
SOME_NAMES = {"transpose": {"load", "store", "tensors"}}
# Invalid entries: (text, entry, field, message, fix); tests/gen/test_spec_errors.py.
REFUSED = {
    "a transposed copy that computes": (
        '[op.turn]\nfamily = "transpose"\nbrief = "b"\noperands = { x = "elem" }\n'
        'expr = "2 * x"\nref = "2 * x"\n',
        "op.turn",
        "expr",
        "computes something",
        'write expr = "x", a copy',
    ),
    "a transposed copy of two operands": (
        '[op.turn]\nfamily = "transpose"\nbrief = "b"\noperands = { x = "elem", y = "elem" }\n'
        'expr = "x"\nref = "x"\n',
        "op.turn",
        "operands",
        "are several",
        'operands = { x = "elem" }',
    ),
}
CORE = "kf/core/transpose/transpose.cuh"
# Faults to plant and the functions that must fail: tests/emu/test_seeded.py.
FAULTS = {
    "the second row of a word is the first one": (
        CORE,
        r"v\[u\]\[p\] \+ e \* size",
        "v[u][0] + e * size",
        ("kf_transpose_bf16",),
        (),
    ),
    "a tile's last row is not stored": (
        CORE,
        r"c < g\.cols\)\s+kfi_copy<size \* store>",
        "c + 1 < g.cols) kfi_copy<size * store>",
        ("kf_transpose_f32", "kf_nchw_to_nhwc_bf16"),
        (),
    ),
    "a narrow matrix loses the last element of its shorter side": (
        CORE,
        r"i < g\.few",
        "i + 1 < g.few",
        ("kf_transpose_f32",),
        (),
    ),
    "the column's index is not part of the swizzle of a load": (
        CORE,
        r"kfi_transpose_at<size>\(row\[u\], col\[u\] \+ e\)",
        "kfi_transpose_at<size>(row[u], col[u])",
        ("kf_transpose_f32", "kf_nhwc_to_nchw_bwd_bf16"),
        (),
    ),
}
# Faults in C: tests/cpu/test_mutation.py.
BROKEN = {
    "transpose: a partial tile is as wide as it is high": (
        "kf/core/transpose/transpose.h",
        r"col < count\[1\]",
        "col < count[0]",
        ("kf_cpu_transpose_f32", "kf_cpu_nhwc_to_nchw_bwd_bf16"),
    ),
    "transpose: all matrices are the first one": (
        "kf/core/transpose/transpose.h",
        r"base = part / per",
        "base = part / per / m->batch",
        ("kf_cpu_transpose_f64",),
    ),
}
