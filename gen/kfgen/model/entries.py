# SPDX-License-Identifier: Apache-2.0
"""What a spec file says, as objects, and the names that may be given."""

import ast
import contextlib
import functools
import hashlib
import keyword
import re
from dataclasses import dataclass, field

from kfgen.language.expr import Graph, parse
from kfgen.language.gradient import gradient, substitute
from kfgen.language.primitives import OVER_ROWS, ARG_REDUCTIONS, PRIMITIVES

# Ids of activations, with which kernels are instantiated. kf's own are written down: from 0 on, and fixed for ever. Users' follow from their
# names, so that headers of people who do not know of each other may meet in one program. ANY_ID is for an activation chosen at run time.
KF_IDS = range(1024)
FIRST_OWN_ID, ANY_ID = 2**30, 2**31 - 1
PATTERN = re.compile(r"(?:[a-z][a-z0-9]*|\{act\})(?:_(?:[a-z0-9]+|\{act\}))*\Z")
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
# Words that an operand, a scalar or a result may not have for its name, in any family: it is an argument of C functions, and expressions read it. In
# generated code it has a name of its own (rename.py), so nothing there is among them. First kf's public names: other arguments of launchers
# and of functions on tensors, what the formulas of a manifest read, and what expressions and references are written in.
PUBLIC = {
    "act_scalars",
    "activation",
    "activation_scalars",
    "axis",
    "batch",
    "channels",
    "cols",
    "column",
    "count",
    "ctx",
    "depth",
    "dim",
    "dropout",
    "dy",
    "expit",
    "groups",
    "heads",
    "inf",
    "inner",
    "keep",
    "keep_scale",
    "keys",
    "kv_heads",
    "length",
    "n",
    "np",
    "offset",
    "offset_add",
    "out",
    "outer",
    "p",
    "pairs",
    "per_count",
    "positions",
    "queries",
    "query",
    "rows",
    "seed",
    "sp",
    "stream",
    "strides",
    "torch",
    "vocab",
    "workspace",
    "workspace_bytes",
} | (set(PRIMITIVES) - OVER_ROWS)
# Keywords of C, C++ and CUDA, what C's headers and compilers define as macros; Python's, in which expressions are parsed.
KEYWORDS = {
    "alignas",
    "alignof",
    "and_eq",
    "asm",
    "auto",
    "bitand",
    "bitor",
    "bool",
    "case",
    "catch",
    "char",
    "class",
    "co_await",
    "co_return",
    "co_yield",
    "compl",
    "concept",
    "const",
    "const_cast",
    "consteval",
    "constexpr",
    "constinit",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "enum",
    "errno",
    "explicit",
    "export",
    "extern",
    "false",
    "float",
    "friend",
    "goto",
    "inline",
    "int",
    "linux",
    "long",
    "main",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not_eq",
    "nullptr",
    "operator",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "reinterpret_cast",
    "requires",
    "restrict",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "static_cast",
    "stderr",
    "stdin",
    "stdout",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "true",
    "typedef",
    "typeid",
    "typename",
    "typeof",
    "typeof_unqual",
    "union",
    "unix",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "xor",
    "xor_eq",
} | set(keyword.kwlist)
TYPE = re.compile(
    r"(u?int(8|16|32|64|max|ptr)|size|ptrdiff|wchar|char8|char16|char32|nullptr|max_align)_t\Z"
)  # of C
PREFIXES = ("kf_", "kfi_", "kfk_")

UNUSABLE = "choose a lower-case word that nothing else here has and that neither C, C++ nor Python gives a meaning"


def usable(name):
    """Whether an operand, a scalar or an output may have this name: it becomes an argument of C functions."""
    return (
        bool(NAME.match(name))
        and name not in PUBLIC | KEYWORDS
        and not TYPE.match(name)
        and not name.startswith(PREFIXES)
    )


