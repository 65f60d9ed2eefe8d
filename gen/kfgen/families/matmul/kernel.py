# SPDX-License-Identifier: Apache-2.0
"""Kernels of the matmul family: operands, products, gradients, and their prologues and epilogues.

A seam is the generic term for a prologue (an entry's `load`) or epilogue (its `expr`): an
expression per element. Gradients of seams are derived; those of products are products again.
"""

import functools
from dataclasses import dataclass, replace

from kfgen.families.matmul.c import MatmulC
from kfgen.families.matmul.cuda import MatmulCuda
from kfgen.families.matmul.fields import JOINED
from kfgen.families.matmul.text import formulas
from kfgen.language.expr import Graph
from kfgen.language.gradient import gradient, substitute
from kfgen.language.primitives import KEEP
from kfgen.model import limits, names
from kfgen.model.derive import activated
from kfgen.model.dtypes import ROUNDED
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.names import gradient_of
from kfgen.model.types import FIRST, GRADIENTS

DOT = "kfi_dot"  # an element of dacc . weight, in gradients of the left factor
VALUES = 12  # values that a seam reads and makes, at most: include/kf/core/matmul/seam.h
SUMS = (
    "right",
    "row",
    "depth",
)  # kinds whose gradients are summed and added to `beta` times theirs
VECTORS = ("row", "depth")
READS = ("always", "act", "result", "never")  # Tensor.reads, the most demanding first


@dataclass
class Product:
    """A product of the left factor, which all products of an op share, and a weight."""

    name: str  # the name by which expressions read its accumulator
    weight: Tensor
    dacc: int = -1  # backward: node of the accumulator's gradient

    def copied(self, renaming):
        return Product(renaming.name(self.name), renaming.copy(self.weight), self.dacc)


@dataclass
class Seam:
    """A prologue or epilogue: the expression per element, and the values that it reads and makes.

    Both backends pass values in this order. word: `load` makes the left factor from its operands;
    `store` makes results from accumulators; backward: `dacc` makes the gradients of the
    accumulators and of operands outside of products, `inputs` those of the left factor's operands.
    """

    word: str
    reads: list  # tensors, names of products, or DOT
    makes: list  # tensors, a Product (its dacc), or the left factor's name
    roots: list  # for each output its index among the kernel's roots


