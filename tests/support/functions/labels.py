# SPDX-License-Identifier: Apache-2.0
"""Checks losses with integer labels of 64 or 32 bits, some of them out of range. Used by tests/cpu,
tests/emu and tests/cuda."""

import kflib
import numpy as np
import storage

OPS = ("cross_entropy", "cross_entropy_with_grad", "nll", "cross_entropy_weighted")
FUNCTIONS = [
    f
    for f in kflib.manifest()["functions"]
    if f["op"] in OPS and f["dtypes"] in (["f32"], ["f32", "i32"])
]
assert all({f["op"] for f in FUNCTIONS if len(f["dtypes"]) == n} == set(OPS) for n in (1, 2))
# A user op with integers in comparisons of every form, and as numbers among floats.
OWN = """
[op.windowed]
family = "rows"
brief = "the elements of a window, the row's sum beside it"
operands = { x = "elem", label = { kind = "per_row", dtype = "I", grad = false } }
scalars = { reach = { kind = "int", value = 3 }, factor = 0.5 }
expr = '''
s = sum(x); t = where(column - 1 <= label + reach or label == reach, x * factor, s)
t + where(count - reach > column, column / 4, reach * factor)'''
ref = '''
(np.where((column - 1 <= label + reach) | (label == reach), x * factor, sum(x))
    + np.where(count - reach > column, column / 4, reach * factor))'''
"""
OUT_OF_RANGE = {
    "i64": (
        -1,
        -(2**62),
        -(2**63),
        2**62,
        2**63 - 1,
        2**32,
        -(2**32) + 1,
    ),  # and the number of columns
    "i32": (-1, -(2**30), -(2**31), 2**30, 2**31 - 1, 2**16, -(2**16) + 1),
}


def dtype_of(f):
    """Returns the dtype of the labels."""
    return next(v["dtype"] for v in f["variables"] if v["name"] == "I")


SAVED = {
    "row_max": lambda x: x.max(-1),
    "log_sum": lambda x: np.logaddexp.reduce(x, -1) - x.max(-1),
}


def call(lib, f, x, labels, ignored):
    """Calls f and returns {output: array}. Other inputs are ones; saved values are those of x."""
    rows, cols = x.shape
    tensors, values = (
        {},
        {"rows": rows, "cols": cols} | {s: 0.0 for s in f["scalars"]} | {"ignore_index": ignored},
    )
    for a in f["arguments"]:
        if "kind" not in a:
            continue
        shape = {"elem": (rows, cols), "row": (cols,), "per_row": (rows,)}[a["kind"]]
        array = {"x": x, "label": np.asarray(labels, storage.STORAGE[dtype_of(f)])}.get(a["name"])
        if a["role"] == "in" and a["name"] in SAVED:
            array = SAVED[a["name"]](x.astype(np.float64)).astype(np.float32)
        if array is None:
            array = np.full(shape, 1.0 if a["role"] == "in" else np.nan, np.float32)
        tensors[a["name"]] = np.ascontiguousarray(array)
        values[a["name"]] = tensors[a["name"]].ctypes.data
    need = lib.workspace_bytes(f, [rows, cols])
    _held, workspace = storage.workspace(need)
    assert lib.call(f, values | {"workspace": workspace, "workspace_bytes": need}) == 0, lib.detail
    return {
        a["name"]: tensors[a["name"]] for a in f["arguments"] if "kind" in a and a["role"] != "in"
    }


def check_beyond(lib):
    """Checks that an out-of-range label gives loss NaN and no gradient, and leaves other rows as
    they are."""
    for f in FUNCTIONS:
        labels = [5, *OUT_OF_RANGE[dtype_of(f)], 40, 7]
        x = np.random.default_rng(1).standard_normal((len(labels), 40)).astype(np.float32)
        inside = np.array([0, len(labels) - 1])
        found, alone = (
            call(lib, f, x, labels, -100),
            call(lib, f, x[inside], np.array(labels)[inside], -100),
        )
        for name, array in found.items():
            outside = np.delete(array, inside, 0)
            assert name in SAVED or (
                np.isnan(outside).all() if name == "loss" else (outside == 0).all()
            ), (f["name"], name)
            assert array[inside].tobytes() == alone[name].tobytes(), (f["name"], name)


def check_ignored(lib):
    """Checks that the ignored label is one exact integer, although float32 cannot tell its
    neighbours apart."""
    x = np.random.default_rng(2).standard_normal((4, 40)).astype(np.float32)
    for f in FUNCTIONS:
        for ignored in (
            (2**24, -(2**53) - 1, 2**62 + 1) if dtype_of(f) == "i64" else (2**24, -(2**30) - 1)
        ):
            found = call(lib, f, x, [ignored + 1, ignored, ignored - 1, 3], ignored)
            if "loss" in found:
                assert (
                    np.isnan(found["loss"][[0, 2]]).all()
                    and found["loss"][1] == 0
                    and found["loss"][3] != 0
                ), (f["name"], ignored)
            for name in {"dx"} & set(found):
                assert (found[name][:3] == 0).all() and (found[name][3] != 0).any(), (
                    f["name"],
                    ignored,
                )


def check_ignored_beyond(lib):
    """Checks that a 64-bit ignored label does not match 32-bit labels by its low half."""
    x = np.random.default_rng(3).standard_normal((2, 40)).astype(np.float32)
    for f in FUNCTIONS:
        found, plain = (call(lib, f, x, [3, 39], ignored) for ignored in (2**32 + 3, -100))
        assert all(found[name].tobytes() == plain[name].tobytes() for name in plain), f["name"]


def check_masked(lib):
    """Checks finite results beside masked columns of -infinity and a column whose square overflows.
    Without smoothing and z-loss the kernel must not multiply them by 0, which would give NaN."""
    x = np.random.default_rng(5).standard_normal((3, 40)).astype(np.float32)
    x[0, 10:20] = x[2, 1:] = -np.inf
    x[1, 7] = 1e20
    labels = [3, 7, 0]
    expected = np.logaddexp.reduce(x.astype(np.float64), -1) - x[range(3), labels]
    for f in FUNCTIONS:
        found = call(lib, f, x, labels, -100)
        assert all(np.isfinite(array).all() for array in found.values()), f["name"]
        if "loss" in found and f["op"] != "nll":
            assert np.allclose(found["loss"], expected, 1e-5, 1e-5), f["name"]


def check_same(lib):
    """Checks that 32-bit labels give the bits of 64-bit labels."""
    x = np.random.default_rng(4).standard_normal((6, 40)).astype(np.float32)
    for op in OPS:
        for bwd in (False, True):
            pair = [
                call(lib, f, x, [0, 39, -100, 17, 40, -1], -100)
                for f in FUNCTIONS
                if f["op"] == op and f["bwd"] is bwd
            ]
            assert len(pair) in (0, 2) and all(
                pair[0][name].tobytes() == pair[1][name].tobytes()
                for name in (pair[0] if pair else ())
            ), (op, bwd)
