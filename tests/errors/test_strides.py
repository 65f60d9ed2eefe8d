# SPDX-License-Identifier: Apache-2.0
"""Strides that a call must refuse, and strides that it must ignore."""

import ctypes

import numpy as np
import strided
from refusals import INVALID_SIZE, OVERLAP, UNSUPPORTED, Call, extents, item, outputs, tensors_of
from strided import BROADCAST, levels


def strides(f, **given):
    """Builds the strides struct; the fields that are not given are 0."""
    fields = next(a["fields"] for a in f["arguments"] if a["role"] == "strides")
    return (ctypes.c_int64 * len(fields))(*(given.get(name, 0) for name in fields))


def call(lib, f, sizes=None, **given):
    found = Call(lib, f, sizes)
    found.keep = strides(f, **given)
    return found.set(strides=ctypes.addressof(found.keep))


def free(f, a):
    """Returns the fields that matter at the call's sizes, with their strides in dense tensors."""
    sizes, room = levels(f, extents(f), a)
    found = []
    for field, n in zip(a["strides"], sizes):
        if n > 1:
            found.append((field, room))
        room *= max(n, 1)
    return found


def crowded(f, a, **given):
    """Returns the first field, by ascending stride, whose rows would overlap."""
    sizes, room = levels(f, extents(f), a)
    apart = strided.dense([given.get(field, 0) for field in a["strides"]], sizes, room)
    for distance, n, field in sorted(
        (d, n, field) for d, n, field in zip(apart, sizes, a["strides"]) if n > 1
    ):
        if distance < room:
            return field
        room += distance * (n - 1)
    return None


def test_all_zero_is_dense(lib, functions):
    for f in functions:
        if strided.strided_tensors(f):
            call(lib, f).accepts("strides of 0", outputs(f))


def test_negative(lib, functions):
    """Negative strides are refused whatever else is wrong except the sizes, even if there is no
    work.
    """
    for f in functions:
        for a in strided.strided_tensors(f):
            for field in a["strides"]:
                for number in (-1, -(2**40), BROADCAST + 1):
                    call(lib, f, **{field: number}).refuses(
                        INVALID_SIZE, f"strides->{field}", f"is {number}, expected", "KF_BROADCAST"
                    )
                call(lib, f, **{field: -1}).set_all(
                    [t["name"] for t in tensors_of(f)], None
                ).refuses(INVALID_SIZE, f"strides->{field}")
                call(lib, f, **{field: -1}).set(**{f["sizes"][-1]: 0}).refuses(
                    INVALID_SIZE, f"strides->{field}"
                )


def test_too_far_apart(lib, functions):
    for f in functions:
        for a in strided.strided_tensors(f):
            for field, _ in free(f, a):
                for number in (2**58, 2**63 - 1):
                    call(lib, f, **{field: number}).refuses(
                        INVALID_SIZE,
                        f"strides->{field}",
                        f"is {number}, expected a tensor of at most 2^58",
                    )


def test_an_output_s_rows_are_apart(lib, functions):
    """Rows of an input may overlap or coincide."""
    for f in functions:
        for a in strided.strided_tensors(f):
            for field, room in free(f, a):
                for number in {max(1, room - 1), BROADCAST} - {room}:
                    if a["role"] != "in":
                        near = crowded(f, a, **{field: number})
                        call(lib, f, **{field: number}).refuses(
                            OVERLAP,
                            f"strides->{near}",
                            "puts an output's rows",
                            "elements apart, expected",
                        )
                    else:
                        call(lib, f, **{field: number}).accepts(f"{field} = {number}", outputs(f))


def test_fields_of_the_other_direction(lib, functions):
    """One struct serves both directions: fields that this direction lacks are ignored."""
    for f in functions:
        own = {field for a in strided.strided_tensors(f) for field in a["strides"]}
        rest = {
            name: -5
            for a in f["arguments"]
            if a["role"] == "strides"
            for name in a["fields"]
            if name not in own
        }
        if rest:
            call(lib, f, **rest).accepts("strides of tensors that it has not", outputs(f))


def test_extents_overlap(lib, functions):
    """The extent of a strided tensor includes its gaps: another tensor may lie beside the rows, as
    columns of one matrix, but may not overlap them.
    """
    for f in functions:
        out = next((a for a in strided.strided_tensors(f) if a["role"] != "in"), None)
        source = next(
            (a for a in strided.strided_tensors(f) if a["role"] == "in" and not a["unread"]), None
        )
        if f["form"] != "rows" or not out or not source:
            continue
        rows, cols = extents(f)
        wide, size = 2 * cols, item(out)
        matrix = np.full(wide * rows * size + 64, 0x3C, np.uint8)
        begin = matrix.ctypes.data + -matrix.ctypes.data % 64
        given = {out["strides"][0]: wide, source["strides"][0]: wide}
        halves = {source["name"]: begin, out["name"]: begin + cols * size}
        call(lib, f, **given).set(**halves).accepts("two halves of a matrix", outputs(f))
        for change in ({out["name"]: begin + (cols - 1) * size}, {source["name"]: begin + size}):
            call(lib, f, **given).set(**(halves | change)).refuses(
                OVERLAP, out["name"], f"overlaps {source['name']} at"
            )
        call(lib, f, **given).set(**dict.fromkeys(halves, begin)).accepts("in place", outputs(f))
        in_place = call(lib, f, **{out["strides"][0]: wide}).set(**dict.fromkeys(halves, begin))
        in_place.refuses(
            OVERLAP,
            out["name"],
            f"overlaps {source['name']} at",
            "expected the same strides in place, or memory apart",
        )


def test_an_axis_of_single_elements(lib, functions):
    for f in functions:
        if f["form"] != "axis":
            continue
        for a in strided.strided_tensors(f):
            for number in (2, BROADCAST):
                call(lib, f, (3, 5, 1), **{a["strides"][0]: number}).refuses(
                    UNSUPPORTED,
                    f"strides->{a['strides'][0]}",
                    f"is {number}, expected 0 or 1 where inner is 1",
                )
            call(lib, f, (3, 5, 1), **{a["strides"][0]: 1}).accepts(
                "an axis side by side", outputs(f)
            )
