# SPDX-License-Identifier: Apache-2.0
"""Base of the families over rows: expressions that reduce over a row, and their checks."""

from collections import Counter
from dataclasses import dataclass, replace

from kfgen.families.family import Family, wrong
from kfgen.language.emit import Printed
from kfgen.language.expr import ExprError, stages
from kfgen.language.passes import copy, picks, program, stored
from kfgen.language.primitives import COUNT, ELEM, KEEP, PER_COUNT, QUERIES, QUERY, ROW, UNIFORM
from kfgen.model import derive, limits
from kfgen.model.entries import SpecError, updated
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.names import gradient_of

# Kinds of values, one per row.
PER_ROW = ("per_row", "per_plane", "per_query", "per_group", "per_channel")
LAYOUT_OF = {"channel": "planes", "group": "groups"}  # layout that an operand's kind implies


@dataclass
class Pick:
    """A row's element in the column that an operand gives (pick)."""

    source: Tensor
    column: Tensor

    def copied(self, renaming):
        return Pick(renaming.copy(self.source), renaming.copy(self.column))

    @property
    def name(self):
        return f"{self.source.name}_at_{self.column.name}"


class OverRowsKernel(Kernel):
    name_fields = (*Kernel.name_fields, "along")

    def _build(self):
        op = self.op
        graph, env, outs = self.family.graph(op)
        self.layout = self._layout(graph, env, outs)
        self.per_row = next(kind for kind in self.family.forms[self.form] if kind in PER_ROW)
        self.operands = [self._operand(o) for o in op.operands]
        self.strided = self._strided_names(graph, outs)
        saved = {name: env[name] for name in op.saved}
        if self.bwd:
            self.outputs = self._gradients(graph, derive.gradients(op, graph, env, outs))
            replaced = {node: name for name, node in saved.items()} | stored(graph)
        else:
            self.outputs = self._results(graph, env, outs, saved)
            replaced = {}
        # Operands that are column indices.
        self.columns = {
            graph.nodes[node.args[1]].value for node in graph.nodes if node.op == "pick"
        }
        self.graph, self.roots = copy(graph, [s.exprs[0] for s in self.outputs], replaced)
        for s, root in zip(self.outputs, self.roots):
            s.exprs = [root]
        read = self.graph.variables(self.roots)
        self.inputs = self.operands
        if self.bwd:
            self.inputs = self.operands + self._backward_inputs(graph, outs, saved, read)
        self._set_reads(read)
        self.streams = self.inputs + self.outputs
        self.scalars = [s for s in op.scalars if s not in op.integers]
        self.integers = list(op.integers)
        self.keeps = KEEP in read
        self._set_picks()

    def _layout(self, graph, env, outs):
        """The layout that the entry or an operand's kind names, else "heads" or "rows"."""
        op = self.op
        asked = [LAYOUT_OF[o.kind] for o in op.operands if o.kind in LAYOUT_OF]
        if op.layout or asked:
            return op.layout or asked[0]
        return "heads" if derive.has_queries(op, graph, env, outs) else "rows"

    def _operand(self, o):
        """The tensor of an operand."""
        return self.tensor_of(
            o,
            "weight" if self.is_weight(o) else "input",
            kind=self.per_row if o.kind == "per_row" else o.kind,
            absent=o.absent,
        )

    def _strided_names(self, graph, outs):
        """Names of the tensors of elements, which have strides: the forward's, then gradients."""
        operands = [o for o in self.op.operands if o.kind == "elem"]
        results = [n for n, node in outs.items() if graph.level(node) == ELEM]
        found = [*(o.name for o in operands), *results]
        if any(o.grad for o in self.op.operands):
            found += [
                *map(gradient_of, results),
                *(gradient_of(o.name) for o in operands if o.grad),
            ]
        return found

    def _result(self, graph, name, node, kind="", use="output", **more):
        """The tensor of a value: one element per element or one per row, by the value's level."""
        kind = kind or ("elem" if graph.level(node) == ELEM else self.per_row)
        dtype, var = (self.dtype, "T") if kind == "elem" else (self.dtype.acc, "acc")
        return Tensor(name, kind, dtype, "out", use, var, (name,), exprs=[node], **more)

    def _results(self, graph, env, outs, saved):
        """The outputs of the forward: results, updated operands, values saved for the backward."""
        return [
            *(self._result(graph, n, node) for n, node in outs.items()),
            *(
                self._result(
                    graph, updated(n), env[updated(n)], self.per_row, required=False, place_of=n
                )
                for n in self.op.updates
            ),
            *(
                self._result(graph, n, node, self.per_row, "saved", required=False)
                for n, node in saved.items()
            ),
        ]

    def _gradients(self, graph, grads):
        """The outputs of the backward. grads: {operand: node or None}."""
        found = []
        for o, stream in zip(self.op.operands, self.operands):
            if not o.grad:
                continue
            node = grads[o.name] if grads[o.name] is not None else graph.const(0)
            like = ([node], stream.kind, o.dtype)
            equal = (s.name for s in found if (s.exprs, s.kind, s.var) == like)
            name, role = gradient_of(o.name), "sum" if self.family.kind(o.kind).weight else "out"
            found.append(
                Tensor(
                    name,
                    stream.kind,
                    stream.dtype,
                    role,
                    "gradient",
                    o.dtype,
                    (name,),
                    of=o.name,
                    same_as=next(equal, ""),
                    exprs=[node],
                    required=False,
                )
            )
        return found

    def _backward_inputs(self, graph, outs, saved, read):
        """Inputs of a backward beside the operands: results, saved values, incoming gradients."""
        # Gradients of some activations read its result, which is therefore always an input.
        activated = derive.activated(self.op, graph, outs)
        results = [
            replace(self._result(graph, n, node), role="in", exprs=[])
            for n, node in outs.items()
            if n in read or n == activated
        ]
        values = [
            Tensor(n, self.per_row, self.dtype.acc, "in", "saved", "acc", (n,)) for n in saved
        ]
        gradients = [
            replace(
                self._result(graph, gradient_of(n), node, use="gradient", of=n), role="in", exprs=[]
            )
            for n, node in outs.items()
        ]
        return results + values + gradients

    def _set_reads(self, read):
        """Sets which inputs are read always, which by the activation's gradient alone."""
        linear, roots = copy(self.graph, self.roots, {}, act=(lambda g, x: x, lambda g, x, dy: dy))
        anyway = linear.variables(roots) if self.bwd else read
        for s in self.inputs:
            s.reads = "always" if s.name in anyway else "act" if s.name in read else "never"

    def _set_picks(self):
        """Sets the picked elements, and the variables that are read along the row beside them."""
        nodes, named = self.graph.nodes, {s.name: s for s in self.inputs}
        picked = picks(self.graph, self.roots)
        self.picks = [Pick(*(named[nodes[a].value] for a in nodes[i].args)) for i in picked]
        graph, roots = copy(self.graph, self.roots, picked)
        self.along = {graph.nodes[i].value for i in graph.reachable(roots)}

    def is_weight(self, operand):
        """True if all rows share the operand, or, with layout "channels", all batches: it is then
        one value per row.
        """
        return self.family.kind(operand.kind).weight or (
            operand.kind == "per_row" and operand.grad and self.layout == "channels"
        )

    def _sort(self):
        self.loads = [
            s for s in self.inputs if s.kind in ("elem", "shared") and s.name in self.along
        ]
        self.shared = [s for s in self.loads if s.kind == "shared"]
        self.row_loads = [s for s in self.inputs if s.kind == "row" and s.name in self.along]
        self.group_loads = [s for s in self.inputs if s.kind == "group" and s.name in self.along]
        self.segments = self.layout in ("groups", "channels")
        self.gathered_inputs = [
            s
            for s in self.inputs
            if s.kind in ("elem", "row") and s.reads != "never" and s.name not in self.along
        ]
        self.values = [
            s for s in self.inputs if s.kind in (*PER_ROW, "channel") and s.reads != "never"
        ]
        # Gradients of a value per channel, summed over the batches: one partial sum per plane, then
        # the second stage.
        self.plane_sums = [s for s in self.sums if s.kind == "channel"]
        # Gradients of values per channel, summed within a row: one partial sum per channel and
        # slice, then the second stage.
        self.group_sums = [s for s in self.sums if s.kind == "group"]
        self.sums = [s for s in self.sums if s.kind == "row"]
        self.stores = [s for s in self.outputs if s.kind == "elem"]
        self.results_of_rows = [s for s in self.outputs if s.kind in PER_ROW]
        self.reductions = stages(self.graph, self.roots)
        # Nothing is read along a row: one thread per row.
        self.gathers = not self.reductions and not self.loads + self.row_loads + self.stores
        self._refuse()
        for count in Counter(self.reductions.values()).values():
            if count > limits.REDUCTIONS:
                direction = "backward" if self.bwd else "forward"
                problem = f"makes {count} reductions in one pass over the row of the {direction}"
                fix = f"at most {limits.REDUCTIONS} are possible: make two ops of it"
                raise SpecError(self.op.file, f"op.{self.op.pattern}", "expr", problem, fix)

    def _refuse(self):
        """Raises an error if no schedule supports the op."""

    @property
    def form(self):
        return self.layout

    @property
    def layout_code(self):
        """The layout's name in core/check.h."""
        return f"KFI_LAYOUT_{self.layout.upper()}"

    @property
    def added(self):
        return self.sums + self.plane_sums + self.group_sums

    @property
    def sources(self):
        """Inputs that have a value per element of a row."""
        return self.loads + self.row_loads + self.group_loads

    def of_pass(self, streams, names):
        return [s for s in streams if s.name in names]

    @property
    def counts(self):
        """Sizes of a call that the expressions read as numbers: [(name, text before the size,
        size)].
        """
        read = self.graph.numbers(self.roots)
        return [
            (name, form, of)
            for name, form, of in (
                (COUNT, "", "cols"),
                (PER_COUNT, "1 / ", "cols"),
                (QUERIES, "", "queries"),
            )
            if name in read
        ]

    @property
    def reads_query(self):
        return QUERY in self.graph.variables(self.roots)

    def index(self, stream):
        return self.streams.index(stream)

    @property
    def pitched(self):
        """Tensors with strides that a kernel reads or writes; it takes a kfi_pitch of each."""
        return [s for s in self.loads + self.gathered_inputs + self.stores if s.kind == "elem"]

    def value_type(self, s):
        """C type of a value per row: int64_t for whole numbers."""
        return "kf_i64" if s.var == "I" else self.compute

    def value_env(self, spelled):
        """{value per row: its text as a number}. spelled: the stored form, with {} for its name."""
        return {
            s.name: Printed(f"(({self.compute}){text})", [text]) if s.var == "I" else text
            for s, text in ((s, spelled.format(s.name)) for s in self.values)
        }

    @property
    def compute(self):
        return self.dtype.compute_ctype

    def program(self, graph, roots, target, env, *more, **options):
        """The program, with the sums over a channel's elements of a row as a program of its own."""
        groups = {s.name: roots.pop(s.name) for s in self.group_sums}
        found = program(graph, roots, target, env, *more, **options)
        found.groups = (
            program(graph, groups, target, env, split=options.get("split")) if groups else None
        )
        return found


