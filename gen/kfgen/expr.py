# SPDX-License-Identifier: Apache-2.0
"""The expression language: a DAG of primitives, the parser that builds it and reverse-mode differentiation.

An expression is Python syntax, `act(a + b)` or `t = exp(x); t / (1 + t)`, parsed with `ast`. Nodes are hash-consed, so a
common subexpression is one node, and are never re-associated: what is written is what is computed.
"""

import ast
from dataclasses import dataclass

# name: (argument names, {argument: rule for its adjoint}). A rule is written in the language itself; it sees the
# arguments, `y` (the primitive's own value) and `dy` (the adjoint of y). A missing rule means "not differentiable".
PRIMITIVES = {
    "add": ("ab", {"a": "dy", "b": "dy"}),
    "sub": ("ab", {"a": "dy", "b": "-dy"}),
    "mul": ("ab", {"a": "dy * b", "b": "dy * a"}),
    "div": ("ab", {"a": "dy / b", "b": "-(dy * (y / b))"}),
    "neg": ("a", {"a": "-dy"}),
    "abs": ("a", {"a": "where(a > 0, dy, where(a < 0, -dy, dy * 0))"}),
    # A tie gives each half, NaN passes the gradient to both: PyTorch's rule.
    "max": ("ab", {"a": "where(a < b, 0, where(a == b, 0.5 * dy, dy))", "b": "where(b < a, 0, where(a == b, 0.5 * dy, dy))"}),
    "min": ("ab", {"a": "where(a > b, 0, where(a == b, 0.5 * dy, dy))", "b": "where(b > a, 0, where(a == b, 0.5 * dy, dy))"}),
    "exp": ("a", {"a": "dy * y"}),
    "expm1": ("a", {"a": "dy * exp(a)"}),
    "log": ("a", {"a": "dy / a"}),
    "log1p": ("a", {"a": "dy / (1 + a)"}),
    "log1p01": ("a", {"a": "dy * rcp(1 + a)"}),  # log1p for 0 <= a <= 1
    "sqrt": ("a", {"a": "dy * (0.5 / y)"}),
    "rsqrt": ("a", {"a": "dy * (-0.5 * (y * y * y))"}),
    "rcp": ("a", {"a": "-(dy * (y * y))"}),  # 1 / a for 2^-120 <= |a| <= 2^120
    "sin": ("a", {"a": "dy * cos(a)"}),
    "cos": ("a", {"a": "-(dy * sin(a))"}),
    "tanh": ("a", {"a": "dy * (1 - y * y)"}),
    "sigmoid": ("a", {"a": "dy * (y * sigmoid(-a))"}),
    "erf": ("a", {"a": "dy * (1.1283791670955126 * exp(-(a * a)))"}),
    "normcdf": ("a", {"a": "dy * normpdf(a)"}),
    "normpdf": ("a", {"a": "-(dy * (a * y))"}),
    "gelu": ("a", {"a": "dy * gelu_bwd(a)"}),
    "gelu_bwd": ("a", {"a": "dy * ((2 - a * a) * normpdf(a))"}),
    "act": ("a", {"a": "act_bwd(a, dy)"}),
    "act_bwd": (("a", "d"), {}),
    "act_bwd_out": (("y", "d"), {}),  # the same of act's result, where the derivative can be made of it
    "where": ("cab", None),  # differentiated by hand: its guard is applied to the adjoint last
    # Over a row, where a graph has levels: ops over rows and reductions over an axis. Ties share a row's largest element: PyTorch's amax.
    "sum": ("a", {"a": "dy"}),
    "rowmax": ("a", {"a": "where(a == y, dy / sum(where(a == y, 1, 0)), 0)"}),
    "rowmin": ("a", {"a": "where(a == y, dy / sum(where(a == y, 1, 0)), 0)"}),
    # Without zeros the product over a; with one of them, that one gets the product of the others: PyTorch's prod.
    "rowprod": ("a", {"a": "zeros = sum(where(a == 0, 1, 0)); others = prod(where(a == 0, 1, a)); "
                           "dy * where(a == 0, where(zeros == 1, others, 0), where(zeros > 0, 0, y / a))"}),
    "pick": ("ab", None),  # a row's value in column b, NaN where there is no such column; differentiated by hand
    "stop": ("a", {"a": None}),  # the value without its gradient
    "stored": ("a", {"a": "dy"}),  # an output as others read it: rounded to its dtype
    "lt": ("ab", {}),
    "le": ("ab", {}),
    "gt": ("ab", {}),
    "ge": ("ab", {}),
    "eq": ("ab", {}),
    "ne": ("ab", {}),
    "and": ("ab", {}),
    "or": ("ab", {}),
    "not": ("a", {}),
}
REDUCTIONS = {"sum": "sum", "max": "rowmax", "min": "rowmin", "prod": "rowprod"}  # as a spec calls them, of one argument
PLACES = {"argmax": "rowmax", "argmin": "rowmin"}  # where the first of these is: a result of its own, of a reduction over an axis
OVER_ROWS = {"pick", "stop", "stored", *REDUCTIONS.values()}
# What a value is the same for: everything (numbers, scalars), a row of the tensor, nothing.
UNIFORM, ROW, ELEM = range(3)
COUNT, PER_COUNT = "count", "per_count"  # elements of a row, and 1 over it
COLUMN = "column"  # the place of an element in its row, from 0 on
# Of [batch, heads, queries, keys], whose rows are the queries of a head: which one a row is, from 0 on, and how many there are.
QUERY, QUERIES = "query", "queries"
INF = "inf"
ROW_NAMES = (COLUMN, COUNT, PER_COUNT, QUERY, QUERIES, INF)
ROW_COUNTS = (COLUMN, COUNT, QUERY, QUERIES)  # whole numbers
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
BOOLEAN = {*COMPARISONS, "and", "or", "not"}
COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
# What takes many instructions on a CPU, and how many times as many as an exponential.
TRANSCENDENTAL = dict.fromkeys(("exp", "expm1", "log", "log1p", "log1p01", "sin", "cos", "tanh", "sigmoid"), 1)
TRANSCENDENTAL |= dict.fromkeys(("erf", "normcdf", "normpdf", "gelu", "gelu_bwd"), 3)
# What a spec may call; the rest of PRIMITIVES is reached through operators.
WORDS = sorted(set(PRIMITIVES) - BOOLEAN - OVER_ROWS - {"add", "sub", "mul", "div", "neg", "act_bwd", "act_bwd_out"}) + ["dropout"]
ROW_WORDS = ["mean", "pick", "prod", "stop", "sum"]  # beside max and min of one argument
# The Philox mask of a dropout is two inputs of the graph, so that its gradient needs no rule of its own.
KEEP, KEEP_SCALE = "keep", "keep_scale"


