# SPDX-License-Identifier: Apache-2.0
"""Overlapping tensors of every function: in place if the manifest allows it, refused otherwise."""

import cases
from refusals import GAP, OVERLAP, SUCCESS, Call, item, outputs, tensors_of, unread


def in_place(o, other):
    same = (
        o["kind"] == other["kind"]
        and o["kind"] in ("elem", "half")
        and item(o) == item(other)
        and other["role"] == "in"
    )
    return same or o["place_of"] == other["name"] or other["name"] in o["in_place"]


def same_result(o, other):
    return (
        o["same_as"] == other["name"]
        or other["same_as"] == o["name"]
        or (o["same_as"] and o["same_as"] == other["same_as"])
    )


def expected(o, other):
    """The expectation in the message: it offers the same pointer only if that would be valid."""
    if other["role"] != "in":
        return "expected outputs that are apart"
    return (
        "expected the same pointer (in place) or memory apart"
        if in_place(o, other)
        else "expected memory apart"
    )


def test_overlap(lib, functions):
    """An output that partly overlaps an input, a row operand, or another output, of any shape."""
    for f in functions:
        tensors = tensors_of(f)
        for o in tensors:
            for other in tensors if o["role"] != "in" else ():
                if other["name"] == o["name"] or unread(other):
                    continue
                # The message names the later of two outputs.
                later = max((o, other), key=tensors.index)
                first, second = (
                    (later, o if later is other else other) if other["role"] != "in" else (o, other)
                )
                words = (first["name"], f"overlaps {second['name']} at", expected(first, second))
                call = Call(lib, f)
                call.set(**{o["name"]: call.address(other["name"])})
                if in_place(o, other):
                    call.accepts(
                        f"{o['name']} in place of {other['name']}", [other["name"], *outputs(f)]
                    )
                elif same_result(o, other):
                    call.accepts(f"{o['name']} the same as {other['name']}", outputs(f))
                else:
                    call.refuses(OVERLAP, *words)
                # One element forward or back, and the last element onto the first: never allowed.
                step = max(item(o), item(other))
                for shift in (
                    step,
                    -step,
                    call.bytes[other["name"]] - step,
                    step - call.bytes[o["name"]],
                ):
                    if (
                        shift == 0
                        or (shift < 0 and -shift >= call.bytes[o["name"]])
                        or shift >= call.bytes[other["name"]]
                    ):
                        continue
                    call = Call(lib, f)
                    target = call.address(other["name"]) + shift
                    if target % item(o) == 0:
                        call.set(**{o["name"]: target}).refuses(OVERLAP, *words)


def test_what_is_not_read_may_lie_anywhere(lib, functions):
    for f in functions:
        for a in tensors_of(f):
            if unread(a):
                for o in outputs(f):
                    call = Call(lib, f)
                    call.set(**{a["name"]: call.address(o)}).accepts(
                        f"{a['name']}, which is not read, on {o}", outputs(f)
                    )


# Each size is a multiple of 8 bytes.
SIDE_BY_SIDE = {
    "flat": (64,),
    "rows": (4, 16),
    "planes": (2, 4, 8),
    "heads": (2, 2, 2, 8),
    "groups": (2, 2, 2, 4, 4),
}


def test_side_by_side(lib, functions):
    """Adjacent tensors do not overlap."""
    for f in functions:
        for order in (1, -1):  # an output after an input, and before it
            call = Call(lib, f, cases.of_form(f, SIDE_BY_SIDE))
            at = call.base + GAP
            for a in tensors_of(f)[::order]:
                call.set(**{a["name"]: at})
                at += call.bytes[a["name"]]
            assert at % 8 == 0
            assert lib.call(f, call.values) == SUCCESS, f"{call.name}: {lib.detail}"


def test_tensors_of_no_elements_overlap_nothing(lib, functions):
    """A sum over zero rows writes its result, and an input without elements may point into it."""
    for f in functions:
        call = Call(lib, f, (0,) + (16, 3, 6, 5, 2, 1, 1, 1, 1)[: len(f["sizes"]) - 1])
        for a in tensors_of(f):
            for o in tensors_of(f):
                if o["role"] == "sum" and call.bytes[o["name"]] and not call.bytes[a["name"]]:
                    call = Call(lib, f, call.sizes)
                    call.set(**{a["name"]: call.address(o["name"]) + 8}).accepts(
                        f"{a['name']} of no elements inside {o['name']}", outputs(f)
                    )
                    call = Call(lib, f, call.sizes)
                    call.set(**{a["name"]: call.address(":workspace") + 8}).accepts(
                        f"{a['name']} of no elements inside the workspace", outputs(f)
                    )
