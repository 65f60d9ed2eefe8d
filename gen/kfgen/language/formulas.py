# SPDX-License-Identifier: Apache-2.0
"""Writes a function as statements of NumPy or PyTorch, for oracles, fallbacks and decompositions.

The statements contain the activation's own formula. They read the function's arguments by name,
tensors in the shapes of the manifest, and assign its outputs. A tensor with fewer axes than the
results is reshaped first so that it broadcasts.
"""

from dataclasses import dataclass, replace

from kfgen.language.expr import Graph
from kfgen.language.gradient import substitute
from kfgen.language.primitives import (
    COLUMN,
    COMPARISONS,
    COUNT,
    KEEP,
    PER_COUNT,
    QUERIES,
    QUERY,
    REDUCTIONS,
    ROW,
)

INFIX = {
    "add": ("+", 4),
    "sub": ("-", 4),
    "mul": ("*", 5),
    "div": ("/", 5),
    "lt": ("<", 1),
    "le": ("<=", 1),
    "gt": (">", 1),
    "ge": (">=", 1),
    "eq": ("==", 1),
    "ne": ("!=", 1),
    "and": ("&", 3),
    "or": ("|", 2),
}
UNARY = {"neg": "-", "not": "~"}
ATOM, SIGN = 9, 6
NORMPDF = "({exp}(-0.5 * {0} * {0}) * 0.3989422804014327)"
# Primitives without a library function; {0} is the argument.
SPELLED = {
    "rcp": "(1 / {0})",
    "normcdf": "{normcdf}",
    "normpdf": NORMPDF,
    "gelu": "({0} * {normcdf})",
    "gelu_bwd": f"({{normcdf}} + {{0}} * {NORMPDF})",
}
FUNCTIONS = {
    "abs": "abs",
    "exp": "exp",
    "expm1": "expm1",
    "log": "log",
    "log1p": "log1p",
    "log1p01": "log1p",
    "sqrt": "sqrt",
    "sin": "sin",
    "cos": "cos",
    "tanh": "tanh",
}


@dataclass(frozen=True)
class Library:
    """How a library writes operations; {} stands for arguments."""

    name: str
    functions: dict  # {primitive: function}
    normcdf: str
    spelled: dict  # {primitive: formula}
    reductions: dict
    axes: str  # keyword of a reduction's axes
    keep: str  # argument that keeps reduced axes
    take: str  # gathers a value per row
    bounded: str
    full: str
    device: str  # argument that creates a tensor on the device of {}
    back: str  # rounds to T and converts back
    join: str
    cast: str  # converts a number for functions that accept tensors only
    single: tuple = ()  # reductions that accept one axis at a time

    def word(self, op, text):
        if op in self.spelled:
            return self.spelled[op].format(
                text, exp=f"{self.name}.exp", normcdf=self.normcdf.format(text)
            )
        return f"{self.functions[op]}({text})"


def _library(name, own, **more):
    return Library(name, {op: f"{name}.{word}" for op, word in FUNCTIONS.items()} | own, **more)


NUMPY = _library(
    "np",
    {"sigmoid": "sp.expit", "erf": "sp.erf"},
    normcdf="sp.ndtr({0})",
    spelled=SPELLED | {"rsqrt": "(1 / np.sqrt({0}))"},
    reductions={"sum": "np.sum", "rowmax": "np.max", "rowmin": "np.min", "rowprod": "np.prod"},
    axes="axis",
    keep="keepdims=True",
    take="np.take_along_axis",
    bounded="np.clip({}, {}, {})",
    full="np.full({}, {}{})",
    device="",
    back="{}.astype(T).astype({}.dtype)",
    join="np.concatenate",
    cast="{}",
)
TORCH = _library(
    "torch",
    {"sigmoid": "torch.sigmoid", "erf": "torch.erf", "rsqrt": "torch.rsqrt"},
    # torch.special.ndtr and torch.nn.functional.gelu cancel far below 0.
    normcdf="(0.5 * torch.erfc(-0.7071067811865476 * {0}))",
    spelled=SPELLED,
    reductions={
        "sum": "torch.sum",
        "rowmax": "torch.amax",
        "rowmin": "torch.amin",
        "rowprod": "torch.prod",
    },
    axes="dim",
    keep="keepdim=True",
    take="torch.take_along_dim",
    bounded="torch.clamp({}, {}, {})",
    full="torch.full({}, {}{})",
    device=", device={}.device",
    back="{}.to(T).to({}.dtype)",
    join="torch.cat",
    cast="torch.as_tensor({}, dtype=torch.float64)",
    single=("rowprod",),
)
LIBRARIES = {"numpy": NUMPY, "torch": TORCH}


