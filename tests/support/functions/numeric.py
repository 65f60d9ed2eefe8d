# SPDX-License-Identifier: Apache-2.0
"""The number tests of all backends: the functions to test, and one check per property. checks.py
compares with the oracle; tests/cpu, tests/emu and tests/cuda parametrise their tests from here."""

import functools

import cases
import checks
import fakegpu
import kflib
import pytest
import selection

FUNCTIONS = kflib.of_tensors()
BUILDS = {
    # Flags of a careful user and of a careless one; contraction at the compiler's choice, and off.
    # KF_STREAM_MIN=0 streams all outputs that the headers may stream (core/stream.h), not only
    # large ones.
    "cpu": {
        "native": ("-O3", "-march=native", "-fopenmp", "-ffp-contract=fast", "-DKF_STREAM_MIN=0"),
        "plain": ("-O2", "-ffp-contract=off"),
    },
    "cuda": {"default": ("-O3", "-arch=native"), "nofma": ("-O3", "-arch=native", "-fmad=false")},
}
GATE = selection.numbers_gate()
SKIPPED = [f for f in FUNCTIONS if f["bwd"] and f["activation"] in ("none", "gelu")]
IN_PLACE = [f for f in FUNCTIONS if f["activation"] in ("none", "silu")]
DROPOUT = [f for f in FUNCTIONS if f["dropout"] and f["activation"] in ("none", "relu")]
# Level 2 runs every function in the plain build, which compiles fast. The native build gets a
# sample of each op (cases.sampled), as the emulation and a GPU do: its loops differ by op, and
# activations change only an expression. Level 1 runs the gate's functions in the native build,
# which the compiler changes most.
IN_C = kflib.on("cpu", FUNCTIONS)
CPU = (
    {"native": [f for f in IN_C if cases.sampled(f)], "plain": IN_C}
    if cases.LEVEL > 1
    else {"native": kflib.on("cpu", GATE)}
)
ON_CUDA = kflib.on("cuda", GATE)
# From level 2 on the build without contraction has one function per schedule and dtypes. The C
# builds cover contraction inside activations.
CUDA = {
    "default": ON_CUDA,
    "nofma": kflib.on("cuda", selection.of_schedules())
    if cases.LEVEL > 1
    else [f for f in ON_CUDA if cases.sampled(f)],
}
# {(header, dtypes): functions of the native build}. One test per group: a test per function would
# cost more than the calls.
GROUPS = {}
for _function in CPU["native"] if cases.LEVEL > 1 else selection.of_schedules():
    GROUPS.setdefault((_function["header"], *_function["dtypes"]), []).append(_function)
probabilities = pytest.mark.parametrize("p", [0.0, 1.0, 0.5, 1e-5])


def each(functions, name):
    """Parametrises a test over `functions`. name: the manifest field that names the function in
    this backend."""
    return pytest.mark.parametrize("f", functions, ids=[f[name] for f in functions])


@functools.cache
def build_cpu(name, folder):
    return kflib.build(
        "cpu", CPU[name], folder / "cpu", BUILDS["cpu"][name], extra=fakegpu.COUNTERS
    )


def of_gate(functions, takes=lambda f: True):
    """Returns `functions` from level 2 on, and at level 1 one function per schedule and dtypes for
    which `takes` is true."""
    return functions if cases.LEVEL > 1 else [f for f in selection.of_schedules() if takes(f)]


GATE_SKIPPED = of_gate(SKIPPED, lambda f: f["bwd"])
GATE_IN_PLACE = of_gate(IN_PLACE)
GATE_DROPOUT = of_gate(DROPOUT, lambda f: f["dropout"])


def each_in_builds(functions, builds, name):
    """Parametrises a test over the builds and those of `functions` that each has. name: the
    manifest field that names the function in this backend."""
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
    """Returns those of `functions` that the emulation's library has."""
    there = {f["name"] for f in ON_CUDA}
    return [f for f in functions if f["name"] in there]


def of_results(f):
    """Returns the tuples of tensors to pass as NULL. A backward that can use the activation's
    result runs without the result and without the inputs that it replaces."""
    return [(checks.result_of(f),), checks.instead_of(f)] if checks.result_of(f) else [()]


def share(f, found, all_shapes):
    """Returns `found` for functions in `all_shapes`; for others the first shape with all values,
    and a third of the other shapes."""
    if f["name"] in all_shapes:
        return found
    first = len(cases.VALUES)
    return found[:first] + found[first + sum(map(ord, f["name"])) % 3 :: 3]


def numbers(lib, memory, f, whole=None, shared=None):
    """Checks f against the oracle on all its shapes and values.

    whole: see cases.shapes. shared: names of the functions that need all shapes (see `share`).
    """
    found = cases.runs(f, lib.backend == "cuda", whole)
    for sizes, values, shift in found if shared is None else share(f, found, shared):
        for drop in of_results(f):
            checks.run(lib, memory, f, sizes, values, shift=shift, drop=drop)
    absent = tuple(a["name"] for a in f["arguments"] if a.get("null") == "absent")
    # NULL stands for the operand's neutral value, whatever the others are.
    for drop in sorted({absent, *(cases.together(f, name) for name in absent)} - {()}):
        for sizes, shift in cases.shapes(f)[:2]:
            checks.run(lib, memory, f, sizes, shift=shift, drop=drop)


def skipped_gradients(lib, memory, f):
    """Checks that any gradient may be NULL: the others keep their bits, and nothing else is
    written."""
    sizes, _ = cases.shapes(f)[1]
    whole = checks.run(lib, memory, f, sizes)
    for name in whole:
        rest = checks.run(lib, memory, f, sizes, drop=(name,))
        assert all(checks.same_bits(rest[n], whole[n]) for n in rest if n != name)


def in_place(lib, memory, f):
    """Checks that an output may share memory with an input of its shape and element size."""
    for out, source in checks.in_place_pairs(f):
        for sizes, shift in cases.shapes(f)[:3]:
            checks.run(lib, memory, f, sizes, shift=shift, inplace=((out, source),))


def dropout_probability(lib, memory, f, p):
    sizes, shift = cases.shapes(f)[0]
    checks.run(lib, memory, f, sizes, "special", shift=shift, p=p)
