# SPDX-License-Identifier: Apache-2.0
"""Checks of an entry after its fields are read: names and expressions."""

from kfgen import families
from kfgen.language.expr import ExprError, Graph, parse
from kfgen.language.primitives import BOOLEAN
from kfgen.model.entries import SpecError

INT_PRIMITIVES = BOOLEAN | {
    "const",
    "var",
    "add",
    "sub",
    "mul",
    "neg",
    "max",
    "min",
    "where",
    "act",
}


def check_scalars(op, act):
    """Checks that the activation's scalars, which become arguments, differ from the op's names."""
    taken = {
        *op.scalars,
        *op.outputs,
        *op.values_of_rows,
        *(n for o in op.operands for n in (o.name, *o.values)),
    }
    taken |= {f"d{n}" for n in taken}
    for name in act.scalars:
        if name in taken and op.has_act:
            fix = "choose a longer name"
            if act.builtin or not op.builtin:
                fix += f', or add "{act.name}" to the op\'s `without`'
            if op.builtin:
                raise SpecError(
                    act.file,
                    f"activation.{act.name}",
                    "scalars",
                    f"`{name}` is an argument of [op.{op.pattern}] too",
                    fix,
                )
            raise SpecError(
                op.file,
                f"op.{op.pattern}",
                "operands",
                f"`{name}` is a scalar of [activation.{act.name}] too",
                fix,
            )


def check_expressions(op):
    family = families.of(op)
    try:
        graph, env, outputs = family.graph(op)
        family.check(op, graph, env, outputs)
        roots = [*outputs.values(), *(env[n] for n in (*op.values_of_rows, *family.loaded(op)))]
        used = graph.variables(roots)
        for o in op.operands:
            if not used & set(o.values) and o.kind not in family.indices:
                raise SpecError(
                    op.file,
                    f"op.{op.pattern}",
                    "operands",
                    f"`{o.name}` is not read by the expression",
                    "remove it",
                )
        if any(o.grad for o in op.operands):
            family.check_gradients(op)
    except ExprError as e:
        raise SpecError(
            op.file,
            f"op.{op.pattern}",
            getattr(e, "field", "expr"),
            str(e),
            "see the expression language in docs/expressions.md",
        ) from None
    if op.has_act and not graph.uses("act", roots):
        raise SpecError(
            op.file,
            f"op.{op.pattern}",
            "expr",
            "does not call act(...), but the name has {act}",
            "call act(...) once",
        )
    if op.ints:
        if (
            op.scalars
            or op.dropout
            or any(o.kind != "elem" for o in op.operands)
            or "ints" not in family.fields
        ):
            raise SpecError(
                op.file,
                f"op.{op.pattern}",
                "ints",
                "needs an op of elem operands only, without scalars, dropout and rows",
                "drop ints",
            )
        _check_ints(graph, outputs.values(), op.file, f"op.{op.pattern}")


def _check_ints(graph, roots, file, entry):
    for i in graph.reachable(roots):
        node = graph.nodes[i]
        if node.op == "const" and not isinstance(node.value, int):
            raise SpecError(
                file,
                entry,
                "ints",
                f"the constant {node.value} is not an integer",
                "drop ints, or write integers",
            )
        if node.op not in INT_PRIMITIVES:
            raise SpecError(
                file,
                entry,
                "ints",
                f"`{node.op}` has no integer form",
                "drop ints, or use + - * max min where and comparisons",
            )


def check_activation_expressions(act):
    for name, text in (("expr", act.expr), ("dexpr", act.dexpr), ("dexpr_out", act.dexpr_out)):
        if text is None:
            continue
        graph = Graph()
        env = {n: graph.var(n) for n in ("y" if name == "dexpr_out" else "x", *act.scalars)}
        if name != "expr":
            env["dy"] = graph.var("dy")
        try:
            root = parse(graph, text, env)
            if name == "expr" and act.ints:
                _check_ints(graph, [root], act.file, f"activation.{act.name}")
            if name == "expr" and act.dexpr is None:
                act.build_bwd(graph, env["x"], graph.var("dy"), {s: env[s] for s in act.scalars})
        except ExprError as e:
            raise SpecError(
                act.file,
                f"activation.{act.name}",
                name,
                str(e),
                "see the expression language in docs/expressions.md",
            ) from None


def check_by_result(f, act):
    """Checks the fields of the gradient from the result."""
    f.oracle("dref_out", act.dref_out or "0")
    if (act.dexpr_out is None) != (act.dref_out is None):
        there, missing = (
            ("dexpr_out", "dref_out") if act.dref_out is None else ("dref_out", "dexpr_out")
        )
        raise f.error(
            missing, f"is missing beside {there}", "give both dexpr_out and dref_out, or neither"
        )
    if act.rising and (act.dexpr_out is None or not set(act.rising) <= set(act.scalars)):
        raise f.error(
            "rising",
            f"is {list(act.rising)!r}",
            "list scalars that dexpr_out requires to be at least 0",
        )


def check_layout(f, op):
    if op.layout in families.of(op).layouts:
        return
    if op.layout != "channels":
        raise f.error(
            "layout",
            f"is {op.layout!r}",
            'write "channels", or leave it out: operands say the rest by their kinds',
        )
    odd = next((o for o in op.operands if o.kind not in ("elem", "per_row")), None)
    if "layout" not in families.of(op).fields or odd:
        problem = (
            f'is "channels" of an op with `{odd.name}`, a {odd.kind!r}'
            if odd
            else f"is {op.layout!r} of an op of family {op.family!r}"
        )
        raise f.error(
            "layout",
            problem,
            'use it with family = "rows" and operands "elem" and "per_row" (one value per channel)',
        )
