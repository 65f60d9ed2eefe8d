# SPDX-License-Identifier: Apache-2.0
"""The expression language: a DAG of primitives (primitives.py) and the parser that builds it.

An expression has Python syntax, `act(a + b)` or `t = exp(x); t / (1 + t)`, and is parsed with
`ast`. Nodes are hash-consed: a common subexpression is one node. Nothing is reassociated.
"""

import ast
import functools
from dataclasses import dataclass

from kfgen.language.primitives import (
    BOOLEAN,
    CALLABLE,
    COMPARISONS,
    COUNT,
    ELEM,
    KEEP,
    KEEP_SCALE,
    PER_COUNT,
    PRIMITIVES,
    QUERIES,
    QUERY,
    REDUCTIONS,
    ROW,
    ROW_CALLABLE,
    UNIFORM,
)

COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}


class ExprError(Exception):
    """Error in an expression; the caller adds file, entry and field."""


@dataclass(frozen=True)
class Node:
    op: str  # a primitive, "const" or "var"
    args: tuple = ()
    value: object = None  # the number of a const, the name of a var


class Graph:
    """Nodes in order of computation: the arguments of nodes[i] come before i."""

    def __init__(self, levels=None, whole=()):
        """levels: {variable: level} of variables that are not ELEM, if expressions may reduce over
        a row; None: they may not. whole: variables that are 64-bit integers, such as labels.
        """
        self.whole = frozenset(whole)
        self.nodes, self._index, self._level, self._reached = [], {}, {}, {}
        self.extra = {}  # further functions of expressions: {name: (graph, nodes) -> node}
        self.closed = {}  # {node: (its argument, dy -> gradient)}, instead of the derived gradient
        self.levels = (
            None
            if levels is None
            else {
                COUNT: UNIFORM,
                PER_COUNT: UNIFORM,
                KEEP_SCALE: UNIFORM,
                QUERY: ROW,
                QUERIES: UNIFORM,
                **levels,
            }
        )

    def copied(self, renaming):
        """Returns the same nodes with other names of variables (rename.Renaming)."""
        found = Graph(None, renaming.names(self.whole))
        found.levels = self.levels and renaming.names(self.levels)
        found.extra, found.closed = self.extra, self.closed
        for node in self.nodes:
            value = renaming.name(node.value) if isinstance(node.value, str) else node.value
            found.add(node.op, *node.args, value=value)
        return found

    def add(self, op, *args, value=None):
        node = Node(op, args, value)
        # 0.0 == -0.0 and 1 == 1.0 == True: the key carries the type and sign as well.
        key = (op, args, repr(value))
        if key not in self._index:
            self._index[key] = len(self.nodes)
            self.nodes.append(node)
        return self._index[key]

    def const(self, value):
        return self.add("const", value=value)

    def var(self, name):
        return self.add("var", value=name)

    def level(self, i):
        """UNIFORM, ROW or ELEM. A row operand is ELEM: it differs within a row."""
        if i not in self._level:
            node = self.nodes[i]
            if node.op in ("const", "var"):
                found = UNIFORM if node.op == "const" else (self.levels or {}).get(node.value, ELEM)
            else:
                found = (
                    ROW
                    if node.op in REDUCTIONS.values() or node.op == "pick"
                    else max(self.level(a) for a in node.args)
                )
            self._level[i] = found
        return self._level[i]

    def is_whole(self, i):
        """True for 64-bit integers and their sums; integral constants count as integers."""
        node = self.nodes[i]
        if node.op == "const":
            return abs(node.value) != float("inf") and float(node.value).is_integer()
        return (
            node.value in self.whole
            if node.op == "var"
            else node.op in ("add", "sub", "neg") and all(map(self.is_whole, node.args))
        )

    def compares_whole(self, i):
        """True for a comparison of integers, which is exact; other nodes convert them first."""
        node = self.nodes[i]
        return (
            node.op in COMPARISONS
            and all(map(self.is_whole, node.args))
            and any(self.variables([a]) for a in node.args)
        )

    def is_bool(self, i):
        return self.nodes[i].op in BOOLEAN or self.nodes[i].value == KEEP

    def reachable(self, roots):
        """Returns the nodes that the roots need, in order of computation; cached."""
        roots = tuple(roots)
        if roots not in self._reached:
            seen, stack = set(), list(roots)
            while stack:
                i = stack.pop()
                if i not in seen:
                    seen.add(i)
                    stack.extend(self.nodes[i].args)
            self._reached[roots] = tuple(sorted(seen))
        return self._reached[roots]

    def variables(self, roots):
        return {self.nodes[i].value for i in self.reachable(roots) if self.nodes[i].op == "var"}

    def numbers(self, roots):
        """Returns the variables that are read other than in integer comparisons."""
        seen, stack = set(), list(roots)
        while stack:
            i = stack.pop()
            if i not in seen:
                seen.add(i)
                stack.extend(() if self.compares_whole(i) else self.nodes[i].args)
        return {self.nodes[i].value for i in seen if self.nodes[i].op == "var"}

    def uses(self, op, roots):
        return any(self.nodes[i].op == op for i in self.reachable(roots))