def query_names(rows, queries, np):
    """The same of so many rows, of which `queries` in turn are a head's."""
    return {QUERY: (np.arange(float(rows)) % max(queries, 1)).reshape(-1, 1), QUERIES: np.float64(queries)}


def row_names(n, np):
    """What expressions over rows of n elements read beside their operands."""
    return {COUNT: np.float64(n), PER_COUNT: np.float64(1.0 / n if n else float("inf")), COLUMN: np.arange(float(n))}


class ExprError(Exception):
    """A message about an expression, without the place it stands in (the caller knows that)."""


@dataclass(frozen=True)
class Node:
    op: str  # a primitive, "const" or "var"
    args: tuple = ()
    value: object = None  # the number of a const, the name of a var


class Graph:
    """Nodes in the order they are computed: the arguments of nodes[i] all come before i."""

    def __init__(self, levels=None, whole=()):
        """levels: of the variables that are not ELEM, where expressions may reduce over a row; None: they may not. whole: the variables that
        are whole numbers of 64 bits, such as labels."""
        self.whole = frozenset(whole)
        self.nodes, self._index, self._level, self._reached = [], {}, {}, {}
        self.words = {}  # functions (graph, nodes) -> node that expressions may call beside the language's own words
        self.closed = {}  # {node: (what it is a function of, function dy -> its gradient)}, where the derived one is not wanted
        self.levels = None if levels is None else {COUNT: UNIFORM, PER_COUNT: UNIFORM, KEEP_SCALE: UNIFORM, QUERY: ROW, QUERIES: UNIFORM, **levels}

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
        """UNIFORM, ROW or ELEM. What a row operand gives each column is ELEM here: it differs within a row."""
        if i not in self._level:
            node = self.nodes[i]
            if node.op in ("const", "var"):
                found = UNIFORM if node.op == "const" else (self.levels or {}).get(node.value, ELEM)
            else:
                found = ROW if node.op in REDUCTIONS.values() or node.op == "pick" else max(self.level(a) for a in node.args)
            self._level[i] = found
        return self._level[i]

    def is_whole(self, i):
        """Whether it is a whole number of 64 bits: one, or a sum of such. A number that is written in an expression is one among them."""
        node = self.nodes[i]
        if node.op == "const":
            return abs(node.value) != float("inf") and float(node.value).is_integer()
        return node.value in self.whole if node.op == "var" else node.op in ("add", "sub", "neg") and all(map(self.is_whole, node.args))

    def compares_whole(self, i):
        """Whether it is a comparison of whole numbers, which takes them as they are; all else takes them as numbers of its dtype."""
        node = self.nodes[i]
        return node.op in COMPARISONS and all(map(self.is_whole, node.args)) and any(self.variables([a]) for a in node.args)

    def is_bool(self, i):
        return self.nodes[i].op in BOOLEAN or self.nodes[i].value == KEEP

    def reachable(self, roots):
        """The nodes that the roots need, in computing order. Found once: what a node needs never changes."""
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
        """The variables that are read as numbers, not in comparisons of whole numbers alone."""
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
    """Adds the expression to the graph and returns its node. env: the names it may read, as nodes."""
    try:
        return _parse(graph, text, env)
    except RecursionError:  # Python's parser and what walks its tree
        raise ExprError("is nested too deeply; name its parts: `t = ...; t + 1`") from None


