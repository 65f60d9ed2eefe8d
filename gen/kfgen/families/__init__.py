# SPDX-License-Identifier: Apache-2.0
"""The families: each package here is built in, and a user's folder can be anywhere. A family has a
family.py that defines FAMILY, a schedule per backend in cuda.py and c.py, and entries in ops.toml.
"""

import importlib
import pathlib
import sys
import types

from kfgen.families.family import Family
from kfgen.model.entries import NAME
from kfgen.model.kinds import Kind

DEFAULT = "elementwise"  # family of an entry that names none
# Former names that spec files may use.
SYNONYMS = dict(
    line.split(" = ")
    for line in """
    map = elementwise
    row = rows
    reduce = reduction
    gemm = matmul
    logits = linear_cross_entropy
    lookup = embedding
    pairs = rope
    normed_lookup = embedding_layer_norm
    normed_pairs = rope_norm
    """.split("\n    ")[1:-1]
)


def _family(folder):
    """Imports a folder's family.py as kfgen.families.<folder>.family and returns its FAMILY."""
    return getattr(importlib.import_module(f"{__name__}.{folder.name}.family"), "FAMILY", None)


def _builtin():
    return [
        _family(path.parent) for path in sorted(pathlib.Path(__file__).parent.glob("*/family.py"))
    ]


FAMILIES = {family.name: family for family in _builtin()}
OWN = {}  # {folder: family}


def named(word):
    """Resolves a family's name or former name."""
    return word if word in FAMILIES else SYNONYMS.get(word, word)


def of(op):
    return FAMILIES[op.family]


def load(folder):
    """Adds the family of a user's folder. templates/ has its templates, named <family>/<file>;
    include/ has its headers.
    """
    folder = pathlib.Path(folder).resolve()
    if folder in OWN:
        return OWN[folder]
    path, package = folder / "family.py", f"{__name__}.{folder.name}"
    if not path.is_file() or not NAME.match(folder.name):
        fix = "a family is a folder with a lower-case name and a family.py"
        raise ValueError(f"--family {folder}: {fix}")
    if package in sys.modules:
        raise ValueError(
            f"{folder}: a family called `{folder.name}` already exists: rename the folder"
        )
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [str(folder)]
    try:
        family = _checked(path, _family(folder))
    except BaseException:
        for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
            del sys.modules[name]
        raise
    family.templates = folder / "templates"
    FAMILIES[family.name] = OWN[folder] = family
    return family


def headers():
    """Returns {path: text} of the headers of users' families."""
    return {
        path.relative_to(folder / "include").as_posix(): path.read_text()
        for folder in OWN
        for path in sorted((folder / "include").rglob("*"))
        if path.is_file()
    }


def _checked(path, family):
    if not isinstance(family, Family) or not NAME.match(family.name):
        raise ValueError(
            f"{path}: needs FAMILY, an instance of a subclass of kfgen.families.family.Family with "
            "a name"
        )
    odd = next((kind for kind in family.kinds if not isinstance(kind, Kind)), None)
    if odd is not None:
        raise ValueError(
            f"{path}: `kinds` has {odd!r}, expected kfgen.model.kinds.Kind: write Kind({odd!r})"
        )
    if family.name in FAMILIES:
        raise ValueError(
            f"{path}: a family called `{family.name}` already exists: choose another name"
        )
    return family
