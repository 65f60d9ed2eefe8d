# SPDX-License-Identifier: Apache-2.0
"""Functions on tensors that call several ops (entries/compositions.toml)."""

import tomllib
from dataclasses import dataclass

from kfgen.model import names
from kfgen.paths import ENTRIES

PATH = ENTRIES / "compositions.toml"


@dataclass
class Composition:
    """A function of a program.

    header: the hand-written header with the function.
    ops: the ops that it calls, in the order of the header's enumeration.
    functions: {op: its function on tensors}, of those that the program has.
    """

    name: str
    header: str
    ops: list
    functions: dict

    @property
    def path(self):
        """Header that `kfgen runtime --each` writes."""
        return f"kf/runtime/{self.name}.h"

    @property
    def headers(self):
        """Headers of the ops, as `kfgen runtime --each` writes them."""
        return [f"kf/runtime/{names.stem(op)}.h" for op in self.functions]

    @property
    def table(self):
        """Name of the array of ops that the header declares."""
        return f"kfi_rt_ops_of_{self.name}"

    @property
    def addresses(self):
        """Elements of the array: descriptions of the ops, or NULL."""
        stems = [self.functions[op].stem if op in self.functions else None for op in self.ops]
        return [f"&kfi_rt_op_{stem}" if stem else "NULL" for stem in stems]


def load():
    """Returns {name: entry}."""
    return tomllib.loads(PATH.read_text())["composition"]


def headers():
    """Hand-written headers of all compositions."""
    return [entry["header"] for entry in load().values()]


def of(functions):
    """Returns the compositions of a program with these functions on tensors.

    An op of the same name hides a composition.
    """
    known, found = {f.op: f for f in functions if not f.bwd}, []
    taken = {names.stem(op) for op in known}
    for name, entry in load().items():
        ops = [*entry["calls"], *entry["one_of"]]
        own = {op: known[op] for op in ops if op in known}
        complete = known.keys() >= set(entry["calls"]) and known.keys() & set(entry["one_of"])
        if complete and name not in taken:
            found.append(Composition(name, entry["header"], ops, own))
    return found
