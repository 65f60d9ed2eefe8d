# SPDX-License-Identifier: Apache-2.0
"""Scalar arguments of every function: the probability, the state, and unrestricted ones."""

import selection
from refusals import (
    FUNCTIONS,
    INVALID_VALUE,
    MISALIGNED,
    NULL_POINTER,
    OVERLAP,
    Call,
    outputs,
    tensors_of,
)

# The role of an argument, and the tests that try its invalid values. A new role needs a line here.
ROLES = {
    "in": "test_pointers, test_overlap",
    "inout": "test_pointers, test_overlap",
    "out": "test_pointers, test_overlap",
    "sum": "test_pointers, test_overlap",
    "size": "test_sizes",
    "workspace": "test_workspace",
    "probability": "test_probability",
    "seed_at": "test_state",
    "offset_at": "test_state",
    "offset_add": "test_any_value",
    "seed": "test_any_value",
    "offset": "test_any_value",
    "scalar": "test_any_value, test_bounds",
    "act_scalar": "test_any_value, test_bounds",
    "integer": "test_any_value",
    "beta": "test_any_value",
    "strides": "test_strides",
    "shape": "test_sizes",
}
ANY = {
    "seed": (0, 2**64 - 1),
    "offset": (0, 2**64 - 1),
    "offset_add": (0, 2**64 - 1),
    "scalar": (0.0, -1e30, float("inf"), float("nan")),
    "act_scalar": (0.0, -1e30, float("inf"), float("nan")),
    "integer": (0, -1, 2**63 - 1, -(2**63)),
    "beta": (0.0, 0.5, -1e30, float("inf"), float("nan")),
}


def test_every_role_is_tried():
    assert {a["role"] for f in FUNCTIONS for a in f["arguments"]} == set(ROLES)


def test_probability(lib, functions):
    for f in functions:
        if not f["dropout"]:
            continue
        for p, text in (
            (-0.1, "-0.1"),
            (1.5, "1.5"),
            (float("nan"), "nan"),
            (float("inf"), "inf"),
            (-1e-30, "-1e-30"),
            (1.0000002, "1"),
        ):
            Call(lib, f).set(p=p).refuses(
                INVALID_VALUE, "p", f"p is {text}", "expected 0 <= p <= 1"
            )
            # Scalars are checked before sizes, 0 or negative, and before pointers.
            for size in (0, -1):
                Call(lib, f).set(p=p, **{f["sizes"][0]: size}).refuses(INVALID_VALUE, "p")
            Call(lib, f).set(p=p).set_all([a["name"] for a in tensors_of(f)], None).refuses(
                INVALID_VALUE, "p"
            )
        for p in (0.0, 1.0, -0.0):
            Call(lib, f).set(p=p).accepts(f"p = {p}", outputs(f))


def test_state(lib, functions):
    """Seed and offset of a _state launcher are pointers with the usual checks; both may be the
    same.
    """
    for f in functions:
        if not f["state"]:
            continue
        for name in ("seed", "offset"):
            Call(lib, f).set(**{name: None}).refuses(
                NULL_POINTER, name, f"{name} is NULL, expected a pointer to 1 element"
            )
            call = Call(lib, f)
            call.set(**{name: call.address(":state") + 4}).refuses(
                MISALIGNED, name, f"{name} is 0x", "aligned to its 8-byte elements"
            )
        Call(lib, f).set(seed=None, offset=None, **{s: 0 for s in f["sizes"]}).accepts(
            "a state that nobody reads"
        )
        call = Call(lib, f)
        call.set(offset=call.address(":state")).accepts("one word as seed and offset", outputs(f))


def test_state_overlaps(lib, functions):
    """The state is read while outputs and the workspace are written."""
    for f in functions:
        for name in (*outputs(f), *([":workspace"] if f["scratch"] else [])) if f["state"] else ():
            argument = name.strip(":")
            for word in ("seed", "offset"):
                call = Call(lib, f)
                call.set(**{word: call.address(name)}).refuses(
                    OVERLAP, argument, f"overlaps {word} at 0x", "expected"
                )


def bounds(f):
    """Yields (argument, 1 for a minimum or -1 for a maximum, the bound)."""
    for a in f["arguments"]:
        if "least_of" in a:
            for word, sign in (("least", 1), ("most", -1)):
                limit = f["scalars"][a[f"{word}_of"]] if a[f"{word}_of"] else a[word]
                if limit is not None:
                    yield a["name"], sign, limit


def within(f, name, value):
    """True if no bound refuses this value of an argument."""
    changed = {**f, "scalars": f["scalars"] | {name: value}}
    return all(
        sign * changed["scalars"].get(n, limit) >= sign * limit
        for n, sign, limit in bounds(changed)
    )


def test_bounds(lib, functions):
    """Values outside the bounds of an entry, and NaN, are refused before sizes and pointers."""
    for f in functions:
        for name, sign, limit in bounds(f):
            word = "or more" if sign > 0 else "or less"
            for value in (limit - sign, -sign * float("inf"), float("nan")):
                call = Call(lib, f).set(**{name: value})
                if value == value:
                    call.refuses(INVALID_VALUE, name, f"{name} is {value:g}", f"{limit:g} {word}")
                else:  # the first bound that NaN fails
                    call.refuses(INVALID_VALUE, name, f"{name} is nan")
            wrong = {name: limit - sign}
            Call(lib, f).set(**wrong, **{f["sizes"][0]: 0}).refuses(INVALID_VALUE, name)
            Call(lib, f).set(**wrong).set_all([a["name"] for a in tensors_of(f)], None).refuses(
                INVALID_VALUE, name
            )
            Call(lib, f).set(**{name: limit}).accepts(f"{name} = {limit}", outputs(f))


def test_some_function_has_each_kind_of_bound():
    assert {kind for f in FUNCTIONS for kind in selection.bounds(f)} >= {
        ("least", False, "scalar"),
        ("most", False, "scalar"),
        ("least", True, "scalar"),
        ("least", True, "act_scalar"),
    }


def test_any_value(lib, functions):
    for f in functions:
        for a in f["arguments"]:
            for value in ANY.get(a["role"], ()):
                if not within(f, a["name"], value):
                    continue  # covered by test_bounds
                if f["bwd"] and a["name"] in f["rising"] and value < 0:
                    continue  # covered by test_by_result
                Call(lib, f).set(**{a["name"]: value}).accepts(f"{a['name']} = {value}", outputs(f))
