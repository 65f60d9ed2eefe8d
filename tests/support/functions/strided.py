# SPDX-License-Identifier: Apache-2.0
"""Compares calls on strided tensors with the same call on contiguous ones: all bits must be equal,
and memory between rows must not be written. Used by tests/cpu, tests/emu and tests/cuda."""

import ctypes
import math

import cases
import checks
import numpy as np
import size_rules
from storage import Failure

BROADCAST = -(2**63)
# {form: (sizes that strides belong to, innermost first; contiguous sizes)}
LEVELS = {
    "rows": (("rows",), ("cols",)),
    "planes": (("channels", "outer"), ("inner",)),
    "channels": (("channels", "outer"), ("inner",)),
    "heads": (("queries", "heads", "batch"), ("keys",)),
    "groups": (("groups", "length", "outer"), ("channels", "inner")),
    "axis": (("axis", "outer"), ("inner",)),
}


def levels(f, sizes, a):
    """Returns (extents of the strided levels, innermost first; number of contiguous elements) of a
    tensor."""
    at = dict(zip(f["sizes"], map(int, sizes)))
    # A family with tensor shapes of its own, in the order of their levels.
    if f["form"] not in LEVELS:
        *outer, side = size_rules.shape(a, at)
        return tuple(outer[::-1]), side
    outer, side = LEVELS[f["form"]]
    if f["form"] == "axis" and at["inner"] == 1:
        return (1, at["outer"]), at["axis"]
    return tuple(at[s] for s in outer), math.prod(at[s] for s in side) // (
        max(at["groups"], 1) if f["form"] == "groups" else 1
    )


def strided_tensors(f):
    """Returns the tensors of a call that have strides."""
    return [a for a in f["arguments"] if a.get("strides")]


def dense(given, extents, length):
    """Returns the effective stride of each level; 0 stands for the contiguous stride."""
    found, room = [], length
    for stride, n in zip(given, extents):
        found.append(0 if stride == BROADCAST else stride or room)
        room = max(room, found[-1]) if n <= 1 else found[-1] * n or room
    return found


def layouts(f, sizes):
    """Returns {description: {tensor: its strides}}: the layouts to test."""
    flat = f["form"] == "axis" and dict(zip(f["sizes"], sizes))["inner"] == 1
    found = {"eight more": {}, "odd": {}, "the levels the other way round": {}}
    for i, a in enumerate(strided_tensors(f)):
        extents, length = levels(f, sizes, a)
        # An axis of single elements has no stride.
        free = [k for k in range(len(extents)) if not (flat and k == 0)]
        first = free[0]
        found["eight more"][a["name"]] = [
            length + 8 if k == first else 0 for k in range(len(extents))
        ]
        odd = [0] * len(extents)
        room = length
        for k in free:
            odd[k] = room + 1 + 2 * (i + k) + room % 2
            room = odd[k] * max(extents[k], 1)
        found["odd"][a["name"]] = odd
        if len(free) > 1:
            turned = [0] * len(extents)
            turned[free[1]] = length + 3
            turned[first] = (length + 3) * max(extents[free[1]], 1)
            turned[2:] = [(turned[first]) * max(extents[first], 1)] * (len(extents) - 2)
            found["the levels the other way round"][a["name"]] = turned
        if a["role"] == "in":
            for k in free:
                found[f"{a['strides'][k]} everywhere the same"] = {
                    a["name"]: [BROADCAST if j == k else 0 for j in range(len(extents))]
                }
    return {name: given for name, given in found.items() if given}


def unaligned(f, sizes, given):
    """True if rows do not all begin at multiples of 16 bytes from their tensor's first."""
    for a in strided_tensors(f):
        extents, length = levels(f, sizes, a)
        strides = dense(given.get(a["name"], [0] * len(extents)), extents, length)
        size = np.dtype(checks.STORAGE[a["dtype"]]).itemsize
        if any(n > 1 and stride * size % 16 for stride, n in zip(strides, extents)):
            return True
    return False


