# SPDX-License-Identifier: Apache-2.0
"""Entries of a spec file as objects, typed access to their fields, and the names they may use."""

import ast
import contextlib
import functools
import hashlib
import keyword
import re
from dataclasses import dataclass, field

from kfgen.language.expr import Graph, parse
from kfgen.language.gradient import gradient, substitute
from kfgen.language.primitives import ARG_REDUCTIONS, OVER_ROWS, PRIMITIVES
from kfgen.model.types import FIRST, INDEX_VARIABLE, Types

# Activation ids instantiate kernels. kf's own ids are written in the entries and never change. A
# user's id is a hash of its names, so that headers of independent users can meet in one program.
# ANY_ID is the id of a run-time activation.
KF_IDS = range(1024)
FIRST_OWN_ID, ANY_ID = 2**30, 2**31 - 1
PATTERN = re.compile(
    r"(?:[a-z][a-z0-9]*|\{act\}|\{layout\})(?:_(?:[a-z0-9]+|\{act\}|\{layout\}))*\Z"
)
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
# Names that no operand, scalar or result may have: each becomes an argument of C functions and a
# name in expressions. Names of generated code are allowed: rename.py gives operands other names
# there. PUBLIC holds kf's public names: other arguments of launchers and of functions on tensors,
# and the names that formulas, expressions and references read.
PUBLIC = set(
    """
    act_scalars activation activation_scalars axis batch channels cols column count ctx depth
    dim dropout dy expit groups heads inf inner keep keep_scale keys kv_heads length lengths n np
    offset offset_add out outer p pairs per_count positions queries query rows seed sp stream
    strides torch vocab workspace workspace_bytes
    """.split()
) | (set(PRIMITIVES) - OVER_ROWS)
# Keywords of C, C++, CUDA and Python, and macros of C headers and compilers.
KEYWORDS = set(
    """
    alignas alignof and_eq asm auto bitand bitor bool case catch char class co_await co_return
    co_yield compl concept const const_cast consteval constexpr constinit decltype default
    delete do double dynamic_cast enum errno explicit export extern false float friend goto
    inline int linux long main mutable namespace new noexcept not_eq nullptr operator or_eq
    private protected public register reinterpret_cast requires restrict short signed sizeof
    static static_assert static_cast stderr stdin stdout struct switch template this
    thread_local throw true typedef typeid typename typeof typeof_unqual union unix unsigned
    using virtual void volatile xor xor_eq
    """.split()
) | set(keyword.kwlist)
# C types.
TYPE = re.compile(
    r"(u?int(8|16|32|64|max|ptr)|size|ptrdiff|wchar|char8|char16|char32|nullptr|max_align)_t\Z"
)
PREFIXES = ("kf_", "kfi_", "kfk_")

UNUSABLE = (
    "choose a lower-case name that is new in this entry and is no keyword of C, C++ or Python"
)


def usable(name):
    """True if an operand, a scalar or an output may have this name."""
    return (
        bool(NAME.match(name))
        and name not in PUBLIC | KEYWORDS
        and not TYPE.match(name)
        and not name.startswith(PREFIXES)
    )


@functools.lru_cache(4096)
def _names(text):
    """Returns (names that an expression reads, names that it calls). A text that is no expression
    has no names: other checks report it.
    """
    nodes = []
    # Statements on lines of their own, or one expression over several lines.
    for whole in (text.strip(), " ".join(text.split())):
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
    """Returns the id of a user's activation, from the names of its file and its own."""
    digest = hashlib.sha256(f"{stem} {name}".encode()).digest()
    return FIRST_OWN_ID + int.from_bytes(digest[:8], "big") % (ANY_ID - FIRST_OWN_ID)


def names_read(text):
    """Returns the names that an expression reads. `mean` may name a value although it is a
    function.
    """
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
    scalar_info: dict = field(default_factory=dict)  # {scalar: Scalar}
    heavy: bool = False  # True: families whose kernels compile slowly have it, too
    dexpr_out: str | None = None  # the gradient from the result
    dref_out: str | None = None
    rising: tuple = ()  # scalars that dexpr_out requires to be >= 0
    # {scalar: its name in the expressions}, if generated code has another one.
    spelled: dict = field(default_factory=dict)

    def _parse(self, graph, text, scalars, **names):
        return parse(graph, text, names | {self.spelled.get(s, s): i for s, i in scalars.items()})

    def build(self, graph, x, scalars):
        return self._parse(graph, self.expr, scalars, x=x)

    def build_bwd(self, graph, x, dy, scalars):
        """Adds the gradient: dexpr if given, else derived from expr."""
        if self.dexpr:
            return self._parse(graph, self.dexpr, scalars, x=x, dy=dy)
        local = Graph()  # a graph of its own, since x may be any expression
        names = {name: local.var(name) for name in ("x", "dy", *scalars)}
        y = self.build(local, names["x"], {s: names[s] for s in scalars})
        dx = gradient(local, {y: names["dy"]}, [names["x"]])[names["x"]]
        return substitute(
            local, graph, [local.const(0) if dx is None else dx], {"x": x, "dy": dy, **scalars}
        )[0]

    def build_bwd_out(self, graph, y, dy, scalars):
        """Adds the gradient from the result y."""
        return self._parse(graph, self.dexpr_out, scalars, y=y, dy=dy)