def shaped(extents):
    return f"({', '.join(extents)}{',' if len(extents) == 1 else ''})"


class Frame:
    """Maps the tensors of a kernel to the axes of its results."""

    def __init__(self, k):
        _, rules = k.family.axes.get(k.form, (None, {}))
        self.k = k
        # {size that another one divides: the two factors as extents}.
        self.split = {
            rule["divides"]: (size, f"{rule['divides']} // {size}")
            for size, rule in rules.items()
            if "divides" in rule
        }
        self.elem = self.parts(k.extents)
        kinds = k.family.forms[k.form]
        row = next((kind for kind in kinds if kind in k.family.row_kinds), None)
        # Extents of a value per row.
        self.rows = self.view(kinds[row].split(", ")) if row else self.elem
        self.reduced = tuple(
            i for i, (all_, own) in enumerate(zip(self.elem, self.rows)) if all_ != own
        )

    def parts(self, shape):
        return [part for extent in shape for part in self.split.get(extent, [extent])]

    def view(self, shape):
        """Returns the shape that broadcasts: 1 along the axes that the tensor lacks."""
        own = self.parts(shape)
        return [extent if extent in own else "1" for extent in self.elem]

    def along(self, shape):
        """Returns the axes of the tensor."""
        return frozenset(i for i, extent in enumerate(self.view(shape)) if extent != "1")

    def is_broadcast(self, shape):
        """True if the tensor broadcasts without a reshape."""
        view = self.view(shape)
        while view and view[0] == "1":
            view = view[1:]
        return view == list(shape)

    @property
    def all(self):
        return frozenset(range(len(self.elem)))

    def row_values(self, read):
        """Returns {name: (text, axes)} of the row names that an expression reads."""
        if not self.reduced:
            return {}
        count = " * ".join(
            f"({e})" if "//" in e else e for e in (self.elem[i] for i in self.reduced)
        )
        whole = f"({count})" if " * " in count else count
        found = {
            COUNT: (count, ()),
            PER_COUNT: (f"1 / {whole}", ()),
            COLUMN: (self.indices(count, self.reduced), self.reduced),
        }
        if QUERIES in self.elem:
            at = (self.elem.index(QUERIES),)
            found |= {QUERIES: (QUERIES, ()), QUERY: (self.indices(QUERIES, at), at)}
        return {name: value for name, value in found.items() if name in read}

    def indices(self, count, axes):
        """Returns the text of indices along axes, from 0."""
        shape = ", ".join(e if i in axes else "1" for i, e in enumerate(self.elem))
        return f"{{arange}}({count}{{device}}).reshape({shape})"


