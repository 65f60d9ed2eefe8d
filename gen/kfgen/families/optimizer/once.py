# SPDX-License-Identifier: Apache-2.0
"""Values that are computed once per call, in float64: `once` of an entry.

Their expressions read scalars, integers, tensors of one number and earlier values. They have
Python syntax and the primitives of PRINTED; pow(a, step) raises to an integer scalar.
"""

import math
from dataclasses import dataclass

from kfgen.language.expr import ExprError, Graph, parse
from kfgen.language.formulas import LIBRARIES
from kfgen.model.contract import INFIX

PRINTED = ("neg", "abs", "sqrt", "exp", "log", "max", "min", "where", "pow", *INFIX, "not")
SIGNS = {"and": "&&", "or": "||"}  # operators of C that Python spells otherwise


def build(texts, read, integers):
    """Builds {value: node} of {value: expression}.

    Args:
        read: names that expressions may read.
        integers: those of them that are integers.

    Returns:
        the graph, and {name that other expressions may read: node}.
    """
    graph = Graph()
    nodes = {name: graph.var(name) for name in read}

    def power(own, args):
        if len(args) != 2 or own.nodes[args[1]].value not in integers:
            known = ", ".join(f"pow(a, {name})" for name in integers)
            raise ExprError(f"calls `pow` with other arguments than {known or 'an integer scalar'}")
        return own.add("pow", *args)

    graph.extra = {"pow": power}
    for name, text in texts.items():
        try:
            nodes[name] = parse(graph, text, nodes)
            _check(graph, nodes[name])
        except ExprError as e:
            e.field = "once"
            raise
    return graph, nodes


def _check(graph, node):
    for i in graph.reachable([node]):
        if graph.nodes[i].op not in (*PRINTED, "const", "var"):
            known = ", ".join(word for word in PRINTED if word not in (*INFIX, "not", "neg"))
            raise ExprError(f"calls `{graph.nodes[i].op}`; values of a call have {known}")


@dataclass(frozen=True)
class Language:
    """How a language writes a value."""

    call: object  # (primitive, arguments) -> text
    signs: dict  # {primitive: operator}, where it is not Python's
    negation: str  # operator of `not`
    number: str = "{}"  # text of a constant


C = Language(lambda op, args: f"kfi_once_{op}({', '.join(args)})", SIGNS, "!")


def _python(library):
    lib = LIBRARIES[library]

    def call(op, args):
        if op == "where":
            return f"({args[1]} if {args[0]} else {args[2]})"
        if op == "pow":
            return f"({args[0]} ** {args[1]})"
        if op in ("max", "min", "abs"):
            return f"{op}({', '.join(args)})"
        return f"{lib.name}.{op}({lib.cast.format(args[0])})"

    return Language(call, {}, "not ")


def text(graph, node, language, names):
    """Returns the text of a node. names: {variable: its text}."""

    def write(i):
        n = graph.nodes[i]
        if n.op == "const":
            return repr(float(n.value))
        if n.op == "var":
            return names.get(n.value, n.value)
        args = [write(a) for a in n.args]
        if n.op in INFIX:
            sign = language.signs.get(n.op, INFIX[n.op][0])
            return f"({args[0]} {sign} {args[1]})"
        if n.op in ("neg", "not"):
            return f"({'-' if n.op == 'neg' else language.negation}{args[0]})"
        return language.call(n.op, args)

    found = write(node)
    outer = graph.nodes[node].op in INFIX and found.startswith("(")
    return found[1:-1] if outer else found


def in_c(graph, node, names):
    return text(graph, node, C, names)


def statements(graph, nodes, library):
    """Returns the statements of a library that assign {value: node}, which read their names."""
    return [f"{name} = {text(graph, node, _python(library), {})}" for name, node in nodes.items()]


def _within(function):
    """Returns the function with C's results where Python raises: infinity and NaN."""

    def call(*args):
        try:
            found = function(*args)
        except (OverflowError, ZeroDivisionError):
            return math.inf
        return math.nan if isinstance(found, complex) else found

    return call


FUNCTIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b if b else math.nan,  # `where` evaluates both arms
    "neg": lambda a: -a,
    "not": lambda a: not a,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "abs": abs,
    "sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan,
    "exp": _within(math.exp),
    "log": lambda a: math.log(a) if a > 0 else math.nan,
    "max": max,
    "min": min,
    "pow": _within(lambda a, n: a**n),
    "where": lambda c, a, b: a if c else b,
}


def evaluate(graph, nodes, values):
    """Evaluates {value: node}. values: {variable: number}."""
    found = {}
    for i in graph.reachable(list(nodes.values())):
        n = graph.nodes[i]
        if n.op == "const":
            found[i] = float(n.value)
        elif n.op == "var":
            found[i] = float(values[n.value])
        else:
            found[i] = FUNCTIONS[n.op](*(found[a] for a in n.args))
    return {name: found[node] for name, node in nodes.items()}
