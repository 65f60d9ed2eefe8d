# SPDX-License-Identifier: Apache-2.0
"""The family `pairs`: two elements of a head at a time, with what tables have for them at the row's position: rotary embeddings."""

import functools

from kfgen import derive
from kfgen.expr import gradient
from kfgen.families.family import Family, wrong
from kfgen.families.pairs_c import PairsC
from kfgen.families.pairs_cuda import PairsCuda
from kfgen.formulas import LIBRARIES, elementwise
from kfgen.kernel import Kernel, Tensor

PAIRED = ("halves", "neighbours")


class PairsKernel(Kernel):
    form = "paired"

    @functools.cached_property
    def cuda(self):
        return PairsCuda(self)

    @functools.cached_property
    def c(self):
        return PairsC(self)

    def _build(self):
        op = self.op
        self.graph, env, outs = self.family.graph(op)
        dtype_of = {"T": self.dtype, "I": self.index_dtype, "acc": self.dtype.acc}
        self.operands = [Tensor(o.name, o.kind, dtype_of[o.dtype], "in", "weight" if o.kind == "angle" else "input", o.dtype, o.values)
                         for o in op.operands]
        x = next(s for s in self.operands if s.kind in PAIRED)
        self.number = next(s for s in self.operands if s.kind == "number")
        self.angles = [s for s in self.operands if s.kind == "angle"]
        self.neighbours = x.kind == "neighbours"
        if not self.bwd:
            self.inputs, self.source = self.operands, x
            self.outputs = [Tensor("out", x.kind, self.dtype, "out", "output", "T", tuple(outs), exprs=list(outs.values()))]
        else:
            douts = {name: self.graph.var(f"d{name}") for name in outs}
            found = gradient(self.graph, {outs[n]: douts[n] for n in outs}, [env[v] for v in x.parts])
            slopes = [self.graph.const(0) if found[env[v]] is None else found[env[v]] for v in x.parts]
            self.source = Tensor("dout", x.kind, self.dtype, "in", "gradient", "T", tuple(f"d{name}" for name in outs), of="out")
            self.inputs = [*self.operands, self.source]
            self.outputs = [Tensor(f"d{x.name}", x.kind, self.dtype, "out", "gradient", "T", tuple(f"d{v}" for v in x.parts), of=x.name,
                                   exprs=slopes, required=False)]
        self.roots = [e for s in self.outputs for e in s.exprs]
        read = self.graph.variables(self.roots) | {self.number.name, *self.source.parts}
        for s in self.inputs:
            s.reads = "always" if read & {s.name, *s.parts} else "never"
        self.streams = self.inputs + self.outputs
        self.scalars, self.keeps = list(op.scalars), False

    @property
    def paired(self):
        """The tensors of pairs that are read: what the results' other elements are copied from comes first."""
        return [self.source, *(s for s in self.inputs if s.kind in PAIRED and s.reads != "never" and s is not self.source)]

    @property
    def read_angles(self):
        return [s for s in self.angles if s.reads != "never"]

    def below(self, stream):
        return "positions" if stream is self.number else None

    def touched(self, stream):
        """Of a table the row of each position."""
        return ["rows", "pairs"] if stream.kind == "angle" else self.shape(stream)

    def per_element(self, stream):
        return 1 if stream.kind in PAIRED else 0

    @property
    def element_codes(self):
        """How many elements each tensor has, as core/pairs.cuh and pairs.h read it."""
        return "".join({"angle": "a", "number": "n"}.get(s.kind, "e") for s in self.inputs + self.outputs)


class Pairs(Family):
    kernel = PairsKernel
    name = "pairs"
    title = "Pairs of elements, by positions"
    forms = {"paired": {"elem": "rows, heads, dim", "halves": "rows, heads, dim", "neighbours": "rows, heads, dim", "angle": "positions, pairs",
                        "number": "rows"}}
    sizes = {"paired": "rows, heads, dim, pairs, positions"}
    kinds = (*PAIRED, "angle", "number")
    whole = PAIRED
    parts = dict.fromkeys(PAIRED, 2)
    indices = ("number",)
    codes = {"halves": 0, "neighbours": 0, "angle": 2, "number": 4}
    names = ("across", "apart", "base", "count", "dim", "end", "inside", "lane", "line", "lines", "pairs", "positions", "rest", "stop", "to", "unit")

    def dtypes(self, kind, grad):
        return {"number": ("I",), "angle": ("acc",)}.get(kind, ())

    def check_operands(self, f, operands):
        of = [[o for o in operands if o.kind in kinds] for kinds in (PAIRED, ("number",), ("angle",))]
        fixed = all(not o.grad for o in of[1] + of[2]) and all(o.dtype == "I" for o in of[1]) and all(o.dtype == "acc" for o in of[2])
        if [len(found) for found in of[:2]] != [1, 1] or len(of[2]) > 8 or not fixed:
            fix = ('give it x = { kind = "halves", parts = ["a", "b"] }, or "neighbours", position = { kind = "number", dtype = "I", grad = false }, '
                   'and tables, "angle", with dtype = "acc" and grad = false')
            raise f.error("operands", "are not one of pairs and one of positions, beside tables", fix)

    def graph(self, op):
        return derive.element_graph(op)

    def check(self, op, graph, env, outputs):
        if len(outputs) != 2 or op.dropout or op.has_act or op.types != "one":
            raise wrong(op, "outputs", "are not two of one dtype, without {act} and dropout", 'write outputs = { real = "...", imag = "..." }')

    def statements(self, k, act, library, by=False):
        lib = LIBRARIES[library]
        number, result = k.number.name, k.outputs[0]
        lines = [f"there = (({number} >= 0) & ({number} < positions)).reshape(rows, 1, 1)",
                 f"place = {lib.bounded.format(number, 0, 'max(positions, 1) - 1')}"]
        lines += [f"{s.name} = {s.name}[place].reshape(rows, 1, pairs)" for s in k.read_angles]
        first, second = ("0:2 * pairs:2", "1:2 * pairs:2") if k.neighbours else (":pairs", "pairs:2 * pairs")
        lines += [f"{', '.join(s.parts)} = {s.name}[:, :, {first}], {s.name}[:, :, {second}]" for s in k.paired]
        own, texts = elementwise(k, act, library)
        lines += own
        outside = "0.0" if k.bwd else "float('nan')"
        lines += [f"{part}_to = {lib.name}.where(there, {text}, {outside})" for part, text in zip(result.parts, texts)]
        both = [f"{part}_to" for part in result.parts]
        if k.neighbours:
            columns = ", ".join(f"{name}.reshape(rows, heads, pairs, 1)" for name in both)
            both = [f"{lib.join}(({columns}), 3).reshape(rows, heads, 2 * pairs)"]
        return [*lines, f"{result.name} = {lib.join}(({', '.join(both)}, {k.source.name}[:, :, 2 * pairs:]), 2)"]
