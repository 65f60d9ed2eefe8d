# SPDX-License-Identifier: Apache-2.0
"""Instruction sets that kf's C library is compiled for: which there are, with which words for the compiler, and which this processor runs."""

import os
import pathlib
import platform

# The levels of x86-64, by what /proc/cpuinfo calls that which they add and kf's kernels use.
FLAGS = {
    "v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "v2": {"sse4_2", "ssse3", "popcnt"},
}
# v2's library runs where there is no AVX2: products leave out what they would choose there at run time.
WORDS = {
    "v4": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    "v3": ("-march=x86-64-v3",),
    "v2": ("-march=x86-64-v2", "-DKFI_GEMM_WIDEST=16"),
    "native": ("-march=native",),
    "base": (),
}
BASE = "base"  # what every processor of its kind runs: of ops that are compiled where there is less than x86-64-v2
OTHER = "native"  # on other processors: one library, for the one that it was built on


def known() -> tuple[str, ...]:
    """Those that libraries may be built for here, the best first."""
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
    """Those of this processor, the best first; KF_ISA chooses one, whatever the processor says of itself."""
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
