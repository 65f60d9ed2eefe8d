# SPDX-License-Identifier: Apache-2.0
"""Embeddings in CUDA: several threads copy a row of the table, or sum a row of its gradient."""

import functools

from kfgen.language.emit import emit
from kfgen.model.schedule import CHEAP, Cuda, Instance

# Kernels of core/index_sort.cuh, in launch order.
SORT = ("count", "scan", "scatter", "bounds")


class EmbeddingCuda(Cuda):
    @property
    def template(self):
        return "sum" if self.k.bwd else "kernel"

    @property
    def vec(self):
        return 16 // self.k.dtype.size

    @functools.cached_property
    def code(self):
        """(lines, text of the result)."""
        target = self.target(frozenset() if self.k.bwd else CHEAP | {"quotient"})  # sums cancel
        lines, [text] = emit(
            self.k.graph,
            self.k.roots,
            target,
            {s.name: f"{s.name}_f[e]" for s in self.k.inputs},
            fixed={},
        )
        return lines, text

    @property
    def reads_table(self):
        return self.k.table.reads != "never"

    @property
    def kernel_parameters(self):
        found = [f"const {s.dtype.device} *{s.name}" for s in self.passed[0]] + [
            f"{s.dtype.device} *{s.name}" for s in self.k.outputs
        ]
        return ", ".join(
            [*found, "kfi_embedding g", *(f"{self.k.scalar_ctype} {s}" for s in self.scalars)]
        )

    @property
    def kernel_arguments(self):
        return ", ".join(
            f"&{name}" for name in [*(s.name for s in sum(self.passed, [])), "kfi_g", *self.scalars]
        )

    @property
    def passed(self):
        """(inputs, outputs) of the kernel. A gradient reads sorted rows instead of the tokens."""
        return [
            s
            for s in self.k.inputs
            if s.reads != "never" and not (self.k.bwd and s is self.k.number)
        ], self.k.outputs

    @property
    def scalars(self):
        return [*self.k.used_scalars, *self.k.betas]

    @property
    def fields(self):
        """Fields of kfi_embedding_op: (name, value, comment)."""
        return [("vec", self.vec, "elements per vector")]

    @property
    def workspace_bytes(self):
        return "kfi_embedding_workspace(rows, cols, vocab)"

    @property
    def sort_instances(self):
        return [
            Instance(f"kfk_index_{word}", (f"KF_{self.k.number.dtype.word.upper()}",))
            for word in SORT
        ]

    @property
    def own_instances(self):
        shapes = [(self.vec,), (1,)] if self.k.bwd else [(self.vec, 4), (self.vec, 1), (1, 1)]
        return [Instance(f"kfk_{self.k.name}", ("act", *shape)) for shape in shapes]

    @property
    def instances(self):
        """Kernels in the order that core/embedding/embedding.cuh expects."""
        return self.own_instances + (self.sort_instances if self.k.bwd else [])

    @property
    def stage_instances(self):
        return [*([i] for i in self.sort_instances if self.k.bwd), self.own_instances]

    def listing(self):
        """The computation in order, for readers."""
        result = self.k.outputs[0].name
        return [
            *self.code[0],
            f"{result}_s[e] += {self.code[1]};" if self.k.bwd else f"{result} = {self.code[1]};",
        ]