def parse(graph, text, env):
    """Adds the expression to the graph and returns its node. env: {readable name: node}."""
    try:
        return _parse(graph, text, env)
    except RecursionError:  # raised by Python's parser or by _build
        raise ExprError("is nested too deeply; name its parts: `t = ...; t + 1`") from None


@functools.lru_cache(4096)
def _tree(text):
    """Caches syntax trees: the kernels of all dtypes have the same texts."""
    return ast.parse(text).body


def _parse(graph, text, env):
    try:
        body = _tree(text.strip())
    except SyntaxError as e:
        raise ExprError(f"is not an expression: {e.msg} in `{text.strip()}`") from None
    except (ValueError, MemoryError):  # null characters; limits of the parser
        raise ExprError("is not an expression that Python's parser reads") from None
    if not body or not isinstance(body[-1], ast.Expr):
        raise ExprError("must end with the expression that is its value")
    env = dict(env)
    for statement in body[:-1]:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name in env or name in PRIMITIVES:
                    raise ExprError(
                        f"assigns `{name}`, which already has a meaning; choose another name"
                    )
                env[name] = _build(graph, value, env)
            case _:
                text = ast.unparse(statement)
                raise ExprError(f"may only hold `name = expression` before its value, not `{text}`")
    root = _build(graph, body[-1].value, env)
    if graph.is_bool(root):
        raise ExprError("is a condition; use where(condition, a, b)")
    return root


MOST = 3.4028234663852886e38  # largest float32: constants are the same for every dtype


def _number(graph, value):
    if not abs(value) <= MOST:
        raise ExprError("has a number that float32 does not hold; the largest is 3.4e38")
    return graph.const(value)


