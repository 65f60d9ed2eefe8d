# SPDX-License-Identifier: Apache-2.0
"""The kernel of an attention function: its tensors, its score and the keys that queries see."""

import functools

from kfgen.families.attention.c import AttentionC
from kfgen.families.attention.cuda import AttentionCuda
from kfgen.families.attention.ranges import FIELDS
from kfgen.language.primitives import COUNT, KEEP, QUERIES
from kfgen.model import contract
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.types import ACC, FIRST

SCORES = ("", "_head", "_batch")  # strides of tensors of the scores' shape
# Letter of each kind for core/attention/check.h.
LETTERS = {"query": "q", "key": "k", "value": "v", "elem": "o", "score": "x", "head": "h"}
LETTERS |= {"query_offsets": "u", "key_offsets": "w"}
OF_PACKED = ("head_base", "heads_total")  # options of packed sequences
SAVED = {"lse": "l", "row_max": "m", "log_sum": "s"}


class AttentionKernel(Kernel):
    has_workspace = True
    scratch = True
    order_note = ", with an online softmax over blocks of keys"

    @functools.cached_property
    def packed(self):
        """True if sequences are packed along one axis."""
        return any(o.kind == "query_offsets" for o in self.op.operands)

    @property
    def form(self):
        scores = any(o.kind == "score" for o in self.op.operands)
        return ("packed_scores" if scores else "packed") if self.packed else "dense"

    @property
    def work(self):
        batch = "" if self.packed else "batch * "
        return f"2 * {batch}heads * queries * keys * (dim + dim_v)"

    @property
    def options(self):
        return list(OF_PACKED) if self.packed else self.family.shape.options

    @functools.cached_property
    def cuda(self):
        return AttentionCuda(self)

    @functools.cached_property
    def c(self):
        return AttentionC(self)

    def _build(self):
        self.graph, _, outs = self.family.graph(self.op)
        score, *sink = self.family.weight(self.op, self.graph, outs).args
        self.roots, self.keeps = [score], KEEP in self.graph.variables(outs.values())
        self.inputs = self.operands = [
            Tensor(
                o.name,
                o.kind,
                self.dtype_of(o.dtype),
                "in",
                "weight" if o.kind == "head" else "input",
                o.dtype,
                o.values,
                absent=o.absent,
            )
            for o in self.op.operands
        ]
        sinks = [self.graph.nodes[i].value for i in sink]
        self.sink = next((s for s in self.inputs if s.name in sinks), None)
        self.outputs = [
            Tensor("out", "elem", self.dtype, "out", "output", FIRST, ("out",)),
            *(
                Tensor(n, "per_query", self.dtype.acc, "out", "saved", ACC, (n,), required=False)
                for n in SAVED
            ),
        ]
        self.streams = self.inputs + self.outputs
        contiguous = ("head", "per_query", "query_offsets", "key_offsets")
        self.strided = [s.name for s in self.streams if s.kind not in contiguous]
        self.integers = [*self.options, *self.op.integers]
        self.scalars = [s for s in self.op.scalars if s not in self.op.integers]

    def of_kind(self, kind):
        return next(s for s in self.inputs if s.kind == kind)

    @property
    def shaped_by(self):
        kinds = ("query", *(["query_offsets"] if self.packed else []), "key", "value")
        scores = [s.name for s in self.inputs if s.kind == "score" and self.packed]
        return [*(self.of_kind(kind).name for kind in kinds), *scores[:1]]

    @property
    def bounds_of_sequences(self):
        """Names of the operands with the bounds of packed sequences, in q and in k."""
        return [s.name for s in self.inputs if s.kind in ("query_offsets", "key_offsets")]

    def levels_of(self, name):
        kind = next((s.kind for s in self.streams if s.name == name), "")
        return SCORES if kind == "score" else self.levels

    @property
    def score_inputs(self):
        """Operands that the score reads, in the order of kfi_score_args::tensors."""
        return [s for s in self.inputs if s.kind in ("score", "head") and s is not self.sink]

    @property
    def plain(self):
        """True if the score is `dot`, times a scalar or not: kernels have it without code."""
        nodes = [self.graph.nodes[a] for a in self.graph.nodes[self.roots[0]].args]
        score = self.graph.nodes[self.roots[0]]
        return not self.sink and (
            score.op == "var"
            or score.op == "mul"
            and {n.op for n in nodes} == {"var"}
            and len({n.value for n in nodes} & {*self.scalars, "dot"}) == 2
        )

    @property
    def factor(self):
        """The scalar that a plain score multiplies `dot` by, or ""."""
        return next(iter(self.used_scalars), "") if self.plain else ""

    @property
    def shapes(self):
        """Letter of each tensor's shape for core/attention/check.h."""
        return "".join(
            "i" if s is self.sink else SAVED.get(s.name) or LETTERS[s.kind]
            for s in self.inputs + self.outputs
        )

    def bounds_of(self, names):
        """Returns [(field of the plan, slope, C expression of the addend)]; of packed sequences the
        slope, and how often the addend has the sequence's queries and keys.

        Args:
            names: {integer: its text}.
        """
        found = [(field, self.op.own[field]) for field in FIELDS]
        if self.packed:  # sequences add their own sizes
            names = names | {QUERIES: "0", COUNT: "0"}
            return [
                (f, f"{b.slope}, {b.queries}, {b.count}", b.addend(names)) for f, b in found if b
            ]
        return [(field, b.slope, b.addend(names)) for field, b in found if b]

    @property
    def unread_scalars(self):
        read = {n for field in FIELDS if (b := self.op.own[field]) for n in b.names}
        return [s for s in super().unread_scalars if s not in read]

    def touched(self, stream):
        return self.shape(stream)

    def per_element(self, stream):
        return 1 if stream.kind in ("query", "elem") else 0

    def formulas(self, by):
        out = contract.one_line(self.op.outputs["out"])
        first, last = (b.text if (b := self.op.own[field]) else "" for field in FIELDS)
        keys = f"keys {first or 0} to {last}" if last else f"keys from {first} on"
        keys = keys if first or last else "all keys"
        keys += " of its sequence" if self.packed else ""
        product = f"{self.of_kind('query').name} . {self.of_kind('key').name}"
        return [f"out = sum over {keys} of {out}; dot = {product}"]
