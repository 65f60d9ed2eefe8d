# SPDX-License-Identifier: Apache-2.0
"""The kernel of an attention function: its tensors, its score and the keys that queries see."""

import functools

from kfgen.families.attention.c import AttentionC
from kfgen.families.attention.cuda import AttentionCuda
from kfgen.language.primitives import KEEP
from kfgen.model import contract
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.types import ACC, FIRST

SCORES = ("", "_head", "_batch")  # strides of tensors of the scores' shape
# Letter of each kind for core/attention/check.h.
LETTERS = {"query": "q", "key": "k", "value": "v", "elem": "o", "score": "x", "head": "h"}
SAVED = {"lse": "l", "row_max": "m", "log_sum": "s"}


class AttentionKernel(Kernel):
    form = "dense"
    work = "2 * batch * heads * queries * keys * (dim + dim_v)"
    has_workspace = True
    scratch = True
    order_note = ", with an online softmax over blocks of keys"

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
        self.strided = [s.name for s in self.streams if s.kind not in ("head", "per_query")]
        self.integers = [*self.options, *self.op.integers]
        self.scalars = [s for s in self.op.scalars if s not in self.op.integers]

    def of_kind(self, kind):
        return next(s for s in self.inputs if s.kind == kind)

    @property
    def shaped_by(self):
        return [self.of_kind(kind).name for kind in ("query", "key", "value")]

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
        """Returns [(field of the plan, slope, C expression of the addend)].

        Args:
            names: {integer: its text}.
        """
        found = [(field, self.op.own[field]) for field in ("first", "last")]
        return [(field, b.slope, b.addend(names)) for field, b in found if b]

    @property
    def unread_scalars(self):
        read = {n for b in self.op.own.values() if b for n in b.names}
        return [s for s in super().unread_scalars if s not in read]

    def touched(self, stream):
        return self.shape(stream)

    def per_element(self, stream):
        return 1 if stream.kind in ("query", "elem") else 0

    def formulas(self, by):
        out = contract.one_line(self.op.outputs["out"])
        first, last = (bound and bound.text for bound in self.op.own.values())
        keys = f"keys {first or 0} to {last}" if last else f"keys from {first} on"
        keys = keys if first or last else "all keys"
        product = f"{self.of_kind('query').name} . {self.of_kind('key').name}"
        return [f"out = sum over {keys} of {out}; dot = {product}"]
