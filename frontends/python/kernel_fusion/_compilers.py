# SPDX-License-Identifier: Apache-2.0
"""The system's C and C++ compilers: where they are, and the flags of kf's libraries."""

import functools
import hashlib
import os
import pathlib
import shutil
import sys
from collections.abc import Iterable, Sequence

from kernel_fusion import _nvrtc

HOW = (
    "install gcc (Debian, Ubuntu: apt install gcc libc6-dev; Fedora: dnf install gcc; conda: "
    "conda install gcc_linux-64) or set CC"
)
HOW_CXX = (
    "install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; conda: conda "
    "install gxx_linux-64) or set CXX"
)
ONLY_LINUX = f"kf compiles functions on Linux, and this is {sys.platform}"
COMPILE = (
    "-std=c11",
    "-O2",
    "-ftree-vectorize",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-fno-asynchronous-unwind-tables",
)
COMPILE_CUDA = (
    "-DKFP_CUDA",
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-fno-asynchronous-unwind-tables",
)
LINK = ("-shared", "-s", "-Wl,--gc-sections", "-Wl,-O1", "-Wl,--hash-style=gnu")
OF_GCC = ("-fvect-cost-model=dynamic",)  # clang rejects it
# Identical code folding, which makes a library of many functions smaller, if the linker has it.
FOLD = ("-fuse-ld=gold", "-Wl,--icf=all")


def _first(names: Iterable[str]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


def c() -> str | None:
    """Returns the path of the C compiler, without trying it; None on systems besides Linux."""
    if sys.platform != "linux":
        return None
    return _first((os.environ.get("CC", "cc"), "gcc", "clang"))


def cxx() -> str | None:
    """Returns the path of the C++ compiler, without trying it."""
    return _first((os.environ.get("CXX", "c++"), "g++", "clang++"))


def cuda() -> tuple[str, pathlib.Path] | None:
    """Returns the C++ compiler and the CUDA include directory, or None if either is missing."""
    found, headers = cxx(), _nvrtc.include("cuda.h")
    return (found, headers) if found and headers and (headers / "vector_types.h").exists() else None


@functools.cache
def version(compiler: str) -> str:
    """Returns what a compiler says of its version; it is part of the names of cached files."""
    import subprocess

    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout


def digest(compiler: str) -> str:
    return hashlib.sha256(version(compiler).encode()).hexdigest()[:8]


def accepts(compiler: str, words: Sequence[str] = ()) -> bool:
    """True if the compiler links a shared library, with these flags."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        probe = pathlib.Path(folder) / "probe.c"
        probe.write_text("#include <string.h>\nint kfp_probe(void) { return 0; }\n")
        command = [compiler, "-Werror", "-shared", "-fPIC", *words, str(probe)]
        done = subprocess.run([*command, "-o", f"{folder}/probe.so"], capture_output=True)
    return done.returncode == 0


def more() -> list[str]:
    """Further flags, of KF_WHEEL_CFLAGS."""
    return os.environ.get("KF_WHEEL_CFLAGS", "").split()


def c_flags(compiler: str, isa_words: Sequence[str]) -> tuple[str, ...]:
    """Returns the flags for C sources of an instruction set."""
    own = OF_GCC if "Free Software Foundation" in version(compiler) else ()
    return (*COMPILE, *own, *isa_words, *more())