@dataclass
class Operand:
    name: str
    kind: str
    # A type variable of the entry; "acc": float32 (float64 for f64); "I": integers such as labels,
    # with functions for i64 and i32; "u8": conditions, read as 0 or 1.
    dtype: str = FIRST
    grad: bool = True
    grad_dtype: str = ""  # type variable of its gradient; empty: the operand's
    parts: tuple = ()  # names of the halves of a "half" operand
    positive: bool = False  # tests draw it from (0, inf)
    absent: float | None = None  # value that a NULL pointer stands for; None: NULL is an error

    @property
    def values(self):
        """Names by which expressions read the operand."""
        return self.parts or (self.name,)


@dataclass
class Op:
    pattern: str
    brief: str
    operands: list
    outputs: dict  # {name: expression}
    scalars: dict  # {name: value in tests}
    refs: dict
    ints: bool
    without: tuple
    types: Types
    source: str
    since: str
    file: str
    builtin: bool
    family: str = ""
    entry: str = ""  # key in its file: the pattern of several ops if the entry makes several
    # {result or saved value: its type variable}, where it is not its family's.
    dtypes: dict = field(default_factory=dict)
    # {name: expression per row}: outputs that the backward reads.
    saved: dict = field(default_factory=dict)
    scalar_info: dict = field(default_factory=dict)  # {scalar: Scalar}
    integers: tuple = ()  # scalars that are 64-bit integers
    # {operand: expression of its next value}: over rows, outputs that may be in place; in families
    # with `in_place` kinds, operands that are read and then overwritten.
    updates: dict = field(default_factory=dict)
    layout: str = ""  # "channels"; empty: the operands' kinds imply it
    variants: tuple = ()  # suffixes of names.VARIANTS that its functions also exist with
    reduced: tuple = ()  # reductions that become ops of their own, as for losses
    reduction: str = ""  # "mean" or "sum" of an op made from another entry's `reduced`
    empty: str = "value"  # empty axis: "value", the expression's; "error", which is returned
    # {operand: expression of its gradient}, instead of the derived one.
    grads: dict = field(default_factory=dict)
    activations: list = field(default_factory=list)
    own: dict = field(default_factory=dict)  # fields of its family alone
    made_of: tuple = ()  # entries whose functions its functions call
    # Further functions of its expressions: {name: (graph, nodes) -> node}.
    extra: dict = field(default_factory=dict)

    @functools.cached_property
    def dropout(self):
        return any("dropout" in names_called(text) for text in self.outputs.values())

    @property
    def has_act(self):
        return "{act}" in self.pattern

    @property
    def indexed(self):
        """True if the op reads or returns integers, of either index dtype."""
        return any(o.dtype == INDEX_VARIABLE for o in self.operands) or any(
            ARG_REDUCTIONS.keys() & names_called(text) for text in self.outputs.values()
        )

    @property
    def values_of_rows(self):
        """{output per row: expression} of saved values and updates."""
        return self.saved | {updated(name): text for name, text in self.updates.items()}


def updated(name):
    """Names the output that holds an operand's next value."""
    return f"{name}_out"


@dataclass
class Spec:
    activations: dict
    ops: dict
    files: list
    own: object = None  # Spec of kf's own entries; `ops` has copies of its ops
    made: dict = field(default_factory=dict)  # kernels of that Spec, shared by all that load it

    def as_own(self, op):
        """True if an op is kf's own and unchanged, with its activations and the ops it calls."""
        own = self.own.ops.get(op.pattern) if self.own else None
        return own is not None and all(
            getattr(op, name) is getattr(own, name) for name in Op.__dataclass_fields__
        )


@dataclass(frozen=True)
class Scalar:
    """Values and bounds of a run-time scalar."""

    value: float  # value in tests; an int for 64-bit integers
    default: float  # default in frontends
    # Bounds that launchers check, both included: numbers, or names of other scalars.
    least: float | str | None = None
    most: float | str | None = None

    @property
    def bounds(self):
        """Returns the fields of the manifest: numbers or None, and names or ""."""
        given = {"least": self.least, "most": self.most}
        names = {word: b if isinstance(b, str) else "" for word, b in given.items()}
        numbers = {word: None if names[word] else b for word, b in given.items()}
        return numbers | {f"{word}_of": name for word, name in names.items()}
