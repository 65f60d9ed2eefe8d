# SPDX-License-Identifier: Apache-2.0
"""Tests of functions that take their activation as a run-time argument.

Their results must have the bits of the functions compiled for one activation, and they must refuse
unknown activations. tests/cpu, tests/emu and tests/cuda use this module.
"""

import functools

import cases
import checks
import kflib
import numpy as np
from storage import Failure, first_difference, to_float

MANIFEST = kflib.manifest()
FUNCTIONS = MANIFEST["any"]
KNOWN = {f["name"]: f for f in MANIFEST["functions"]}
IDS = {a["name"]: a["id"] for a in MANIFEST["activations"]}
# One function per place of an activation in a schedule. Elementwise: outputs only, gradients by
# result and by inputs, integers, sums in registers and through pipeline stages, packed halves,
# planes, dropout. Rows: before and after reductions, cached between passes, with weights, sums per
# group.
SOME = [
    ("add_{act}", "f32"),
    ("add_{act}", "i32"),
    ("bias_{act}", "bf16"),
    ("{act}_glu", "f16"),
    ("batch_norm_{act}", "f32"),
    ("layer_norm_{act}", "bf16"),
    ("group_norm_{act}", "f32"),
    ("layer_norm_{act}_dropout", "f64"),
]
SIZES = {
    "flat": [(1003,), (512,), (7,)],
    "rows": [(5, 300), (36, 37), (9, 1024)],
    "planes": [(2, 3, 40), (4, 7, 1), (3, 5, 49)],
    "axis": [(5, 7, 3), (3, 300, 1), (2, 70, 16)],
    "groups": [(2, 1, 3, 12, 5), (2, 3, 2, 8, 6), (1, 2, 2, 6, 20)],
    "channels": [(2, 3, 40), (4, 7, 1), (3, 5, 49)],
}


def chosen(ops):
    """Returns [(function, function of one activation)].

    Level 1: functions of `ops` with a few activations each, together all activations. Level 2: a
    sample of every function. Level 3: all.
    """
    if cases.LEVEL > 1:
        return [
            (f, KNOWN[name])
            for f in FUNCTIONS
            for name in f["functions"].values()
            if cases.sampled(KNOWN[name])
        ]
    some = [
        f
        for f in FUNCTIONS
        if (f["op"], f["dtypes"][0]) in ops
        and len(f["dtypes"]) == 1
        and f["state"] in (False, f["bwd"])
    ]
    found = []
    for turn, f in enumerate(sorted(some, key=lambda f: f["dtypes"][0] == "i32")):
        found += [
            (f, KNOWN[name])
            for i, (act, name) in enumerate(f["functions"].items())
            if (i + turn) % (4 if f["family"] == "elementwise" else 11) == 0
            or f["dtypes"][0] == "i32"
            or (act == "leaky_relu" and f["bwd"])
        ]
    return found


def library_of(pairs):
    """Returns the functions to compile for `pairs`, without repetitions."""
    return list({f["name"]: f for pair in pairs for f in pair}.values())


def values(f, g, given, default=False):
    """Converts the arguments of g, compiled for one activation, to those of f. default: passes NULL
    for the activation's scalars."""
    names = [a["name"] for a in g["arguments"] if a["role"] == "act_scalar"]
    scalars = np.array(
        [given[n] for n in names] + [np.nan], np.float64 if f["dtypes"][0] == "f64" else np.float32
    )
    return {
        **given,
        "activation": IDS[g["activation"]],
        "activation_scalars": None if default else scalars.ctypes.data,
        "held": scalars,
    }


def outputs(lib, memory, f, layout, own):
    """Calls f and returns {output: array}. own: converts the layout's arguments to those of f."""
    result, back = memory.run(layout.image, lambda base: lib.call(f, own(layout.given(base))))
    if result:
        raise Failure(f"{layout.where}: {f['name']} returned {result} ({lib.detail})")
    layout.untouched(back)
    return layout.outputs(back)


def defaults(g):
    return {a["name"]: a["default"] for a in g["arguments"] if a["role"] == "act_scalar"}


def same(array, other, dtype):
    """True if two arrays agree to the bit. NaNs may differ in theirs: processors choose between two
    operands' NaNs."""
    if dtype[0] == "i":
        return np.array_equal(array, other)
    raw = f"u{array.dtype.itemsize}"
    nan = [np.isnan(to_float(x, dtype)) for x in (array, other)]
    return bool(np.all((array.view(raw) == other.view(raw)) | (nan[0] & nan[1])))


def compare(lib, memory, f, g, exact=True, files=()):
    """Compares f with g on several sizes, by result and by inputs, with explicit and with default
    scalars.

    exact: compares bits; otherwise f must be within the oracle's bound. files: the user's spec
    files.
    """
    drops = [(checks.result_of(g),), checks.instead_of(g)] if checks.result_of(g) else [()]
    for k, sizes in enumerate(SIZES[f["form"]]):
        for drop in drops:
            layout = checks.Layout(
                lib, g, sizes, cases.VALUES[k % 3], drop=drop, shift=k % 2, files=files
            )
            if k == 2:
                layout.scalars |= defaults(g)
            found = outputs(lib, memory, f, layout, functools.partial(values, f, g, default=k == 2))
            if exact:
                compare_bits(f, layout, outputs(lib, memory, g, layout, dict), found)
            else:
                layout.check(found)


def compare_bits(f, layout, wanted, found):
    for name, array in wanted.items():
        if not same(array, found[name], layout.tensors[name]["dtype"]):
            raise Failure(
                f"{layout.where}: {name} of {f['name']} without {layout.drop} has other bits, "
                f"{first_difference(found[name], array)}"
            )


def refused(lib, memory, f, g, layout, **changed):
    """Returns the result of a call that must not write anything."""
    result, back = memory.run(
        layout.image, lambda base: lib.call(f, values(f, g, layout.given(base)) | changed)
    )
    assert np.array_equal(back, layout.image), "something was written"
    return result


def refuses(lib, memory, f, g):
    """Checks that f refuses unknown activation numbers and activations that it lacks."""
    layout = checks.Layout(lib, g, SIZES[f["form"]][0])
    name = f["cpu_name"] if lib.backend == "cpu" else f["name"]
    for number in (
        999,
        -1,
        2**31 - 1,
        -2,
        *([IDS["none"]] if "none" not in f["functions"] else []),
    ):
        result = refused(lib, memory, f, g, layout, activation=number)
        assert (result, lib.detail) == (
            6,
            f"{name}: activation is {number}, expected the number of one that this function has",
        )


def refuses_falling(lib, memory, f, g):
    """Checks that f refuses a scalar for which the result does not determine the gradient."""
    layout = checks.Layout(lib, g, SIZES[f["form"]][0])
    layout.scalars["negative_slope"] = -0.5
    assert (
        refused(lib, memory, f, g, layout) == 3
        and "negative_slope is -0.5, expected 0 or more where `out` is given" in lib.detail
    ), lib.detail
