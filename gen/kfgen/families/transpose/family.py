# SPDX-License-Identifier: Apache-2.0
"""The family `transpose`: copies whose last two axes are exchanged. The gradient is the opposite
copy."""

import functools

from kfgen.families.family import Family, wrong
from kfgen.families.transpose.c import TransposeC
from kfgen.families.transpose.cuda import TransposeCuda
from kfgen.model import derive
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.kinds import ELEM, GIVEN, NONE, Kind
from kfgen.model.names import gradient_of
from kfgen.model.shapes import ONE, REST

SWAPPED = "swapped"  # kind of a tensor of the other layout


class TransposeKernel(Kernel):
    copies = True

    @property
    def form(self):
        return self.op.layout or "matrices"

    @functools.cached_property
    def cuda(self):
        return TransposeCuda(self)

    @functools.cached_property
    def c(self):
        return TransposeC(self)

    def _build(self):
        self.graph, env, outs = self.family.graph(self.op)
        [x] = self.op.operands
        [(out, root)] = outs.items()
        self.operands = [self.tensor_of(x)]
        if self.bwd:
            dout, dx = gradient_of(out), gradient_of(x.name)
            root = self.graph.var(dout)
            self.operands[0].reads = "never"
            self.inputs = [
                *self.operands,
                Tensor(dout, SWAPPED, self.dtype, "in", "gradient", "T", (dout,), of=out),
            ]
            self.outputs = [
                Tensor(
                    dx,
                    "elem",
                    self.dtype,
                    "out",
                    "gradient",
                    "T",
                    (dx,),
                    of=x.name,
                    exprs=[root],
                    required=False,
                )
            ]
        else:
            self.inputs = self.operands
            self.outputs = [
                Tensor(out, SWAPPED, self.dtype, "out", "output", "T", (out,), exprs=[root])
            ]
        self.roots = [root]
        self.streams, self.keeps, self.scalars = self.inputs + self.outputs, False, []

    @property
    def original(self):
        """The tensor that is copied."""
        return self.inputs[-1]

    def formulas(self, by=False):
        source, result = self.shape(self.original), self.outputs[0].name
        i, j, k = (name[0] for name in source)
        return [f"{result}[{i}, {k}, {j}] = {self.original.name}[{i}, {j}, {k}]"]

    @property
    def matrix(self):
        """Sizes of the matrices that are read: (batch, rows, columns)."""
        return self.shape(self.original)


class Transpose(Family):
    kernel = TransposeKernel
    name = "transpose"
    title = "Copies to another layout"
    forms = {
        "matrices": {"elem": "batch, rows, cols", SWAPPED: "batch, cols, rows"},
        "channels_last": {"elem": "batch, channels, pixels", SWAPPED: "batch, pixels, channels"},
        "channels_first": {"elem": "batch, pixels, channels", SWAPPED: "batch, channels, pixels"},
    }
    sizes = dict.fromkeys(("channels_last", "channels_first"), "batch, channels, pixels")
    axes = dict.fromkeys(
        ("channels_last", "channels_first"), (None, {"batch": ONE, "channels": ONE, "pixels": REST})
    )
    kinds = (ELEM.but(extent=GIVEN, overlap=NONE), Kind(SWAPPED, whole=True, operand=False))
    fields = ("layout", "ints")
    layouts = ("channels_last", "channels_first")
    autocast = "same"

    def check_operands(self, f, operands):
        if len(operands) != 1:
            raise f.error("operands", "are several", 'give it one: operands = { x = "elem" }')

    def graph(self, op):
        return derive.element_graph(op)

    def check(self, op, graph, env, outputs):
        [x] = op.operands
        if list(outputs.values()) != [env[x.name]] or list(outputs) != ["out"] or op.scalars:
            raise wrong(op, "expr", "computes something", f'write expr = "{x.name}", a copy')

    def statements(self, k, act, library, by=False):
        return [f"{k.outputs[0].name} = {k.original.name}.swapaxes(1, 2)"]

    def reference(self, op, act):
        from kfgen.families.transpose.reference import TransposeReference

        return TransposeReference(self, op, act)


FAMILY = Transpose()