class OverRows(Family):
    in_rows = {}  # {own kind: kind of an op over rows} for the inputs of the reference
    reads = ()  # size names that expressions may read
    dropout = True

    def graph(self, op):
        return derive.row_graph(op, self.reads, self.dropout)

    def reference(self, op, act):
        from kfgen.families.rows.reference import RowsReference

        return RowsReference(self, op, act)

    def check(self, op, graph, env, outputs):
        columns = {graph.nodes[node.args[1]].value for node in graph.nodes if node.op == "pick"}
        self.check_rows(op, bool(columns))
        for name in sorted(columns & {o.name for o in op.operands if o.dtype != "I"}):
            fix = f'give `{name}` dtype = "I", grad = false'
            raise wrong(
                op,
                "operands",
                f"`{name}` is a column index of pick(), which must be an integer",
                fix,
            )
        for name in op.values_of_rows:
            if graph.level(env[name]) != ROW:
                problem = (
                    "differs within a row" if graph.level(env[name]) == ELEM else "reads no tensor"
                )
                fix = "save values that are constant within a row, such as sums"
                raise wrong(
                    op, "saved" if name in op.saved else "updates", f"`{name}` {problem}", fix
                )
        for name, node in outputs.items():
            if graph.level(node) == UNIFORM:
                raise wrong(
                    op, "expr", f"`{name}` reads no tensor", "write an expression of the operands"
                )
            self.check_result(op, name, graph.level(node))
        roots = [*outputs.values(), *(env[n] for n in op.values_of_rows)]
        if not stages(graph, roots) and not graph.uses("pick", roots):
            raise wrong(
                op,
                "expr",
                "does not reduce a row and does not call pick()",
                f'leave out family = "{op.family}"',
            )

    def check_rows(self, op, picks):
        """Raises an error if rows in segments are read in an unsupported way."""

    def check_result(self, op, name, level):
        """Raises an error if a result has an unsupported shape."""

    def check_gradients(self, op):
        """Checks that each gradient exists, and that a given one has the shape of its operand."""
        derive.gradients(replace(op, grads={}), *self.graph(op))
        try:
            graph, env, outputs = self.graph(op)
            found = derive.gradients(op, graph, env, outputs)
        except ExprError as e:
            e.field = getattr(e, "field", "grads")
            raise
        for name, node in found.items():
            level = UNIFORM if node is None else graph.level(node)
            if level == UNIFORM and name in op.grads:
                raise wrong(
                    op,
                    "grads",
                    f"that of `{name}` reads no tensor",
                    "write an expression of the operands, the results and their gradients",
                )
            if level == UNIFORM:
                raise wrong(
                    op, "operands", f"the gradient for `{name}` is zero", "add grad = false to it"
                )
            if level == ELEM and graph.level(env[name]) == ROW:
                raise wrong(
                    op,
                    "grads",
                    f"that of `{name}` differs within a row, but `{name}` does not",
                    "sum over the row's elements: sum(...)",
                )
