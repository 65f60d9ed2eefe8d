# SPDX-License-Identifier: Apache-2.0
"""Example of a user's own family, which tests/gen/test_own_family.py and docs/contributing.md use.
It combines each element of a row with its left and right neighbour, 0 at the ends."""

import functools

from kfgen.families.family import Family, wrong
from kfgen.families.stencil.c import StencilC
from kfgen.families.stencil.cuda import StencilCuda
from kfgen.language.gradient import gradient
from kfgen.model import derive
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.kinds import Kind
from kfgen.model.names import gradient_of


class StencilKernel(Kernel):
    form = "lines"

    @functools.cached_property
    def cuda(self):
        return StencilCuda(self)

    @functools.cached_property
    def c(self):
        return StencilC(self)

    def _build(self):
        graph, env, outs = self.family.graph(self.op)
        [x] = self.op.operands
        self.operands = [Tensor(x.name, x.kind, self.dtype, "in", "input", "T", x.parts)]
        [(out, root)] = outs.items()
        if self.bwd:
            # An element is the left neighbour of the next and the right neighbour of the previous
            # one. Its gradient is the sum of the expression's derivatives for these roles.
            dout = gradient_of(out)
            self.roots = list(
                gradient(graph, {root: graph.var(dout)}, [env[part] for part in x.parts]).values()
            )
            if None in self.roots or graph.variables(self.roots) & set(x.parts):
                raise wrong(self.op, "expr", "is not linear in its neighbours", "add grad = false")
            self.inputs = [
                *self.operands,
                Tensor(dout, "line", self.dtype, "in", "gradient", "T", (dout,), of=out),
            ]
            self.outputs = [
                Tensor(
                    gradient_of(x.name),
                    "line",
                    self.dtype,
                    "out",
                    "gradient",
                    "T",
                    tuple(map(gradient_of, x.parts)),
                    of=x.name,
                    exprs=self.roots,
                    required=False,
                )
            ]
            self.operands[0].reads = "never"
        else:
            self.roots, self.inputs = [root], self.operands
            self.outputs = [
                Tensor(out, "line", self.dtype, "out", "output", "T", (out,), exprs=self.roots)
            ]
        self.read = self.inputs[-1]
        self.graph, self.streams, self.keeps, self.scalars = (
            graph,
            self.inputs + self.outputs,
            False,
            list(self.op.scalars),
        )

    @property
    def sides(self):
        """Names of an element and its neighbours, which renamed kernels have from the tensor."""
        return self.operands[0].parts

    def per_element(self, stream):
        return 1


class Stencil(Family):
    kernel = StencilKernel
    name = "stencil"
    title = "Neighbours"
    forms = {"lines": {"elem": "rows, cols", "line": "rows, cols"}}
    # Three values: left neighbour, element, right neighbour. Not in place: a neighbour may be
    # overwritten already.
    kinds = (Kind("line", whole=True, parts=3),)

    def check_operands(self, f, operands):
        if len(operands) != 1:
            raise f.error("operands", "are several", "give it one")

    def reference(self, op, act):
        from kfgen.families.stencil.reference import StencilReference

        return StencilReference(self, op, act)

    def graph(self, op):
        return derive.element_graph(op)

    def check(self, op, graph, env, outputs):
        if list(outputs) != ["out"] or op.has_act or op.dropout:
            raise wrong(op, "outputs", "are more than `out`", "write expr")


FAMILY = Stencil()
