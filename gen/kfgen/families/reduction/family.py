# SPDX-License-Identifier: Apache-2.0
"""The family `reduction`: reductions over any axis, in the tensors' dtype or in float32."""

import functools
from dataclasses import replace

from kfgen.families.family import wrong
from kfgen.families.reduction.argreduce import (
    CALLS,
    HEADER,
    WORDS,
    ArgreduceC,
    ArgreduceCuda,
    check_argreduce,
    find_argreduce,
)
from kfgen.families.reduction.c import ReductionC
from kfgen.families.reduction.cuda import ReductionCuda
from kfgen.families.rows.over_rows import OverRows, OverRowsKernel
from kfgen.language.passes import reduced
from kfgen.language.primitives import COUNT, ELEM
from kfgen.model import derive
from kfgen.model.kinds import ELEM as ELEMENTS
from kfgen.model.kinds import PER_ROW
from kfgen.model.shapes import BEFORE_AXIS, ONE, REST
from kfgen.model.types import FIRST, INDEX_VARIABLE, RESULTS


class ReductionKernel(OverRowsKernel):
    form = "axis"

    @functools.cached_property
    def cuda(self):
        return ReductionCuda(self)

    @functools.cached_property
    def c(self):
        return ReductionC(self)

    def _build(self):
        super()._build()
        for s in self.streams:
            result = s.of if s.use == "gradient" else s.name
            s.var = FIRST if s.kind == "elem" else self.op.dtypes.get(result, FIRST)
            s.dtype = self.dtype_of(s.var)

    @property
    def part_size(self):
        """Bytes of a partial result of a reduction."""
        return self.dtype.acc.size

    @property
    def scratch(self):
        """True if a split axis needs a workspace: only if something is reduced."""
        return self.slots > 0

    @property
    def refuses(self):
        """True if an axis without elements is an error."""
        return self.op.empty == "error" and not self.bwd

    @property
    def order_note(self):
        return ", in an order that follows from axis and inner" if self.scratch else ""

    @property
    def workspace_note(self):
        return "; 0 bytes for a short axis"

    @property
    def passes(self):
        """Operations of the reductions of each pass."""
        return reduced(self.graph, self.roots)

    @property
    def slots(self):
        """Number of reductions of all passes."""
        return sum(map(len, self.passes))

    @property
    def most(self):
        """Maximum number of reductions per pass."""
        return max(map(len, self.passes), default=0)


class ArgreduceKernel(ReductionKernel):
    """argmax or argmin: index and value are one reduction, found in one sweep."""

    header = HEADER
    part_size = 16  # bytes of an index and a value
    order_note = ""

    @functools.cached_property
    def cuda(self):
        return ArgreduceCuda(self)

    @functools.cached_property
    def c(self):
        return ArgreduceC(self)

    def _build(self):
        super()._build()
        (word, self.key), index = find_argreduce(
            self.graph, {s.name: s.exprs[0] for s in self.outputs}
        )
        self.word = WORDS[word]
        for s in self.outputs:
            s.required = s.name == index
            if s.required:
                s.dtype, s.var, self.index_output = self.index_dtype, INDEX_VARIABLE, s
            else:
                self.value = s

    value = None  # the output with the element itself

    @property
    def passes(self):
        return [[self.word]]


class Reduction(OverRows):
    kernel = ReductionKernel
    name = "reduction"
    runtime_activation = True
    title = "Reductions over an axis"
    forms = {"axis": {"elem": "outer, axis, inner", "per_row": "outer, inner"}}
    axes = {"axis": (-1, {"outer": BEFORE_AXIS, "axis": ONE, "inner": REST})}
    levels = {"axis": ("", "_outer")}
    kinds = (ELEMENTS, PER_ROW.but(operand=False))
    roles, narrower = (RESULTS,), True
    fields = ("grads", "empty")
    reads = (COUNT,)
    dropout = False
    reduces = True
    axis_may_be_none = True

    def forward(self, op, types, variant=()):
        kernel = ArgreduceKernel if op.indexed else ReductionKernel
        return kernel(self, op, types, False, variant)

    def graph(self, op):
        return derive.row_graph(replace(op, extra=op.extra | CALLS), self.reads, self.dropout)

    def check(self, op, graph, env, outputs):
        super().check(op, graph, env, outputs)
        if op.indexed:
            check_argreduce(op, graph, outputs)

    def check_result(self, op, name, level):
        if level == ELEM:
            raise wrong(
                op,
                "expr",
                f"`{name}` differs along the axis",
                'reduce it, or write family = "rows" for a result of elements',
            )


FAMILY = Reduction()
