# SPDX-License-Identifier: Apache-2.0
"""Functions that merge the results of attention for two parts of the keys."""

import functools

from kfgen.families.decoding.c import RowsC
from kfgen.families.decoding.cuda import MergeCuda
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.names import gradient_of
from kfgen.model.types import ACC, FIRST


class MergeKernel(Kernel):
    form = "merge"
    header = "kf/core/decoding/merge"
    example = "attention_merge"
    numbers = ()
    struct = None  # four sizes are arguments
    summed_over = "dim"

    @staticmethod
    def results(op):
        return ["out", "lse"]

    @staticmethod
    def known(op, graph, env):
        """Lists the roots that an entry may have."""
        own = [env[o.name] for o in op.operands]
        return [[graph.add("weighted", *own), graph.add("log_add", own[1], own[3])]]

    @functools.cached_property
    def cuda(self):
        return MergeCuda(self)

    @functools.cached_property
    def c(self):
        return RowsC(self)

    def _build(self):
        self.graph, _, outs = self.family.graph(self.op)
        self.roots, self.keeps, self.scalars = list(outs.values()), False, []
        self.operands = [self.tensor_of(o) for o in self.op.operands]
        self.inputs = list(self.operands)
        if self.bwd:
            for of in outs:
                self.inputs.append(self._tensor(gradient_of(of), of == "lse", "in", of=of))
            self.inputs[-1].absent = 0.0
            self.outputs = [
                self._tensor(gradient_of(s.name), s.kind == "per_query", "out", of=s.name)
                for s in self.operands
            ]
        else:
            self.outputs = [self._tensor(name, name == "lse", "out") for name in outs]
        self.streams = self.inputs + self.outputs
        parts = [s.name for s in self.operands if s.kind != "per_query"]
        results = [name for name in outs if name != "lse"]
        # One struct serves both directions: the forward's tensors, then the backward's.
        self.strided = [*parts, *results, *map(gradient_of, [*results, *parts])]

    def _tensor(self, name, small, role, of=""):
        """Makes a tensor. of: what it is the gradient of; empty for results."""
        return Tensor(
            name,
            "per_query" if small else "part",
            self.dtype.acc if small else self.dtype,
            role,
            "gradient" if of else "output",
            ACC if small else FIRST,
            (name,),
            of=of,
            required=role == "in" or not of,
        )

    @property
    def shaped_by(self):
        return [self.inputs[0].name]

    @property
    def flops(self):
        return 12 if self.bwd else 4

    def per_element(self, stream):
        return int(stream.kind != "per_query")

    def formulas(self, by):
        a, la, b, lb = (s.name for s in self.operands)
        if not self.bwd:
            return [
                f"lse = log(exp({la}) + exp({lb}))",
                f"out = exp({la} - lse) * {a} + exp({lb} - lse) * {b}",
            ]
        found = [f"wa = exp({la} - log(exp({la}) + exp({lb}))); wb = 1 - wa"]
        found.append(f"t = wa * wb * sum over dim of dout * ({a} - {b})")
        found.append(f"d{a} = wa * dout; d{la} = wa * dlse + t")
        return [*found, f"d{b} = wb * dout; d{lb} = wb * dlse - t"]