class Printer:
    """Prints a graph as statements of a library."""

    def __init__(self, library, frame, graph, axes, model):
        """axes: {name: its axes; None: a plain number}. model: a tensor with the device and dtype
        of the result.
        """
        self.lib, self.frame, self.graph, self.axes, self.model = library, frame, graph, axes, model
        self.lines, self.text, self.along = [], {}, {}

    def run(self, roots):
        """Prints every node; one that is read twice gets a line."""
        uses = dict.fromkeys(self.graph.reachable(roots), 0)
        for i in roots:
            uses[i] += 1
        for user in uses:
            for a in self.graph.nodes[user].args:
                uses[a] += 2 if self.graph.nodes[user].op in self.lib.spelled else 1
        for i, count in uses.items():
            body, level, self.along[i] = self.node(i)
            if count > 1 and self.graph.nodes[i].args:
                name = f"t{len(self.lines)}_"  # no operand has a trailing underscore
                self.lines.append(f"{name} = {body}")
                body, level = name, ATOM
            self.text[i] = body, level

    def at(self, i, level=0):
        body, own = self.text[i]
        return body if own >= level else f"({body})"

    def array(self, i, level=0):
        """Prints node i for functions that accept no plain numbers."""
        return self.lib.cast.format(self.at(i)) if self.along[i] is None else self.at(i, level)

    def node(self, i):
        """Returns (text, precedence, axes; None: a plain number)."""
        node = self.graph.nodes[i]
        if node.op == "const":
            return (
                ("float('inf')" if node.value == float("inf") else repr(node.value)),
                ATOM if node.value >= 0 else SIGN,
                None,
            )
        if node.op == "var":
            return node.value, ATOM, self.axes[node.value]
        known = [self.along[a] for a in node.args if self.along[a] is not None]
        along = frozenset().union(*known) if known else None
        if node.op in REDUCTIONS.values():
            return self.reduction(node), ATOM, frozenset(along or ()) - set(self.frame.reduced)
        if node.op == "pick":
            return self.pick(node), ATOM, along - set(self.frame.reduced)
        if node.op == "stored":
            return self.lib.back.format(self.at(node.args[0], ATOM), self.model), ATOM, along
        return *self.elementwise(node, along), along

    def elementwise(self, node, along):
        args = node.args
        if node.op in INFIX:
            sign, level = INFIX[node.op]
            if along is None and node.op in ("and", "or"):
                return f"({self.at(args[0])} {node.op} {self.at(args[1])})", ATOM
            # Comparisons would be chained, and have a lower precedence than & and |.
            left, right = (4, 4) if node.op in COMPARISONS else (level, level + 1)
            return f"{self.at(args[0], left)} {sign} {self.at(args[1], right)}", level
        if node.op in UNARY:
            return (
                (f"not {self.at(args[0], ATOM)}", 0)
                if along is None and node.op == "not"
                else (UNARY[node.op] + self.at(args[0], SIGN), SIGN)
            )
        if node.op == "where":
            condition, a, b = (self.at(n) for n in args)
            return f"({a} if {condition} else {b})" if self.along[
                args[0]
            ] is None else f"{self.lib.name}.where({condition}, {a}, {b})", ATOM
        if node.op in ("max", "min"):
            return self.extreme(node, along), ATOM
        return self.lib.word(
            node.op, self.array(args[0], ATOM if node.op in self.lib.spelled else 0)
        ), ATOM

    def extreme(self, node, along):
        a, b = node.args
        if along is None:
            return f"{node.op}({self.at(a)}, {self.at(b)})"
        if self.lib is TORCH and None in (self.along[a], self.along[b]):
            tensor, bound = (b, a) if self.along[a] is None else (a, b)
            limit = "min" if node.op == "max" else "max"
            return f"torch.clamp({self.at(tensor)}, {limit}={self.at(bound)})"
        function = "maximum" if node.op == "max" else "minimum"
        return f"{self.lib.name}.{function}({self.at(a)}, {self.at(b)})"

    def reduction(self, node):
        text, axes = self.whole(node.args[0], frozenset(self.frame.reduced)), self.frame.reduced
        function = self.lib.reductions[node.op]
        if node.op in self.lib.single or len(axes) == 1:
            for axis in axes:
                text = f"{function}({text}, {self.lib.axes}={axis}, {self.lib.keep})"
            return text
        return f"{function}({text}, {self.lib.axes}={axes}, {self.lib.keep})"

    def whole(self, i, wanted, level=0):
        """Prints node i broadcast to the wanted axes."""
        along = self.along[i]
        if along is None:
            return self.lib.full.format(
                shaped(self.extents(wanted)), self.at(i), self.lib.device.format(self.model)
            )
        if wanted <= along:
            return self.at(i, level)
        shape = shaped(self.extents(wanted | along))
        return f"{self.lib.name}.broadcast_to({self.at(i)}, {shape})"

    def extents(self, axes):
        return [e if i in axes else "1" for i, e in enumerate(self.frame.elem)]

    def pick(self, node):
        tensor, column = (self.at(a) for a in node.args)
        [axis] = self.frame.reduced
        last = f"{self.frame.elem[axis]}"
        index = self.lib.bounded.format(column, 0, f"{last} - 1")
        taken = f"{self.lib.take}({tensor}, {index}, {axis})"
        return (
            f"{self.lib.name}.where(({column} >= 0) & ({column} < {last}), {taken}, float('nan'))"
        )


