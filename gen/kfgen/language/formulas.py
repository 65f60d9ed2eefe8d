# SPDX-License-Identifier: Apache-2.0
"""What a function computes as statements of NumPy and of torch, the activation's own formula in them: for oracles, fallbacks and decompositions.

They read a function's arguments by name, tensors as arrays of their shapes in the manifest, and set its outputs. Where a tensor lies along fewer
axes than its results, it is reshaped first, so that it is broadcast.
"""

from dataclasses import dataclass

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
# Words that a library has no function for, {0} is the argument.
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
    """How one of them spells things. cast: what functions take that take no plain number. Of a reduction: (function, words behind the axes)."""

    name: str
    functions: dict
    normcdf: str
    spelled: dict
    reductions: dict
    axes: str  # the argument of a reduction
    keep: str
    take: str  # a value in each row's column
    bounded: str
    full: str
    device: str  # of what is made, {} for the tensor on whose it must be
    back: str  # to T and back to a tensor's dtype
    join: str
    cast: str
    single: tuple = ()  # reductions that take one axis at a time

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
    spelled=SPELLED | {"rsqrt": "({0} ** -0.5)"},
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
    """How the tensors of a kernel lie along the axes of its results."""

    def __init__(self, k):
        self.k, self.split = k, k.family.split.get(k.form, {})
        self.elem = self.parts(k.extents)
        kinds = k.family.forms[k.form]
        row = next((kind for kind in kinds if kind in k.family.row_kinds), None)
        self.rows = (
            self.view(kinds[row].split(", ")) if row else self.elem
        )  # of a value for each row
        self.reduced = tuple(
            i for i, (all_, own) in enumerate(zip(self.elem, self.rows)) if all_ != own
        )

    def parts(self, shape):
        return [part for extent in shape for part in self.split.get(extent, [extent])]

    def view(self, shape):
        """The extents it is reshaped to: 1 along the axes that it does not have."""
        own = self.parts(shape)
        return [extent if extent in own else "1" for extent in self.elem]

    def along(self, shape):
        """The axes that it has."""
        return frozenset(i for i, extent in enumerate(self.view(shape)) if extent != "1")

    def is_broadcast(self, shape):
        """Whether it is, without being reshaped."""
        view = self.view(shape)
        while view and view[0] == "1":
            view = view[1:]
        return view == list(shape)

    @property
    def all(self):
        return frozenset(range(len(self.elem)))

    def row_values(self, read):
        """{what an expression reads beside its operands: (its text, the axes that it has)}."""
        if not self.reduced:
            return {}
        count = " * ".join(
            f"({e})" if "//" in e else e for e in (self.elem[i] for i in self.reduced)
        )
        whole = f"({count})" if " * " in count else count
        found = {
            COUNT: (count, ()),
            PER_COUNT: (f"1 / {whole}", ()),
            COLUMN: (self.places(count, self.reduced), self.reduced),
        }
        if QUERIES in self.elem:
            at = (self.elem.index(QUERIES),)
            found |= {QUERIES: (QUERIES, ()), QUERY: (self.places(QUERIES, at), at)}
        return {name: value for name, value in found.items() if name in read}

    def places(self, count, axes):
        """From 0 on, along axes."""
        return f"{{arange}}({count}{{device}}).reshape({', '.join(e if i in axes else '1' for i, e in enumerate(self.elem))})"


