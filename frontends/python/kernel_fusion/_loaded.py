# SPDX-License-Identifier: Apache-2.0
"""kf.load: adds the ops of a program's own spec files and families to kf.ops."""

import dataclasses
import functools
import hashlib
import os
import pathlib
import sys
import threading
from collections.abc import Sequence
from typing import Any

from kernel_fusion import _compiled, _dispatch, _first_call, _table

_lock = threading.Lock()


# {spec files and folders of a call of kf.load: (digest, names that it returned)}.
_known: dict[tuple[tuple[str, ...], ...], tuple[str, list[str]]] = {}


def digest(files: Sequence[str], folders: Sequence[pathlib.Path]) -> str:
    """Digest of all files: spec files, and those in folders of families."""
    read = [pathlib.Path(path) for path in files]
    read += [p for folder in folders for p in sorted(folder.rglob("*")) if p.is_file()]
    kept = [path.read_bytes() for path in read if path.suffix != ".pyc"]
    return hashlib.sha256(b"\0".join(kept)).hexdigest()


class Files:
    """Spec files, loaded beside kf's own entries."""

    def __init__(self, files: Sequence[str], folders: Sequence[pathlib.Path]):
        from kfgen import families
        from kfgen.entries import spec

        with _first_call.GENERATOR:
            for folder in folders:
                families.load(folder)
            self.files = spec.with_families(files, folders)
            self.spec = spec.load(self.files)
        self.ops = [op for op in self.spec.ops.values() if not op.builtin]
        self.digest = digest(self.files, folders)

    def table(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns (the frontend's table, its formulas) of the files' ops."""
        from kfgen.interfaces import frontend, manifest
        from kfgen.render.render import Selection

        own = {op.pattern: op for op in self.ops}
        of_own = dataclasses.replace(self.spec, ops=own, own=None)
        made = manifest.build(Selection(of_own))
        return frontend.table(made), frontend.formulas(made)


class _Selected:
    """The part of a library's functions that follows from the files."""

    def __init__(self, files: Files, pattern: str):
        super().__init__(pattern, {"files": files.digest}, pattern)  # type: ignore[call-arg]
        self.files = files

    def selection(self, unit: _first_call.Unit) -> Any:
        from kfgen.interfaces import packed

        return packed.one(self.files.spec, self.op_name, *unit)  # type: ignore[attr-defined]


class Loaded(_Selected, _compiled.Own):
    """CPU functions of one op of the files."""

    @functools.cached_property
    def on_gpu(self) -> "LoadedOnGpu":
        made = LoadedOnGpu(self.files, self.op_name)
        made.set_op(self.op)
        return made


class LoadedOnGpu(_Selected, _compiled.OwnOnGpu):
    """GPU functions of one op of the files."""


def load(
    *files: str | os.PathLike[str], families: Sequence[str | os.PathLike[str]] = ()
) -> list[str]:
    """Adds the ops of spec files to kf.ops, and as torch.ops.kf.<op> to PyTorch.

        kf.load("my_ops.toml", families=["my_family"])
        kf.ops.my_op(x)

    Functions are compiled at their first call. Spec files and families run code: load only those
    that you trust. A second call for the same files returns the same names.

    Args:
        *files: spec files, as `kfgen render --spec` reads them
        families: folders of families, whose ops.toml is read too

    Returns:
        The names of the new functions of kf.ops.

    Raises:
        ValueError: a file is invalid or has changed since it was loaded, or an op has the name of
            an existing function.
    """
    from kfgen.language.expr import ExprError
    from kfgen.model.entries import SpecError

    paths = [os.fspath(f) for f in files]
    folders = [pathlib.Path(f).resolve() for f in families]
    key = tuple(os.path.realpath(f) for f in paths), tuple(map(str, folders))
    with _lock:
        if key in _known:
            return _again(key, paths, folders)
        try:
            found = Files(paths, folders)
            table, formulas = found.table()
        except (SpecError, ExprError) as e:
            raise ValueError(f"kf.load: {e}") from None
        names = _add(found, table, formulas)
        _known[key] = found.digest, names
        return list(names)


def _again(key: Any, paths: Sequence[str], folders: Sequence[pathlib.Path]) -> list[str]:
    """Returns the names of files that are loaded, unless they have changed."""
    from kfgen.entries import spec

    loaded, names = _known[key]
    if digest(spec.with_families(paths, folders), folders) != loaded:
        changed = ", ".join(map(str, [*paths, *folders]))
        raise ValueError(
            f"kf.load: {changed} changed since it was loaded, expected the same text: its ops stay "
            f"as they are in this process, start a new one"
        )
    return list(names)


def _add(found: Files, table: dict[str, Any], formulas: dict[str, Any]) -> list[str]:
    acts, made = _table.activations_of(table), []
    for entry in table["ops"]:
        own = Loaded(found, entry["pattern"])
        op = _table.entry(entry, acts, "", own, formulas.get(entry["name"], {}))
        own.set_op(op)
        made.append(op)
    names = {op.word(act): (op, act) for op in made for act in op.activations}
    taken = sorted(names.keys() & set(_dispatch.names()))
    if taken:
        other = _table.functions().get(taken[0])
        if other and isinstance(other[0].own, Loaded):
            loaded = ", ".join(map(str, other[0].own.files.files))
            raise ValueError(
                f"kf.load: kf.ops has `{taken[0]}` already, from {loaded}: load each file in one "
                f"call, or rename the op"
            )
        raise ValueError(f"kf.load: kf.ops has `{taken[0]}` already: rename the op")
    _table.functions().update(names)
    if "torch" in sys.modules:
        # torch.compile cannot register an op while it traces, so it is registered here.
        _dispatch.look_for_torch()
        for name in names:
            _dispatch.lookup(name)
    return sorted(names)