def _parse(graph, text, env):
    try:
        body = ast.parse(text.strip()).body
    except SyntaxError as e:
        raise ExprError(f"is not an expression: {e.msg} in `{text.strip()}`") from None
    except (ValueError, MemoryError):  # characters that no source has; a parser's own limits
        raise ExprError("is not an expression that Python's parser reads") from None
    if not body or not isinstance(body[-1], ast.Expr):
        raise ExprError("must end with the expression that is its value")
    env = dict(env)
    for statement in body[:-1]:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name in env or name in PRIMITIVES:
                    raise ExprError(f"assigns `{name}`, which already has a meaning; choose another name")
                env[name] = _build(graph, value, env)
            case _:
                raise ExprError(f"may only hold `name = expression` before its value, not `{ast.unparse(statement)}`")
    root = _build(graph, body[-1].value, env)
    if graph.is_bool(root):
        raise ExprError("is a condition; use where(condition, a, b)")
    return root


MOST = 3.4028234663852886e38  # float32's largest: the same number is written for every dtype


def _number(graph, value):
    if not abs(value) <= MOST:
        raise ExprError("has a number that float32 does not hold; the largest is 3.4e38")
    return graph.const(value)


def _build(graph, tree, env):
    def number(t):
        i = _build(graph, t, env)
        if graph.is_bool(i):
            raise ExprError(f"uses the condition `{ast.unparse(t)}` as a number; use where(condition, a, b)")
        return i

    def condition(t):
        i = _build(graph, t, env)
        if not graph.is_bool(i):
            raise ExprError(f"uses the number `{ast.unparse(t)}` as a condition; compare it with something")
        return i

    match tree:
        case ast.Constant(value=bool()):
            raise ExprError("has no True or False")
        case ast.Constant(value=int() | float() as value):
            return _number(graph, value)
        case ast.Name(id=name):
            if env.get(name) is None:  # nor a word, such as act
                raise ExprError(f"reads `{name}`, which is not one of: {', '.join(sorted(n for n in env if env[n] is not None)) or 'none'}")
            return env[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(value, bool):
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
    if graph.levels is not None and (name in ROW_WORDS or (name in REDUCTIONS and len(args) == 1)):
        return _reduce(graph, name, [number(a) for a in args])
    if name in ROW_WORDS:
        raise ExprError(f"calls `{name}`, which this op's family does not have")
    if name in graph.words:
        return graph.words[name](graph, [number(a) for a in args])
    if name not in WORDS and not (name == "act_bwd" and name in env):
        raise ExprError(f"calls `{name}`; the words are: {', '.join(sorted([*WORDS, *graph.words]))}")
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
        if tensor.op != "var" or column.op != "var" or graph.level(args[0]) < ELEM or graph.level(args[1]) != ROW:
            raise ExprError("calls `pick` of something else than an operand and, for each row, the number of a column: pick(x, label)")
        return graph.add("pick", *args)
    [a] = args
    if name == "stop":
        return graph.add("stop", a)
    if graph.level(a) < ELEM:
        raise ExprError(f"calls `{name}` of what is the same for a whole row")
    if name == "mean":
        return graph.add("div", graph.add("sum", a), graph.var(COUNT))
    return graph.add(REDUCTIONS[name], a)


def total(graph, i):
    """The sum of i over a row. What is the same for the row is taken out, and terms are added up apart: a sum of what needs
    another sum would be another pass over the row."""
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
    """{reduction: how many passes over the row must end before its own}, of those that the roots need."""
    depth, found = {}, {}
    for i in graph.reachable(roots):
        before = max((depth[a] for a in graph.nodes[i].args), default=0)
        if graph.nodes[i].op in REDUCTIONS.values():
            found[i] = before
        depth[i] = before + (i in found)
    return found


def gradient(graph, seeds, wrt):
    """Reverse mode. seeds: {output node: node of its incoming gradient}. Returns {node of wrt: gradient or None}.

    The adjoint on its way down is a value and the guards of the `where`s it came through. The guards are applied
    last, where the value is used: masking first and multiplying after would give 0 * inf = NaN.
    A value that is the same for a row gets the sum of what the row's elements give it.
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
            if graph.level(node) == ROW and of is not None and graph.level(of) == ELEM:  # `of` is as many values as a row has
                value, guards = total(graph, guarded(value, guards)), ()
        parts.setdefault(node, []).append((value, guards))

    def merge(found):
        """Two parts from the two arms of one where become one part: where(condition, a, b)."""
        for i, (a, ga) in enumerate(found):
            for j, (b, gb) in enumerate(found[i + 1:], i + 1):
                if ga and gb and ga[:-1] == gb[:-1] and ga[-1][0] == gb[-1][0] and ga[-1][1] != gb[-1][1]:
                    condition, first = ga[-1]
                    joined = graph.add("where", condition, *((a, b) if first else (b, a)))
                    return merge(found[:i] + [(joined, ga[:-1])] + found[i + 1:j] + found[j + 1:])
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
        """a + b. Twice the same product: its factor that is the same for a row is doubled, once a row, which gives the same bits."""
        node = graph.nodes[a]
        if a == b and graph.levels is not None and node.op == "mul" and min(map(graph.level, node.args)) < ELEM:
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
            give(node.args[0], graph.add("where", graph.add("eq", graph.var(COLUMN), node.args[1]), guarded(dy, guards), graph.const(0)), (), i)
            continue
        if node.op == "div" and graph.nodes[node.args[1]].value == COUNT:  # of a mean: a product is enough for a gradient
            give(node.args[0], graph.add("mul", dy, graph.var(PER_COUNT)), guards, i)
            continue
        names, rules = PRIMITIVES[node.op]
        env = dict(zip(names, node.args), y=i, dy=dy, act_bwd=None)
        for name, arg in zip(names, node.args):
            if name not in rules:
                raise ExprError(f"cannot be differentiated: `{node.op}` has no derivative")
            if graph.nodes[arg].op != "const" and rules[name] is not None:
                value = parse(graph, rules[name], env)
                if node.op == "act" and graph.levels is not None and any(graph.nodes[c].value == KEEP for c, _ in guards):
                    value, guards = guarded(value, guards), ()  # several sums read it: the mask is applied once
                give(arg, value, guards, i)
    return {w: guarded(*settle(w)) if w in parts else None for w in wrt}


def substitute(source, target, roots, env, act=None):
    """Copies roots into target, vars renamed by env (name: node), act and act_bwd replaced by act's own expressions.

    act: a pair of functions (x) -> node and (x, dy) -> node that build the activation in target.
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
