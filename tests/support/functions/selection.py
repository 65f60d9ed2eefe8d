# SPDX-License-Identifier: Apache-2.0
"""Selects small sets of functions that still cover every feature in the manifest. The choice is the
same in every run and process, so failures repeat."""

import collections
import functools
import heapq
import math
import os

import cases
import kflib
import ledger
import tiers

# Excludes tf32, whose launchers use f32's kernels except for wgmma: test_emu_wgmma.py and
# test_cuda_wgmma.py of tests/families/matmul cover those.
FUNCTIONS = [f for f in kflib.of_tensors() if f["dtypes"][0] != "tf32"]


def schedule(f):
    """Returns the properties that determine the code around an op's own expression."""
    return (
        f["family"],
        f["layout"],
        len(f["sizes"]),
        f["bwd"],
        f["scratch"],
        f["dropout"],
        f["state"],
    )


def calls_others(f):
    """True if a function has no kernels of its own."""
    return getattr(cases.own(f), "KERNELS_OF_OTHERS", False)


def features(f):
    """Yields the features of a function that may be wrong in it and right in others.

    These are its op; its layout without an activation; its schedule per element dtype; its family's
    mix of dtypes; the activation in its family; whether the gradient reads the activation's
    argument; the gradient by the activation's result. Casts share one schedule, so each conversion
    counts.

    CUDA covers each activation in float32, in float64, and in one 2-byte dtype, which computes in
    float32. In C tests/cpu/test_activations.py covers each activation and dtype.
    """
    if calls_others(f):
        yield from of_calls(f)
        return
    none = f["activation"] == "none"
    yield "op", f["op"], f["bwd"], f["state"]
    yield "without", f["family"], f["layout"], f["bwd"], f["state"], none
    yield "schedule", schedule(f), f["dtypes"][0], f["name"] if f["op"] == "cast" else ""
    yield "dtypes", f["family"], f["layout"], f["bwd"], *f["dtypes"]
    yield "activation", f["family"], f["bwd"], f["activation"]
    yield "argument", schedule(f), f["reads_x"], none
    if "cuda" in f["backends"]:
        yield "activation in CUDA", f["activation"], f["dtypes"][0].replace("bf16", "f16"), f["bwd"]
    if f["bwd"] and f["statements_by_result"]:
        yield "by result", f["activation"]


def of_calls(f):
    """Yields the features of a function that only calls other functions, with one text for all
    dtypes.

    These are its op, exact and rounded; the element size; the index type; weight gradients of
    another dtype. Compilers check that the tensors of a call have its dtypes.
    """
    yield "op", f["op"], f["dtypes"][0] in ("f32", "f64")
    yield "element", f["family"], f["dtypes"][0].replace("bf16", "f16")
    yield "index", f["family"], f["dtypes"][-1] == "i32"
    yield "second", f["family"], "f32" in f["dtypes"][1:]


def bounds(f):
    """Yields the kinds of bounds that a function has on its scalars: whether it is a least or a
    greatest value, whether it is another argument, and the argument's role."""
    for a in f["arguments"]:
        if a["role"] not in ("scalar", "act_scalar"):
            continue
        for word in ("least", "most"):
            of = bool(a.get(f"{word}_of"))
            if of or a.get(word) is not None:
                yield word, of, a["role"]


def thin(f):
    """Yields the features that level 1 tests of an unchanged family: its loops in each dtype with
    its own loads and stores, and arguments of each role and with each kind of bound. The ops'
    expressions have not changed either."""
    if calls_others(f):
        yield from of_calls(f)
        return
    if cases.of_own_accesses(f):
        yield "schedule", (*schedule(f)[:-1], f["dtypes"][0])
        yield "state", (f["family"], f["bwd"], f["state"])  # loads seed and offset from memory
    for a in f["arguments"]:
        yield "role", f["family"], a["role"], a.get("kind")
    for kind in bounds(f):
        yield "bound", kind
    if f["bwd"] and f["statements_by_result"]:
        yield "by result", f["activation"]


def cover(features, functions):
    """Returns few functions that together have all features of `functions`. Greedy: it takes the
    function with most uncovered features, and prefers rare ones."""
    of = [frozenset(features(f)) for f in functions]
    count = collections.Counter(x for found in of for x in found)
    left, chosen = set(count), []

    # fsum, because the order of a set differs between processes, and so would a plain sum.
    def worth(i):
        return math.fsum(10 + 1 / count[x] for x in of[i] & left)

    heap = [(-worth(i), i) for i in range(len(functions))]
    heapq.heapify(heap)
    while left:
        _, i = heapq.heappop(heap)
        # Values only fall, so one above the next entry's old value is the largest.
        now = worth(i)
        if heap and -now > heap[0][0]:
            heapq.heappush(heap, (-now, i))
        else:
            chosen.append(i)
            left -= of[i]
    return [functions[i] for i in sorted(chosen)]


