# SPDX-License-Identifier: Apache-2.0
"""The compiled shim between PyTorch and kf (native/torch_shim.cpp): in the package, or cached.

It includes no header of PyTorch and looks libtorch's functions up by name, so one library serves
all versions of PyTorch, and a wheel holds it ready.
"""

import hashlib
import os
import pathlib
import subprocess
from collections.abc import Sequence

from kfgen import paths

from kernel_fusion import _compilers, _compressed, _files, _layout, _progress

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = ("torch_shim.cpp", "torch_call.h", "torch_abi.h", "torch_memory.h", "packed.h")
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-s")


def name() -> str:
    """Returns the library's file name, with a digest of its sources."""
    sources = (*_layout.HEADERS, *(HERE / "native" / source for source in SOURCES))
    data = b"".join(path.read_bytes() for path in sources)
    return f"torch_shim-{hashlib.sha256(repr(FLAGS).encode() + data).hexdigest()[:16]}.so"


def compile_to(
    path: pathlib.Path,
    source: str = SOURCES[0],
    flags: Sequence[str] = FLAGS,
    include: str = str(paths.INCLUDE),
) -> None:
    """Compiles the shim, or another source of the folder `native`.

    Raises:
        OSError: there is no C++ compiler, or it failed.
    """
    compiler = _compilers.cxx()
    if not compiler:
        raise OSError("no C++ compiler was found")
    path.parent.mkdir(parents=True, exist_ok=True)
    # A temporary file is renamed, so that another process sees a complete one.
    new = path.with_name(f".{path.name}.{os.getpid()}")
    command = [
        *(compiler, *flags, "-isystem", include),
        *(str(HERE / "native" / source), "-o", str(new), "-ldl"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{compiler} failed: {done.stderr[-1000:]}")
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def find() -> pathlib.Path:
    """Returns the library's path: the package's, a cached one, or one compiled now.

    Raises:
        OSError: it cannot be compiled, or KF_OFFLINE forbids it.
    """
    own = HERE / "lib" / name()
    if _compressed.exists(own):
        return _compressed.find(own)
    path = _files.cache() / own.name
    if not path.exists():
        if _files.offline():
            raise OSError(f"KF_OFFLINE is set, and {path} does not exist")
        with _files.locked(path):
            if not path.exists():
                with _progress.told("kf: the library for PyTorch"):
                    compile_to(path)
    return path
