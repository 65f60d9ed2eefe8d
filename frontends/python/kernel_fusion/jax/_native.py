# SPDX-License-Identifier: Apache-2.0
"""The compiled XLA FFI handlers (native/jax_ffi.cpp), and the kf functions that they call.

The handlers are compiled once per version of jaxlib into the cache directory, from jaxlib's own
headers.
"""

import ctypes
import functools
import hashlib
import pathlib
import threading
from collections.abc import Sequence
from typing import Any

import jax
from jaxlib import version

from kernel_fusion import (
    _compilers,
    _files,
    _first_call,
    _library,
    _progress,
    _shim_library,
    _table,
)

TARGET = "kf"
# Exports of a library that the handlers call, on the CPU and on a GPU: run, load, and errors.
SYMBOLS = (
    ("kfp_run", "", "kfp_error", "kfp_detail", ""),
    ("kfp_run_on", "kfp_load_on", "kfp_error", "kfp_detail", "kfp_reason"),
)
SOURCES = ("jax_ffi.cpp", "packed.h")
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-s")
OPENER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
SPACE = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


def _path() -> pathlib.Path:
    """Returns the handlers' file, named by the version of jaxlib and a digest of the sources."""
    headers = sorted(pathlib.Path(jax.ffi.include_dir()).glob("xla/ffi/api/*.h"))
    sources = [_first_call.NATIVE / name for name in SOURCES]
    data = b"".join(path.read_bytes() for path in [*sources, *headers])
    digest = hashlib.sha256(repr(FLAGS).encode() + data).hexdigest()[:16]
    return _files.cache() / f"jax_ffi-{version.__version__}-{digest}.so"


@functools.cache
def library() -> ctypes.CDLL:
    """Loads the handlers, compiled at the first call, and registers them with XLA.

    Raises:
        RuntimeError: there is no C++ compiler, it failed, or KF_OFFLINE forbids it.
    """
    path = _path()
    if not path.exists():
        if not _compilers.cxx():
            raise RuntimeError(
                f"kf.jax: no C++ compiler was found, which compiles its handlers once: "
                f"{_compilers.HOW_CXX}"
            )
        if _files.offline():
            raise RuntimeError(
                f"kf.jax: {path} does not exist, and KF_OFFLINE is set: call a function of kf.jax "
                f"once without, with the same KF_CACHE_DIR"
            )
        with _files.locked(path):
            if not path.exists():
                try:
                    with _progress.told("kf: the library for JAX"):
                        _shim_library.compile_to(path, SOURCES[0], FLAGS, jax.ffi.include_dir())
                except OSError as e:
                    raise RuntimeError(f"kf.jax: {e}") from None
    found = ctypes.CDLL(str(path))
    found.kfj_add.argtypes = [ctypes.c_char_p, *[ctypes.c_int] * 2, *[ctypes.c_void_p] * 5]
    found.kfj_add.restype = None
    found.kfj_set_opener(_OPEN)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(found.kfj_cpu), platform="cpu")
    stages = {
        "execute": jax.ffi.pycapsule(found.kfj_gpu),
        "initialize": jax.ffi.pycapsule(found.kfj_gpu_load),
    }
    jax.ffi.register_ffi_target(TARGET, stages, platform="CUDA")
    return found


_opened: dict[tuple[str, bool], tuple[Any, int]] = {}
_own: dict[str, _table.Op] = {}  # {function: op} of ops that this process made


def prepare(op: _table.Op, function: str, on_gpu: bool, sizes: Sequence[int] | None) -> int:
    """Makes a function known to the handlers, compiling it at its first call.

    Args:
        sizes: sizes and integers of a function with a workspace, else None.

    Returns:
        The bytes of its workspace.
    """
    if (function, on_gpu) not in _opened:
        _add(op, function, on_gpu)
    if sizes is None:
        return 0
    found, number = _opened[function, on_gpu]
    given = (ctypes.c_int64 * len(sizes))(*sizes)
    return int(SPACE(found.address("kfp_space"))(number, given))


def _add(op: _table.Op, function: str, on_gpu: bool) -> None:
    handlers = library()
    functions = _library.of(op)
    found = (functions.on_gpu if on_gpu else functions).library_of(function)
    number = found.find(function)
    if op.own:
        _own[function] = op
    run, load, error, detail, reason = (
        found.address(symbol) if symbol else None for symbol in SYMBOLS[on_gpu]
    )
    handlers.kfj_add(function.encode(), on_gpu, number, run, load, error, detail, reason)
    _opened[function, on_gpu] = found, number


@functools.cache
def _by_function() -> dict[str, _table.Op]:
    return {name: op for op in _table.ops().values() for name in _first_call.functions(op).units}


_texts = threading.local()  # keeps the last message of a thread


def _open(function: bytes, on_gpu: int) -> int | None:
    """Opens a function that a deserialised program calls first; returns the address of the reason
    why it cannot.
    """
    # C++ code between here and the caller cannot propagate an exception.
    try:
        name = function.decode()
        op = _own.get(name) or _by_function().get(name)
        if op is None:
            raise KeyError(f"this process has no {name}: make or load its op first")
        _add(op, name, bool(on_gpu))
    except BaseException as e:
        _texts.why = ctypes.create_string_buffer(f"{type(e).__name__}: {e}".encode())
        return ctypes.addressof(_texts.why)
    return None


_OPEN = OPENER(_open)
