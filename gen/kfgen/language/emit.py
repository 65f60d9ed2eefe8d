# SPDX-License-Identifier: Apache-2.0
"""Prints an expression graph as CUDA or as C, and evaluates it with NumPy."""

from dataclasses import dataclass, field

from kfgen.language.expr import Graph
from kfgen.language.primitives import BOOLEAN, COLUMN, COUNT, ELEM, KEEP

COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
INFIX = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2)}
# Nodes whose result may depend on the last bits of an argument, by a jump or by cancellation. A
# quotient that reaches a 2-byte result without passing one of them needs no correction.
DELICATE = BOOLEAN | {"act", "act_bwd", "act_bwd_out", "max", "min", "add", "sub", "stored"}
ATOM = 9


class Printed(str):
    """A text with the names that it reads; any other string is a name itself."""

    def __new__(cls, text, names=()):
        made = super().__new__(cls, text)
        made.names = frozenset(names)
        return made

    @classmethod
    def joined(cls, sign, texts):
        return cls(sign.join(texts), names_of(*texts))


def names_of(*texts):
    """Returns the names that texts read."""
    return frozenset().union(*(getattr(text, "names", (text,)) for text in texts))


@dataclass(frozen=True)
class Target:
    """How a backend writes expressions. flavour: f32, f64, i32, i64, or lp (float32 for 2-byte
    results).
    """

    prefix: str  # prefix of the math functions
    flavour: str
    masks: bool  # True: conditions are integer bit masks (C); False: bool (CUDA)
    cheap: frozenset = frozenset()  # primitives that use their lp form even so
    act: object = None  # (x) -> text
    act_bwd: object = None  # (x, dy) -> text
    act_bwd_out: object = None  # (y, dy) -> text
    # {"act", "act_bwd" or "act_bwd_out": names that its text reads besides the arguments}
    called: dict = field(default_factory=dict)
    gradient_argument: object = None  # (x) -> argument of a run-time activation's gradient
    stored: object = None  # (x) -> x rounded to the result dtype; None: that is the compute dtype
    whole: object = None  # {integer variable: its text as int64}
    offset: str = ""  # offset of an element from the column that `column` names
    near: str = ""  # function (integer, column) -> offset from that column, an int

    @property
    def ctype(self):
        return {"f64": "double", "i32": "kf_i32", "i64": "kf_i64"}.get(self.flavour, "float")

    @property
    def fuses(self):
        """True if the compiler may fuse a product and a sum."""
        return not self.masks and self.flavour not in ("i32", "i64")

    @property
    def suffix(self):
        return "f32" if self.flavour == "lp" else self.flavour

    @property
    def mask_type(self):
        return (
            ("uint64_t" if self.flavour in ("f64", "i64") else "uint32_t") if self.masks else "bool"
        )

    def const(self, value):
        if self.flavour in ("i32", "i64"):
            return f"{int(value)}" if self.flavour == "i32" else f"(kf_i64){int(value)}"
        if value == float("inf"):
            return ("(double)" if self.flavour == "f64" else "") + (
                "INFINITY" if self.masks else "__int_as_float(0x7f800000)"
            )
        text = repr(float(value))
        return text if self.flavour == "f64" else text + "f"


def emit(graph, roots, target, env, fixed=(), named=(), head=None, round_roots=False, printed=None):
    """Returns (lines that define temporaries, one text per root). A node that is used twice gets a
    temporary. In CUDA a product in a temporary is rounded: otherwise a compiler might fuse it with
    a sum in one instance of a kernel and not in another, and their bits would differ.

    env: {variable: text}. fixed: {node: text}; its arguments are not printed. named: {node: (name
    of its temporary, definition with {} for the node's text)}. head: dictionary {definition: name}
    that receives values which are constant in a loop and would keep compilers from vectorising it.
    round_roots: rounds products among the roots as well. printed: set that receives the names which
    the texts read; those of a text in env, fixed, named and target are its own (Printed).
    """
    fixed = dict(fixed)
    order = _needed(graph, roots, fixed, Graph.compares_whole)
    if printed is not None:
        printed |= _names(graph, order, target, env, fixed, dict(named))
    exact = set(
        graph.reachable(
            [a for i in order if graph.nodes[i].op in DELICATE for a in graph.nodes[i].args]
        )
    )
    uses = {i: roots.count(i) for i in order}
    for i in order:
        for a in () if i in fixed or graph.compares_whole(i) else graph.nodes[i].args:
            uses[a] += 1
    lines, text = [], {}
    for i in order:
        if i in fixed:
            text[i] = (fixed[i], ATOM)
            continue
        body, level = _print(graph, i, target, env, text, i in exact, head, fixed)
        temporary = i in named or (uses[i] > 1 and graph.nodes[i].op not in ("const", "var"))
        if (
            (temporary or (round_roots and i in roots))
            and target.fuses
            and graph.nodes[i].op == "mul"
        ):
            body, level = _rounded(graph, i, target, text), ATOM
        if i in named:
            name, form = named[i]
            lines.append(f"const {target.ctype} {name} = {form.replace('{}', body)};")
            body, level = name, ATOM
        elif temporary:
            name = f"t{len(lines)}"
            lines.append(
                f"const {target.mask_type if graph.is_bool(i) else target.ctype} {name} = {body};"
            )
            body, level = name, ATOM
        text[i] = (body, level)
    return lines, [text[r][0] for r in roots]