def _build(graph, tree, env):
    def number(t):
        i = _build(graph, t, env)
        if graph.is_bool(i):
            raise ExprError(
                f"uses the condition `{ast.unparse(t)}` as a number; use where(condition, a, b)"
            )
        return i

    def condition(t):
        i = _build(graph, t, env)
        if not graph.is_bool(i):
            raise ExprError(
                f"uses the number `{ast.unparse(t)}` as a condition; compare it with something"
            )
        return i

    match tree:
        case ast.Constant(value=bool()):
            raise ExprError("has no True or False")
        case ast.Constant(value=int() | float() as value):
            return _number(graph, value)
        case ast.Name(id=name):
            if env.get(name) is None:  # unknown, or a function such as act
                known = sorted(n for n in env if env[n] is not None)
                raise ExprError(
                    f"reads `{name}`, which is not one of: {', '.join(known) or 'none'}"
                )
            return env[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if (
            not isinstance(value, bool)
        ):
            return _number(graph, -value)
        case ast.UnaryOp(op=ast.USub(), operand=a):
            return graph.add("neg", number(a))
        case ast.UnaryOp(op=ast.Not(), operand=a):
            return graph.add("not", condition(a))
        case ast.BinOp(op=op, left=a, right=b) if type(op) in ARITHMETIC:
            return graph.add(ARITHMETIC[type(op)], number(a), number(b))
        case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in COMPARE:
            return graph.add(COMPARE[type(op)], number(a), number(b))
        case ast.BoolOp(op=op, values=values):
            word, node = "and" if isinstance(op, ast.And) else "or", condition(values[0])
            for value in values[1:]:
                node = graph.add(word, node, condition(value))
            return node
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _call(graph, name, args, number, condition, env)
    raise ExprError(f"uses `{ast.unparse(tree)}`, which the expression language does not have")


def _call(graph, name, args, number, condition, env):
    if graph.levels is not None and (
        name in ROW_CALLABLE or (name in REDUCTIONS and len(args) == 1)
    ):
        return _reduce(graph, name, [number(a) for a in args])
    if name in ROW_CALLABLE:
        raise ExprError(f"calls `{name}`, which this op's family does not have")
    if name in graph.extra:
        return graph.extra[name](graph, [number(a) for a in args])
    if name not in CALLABLE and not (name == "act_bwd" and name in env):
        raise ExprError(
            f"calls `{name}`; the functions are: {', '.join(sorted([*CALLABLE, *graph.extra]))}"
        )
    arity = 1 if name == "dropout" else len(PRIMITIVES[name][0])
    if len(args) != arity:
        raise ExprError(f"calls `{name}` with {len(args)} arguments, it takes {arity}")
    if name == "where":
        return graph.add("where", condition(args[0]), number(args[1]), number(args[2]))
    nodes = [number(a) for a in args]
    if name in ("act", "dropout") and name not in env:
        raise ExprError(f"calls `{name}`, which has no meaning here")
    if name == "dropout":
        scaled = graph.add("mul", nodes[0], graph.var(KEEP_SCALE))
        return graph.add("where", graph.var(KEEP), scaled, graph.const(0))
    return graph.add(name, *nodes)


def _reduce(graph, name, args):
    arity = 2 if name == "pick" else 1
    if len(args) != arity:
        raise ExprError(f"calls `{name}` with {len(args)} arguments, it takes {arity}")
    if name == "pick":
        tensor, column = (graph.nodes[a] for a in args)
        if (
            tensor.op != "var"
            or column.op != "var"
            or graph.level(args[0]) < ELEM
            or graph.level(args[1]) != ROW
        ):
            raise ExprError(
                "calls `pick` with other arguments than an operand and a column index per row: "
                "pick(x, label)"
            )
        return graph.add("pick", *args)
    [a] = args
    if name == "stop":
        return graph.add("stop", a)
    if graph.level(a) < ELEM:
        raise ExprError(f"calls `{name}` on a value that is constant within a row")
    if name == "mean":
        return graph.add("div", graph.add("sum", a), graph.var(COUNT))
    return graph.add(REDUCTIONS[name], a)


def total(graph, i):
    """Adds the sum of i over a row. Factors that are constant within the row are moved out and sums
    are split into terms: the sum of a term that needs another reduction takes another pass.
    """
    if graph.level(i) < ELEM:
        return graph.add("mul", i, graph.var(COUNT))
    node, row = graph.nodes[i], [graph.level(a) < ELEM for a in graph.nodes[i].args]
    match node.op, row:
        case "neg", _:
            return graph.add("neg", total(graph, node.args[0]))
        case "add" | "sub", _:
            return graph.add(node.op, *(total(graph, a) for a in node.args))
        case "mul", [True, _]:
            return graph.add("mul", node.args[0], total(graph, node.args[1]))
        case "mul" | "div", [_, True]:
            return graph.add(node.op, total(graph, node.args[0]), node.args[1])
    return graph.add("sum", i)


def stages(graph, roots):
    """Returns {reduction: number of passes over the row before its own} for the roots."""
    depth, found = {}, {}
    for i in graph.reachable(roots):
        before = max((depth[a] for a in graph.nodes[i].args), default=0)
        if graph.nodes[i].op in REDUCTIONS.values():
            found[i] = before
        depth[i] = before + (i in found)
    return found
