# SPDX-License-Identifier: Apache-2.0
"""The family `embedding`. The table's gradient sums rows sorted by token."""

import functools

from kfgen.families.embedding.c import EmbeddingC
from kfgen.families.embedding.cuda import EmbeddingCuda
from kfgen.families.family import Family, describe, wrong
from kfgen.language.formulas import LIBRARIES, elementwise
from kfgen.language.gradient import gradient
from kfgen.model import derive
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.kinds import ELEM, Kind
from kfgen.model.names import gradient_of
from kfgen.model.shapes import ONE, REST

SKIPPED = "padding_idx"  # the token whose row has no gradient


class EmbeddingKernel(Kernel):
    form = "lookup"
    accumulates = property(lambda self: self.bwd)
    summed_over = "the rows that have its number"

    @functools.cached_property
    def cuda(self):
        return EmbeddingCuda(self)

    @functools.cached_property
    def c(self):
        return EmbeddingC(self)

    def _build(self):
        op, family = self.op, self.family
        self.graph, env, outs = family.graph(op)
        self.operands = [
            self.tensor_of(o, "weight" if o.kind == "table" else "input") for o in op.operands
        ]
        [(result, value)] = outs.items()
        self.table, self.number = (
            next(s for s in self.operands if s.kind == kind) for kind in ("table", "number")
        )
        if not self.bwd:
            self.inputs = self.operands
            self.outputs = [
                Tensor(result, "elem", self.dtype, "out", "output", "T", (result,), exprs=[value])
            ]
        else:
            dout = gradient_of(result)
            [grad] = gradient(
                self.graph, {value: self.graph.var(dout)}, [env[self.table.name]]
            ).values()
            grad = self.graph.const(0) if grad is None else grad
            self.inputs = [
                *self.operands,
                Tensor(dout, "elem", self.dtype, "in", "gradient", "T", (dout,), of=result),
            ]
            name = gradient_of(self.table.name)
            self.outputs = [
                Tensor(
                    name,
                    "table",
                    self.dtype,
                    "sum",
                    "gradient",
                    "T",
                    (name,),
                    of=self.table.name,
                    exprs=[grad],
                    required=False,
                )
            ]
        self.roots = [e for s in self.outputs for e in s.exprs]
        read = self.graph.variables(self.roots) | {self.number.name}
        for s in self.inputs:
            s.reads = "always" if s.name in read else "never"
        self.streams = self.inputs + self.outputs
        self.integers, self.keeps = list(op.integers), False
        self.scalars = [s for s in op.scalars if s not in op.integers]

    @property
    def shaped_by(self):
        return [self.number.name, self.table.name]

    @property
    def added(self):
        return []  # the family's own kernel sums

    @property
    def scratch(self):
        return self.bwd

    @property
    def workspace_note(self):
        return "; for the sorted numbers"

    @property
    def unread_scalars(self):
        return [s for s in super().unread_scalars if s != SKIPPED or not self.bwd]

    def below(self, stream):
        return "vocab" if stream.name == self.number.name else None

    def touched(self, stream):
        return self.extents if stream.kind == "table" and not self.bwd else self.shape(stream)

    def per_element(self, stream):
        return 0 if stream.kind == "number" else 1

    element_note = "elements: t vocab x cols, n rows, e rows x cols"

    @property
    def element_codes(self):
        """Code of each tensor's number of elements, for core/embedding/embedding.h."""
        return "".join(
            {"table": "t", "number": "n", "elem": "e"}[s.kind] for s in self.inputs + self.outputs
        )


class Embedding(Family):
    kernel = EmbeddingKernel
    name = "embedding"
    title = "Rows of tables"
    forms = {"lookup": {"elem": "rows, cols", "table": "vocab, cols", "number": "rows"}}
    sizes = {"lookup": "rows, cols, vocab"}
    axes = {"lookup": (None, {"rows": REST, "cols": ONE, "vocab": ONE})}
    kinds = (Kind("table"), Kind("number", vectors=False, index=True), ELEM.but(operand=False))
    integers = True
    names = ("beta",)

    def dtypes(self, kind, grad):
        return ("I",) if kind == "number" else ()

    def check_operands(self, f, operands):
        kinds = sorted(o.kind for o in operands)
        number = next((o for o in operands if o.kind == "number"), None)
        if kinds != ["number", "table"] or number.dtype != "I" or number.grad:
            fix = (
                'give it one of each: operands = { weight = "table", '
                'index = { kind = "number", dtype = "I", grad = false } }'
            )
            raise f.error("operands", f"are {describe(operands)}", fix)

    def graph(self, op):
        return derive.element_graph(op)

    def check(self, op, graph, env, outputs):
        if set(outputs) != {"out"} or op.dropout or op.has_act:
            raise wrong(
                op,
                "expr",
                "is more than one result, without {act} and dropout",
                "write the rest as an op of its own",
            )
        if op.integers != (SKIPPED,):
            fix = (
                f'add {SKIPPED} = {{ kind = "int", value = 2, default = -1 }}, '
                "the token whose row has no gradient"
            )
            raise wrong(op, "scalars", f"have the integers {list(op.integers)}", fix)

    def statements(self, k, act, library, by=False):
        lib = LIBRARIES[library]
        number, table, result = k.number.name, k.table.name, k.outputs[0].name
        where = f"({number} >= 0) & ({number} < vocab)" + (
            f" & ({number} != {SKIPPED})" if k.bwd else ""
        )
        lines = [
            f"there_ = ({where}).reshape(rows, 1)",
            f"place_ = {lib.bounded.format(number, 0, 'max(vocab, 1) - 1')}",
        ]
        if k.table.reads != "never":
            lines.append(
                f"{table} = {lib.name}.where(there_, {table}[place_], float('nan'))"
                if not k.bwd
                else f"{table} = {table}[place_]"
            )
        own, [text] = elementwise(k, act, library)
        lines += own
        if not k.bwd:
            return [*lines, f"{result} = {text}"]
        lines.append(f"terms_ = {lib.name}.where(there_, {text}, 0.0)")
        if library == "numpy":
            lines += [
                "sums_ = np.zeros((vocab, cols), terms_.dtype)",
                "np.add.at(sums_, place_, terms_)",
            ]
        else:
            lines += [
                "sums_ = torch.zeros((vocab, cols), dtype=terms_.dtype, device=terms_.device)"
                ".index_add(0, place_, terms_)"
            ]
        return [*lines, f"{result} = sums_ + beta * {result} if beta else sums_"]


FAMILY = Embedding()
