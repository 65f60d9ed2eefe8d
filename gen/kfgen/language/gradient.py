# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation of expressions, and copying between graphs."""

from kfgen.language.expr import ExprError, parse, total
from kfgen.language.primitives import COLUMN, COUNT, ELEM, KEEP, PER_COUNT, PRIMITIVES, ROW, UNIFORM


def gradient(graph, seeds, wrt):
    """Differentiates in reverse mode. seeds: {output node: node of its incoming gradient}. Returns
    {node of wrt: gradient, or None if no output depends on the node}.
    """
    adjoints = _Adjoints(graph)
    for node, dy in seeds.items():
        adjoints.add(node, dy, ())
    for i in range(max(seeds) if seeds else -1, -1, -1):
        if i in adjoints.terms:
            adjoints.propagate(i)
    return {w: adjoints.value(w) if w in adjoints.terms else None for w in wrt}


class _Adjoints:
    """The adjoints of a graph's nodes during one traversal.

    A term of an adjoint is a value and the guards of the `where` nodes that it passed: pairs of a
    condition and whether it must hold. The guards are applied last, where the value is used:
    masking before a product would give 0 * inf = NaN. The adjoint of a value per row is the sum
    over the row's elements.
    """

    def __init__(self, graph):
        self.graph = graph
        self.terms = {}  # node: [(value, guards)]

    def value(self, node):
        """Returns a node's adjoint with its guards applied."""
        return self._guarded(*self._summed(node))

    def add(self, node, value, guards, of=None):
        """Adds a term to a node's adjoint. of: the reader of `node` that the term comes from."""
        graph = self.graph
        if graph.levels is not None:
            if graph.level(node) == UNIFORM:
                return  # scalars have no gradient
            if graph.level(node) == ROW and of is not None and graph.level(of) == ELEM:
                value, guards = total(graph, self._guarded(value, guards)), ()
        self.terms.setdefault(node, []).append((value, guards))

    def propagate(self, i):
        """Sums the adjoint of node i and adds its terms to the node's arguments."""
        graph = self.graph
        node, (dy, guards) = graph.nodes[i], self._summed(i)
        self.terms[i] = [(dy, guards)]
        if node.op in ("const", "var") or graph.is_bool(i):
            return
        if i in graph.closed:
            of, derivative = graph.closed[i]
            self.add(of, derivative(dy), guards, i)
        elif node.op == "where":
            condition, a, b = node.args
            self.add(a, dy, guards + ((condition, True),), i)
            self.add(b, dy, guards + ((condition, False),), i)
        elif node.op == "pick":
            picked = graph.add("eq", graph.var(COLUMN), node.args[1])
            dx = graph.add("where", picked, self._guarded(dy, guards), graph.const(0))
            self.add(node.args[0], dx, (), i)
        elif node.op == "div" and graph.nodes[node.args[1]].value == COUNT:  # mean: x * (1 / n)
            self.add(node.args[0], graph.add("mul", dy, graph.var(PER_COUNT)), guards, i)
        else:
            self._by_rules(i, dy, guards)

    def _by_rules(self, i, dy, guards):
        """Propagates by the primitive's rule for each argument."""
        graph, node = self.graph, self.graph.nodes[i]
        names, rules = PRIMITIVES[node.op]
        env = dict(zip(names, node.args), y=i, dy=dy, act_bwd=None)
        for name, arg in zip(names, node.args):
            if name not in rules:
                raise ExprError(f"cannot be differentiated: `{node.op}` has no derivative")
            if graph.nodes[arg].op == "const" or rules[name] is None:
                continue
            value = parse(graph, rules[name], env)
            dropped = any(graph.nodes[c].value == KEEP for c, _ in guards)
            if node.op == "act" and graph.levels is not None and dropped:
                # Several sums read it: dropout's mask is applied once.
                value, guards = self._guarded(value, guards), ()
            self.add(arg, value, guards, i)

    def _guarded(self, value, guards):
        """Applies guards to a value, the innermost `where` first."""
        graph = self.graph
        for condition, wanted in reversed(guards):
            zero = graph.const(0)
            value = graph.add("where", condition, *((value, zero) if wanted else (zero, value)))
        return value

    def _summed(self, node):
        """Returns the sum of a node's terms as one term."""
        found = self._merged(self.terms[node])
        if len(found) == 1:
            return found[0]
        merged = self._guarded(*found[0])
        for term in found[1:]:
            merged = self._plus(merged, self._guarded(*term))
        return merged, ()

    def _merged(self, found):
        """Joins the terms from the two arms of one `where`: where(condition, a, b)."""
        for i, (a, ga) in enumerate(found):
            for j, (b, gb) in enumerate(found[i + 1 :], i + 1):
                if _are_both_arms(ga, gb):
                    condition, first = ga[-1]
                    arms = (a, b) if first else (b, a)
                    joined = self.graph.add("where", condition, *arms)
                    others = found[i + 1 : j] + found[j + 1 :]
                    return self._merged(found[:i] + [(joined, ga[:-1])] + others)
        return found

    def _plus(self, a, b):
        """a + b. For twice the same product, the factor per row is doubled instead: once per row,
        with the same bits.
        """
        graph, node = self.graph, self.graph.nodes[a]
        if (
            a == b
            and graph.levels is not None
            and node.op == "mul"
            and min(map(graph.level, node.args)) < ELEM
        ):
            row, other = sorted(node.args, key=graph.level)
            return graph.add("mul", graph.add("add", row, row), other)
        return graph.add("add", a, b)


def _are_both_arms(first, second):
    """True for guards that differ in the last one alone: one wants its condition, one does not."""
    if not first or not second or first[:-1] != second[:-1]:
        return False
    (condition, wanted), (other, opposite) = first[-1], second[-1]
    return condition == other and wanted != opposite


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
