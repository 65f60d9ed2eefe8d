# SPDX-License-Identifier: Apache-2.0
"""Renames the operands, results and scalars of a kernel for generated code. The names differ from
all other names there, so a spec may use any name but keywords and kf's public names. Launchers and
run functions keep the public names; the functions that they call have the new ones.

A built kernel is copied with other names: its tensors, the variables of its graphs, and the
attributes of `Kernel.name_fields`. No expression is parsed or derived again.
"""

import copy
import functools
from dataclasses import replace

from kfgen.model import names
from kfgen.model.entries import updated


class Renaming:
    """Copies values with the names {public name: new name}. Tensors and graphs stay shared by all
    that hold them.
    """

    def __init__(self, own):
        self.own, self._copies = own, {}

    def name(self, name):
        return self.own.get(name, name)

    def names(self, value):
        """Renames a name, a collection of names, or the keys of a table."""
        if isinstance(value, dict):
            return {self.name(n): self.copy(of) for n, of in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return type(value)(map(self.name, value))
        return self.name(value)

    def copy(self, value):
        """Copies a tensor, a graph, any object with a method `copied`, or a collection of them."""
        if isinstance(value, dict):
            return {key: self.copy(of) for key, of in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return type(value)(map(self.copy, value))
        if not hasattr(value, "copied"):
            return value
        if id(value) not in self._copies:
            self._copies[id(value)] = value.copied(self)
        return self._copies[id(value)]


class _Key:
    """Cache key of an entry, by identity: entries have no hash."""

    def __init__(self, entry):
        self.entry = entry

    def __hash__(self):
        return id(self.entry)

    def __eq__(self, other):
        return self.entry is other.entry


def activation(act):
    return _activation(_Key(act))


@functools.lru_cache(1024)
def _activation(key):
    act = key.entry
    if not act.scalars:
        return act
    renaming = Renaming({n: names.renamed(n) for n in act.scalars})
    return replace(
        act,
        scalars=renaming.names(act.scalars),
        scalar_info=renaming.names(act.scalar_info),
        rising=renaming.names(act.rising),
        spelled={new: n for n, new in renaming.own.items()},
    )


def _names(op, family):
    """Returns {public name: new name} of an op, with the names that kernels derive from them."""
    named = [
        *(n for o in op.operands for n in (o.name, *o.parts)),
        *op.scalars,
        *op.outputs,
        *op.saved,
        *family.named(op),
    ]
    own = {n: names.renamed(n) for n in named}
    derived = {of(n): of(new) for of in (names.gradient_of, updated) for n, new in own.items()}
    derived |= {names.gradient_of(n): names.gradient_of(new) for n, new in derived.items()}
    gradients = {names.gradient_of(n): names.gradient_of(own[n]) for n in op.outputs}
    return derived | own | gradients | {updated(n): updated(own[n]) for n in op.updates}


@functools.lru_cache(1024)
def _op(key, family):
    """Returns (names of an op, its entry with the activations of generated code)."""
    op = key.entry
    own = _names(op, family)
    acts = [activation(a) for a in op.activations]
    return own, replace(op, own=family.renamed(op, Renaming(own)), activations=acts)


def _is_cached(k, attribute):
    return attribute == "_renamed" or isinstance(
        getattr(type(k), attribute, None), functools.cached_property
    )


def kernel(k):
    """Returns a copy of the kernel with the names of generated code."""
    own, op = _op(_Key(k.op), k.family)
    renaming, found = Renaming(own), copy.copy(k)
    for attribute, value in k.__dict__.items():
        if _is_cached(k, attribute):
            del found.__dict__[attribute]
        elif attribute in k.name_fields:
            found.__dict__[attribute] = renaming.names(value)
        elif attribute not in ("family", "op", "acts"):
            found.__dict__[attribute] = renaming.copy(value)
    found.op, found.acts = op, [activation(a) for a in k.acts]
    return found