def _names(graph, order, target, env, fixed, named):
    """Returns the names that the texts of nodes read."""
    found = set()
    for i in order:
        node = graph.nodes[i]
        if i in fixed:
            found |= names_of(fixed[i])
            continue
        if graph.compares_whole(i):
            found |= names_of(*(target.whole[name] for name in graph.variables([i])))
        elif node.op == "var":
            found |= names_of(env.get(node.value, node.value))
        found |= {*target.called.get(node.op, ())}
        found |= getattr(named[i][1], "names", frozenset()) if i in named else frozenset()
    return found


def reads(graph, roots, fixed=()):
    """Returns the nodes that emit() prints: the generated code must declare their variables."""
    return _needed(graph, roots, dict.fromkeys(fixed))


def _expensive(graph, i):
    """True if a compiler would branch around the value, for every element."""
    return any(
        graph.nodes[a].op not in {"const", "var", "neg", "add", "sub", "mul"}
        for a in graph.reachable([i])
    )


def _is_silu(graph, node):
    """True for x * sigmoid(x): one function in C, whose sigmoid need not handle NaN."""
    factor = graph.nodes[node.args[1]]
    return factor.op == "sigmoid" and factor.args[0] == node.args[0]


def _needed(graph, roots, fixed, is_leaf=lambda graph, i: False):
    seen, stack = set(), list(roots)
    while stack:
        i = stack.pop()
        if i not in seen:
            seen.add(i)
            stack.extend(() if i in fixed or is_leaf(graph, i) else graph.nodes[i].args)
    return sorted(seen)


def _whole(graph, i, target):
    """Prints an integer node as int64."""
    node = graph.nodes[i]
    if node.op == "const":
        return f"(kf_i64){int(node.value)}"
    if node.op == "var":
        return (
            f"({target.whole[COLUMN]} + {target.offset})"
            if node.value == COLUMN
            else target.whole[node.value]
        )
    args = [_whole(graph, a, target) for a in node.args]
    op, args = ("sub", ["(kf_i64)0", *args]) if node.op == "neg" else (node.op, args)
    return f"{target.prefix}{op}_i64({', '.join(args)})"


MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def _ahead(head, ctype, text):
    """Moves a text before the loop and returns its name."""
    if head is None:
        return text
    return head.setdefault(f"const {ctype} {{}} = {text};", f"kfi_ahead{len(head)}")


def _compare_whole(graph, i, target, head):
    """Prints a comparison of integers. The column of an element is compared with a value per row by
    offsets from the first column of the loop: ints, of which the row's is computed before the loop.
    """
    op, (a, b) = graph.nodes[i].op, graph.nodes[i].args
    if graph.nodes[b].value == COLUMN:
        op, a, b = MIRRORED[op], b, a
    near = graph.nodes[a].value == COLUMN and graph.level(b) < ELEM
    texts = [_whole(graph, x, target) for x in (a, b)]
    if near:
        texts = [
            target.offset,
            _ahead(head, "int", f"{target.near}({texts[1]}, {target.whole[COLUMN]})"),
        ]
    if not target.masks:
        return f"{texts[0]} {COMPARE[op]} {texts[1]}", 0
    mask = f"{target.prefix}{op}_{'i32' if near else 'i64'}({', '.join(texts)})"
    if (target.mask_type == "uint64_t") == near:
        mask = f"{target.prefix}wide({mask})" if near else f"(uint32_t){mask}"
    return _ahead(head if graph.level(i) < ELEM else None, target.mask_type, mask), ATOM