def bits_by_alignment(f):
    """True if the kernel of 2-byte elements, and with it the bits, depends on their alignment."""
    return getattr(cases.own(f), "BITS_BY_ALIGNMENT", False)


class Call:
    """A checks.Layout with strided tensors. share: (output, input) pairs that share memory."""

    def __init__(self, layout, given, share=()):
        f = layout.f
        self.layout, self.f, self.given_strides, self.share = layout, f, given, dict(share)
        self.levels = {a["name"]: levels(f, layout.sizes, a) for a in strided_tensors(f)}
        strides = next(a for a in f["arguments"] if a["role"] == "strides")
        self.struct = (ctypes.c_int64 * len(strides["fields"]))()
        self.offset, self.strides, at = {}, {}, checks.GUARD
        for name, array in layout.data.items():
            a = layout.tensors[name]
            elements = array.size
            if a["strides"]:
                extents, length = self.levels[name]
                numbers = given.get(name, [0] * len(extents))
                for field, number in zip(a["strides"], numbers):
                    self.struct[strides["fields"].index(field)] = number
                self.strides[name] = dense(numbers, extents, length)
                elements = (
                    length + sum(d * (n - 1) for d, n in zip(self.strides[name], extents))
                    if array.size
                    else 0
                )
            if name in self.share:
                self.offset[name] = self.offset[self.share[name]]
                continue
            self.offset[name] = -(-at // 64) * 64
            at = self.offset[name] + elements * array.itemsize + checks.GUARD
        self.workspace, self.state = (
            -(-at // 256) * 256,
            -(-(at + layout.workspace + checks.GUARD + 256) // 64) * 64,
        )
        self.image = checks.poison(self.state + 16 + checks.GUARD)
        self.image[self.state : self.state + 16] = layout.image[layout.state : layout.state + 16]
        for name, array in layout.data.items():
            if name not in self.share:
                self.view(self.image, name)[...] = array.reshape(self.view(self.image, name).shape)

    def view(self, image, name):
        """Returns the tensor's view in an arena: [outermost level, ..., innermost level, contiguous
        elements]."""
        array = self.layout.data[name]
        if not array.size or name not in self.strides:
            return image[self.offset[name] : self.offset[name] + array.nbytes].view(array.dtype)
        flat = image[self.offset[name] :].view(np.uint8)
        flat = flat[: flat.size // array.itemsize * array.itemsize].view(array.dtype)
        extents, length = self.levels[name]
        shape = (*extents[::-1], length)
        return np.lib.stride_tricks.as_strided(
            flat, shape, [d * array.itemsize for d in (*self.strides[name][::-1], 1)]
        )

    def arguments(self, base):
        found = self.layout.given(base)
        for name, offset in self.offset.items():
            found[name] = None if found[name] is None else base + offset
        found |= checks.state_at(base + self.state) if self.f["state"] else {}
        return found | {
            "strides": ctypes.addressof(self.struct),
            "workspace": base + self.workspace if self.layout.workspace else None,
        }

    def run(self, lib, memory):
        memory.spans = [(0, self.image.size)]
        result, back = memory.run(self.image, lambda base: lib.call(self.f, self.arguments(base)))
        where = f"{self.layout.where} strides={self.given_strides} in place={self.share}"
        if result != 0:
            raise Failure(f"{where}: returned {result} ({lib.detail})")
        outputs = [name for name, a in self.layout.tensors.items() if a["role"] != "in"]
        got = {name: self.view(back, name).copy() for name in outputs}
        rest = back.copy()
        for name in outputs:
            self.view(rest, name)[...] = self.view(self.image, name)
        rest[self.workspace : self.workspace + self.layout.workspace] = self.image[
            self.workspace : self.workspace + self.layout.workspace
        ]
        changed = np.flatnonzero(rest != self.image)
        if changed.size:
            raise Failure(
                f"{where}: wrote outside its outputs, at byte {changed[0]} of the arena "
                f"{self.offset}"
            )
        return got, where


def some(found, turn):
    """Returns the layout "odd" and a quarter of the others; which one depends on `turn`."""
    return {
        what: given
        for i, (what, given) in enumerate(found.items())
        if what == "odd" or i % 4 == turn % 4
    }


def same(lib, memory, f, sizes, seed=0, turn=None):
    """Checks that every layout gives the bits of the contiguous call. turn: checks only the layouts
    of this turn.

    Where the kernel, and with it the bits, depends on the alignment of rows (BITS_BY_ALIGNMENT of
    the family's cases), unaligned rows are compared with contiguous tensors off their alignment.
    """
    found = layouts(f, sizes)
    for what, given in (found if turn is None else some(found, turn)).items():
        shift = int(bits_by_alignment(f) and unaligned(f, sizes, given))
        layout = checks.Layout(lib, f, sizes, seed=seed, shift=shift)
        for name, numbers in given.items():  # The contiguous call repeats the broadcast rows.
            for k, number in enumerate(numbers):
                if number == BROADCAST:
                    extents, length = levels(f, sizes, layout.tensors[name])
                    array = layout.data[name].reshape(*extents[::-1], length)
                    array[...] = np.take(array, [0], axis=len(extents) - 1 - k)
                    layout.put(name, array.reshape(layout.data[name].shape))
        result, back = memory_run(
            memory, layout, lambda base, layout=layout: lib.call(f, layout.given(base))
        )
        assert result == 0, lib.detail
        want = layout.outputs(back)
        compare(*Call(layout, given).run(lib, memory), want, what)
        for out, source in checks.in_place_pairs(f) if what in ("eight more", "odd") else ():
            if layout.tensors[out]["strides"] and layout.tensors[source]["strides"]:
                compare(
                    *Call(layout, given | {out: given[source]}, [(out, source)]).run(lib, memory),
                    want,
                    f"{what}, in place",
                )


def memory_run(memory, layout, call):
    memory.spans = layout.spans()
    return memory.run(layout.image, call)


def compare(got, where, want, what):
    for name, array in want.items():
        a, b = (
            v.reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)
            for v in (np.ascontiguousarray(got[name]), array)
        )
        bad = np.flatnonzero((a != b).any(1))
        if bad.size:
            own, dense_ = got[name].reshape(-1)[bad[0]], array.reshape(-1)[bad[0]]
            raise Failure(
                f"{where}: {what}: {name}[{bad[0]}] is {own!r}, for contiguous tensors {dense_!r} "
                "(as stored)"
            )


# Sizes for every schedule: rows of whole vectors and others, short and long, in registers and
# reread; segments with and without whole vectors.
SHAPES = {
    "rows": [(5, 24), (3, 41), (3, 2048), (2, 8200), (2, 16401)],
    "planes": [(3, 4, 24), (2, 3, 41), (2, 2, 2048), (1, 2, 8201)],
    "channels": [(3, 4, 24), (5, 3, 7), (30, 5, 1), (2, 3, 1024), (4, 2, 2051)],
    "heads": [(2, 3, 4, 24), (2, 2, 3, 41), (2, 2, 2, 2048), (1, 2, 2, 8201)],
    "groups": [
        (2, 1, 3, 12, 24),
        (2, 5, 3, 12, 1),
        (2, 9, 2, 32, 1),
        (2, 3, 2, 8, 6),
        (1, 2, 2, 4, 1024),
        (1, 1, 2, 6, 2731),
    ],
    "axis": [
        (5, 24, 1),
        (4, 301, 1),
        (3, 10001, 1),
        (3, 7, 24),
        (2, 60, 3),
        (2, 301, 33),
        (1, 700, 64),
        (2, 2500, 5),
    ],
}


def shapes(f):
    return (
        SHAPES[f["form"]]
        if f["form"] in SHAPES
        else [sizes for sizes, _ in cases.own(f).SHAPES if all(sizes)][:4]
    )
