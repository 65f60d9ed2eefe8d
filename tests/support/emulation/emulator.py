# SPDX-License-Identifier: Apache-2.0
"""Runs the CUDA backend without a GPU: g++ compiles the generated .cuh files and tests/emu executes
them (docs/hacking.md)."""

import ctypes
import hashlib
import os
import pathlib
import subprocess

import cases
import checks
import kflib
import numpy as np
import toolkit

HERE = kflib.ROOT / "tests/emu"
# The values behind kf_emu_fill, kf_emu_sms and so on are set at run time. -Bsymbolic binds the
# library to its own CUDA runtime, even if the process has loaded NVIDIA's, as PyTorch does.
COMMON = (
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
    "-Wno-psabi",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-DKFI_MAP_FILL=kf_emu_fill",
    "-DKFI_LOGITS_BYTES=1",
    "-DKFI_LOGITS_ROWS=64",
    "-DKFI_MAP_SMS=kf_emu_sms",
    "-DKFI_GEMM_SMS=kf_emu_gemm_sms",
    "-DKFI_GEMM_CLASS=kf_emu_gemm_class",
    "-DKFI_GEMM_TILE=kf_emu_gemm_tile",
    "-DKFI_SKINNY_STAGES=3",
    "-DKFI_SKINNY_F32_STAGES=2",
    "-DKFI_ROW_CAP=64",
    "-DKFI_ROW_LONG=4096",
    "-DKFI_ROW_STAGE=12288",
    "-DKFI_ROW_CLUSTER=2",
    "-DKFI_ROW_SUM_BLOCK=64",
    "-DKFI_REDUCE_THREADS=64",
    "-DKFI_BAND_THREADS=64",
    "-DKFI_BAND_EACH_THREADS=32",
    "-DKFI_BAND_BLOCKS=4",
    "-DKFI_BAND_SMALL=300",
    "-DKFI_BAND_CHANNELS=3",
    "-DKFI_SORT_ROUNDS=2",
    "-DKFI_SORT_BITS=6",
    "-DKFI_SORT_WIDE=8",
    "-DKFI_GATHER_FULL(fewer)=3",
    "-DKFI_REDUCE_LEAST=8",
    "-DKFI_REDUCE_CLUSTER=3",
    "-DKFI_REDUCE_WHOLE=8",
    "-fdata-sections",
    f"-Wl,-T,{HERE}/shared.ld",
    "-Wl,-Bsymbolic",
)
# Misaligned accesses reach the emulator's own handler (emu_align.h): the sanitizer's library is
# linked statically, and none of its code is taken.
# With few shapes AddressSanitizer's code takes longer to compile than to run. It only checks
# accesses that the optimiser keeps, so it runs without optimisation. ThreadSanitizer needs half a
# millisecond per thread, so it sums with few.
VARIANTS = {
    "plain": ("-O0", "-fsanitize=alignment", "-static-libubsan"),
    "asan": (
        cases.by_level("-O0", "-Og"),
        "-g1",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
        "-DKF_EMU_ASAN",
    ),
    "tsan": ("-Og", "-g1", "-fsanitize=thread", "-DKF_EMU_TSAN", "-DKFI_SUM_GROUPS=32"),
}
# Headers that every file includes, precompiled once: half the compile time of a file with few
# functions.
FIRST = "".join(
    f"#include <{name}>\n"
    for name in (
        "cuda_runtime.h",
        "kf/core/elementwise/elementwise.cuh",
        "kf/core/rows/rows.cuh",
        "kf/core/reduction/reduction.cuh",
        "kf/ops/activations.cuh",
    )
)
FORWARD, REVERSED, RANDOM = 0, 1, 2
FILL = 1056  # KFI_MAP_FILL of kf/core/elementwise/host.cuh


def flags(variant):
    return [*COMMON, *VARIANTS[variant], "-isystem", str(toolkit.include())]


def runtime(build_dir, variant):
    """Compiles the emulator itself, without sanitizers, and returns the object."""
    options = [
        f
        for f in flags(variant)
        if not f.startswith("-fsanitize") and not f.startswith("-fno-sanitize")
    ]
    command = [
        "g++",
        "-std=c++17",
        "-fPIC",
        f"-I{HERE}/include",
        f"-I{HERE}",
        *options,
        "-O2",
        "-c",
        str(HERE / "emu.cpp"),
    ]  # the last -O counts
    digest = hashlib.sha256(repr(command).encode())
    for path in sorted(
        [*HERE.glob("*.h"), *HERE.glob("*.cpp"), *HERE.glob("*.ld"), *HERE.glob("include/*.h")]
    ):
        digest.update(path.read_bytes())
    build_dir = pathlib.Path(build_dir)
    build_dir.mkdir(parents=True, exist_ok=True)
    out = build_dir / f"emu_{variant}_{digest.hexdigest()[:16]}.o"
    if not out.exists():
        temporary = out.with_suffix(f".{os.getpid()}.o")
        subprocess.run([*command, "-o", str(temporary)], check=True)
        temporary.replace(out)
    return out


