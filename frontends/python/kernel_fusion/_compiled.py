# SPDX-License-Identifier: Apache-2.0
"""Libraries of ops made by kf.fuse: compiled per dtype tuple at the first call, and cached.

The system's C compiler (for a GPU its C++ compiler) writes a library into the user's cache
directory, from which later processes load it. The file name contains a digest of all inputs of the
compilation.

KF_CACHE_DIR   the directory; default: the user's cache directory
KF_OFFLINE=1   nothing is compiled; a missing library is an error
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

from kfgen import paths
from kfgen.interfaces import fused, manifest
from kfgen.render import source

from kernel_fusion import _build, _files, _gpu, _isa, _nvrtc
from kernel_fusion._library import Library
from kernel_fusion._table import Op

Dtypes = tuple[str, ...]


@functools.cache
def _generator(*files: str) -> str:
    """Digest of kfgen, its templates, kf's headers, and the given native sources."""
    native = hashlib.sha256(b"".join((_build.NATIVE / name).read_bytes() for name in files))
    return f"{paths.digest()} {native.hexdigest()}"


@functools.cache
def compiler() -> str | None:
    return _build.compiler()[0]


class Own:
    """Functions of a user-made op on the CPU, with the interface of `_library.Library`."""

    def __init__(self, name: str, entry: dict[str, Any], label: str):
        self.name, self.entry, self.label = name, entry, label
        self.lock = threading.Lock()
        self.made: dict[Dtypes, Any] = {}  # Library or Interpreted
        self.dtypes: dict[str, Dtypes] = {}  # {function: its dtypes}

    def set_op(self, op: Op) -> None:
        """Records the function names of the op."""
        self.dtypes = {
            op.function("none", d, backward): d for d in op.dtypes for backward in (False, True)
        }

    @staticmethod
    def compiles() -> bool:
        """True if a compiled library computes the op, not the NumPy fallback."""
        return compiler() is not None

    @functools.cached_property
    def on_gpu(self) -> "OwnOnGpu":
        made = OwnOnGpu(self.name, self.entry, self.label)
        made.dtypes = self.dtypes
        return made

    def digest_inputs(self) -> list[Any]:
        """Inputs of the digest besides the op itself."""
        return [_isa.runnable()[:1], _build.COMPILE, _build.LINK, _generator("packed.h", "pool.c")]

    def open(self, path: pathlib.Path) -> Any:
        return Library(path)

    def build(self, path: pathlib.Path, dtypes: Dtypes) -> None:
        _build.library(
            path, self.selection(dtypes), (*_isa.runnable(), _isa.BASE)[0], dtypes=dtypes
        )

    def fallback(self, dtypes: Dtypes) -> Any:
        """Returns the NumPy fallback if there is no compiler, else None."""
        if compiler() is not None:
            return None
        from kernel_fusion._interpreted import Interpreted

        warnings.warn(
            f"kf.{self.label}: no C compiler was found (apt install gcc libc6-dev), so NumPy "
            f"computes it, slowly",
            stacklevel=10,
        )
        return Interpreted(self.manifest(dtypes))

    def path(self, dtypes: Dtypes) -> pathlib.Path:
        digest_inputs = [self.name, self.entry, dtypes, *self.digest_inputs()]
        digest = hashlib.sha256(json.dumps(digest_inputs, sort_keys=True).encode()).hexdigest()[:24]
        return _files.cache() / f"{self.name}_{'_'.join(dtypes)}-{digest}.so"

    def find(self, function: str) -> int:
        """Returns 0 if the function exists or can be compiled, else -1."""
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
            # A damaged cache file is compiled again.
            with contextlib.suppress(OSError):
                return self.open(path)
        if _files.offline():
            raise RuntimeError(
                f"kf.{self.label} for {', '.join(dtypes)} is not in {path.parent}, and KF_OFFLINE "
                f"is set: call it once without, "
                "with the same KF_CACHE_DIR"
            )
        other = self.fallback(dtypes)
        if other is not None:
            return other
        self._compile(path, dtypes)
        return self.open(path)

    def _compile(self, path: pathlib.Path, dtypes: Dtypes) -> None:
        """Compiles into a temporary file, then renames it: several processes may do so
        concurrently.
        """
        new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            self.build(new, dtypes)
            os.replace(new, path)
        except OSError as e:
            raise OSError(
                e.errno,
                f"kf.{self.label}: its library cannot be written ({e.strerror}); set KF_CACHE_DIR "
                f"to another directory",
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
        """Returns {dtypes: library path or fallback} for the dtypes called so far."""
        return {
            ", ".join(d): str(getattr(made, "path", "NumPy: there is no C compiler"))
            for d, made in self.made.items()
        }


class OwnOnGpu(Own):
    """Functions of a user-made op on GPUs, with the interface of `_gpu.Gpu`.

    A C++ compiler compiles the launchers; NVRTC compiles the kernels.
    """

    def digest_inputs(self) -> list[Any]:
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

    def fallback(self, dtypes: Dtypes) -> Any:
        if _build.cuda_compiler() is None:
            raise NotImplementedError(
                f"kf.{self.label}: a GPU call needs a C++ compiler (apt install g++) and CUDA's "
                f"headers: {_nvrtc.HOW}"
            )
        return None