def _print(graph, i, target, env, text, exact, head, fixed):
    """Returns (text, level of precedence) of a node. text: {node: the same} of its arguments."""
    node = graph.nodes[i]
    if graph.compares_whole(i):
        return _compare_whole(graph, i, target, head)
    if node.op == "const":
        body = target.const(node.value)
        return body, ATOM if not body.startswith(("-", "(")) else 3
    if node.op == "var":
        return env.get(node.value, node.value), ATOM
    if node.op == "where":
        return _print_where(graph, node, target, text)
    if node.op in ("add", "sub", "mul", "neg", "max", "min"):
        return _print_arithmetic(graph, node, target, text, fixed)
    if node.op in BOOLEAN:
        return _print_condition(node, target, text)
    return _print_call(node, target, text, exact)


def _argument(node, text, k, level):
    """Returns argument k, in parentheses if it binds weaker than `level`."""
    body, own = text[node.args[k]]
    return body if own >= level else f"({body})"


def _print_arithmetic(graph, node, target, text, fixed):
    args = [text[a][0] for a in node.args]
    floats = target.flavour not in ("i32", "i64")
    match node.op:
        case "mul" if target.masks and target.flavour == "lp" and _is_silu(graph, node):
            return f"{target.prefix}silu_lp({args[0]})", ATOM
        case "add" | "sub" if target.fuses and all(
            graph.nodes[a].op == "mul" and a not in fixed for a in node.args
        ):
            twice = node.args[0] == node.args[1]
            return _of_two_products(graph, node, target, text), 2 if twice else ATOM
        case "neg" if floats:
            return f"-{_argument(node, text, 0, 4)}", 3
        case "neg":
            return f"{target.prefix}sub_{target.flavour}(0, {args[0]})", ATOM
        case "add" | "sub" | "mul" if floats:
            sign, level = INFIX[node.op]
            first, second = (_argument(node, text, k, level + k) for k in (0, 1))
            return f"{first} {sign} {second}", level
    flavour = "lp" if floats and node.op in target.cheap else target.flavour
    return f"{target.prefix}{node.op}_{flavour}({', '.join(args)})", ATOM


def _print_where(graph, node, target, text):
    args = [text[a][0] for a in node.args]
    if not target.masks and graph.nodes[node.args[0]].value == KEEP:
        # Dropout: the other arm is 0.
        return f"kfi_select_kept({args[0]}, rng, {args[1]})", ATOM
    if target.masks:
        return f"{target.prefix}select_{target.suffix}({', '.join(args)})", ATOM
    if any(_expensive(graph, a) for a in node.args[1:]):
        return f"kfi_select({', '.join(args)})", ATOM
    first, second = (_argument(node, text, k, 1) for k in (1, 2))
    return f"({args[0]} ? {first} : {second})", ATOM


def _print_condition(node, target, text):
    """Prints a comparison of floats or an operation on conditions."""
    args = [text[a][0] for a in node.args]
    if node.op == "not":
        return ("~" if target.masks else "!") + f"({args[0]})", 3
    if node.op in COMPARE and target.masks:
        return f"{target.prefix}{node.op}_{target.suffix}({', '.join(args)})", ATOM
    first, second = (_argument(node, text, k, 1) for k in (0, 1))
    if node.op in COMPARE:
        return f"{first} {COMPARE[node.op]} {second}", 0
    sign = {"and": "&", "or": "|"}[node.op] * (1 if target.masks else 2)
    return f"({first}) {sign} ({second})", 0


def _print_call(node, target, text, exact):
    """Prints an activation or a math function."""
    args = [text[a][0] for a in node.args]
    if node.op in ("act", "act_bwd", "act_bwd_out"):
        return getattr(target, node.op)(*args), ATOM
    if node.op == "stored":
        return (target.stored(*args), ATOM) if target.stored else text[node.args[0]]
    if node.op == "div" and "quotient" in target.cheap and not exact:
        return f"{target.prefix}quotient_lp({', '.join(args)})", ATOM
    flavour = "lp" if node.op in target.cheap else target.flavour
    return f"{target.prefix}{node.op}_{flavour}({', '.join(args)})", ATOM


