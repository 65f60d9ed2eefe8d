# SPDX-License-Identifier: Apache-2.0
"""Smaller sets of functions that still have one of everything, chosen by what the manifest says of them. The same ones in every run
and in every process: what goes red in one goes red in the next."""

import collections
import functools
import heapq
import math
import os

import cases
import kflib
import ledger

# Without tf32's, which are launchers of f32's kernels but for those by wgmma: tests/families/matmul/test_emu_wgmma.py and tests/families/matmul/test_cuda_wgmma.py have one for each.
FUNCTIONS = [f for f in kflib.manifest()["functions"] if f["dtypes"][0] != "tf32"]


def schedule(f):
    """What the code around an op's own expression depends on."""
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
    """Whether a function has no kernels of its own."""
    return getattr(cases.own(f), "KERNELS_OF_OTHERS", False)


def features(f):
    """What of a function may be wrong in it and right in others: its op's code, forward and backward; that of its layout without an activation;
    its schedule for the dtype of its elements; each mix of dtypes in its family's kernels of a layout; each activation inside of its family's
    kernels; whether its gradient reads the argument; the gradient by an activation's result. Of casts, which are one schedule, each conversion.
    In CUDA each activation in float32, in float64 and in one of the dtypes of 2 bytes, which are computed in float32; in C
    tests/cpu/test_activations.py has each in each dtype."""
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
    """What may be wrong in a function that is made of calls of other functions, for every dtype by one text: its op, exact and rounded; how large
    an element is; indices of the other type; gradients of weights in another dtype than theirs. That a call's tensors are of its dtypes compilers
    say."""
    yield "op", f["op"], f["dtypes"][0] in ("f32", "f64")
    yield "element", f["family"], f["dtypes"][0].replace("bf16", "f16")
    yield "index", f["family"], f["dtypes"][-1] == "i32"
    yield "second", f["family"], "f32" in f["dtypes"][1:]


def thin(f):
    """What is left of `features` for a family that nobody has changed since all of its tests passed: its loops, in each dtype that has accesses
    of its own, and arguments of each role. What an op adds to them is the same text as then."""
    if calls_others(f):
        yield from of_calls(f)
        return
    if cases.of_own_accesses(f):
        yield "schedule", schedule(f), f["dtypes"][0]
    for a in f["arguments"]:
        yield "role", f["family"], a["role"], a.get("kind")
    if f["bwd"] and f["statements_by_result"]:
        yield "by result", f["activation"]


def cover(features, functions):
    """Few functions that have between them every feature that all of them have: always the one that has most of what is left, and
    of that the rarest."""
    of = [frozenset(features(f)) for f in functions]
    count = collections.Counter(x for found in of for x in found)
    left, chosen = set(count), []

    def worth(
        i,
    ):  # fsum: a set's order is another one in each process, a sum's last digits would be
        return math.fsum(10 + 1 / count[x] for x in of[i] & left)

    heap = [(-worth(i), i) for i in range(len(functions))]
    heapq.heapify(heap)
    while left:
        _, i = heapq.heappop(heap)
        now = worth(
            i
        )  # which only falls: what is still worth more than the next one's old value is worth most
        if heap and -now > heap[0][0]:
            heapq.heappush(heap, (-now, i))
        else:
            chosen.append(i)
            left -= of[i]
    return [functions[i] for i in sorted(chosen)]


@functools.cache
def gate():
    """What level 1 runs: one function at least of every feature; of a family that is as its last whole green run left it (ledger.py), of
    every schedule. At level 2 every op and direction in all its dtypes, with some of the activations each (cases.sampled), at level 3
    all functions; KF_FAMILIES names those of which families."""
    if cases.LEVEL > 1:
        chosen = os.environ.get("KF_FAMILIES", "").split() or ledger.families()
        return [f for f in FUNCTIONS if f["family"] in chosen and cases.sampled(f)]
    return cover(lambda f: thin(f) if ledger.unchanged(f["family"]) else features(f), FUNCTIONS)


@functools.cache
def on_all_shapes():
    """The names of those of the gate that are run on every shape: one of each schedule and the dtype of its elements, f16's being bf16's with
    another conversion. What the others have of their own, an op's or an activation's words, is the same in all of a schedule's loops."""
    if cases.LEVEL > 1:
        return frozenset(f["name"] for f in gate())
    return frozenset(
        f["name"]
        for f in cover(lambda f: [(schedule(f), f["dtypes"][0].replace("bf16", "f16"))], gate())
    )


@functools.cache
def on_all_emulated_shapes():
    """The same in the emulation, which takes a hundred times as long as C: from level 2 on of each op, direction and dtype of elements one with
    an activation and one without, of each activation in its family one; what the others have of their own is a word in the same loops,
    which they run on a third of the shapes."""
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
    """Of a function's elements, f16's being bf16's with another conversion; of casts all."""
    return tuple(f["dtypes"]) if f["op"] == "cast" else f["dtypes"][0].replace("bf16", "f16")


def of_schedules(dtypes=None):
    """Of the gate one function of each schedule and its dtypes; dtypes: for each of these first ones alone."""
    found = [f for f in gate() if dtypes is None or f["dtypes"][0] in dtypes]
    return cover(
        lambda f: [(schedule(f), *(f["dtypes"] if dtypes is None else f["dtypes"][:1]))], found
    )


def kind(f):
    """Of an argument list and schedule: sizes, direction, sums, dropout by value and by state, halves."""
    halves = any(a.get("kind") in ("half", "two_rights") for a in f["arguments"])
    return f["family"], len(f["sizes"]), f["bwd"], f["scratch"], f["dropout"], f["state"], halves


def kinds(dtypes=("f32", "bf16"), activations=("none", "silu")):
    """One function of each kind."""
    return list(
        {
            kind(f): f
            for f in FUNCTIONS
            if f["activation"] in activations and f["dtypes"][0] in dtypes
        }.values()
    )


def kernels():
    """Every kernel: two activations (one whose gradient reads its argument, one whose does not), and all of them in the op that is
    the activation alone. At level 3 every function."""
    found, seen = [], {}
    for f in FUNCTIONS:
        of = seen.setdefault((f["op"], *f["dtypes"], f["bwd"], f["state"]), set())
        kind = (f["reads_x"], f["activation"] == "none")
        if cases.LEVEL > 2 or f["op"] == "{act}" or kind not in of:
            of.add(kind)
            found.append(f)
    return found


def launches():
    """One function of each op, dtypes and direction: of what launching does, which no activation changes. At level 1 of each schedule and
    dtypes, at level 3 all."""
    if cases.LEVEL < 2:
        return of_schedules()
    return (
        gate()
        if cases.LEVEL > 2
        else list({(f["op"], *f["dtypes"], f["bwd"], f["state"]): f for f in gate()}.values())
    )