@functools.cache
def gate():
    """Returns the functions that tests of numbers run at this level.

    Level 1: at least one function per feature, and the thin cover of a family that is unchanged
    since its last complete passing run (ledger.py). Level 2: every op, direction and dtype with a
    sample of activations (cases.sampled). Level 3: all. KF_FAMILIES limits levels 2 and 3 to these
    families.
    """
    if cases.LEVEL > 1:
        chosen = os.environ.get("KF_FAMILIES", "").split() or ledger.families()
        return [f for f in FUNCTIONS if f["family"] in chosen and cases.sampled(f)]
    return cover(lambda f: thin(f) if ledger.unchanged(f["family"]) else features(f), FUNCTIONS)


@functools.cache
def thin_gate():
    """Returns the functions that the quick tier runs: each family's loops in each dtype."""
    return cover(thin, FUNCTIONS)


def numbers_gate():
    """Returns the functions whose libraries this tier builds for tests of numbers: thin_gate in the
    quick tier, gate in the other, which skips the numbers of thin_gate; of one family its part of
    thin_gate."""
    if tiers.FAMILY:
        return [f for f in thin_gate() if f["family"] == tiers.FAMILY]
    return thin_gate() if tiers.TIER == "quick" and cases.LEVEL == 1 else gate()


@functools.cache
def on_all_shapes():
    """Returns the names of the gate's functions that run on every shape: one per schedule and
    element dtype, of an unchanged family one per schedule. f16 differs from bf16 by its conversion
    only, and an op's or activation's expression is the same in all loops of a schedule."""
    if cases.LEVEL > 1:
        return frozenset(f["name"] for f in gate())
    return frozenset(
        f["name"]
        for f in cover(
            lambda f: [
                (
                    schedule(f),
                    ledger.unchanged(f["family"]) or f["dtypes"][0].replace("bf16", "f16"),
                )
            ],
            gate(),
        )
    )


@functools.cache
def on_all_emulated_shapes():
    """Returns on_all_shapes() for the emulation, which takes a hundred times as long as C.

    At level 2 it has, per op, direction and dtype, one function with an activation and one without,
    and every activation of a family once. The others run on a third of the shapes.
    """
    if cases.LEVEL == 1 or cases.LEVEL > 2:
        return on_all_shapes()

    def of(f):
        return [
            (schedule(f), *f["dtypes"]),
            (f["op"], f["bwd"], f["state"], dtype_of(f), f["activation"] == "none"),
            (f["family"], f["bwd"], f["activation"]),
        ]

    return frozenset(f["name"] for f in cover(of, gate()))


def dtype_of(f):
    """Returns the dtype of a function's elements, bf16 for both 2-byte types, or all dtypes of a
    cast."""
    return tuple(f["dtypes"]) if f["op"] == "cast" else f["dtypes"][0].replace("bf16", "f16")


def of_schedules(dtypes=None):
    """Returns one function of the gate per schedule and dtypes. dtypes: restricts the first dtype,
    and then selects one function per first dtype."""
    found = [f for f in gate() if dtypes is None or f["dtypes"][0] in dtypes]
    return cover(
        lambda f: [(schedule(f), *(f["dtypes"] if dtypes is None else f["dtypes"][:1]))], found
    )


def kind(f):
    """Returns the properties of argument list and schedule: sizes, direction, sums, dropout by
    value and by state, packed halves."""
    halves = any(a.get("kind") in ("half", "two_rights") for a in f["arguments"])
    return f["family"], len(f["sizes"]), f["bwd"], f["scratch"], f["dropout"], f["state"], halves


def kinds(dtypes=("f32", "bf16"), activations=("none", "silu")):
    """Returns one function of each kind."""
    return list(
        {
            kind(f): f
            for f in FUNCTIONS
            if f["activation"] in activations and f["dtypes"][0] in dtypes
        }.values()
    )


def kernels():
    """Returns functions that cover every kernel: per op, dtypes and direction two activations, one
    whose gradient reads its argument and one whose gradient does not. The plain activation op has
    all activations. At level 3 it returns every function."""
    found, seen = [], {}
    for f in FUNCTIONS:
        of = seen.setdefault((f["op"], *f["dtypes"], f["bwd"], f["state"]), set())
        kind = (f["reads_x"], f["activation"] == "none")
        if cases.LEVEL > 2 or f["op"] == "{act}" or kind not in of:
            of.add(kind)
            found.append(f)
    return found


def launches():
    """Returns functions for tests of launching, which no activation changes: one per op, dtypes and
    direction. Level 1 has one per schedule and dtypes, level 3 all."""
    if cases.LEVEL < 2:
        return of_schedules()
    return (
        gate()
        if cases.LEVEL > 2
        else list({(f["op"], *f["dtypes"], f["bwd"], f["state"]): f for f in gate()}.values())
    )
