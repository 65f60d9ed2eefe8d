# SPDX-License-Identifier: Apache-2.0
"""The families: a folder each, kf's own in this one, a user's own anywhere. Both have the same files: family.py with an object FAMILY, a schedule
for each backend in cuda.py and c.py, entries in ops.toml."""

import importlib
import pathlib
import sys
import types

from kfgen.families.family import Family
from kfgen.model.entries import NAME

# Former names, which spec files may still have.
SYNONYMS = {
    "map": "elementwise",
    "row": "rows",
    "reduce": "reduction",
    "gemm": "matmul",
    "logits": "linear_cross_entropy",
    "lookup": "embedding",
    "pairs": "rope",
    "normed_lookup": "embedding_layer_norm",
    "normed_pairs": "rope_norm",
}


def _family(folder):
    """The FAMILY of a folder's family.py, which is imported as kfgen.families.<folder>.family, so that it imports its neighbours alike everywhere."""
    return getattr(importlib.import_module(f"{__name__}.{folder.name}.family"), "FAMILY", None)


def _builtin():
    return [
        _family(path.parent) for path in sorted(pathlib.Path(__file__).parent.glob("*/family.py"))
    ]


FAMILIES = {family.name: family for family in _builtin()}
OWN = {}  # {folder: family}


def named(word):
    """The name of the family that an entry calls `word`."""
    return word if word in FAMILIES else SYNONYMS.get(word, word)


def of(op):
    return FAMILIES[op.family]


def load(folder):
    """Adds the family of a user's folder. Its templates are those of the folder's templates/, called <family>/<file>; its headers are in include/."""
    folder = pathlib.Path(folder).resolve()
    if folder in OWN:
        return OWN[folder]
    path, package = folder / "family.py", f"{__name__}.{folder.name}"
    if not path.is_file() or not NAME.match(folder.name):
        fix = "a family is a folder, whose name is a lower-case word, with a family.py"
        raise ValueError(f"--family {folder}: {fix}")
    if package in sys.modules:
        raise ValueError(
            f"{folder}: there is a family called `{folder.name}` already: rename the folder"
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


def _checked(path, family):
    if not isinstance(family, Family) or not NAME.match(family.name):
        raise ValueError(
            f"{path}: has no FAMILY, an object of a class derived from kfgen.families.family.Family, with a name"
        )
    if family.name in FAMILIES:
        raise ValueError(
            f"{path}: there is a family called `{family.name}` already: choose another name"
        )
    return family