class Printer:
    """Prints a graph in one library's words."""

    def __init__(self, library, frame, graph, axes, model):
        """axes: {name: the axes that it has, None: a plain number}. model: a tensor whose device and dtype the others have."""
        self.lib, self.frame, self.graph, self.axes, self.model = library, frame, graph, axes, model
        self.lines, self.text, self.along = [], {}, {}

    def run(self, roots):
        """Finds the text of every node; what is read twice has a line of its own."""
        uses = dict.fromkeys(self.graph.reachable(roots), 0)
        for i in roots:
            uses[i] += 1
        for user in uses:
            for a in self.graph.nodes[user].args:
                uses[a] += 2 if self.graph.nodes[user].op in self.lib.spelled else 1
        for i, count in uses.items():
            body, level, self.along[i] = self.node(i)
            if count > 1 and self.graph.nodes[i].args:
                name = f"t{len(self.lines)}_"  # no operand's name ends so
                self.lines.append(f"{name} = {body}")
                body, level = name, ATOM
            self.text[i] = body, level

    def at(self, i, level=0):
        body, own = self.text[i]
        return body if own >= level else f"({body})"

    def array(self, i, level=0):
        """As what functions take that take no plain number."""
        return self.lib.cast.format(self.at(i)) if self.along[i] is None else self.at(i, level)

    def node(self, i):
        """(text, how tightly it binds, the axes that it has; None: it is a plain number)."""
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
            # Comparisons in a row would be chained, and bind less tightly than & and |.
            inner = 4 if node.op in COMPARISONS else level
            return (
                f"{self.at(args[0], inner)} {sign} {self.at(args[1], inner if node.op in COMPARISONS else level + 1)}",
                level,
            )
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
            return f"torch.clamp({self.at(tensor)}, {'min' if node.op == 'max' else 'max'}={self.at(bound)})"
        return f"{self.lib.name}.{'maximum' if node.op == 'max' else 'minimum'}({self.at(a)}, {self.at(b)})"

    def reduction(self, node):
        text, axes = self.whole(node.args[0], frozenset(self.frame.reduced)), self.frame.reduced
        function = self.lib.reductions[node.op]
        if node.op in self.lib.single or len(axes) == 1:
            for axis in axes:
                text = f"{function}({text}, {self.lib.axes}={axis}, {self.lib.keep})"
            return text
        return f"{function}({text}, {self.lib.axes}={axes}, {self.lib.keep})"

    def whole(self, i, wanted, level=0):
        """With all of the wanted axes."""
        along = self.along[i]
        if along is None:
            return self.lib.full.format(
                shaped(self.extents(wanted)), self.at(i), self.lib.device.format(self.model)
            )
        return (
            self.at(i, level)
            if wanted <= along
            else f"{self.lib.name}.broadcast_to({self.at(i)}, {shaped(self.extents(wanted | along))})"
        )

    def extents(self, axes):
        return [e if i in axes else "1" for i, e in enumerate(self.frame.elem)]

    def pick(self, node):
        tensor, column = (self.at(a) for a in node.args)
        [axis] = self.frame.reduced
        last = f"{self.frame.elem[axis]}"
        taken = f"{self.lib.take}({tensor}, {self.lib.bounded.format(column, 0, f'{last} - 1')}, {axis})"
        return (
            f"{self.lib.name}.where(({column} >= 0) & ({column} < {last}), {taken}, float('nan'))"
        )


def inlined(k, act, by):
    """(the kernel's graph with the activation's own expressions, its roots)."""
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
    """(lines, the text of each value) of a kernel whose tensors are arrays of one shape by then: for families that say themselves how those
    come of its operands."""
    graph, roots = inlined(k, act, False)
    axes = dict.fromkeys((*k.scalars, *k.integers, *act.scalars)) | {
        p: frozenset((0,)) for s in k.inputs for p in s.parts
    }
    printer = Printer(LIBRARIES[library], None, graph, axes, None)
    printer.run(roots)
    return printer.lines, [printer.at(root) for root in roots]


def statements(k, act, library, by=False):
    """The lines of one library. by: with the activation's gradient by its result."""
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
            lines.append(
                f"{', '.join(s.parts)} = {s.name}[:, :{frame.elem[1]}], {s.name}[:, {frame.elem[1]}:]"
            )
        elif s.name in gathered or not frame.is_broadcast(k.shape(s)):
            lines.append(f"{s.name} = {s.name}.reshape({', '.join(frame.view(k.shape(s)))})")
    model = min(given, key=lambda s: s.kind != "elem").name
    for name, (text, along) in frame.row_values(read).items():
        if text != name:
            lines.append(
                f"{name} = {text.format(arange=f'{lib.name}.arange', device=lib.device.format(model))}"
            )
        axes[name] = frozenset(along) or None
    printer = Printer(lib, frame, graph, axes, model)
    printer.run(roots)
    found, results = iter(roots), []
    for s in k.outputs:
        results.append(_result(k, s, printer, [next(found) for _ in s.parts]))
    return lines + printer.lines + results


def _result(k, s, printer, found):
    """The statement that sets an output. found: the node of each of its parts."""
    frame, lib, shape = printer.frame, printer.lib, k.shape(s)
    if len(found) > 1:
        parts = ", ".join(printer.whole(node, frame.all) for node in found)
        return f"{s.name} = {lib.join}(({parts}), 1)"
    [node] = found
    view = frame.view(shape)
    if s.role == "sum":
        # What is the same for a row, and added up over the rows of a channel, is a value of each row.
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
