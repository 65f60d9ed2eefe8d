# SPDX-License-Identifier: Apache-2.0
"""The library of the op KernelFusionCall (native/tf_op.cpp), compiled at the first call.

Its file in the cache directory is named by digests of its sources, of TensorFlow's version and
flags, and of the compiler.
"""

import ctypes
import functools
import hashlib
import os
import pathlib
import subprocess
import threading
from typing import Any

import tensorflow as tf
from kernel_fusion import _compilers, _files, _gpu, _layout, _library
from kfgen import paths

from kernel_fusion_tensorflow import _described

HERE = pathlib.Path(__file__).resolve().parent
PACKED = pathlib.Path(_library.__file__).resolve().parent / "native"
SOURCES = (HERE / "native/tf_op.cpp", HERE / "native/tf_call.h", PACKED / "packed.h")
FLAGS = ("-O1", "-w", "-fPIC", "-shared", "-fvisibility=hidden", "-s")
CXX = (
    "install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; conda: conda "
    "install gxx_linux-64) or set CXX"
)


class _Function(ctypes.Structure):
    """Function of tf_op.cpp."""

    _fields_ = [
        ("id", ctypes.c_int32),
        *[(name, ctypes.c_void_p) for name in ("run", "space", "error", "detail")],
    ]


RESOLVER = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_Function)
)
_failed = threading.local()  # keeps the text of a thread's last error alive


def _resolve(described: bytes, name: bytes, found: Any) -> int | None:
    """Finds a function for the op; returns None, or the address of an error text."""
    # C++ code between here and the caller cannot propagate an exception.
    try:
        library = _described.library_of(described.decode(), name.decode())
        function = found.contents
        function.id = library.find(name.decode())
        for member in ("space", "error", "detail", "run"):
            setattr(function, member, library.address(f"kfp_{member}"))
        return None
    except BaseException as e:
        _failed.text = ctypes.create_string_buffer(_gpu.describe(e).encode())
        return ctypes.addressof(_failed.text)


_resolver = RESOLVER(_resolve)


def _path(compiler: str) -> pathlib.Path:
    sources = b"".join(path.read_bytes() for path in (*SOURCES, _layout.HEADER))
    flags = (FLAGS, *_flags(), _compilers.digest(compiler), tf.version.GIT_VERSION)
    digest = hashlib.sha256(repr(flags).encode() + sources).hexdigest()[:16]
    return _files.cache() / f"tensorflow_op-{tf.__version__}-{digest}.so"


def _flags() -> tuple[list[str], list[str]]:
    return tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags()


def _compile(compiler: str, path: pathlib.Path) -> None:
    """Compiles a temporary file, then renames it, so that readers see a complete library."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    compile_, link = _flags()
    includes = [f"-I{folder}" for folder in (paths.INCLUDE, PACKED)]
    command = [compiler, *compile_, *FLAGS, *includes, str(SOURCES[0]), *link, "-o", str(new)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"kf: {' '.join(command)}\n{done.stderr[-4000:]}")
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _find() -> pathlib.Path:
    """Returns the library's path, compiled if it is missing.

    Raises:
        RuntimeError: there is no compiler, it failed, or KF_OFFLINE forbids it.
    """
    compiler = _compilers.cxx()
    if compiler is None:
        raise RuntimeError(f"kf: TensorFlow's op needs a C++ compiler, and none was found: {CXX}")
    path = _path(compiler)
    if path.exists():
        return path
    if _files.offline():
        raise RuntimeError(
            f"kf: {path} does not exist, and KF_OFFLINE is set: call a function of "
            f"kernel_fusion_tensorflow once without, with the same KF_CACHE_DIR"
        )
    with _files.locked(path):
        if not path.exists():
            _compile(compiler, path)
    return path


@functools.cache
def _loaded() -> Any:
    path = str(_find())
    module = tf.load_op_library(path)
    ctypes.CDLL(path).kf_tf_set_resolver(_resolver)
    return module.kernel_fusion_call


_lock = threading.Lock()


def op() -> Any:
    """Returns the Python function of the op; the first call compiles and loads the library."""
    with _lock:
        return _loaded()
