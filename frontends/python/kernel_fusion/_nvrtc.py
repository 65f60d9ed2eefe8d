# SPDX-License-Identifier: Apache-2.0
"""Finds NVRTC (CUDA's run-time compiler) and CUDA's headers; compiles kernels through ctypes."""

import ctypes
import functools
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

PLACES = ("/usr/local/cuda", "/opt/cuda")
HOW = (
    "pip install nvidia-cuda-nvrtc nvidia-cuda-runtime (the driver's CUDA version), or set "
    "CUDA_HOME to a toolkit"
)


class Missing(RuntimeError):
    """NVRTC or CUDA's headers were not found."""


def _tops() -> list[pathlib.Path]:
    """Candidate toolkit folders: CUDA_HOME, then NVIDIA's Python packages, then the usual ones."""
    own = os.environ.get("CUDA_HOME")
    wheels = [
        p for d in sys.path for p in sorted(pathlib.Path(d or ".").glob("nvidia/*")) if p.is_dir()
    ]
    return [*([pathlib.Path(own)] if own else []), *wheels, *map(pathlib.Path, PLACES)]


@functools.cache
def include(needed: str = "cuda_fp16.h") -> pathlib.Path | None:
    """Returns CUDA's include directory."""
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
    """Identifies the NVRTC without loading it, since loading takes 0.1 s."""
    found = _paths()
    return f"{found[0]} {found[0].stat().st_size}" if found else version()


@functools.cache
def library() -> Any:
    """Loads NVRTC, after its builtins library, which may be outside of the search path."""
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
    """Supported architectures, as 10 * major + minor."""
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


def compile_kernel(
    text: str, kernel: str, architecture: str, options: Sequence[str] = ()
) -> tuple[bytes, bytes]:
    """Compiles one kernel; returns (cubin, lowered name).

    Args:
        architecture: for example "sm_90a".
        options: further options of NVRTC; one of -std replaces C++17.
    """
    headers = include()
    if headers is None:
        raise Missing(f"CUDA's headers (cuda_fp16.h) were not found: {HOW}")
    lib, program = library(), ctypes.c_void_p()
    standard = [] if any("-std" in o for o in options) else ["-std=c++17"]
    words = [f"-arch={architecture}", *standard, f"-I{headers}", *options]
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
                f"NVRTC {version()} failed to compile {kernel} for "
                f"{architecture}:\n{_log(program)[:4000]}"
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
