# SPDX-License-Identifier: Apache-2.0
"""Instruction sets of kf's C library: their compiler flags, and which ones this processor runs."""

import hashlib
import os
import pathlib
import platform

# x86-64 levels, with the /proc/cpuinfo flags that each adds and kf's kernels use.
FLAGS = {
    "v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "v2": {"sse4_2", "ssse3", "popcnt"},
}
# The v2 library runs without AVX2, so matmul must not select AVX2 code at run time.
WORDS = {
    "v4": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    "v3": ("-march=x86-64-v3",),
    "v2": ("-march=x86-64-v2", "-DKFI_GEMM_WIDEST=16"),
    "native": ("-march=native",),
    "base": (),
}
BASE = "base"  # runs on every processor; for ops compiled where not even x86-64-v2 is supported
OTHER = "native"  # on other architectures: one library, for the processor it was built on


def processor() -> str:
    """Identifies the processor where libraries are compiled for it alone (OTHER), else ""."""
    if known() != (OTHER,):
        return ""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    kinds = ("Features", "isa", "cpu", "CPU", "model name")
    lines = {line for line in text.splitlines() if line.startswith(kinds) and "MHz" not in line}
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def known() -> tuple[str, ...]:
    """Instruction sets that libraries can be built for on this machine, best first."""
    return tuple(FLAGS) if platform.machine() in ("x86_64", "AMD64") else (OTHER,)


def _flags() -> set[str]:
    try:
        with pathlib.Path("/proc/cpuinfo").open() as lines:
            return next(
                (set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")),
                set(),
            )
    except OSError:
        return set()


def runnable() -> tuple[str, ...]:
    """Instruction sets this processor runs, best first; KF_ISA overrides the detection."""
    asked = os.environ.get("KF_ISA")
    if asked:
        if asked not in known():
            raise ValueError(f"KF_ISA is {asked}, expected one of {', '.join(known())}")
        return (asked,)
    if known() == (OTHER,):
        return known()
    flags = _flags()
    has = {"v2": FLAGS["v2"] <= flags}
    has["v3"] = has["v2"] and FLAGS["v3"] <= flags
    has["v4"] = has["v3"] and FLAGS["v4"] <= flags
    return tuple(isa for isa in FLAGS if has[isa])
