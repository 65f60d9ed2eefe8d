# SPDX-License-Identifier: Apache-2.0
"""Example of a family whose functions have a shape struct: 1-D convolutions with stride, padding,
dilation and groups, of sequences of one length or of packed sequences of different lengths.

The entry's expression says what is summed: products of x and weight over taps and channels of a
group, plus bias. Its derivatives are the summands of the gradients.
"""

import functools

from kfgen.families.conv1d import text
from kfgen.families.conv1d.c import Conv1dC
from kfgen.families.conv1d.cuda import Conv1dCuda
from kfgen.families.family import Family, describe, wrong
from kfgen.language.gradient import gradient
from kfgen.model import contract, derive, shapes
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.kinds import ELEM, NONE, Kind
from kfgen.model.names import gradient_of
from kfgen.model.shape_structs import ShapeStruct, option, size

# Elements of a result.
LENGTH = "(length + pad_left + pad_right - dilation * (kernel - 1) - 1) / stride + 1"
FILTERS = {"filter": "filters, kernel, channels / groups", "bias": "filters"}
SHAPE = ShapeStruct(
    "conv1d",
    (
        size("batch", "sequences"),
        size("length", "elements of a sequence; packed: of all sequences"),
        size("channels", "channels of x"),
        size("filters", "channels of the result"),
        size("kernel", "taps"),
        option("stride", "distance of results", default=1),
        option("pad_left", "zeros in front of a sequence", default=0),
        option("pad_right", "zeros behind a sequence; packed: implied", default=0),
        option("dilation", "distance of taps", default=1),
        option("groups", "groups of channels", default=1, divides=("channels", "filters")),
    ),
)
# Operands over which the sum of an element of each result runs.
SUMS = {
    "elem": "taps and channels",
    "image": "taps and filters",
    "filter": "results",
    "bias": "results",
}


class Conv1dKernel(Kernel):
    order_note = ", one product after the other"

    @functools.cached_property
    def cuda(self):
        return Conv1dCuda(self)

    @functools.cached_property
    def c(self):
        return Conv1dC(self)

    @property
    def form(self):
        return "batched" if self.offsets is None else "packed"

    def _build(self):
        self.graph, env, outs = self.family.graph(self.op)
        [(result, value)] = outs.items()
        self.operands = [self.tensor_of(o, _use(o), absent=o.absent) for o in self.op.operands]
        self.image, self.filter, self.bias, self.offsets = (
            next((s for s in self.operands if s.kind == kind), None)
            for kind in ("image", "filter", "bias", "offsets")
        )
        self.dout = None
        if self.bwd:
            self._build_gradients(result, value, env)
        else:
            self.roots, self.inputs = [value], self.operands
            self.outputs = [
                Tensor(result, "elem", self.dtype, "out", "output", "T", (result,), exprs=[value])
            ]
        read = self.graph.variables(self.roots)
        for s in self.inputs:
            s.reads = "always" if s.name in read or s is self.offsets else "never"
        self.streams, self.keeps, self.scalars = self.inputs + self.outputs, False, []
        self.integers = self.options

    def _build_gradients(self, result, value, env):
        dout = gradient_of(result)
        self.dout = Tensor(dout, "elem", self.dtype, "in", "gradient", "T", (dout,), of=result)
        self.inputs = [*self.operands, self.dout]
        wanted = [s for s in self.operands if s is not self.offsets]
        terms = gradient(self.graph, {value: self.graph.var(dout)}, [env[s.name] for s in wanted])
        self.roots, self.outputs = list(terms.values()), []
        for s, root in zip(wanted, self.roots):
            name = gradient_of(s.name)
            self.outputs.append(
                Tensor(
                    name,
                    s.kind,
                    self.dtype,
                    "out",
                    "gradient",
                    "T",
                    (name,),
                    of=s.name,
                    exprs=[root],
                    required=False,
                )
            )

    @property
    def shaped_by(self):
        offsets = [self.offsets.name] if self.offsets else []
        return [self.image.name, *offsets, self.filter.name]

    @property
    def work(self):
        return shapes.product(["2", *self.extents, "kernel", "channels / groups"])

    def formulas(self, by):
        lines, texts = contract.write(self.graph, self.roots)
        return [
            *lines,
            *(f"{s.name} = sum over {SUMS[s.kind]} of {t}" for s, t in zip(self.outputs, texts)),
        ]


def _use(operand):
    return "input" if operand.kind in ("image", "offsets") else "weight"


class Conv1d(Family):
    kernel = Conv1dKernel
    name = "conv1d"
    title = "1-D convolutions"
    shape = SHAPE
    forms = {
        "batched": {
            "elem": f"batch, {LENGTH}, filters",
            "image": "batch, length, channels",
            **FILTERS,
        },
        "packed": {
            "elem": "length, filters",
            "image": "length, channels",
            "offsets": "batch + 1",
            **FILTERS,
        },
    }
    sizes = dict.fromkeys(forms, "batch, length, channels, filters, kernel")
    axes = dict.fromkeys(forms, (None, dict.fromkeys(SHAPE.sizes, shapes.ONE)))
    kinds = (
        Kind("image", whole=True),
        Kind("filter"),
        Kind("bias"),
        Kind("offsets", vectors=False, index=True),
        ELEM.but(overlap=NONE, operand=False),  # the result, which a window of x determines
    )
    names = ("shape",)

    def absent(self, kind):
        return kind == "bias"

    def dtypes(self, kind, grad):
        return ("I",) if kind == "offsets" else ()

    def check_operands(self, f, operands):
        kinds = [o.kind for o in operands]
        if sorted({*kinds} - {"offsets"}) != ["bias", "filter", "image"] or len(kinds) > 4:
            fix = 'give it x = "image", weight = "filter", bias = { kind = "bias", absent = 0 }'
            raise f.error("operands", f"are {describe(operands)}", fix)

    def graph(self, op):
        return derive.element_graph(op)

    def check(self, op, graph, env, outputs):
        if list(outputs) != ["out"] or op.has_act or op.dropout or op.scalars:
            raise wrong(op, "expr", "is more than a sum of products", "write the rest as an op")

    def reference(self, op, act):
        from kfgen.families.conv1d.reference import Conv1dReference

        return Conv1dReference(self, op, act)

    def statements(self, k, act, library, by=False):
        return text.statements(k, library)


FAMILY = Conv1d()
