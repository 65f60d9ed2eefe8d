# SPDX-License-Identifier: Apache-2.0
"""Finds the parts of the CUDA toolkit: compiler, headers, NVRTC. Each may exist without the
others."""

import ctypes
import ctypes.util
import functools
import os
import pathlib
import shutil
import sys

PREFIXES = ("/usr/local/cuda", "/opt/cuda")


def nvcc():
    """Returns the compiler's path, or None."""
    found = os.environ.get("NVCC") or shutil.which("nvcc")
    return found or next(
        (f"{p}/bin/nvcc" for p in PREFIXES if pathlib.Path(p, "bin/nvcc").exists()), None
    )


def _wheels():
    """Returns the directories of NVIDIA's Python packages."""
    return [p for d in sys.path for p in sorted(pathlib.Path(d).glob("nvidia/*")) if p.is_dir()]


@functools.cache
def include():
    """Returns CUDA's include directory, or None."""
    tops = [os.environ.get("CUDA_HOME"), *PREFIXES]
    if compiler := nvcc():
        tops.insert(1, pathlib.Path(compiler).resolve().parents[1])
    for top in [pathlib.Path(t) for t in tops if t] + _wheels():
        for directory in (top / "include", *top.glob("targets/*/include")):
            if (directory / "cuda_runtime.h").exists() and (directory / "cuda_fp16.h").exists():
                return directory
    return None


def _tops():
    return [pathlib.Path(t) for t in (os.environ.get("CUDA_HOME"), *PREFIXES) if t] + _wheels()


@functools.cache
def nvrtc_to_link():
    """Returns (include directory, library) of one NVRTC installation, or None."""
    for top in _tops():
        headers = [
            d for d in (top / "include", *top.glob("targets/*/include")) if (d / "nvrtc.h").exists()
        ]
        found = [
            p
            for d in ("lib64", "lib", "targets/*/lib")
            for p in sorted(top.glob(f"{d}/libnvrtc.so*"))
        ]
        if headers and found:
            return headers[0], found[0]
    return None


@functools.cache
def nvrtc():
    """Loads NVRTC, or returns None. Its builtins are loaded first, because NVRTC looks for them by
    name and they may be in no search path."""
    found = [
        p
        for top in _tops()
        for d in ("lib64", "lib", "targets/*/lib")
        for p in sorted(top.glob(f"{d}/libnvrtc.so*"))
    ]
    for library in [*found, ctypes.util.find_library("nvrtc")]:
        if library:
            for part in pathlib.Path(library).parent.glob("libnvrtc-builtins.so*"):
                ctypes.CDLL(str(part))
            return ctypes.CDLL(str(library))
    return None
