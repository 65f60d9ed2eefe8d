# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation of expressions, and copying between graphs."""

from kfgen.language.expr import ExprError, parse, total
from kfgen.language.primitives import COLUMN, COUNT, ELEM, KEEP, PER_COUNT, PRIMITIVES, ROW, UNIFORM


def gradient(graph, seeds, wrt):
    """Differentiates in reverse mode. seeds: {output node: node of its incoming gradient}. Returns
    {node of wrt: gradient or None}.

    An adjoint is a value and the guards of the `where` nodes that it passed. The guards are applied
    last, where the value is used: masking before a product would give 0 * inf = NaN. The adjoint of
    a value per row is the sum over the row's elements.
    """
    parts = {}  # node: [(value, guards)]

    def guarded(value, guards):
        for condition, wanted in reversed(guards):
            zero = graph.const(0)
            value = graph.add("where", condition, *((value, zero) if wanted else (zero, value)))
        return value

    def give(node, value, guards, of=None):
        if graph.levels is not None:
            if graph.level(node) == UNIFORM:
                return  # scalars have no gradient
            if graph.level(node) == ROW and of is not None and graph.level(of) == ELEM:
                value, guards = total(graph, guarded(value, guards)), ()
        parts.setdefault(node, []).append((value, guards))

    def merge(found):
        """Joins the adjoints from the two arms of one `where`: where(condition, a, b)."""
        for i, (a, ga) in enumerate(found):
            for j, (b, gb) in enumerate(found[i + 1 :], i + 1):
                if (
                    ga
                    and gb
                    and ga[:-1] == gb[:-1]
                    and ga[-1][0] == gb[-1][0]
                    and ga[-1][1] != gb[-1][1]
                ):
                    condition, first = ga[-1]
                    joined = graph.add("where", condition, *((a, b) if first else (b, a)))
                    return merge(
                        found[:i] + [(joined, ga[:-1])] + found[i + 1 : j] + found[j + 1 :]
                    )
        return found

    def settle(node):
        found = merge(parts[node])
        if len(found) == 1:
            return found[0]
        merged = guarded(*found[0])
        for part in found[1:]:
            merged = plus(merged, guarded(*part))
        return merged, ()

    def plus(a, b):
        """a + b. For twice the same product, the factor per row is doubled instead: once per row,
        with the same bits.
        """
        node = graph.nodes[a]
        if (
            a == b
            and graph.levels is not None
            and node.op == "mul"
            and min(map(graph.level, node.args)) < ELEM
        ):
            row, other = sorted(node.args, key=graph.level)
            return graph.add("mul", graph.add("add", row, row), other)
        return graph.add("add", a, b)

    for node, dy in seeds.items():
        give(node, dy, ())
    for i in range(max(seeds) if seeds else -1, -1, -1):
        if i not in parts:
            continue
        node, (dy, guards) = graph.nodes[i], settle(i)
        parts[i] = [(dy, guards)]
        if node.op in ("const", "var") or graph.is_bool(i):
            continue
        if i in graph.closed:
            of, derivative = graph.closed[i]
            give(of, derivative(dy), guards, i)
            continue
        if node.op == "where":
            condition, a, b = node.args
            give(a, dy, guards + ((condition, True),), i)
            give(b, dy, guards + ((condition, False),), i)
            continue
        if node.op == "pick":
            give(
                node.args[0],
                graph.add(
                    "where",
                    graph.add("eq", graph.var(COLUMN), node.args[1]),
                    guarded(dy, guards),
                    graph.const(0),
                ),
                (),
                i,
            )
            continue
        if node.op == "div" and graph.nodes[node.args[1]].value == COUNT:  # a mean: x * (1 / n)
            give(node.args[0], graph.add("mul", dy, graph.var(PER_COUNT)), guards, i)
            continue
        names, rules = PRIMITIVES[node.op]
        env = dict(zip(names, node.args), y=i, dy=dy, act_bwd=None)
        for name, arg in zip(names, node.args):
            if name not in rules:
                raise ExprError(f"cannot be differentiated: `{node.op}` has no derivative")
            if graph.nodes[arg].op != "const" and rules[name] is not None:
                value = parse(graph, rules[name], env)
                if (
                    node.op == "act"
                    and graph.levels is not None
                    and any(graph.nodes[c].value == KEEP for c, _ in guards)
                ):
                    # Several sums read it: dropout's mask is applied once.
                    value, guards = guarded(value, guards), ()
                give(arg, value, guards, i)
    return {w: guarded(*settle(w)) if w in parts else None for w in wrt}


def substitute(source, target, roots, env, act=None):
    """Copies roots into target. env: {variable: node} replaces variables. act: functions
    (x) -> node and (x, dy) -> node that replace act and act_bwd.
    """
    new = {}
    for i in source.reachable(roots):
        node = source.nodes[i]
        args = [new[a] for a in node.args]
        if node.op == "var":
            new[i] = env.get(node.value, target.var(node.value))
        elif act and node.op == "act":
            new[i] = act[0](args[0])
        elif act and node.op == "act_bwd":
            new[i] = act[1](args[0], args[1])
        else:
            new[i] = target.add(node.op, *args, value=node.value)
    return [new[r] for r in roots]
