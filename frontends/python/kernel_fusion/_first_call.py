# SPDX-License-Identifier: Apache-2.0
"""C functions compiled at their first call, and cached.

A library holds one op with one activation and dtypes, in both directions. The system's C compiler
writes it into the user's cache directory, from which later processes load it. Its file name
contains digests of all inputs of the compilation: kf's generator and headers, flags, instruction
set and the compiler's version.

KF_CACHE_DIR   the directory; default: the user's cache directory
KF_OFFLINE=1   nothing is compiled; a missing library is an error
"""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from kernel_fusion import _compilers, _files, _isa, _progress, _table

NATIVE = pathlib.Path(__file__).resolve().parent / "native"
# The generator is Python: threads gain nothing from running it concurrently.
GENERATOR = threading.Lock()


class Unit(NamedTuple):
    """The content of one library: both directions of an op with an activation and dtypes."""

    activation: str
    dtypes: tuple[str, ...]


@functools.cache
def generator(*files: str) -> str:
    """Digest of kfgen, its templates, kf's headers, and the given native sources."""
    native = hashlib.sha256(b"".join((NATIVE / name).read_bytes() for name in files))
    return f"{_table.generator()} {native.hexdigest()}"


@functools.cache
def spec() -> Any:
    from kfgen.entries import spec as specs

    return specs.load()


class Compiled:
    """Functions of an op, with the interface of `_library.Library`."""

    op: _table.Op
    how = "call it once"  # advice of an error

    def __init__(self) -> None:
        self.made: dict[Unit, Any] = {}  # libraries or NumPy fallbacks
        self.units: dict[str, Unit] = {}  # {function: its unit}
        self.locks: dict[Unit, threading.Lock] = {}

    def set_op(self, op: _table.Op) -> None:
        """Records the functions of the op."""
        self.op = op
        # Gradients accumulated in float32 have a second dtype that the forward may lack.
        halves = {d[0] for d in op.dtypes if _table.WIDE.get(d[0]) == "f32"} - {"f32"}
        wide = {(half, "f32") for half in halves if op.added}
        for backward in (True, False):
            for dtypes in op.dtypes | wide if backward else op.dtypes:
                for a in op.activations:
                    if op.exists(a, dtypes, backward):
                        self.units[op.function(a, dtypes, backward)] = Unit(a, dtypes)

    def functions(self, unit: Unit) -> list[str]:
        """Names of both directions of a unit; it may lack one."""
        return [self.op.function(*unit, backward) for backward in (False, True)]

    def where(self, unit: Unit) -> str:
        """Name that begins an error message."""
        return self.op.display_name(unit.activation)

    def lacks(self, function: str) -> NotImplementedError:
        name = self.op.label or self.op.name
        return NotImplementedError(f"kf.{name}: there is no function {function}")

    def find(self, function: str) -> int:
        """Returns 0 if the function exists or can be compiled, else -1."""
        return 0 if function in self.units else -1

    def call(self, function: str, *args: Any) -> None:
        self.library_of(function).call(function, *args)

    def library_of(self, function: str) -> Any:
        """Returns the library with a function, compiled at the first call.

        Raises:
            NotImplementedError: there is no such function.
            RuntimeError: KF_OFFLINE is set and the library is missing, or the compiler failed.
            OSError: the library cannot be written.
        """
        unit = self.units.get(function)
        if unit is None:
            raise self.lacks(function)
        return self.library(unit)

    def library(self, unit: Unit) -> Any:
        if unit not in self.made:
            with self.locks.setdefault(unit, threading.Lock()):
                if unit not in self.made:
                    self.made[unit] = self._load(unit)
        return self.made[unit]

    # ---- overridden by subclasses

    def digest_inputs(self) -> list[Any]:
        """Inputs of the digest besides the unit."""
        return [
            self.op.pattern,
            (*_isa.runnable(), _isa.BASE)[0],
            _isa.processor(),
            _compilers.COMPILE,
            _compilers.LINK,
            _compilers.more(),
            generator("packed.h", "pool.c"),
        ]

    def compiler(self) -> str | None:
        """Returns the compiler's path, or None without one."""
        return _compilers.c()

    def needs(self) -> str:
        """Describes the missing compiler."""
        if sys.platform != "linux":
            return _compilers.ONLY_LINUX
        return f"no C compiler was found: {_compilers.HOW}"

    def open(self, path: pathlib.Path) -> Any:
        from kernel_fusion import _library

        return _library.Library(path)

    def selection(self, unit: Unit) -> Any:
        """Returns the Selection of the unit's kernels, or None if there are none."""
        from kfgen.interfaces import packed

        return packed.one(spec(), self.op.pattern, *unit)

    def build(self, path: pathlib.Path, unit: Unit) -> None:
        """Compiles the unit's library."""
        from kernel_fusion import _build

        with GENERATOR:
            chosen = self.selection(unit)
            found = self.manifest_functions(unit, chosen)
            if not found:
                raise self.lacks(self.op.function(*unit, False))
            made = _build.function_sources(chosen, found)
        _build.function_library(path, *made, (*_isa.runnable(), _isa.BASE)[0])

    def manifest(self, unit: Unit) -> Any:
        from kfgen.interfaces import manifest

        return manifest.build(self.selection(unit))

    def manifest_functions(self, unit: Unit, chosen: Any) -> list[Any]:
        from kfgen.interfaces import manifest, packed

        names = self.functions(unit)
        made = manifest.build(chosen) if chosen else {"functions": []}
        return [f for f in packed.functions(made) if f["name"] in names]

    def fallback(self, unit: Unit, why: str) -> Any:
        """Returns what computes the functions without a compiler.

        Args:
            why: what is missing.

        Raises:
            NotImplementedError: nothing does.
        """
        from kernel_fusion._interpreted import Interpreted

        if not self.selection(unit):
            raise self.lacks(self.op.function(*unit, False))
        _warn(f"{self.where(unit)}: {why}. NumPy computes CPU functions, slowly")
        return Interpreted(self.manifest(unit))

    # ---- files

    def name(self, unit: Unit) -> str:
        """Beginning of the name of the library's file."""
        return "_".join([self.op.word(unit.activation), *unit.dtypes])

    def path(self, unit: Unit, compiler: str | None) -> pathlib.Path:
        """Returns the library's file; without a compiler a pattern that files of any match."""
        inputs = json.dumps([*unit, *self.digest_inputs()], sort_keys=True)
        digest = hashlib.sha256(inputs.encode()).hexdigest()[:24]
        by = _compilers.digest(compiler) if compiler else "*"
        return _files.cache() / f"{self.name(unit)}-{digest}-{by}.so"

    def cached(self, unit: Unit) -> list[pathlib.Path]:
        """Returns the files that the unit may be loaded from.

        Where nothing can be compiled, a library of another compiler serves as well.
        """
        path = self.path(unit, self.compiler())
        if path.exists():
            return [path]
        any_ = self.path(unit, None)
        return sorted(any_.parent.glob(any_.name)) if self._compiles_nothing() else []

    def _compiles_nothing(self) -> bool:
        return _files.offline() or self.compiler() is None

    def _load(self, unit: Unit) -> Any:
        for path in self.cached(unit):
            # A damaged cache file is compiled again.
            with contextlib.suppress(OSError):
                return self.open(path)
        if _files.offline():
            raise self.offline(unit)
        return self._compiled(unit) if self.compiler() else self.fallback(unit, self.needs())

    def offline(self, unit: Unit) -> Exception:
        return RuntimeError(
            f"{self.where(unit)} for {', '.join(unit.dtypes)} is not in {_files.cache()}, and "
            f"KF_OFFLINE is set: {self.how} without, with the same KF_CACHE_DIR"
        )

    def _compiled(self, unit: Unit) -> Any:
        compiler = self.compiler()
        assert compiler is not None
        path = self.path(unit, compiler)
        try:
            what = f"{self.where(unit)} for {', '.join(unit.dtypes)}"
            with self._writing(unit, path), _progress.told(what):
                # Another process may have made it; a damaged file is replaced.
                with contextlib.suppress(OSError):
                    if path.exists():
                        return self.open(path)
                self._write(path, unit)
        except RuntimeError:
            if _compilers.accepts(compiler):
                raise
            return self.fallback(unit, f"{compiler} compiles nothing here: {_compilers.HOW}")
        return self.open(path)

    @contextlib.contextmanager
    def _writing(self, unit: Unit, path: pathlib.Path) -> Iterator[None]:
        try:
            with _files.locked(path):
                yield
        except OSError as e:
            raise OSError(
                e.errno,
                f"{self.where(unit)}: its library cannot be written ({e.strerror}); set "
                f"KF_CACHE_DIR to another directory",
                str(path),
            ) from None

    def _write(self, path: pathlib.Path, unit: Unit) -> None:
        """Builds a temporary file, then renames it, so that readers see complete libraries."""
        new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            self.build(new, unit)
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)

    def is_ready(self, unit: Unit) -> bool:
        """True if the unit's library exists."""
        return bool(self.cached(unit))

    def prepare(self, unit: Unit) -> bool:
        """Compiles a unit without loading it; True if it was missing.

        Raises:
            RuntimeError: there is no compiler, it failed, or KF_OFFLINE forbids it.
            OSError: the library cannot be written.
        """
        if self.is_ready(unit):
            return False
        if _files.offline():
            raise self.offline(unit)
        compiler = self.compiler()
        if compiler is None:
            raise RuntimeError(f"{self.where(unit)}: {self.needs()}")
        path = self.path(unit, compiler)
        with self._writing(unit, path):
            if path.exists():
                return False
            self._write(path, unit)
        return True

    def state(self) -> dict[str, str]:
        """Returns {dtypes: library path or fallback} for the units called so far."""
        return {
            ", ".join(unit.dtypes): str(getattr(made, "path", "NumPy: there is no C compiler"))
            for unit, made in self.made.items()
        }


