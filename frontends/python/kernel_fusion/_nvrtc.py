# SPDX-License-Identifier: Apache-2.0
"""NVRTC, CUDA's compiler as a library, by ctypes alone: where it and CUDA's headers are, and one kernel of a text as a cubin."""

import ctypes
import functools
import os
import pathlib
import sys
from typing import Any

PLACES = ("/usr/local/cuda", "/opt/cuda")
HOW = "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime, of the driver's CUDA version, or set CUDA_HOME to a toolkit"


class Missing(RuntimeError):
    """There is no NVRTC, or no headers of CUDA."""


def _tops() -> list[pathlib.Path]:
    """Where a toolkit may be: CUDA_HOME first, then NVIDIA's packages, then the usual directories."""
    own = os.environ.get("CUDA_HOME")
    wheels = [
        p for d in sys.path for p in sorted(pathlib.Path(d or ".").glob("nvidia/*")) if p.is_dir()
    ]
    return [*([pathlib.Path(own)] if own else []), *wheels, *map(pathlib.Path, PLACES)]


@functools.cache
def include(needed: str = "cuda_fp16.h") -> pathlib.Path | None:
    """CUDA's include directory."""
    folders = (d for top in _tops() for d in (top / "include", *top.glob("targets/*/include")))
    return next((d for d in folders if (d / needed).exists()), None)


@functools.cache
def _paths() -> list[pathlib.Path]:
    return [
        p
        for top in _tops()
        for d in ("lib64", "lib", "targets/*/lib")
        for p in sorted(top.glob(f"{d}/libnvrtc.so*"), reverse=True)
    ]


@functools.cache
def which() -> str:
    """What tells one NVRTC from another without loading it, which takes a tenth of a second."""
    found = _paths()
    return f"{found[0]} {found[0].stat().st_size}" if found else version()


@functools.cache
def library() -> Any:
    """The library. The part of it that it looks for by name alone is loaded first: it may be in no search path."""
    for path in [*map(str, _paths()), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            for part in (
                pathlib.Path(path).parent.glob("libnvrtc-builtins.so*") if "/" in path else ()
            ):
                ctypes.CDLL(str(part))
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise Missing(f"CUDA's runtime compiler (libnvrtc.so) was not found: {HOW}")


@functools.cache
def version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


@functools.cache
def architectures() -> tuple[int, ...]:
    """Those that it compiles for, as 10 * major + minor."""
    count = ctypes.c_int()
    _check(library().nvrtcGetNumSupportedArchs(ctypes.byref(count)), "nvrtcGetNumSupportedArchs")
    found = (ctypes.c_int * count.value)()
    _check(library().nvrtcGetSupportedArchs(found), "nvrtcGetSupportedArchs")
    return tuple(found)


def _check(code: int, what: str) -> None:
    if code:
        lib = library()
        lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"{what}: {lib.nvrtcGetErrorString(code).decode()}")


def _log(program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library().nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value + 1)
    library().nvrtcGetProgramLog(program, text)
    return text.value.decode(errors="replace")


def compile_kernel(text: str, kernel: str, architecture: str) -> tuple[bytes, bytes]:
    """(the cubin, the kernel's name in it). architecture: "sm_90a"."""
    headers = include()
    if headers is None:
        raise Missing(f"CUDA's headers (cuda_fp16.h) were not found: {HOW}")
    lib, program = library(), ctypes.c_void_p()
    words = [f"-arch={architecture}", "-std=c++17", f"-I{headers}"]
    _check(
        lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kf.cu", 0, None, None),
        "nvrtcCreateProgram",
    )
    try:
        _check(lib.nvrtcAddNameExpression(program, kernel.encode()), "nvrtcAddNameExpression")
        if lib.nvrtcCompileProgram(
            program, len(words), (ctypes.c_char_p * len(words))(*(w.encode() for w in words))
        ):
            raise RuntimeError(
                f"NVRTC {version()} does not compile {kernel} for {architecture}:\n{_log(program)[:4000]}"
            )
        lowered, size = ctypes.c_char_p(), ctypes.c_size_t()
        _check(
            lib.nvrtcGetLoweredName(program, kernel.encode(), ctypes.byref(lowered)),
            "nvrtcGetLoweredName",
        )
        _check(lib.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
        cubin = ctypes.create_string_buffer(size.value)
        _check(lib.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
        assert lowered.value
        return cubin.raw, lowered.value
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))