@functools.lru_cache(4096)
def _names(text):
    """(the names in an expression but for those it calls, those it calls). A text that is none has no names: it is refused elsewhere."""
    nodes = []
    for whole in (
        text.strip(),
        " ".join(text.split()),
    ):  # statements, a line each; or one expression over several lines
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            nodes = nodes or list(ast.walk(ast.parse(whole)))
    called = [
        node.func
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    own = {node.id for node in nodes if isinstance(node, ast.Name) and node not in called}
    return frozenset(own), frozenset(node.id for node in called)


def own_id(stem, name):
    """Of a user's activation, from the names of its file and its own."""
    digest = hashlib.sha256(f"{stem} {name}".encode()).digest()
    return FIRST_OWN_ID + int.from_bytes(digest[:8], "big") % (ANY_ID - FIRST_OWN_ID)


def names_read(text):
    """A value may be called `mean`, which is a word as well."""
    return _names(text)[0]


def names_called(text):
    return _names(text)[1]


class SpecError(Exception):
    def __init__(self, file, entry, field_, problem, fix):
        self.field, self.problem, self.fix = field_, problem, fix
        super().__init__(f"{file}: [{entry}] {field_}: {problem}\n  fix: {fix}")


@dataclass
class Activation:
    name: str
    id: int
    brief: str
    expr: str
    dexpr: str | None
    scalars: dict  # name: the value that tests use
    ref: str
    dref: str | None
    edges: dict
    dedges: dict
    ulp: dict
    ints: bool
    rounding: str
    budget: dict
    source: str
    since: str
    file: str
    builtin: bool
    scalar_info: dict = field(default_factory=dict)  # name of a scalar: Scalar
    heavy: bool = False  # whether families of heavy kernels have it
    dexpr_out: str | None = None  # the gradient by the result
    dref_out: str | None = None
    rising: tuple = ()  # scalars that dexpr_out needs to be 0 or more

    def build(self, graph, x, scalars):
        return parse(graph, self.expr, {"x": x, **scalars})

    def build_bwd(self, graph, x, dy, scalars):
        """The gradient: dexpr where given, derived from expr otherwise."""
        if self.dexpr:
            return parse(graph, self.dexpr, {"x": x, "dy": dy, **scalars})
        local = Graph()  # differentiated on its own, so that x may be any expression outside
        names = {name: local.var(name) for name in ("x", "dy", *scalars)}
        y = self.build(local, names["x"], {s: names[s] for s in scalars})
        dx = gradient(local, {y: names["dy"]}, [names["x"]])[names["x"]]
        return substitute(
            local, graph, [local.const(0) if dx is None else dx], {"x": x, "dy": dy, **scalars}
        )[0]

    def build_bwd_out(self, graph, y, dy, scalars):
        """The gradient by the result y."""
        return parse(graph, self.dexpr_out, {"y": y, "dy": dy, **scalars})


@dataclass
class Operand:
    name: str
    kind: str
    # "T" the op's dtype, "U" the second one, "acc" float32 (float64 for f64), "I" whole numbers, such as labels: functions for i64 and for
    # i32; "u8" conditions, read as 0 or 1
    dtype: str = "T"
    grad: bool = True
    parts: tuple = ()  # the names of the two halves of a "half" operand
    positive: bool = False  # tests draw it from (0, inf)
    absent: float | None = (
        None  # the value of every element if the pointer is NULL; None: it may not be
    )

    @property
    def values(self):
        """The names under which expressions read it."""
        return self.parts or (self.name,)


@dataclass
class Op:
    pattern: str
    brief: str
    operands: list
    outputs: dict  # name: expression
    scalars: dict  # name: the value that tests use
    refs: dict
    ints: bool
    without: tuple
    types: str  # "one", "pairs", or what may be float32 beside 2-byte tensors: "weights", "results"
    source: str
    since: str
    file: str
    builtin: bool
    family: str = "elementwise"
    saved: dict = field(
        default_factory=dict
    )  # name: expression that is the same for a row, an output for the backward
    scalar_info: dict = field(default_factory=dict)  # name of a scalar: Scalar
    integers: tuple = ()  # those of its scalars that are whole numbers of 64 bits
    updates: dict = field(
        default_factory=dict
    )  # per_row operand: expression of its next value, an output that may be in its place
    layout: str = ""  # "channels", or as the operands' kinds have it
    reduced: tuple = ()  # reductions of its elements that are ops of their own, as losses have
    reduction: str = ""  # "mean" or "sum", of an op that another one's `reduced` has made
    empty: str = "value"  # of no elements: "value", what the expression gives; "error", which the function returns
    grads: dict = field(
        default_factory=dict
    )  # operand: expression of its gradient, where the derived one is not wanted
    activations: list = field(default_factory=list)
    own: dict = field(default_factory=dict)  # what its family alone has fields for
    made_of: tuple = ()  # entries whose functions its own ones call
    extra: dict = field(
        default_factory=dict
    )  # that its expressions may call beside the language's own: {name: function (graph, nodes) -> node}

    @functools.cached_property
    def dropout(self):
        return any("dropout" in names_called(text) for text in self.outputs.values())

    @property
    def has_act(self):
        return "{act}" in self.pattern

    @property
    def indexed(self):
        """Whether it reads whole numbers, of either dtype, or gives them."""
        return any(o.dtype == "I" for o in self.operands) or any(
            ARG_REDUCTIONS.keys() & names_called(text) for text in self.outputs.values()
        )

    @property
    def values_of_rows(self):
        """{name of an output that is one per row: its expression}, beside those of `outputs`."""
        return self.saved | {updated(name): text for name, text in self.updates.items()}


def updated(name):
    """The output that is an operand's next value."""
    return f"{name}_out"


@dataclass
class Spec:
    activations: dict
    ops: dict
    files: list
    own: object = None  # the Spec of kf's own entries, whose ops these have copies of
    made: dict = field(
        default_factory=dict
    )  # of that Spec: kernels, for all that load it (render.Selection)

    def as_own(self, op):
        """Whether an entry is kf's own as it was loaded: of it, its activations and what it is made of nothing has been changed."""
        own = self.own.ops.get(op.pattern) if self.own else None
        return own is not None and all(
            getattr(op, name) is getattr(own, name) for name in Op.__dataclass_fields__
        )


@dataclass(frozen=True)
class Scalar:
    """What is said of a run-time scalar beside its name."""

    value: float  # tests use it; whole numbers of 64 bits are ints
    default: float  # that frontends take where they are given none
    least: float | None = (
        None  # outside of these bounds it has no meaning, which launchers do not check
    )
    most: float | None = None