def products(include, folder, variant, only=None):
    """Compiles the test program of products (emu_core.cpp) into a folder, unless it exists, and
    returns its path.

    only: compiles the kernels of this mode alone; "" selects those without a mode. The program
    exits with status 2 if a test asks for another mode.
    """
    program = folder / variant
    if not program.exists():
        own = HERE.parent / "families/matmul"
        folders = [HERE / "include", HERE, own, *include]
        words = (
            *flags(variant),
            "-UKFI_GEMM_SMS",
            "-UKFI_GEMM_CLASS",
            "-UKFI_GEMM_TILE",
            "-Og",
            *(f"-I{d}" for d in folders),
        )
        words += () if only is None else (f"-DONLY={ord(only[0]) if only else 0}",)
        sources = own / "emu_core.cpp", runtime(kflib.ROOT / "build/tests/emu", variant)
        subprocess.run(
            ["g++", "-std=c++17", *words, *map(str, sources), "-o", str(program)], check=True
        )
    return program


def library(functions, build_dir, variant="plain", include=None, more=()):
    """Builds a shared library that runs the launchers of `functions` in the emulator. more: further
    flags."""
    own, include = (
        [HERE / "include", HERE, *(found or kflib.render(build_dir))] for found in (None, include)
    )
    # Precompiled headers require that no fault is planted in them: few files would use them.
    same = kflib.closure(FIRST, include) == kflib.closure(FIRST, own)
    return kflib.library(
        "emu",
        functions,
        build_dir,
        [*flags(variant), *more],
        include=include,
        objects_=[runtime(build_dir, variant)],
        first=FIRST if same else "",
    )


def build(functions, build_dir, include=None, more=()):
    return kflib.Lib("emu", library(functions, build_dir, include=include, more=more))


def sanitizer_environment(variant):
    """Returns the environment of a process that loads a sanitized library. It preloads the
    sanitizer, which exits with status 66."""
    name = {"asan": "libasan.so", "tsan": "libtsan.so"}[variant]
    path = subprocess.run(
        ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    options = "exitcode=66:detect_leaks=0"
    return {
        "LD_PRELOAD": path,
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": options + ":print_stacktrace=1",
        "TSAN_OPTIONS": options + ":history_size=0",
    }


def fixed_addresses():
    """Returns a command prefix that disables address randomisation, which breaks ThreadSanitizer's
    shadow memory."""
    return (
        ["setarch", "-R"]
        if subprocess.run(["setarch", "-R", "true"], capture_output=True).returncode == 0
        else []
    )


class Emulator:
    """Controls how the kernels of one library run."""

    def __init__(self, lib):
        self.dll = lib.dll
        self.dll.kf_emu_missing.restype = ctypes.c_char_p
        self.dll.kf_emu_report.restype = ctypes.c_char_p
        self.set(aborts=0)

    def set(self, **numbers):
        """Sets order, sms, fill, failure, aborts (int) and seed (64 bits)."""
        for name, value in numbers.items():
            (ctypes.c_uint64 if name == "seed" else ctypes.c_int).in_dll(
                self.dll, f"kf_emu_{name}"
            ).value = value

    def forget(self):
        self.dll.kf_emu_forget()

    def missing(self):
        """Returns the kernels of the launchers' tables that no launch has used since forget()."""
        return self.dll.kf_emu_missing().decode().split("\n")[:-1]

    @property
    def launches(self):
        return ctypes.c_long.in_dll(self.dll, "kf_emu_launches").value

    @property
    def report(self):
        return self.dll.kf_emu_report().decode()


# (order of threads, blocks that fill the device). With few blocks a thread takes one vector, else
# several.
RUNS = ((FORWARD, FILL), (REVERSED, 1), (RANDOM, 2))


class Memory(checks.CpuMemory):
    """An arena that repeats each call in several thread orders, with one and with several vectors
    per thread. All runs must produce the same bytes."""

    def __init__(self, emulator, runs=RUNS, size=1 << 26):
        super().__init__(size)
        self.emulator, self.runs, self.seed = emulator, runs, 0

    def run(self, image, call):
        first = None
        for order, fill in self.runs:
            self.seed += 1
            self.emulator.set(order=order, fill=fill, seed=self.seed)
            result, back = super().run(image, call)
            if first is None:
                first = result, back
            elif result != first[0] or not np.array_equal(back, first[1]):
                at = np.flatnonzero(back != first[1])
                where = (
                    f", from byte {at[0]} of the arena on"
                    if at.size
                    else f" ({self.emulator.report})"
                )
                raise checks.Failure(
                    f"order {order}, seed {self.seed}, fill {fill}: returned {result}, {at.size} "
                    f"bytes differ from the first run's{where}"
                )
        return first
