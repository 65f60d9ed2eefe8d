# SPDX-License-Identifier: Apache-2.0
"""Reductions of the family `reduce` that say where: the place of an axis's largest or least element, the first of equal ones, NaN before all
numbers. What argmax and argmin mean is an expression of the language's own words; the schedules find value and place in one sweep."""

import functools

from kfgen.families.family import wrong
from kfgen.families.reduction.c import ReductionC
from kfgen.families.reduction.cuda import ReductionCuda
from kfgen.language.emit import emit
from kfgen.language.expr import ExprError
from kfgen.language.primitives import COLUMN, ELEM, PLACES
from kfgen.model.schedule import Instance

HEADER = "kf/core/reduction/argreduce"
WORDS = {"rowmax": "max", "rowmin": "min"}


def place(graph, word, key):
    """The node of argmax(key), argmin(key)."""
    best = graph.add(word, key)
    there = graph.add("or", graph.add("eq", key, best), graph.add("ne", key, key))
    return graph.add(
        "rowmin", graph.add("where", there, graph.var(COLUMN), graph.const(float("inf")))
    )


def _call(word):
    def build(graph, args):
        name = next(n for n, of in PLACES.items() if of == word)
        if len(args) != 1 or graph.level(args[0]) < ELEM:
            raise ExprError(
                f"calls `{name}` of {len(args)} arguments, or of what is the same along the axis: it takes one, of elements"
            )
        return place(graph, word, args[0])

    return build


CALLS = {name: _call(word) for name, word in PLACES.items()}


def placed(graph, i):
    """(rowmax or rowmin, key) of a node that is a place, else None."""
    for j in graph.reachable([i]):
        node = graph.nodes[j]
        if node.op in WORDS and place(graph, node.op, node.args[0]) == i:
            return node.op, node.args[0]
    return None


def sought(graph, outputs):
    """((rowmax or rowmin, key), the name of the result that is its place), where the results are that and at most the value there; else None."""
    found = {name: placed(graph, i) for name, i in outputs.items()}
    places = [name for name, what in found.items() if what]
    if len(places) != 1:
        return None
    word, key = found[places[0]]
    values = [i for name, i in outputs.items() if name != places[0]]
    return ((word, key), places[0]) if values in ([], [graph.add(word, key)]) else None


def check_places(op, graph, outputs):
    if (
        sought(graph, outputs) is None
        or op.has_act
        or op.types != "one"
        or any(o.grad for o in op.operands)
    ):
        fix = 'write outputs = { out = "max(x)", index = "argmax(x)" } of operands with grad = false, without {act}, or index alone'
        raise wrong(
            op, "outputs", "are more than one place and the value there, which a sweep finds", fix
        )


class ArgreduceCuda(ReductionCuda):
    template, again, longest, chunk = "argreduce", False, 64, 0

    @functools.cached_property
    def key(self):
        """(lines, the text of the key)."""
        env = {s.name: f"{s.name}_f[e]" for s in self.k.loads}
        lines, [text] = emit(self.k.graph, [self.k.key], self.rows_target, env)
        return lines, text

    @property
    def flat(self):
        """Whether two elements are compared at a time: those of two bytes, as they are."""
        node = self.k.graph.nodes[self.k.key]
        return self.k.dtype.size == 2 and node.op == "var" and len(self.k.loads) == 1

    @property
    def instances(self):
        return super().instances[:2] + [Instance(f"kfk_{self.k.name}_packed", ("act",))] * self.flat

    def listing(self):
        """What is computed, in order, for a reader."""
        return [
            "over the axis:",
            *(f"    {line}" for line in self.key[0]),
            f"    value, place = first {self.k.word} of {self.key[1]};",
        ]


class ArgreduceC(ReductionC):
    body = "reduction/argreduce.h.j2"

    @property
    def join(self):
        return f"kfi_place_parts_{self.k.word}_{self.k.dtype.compute}"

    @functools.cached_property
    def key(self):
        """(lines, the text of the key)."""
        lines, [text] = emit(
            self.k.graph,
            [self.k.key],
            self.target(self.k.acts[0]),
            {s.name: f"{s.name}_j" for s in self.k.loads},
            fixed={},
        )
        return lines, text

    def listing(self, act):
        """What is computed, in order, for a reader."""
        return [
            "over the axis:",
            *(f"    {line}" for line in self.key[0]),
            f"    value, place = first {self.k.word} of {self.key[1]};",
        ]
