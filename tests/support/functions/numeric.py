# SPDX-License-Identifier: Apache-2.0
"""The tests of numbers, the same for every backend: which functions, and what is asked of each. checks.py compares."""

import functools

import cases
import checks
import fakegpu
import kflib
import pytest
import selection

FUNCTIONS = kflib.manifest()["functions"]
BUILDS = {
    # What a careful user writes, and what a careless one does; contraction as the compiler likes it, and off. The first streams
    # every output that it may (core/stream.h), not large ones alone.
    "cpu": {
        "native": ("-O3", "-march=native", "-fopenmp", "-ffp-contract=fast", "-DKF_STREAM_MIN=0"),
        "plain": ("-O2", "-ffp-contract=off"),
    },
    "cuda": {"default": ("-O3", "-arch=native"), "nofma": ("-O3", "-arch=native", "-fmad=false")},
}
GATE = selection.gate()
SKIPPED = [f for f in FUNCTIONS if f["bwd"] and f["activation"] in ("none", "gelu")]
IN_PLACE = [f for f in FUNCTIONS if f["activation"] in ("none", "silu")]
DROPOUT = [f for f in FUNCTIONS if f["dropout"] and f["activation"] in ("none", "relu")]
# Both builds are level 2's: every function in the plain one, which compiles fast; in the native one, whose loops differ from op to op and by
# an activation's words alone, some of each op (cases.sampled), as in the emulation and on a GPU. Level 1 has the gate's in the native build,
# where the compiler does most.
IN_C = kflib.on("cpu", FUNCTIONS)
CPU = (
    {"native": [f for f in IN_C if cases.sampled(f)], "plain": IN_C}
    if cases.LEVEL > 1
    else {"native": kflib.on("cpu", GATE)}
)
ON_CUDA = kflib.on("cuda", GATE)
# Without contraction from level 2 on one of each schedule and its dtypes: an activation's own words are contracted or not in C's builds, too.
CUDA = {
    "default": ON_CUDA,
    "nofma": kflib.on("cuda", selection.of_schedules())
    if cases.LEVEL > 1
    else [f for f in ON_CUDA if cases.sampled(f)],
}
GROUPS = {}  # {(header, dtypes): functions of the native build}: a test a group, where a test a function would cost more than what it tests
for _function in CPU["native"] if cases.LEVEL > 1 else selection.of_schedules():
    GROUPS.setdefault((_function["header"], *_function["dtypes"]), []).append(_function)
probabilities = pytest.mark.parametrize("p", [0.0, 1.0, 0.5, 1e-5])


def each(functions, name):
    """name: the manifest's field that names the function in this backend."""
    return pytest.mark.parametrize("f", functions, ids=[f[name] for f in functions])


@functools.cache
def build_cpu(name, folder):
    return kflib.build(
        "cpu", CPU[name], folder / "cpu", BUILDS["cpu"][name], extra=fakegpu.COUNTERS
    )


def of_gate(functions, takes=lambda f: True):
    """Those of `functions` for the backends that run here: at level 1 instead one of each schedule and its dtypes that can be asked the same."""
    return functions if cases.LEVEL > 1 else [f for f in selection.of_schedules() if takes(f)]


GATE_SKIPPED = of_gate(SKIPPED, lambda f: f["bwd"])
GATE_IN_PLACE = of_gate(IN_PLACE)
GATE_DROPOUT = of_gate(DROPOUT, lambda f: f["dropout"])


def each_in_builds(functions, builds, name):
    """Those of `functions` that a build has, in each build. name: the manifest's field that names a function in this backend."""
    wanted = {f["name"] for f in functions}
    found = [
        (build, f) for build, members in builds.items() for f in members if f["name"] in wanted
    ]
    return pytest.mark.parametrize(
        "lib, f", found, indirect=["lib"], ids=[f"{build}-{f[name]}" for build, f in found]
    )


def each_on_cpu(functions):
    return each_in_builds(functions, CPU, "cpu_name")


def each_on_gpu(functions):
    return each_in_builds(functions, CUDA, "name")


def emulated(functions):
    """Those of `functions` that the emulation's library has."""
    there = {f["name"] for f in ON_CUDA}
    return [f for f in functions if f["name"] in there]


def of_results(f):
    """What a call leaves out: where the gradient may be by the activation's result that, or the inputs that it stands for; elsewhere nothing."""
    return [(checks.result_of(f),), checks.instead_of(f)] if checks.result_of(f) else [()]


def share(f, found, all_shapes):
    """Of what a function is run on, for one that need not have all: the first shape on all values, and every third of the others."""
    if f["name"] in all_shapes:
        return found
    first = len(cases.VALUES)
    return found[:first] + found[first + sum(map(ord, f["name"])) % 3 :: 3]


def numbers(lib, memory, f, whole=None, shared=None):
    """shared: as one of the gate's, which have the shapes among them (share): the names of those that have all."""
    found = cases.runs(f, lib.backend == "cuda", whole)
    for sizes, values, shift in found if shared is None else share(f, found, shared):
        for drop in of_results(f):
            checks.run(lib, memory, f, sizes, values, shift=shift, drop=drop)
    absent = tuple(a["name"] for a in f["arguments"] if a.get("null") == "absent")
    for drop in sorted(
        {absent, *((name,) for name in absent)} - {()}
    ):  # NULL stands for a number, whatever the others are
        for sizes, shift in cases.shapes(f)[:2]:
            checks.run(lib, memory, f, sizes, shift=shift, drop=drop)


def skipped_gradients(lib, memory, f):
    """Any gradient may be NULL: the others do not change, nothing else is written."""
    sizes, _ = cases.shapes(f)[1]
    whole = checks.run(lib, memory, f, sizes)
    for name in whole:
        rest = checks.run(lib, memory, f, sizes, drop=(name,))
        assert all(checks.same_bits(rest[n], whole[n]) for n in rest if n != name)


def in_place(lib, memory, f):
    """An output may be an input of its own shape and element size."""
    for out, source in checks.in_place_pairs(f):
        for sizes, shift in cases.shapes(f)[:3]:
            checks.run(lib, memory, f, sizes, shift=shift, inplace=((out, source),))


def dropout_probability(lib, memory, f, p):
    sizes, shift = cases.shapes(f)[0]
    checks.run(lib, memory, f, sizes, "special", shift=shift, p=p)