class Named(Compiled):
    """CPU functions of one of kf's own ops: the package's, if it was built with them."""

    how = "call it, or kf.warmup with device='cpu', once"

    def _load(self, unit: Unit) -> Any:
        return self.ahead(unit) or super()._load(unit)

    def ahead(self, unit: Unit) -> Any:
        """Returns the package's library if it has the unit, else None."""
        from kernel_fusion import _library

        found = _library.prebuilt()
        has = found is not None and any(found.find(f) >= 0 for f in self.functions(unit))
        return found if has else None

    def is_ready(self, unit: Unit) -> bool:
        return self.ahead(unit) is not None or super().is_ready(unit)

    @functools.cached_property
    def on_gpu(self) -> Any:
        from kernel_fusion import _compiled

        made = _compiled.NamedOnGpu()
        made.set_op(self.op)
        return made


_warned = threading.Event()


def _warn(text: str) -> None:
    """Warns once per process."""
    if not _warned.is_set():
        _warned.set()
        warnings.warn(text, stacklevel=10)


_named: dict[str, Named] = {}


def functions(op: _table.Op) -> Named:
    """Returns the functions of one of kf's own ops."""
    found = _named.get(op.name)
    if found is None:
        found = Named()
        found.set_op(_table.ops()[op.name])
        found = _named.setdefault(op.name, found)
    return found
