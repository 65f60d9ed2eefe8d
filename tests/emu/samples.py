# SPDX-License-Identifier: Apache-2.0
"""Selects the functions and shapes that run under each sanitizer, from the manifest."""

import dataclasses
import functools
import os
import pathlib
import subprocess
import sys
import typing

import cases
import checks
import emulator
import kflib
import selection

MANIFEST = kflib.on("cuda", kflib.of_tensors())
# Bytes of a call's tensors and workspace; tests/gen/test_cases.py keeps every shape below it.
ARENA = 1 << 26
# Shapes by form. Each list covers one block and several, vectors and single elements, tails, and a
# second stage over several partial results.
FEW = {
    "flat": [
        ((1000,), "special", 0),
        ((1003,), "normal", 0),
        ((77,), "wide", 1),
        ((0,), "normal", 0),
    ],
    "rows": [
        ((7, 64), "special", 0),
        ((5, 301), "normal", 0),
        ((5, 30), "wide", 1),
        ((70, 300), "normal", 0),
        ((0, 8), "normal", 0),
    ],
    "planes": [
        ((2, 3, 304), "special", 0),
        ((3, 5, 19), "normal", 0),
        ((2, 5, 9), "wide", 1),
        ((19, 16, 1), "normal", 0),
        ((0, 3, 4), "normal", 0),
    ],
    "heads": [
        ((2, 3, 5, 64), "special", 0),
        ((2, 2, 3, 301), "normal", 0),
        ((3, 1, 2, 30), "wide", 1),
        ((0, 3, 4, 8), "normal", 0),
    ],
    "groups": [
        ((2, 1, 3, 12, 32), "special", 0),
        ((1, 7, 3, 15, 9), "normal", 0),
        ((2, 5, 2, 16, 1), "wide", 1),
        ((0, 2, 3, 12, 5), "normal", 0),
    ],
}
REDUCED = [
    ((3, 300, 1), "special", 0),
    ((2, 5001, 1), "normal", 0),
    ((2, 70, 9), "wide", 1),
    ((1, 900, 20), "normal", 0),
    ((0, 7, 3), "normal", 0),
    ((3, 60, 64), "normal", 0),
]


@dataclasses.dataclass
class Sample:
    variant: str
    takes: typing.Callable  # predicate on a function
    dtypes: tuple
    runs: tuple = emulator.RUNS
    most: int = ARENA  # bytes of a call's tensors at level 2

    def cases(self, f, every=False):
        """Returns the cases of a function. Level 1: a few. Level 2: all up to `most` bytes for one
        function of each schedule, or for `every` function. Level 3: all."""
        if cases.LEVEL > 2:
            return cases.runs(f)
        if cases.LEVEL > 1 and (every or f["name"] in of_schedules(self.takes)):
            return [
                case
                for case in cases.runs(f)
                if checks.offsets(f, case[0], case[2])[1] <= self.most
            ]
        return REDUCED if f["family"] == "reduction" else cases.of_form(f, FEW)

    def orders(self, i):
        """Returns the thread orders of case i. Level 1 runs one, alternately with one vector per
        thread and with several."""
        return self.runs[i % len(self.runs) :][:1] if cases.LEVEL == 1 else self.runs


def of_each_kernel(f):
    """Selects one activation of each op from level 2 on: dtypes and directions have kernels of
    their own, activations do not. Level 1 takes one function of each schedule, in the sample's
    dtypes."""
    return f["activation"] == ("gelu" if "{act}" in f["op"] else "none")


def one_dtype_per_schedule(f):
    """Dtypes share the schedules, so f32 stands for all; bf16 is added for functions that sum."""
    return of_each_kernel(f) and (
        f["dtypes"][0] == "f32" or (f["dtypes"][0] == "bf16" and f["scratch"])
    )


def one_dtype_per_size(f):
    """Selects dtypes with vectors of 2, 4 and 8 bytes; f16 has the accesses of bf16."""
    return of_each_kernel(f) and cases.of_own_accesses(f)


@functools.cache
def of_schedules(takes):
    """Names of one function of each schedule and dtype that a sample takes."""
    found = selection.cover(
        lambda f: [(selection.schedule(f), f["dtypes"][0])], [f for f in MANIFEST if takes(f)]
    )
    return {f["name"] for f in found}


# ThreadSanitizer needs ten seconds per MiB, and races show in small tensors too.
SAMPLES = {
    # Activations access no memory: another one adds only arithmetic, which UBSan checks in `act`.
    "memory": Sample(
        "asan",
        lambda f: one_dtype_per_size(f) or f["op"] == "{act}",
        ("f32", "bf16"),
        cases.by_level(((emulator.RANDOM, emulator.FILL), (emulator.REVERSED, 1)), emulator.RUNS),
    ),
    "races": Sample(
        "tsan",
        one_dtype_per_schedule,
        ("f32",),
        ((emulator.FORWARD, 1), (emulator.RANDOM, emulator.FILL)),
        1 << 20,
    ),
}


def overwrites_what_was_picked(f):
    """True if an output may alias an input that other threads gather from by index."""
    picks = any(a.get("index") and a["index"]["below"] == "cols" for a in f["arguments"])
    return picks and f["family"] == "rows" and bool(checks.in_place_pairs(f))


def in_place(f):
    """Pairs (output, input) that share memory in an additional call, if a thread writes what others
    read. From level 2 on all pairs of ops over rows."""
    return (
        checks.in_place_pairs(f)
        if overwrites_what_was_picked(f) or cases.LEVEL > 1 and f["family"] == "rows"
        else []
    )


def functions(sample):
    # Level 1 takes one function of each schedule and element size, alternating 2 and 4 bytes where
    # both have the schedule's kernels.
    if cases.LEVEL == 1:
        found = kflib.on("cuda", selection.of_schedules(SAMPLES[sample].dtypes))
        found += [
            f
            for f in MANIFEST
            if overwrites_what_was_picked(f) and f["dtypes"] == ["f32"] and f not in found
        ]
        return selection.cover(
            lambda f: [
                selection.schedule(f),
                (f["family"], f["layout"], f["bwd"], f["dtypes"][0]),
                overwrites_what_was_picked(f) and f["op"],
            ],
            found,
        )
    return [f for f in MANIFEST if cases.LEVEL > 2 or SAMPLES[sample].takes(f)]


def run(library, sample, names=(), first=False):
    """Runs worker.py under the sanitizer of a sample. Status: 0 success, 1 a check failed, 66 the
    sanitizer reported.

    first: stops at the first report, because planted faults cause thousands. It also runs each
    function on all shapes, because it need not be the one of its schedule.
    """
    variant = SAMPLES[sample].variant
    # OpenBLAS' threads look like races.
    environment = {
        **os.environ,
        **emulator.sanitizer_environment(variant),
        "OPENBLAS_NUM_THREADS": "1",
    }
    if first:
        environment["TSAN_OPTIONS"] += ":halt_on_error=1"
    command = [
        *(emulator.fixed_addresses() if variant == "tsan" else []),
        sys.executable,
        str(pathlib.Path(__file__).with_name("worker.py")),
        str(library),
        sample,
        *["--every"] * first,
        *names,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment)
