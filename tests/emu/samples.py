# SPDX-License-Identifier: Apache-2.0
"""Which functions run under which sanitizer, on which shapes, from the manifest."""

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

MANIFEST = kflib.on("cuda", kflib.manifest()["functions"])
ARENA = (
    1 << 26
)  # bytes for a call's tensors and workspace: tests/gen/test_cases.py keeps every shape within it
# What a shape is for: one block and several, vectors and single elements, tails, a second stage over several parts.
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
    takes: typing.Callable  # function -> bool
    dtypes: tuple
    runs: tuple = emulator.RUNS
    most: int = ARENA  # bytes of a call's tensors at level 2

    def cases(self, f, every=False):
        """Few, but all of them at level 2 for one function of each schedule, or `every` one, if they are not larger than `most`; at level 3 all."""
        if cases.LEVEL > 2:
            return cases.runs(f)
        if cases.LEVEL > 1 and (every or f["name"] in of_schedules(self.takes)):
            return [
                case for case in cases.runs(f) if checks.places(f, case[0], case[2])[1] <= self.most
            ]
        return REDUCED if f["family"] == "reduction" else cases.of_form(f, FEW)

    def orders(self, i):
        """Those of the case of this number: at level 1 one, with one vector a thread and with several by turns."""
        return self.runs[i % len(self.runs) :][:1] if cases.LEVEL == 1 else self.runs


def of_each_kernel(f):
    """One activation of each op: dtypes and directions are kernels of their own, activations are not. From level 2 on: at level 1 one of
    each schedule, of the dtypes that follow."""
    return f["activation"] == ("gelu" if "{act}" in f["op"] else "none")


def one_dtype_per_schedule(f):
    """Dtypes share the schedules: float for all, 2 bytes for what is summed."""
    return of_each_kernel(f) and (
        f["dtypes"][0] == "f32" or (f["dtypes"][0] == "bf16" and f["scratch"])
    )


def one_dtype_per_size(f):
    """Their vectors are of 2, 4 and 8 bytes: the accesses of f16 are bf16's."""
    return of_each_kernel(f) and cases.of_own_accesses(f)


@functools.cache
def of_schedules(takes):
    """One function of each schedule and dtype of those that a sample takes."""
    found = selection.cover(
        lambda f: [(selection.schedule(f), f["dtypes"][0])], [f for f in MANIFEST if takes(f)]
    )
    return {f["name"] for f in found}


SAMPLES = {
    # Activations are functions without memory accesses: another one adds nothing but arithmetic, which UBSan looks at in `act`.
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
    ),  # a MiB takes ThreadSanitizer ten seconds, and what races does so in small tensors
}


def overwrites_what_was_picked(f):
    """Where an output may be the input, a thread writes what others have looked up by an index."""
    picks = any(a.get("index") and a["index"]["below"] == "cols" for a in f["arguments"])
    return picks and f["family"] == "rows" and bool(checks.in_place_pairs(f))


def in_place(f):
    """(output, input) that share memory in one more call: where a thread writes what others read; at level 2 all of ops over rows."""
    return (
        checks.in_place_pairs(f)
        if overwrites_what_was_picked(f) or cases.LEVEL > 1 and f["family"] == "rows"
        else []
    )


def functions(sample):
    if (
        cases.LEVEL == 1
    ):  # of each schedule and size of element one, of 2 and 4 bytes by turns where both have its kernels
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
    """worker.py with the sanitizer of a sample: status 0 if all is well, 1 if a check failed, 66 if the sanitizer found something: with
    `first` at once, where a fault is planted that gives thousands of reports; each function on all shapes then, as it need not be its schedule's."""
    variant = SAMPLES[sample].variant
    environment = {
        **os.environ,
        **emulator.sanitizer_environment(variant),
        "OPENBLAS_NUM_THREADS": "1",
    }  # its threads look like races
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