class MatmulKernel(Kernel):
    name_fields = (*Kernel.name_fields, "factor")
    scratch, has_workspace = True, True
    added = ()  # no gradients are summed by shared kernels
    order_note = ", sums in a fixed order"
    summed_over = "rows"

    @functools.cached_property
    def cuda(self):
        return MatmulCuda(self)

    @functools.cached_property
    def c(self):
        return MatmulC(self)

    def _build(self):
        op, family = self.op, self.family
        graph, env, outs = family.graph(op)
        self.operands = [
            Tensor(
                o.name,
                o.kind,
                self.dtype,
                "in",
                "weight" if o.kind in SUMS else "input",
                "T",
                o.values,
                absent=o.absent,
            )
            for o in op.operands
        ]
        named = {s.name: s for s in self.operands}
        self.factor, products = family.products(op)
        self.products = [Product(name, named[weight]) for name, weight in products.items()]
        factor = env[self.factor]

        def result(name, role, use, node=None, **more):
            return Tensor(
                name,
                "elem",
                self.dtype,
                role,
                use,
                "T",
                (name,),
                exprs=[] if node is None else [node],
                **more,
            )

        if not self.bwd:
            self.inputs = self.operands
            self.outputs = [result(n, "out", "output", node) for n, node in outs.items()]
            self.outputs += [result(n, "out", "saved", env[n], required=False) for n in op.saved]
            roots, replaced = [], {}
        else:
            roots = self._gradients(graph, env, outs, factor)
            replaced = {env[n]: n for n in op.saved}
            self.result = activated(op, graph, outs)
            again = [result(n, "in", "output") for n in outs if n == self.result]
            kept = [result(n, "in", "saved") for n in op.saved]
            self.inputs = (
                self.operands
                + again
                + kept
                + [result(gradient_of(n), "in", "gradient", of=n) for n in outs]
            )
        self._copy(graph, [*(e for s in self.outputs for e in s.exprs), *roots, factor], replaced)
        self._reads()
        self.ins, self.outs = self.inputs, self.outputs
        self.limit("operands", "tensors", [s.name for s in self.ins + self.outs], limits.TENSORS)
        self.inputs, self.outputs = (self._joined(tensors) for tensors in (self.ins, self.outs))
        self.streams = self.inputs + self.outputs
        self.scalars, self.keeps = list(op.scalars), KEEP in self.graph.variables(self.roots)
        for seam in self.seams:
            self.limit(
                "expr",
                "values of an element",
                [getattr(v, "name", v) for v in seam.reads + seam.makes],
                VALUES,
            )
        gradients = any(o.grad for o in op.operands)
        forward = [*(o.name for o in op.operands), *outs, *op.saved]
        strided = (
            forward
            + [gradient_of(n) for n in outs if gradients]
            + [gradient_of(o.name) for o in op.operands if o.grad]
        )
        self.strided = list(dict.fromkeys(map(self.tensor_of, strided)))

    def tensor_of(self, name):
        """The argument that is, or contains, a tensor."""
        for joined, members in self.op.own["joined"].items():
            for of in (lambda n: n, gradient_of):
                if name in map(of, members):
                    return of(joined)
        return name

    def halves_of(self, stream):
        """The names of the two tensors that an argument joins; empty for a plain tensor."""
        return [
            s.name
            for s in self.ins + self.outs
            if s.name != stream.name and self.tensor_of(s.name) == stream.name
        ]

    def joined_at(self, stream):
        """The axis along which an argument joins two tensors."""
        return self.shape(stream).index("2 * cols")

    def _joined(self, tensors):
        """Returns the arguments of tensors. Two tensors in one packed buffer become one argument,
        at the first one's position."""
        found = {}
        for s in tensors:
            name = self.tensor_of(s.name)
            if name == s.name:
                found[name] = s
            elif name not in found:
                found[name] = replace(
                    s,
                    name=name,
                    kind=JOINED[s.kind],
                    parts=(name,),
                    of=s.of and self.tensor_of(s.of),
                )
            else:
                first = found[name]
                found[name] = replace(
                    first,
                    exprs=first.exprs + s.exprs,
                    reads=min(first.reads, s.reads, key=READS.index),
                )
        return list(found.values())

    def _gradients(self, graph, env, outs, factor):
        """Sets the outputs of a backward; returns dacc of each product."""
        op, elements = self.op, [s for s in self.operands if s.kind in ("elem", "row")]
        wanted = [env[p.name] for p in self.products] + [env[s.name] for s in elements]
        found = gradient(graph, {outs[n]: graph.var(gradient_of(n)) for n in outs}, wanted)
        loads = [s for s in self.operands if s.kind in ("left", "depth")]
        found |= gradient(graph, {factor: graph.var(DOT)}, [env[s.name] for s in loads])
        found = {i: graph.const(0) if node is None else node for i, node in found.items()}
        dacc = [found[env[p.name]] for p in self.products]
        of = {p.weight.name: dacc for p, dacc in zip(self.products, dacc)} | {
            s.name: found[env[s.name]] for s in elements + loads
        }
        self.outputs = []
        for o in op.operands:
            if o.grad:
                summed = o.kind in SUMS
                same = next(
                    (
                        gradient_of(n)
                        for n in outs
                        if o.kind == "elem" and of[o.name] == graph.var(gradient_of(n))
                    ),
                    "",
                )
                self.outputs.append(
                    Tensor(
                        gradient_of(o.name),
                        o.kind,
                        self.dtype_of(o.grad_dtype or FIRST),
                        "sum" if summed else "out",
                        "gradient",
                        o.grad_dtype or FIRST,
                        (gradient_of(o.name),),
                        of=o.name,
                        unchanged=same,
                        exprs=[of[o.name]],
                        required=False,
                    )
                )
        return dacc

    def _copy(self, graph, roots, replaced):
        """Copies the expressions into the kernel's graph, in which saved values are variables.

        Roots: each output's value (for a weight's gradient: dacc of its product), then dacc of each
        product, then the left factor.
        """
        self.graph, new = Graph(), {}
        for i in graph.reachable(roots):
            node = graph.nodes[i]
            args = [new[a] for a in node.args]
            new[i] = (
                self.graph.var(replaced[i])
                if i in replaced
                else self.graph.add(node.op, *args, value=node.value)
            )
        self.roots = [new[r] for r in roots]
        for s, root in zip(self.outputs, self.roots):
            s.exprs = [root]
        for p, dacc in zip(self.products, self.roots[len(self.outputs) : -1]):
            p.dacc = dacc

    def _reads(self):
        read = self.graph.variables(self.roots)
        plain = Graph()
        anyway = (
            plain.variables(
                substitute(self.graph, plain, self.roots, {}, act=(lambda x: x, lambda x, dy: dy))
            )
            if self.bwd
            else read
        )
        anyway |= {p.weight.name for p in self.products}
        anyway |= {s.name for s in self.operands if s.kind in ("left", "depth")}
        for s in self.inputs:
            s.reads = "always" if s.name in anyway else "act" if s.name in read else "never"
        self.by_result = bool(self.bwd and self.result) and any(
            s.reads == "act" for s in self.inputs
        )
        for s in self.inputs if self.by_result else ():
            s.reads = "result" if s.name == self.result else s.reads

    @property
    def rounded(self):
        """Returns whether products round their operands (tf32). All else is shared with float32."""
        return self.dtypes[0] in ROUNDED

    @property
    def shared(self):
        """Name part of the kernels that rounding dtypes share with the stored one."""
        stored = tuple(ROUNDED.get(d, d) for d in self.dtypes)
        found = names.internal("", self.op.pattern, stored, self.bwd, variant=self.variant)
        return found.strip("_")

    @property
    def wide(self):
        """Dtype of the weights' gradients."""
        variable = self.op.types.variable_of(GRADIENTS)
        return self.dtype_of(variable) if variable in self.types else self.dtype

    @property
    def backends(self):
        return ("cuda",) if self.rounded else self.family.backends

    @property
    def plain(self):
        """Returns whether the left factor is a plain tensor."""
        return self.graph.nodes[self.roots[-1]].op == "var"

    def gradient_as_dacc(self, act):
        """Name of the incoming gradient that is dacc with this activation, or ""."""
        graph = Graph()
        own = {s: graph.var(s) for s in act.scalars}
        roots = [p.dacc for p in self.products]
        found = substitute(
            self.graph,
            graph,
            roots,
            {},
            act=(
                lambda x: act.build(graph, x, own),
                lambda x, dy: act.build_bwd(graph, x, dy, own),
            ),
        )
        return len(found) == 1 and graph.nodes[found[0]].op == "var" and graph.nodes[found[0]].value

    @property
    def dout_as_dacc(self):
        """Name of the incoming gradient that is dacc under an identity activation, or ""."""
        graph = Graph()
        found = substitute(
            self.graph,
            graph,
            [p.dacc for p in self.products],
            {},
            act=(lambda x: x, lambda x, dy: dy),
        )
        return (
            graph.nodes[found[0]].value
            if len(found) == 1 and graph.nodes[found[0]].op == "var"
            else ""
        )

    @functools.cached_property
    def seams(self):
        """The seams of the direction, in launch order."""
        names = {s.name: s for s in self.ins}
        place = {s.name: i for i, s in enumerate(self.outs)}

        def seam(word, makes, roots):
            read = self.graph.variables([self.roots[r] for r in roots])
            if self.by_result and word == "dacc":
                read |= {self.result}
            more = [p.name for p in self.products if p.name in read] + [DOT] * (DOT in read)
            return Seam(word, [*more, *(s for n, s in names.items() if n in read)], makes, roots)

        load = [] if self.plain else [seam("load", [self.factor], [len(self.roots) - 1])]
        if not self.bwd:
            return [*load, seam("store", self.outs, [place[s.name] for s in self.outs])]
        first = len(self.outs)
        apart = [s for s in self.outs if s.kind in ("elem", "row")]
        dacc = seam(
            "dacc",
            [*self.products, *apart],
            [*range(first, first + len(self.products)), *(place[s.name] for s in apart)],
        )
        inputs = [s for s in self.outs if s.kind in ("left", "depth")]
        return [
            *load,
            dacc,
            *([seam("inputs", inputs, [place[s.name] for s in inputs])] if inputs else []),
        ]

    @property
    def form(self):
        return self.op.layout or "nt"

    def levels_of(self, name):
        kinds = {self.tensor_of(s.name): s.kind for s in self.operands}
        kind = kinds.get(name) or kinds.get(name[1:], "elem")
        return ("_batch",) if kind in VECTORS else ("", "_batch")

    @property
    def shaped_by(self):
        """A weight, whose leading dimensions are the batch; the left factor, for the rows."""
        return [
            self.tensor_of(self.products[0].weight.name),
            next(s.name for s in self.operands if s.kind == "left"),
        ]

    @property
    def accumulates(self):
        return self.bwd or self.op.own["accumulates"]

    def accumulated(self, stream):
        return stream.role == "sum" if self.bwd else self.accumulates and stream.use == "output"

    def per_element(self, stream):
        return int(stream.kind == "elem")

    def below(self, stream):
        return None

    @property
    def work(self):
        """Floating-point operations of a call, as an expression of the sizes."""
        return f"{2 * len(self.products) * (2 if self.bwd else 1)} * batch * rows * cols * depth"

    def formulas(self, by=False):
        return formulas(self, by)
