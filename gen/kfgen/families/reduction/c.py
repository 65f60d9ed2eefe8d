# SPDX-License-Identifier: Apache-2.0
"""Reductions over an axis in C: loops over strips, along or across the axis."""

from kfgen.families.rows.over_rows_schedule import OverRowsC
from kfgen.language.passes import inlined, program
from kfgen.model.activation import GIVEN, bwd_reads_x


class ReductionC(OverRowsC):
    code, runtime_type = "kfi_reduce_{}", "kfi_traversal"
    body = "reduction/passes.h.j2"
    join = None  # function that combines the parts' results (argmax, argmin)

    @property
    def workspace_bytes(self):
        sizes = f"{self.k.most}, {self.k.slots}, {self.k.part_size}"
        return f"kfi_cpu_reduce_workspace(outer, axis, inner, {sizes})"

    @property
    def codes(self):
        """Operation code of each reduction, as in core/reduction/reduction.h."""
        return [
            ("sum", "max", "min", "prod").index(word) for words in self.k.passes for word in words
        ]

    @property
    def counts(self):
        return [len(words) for words in self.k.passes]

    def plan(self, act):
        graph, roots = self.k.graph, self.k.roots
        if act is not GIVEN and self.k.bwd and not bwd_reads_x(act):
            graph, roots = inlined(graph, roots, act)
        env = {s.name: f"{s.name}_j" for s in self.k.loads} | {
            s.name: f"{s.name}_i[j]" for s in self.k.values
        }
        return program(
            graph,
            {s.name: r for s, r in zip(self.k.outputs, roots)},
            self.target(act),
            env,
            each="{}_s[j]",
        )

    def calls(self, act):
        """Calls of a run-time activation."""
        ops = {self.k.graph.nodes[i].op for i in self.k.graph.reachable(self.k.roots)}
        return [c for c in ("act", "act_bwd") if c in ops] if act is GIVEN else []

    def value(self, s):
        """C expression of a value that exists once per result (such as an incoming gradient)."""
        return (
            f"kfi_cpu_load_{s.dtype.word}({s.name}[u.result + c])"
            if s.dtype.size == 2
            else f"{s.name}[u.result + c]"
        )