def _rounded(graph, i, target, text):
    """Prints a product that compilers do not fuse with a sum."""
    a, b = (text[x][0] for x in graph.nodes[i].args)
    return f"{target.prefix}mul_{target.suffix}({a}, {b})"


def _of_two_products(graph, node, target, text):
    """Prints a * b + c * d as an FMA of the first product: left to a compiler, instances of a
    kernel might fuse different products. Twice the same product is doubled after rounding.
    """
    first, second = node.args
    if first == second and node.op == "add":
        return f"{target.const(2)} * {text[first][0]}"
    a, b = (text[x][0] for x in graph.nodes[first].args)
    body, level = text[second]
    addend = body if node.op == "add" else f"-{body}" if level == ATOM else f"-({body})"
    return f"{target.prefix}fma_{target.suffix}({a}, {b}, {addend})"


def _gathered(a, columns, np):
    """Gathers each row's value in its column from [rows, columns] or [1, columns]."""
    if not np.shape(a)[-1]:
        return np.zeros(np.shape(columns))
    index = np.clip(columns, 0, np.shape(a)[-1] - 1).astype(np.int64)
    return np.take_along_axis(np.broadcast_to(a, (index.shape[0], np.shape(a)[-1])), index, -1)


def evaluate(graph, roots, env, np, sp):
    """Evaluates the roots in float64. env: {variable: array}. np and sp (scipy.special) are
    arguments because rendering needs neither.
    """
    functions = _elementwise(np, sp) | _over_rows(np, env)
    value = {}
    with np.errstate(all="ignore"):
        for i in graph.reachable(roots):
            node = graph.nodes[i]
            if node.op == "const":
                value[i] = np.float64(node.value)
            elif node.op == "var":
                value[i] = env[node.value]
            else:
                value[i] = functions[node.op](*(value[a] for a in node.args))
    return [value[r] for r in roots]


def _elementwise(np, sp):
    """Returns {primitive: function of arrays} of the elementwise primitives."""
    peak = 0.3989422804014327  # the normal density at 0
    return {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
        "neg": np.negative,
        "abs": np.abs,
        "max": np.maximum,
        "min": np.minimum,
        "exp": np.exp,
        "expm1": np.expm1,
        "log": np.log,
        "log1p": np.log1p,
        "log1p01": np.log1p,
        "sqrt": np.sqrt,
        "rsqrt": lambda a: 1 / np.sqrt(a),
        "rcp": lambda a: 1 / a,
        "sin": np.sin,
        "cos": np.cos,
        "tanh": np.tanh,
        "sigmoid": sp.expit,
        "erf": sp.erf,
        "normcdf": sp.ndtr,
        "normpdf": lambda a: np.exp(-0.5 * a * a) * peak,
        "gelu": lambda a: a * sp.ndtr(a),
        "gelu_bwd": lambda a: sp.ndtr(a) + a * np.exp(-0.5 * a * a) * peak,
        "where": np.where,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
        "and": np.logical_and,
        "or": np.logical_or,
        "not": np.logical_not,
        "stop": lambda a: a,
        "stored": lambda a: a,
    }


def _over_rows(np, env):
    """Returns {primitive: function of arrays} of the primitives that read a row."""

    def times(a):  # a value per row counts once per column
        return env[COUNT] if np.shape(a)[-1:] in ((), (1,)) else 1

    return {
        "sum": lambda a: np.sum(a, axis=-1, keepdims=True) * times(a),
        "rowprod": lambda a: np.prod(a, axis=-1, keepdims=True) ** times(a),
        "rowmax": lambda a: np.max(a, axis=-1, keepdims=True, initial=-np.inf),
        "rowmin": lambda a: np.min(a, axis=-1, keepdims=True, initial=np.inf),
        "pick": lambda a, b: np.where(
            (b >= 0) & (b < np.shape(a)[-1]), _gathered(a, b, np), np.nan
        ),
    }


def counts(graph, roots):
    """Counts the arithmetic operations per element, the flops of the documentation."""
    free = BOOLEAN | {"const", "var", "where", "neg", "abs", "stored"}
    return sum(
        graph.nodes[i].op not in free and graph.nodes[i].value != KEEP
        for i in graph.reachable(roots)
    )
