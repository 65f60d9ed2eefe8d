# SPDX-License-Identifier: Apache-2.0
"""argmax and argmin, part of the family `reduction`.

The result is the index of the first of equal elements; NaN precedes all numbers. argmax and argmin
expand to expressions in the language's primitives; the schedules find value and index in one sweep.
"""

import functools

from kfgen.families.family import wrong
from kfgen.families.reduction.c import ReductionC
from kfgen.families.reduction.cuda import ReductionCuda
from kfgen.language.emit import emit
from kfgen.language.expr import ExprError
from kfgen.language.primitives import ARG_REDUCTIONS, COLUMN, ELEM
from kfgen.model.schedule import Instance

HEADER = "kf/core/reduction/argreduce"
WORDS = {"rowmax": "max", "rowmin": "min"}


def argreduce(graph, word, key):
    """The node of argmax(key), argmin(key)."""
    best = graph.add(word, key)
    there = graph.add("or", graph.add("eq", key, best), graph.add("ne", key, key))
    return graph.add(
        "rowmin", graph.add("where", there, graph.var(COLUMN), graph.const(float("inf")))
    )


def _call(word):
    def build(graph, args):
        name = next(n for n, of in ARG_REDUCTIONS.items() if of == word)
        if len(args) != 1 or graph.level(args[0]) < ELEM:
            raise ExprError(
                f"calls `{name}` of {len(args)} arguments, or of a value that is constant along "
                "the axis: it takes one argument that differs along the axis"
            )
        return argreduce(graph, word, args[0])

    return build


CALLS = {name: _call(word) for name, word in ARG_REDUCTIONS.items()}


def match_argreduce(graph, i):
    """(rowmax or rowmin, key) of an argmax or argmin node, else None."""
    for j in graph.reachable([i]):
        node = graph.nodes[j]
        if node.op in WORDS and argreduce(graph, node.op, node.args[0]) == i:
            return node.op, node.args[0]
    return None


def find_argreduce(graph, outputs):
    """((rowmax or rowmin, key), name of the index output), or None.

    The outputs must be one index and at most the value at that index.
    """
    found = {name: match_argreduce(graph, i) for name, i in outputs.items()}
    indices = [name for name, match in found.items() if match]
    if len(indices) != 1:
        return None
    word, key = found[indices[0]]
    values = [i for name, i in outputs.items() if name != indices[0]]
    return ((word, key), indices[0]) if values in ([], [graph.add(word, key)]) else None


def check_argreduce(op, graph, outputs):
    if (
        find_argreduce(graph, outputs) is None
        or op.has_act
        or not op.types.single
        or any(o.grad for o in op.operands)
    ):
        fix = (
            'write outputs = { out = "max(x)", index = "argmax(x)" }, or index alone, of operands '
            "with grad = false and without {act}"
        )
        raise wrong(op, "outputs", "are more than one index and the value at that index", fix)


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
        """True if the packed kernel applies: 2-byte elements that are compared unchanged."""
        node = self.k.graph.nodes[self.k.key]
        return self.k.dtype.size == 2 and node.op == "var" and len(self.k.loads) == 1

    @property
    def instances(self):
        return super().instances[:2] + [Instance(f"kfk_{self.k.name}_packed", ("act",))] * self.flat

    def listing(self):
        """The computation in order, for readers."""
        return [
            "over the axis:",
            *(f"    {line}" for line in self.key[0]),
            f"    value, index = first {self.k.word} of {self.key[1]};",
        ]


class ArgreduceC(ReductionC):
    body = "reduction/argreduce.h.j2"

    @property
    def join(self):
        return f"kfi_argreduce_join_partials_{self.k.word}_{self.k.dtype.compute}"

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
        """The computation in order, for readers."""
        return [
            "over the axis:",
            *(f"    {line}" for line in self.key[0]),
            f"    value, index = first {self.k.word} of {self.key[1]};",
        ]
