# SPDX-License-Identifier: Apache-2.0
"""The family `linear_cross_entropy`: an op over the rows of a matrix product.

The product is never materialised. A call computes the logits of a chunk of rows in the workspace
with the layer `linear` and applies the op over rows that the entry names. If that op computes the
gradient of its rows, the layer's gradients follow.
"""

import functools
from dataclasses import replace

from kfgen.families.family import Family, describe, wrong
from kfgen.families.linear_cross_entropy.calls import (
    INNER,
    LOGITS,
    LinearCrossEntropyC,
    LinearCrossEntropyCuda,
)
from kfgen.families.matmul.family import Matmul
from kfgen.families.rows.family import Rows
from kfgen.language.expr import Graph
from kfgen.language.formulas import LIBRARIES
from kfgen.language.gradient import substitute
from kfgen.language.passes import copy
from kfgen.language.primitives import COLUMN, COUNT
from kfgen.model.derive import row_graph
from kfgen.model.entries import Operand
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.kinds import PER_ROW, Kind
from kfgen.model.kinds import ROW as ROW_KIND
from kfgen.model.names import gradient_of
from kfgen.model.shapes import ONE, REST
from kfgen.model.steps import Call
from kfgen.model.types import FIRST, GRADIENTS, INDEX_VARIABLE

PRODUCT = "linear_{act}"
ROW = "logits"  # name of a row of the product in expressions
LAYER_KINDS = ("left", "right", "row")
LAYERS, ROWS = Matmul(), Rows()
CHUNK = "chunk of rows"  # loop around the calls


class LinearCrossEntropyKernel(Kernel):
    form = "logits"
    scratch, has_workspace = True, True
    added = ()  # the called launchers sum
    order_note = ", sums in a fixed order"
    workspace_note = "; for a chunk of logits"

    @functools.cached_property
    def cuda(self):
        return LinearCrossEntropyCuda(self)

    @functools.cached_property
    def c(self):
        return LinearCrossEntropyC(self)

    def _build(self):
        op = self.op
        graph, env, outs = self.family.graph(op)
        self.operands = [
            self.tensor_of(o, "weight" if o.kind in ("right", "row") else "input", absent=o.absent)
            for o in op.operands
        ]
        self.inputs = self.operands
        self.of = {kind: next(s for s in self.operands if s.kind == kind) for kind in LAYER_KINDS}
        self.with_grads = gradient_of(ROW) in outs
        nodes = {name: node for name, node in outs.items() if name != gradient_of(ROW)} | {
            name: env[name] for name in op.saved
        }
        self.outputs = [
            Tensor(
                name,
                "per_row",
                self.dtype.acc,
                "out",
                "saved" if name in op.saved else "output",
                "acc",
                (name,),
                exprs=[node],
                required=name not in op.saved,
            )
            for name, node in nodes.items()
        ]
        if self.with_grads:
            self.outputs[len(op.outputs) - 1 : len(op.outputs) - 1] = self._gradients()
        roots = [
            *(e for s in self.outputs for e in s.exprs),
            *([outs[gradient_of(ROW)]] if self.with_grads else []),
        ]
        self.graph, self.roots = copy(graph, roots, {})
        self.streams = self.inputs + self.outputs
        self.strided = [s.name for s in self.streams if s.kind in ("left", "right")]
        self.integers, self.scalars, self.keeps = (
            list(op.integers),
            [s for s in op.scalars if s not in op.integers],
            False,
        )

    def _gradients(self):
        """The outputs that are gradients of the layer's operands."""
        wide = self.op.types.variable_of(GRADIENTS)
        variables = {"left": FIRST, "right": wide, "row": wide}
        return [
            Tensor(
                gradient_of(s.name),
                kind,
                self.dtype_of(variables[kind]),
                "out",
                "output",
                variables[kind],
                (gradient_of(s.name),),
                required=False,
            )
            for kind, s in self.of.items()
        ]

    @functools.cached_property
    def called(self):
        """Calls of the layer, the op over rows and, with gradients, the layer's backward."""
        layer, *others = self._called_kernels()
        x, weight, bias = (self.of[kind].name for kind in LAYER_KINDS)
        own = {"x": x, "weight": weight, "bias": bias}
        row = next(o.name for o in self.op.made_of[1].operands if o.kind == "elem")
        per_row = [s.name for s in self.streams if s.kind == "per_row"]
        names = [
            own | {"out": LOGITS},
            dict(zip(per_row, per_row)) | {row: LOGITS, gradient_of(row): LOGITS},
            own | {"dout": LOGITS} | {gradient_of(n): gradient_of(of) for n, of in own.items()},
        ]
        return [
            Call(k, next((a for a in k.acts if a.name == "none"), k.acts[0]), of, INNER, (CHUNK,))
            for k, of in zip((layer, *others), names)
        ]

    def _called_kernels(self):
        layer, rows = self.op.made_of
        own = {FIRST: self.types[FIRST]}
        of_rows = {v: d for v, d in self.types.items() if v in (FIRST, INDEX_VARIABLE)}
        found = [LAYERS.forward(layer, own), ROWS.forward(rows, of_rows)]
        if not self.with_grads:
            return found
        wide = self.types[self.op.types.variable_of(GRADIENTS)]
        return [*found, LAYERS.backward(layer, own | {layer.types.variable_of(GRADIENTS): wide})]

    @property
    def shaped_by(self):
        return [self.of["right"].name, self.of["left"].name]

    @property
    def needs(self):
        return list(self.op.made_of)

    @property
    def accumulates(self):
        return self.with_grads

    def accumulated(self, stream):
        return stream.kind in ("right", "row") and stream.role == "out"

    def per_element(self, stream):
        return 0

    @property
    def work(self):
        return f"{6 if self.with_grads else 2} * rows * cols * depth"

    def formulas(self, by=False):
        op, of = self.op, self.of
        lines = [f"{ROW} = {of['left'].name} . {of['right'].name}^T + {of['row'].name}"]
        lines += [
            f"{name} = {op.made_of[1].pattern}'s of {ROW}" for name in (*op.saved, *op.outputs)
        ]
        if self.with_grads:
            d, (x, w, b) = gradient_of(ROW), (of[kind].name for kind in LAYER_KINDS)
            lines += [
                f"{gradient_of(x)} = {d} . {w}",
                f"{gradient_of(w)} = {d}^T . {x} + beta * {gradient_of(w)}",
                f"{gradient_of(b)} = sum over rows of {d} + beta * {gradient_of(b)}",
            ]
        return lines


