# SPDX-License-Identifier: Apache-2.0
"""Runs a program that calls every C kernel (support/builds/every_call.c) under AddressSanitizer,
UndefinedBehaviorSanitizer, ThreadSanitizer and valgrind. Nothing may be reported, except faults
planted in the headers."""

import os
import re
import shutil
import subprocess

import cases
import cprogram
import faults
import pytest
import selection
from hooks import PTHREADS

if cases.LEVEL > 1:
    KERNELS = UNINITIALISED = selection.kernels()
    # Races depend on the schedule, not on the activation.
    SCHEDULES = [
        f
        for f in KERNELS
        if f["activation"] in ("none", "silu") and f["dtypes"][0] in ("f32", "bf16")
    ]
else:
    SCHEDULES = UNINITIALISED = selection.of_schedules(("f32",))
    KERNELS = selection.of_schedules(("f32", "bf16")) + [
        f for f in selection.FUNCTIONS if f["op"] == "{act}" and f["dtypes"] == ["f32"]
    ]
    KERNELS += selection.cover(
        lambda f: [(f["family"], f["layout"], f["bwd"], f["scratch"])],
        selection.of_schedules(("f64",)),
    )
    KERNELS = list({f["cpu_name"]: f for f in KERNELS}.values())
ADDRESS = (
    "-Og",
    "-g1",
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
)
THREAD = ("-Og", "-g1", "-fsanitize=thread")
needs_valgrind = pytest.mark.skipif(not shutil.which("valgrind"), reason="no valgrind")
VALGRIND = (
    "valgrind",
    "-q",
    "--error-exitcode=99",
    "--leak-check=full",
    "--partial-loads-ok=no",
    "--exit-on-first-error=yes",
)
# ThreadSanitizer needs its own address space layout, which some kernels randomise too much.
STRAIGHT = ("setarch", os.uname().machine, "-R") if shutil.which("setarch") else ()


def with_hook(folder, flags):
    """Runs chunks on POSIX threads, which ThreadSanitizer understands, instead of OpenMP's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hook.h").write_text(PTHREADS)
    return (*flags, "-include", str(folder / "hook.h"))


def run(*command):
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=600,
        env={
            **os.environ,
            "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
    )


def passes(done, functions):
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    calls = re.match(r"(\d+) calls", done.stdout)
    assert calls and int(calls[1]) >= len(functions), done.stdout


def test_address_and_undefined(include, tmp_path):
    program = cprogram.build(tmp_path, KERNELS, include, ADDRESS)
    for mode in ("one after the other", "chunks", "callers"):
        passes(run(program, mode), KERNELS)


def test_thread(include, tmp_path):
    program = cprogram.build(tmp_path, SCHEDULES, include, with_hook(tmp_path, THREAD))
    for mode in ("chunks", "callers"):
        passes(run(*STRAIGHT, program, mode), SCHEDULES)


@needs_valgrind
def test_valgrind(include, tmp_path):
    passes(
        run(*VALGRIND, cprogram.build(tmp_path, UNINITIALISED, include, ("-Og", "-g1"))),
        UNINITIALISED,
    )


# ---- faults they must report: (file, pattern, replacement, functions, report)

PLANTED = {
    "a row value too many is read": (
        "kf/core/elementwise/traverse.h",
        r"memcpy\(room->tile\[k\], base \+ col \* s->size, \(size_t\)\(count \* s->size\)\)",
        "memcpy(room->tile[k], base + col * s->size, (size_t)((count + 1) * s->size))",
        ("kf_cpu_bias_f32",),
        "heap-buffer-overflow",
    ),
    "a tail is written as a whole tile": (
        "kf/core/elementwise/tile.h",
        r"parted =\s+count < t->count \|\| ",
        "parted = ",
        ("kf_cpu_relu_f32",),
        "heap-buffer-overflow",
    ),
    "an overflow of int": (
        "kf/core/elementwise/traverse.h",
        r"kf_i64 i = chunk \* KFI_CHUNK \* KFI_TILE;",
        "kf_i64 i = chunk * KFI_CHUNK * KFI_TILE + (0x7fffffff + (int)(chunk + 1) == 3);",
        ("kf_cpu_relu_f32",),
        "signed integer overflow",
    ),
    "partial sums share their memory": (
        "kf/core/elementwise/traverse.h",
        r"\(\(kf_i64\)sum \* m->blocks \+ block\)",
        "((kf_i64)sum * m->blocks + 0 * block)",
        ("kf_cpu_bias_bwd_f32",),
        "data race",
    ),
    "partial sums begin as they are": (
        "kf/core/elementwise/traverse.h",
        r"memset\(partial, 0, \(size_t\)\(m->cols \* m->acc_size\)\);",
        "",
        ("kf_cpu_bias_bwd_f32",),
        "uninitialised",
    ),
}


def planted(what, include, folder):
    """Returns (functions, include directories of headers with this fault)."""
    file, text, instead, names, _ = PLANTED[what]
    return faults.named(names), faults.plant(include, folder, file, text, instead)


def is_seen(what, done):
    assert done.returncode != 0 and PLANTED[what][-1] in done.stdout + done.stderr, (
        f"{what}: not seen\n{done.stdout}{done.stderr[-3000:]}"
    )


@pytest.mark.parametrize("what", list(PLANTED)[:3])
def test_address_and_undefined_see(include, tmp_path, what):
    is_seen(
        what, run(cprogram.build(tmp_path / "build", *planted(what, include, tmp_path), ADDRESS))
    )


def test_thread_sees(include, tmp_path):
    what = "partial sums share their memory"
    program = cprogram.build(
        tmp_path / "build", *planted(what, include, tmp_path), with_hook(tmp_path, THREAD)
    )
    is_seen(what, run(*STRAIGHT, program, "chunks"))


@needs_valgrind
@pytest.mark.parametrize("what", ["a row value too many is read", "partial sums begin as they are"])
def test_valgrind_sees(include, tmp_path, what):
    done = run(
        *VALGRIND,
        cprogram.build(tmp_path / "build", *planted(what, include, tmp_path), ("-Og", "-g1")),
    )
    assert (
        done.returncode == 99
        and ("Invalid read" if "read" in what else "uninitialised") in done.stderr
    ), done.stderr[-3000:]
