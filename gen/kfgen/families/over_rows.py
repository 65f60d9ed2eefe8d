# SPDX-License-Identifier: Apache-2.0
"""What families over rows have in common: expressions that reduce over a row, and what may be said of them."""

from dataclasses import replace

from kfgen import derive
from kfgen.expr import ELEM, ROW, ROW_NAMES, UNIFORM, ExprError, stages
from kfgen.families.family import Family, wrong


class OverRows(Family):
    reads = ()  # what expressions may read of a call's sizes
    own_names = ()
    dropout = True

    @property
    def names(self):
        return (*ROW_NAMES, *self.own_names)

    def graph(self, op):
        return derive.row_graph(op, self.reads, self.dropout)

    def check(self, op, graph, env, outputs):
        if op.types == "pairs":
            raise wrong(op, "types", f"is {op.types!r}, but ops over rows have one dtype", "leave it out")
        columns = {graph.nodes[node.args[1]].value for node in graph.nodes if node.op == "pick"}
        self.check_rows(op, bool(columns))
        for name in sorted(columns & {o.name for o in op.operands if o.dtype != "i64"}):
            fix = f'give `{name}` dtype = "i64", grad = false'
            raise wrong(op, "operands", f"`{name}` is the number of a column, which pick() needs as a whole number", fix)
        for name in op.values_of_rows:
            if graph.level(env[name]) != ROW:
                problem = "differs within a row" if graph.level(env[name]) == ELEM else "reads no tensor"
                fix = "save what is the same for a row: sums and what is made of them"
                raise wrong(op, "saved" if name in op.saved else "updates", f"`{name}` {problem}", fix)
        for name, node in outputs.items():
            if graph.level(node) == UNIFORM:
                raise wrong(op, "expr", f"`{name}` reads no tensor", "write an expression of the operands")
            self.check_result(op, name, graph.level(node))
        roots = [*outputs.values(), *(env[n] for n in op.values_of_rows)]
        if not stages(graph, roots) and not graph.uses("pick", roots):
            raise wrong(op, "expr", "reduces nothing over a row and picks nothing from it", f'leave out family = "{op.family}"')

    def check_rows(self, op, picks):
        """Complains of rows that are in pieces, and are read in a way that wants them whole."""

    def check_result(self, op, name, level):
        """Complains of what a result differs over."""

    def check_gradients(self, op):
        """That a gradient there is, and that a closed one differs over what its operand differs over."""
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
                raise wrong(op, "grads", f"that of `{name}` reads no tensor", "write an expression of the operands, the results and their gradients")
            if level == UNIFORM:
                raise wrong(op, "operands", f"the gradient for `{name}` is zero", "add grad = false to it")
            if level == ELEM and graph.level(env[name]) == ROW:
                raise wrong(op, "grads", f"that of `{name}` differs within a row, `{name}` does not", "add up what its elements give: sum(...)")
