# SPDX-License-Identifier: Apache-2.0
"""The families there are: the one place where one is named, and where a user's own, in folders of their own, are added."""

import importlib.util
import pathlib

from kfgen.entries import NAME
from kfgen.families.family import Family
from kfgen.families.gemm import Gemm
from kfgen.families.logits import Logits
from kfgen.families.lookup import Lookup
from kfgen.families.map import Map
from kfgen.families.normed_lookup import NormedLookup
from kfgen.families.normed_pairs import NormedPairs
from kfgen.families.pairs import Pairs
from kfgen.families.reduce import Reduce
from kfgen.families.row import Row

FAMILIES = {family.name: family for family in (Map(), Row(), Reduce(), Lookup(), Pairs(), NormedPairs(),
                                               NormedLookup(), Gemm(), Logits())}
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
    found = importlib.util.spec_from_file_location(f"kfgen_family_{folder.name}", path, submodule_search_locations=[str(folder)])
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    family = getattr(module, "FAMILY", None)
    if not isinstance(family, Family) or not NAME.match(family.name):
        raise ValueError(f"{path}: has no FAMILY, an object of a class derived from kfgen.families.family.Family, with a name")
    if family.name in FAMILIES:
        raise ValueError(f"{path}: there is a family called `{family.name}` already: choose another name")
    family.templates = folder / "templates"
    FAMILIES[family.name] = OWN[folder] = family
    return family
