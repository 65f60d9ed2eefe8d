# SPDX-License-Identifier: Apache-2.0
"""Libraries in C++ for one framework's headers, compiled at the first use and cached.

A file's name in the cache directory has digests of its sources, of the framework's version and
flags, and of the compiler.
"""

import hashlib
import os
import pathlib
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from kfgen import paths

from kernel_fusion import _compilers, _files, _layout, _progress

NATIVE = pathlib.Path(__file__).resolve().parent / "native"
SHARED = (NATIVE / "call.h", NATIVE / "packed.h", *_layout.HEADERS)
FLAGS = ("-O1", "-w", "-fPIC", "-shared", "-fvisibility=hidden", "-s")
HOW = (
    "install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; conda: conda "
    "install gxx_linux-64) or set CXX"
)


class Source(NamedTuple):
    """A source file over native/call.h, and the framework that it is compiled for."""

    framework: str  # name in messages
    file: pathlib.Path
    version: str  # the framework's
    compile: Sequence[str]
    link: Sequence[str]

    def path(self, compiler: str | None) -> pathlib.Path:
        """Returns the library's file; without a compiler a pattern that files of any match."""
        data = b"".join(path.read_bytes() for path in (self.file, *SHARED))
        inputs = repr((FLAGS, [*self.compile], [*self.link], self.version, _compilers.more()))
        digest = hashlib.sha256(inputs.encode() + data).hexdigest()[:16]
        by = _compilers.digest(compiler) if compiler else "*"
        return _files.cache() / f"{self.file.stem}-{digest}-{by}.so"


def find(source: Source) -> pathlib.Path:
    """Returns the library's path, compiled if it is missing.

    Raises:
        RuntimeError: there is no compiler, it failed, or KF_OFFLINE forbids it.
    """
    compiler = _compilers.cxx()
    path = source.path(compiler)
    if path.exists():
        return path
    if compiler is None or _files.offline():
        any_ = source.path(None)
        for made in sorted(any_.parent.glob(any_.name)):
            return made
    if compiler is None:
        raise RuntimeError(
            f"kf: functions for {source.framework} need a C++ compiler, and none was found: {HOW}"
        )
    if _files.offline():
        raise RuntimeError(
            f"kf: {path} does not exist, and KF_OFFLINE is set: call a function of "
            f"{source.framework} once without, with the same KF_CACHE_DIR"
        )
    with _files.locked(path):
        if not path.exists():
            with _progress.told(f"kf: the library for {source.framework}"):
                _compile(source, compiler, path)
    return path


def _compile(source: Source, compiler: str, path: pathlib.Path) -> None:
    """Compiles a temporary file, then renames it, so that readers see a complete library."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    includes = [f"-I{folder}" for folder in (paths.INCLUDE, NATIVE)]
    command = [
        *(compiler, *source.compile, *FLAGS, *_compilers.more(), *includes, str(source.file)),
        *(*source.link, "-o", str(new)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"kf: {' '.join(command)}\n{done.stderr[-4000:]}")
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
