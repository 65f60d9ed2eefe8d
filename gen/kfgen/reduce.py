# SPDX-License-Identifier: Apache-2.0
"""Kernels of reductions over an axis: the expressions and passes of ops over rows, where a row is what lies along the axis.

Results are one per row, in the tensors' dtype. A thread has several rows side by side where they lie so, and a value of each.
"""

import functools

from kfgen import model, names
from kfgen.activation import bwd_reads_x
from kfgen.passes import inlined, program
from kfgen.rows import RowKernel


class ReduceKernel(RowKernel):
    family = "reduce"
    geometry = "kfi_reduce"

    def _build(self):
        super()._build()
        for s in self.streams:
            s.dtype = self.dtype
        self.workspace = names.workspace(self.op.pattern, self.dtypes, bwd=self.bwd)
        self.cpu_workspace = names.workspace(self.op.pattern, self.dtypes, cpu=True, bwd=self.bwd)

    @property
    def sizes(self):
        return ["outer", "axis", "inner"]

    @property
    def scratch(self):
        """For an axis that is shared out; what reduces nothing needs none."""
        return self.slots > 0

    @property
    def refuses(self):
        """Whether an axis without elements is an error."""
        return self.op.empty == "error" and not self.bwd

    @property
    def most(self):
        """Reductions of a pass."""
        return max((len(p.reductions) for p in self.cuda.passes), default=0)

    @functools.cached_property
    def sweeps(self):
        """What each sweep over the axis reads: the passes, then the one that stores elements."""
        return [p.reads for p in self.cuda.passes] + ([self.cuda.reads] if self.stores else [])

    def swept(self, stream, sweep):
        """Whether an earlier sweep has read it."""
        return any(stream.name in read for read in self.sweeps[:sweep])

    @property
    def again(self):
        """Whether some tensor is read by several sweeps."""
        return any(s.name in read and self.swept(s, i) for i, read in enumerate(self.sweeps) for s in self.loads)

    @property
    def ahead(self):
        """Vectors of a tensor that a thread has on their way."""
        return 8 if len(self.loads) < 2 else 4 if len(self.loads) < 4 else 2

    @functools.cached_property
    def cuda(self):
        env = {s.name: f"{s.name}_f[e]" for s in self.loads} | {s.name: f"{s.name}_i[e]" for s in self.values}
        return program(self.graph, {s.name: r for s, r in zip(self.outputs, self.roots)}, self.cuda_target, env, each="{}_s[e]")

    @property
    def instances(self):
        return [f"KFI_ADDRESS(kfk_{self.name}<act, {whole}>)" for whole in (1, 0)]

    # ---- C -----------------------------------------------------------------------------------------------------------

    @property
    def cpu_codes(self):
        """How each reduction joins, as core/reduce.h has it."""
        return [("sum", "max", "min", "prod").index(r.word) for p in self.cuda.passes for r in p.reductions]

    @property
    def cpu_counts(self):
        return [len(p.reductions) for p in self.cuda.passes]

    def cpu(self, act):
        graph, roots = self.graph, self.roots
        if self.bwd and not bwd_reads_x(act):
            graph, roots = inlined(graph, roots, act)
        env = {s.name: f"{s.name}_j" for s in self.loads} | {s.name: f"{s.name}_i[j]" for s in self.values}
        return program(graph, {s.name: r for s, r in zip(self.outputs, roots)}, self.cpu_target(act), env, each="{}_s[j]")

    def cpu_value(self, s):
        """One of the values that a result of the forward, or its gradient, has."""
        return f"kfi_cpu_load_{s.dtype.word}({s.name}[u.result + c])" if s.dtype.size == 2 else f"{s.name}[u.result + c]"


model.FAMILIES["reduce"] = ReduceKernel
