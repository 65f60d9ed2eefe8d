# SPDX-License-Identifier: Apache-2.0
"""Elementwise ops. Row and channel operands are broadcast."""

import functools

from kfgen.families.elementwise.c import ElementwiseC
from kfgen.families.elementwise.cuda import ElementwiseCuda
from kfgen.families.family import Family, one_broadcast
from kfgen.language.expr import Graph
from kfgen.language.gradient import gradient, substitute
from kfgen.language.primitives import KEEP
from kfgen.model import derive, limits
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.kinds import CHANNEL, ELEM, HALF, ROW
from kfgen.model.names import gradient_of
from kfgen.model.shapes import BEFORE_AXIS, ONE, REST
from kfgen.model.types import FIRST


class ElementwiseKernel(Kernel):
    @functools.cached_property
    def cuda(self):
        return ElementwiseCuda(self)

    @functools.cached_property
    def c(self):
        return ElementwiseC(self)

    def _sort(self):
        self.limit("operands", "values of an element", [s.name for s in self.c.slots], limits.SLOTS)

    @property
    def has_half(self):
        return "half" in self.kinds

    @property
    def grid(self):
        """True if elements are in rows or planes: some operand is smaller than the result."""
        return self.has_channel or self.has_half or "row" in self.kinds

    @property
    def form(self):
        return "planes" if self.has_channel else "rows" if self.grid else "flat"

    def _build(self):
        op = self.op
        graph, env, outs = self.family.graph(op)
        self.graph = graph
        self.operands = [
            self.tensor_of(o, "weight" if self.family.kind(o.kind).weight else "input")
            for o in op.operands
        ]
        if self.bwd:
            self._build_backward(env, outs)
        else:
            self.inputs = self.operands
            self.outputs = [
                self._of_result(name, name, "out", "output", exprs=[node])
                for name, node in outs.items()
            ]
        self.roots = [e for s in self.outputs for e in s.exprs]
        self._set_reads()
        self.streams = self.inputs + self.outputs
        self.scalars = [s for s in op.scalars]

    def _of_result(self, name, result, role, use, **more):
        """A tensor with the shape and dtype of a result."""
        var = self.op.dtypes.get(result, FIRST)
        return Tensor(name, "elem", self.dtype_of(var), role, use, var, (name,), **more)

    def _build_backward(self, env, outs):
        """Sets the inputs and outputs of a backward: gradients of the operands that have one."""
        op, graph = self.op, self.graph
        douts = {name: graph.var(gradient_of(name)) for name in outs}
        wanted = [o for o in op.operands if o.grad]
        grads = gradient(
            graph, {outs[n]: douts[n] for n in outs}, [env[v] for o in wanted for v in o.values]
        )
        self.outputs = []
        for o in wanted:
            exprs = [
                grads[env[v]] if grads[env[v]] is not None else graph.const(0) for v in o.values
            ]
            self.outputs.append(self._gradient_of(o, exprs, douts))
        seeds = [self._of_result(gradient_of(n), n, "in", "gradient", of=n) for n in outs]
        self.result = derive.activated(op, graph, outs)
        again = [self._of_result(n, n, "in", "output") for n in outs if n == self.result]
        self.inputs = self.operands + again + seeds

    def _gradient_of(self, o, exprs, douts):
        """The gradient of operand `o`, and which earlier or incoming gradient it equals."""
        stream = next(s for s in self.operands if s.name == o.name)
        like = (exprs, o.kind, o.dtype)
        equal = next((s.name for s in self.outputs if (s.exprs, s.kind, s.var) == like), "")
        alike = [n for n in douts if o.dtype == self.op.dtypes.get(n, FIRST)]
        same = [n for n in alike if o.kind == "elem" and exprs == [douts[n]]]
        return Tensor(
            gradient_of(o.name),
            o.kind,
            stream.dtype,
            "sum" if self.is_small(stream) else "out",
            "gradient",
            o.dtype,
            tuple(map(gradient_of, o.values)),
            of=o.name,
            same_as=equal,
            unchanged=gradient_of(same[0]) if same else "",
            exprs=exprs,
            required=False,
        )

    def _set_reads(self):
        """Sets when each input is read: always, act, result or never (Tensor.reads)."""
        read = self.graph.variables(self.roots)
        plain = Graph()
        linear = substitute(self.graph, plain, self.roots, {}, act=(lambda x: x, lambda x, dy: dy))
        read_anyway = plain.variables(linear) if self.bwd else read
        for s in self.inputs:
            s.reads = (
                "always"
                if read_anyway & set(s.parts)
                else "act"
                if read & set(s.parts)
                else "never"
            )
        self.by_result = bool(self.bwd and self.result) and any(
            s.reads == "act" and not self.is_small(s) for s in self.inputs
        )
        for s in self.inputs if self.by_result else ():
            s.reads = "result" if s.name == self.result else s.reads
        self.keeps = KEEP in read

    @functools.cached_property
    def rows(self):
        """Row values that the element loop reads: [(name, node)].

        A node is a row operand, or a subexpression of row operands and scalars alone. The latter is
        computed once per row value instead of once per element. Conditions are excluded, as they
        cannot be stored; their operands are included.
        """
        row_names = {p for s in self.row_loads for p in s.parts}
        scalars = set(self.scalars)
        row_only = {}
        for i in self.graph.reachable(self.roots):
            node = self.graph.nodes[i]
            if node.op == "var":
                row_only[i] = node.value in row_names
            else:
                used = [
                    a
                    for a in node.args
                    if self.graph.nodes[a].op != "const"
                    and self.graph.nodes[a].value not in scalars
                ]
                row_only[i] = (
                    bool(used)
                    and all(row_only[a] for a in used)
                    and node.op not in ("act", "act_bwd")
                )
        frontier, found = set(), []

        def read(nodes):
            for i in nodes:
                if self.graph.is_bool(i):
                    read(self.graph.nodes[i].args)
                elif row_only.get(i):
                    frontier.add(i)

        for i in self.graph.reachable(self.roots):
            if not row_only.get(i):
                read(self.graph.nodes[i].args)
        read(self.roots)
        for i in sorted(frontier):
            node = self.graph.nodes[i]
            found.append((node.value if node.op == "var" else f"row{len(found)}", i))
        return found


class Elementwise(Family):
    kernel = ElementwiseKernel
    name = "elementwise"
    runtime_activation = True
    title = "Elementwise ops"
    forms = {
        "flat": {"elem": "n"},
        "rows": {"elem": "rows, cols", "half": "rows, 2 * cols", "row": "cols"},
        "planes": {"elem": "outer, channels, inner", "channel": "channels"},
    }
    axes = {
        "flat": (None, {"n": REST}),
        "rows": (-1, {"rows": REST, "cols": ONE}),
        "planes": (1, {"outer": BEFORE_AXIS, "channels": ONE, "inner": REST}),
    }
    any_order = tuple(forms)
    kinds = (ELEM, ROW, CHANNEL, HALF)
    fields = ("ints", "reduced")
    reduced_by = "reduction"
    converts = decomposes = conditions = True

    def dtypes(self, kind, grad):
        if kind == "elem":
            return () if grad else ("u8",)
        return () if kind == "half" else ("acc",)

    def check_operands(self, f, operands):
        one_broadcast(f, operands)
        if any(o.kind == "half" for o in operands) and any(
            o.kind == "row" and o.grad for o in operands
        ):
            fix = 'add grad = false to the "row", or take two "elem" for the "half"'
            raise f.error("operands", 'has a "half" beside a "row" with a gradient', fix)

    def graph(self, op):
        return derive.element_graph(op)


FAMILY = Elementwise()
