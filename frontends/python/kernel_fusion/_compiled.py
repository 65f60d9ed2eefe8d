# SPDX-License-Identifier: Apache-2.0
"""The functions of one op that a program has made: for the dtypes that are called, at the first call, compiled by the system's C compiler, or for
a GPU its C++ compiler, into a library of the user's cache directory, from which later processes take it. A file's name is a digest of all that it is
made of.

KF_CACHE_DIR   the directory; default: that of the user.
KF_OFFLINE=1   compiles nothing: what is not in the cache is an error.
"""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from kfgen import fused, manifest, paths, source

from kernel_fusion import _build, _files, _gpu, _isa, _nvrtc
from kernel_fusion._library import Library
from kernel_fusion._table import Op

Dtypes = tuple[str, ...]


@functools.cache
def _generator(*files: str) -> str:
    """Of kfgen, its templates and kf's headers, and of this package's part of a library."""
    native = hashlib.sha256(b"".join((_build.NATIVE / name).read_bytes() for name in files))
    return f"{paths.digest()} {native.hexdigest()}"


@functools.cache
def compiler() -> str | None:
    return _build.compiler()[0]


class Own:
    """An op's functions on the CPU. Called as a Library is."""

    def __init__(self, name: str, entry: dict[str, Any], label: str):
        self.name, self.entry, self.label = name, entry, label
        self.lock = threading.Lock()
        self.made: dict[Dtypes, Any] = {}  # Library, or what stands in for one
        self.dtypes: dict[str, Dtypes] = {}  # {function: its dtypes}

    def of(self, op: Op) -> None:
        """Learns the names of its functions."""
        self.dtypes = {
            op.function("none", d, backward): d for d in op.dtypes for backward in (False, True)
        }

    @staticmethod
    def compiles() -> bool:
        """Whether what computes it is a library for sure: without a compiler NumPy may have to."""
        return compiler() is not None

    @functools.cached_property
    def on_gpu(self) -> "OwnOnGpu":
        made = OwnOnGpu(self.name, self.entry, self.label)
        made.dtypes = self.dtypes
        return made

    def told(self) -> list[Any]:
        """What a library is made of beside the op."""
        return [_isa.runnable()[:1], _build.COMPILE, _build.LINK, _generator("packed.h", "pool.c")]

    def open(self, path: pathlib.Path) -> Any:
        return Library(path)

    def build(self, path: pathlib.Path, dtypes: Dtypes) -> None:
        _build.library(
            path, self.selection(dtypes), (*_isa.runnable(), _isa.BASE)[0], dtypes=dtypes
        )

    def otherwise(self, dtypes: Dtypes) -> Any:
        """What computes where nothing can be compiled; None: it can."""
        if compiler() is not None:
            return None
        from kernel_fusion._interpreted import Interpreted

        warnings.warn(
            f"kf.{self.label}: there is no C compiler (apt install gcc libc6-dev), so NumPy computes it, slowly",
            stacklevel=10,
        )
        return Interpreted(self.manifest(dtypes))

    def path(self, dtypes: Dtypes) -> pathlib.Path:
        told = [self.name, self.entry, dtypes, *self.told()]
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]
        return _files.cache() / f"{self.name}_{'_'.join(dtypes)}-{digest}.so"

    def find(self, function: str) -> int:
        """Whether there is such a function, or can be: 0, -1."""
        return 0 if function in self.dtypes else -1

    def lacks(self, function: str) -> NotImplementedError:
        return NotImplementedError(f"kf.{self.label} has no {function}")

    def call(self, function: str, *args: Any) -> None:
        self.library(self.dtypes[function]).call(function, *args)

    def library(self, dtypes: Dtypes) -> Any:
        if dtypes not in self.made:
            with self.lock:
                if dtypes not in self.made:
                    self.made[dtypes] = self._load(dtypes)
        return self.made[dtypes]

    def _load(self, dtypes: Dtypes) -> Any:
        path = self.path(dtypes)
        if path.exists():
            with contextlib.suppress(OSError):  # not what was written there
                return self.open(path)
        if _files.offline():
            raise RuntimeError(
                f"kf.{self.label} for {', '.join(dtypes)} is not in {path.parent}, and KF_OFFLINE is set: call it once without, "
                "with the same KF_CACHE_DIR"
            )
        other = self.otherwise(dtypes)
        if other is not None:
            return other
        self._compile(path, dtypes)
        return self.open(path)

    def _compile(self, path: pathlib.Path, dtypes: Dtypes) -> None:
        """In a file beside it, which then gets its name: several processes may do it at the same time."""
        new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            self.build(new, dtypes)
            os.replace(new, path)
        except OSError as e:
            raise OSError(
                e.errno,
                f"kf.{self.label}: its library cannot be kept ({e.strerror}); KF_CACHE_DIR chooses another directory",
                str(path),
            ) from None
        finally:
            with contextlib.suppress(OSError):
                new.unlink()

    def selection(self, dtypes: Sequence[str]) -> Any:
        return fused.selection(self.name, self.entry, list(dict.fromkeys(dtypes)))

    def manifest(self, dtypes: Sequence[str]) -> Any:
        return manifest.build(self.selection(dtypes))

    def state(self) -> dict[str, str]:
        """{dtypes: what computes them}, of those that were called."""
        return {
            ", ".join(d): str(getattr(made, "path", "NumPy: there is no C compiler"))
            for d, made in self.made.items()
        }


class OwnOnGpu(Own):
    """The same on GPUs: launchers that a C++ compiler compiles, for which NVRTC compiles kernels. Called as a Gpu is."""

    def told(self) -> list[Any]:
        return [
            "cuda",
            _build.COMPILE_CUDA,
            _build.LINK,
            _generator("packed.h", "loader.h", "loader.cpp", "memory.cpp"),
        ]

    def open(self, path: pathlib.Path) -> Any:
        return _gpu.Gpu(path, text=self.text)

    def text(self, function: str) -> str:
        return str(source.source(self.selection(self.dtypes[function]), function))

    def build(self, path: pathlib.Path, dtypes: Dtypes) -> None:
        _build.cuda_library(path, self.selection(dtypes), dtypes)

    def otherwise(self, dtypes: Dtypes) -> Any:
        if _build.cuda_compiler() is None:
            raise NotImplementedError(
                f"kf.{self.label}: on a GPU it needs a C++ compiler (apt install g++) and CUDA's headers: {_nvrtc.HOW}"
            )
        return None
