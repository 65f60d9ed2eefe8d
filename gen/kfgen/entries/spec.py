# SPDX-License-Identifier: Apache-2.0
"""Loads and checks spec files. Every error names file, entry and field, and proposes a fix."""

import copy
import functools
import pathlib
import re
import tomllib

from kfgen import families
from kfgen.entries.activations import load_activation
from kfgen.entries.fields import Fields
from kfgen.entries.ops import load_op
from kfgen.entries.spec_checks import check_activation_expressions, check_expressions, check_scalars
from kfgen.model.entries import NAME, Spec, SpecError
from kfgen.paths import ENTRIES, called, stem_of
from kfgen.paths import FAMILIES as FAMILY_FOLDERS


def with_families(files, folders):
    """Returns a user's spec files, preceded by the ops.toml of each family folder."""
    known = {pathlib.Path(f).resolve() for f in files}
    own = [path for f in folders if (path := pathlib.Path(f) / "ops.toml").is_file()]
    return [*(str(path) for path in own if path.resolve() not in known), *files]


def user_stem(files):
    """Names the headers of a user's spec files: kf/<stem>.h, kf/user/<stem>/."""
    stem = "_".join(re.sub(r"[^a-z0-9]+", "_", stem_of(f).lower()) for f in files)
    if (
        not NAME.match(stem)
        or stem in ("kf", "core", "ops", "user", "runtime")
        or re.match(r"kf_(\w+_)?launchers\Z", stem)
    ):
        raise SpecError(
            str(files[0]),
            "file",
            "name",
            f"would give the header kf/{stem}.h",
            "rename the file to a lower-case word of its own",
        )
    return stem


def builtin_files():
    return [ENTRIES / "activations.toml", *sorted(FAMILY_FOLDERS.glob("*/*.toml"))]


def load(files=(), builtin=True):
    """Loads the built-in files and `files` and checks all entries."""
    own = (
        _own(tuple((path, _text(called(path), path)) for path in builtin_files()))
        if builtin
        else Spec({}, {}, [])
    )
    ops = {pattern: copy.copy(op) for pattern, op in own.ops.items()}
    return _checked(Spec(dict(own.activations), ops, list(own.files), own), files)


@functools.lru_cache(2)
def _own(files):
    """Loads the built-in files [(path, text)]; cached for programs that load several spec files."""
    spec = Spec({}, {}, [])
    for path, text in files:
        _load_text(spec, path, called(path), text, True)
    return _checked(spec, ())


def _checked(spec, files):
    known = set(spec.own.activations) if spec.own else ()
    for path in files:
        _load_file(spec, pathlib.Path(path), False)
    finish(spec)
    for name, act in spec.activations.items():
        if name not in known:
            check_activation_expressions(act)
    return spec


def load_files(builtin, files=()):
    """Loads files and checks each entry on its own, without finish()."""
    spec = Spec({}, {}, [])
    for path, own in [(p, True) for p in builtin] + [(pathlib.Path(p), False) for p in files]:
        _load_file(spec, path, own)
    return spec


def finish(spec):
    """Assigns activations to ops and checks expressions. kf's own entries that are unchanged have
    been checked before.
    """
    known = spec.own or Spec({}, {}, [])
    for op in spec.ops.values():
        found = _activations_of(spec, op)
        if found != op.activations:
            op.activations = found
    for op in spec.ops.values():
        made_of = tuple(_entry(spec, op, name) for name in families.of(op).made_of(op))
        if not all(map(spec.as_own, made_of)) or op.pattern not in known.ops:
            op.made_of = made_of
        if op.pattern not in known.ops:
            check_expressions(op)
        for act in op.activations:
            if op.pattern not in known.ops or act.name not in known.activations:
                check_scalars(op, act)


def _entry(spec, op, name):
    """Returns an entry whose functions an op calls."""
    if name not in spec.ops:
        raise SpecError(
            op.file,
            f"op.{op.pattern}",
            "rows",
            f"`{name}` is not an entry",
            f"the entries are: {', '.join(spec.ops)}",
        )
    return spec.ops[name]


def _load_file(spec, path, builtin):
    name = called(path) if builtin else str(path)
    _load_text(spec, path, name, _text(name, path), builtin)


SYNTAX = "see https://toml.io; quote keys that hold braces"


def _text(name, path):
    try:
        return path.read_text()
    except OSError as e:
        raise SpecError(
            name, "file", "path", e.strerror or str(e), "give the path of a readable .toml file"
        ) from None
    except UnicodeDecodeError as e:
        raise SpecError(name, "file", "syntax", str(e), SYNTAX) from None


def _load_text(spec, path, name, text, builtin):
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise SpecError(name, "file", "syntax", str(e), SYNTAX) from None
    spec.files.append(path)
    for section, entries in data.items():
        if section not in ("activation", "op") or not isinstance(entries, dict):
            raise SpecError(
                name,
                section,
                "section",
                "is not known",
                "entries are [activation.<name>] or [op.<pattern>]",
            )
        for key, entry in entries.items():
            if not isinstance(entry, dict):
                raise SpecError(
                    name,
                    f"{section}.{key}",
                    "entry",
                    "is not a table",
                    f"write [{section}.{key}] above its fields",
                )
            shown = key if key.isprintable() else repr(key)[1:-1]  # messages have one line
            (load_activation if section == "activation" else load_op)(
                spec, name, key, Fields(name, f"{section}.{shown}", entry), builtin
            )


def _activations_of(spec, op):
    if not op.has_act:
        return [spec.activations["none"]] if "none" in spec.activations else []
    for name in op.without:
        if name not in spec.activations:
            known = ", ".join(spec.activations)
            raise SpecError(
                op.file,
                f"op.{op.pattern}",
                "without",
                f"`{name}` is not an activation",
                f"the activations are: {known}",
            )
    heavy = families.of(op).heavy
    return [
        a
        for a in spec.activations.values()
        if a.name not in op.without and (not heavy or a.heavy or not a.builtin)
    ]
