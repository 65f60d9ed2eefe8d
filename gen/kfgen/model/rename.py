# SPDX-License-Identifier: Apache-2.0
"""Renames the operands, results and scalars of a kernel for generated code. The names differ from
all other names there, so a spec may use any name but keywords and kf's public names. Launchers and
run functions keep the public names; the functions that they call have the new ones.
"""

import ast
import functools
from dataclasses import replace

from kfgen.model import names
from kfgen.model.entries import updated


class _Renamed(ast.NodeTransformer):
    def __init__(self, own):
        self.own = own

    def visit_Name(self, node):
        return ast.Name(self.own.get(node.id, node.id), node.ctx)

    def visit_Call(self, node):
        """Keeps the function's name: `mean(mean)` reads one value."""
        return ast.Call(node.func, [self.visit(a) for a in node.args], node.keywords)


@functools.lru_cache(4096)
def _text(text, own):
    return ast.unparse(_Renamed(dict(own)).visit(ast.parse(text.strip())))


class Renaming:
    """Applies {public name: new name} to names, expressions and tables."""

    def __init__(self, own):
        self.own, self._items = own, tuple(own.items())

    def name(self, name):
        return self.own.get(name, name)

    def text(self, text):
        """Renames in an expression."""
        return text and _text(text, self._items)

    def names(self, table):
        """{name: anything}."""
        return {self.name(n): value for n, value in table.items()}

    def texts(self, table):
        """{name: expression}."""
        return {self.name(n): self.text(text) for n, text in table.items()}


def _with_gradients(named, results):
    """Adds the gradients of results, which expressions may read."""
    own = {n: names.renamed(n) for n in named}
    return own | {names.gradient_of(n): names.gradient_of(own[n]) for n in results}


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
        expr=renaming.text(act.expr),
        dexpr=renaming.text(act.dexpr),
        dexpr_out=renaming.text(act.dexpr_out),
        scalars=renaming.names(act.scalars),
        scalar_info=renaming.names(act.scalar_info),
        rising=tuple(map(renaming.name, act.rising)),
    )


def op(public, family):
    """Returns a copy of the op with all names replaced."""
    own = _with_gradients(
        [
            *(n for o in public.operands for n in (o.name, *o.parts)),
            *public.scalars,
            *public.outputs,
            *public.saved,
            *family.named(public),
        ],
        public.outputs,
    )
    own |= {updated(n): updated(own[n]) for n in public.updates}
    renaming = Renaming(own)
    operands = [
        replace(o, name=renaming.name(o.name), parts=tuple(map(renaming.name, o.parts)))
        for o in public.operands
    ]
    return replace(
        public,
        operands=operands,
        outputs=renaming.texts(public.outputs),
        scalars=renaming.names(public.scalars),
        saved=renaming.texts(public.saved),
        scalar_info=renaming.names(public.scalar_info),
        integers=tuple(map(renaming.name, public.integers)),
        updates=renaming.texts(public.updates),
        grads=renaming.texts(public.grads),
        own=family.renamed(public, renaming),
        activations=[activation(a) for a in public.activations],
    )


@functools.lru_cache(1024)
def _op(key, family):
    return op(key.entry, family)


def kernel(k):
    """Returns the kernel of the renamed op."""
    found = type(k)(k.family, _op(_Key(k.op), k.family), k.dtypes, k.bwd)
    found.acts = [activation(a) for a in k.acts]
    return found