def inlined(k, act, by):
    """Returns (the kernel's graph with the activation inlined, its roots)."""
    if by:
        return k.graph_by(act)
    graph = Graph(k.graph.levels, k.graph.whole)
    own = {name: graph.var(name) for name in act.scalars}
    return graph, substitute(
        k.graph,
        graph,
        k.roots,
        {},
        (lambda x: act.build(graph, x, own), lambda x, dy: act.build_bwd(graph, x, dy, own)),
    )


def elementwise(k, act, library):
    """Returns (lines, the text of each value) of a kernel on arrays of one shape, for families that
    derive these arrays from the operands themselves.
    """
    graph, roots = inlined(k, act, False)
    axes = dict.fromkeys((*k.scalars, *k.integers, *act.scalars)) | {
        p: frozenset((0,)) for s in k.inputs for p in s.parts
    }
    printer = Printer(LIBRARIES[library], None, graph, axes, None)
    printer.run(roots)
    return printer.lines, [printer.at(root) for root in roots]


def statements(k, act, library, by=False):
    """Returns a function's statements. by: the gradient reads the activation's result."""
    lib, frame = LIBRARIES[library], Frame(k)
    graph, roots = inlined(k, act, by)
    read = graph.variables(roots)
    gathered = {graph.nodes[node.args[0]].value for node in graph.nodes if node.op == "pick"}
    lines, axes = (
        [],
        {name: None for name in (*k.scalars, *k.integers, *act.scalars, "keep_scale")}
        | {KEEP: frame.all},
    )
    given = [s for s in k.inputs if read & set(s.parts)]
    for s in given:
        axes |= dict.fromkeys(s.parts, frame.all if len(s.parts) > 1 else frame.along(k.shape(s)))
        if len(s.parts) > 1:
            cols = frame.elem[1]
            lines.append(f"{', '.join(s.parts)} = {s.name}[:, :{cols}], {s.name}[:, {cols}:]")
        elif s.name in gathered or not frame.is_broadcast(k.shape(s)):
            lines.append(f"{s.name} = {s.name}.reshape({', '.join(frame.view(k.shape(s)))})")
    model = min(given, key=lambda s: s.kind != "elem").name
    for name, (text, along) in frame.row_values(read).items():
        if text != name:
            device = lib.device.format(model)
            lines.append(f"{name} = {text.format(arange=f'{lib.name}.arange', device=device)}")
        axes[name] = frozenset(along) or None
    printer = Printer(lib, frame, graph, axes, model)
    printer.run(roots)
    found, results = iter(roots), []
    for s in k.updated:  # which other values may still read
        results.append(_result(k, replace(s, name=s.next_name), printer, [next(found)]))
    for s in k.outputs:
        results.append(_result(k, s, printer, [next(found) for _ in s.parts]))
    results += [f"{s.name} = {s.next_name}" for s in k.updated]
    return lines + printer.lines + results


def _result(k, s, printer, found):
    """Returns the statement that assigns an output. found: nodes of its parts."""
    frame, lib, shape = printer.frame, printer.lib, k.shape(s)
    if len(found) > 1:
        parts = ", ".join(printer.whole(node, frame.all) for node in found)
        return f"{s.name} = {lib.join}(({parts}), 1)"
    [node] = found
    view = frame.view(shape)
    if s.role == "sum":
        # A value per row that is summed over the rows of a channel counts once per row.
        whole = (
            frame.rows
            if k.graph.levels is not None and k.graph.levels.get(s.of) == ROW
            else frame.elem
        )
        text = printer.whole(node, frozenset(i for i, e in enumerate(whole) if e != "1"))
        over = tuple(i for i, e in enumerate(view) if e == "1")
        text = f"{lib.reductions['sum']}({text}, {lib.axes}={over if len(over) > 1 else over[0]})"
        left = [e for e in view if e != "1"]
    else:
        text, left = (
            printer.whole(node, frame.along(shape), ATOM if view != list(shape) else 0),
            view,
        )
    return f"{s.name} = {text}" + ("" if left == list(shape) else f".reshape({', '.join(shape)})")
