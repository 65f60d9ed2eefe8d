# SPDX-License-Identifier: Apache-2.0
"""Type variables of an entry: the dtypes that they stand for, and the functions that follow.

Each tensor of an entry names a variable. T, the first one, is the dtype of the elements; it
determines the arithmetic. A function has one dtype per variable.
"""

import itertools
from dataclasses import dataclass

from kfgen.model import names
from kfgen.model.dtypes import DTYPE, DTYPES, FLOAT_DTYPES, INDEX, ROUNDED, STORED

FIRST = "T"
INDEX_VARIABLE = "I"  # integers such as labels: int64_t or int32_t
ACC = "acc"  # sums and values of rows: float32, or float64 beside f64
RESERVED = (INDEX_VARIABLE, ACC)

# Roles: which tensors have the dtype.
ELEMENTS, WEIGHTS, RESULTS, SAVED = "elements", "weights", "results", "saved values"
GRADIENTS = "gradients of weights"


@dataclass(frozen=True)
class Variable:
    name: str
    members: tuple  # dtypes, or names of earlier variables, or ACC
    of: str = ELEMENTS  # role


@dataclass(frozen=True)
class Types:
    """The type variables of an entry, T first."""

    variables: tuple
    word: str = ""  # abbreviation that the entry gives; empty: a table
    converts: bool = False  # True: no two variables of a function have the same dtype

    @property
    def first(self):
        return self.variables[0]

    @property
    def names(self):
        return tuple(v.name for v in self.variables)

    @property
    def single(self):
        """True if all functions have one type variable."""
        return len(self.variables) == 1

    def variable_of(self, role):
        """Returns the name of the first variable with a role, or T."""
        return next((v.name for v in self.variables if v.of == role), FIRST)

    def assignments(self, among, selected):
        """Returns {variable: dtype} of each function of one direction and index dtype.

        Those with few words in the function's name come first.

        Args:
            among: names of the variables that the direction has
            selected: dtypes that may occur
        """
        variables, found = [v for v in self.variables if v.name in among], {}
        for members in itertools.product(*(v.members for v in variables)):
            types = self._resolved(zip((v.name for v in variables), members))
            if self._exists(types, selected):
                found[tuple(types.values())] = types
        return sorted(found.values(), key=lambda types: len(names.words(types)))

    def _resolved(self, members):
        types = {}
        for name, member in members:
            word = DTYPE[types[FIRST]].acc.word if member == ACC else types.get(member, member)
            same = types and DTYPE[word] is DTYPE[types[FIRST]]
            types[name] = types[FIRST] if same else word
        return types

    def _exists(self, types, selected):
        words = set(types.values())
        distinct = len(words) == len(types) if self.converts else True
        return distinct and words | {ROUNDED.get(word, word) for word in words} <= set(selected)

    def functions(self, among, indexed, selected=DTYPES):
        """Returns assignments() for each index dtype, or alone if the op is not indexed."""
        found = self.assignments(among, selected)
        return (
            [types | {INDEX_VARIABLE: word} for word in INDEX for types in found]
            if indexed
            else found
        )

    def uniform(self, word, indexed=False):
        """Returns {variable: dtype} with one dtype for all."""
        index = {INDEX_VARIABLE: INDEX[0]} if indexed else {}
        return dict.fromkeys(self.names, word) | index

    def clash(self, among, indexed):
        """Returns two functions of one direction that have the same name, or None."""
        seen = {}
        for types in self.functions(among, indexed):
            name = names.dtype_words(names.words(types))
            if name in seen:
                return seen[name], types
            seen[name] = types
        return None


def described(types):
    """Describes {variable: dtype} in a message."""
    return ", ".join(f"{variable} = {word}" for variable, word in types.items())


# Tables that entries abbreviate by a word. `products` is the one of an entry of that family.
_ELEMENTS = Variable(FIRST, FLOAT_DTYPES)
_WIDER = (FIRST, ACC)
ABBREVIATIONS = {
    types.word: types
    for types in (
        Types((_ELEMENTS,), "one"),
        Types((_ELEMENTS, Variable("U", _WIDER, WEIGHTS)), "weights"),
        Types((_ELEMENTS, Variable("U", _WIDER, RESULTS)), "results"),
        Types((_ELEMENTS, Variable("U", _WIDER, GRADIENTS)), "gradients"),
        Types(
            (Variable(FIRST, FLOAT_DTYPES + tuple(ROUNDED)), Variable("U", _WIDER, GRADIENTS)),
            "products",
        ),
        Types((Variable(FIRST, STORED), Variable("U", STORED, RESULTS)), "pairs", converts=True),
    )
}