def _nodes(target, op, built, own):
    """Copies an op's expressions with other names. Returns {name: node}."""
    graph, env, outputs = built
    nodes = outputs | {name: env[name] for name in op.saved}
    variables = {name: target.var(new) for name, new in own.items()}
    found = substitute(graph, target, list(nodes.values()), variables)
    return dict(zip((own.get(name, name) for name in nodes), found))


class LinearCrossEntropy(Family):
    kernel = LinearCrossEntropyKernel
    name = "linear_cross_entropy"
    title = "Losses of logits that are never whole"
    forms = {
        "logits": {
            "elem": "rows, cols",
            "left": "rows, depth",
            "right": "cols, depth",
            "row": "cols",
            "per_row": "rows",
        }
    }
    sizes = {"logits": "rows, cols, depth"}
    axes = {"logits": (None, {"rows": REST, "cols": ONE, "depth": ONE})}
    levels = {"logits": ("",)}
    autocast = "low"
    roles = (GRADIENTS,)
    # Only the layer reads its operands.
    kinds = (Kind("left", index=True), Kind("right", index=True), ROW_KIND.but(index=True), PER_ROW)
    fields = ("saved",)
    names = (ROW, "beta")
    integers = True

    def variables(self, op, bwd):
        """A forward computes the gradients, too."""
        return op.types.names

    def own_fields(self, f, op):
        return {"rows": f.get("rows", str, required=True, what='"cross_entropy", the op over rows')}

    def made_of(self, op):
        return PRODUCT, op.own["rows"]

    def dtypes(self, kind, grad):
        return ("I", "acc") if kind == "per_row" and not grad else ()

    def absent(self, kind):
        return kind != "left" and kind != "right"

    def check_operands(self, f, operands):
        found = sorted(o.kind for o in operands if o.kind != "per_row")
        if (
            found != sorted(LAYER_KINDS)
            or any(o.grad for o in operands)
            or any(o.dtype == "T" for o in operands if o.kind == "per_row")
        ):
            fix = (
                'give it a "left", a "right", a "row" and the "per_row" operands of the op over '
                "rows, all with grad = false"
            )
            raise f.error("operands", f"are {describe(operands)}", fix)

    def of_rows(self, op):
        """The op over rows whose logits are a tensor."""
        rows = [Operand(ROW, "elem", grad=False), *(o for o in op.operands if o.kind == "per_row")]
        return replace(op, family="rows", operands=rows, own={}, made_of=())

    def graph(self, op):
        return row_graph(self.of_rows(op), (COLUMN, COUNT), False)

    def reference(self, op, act):
        """The oracle of the op over rows; the layers around it are entries of their own."""
        return ROWS.reference(self.of_rows(op), act)

    def check(self, op, graph, env, outputs):
        """Checks that operands, scalars and expressions equal those of the op over rows."""
        _, rows = op.made_of
        elem = (
            next((o.name for o in rows.operands if o.kind == "elem"), None)
            if rows.family == "rows"
            else None
        )
        own = {elem: ROW, gradient_of(elem): gradient_of(ROW)} if elem else {}
        mine, other = (
            [(own.get(o.name, o.name), o.kind, o.dtype, o.absent) for o in of.operands]
            for of in (self.of_rows(op), rows)
        )
        same = bool(own) and mine == other and op.scalars == rows.scalars and not op.has_act
        both = Graph(graph.levels)  # equal expressions are one node in it
        if not same or _nodes(both, op, (graph, env, outputs), {}) != _nodes(
            both, rows, ROWS.graph(rows), own
        ):
            raise wrong(
                op,
                "rows",
                f"is {rows.pattern!r}, whose operands, scalars or expressions differ",
                f"copy those of that op, with `{ROW}` for its tensor",
            )

    def statements(self, k, act, library, by=False):
        lib, (x, w, b) = LIBRARIES[library], (k.of[kind].name for kind in LAYER_KINDS)
        inner = ROWS.forward(self.of_rows(k.op), k.types)
        lines = [f"{ROW} = {x} @ {w}.swapaxes(-1, -2) + {b}", *ROWS.statements(inner, act, library)]
        if not k.with_grads:
            return lines
        d = gradient_of(ROW)
        found = {
            gradient_of(x): f"{d} @ {w}",
            gradient_of(w): f"{d}.swapaxes(-1, -2) @ {x}",
            gradient_of(b): f"{lib.reductions['sum']}({d}, 0)",
        }
        return lines + [
            f"{name} = {text} + beta * {name} if beta else {text}"
            if name != gradient_of(x)
            else f"{name} = {text}"
            for name, text in found.items()
        ]


FAMILY = LinearCrossEntropy()
