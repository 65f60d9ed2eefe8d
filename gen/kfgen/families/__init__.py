# SPDX-License-Identifier: Apache-2.0
"""The families there are: a module of this folder each, and a user's own, in folders of their own."""

import importlib
import importlib.util
import inspect
import pathlib
import pkgutil

from kfgen.entries import NAME
from kfgen.families.family import Family


def _listed():
    """Those of this folder: a module `<family>.py` has the class derived from Family whose name that is."""
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        for made in vars(importlib.import_module(f"{__name__}.{module}")).values():
            if inspect.isclass(made) and issubclass(made, Family) and made.name == module:
                yield made()


FAMILIES = {family.name: family for family in _listed()}
OWN = {}  # {folder: family}


def of(op):
    return FAMILIES[op.family]


def load(folder):
    """Adds the family that a folder's family.py has as FAMILY. Its templates are those of the folder's templates/, its headers are included
    as <folder's name>/..."""
    folder = pathlib.Path(folder).resolve()
    if folder in OWN:
        return OWN[folder]
    path = folder / "family.py"
    if not path.is_file() or not NAME.match(folder.name):
        fix = "a family is a folder, whose name is a lower-case word, with a family.py"
        raise ValueError(f"--family {folder}: {fix}")
    found = importlib.util.spec_from_file_location(
        f"kfgen_family_{folder.name}", path, submodule_search_locations=[str(folder)]
    )
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    family = getattr(module, "FAMILY", None)
    if not isinstance(family, Family) or not NAME.match(family.name):
        raise ValueError(
            f"{path}: has no FAMILY, an object of a class derived from kfgen.families.family.Family, with a name"
        )
    if family.name in FAMILIES:
        raise ValueError(
            f"{path}: there is a family called `{family.name}` already: choose another name"
        )
    family.templates = folder / "templates"
    FAMILIES[family.name] = OWN[folder] = family
    return family
