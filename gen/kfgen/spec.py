# SPDX-License-Identifier: Apache-2.0
"""Loads and checks spec files. Every error names the file, the entry, the field and what to do."""

import ast
import keyword
import pathlib
import re
import struct
import tomllib
from dataclasses import dataclass, field, replace

from kfgen.expr import (
    BOOLEAN,
    COLUMN,
    COUNT,
    ELEM,
    INF,
    OVER_ROWS,
    PRIMITIVES,
    QUERIES,
    QUERY,
    ROW,
    ROW_NAMES,
    UNIFORM,
    ExprError,
    Graph,
    gradient,
    parse,
    stages,
    substitute,
)
from kfgen.paths import SPECS

# Of each family, the kinds of its operands. row: one value per column; per_row: one per row; channel: one per channel of [outer,
# channels, inner], where family "row" has a row for each plane; shared: [batch, queries, keys], where the others are [batch, heads,
# queries, keys] and a row is a query's; group: one per channel of [outer, length, groups, channels, inner], where a row is a group's.
# With layout = "channels" a row is a channel of [outer, channels, inner] over all of outer and inner, and per_row one per channel.
FAMILIES = {"map": ("elem", "row", "channel", "half"), "row": ("elem", "row", "per_row", "channel", "shared", "group"), "reduce": ("elem",)}
REDUCING = ("row", "reduce")  # whose expressions reduce over a row; reduce: over any axis, and to nothing but that
USER_ID = 1024  # the first id of users' own activations
INT_WORDS = BOOLEAN | {"const", "var", "add", "sub", "mul", "neg", "max", "min", "where", "act"}
MAX_SCALARS = 4  # of one op, and of one activation: kfi_scalars_* holds as many
PATTERN = re.compile(r"(?:[a-z][a-z0-9]*|\{act\})(?:_(?:[a-z0-9]+|\{act\}))*\Z")
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
# What the generated code makes of names (x_v, x_f, x_n, x_s, x_j, x_to, x_past; over rows x_i, x_t, x_a, x_p, x_h, x_g) and calls its own
# temporaries (t0, row0, kept0).
DERIVED = re.compile(r".*_(?:[vfnsjitaphg]|to|past)\Z|(t|row|kept)\d+\Z")
# Names of the generated code: its arguments, its local variables (tests/gen/test_names.py finds those that are missing
# here), the words of the languages that it and the expressions are written in, and the expressions' own words.
RESERVED = {
    "act", "act_bwd", "ahead", "args", "at", "axis", "batch",
    "buffer", "channels", "cols", "dy", "e", "each", "first", "from_state", "full", "g", "groups", "half_first", "heads", "i",
    "inner", "int32_t", "int64_t", "j", "keep", "keep_from", "keep_scale", "kernels", "keys", "left", "length", "m", "map", "memset", "mode",
    "more", "n", "next", "offset", "omp", "operands", "out", "outer", "own", "p", "partial", "readable", "reads", "ring", "rng", "row",
    "rows", "scalars", "seed", "shared", "size", "size_t", "sized",
    "sizes", "slot", "slots", "span", "stages", "state", "step", "stream", "stride", "sum_kernels",
    "sum_size", "sums", "sums_size", "t", "tensors", "threads", "tile", "u", "uint32_t", "uint64_t", "unroll", "valid", "vec", "width", "word",
    "words", "workspace", "workspace_bytes",
    # C, C++ and CUDA; Python, in which expressions are parsed
    "alignas", "alignof", "asm", "auto", "bool", "break", "case", "catch", "char", "class", "concept", "const", "consteval", "constexpr", "constinit",
    "decltype", "default", "do", "double", "enum", "errno", "explicit", "export", "extern", "float", "friend", "goto", "inline", "int", "int8_t",
    "int16_t", "long", "main", "mutable", "namespace", "new", "noexcept", "nullptr", "operator", "private", "protected", "public", "register",
    "requires", "restrict", "short", "signed", "sizeof", "static", "stderr", "stdin", "stdout", "struct", "switch", "template", "this", "throw",
    "true", "false", "typedef", "typeid", "typename", "typeof", "uint8_t", "uint16_t", "union", "unix", "linux", "unsigned", "using", "virtual",
    "uintptr_t", "void", "volatile", "wchar_t", "xor", "compl", "bitand", "bitor",
} | set(keyword.kwlist) | (set(PRIMITIVES) - OVER_ROWS) | {"dropout"}

# And those of one family's code alone.
FAMILY_NAMES = {"map": (), "reduce": ("all", "block", "c", "codes", "context", "counts", "memcpy", "op", "stage", "stop", "unit", "walk", "whole"),
                "row": ("apart", "begin", "block", "buffer", "channel", "context", "end", "held", "inside", "kept", "leap", "limit", "loops",
                        "memcpy", "off", "op", "pass", "posts", "ringed", "room", "space", "start", "there", "walk", "way", "whole")}

UNUSABLE = "choose a lower-case word that nothing else here has and that neither C, C++ nor Python gives a meaning"


def usable(name):
    """Whether an operand, a scalar or an output may have this name: it becomes an argument of C functions."""
    return bool(NAME.match(name)) and not DERIVED.match(name) and name not in RESERVED


class SpecError(Exception):
    def __init__(self, file, entry, field_, problem, fix):
        super().__init__(f"{file}: [{entry}] {field_}: {problem}\n  fix: {fix}")


@dataclass
class Activation:
    name: str
    id: int
    brief: str
    expr: str
    dexpr: str | None
    scalars: dict
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
        return substitute(local, graph, [local.const(0) if dx is None else dx], {"x": x, "dy": dy, **scalars})[0]


@dataclass
class Operand:
    name: str
    kind: str
    # "T" the op's dtype, "U" the second one, "acc" float32 (float64 for f64), "i64" whole numbers, such as labels, "u8" conditions, read
    # as 0 or 1
    dtype: str = "T"
    grad: bool = True
    parts: tuple = ()  # the names of the two halves of a "half" operand
    positive: bool = False  # tests draw it from (0, inf)
    absent: float | None = None  # the value of every element if the pointer is NULL; None: it may not be

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
    scalars: dict
    refs: dict
    ints: bool
    without: tuple
    types: str  # "one" or "pairs"
    source: str
    since: str
    file: str
    builtin: bool
    family: str = "map"
    saved: dict = field(default_factory=dict)  # name: expression that is the same for a row, an output for the backward
    updates: dict = field(default_factory=dict)  # per_row operand: expression of its next value, an output that may be in its place
    layout: str = ""  # "channels", or as the operands' kinds have it
    reduction: str = ""  # "mean" or "sum", of an op that another one's `reduced` has made
    empty: str = "value"  # of no elements: "value", what the expression gives; "error", which the function returns
    grads: dict = field(default_factory=dict)  # operand: expression of its gradient, where the derived one is not wanted
    activations: list = field(default_factory=list)

    @property
    def dropout(self):
        return any("dropout(" in text for text in self.outputs.values())

    @property
    def has_act(self):
        return "{act}" in self.pattern

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


def user_stem(files):
    """What the headers of the user's own spec files are called after: kf/<stem>.h, kf/user/<stem>/."""
    stem = "_".join(re.sub(r"[^a-z0-9]+", "_", pathlib.Path(f).stem.lower()) for f in files)
    if not NAME.match(stem) or stem in ("kf", "core", "ops", "user", "runtime") or re.match(r"kf_(\w+_)?launchers\Z", stem):
        raise SpecError(str(files[0]), "file", "name", f"would give the header kf/{stem}.h", "rename the file to a lower-case word of its own")
    return stem


def builtin_files():
    return sorted(SPECS.glob("*.toml"))


def load(files=(), builtin=True):
    """All entries of the built-in files and of `files`, checked on their own and against each other."""
    spec = Spec({}, {}, [])
    for path, own in [(p, True) for p in (builtin_files() if builtin else ())] + [(pathlib.Path(p), False) for p in files]:
        _load_file(spec, path, own)
    for op in spec.ops.values():
        op.activations = _activations_of(spec, op)
        _check_expressions(op)
        for act in op.activations:
            _check_scalars(op, act)
    for act in spec.activations.values():
        _check_activation_expressions(act)
    return spec


def _load_file(spec, path, builtin):
    name = path.name if builtin else str(path)
    try:
        data = tomllib.loads(path.read_text())
    except OSError as e:
        raise SpecError(name, "file", "path", e.strerror or str(e), "give the path of a readable .toml file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise SpecError(name, "file", "syntax", str(e), "see https://toml.io; quote keys that hold braces") from None
    spec.files.append(path)
    for section, entries in data.items():
        if section not in ("activation", "op") or not isinstance(entries, dict):
            raise SpecError(name, section, "section", "is not known", "entries are [activation.<name>] or [op.<pattern>]")
        for key, entry in entries.items():
            if not isinstance(entry, dict):
                raise SpecError(name, f"{section}.{key}", "entry", "is not a table", f"write [{section}.{key}] above its fields")
            (_load_activation if section == "activation" else _load_op)(spec, name, key, Fields(name, f"{section}.{key}", entry), builtin)


class Fields:
    """The fields of one entry: typed access, and a complaint about what nobody asked for."""

    def __init__(self, file, entry, data):
        self.file, self.entry, self.data, self.left = file, entry, data, set(data)

    def error(self, field_, problem, fix):
        return SpecError(self.file, self.entry, field_, problem, fix)

    def get(self, name, types, default=None, required=False, what=""):
        self.left.discard(name)
        if name not in self.data:
            if required:
                raise self.error(name, "is missing", f"add {name} = {what}")
            return default
        value = self.data[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in (types if isinstance(types, tuple) else (types,))):
            raise self.error(name, f"is {value!r}", f"write {name} = {what}")
        return value

    def line(self, name):
        """Text that ends up in a comment."""
        text = self.get(name, str, required=True, what='"the formula in words"')
        if not text.strip() or "\n" in text or "*/" in text or text.endswith("\\"):
            raise self.error(name, f"is {text!r}", "write one line of words")
        return text

    def oracle(self, name, text):
        try:
            return compile(" ".join(text.split()), name, "eval") and text
        except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
            raise self.error(name, f"is not a Python expression: {e}", "write it with np, sp (scipy.special) and expit") from None

    def done(self):
        if self.left:
            raise self.error(sorted(self.left)[0], "is not a field of this entry", "remove it, or correct its spelling")


def _scalars(f, own=()):
    table = f.get("scalars", dict, {}, what="{ name = value for tests, ... }")
    for name, value in table.items():
        if not usable(name) or name in own:
            raise f.error("scalars", f"the name `{name}` cannot be used", UNUSABLE)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise f.error("scalars", f"{name} is {value!r}", f"give {name} a number; tests use it")
    if len(table) > MAX_SCALARS:
        raise f.error("scalars", f"has {len(table)} entries", f"at most {MAX_SCALARS} are possible")
    return {k: float(v) for k, v in table.items()}


def _is_number(text):
    try:
        float(text)
        return True
    except ValueError:
        return False


def _load_activation(spec, file, name, f, builtin):
    if not NAME.match(name):
        raise f.error("name", f"`{name}` is not a word", "use lower-case letters, digits and single underscores")
    if name in spec.activations:
        raise f.error("name", f"`{name}` is already defined in {spec.activations[name].file}", "choose another name")
    ident = f.get("id", int, required=True, what="a number never used before")
    if not builtin and ident < USER_ID:
        raise f.error("id", f"{ident} is reserved for kf's own activations", f"use {USER_ID} or above")
    for other in spec.activations.values():
        if other.id == ident:
            raise f.error("id", f"{ident} is already {other.name}'s", "choose a number that is free")
    act = Activation(
        name=name, id=ident, file=file, builtin=builtin,
        brief=f.line("brief"),
        expr=f.get("expr", str, required=True, what='"an expression of x"'),
        dexpr=f.get("dexpr", str),
        scalars=_scalars(f, own=("x",)),
        ref=f.get("ref", str, required=True, what='"the same function in NumPy (np) and scipy.special (sp)"'),
        dref=f.get("dref", str),
        edges=f.get("edges", dict, {}, what='{ nan = "nan", inf = ... }'),
        dedges=f.get("dedges", dict, {}, what='{ nan = "nan", inf = ... }'),
        ulp=f.get("ulp", dict, {"f32": 4, "f64": 4}, what="{ f32 = 4, f64 = 4 }"),
        ints=f.get("ints", bool, False, what="true or false"),
        rounding=f.get("rounding", str, "result", what='"result" or "intermediates"'),
        budget=f.get("budget", dict, {}, what='{ lp = 13, lp_bwd = 25, f32 = 30, why = "..." }'),
        source=f.get("source", str, "", what='"where the function is defined"'),
        since=f.get("since", str, "", what='"the version that brought it"'))
    f.done()
    f.oracle("ref", act.ref)
    f.oracle("dref", act.dref or "0")
    for field_, table in (("edges", act.edges), ("dedges", act.dedges)):
        for point, value in table.items():
            if not _is_number(point) or isinstance(value, bool) or not isinstance(value, (int, float, str)):
                raise f.error(field_, f"{point} is {value!r}", 'write a point such as nan, "-inf", "-0" or 3 and the value there, "nan" or 0.5')
    for dtype in ("f32", "f64"):
        if not isinstance(act.ulp.get(dtype), (int, float)):
            raise f.error("ulp", f"has no {dtype}", "write ulp = { f32 = 4, f64 = 4 }")
    if act.rounding not in ("result", "intermediates"):
        raise f.error("rounding", f"is {act.rounding!r}", 'write "result" or "intermediates"')
    if act.budget and not act.budget.get("why"):
        raise f.error("budget", "gives no reason", 'add why = "..."')
    spec.activations[name] = act


def _load_op(spec, file, pattern, f, builtin):
    if not PATTERN.match(pattern) or pattern.count("{act}") > 1:
        raise f.error("name", f"`{pattern}` is not a pattern", "use lower-case words joined by underscores, one of them may be {act}")
    if pattern in spec.ops:
        raise f.error("name", f"`{pattern}` is already defined in {spec.ops[pattern].file}", "choose another name")
    family = f.get("family", str, "map", what='"map", "row" or "reduce"')
    if family not in FAMILIES:
        raise f.error("family", f"is {family!r}", f"the families are: {', '.join(FAMILIES)}")
    scalars = _scalars(f)
    operands = _operands(f, scalars, family)
    outputs, refs = {}, {}
    expr = f.get("expr", str, what='"an expression of the operands"')
    ref = f.get("ref", str, what='"the same in NumPy"')
    if expr is not None:
        outputs, refs = {"out": expr}, {"out": ref}
    table = f.get("outputs", dict, {}, what='{ name = "expression", ... }')
    table_refs = f.get("refs", dict, {}, what='{ name = "the same in NumPy", ... }')
    if (expr is None) == (not table):
        raise f.error("expr", "is missing" if expr is None else "stands beside outputs", 'give either expr = "..." or outputs = { name = "..." }')
    outputs.update(table)
    refs.update(table_refs)
    for name, text in outputs.items():
        if not isinstance(text, str) or not isinstance(refs.get(name), str):
            raise f.error("ref" if expr is not None else "refs", f"has no reference for `{name}`", "give the same formula in NumPy")
        f.oracle("ref" if expr is not None else "refs", refs[name])
        if expr is None and (not (name == "out" or usable(name)) or name in scalars or any(name in (o.name, *o.values) for o in operands)):
            raise f.error("outputs", f"the name `{name}` cannot be used", UNUSABLE)
    saved, updates, grads = _row_fields(f, family, {*scalars, *outputs}, operands)
    for name in updates:
        if not isinstance(table_refs.get(name), str):
            raise f.error("refs", f"has no reference for `{name}`", "give the same formula in NumPy")
        f.oracle("refs", table_refs[name])
        refs[updated(name)] = refs.pop(name)
    plain = {*scalars, *outputs, *saved, *map(updated, updates), *(n for o in operands for n in (o.name, *o.values))}
    for name in sorted(plain & {f"d{n}" for n in plain}) if any(o.grad for o in operands) else ():
        raise f.error("operands", f"`{name}` is also the name of the gradient of `{name[1:]}`", "rename one of the two")
    op = Op(
        pattern=pattern, file=file, builtin=builtin, operands=operands, outputs=outputs, scalars=scalars, refs=refs, family=family,
        saved=saved, updates=updates, grads=grads, layout=f.get("layout", str, "", what='"channels"'),
        empty=f.get("empty", str, "value", what='"value" or "error"'),
        brief=f.line("brief"),
        ints=f.get("ints", bool, False, what="true or false"),
        without=tuple(f.get("without", list, [], what='["none"]')),
        types=f.get("types", str, "one", what='"one", "pairs" or "weights"'),
        source=f.get("source", str, "", what='"where the op is defined"'),
        since=f.get("since", str, "", what='"the version that brought it"'))
    reduced = _reduced_words(f, op)
    f.done()
    if not all(isinstance(name, str) for name in op.without):
        raise f.error("without", f"is {list(op.without)!r}", 'write the names of activations: without = ["none"]')
    if op.types not in ("one", "pairs", "weights"):
        raise f.error("types", f"is {op.types!r}", 'write "one", "pairs" or "weights"')
    if op.layout:
        _check_layout(f, op)
    if op.empty not in ("value", "error") or (op.empty == "error" and family != "reduce"):
        raise f.error("empty", f"is {op.empty!r}", 'write "value", or "error" in an op of family = "reduce" that has no value then')
    if (op.types == "weights") != any(o.dtype == "U" for o in operands):
        raise f.error("types", f"is {op.types!r}", 'write types = "weights" where, and only where, an operand has dtype = "U"')
    spec.ops[pattern] = op
    for word in reduced:
        _load_op(spec, file, f"{pattern}_{word}", Fields(file, f"op.{pattern}_{word}", _reduced(f, op, word)), builtin)
        spec.ops[f"{pattern}_{word}"].reduction = word


def _reduced_words(f, op):
    """The reductions that an op over elements is wanted with as well: ["mean", "sum"]."""
    words = f.get("reduced", list, [], what='["mean", "sum"]')
    unknown = [w for w in words if w not in ("mean", "sum")]
    if unknown or len(set(words)) < len(words):
        raise f.error("reduced", f"is {words!r}", 'write each reduction once: reduced = ["mean", "sum"]')
    if words and (op.family != "map" or set(op.outputs) != {"out"} or "{act}" in op.pattern or op.ints or op.types != "one" or op.dropout
                  or any(o.kind != "elem" for o in op.operands)):
        raise f.error("reduced", "needs one result, elem operands, no {act} and no dropout", 'write an op of family = "reduce"')
    return words


def _reduced(f, op, word):
    """The fields of the op that is the mean or the sum of op's result over an axis."""
    text = op.outputs["out"]
    try:
        *names, value = ast.parse(text.strip()).body
        text = "; ".join([*map(ast.unparse, names), f"{word}({ast.unparse(value)})"])
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        pass  # the op itself is refused for it, and comes first
    kept = {k: v for k, v in f.data.items() if k in ("operands", "scalars", "source", "since")}
    return kept | {"family": "reduce", "brief": f"the {word} of {op.brief}", "expr": text, "ref": f"{word}({op.refs['out']})"}


def _row_fields(f, family, taken, operands):
    """What ops over rows have beside the others: (saved, updates, grads)."""
    saved = f.get("saved", dict, {}, what='{ rstd = "an expression that is the same for a row" }')
    updates = f.get("updates", dict, {}, what='{ running_mean = "an expression of its next value, the same for a row" }')
    grads = f.get("grads", dict, {}, what='{ x = "an expression of the operands, the results and their gradients" }')
    if (family != "row" and (saved or updates)) or (family not in REDUCING and grads):
        raise f.error("saved" if saved else "updates" if updates else "grads", "belongs to ops over rows", 'add family = "row"')
    names = taken | {n for o in operands for n in (o.name, *o.values)}
    for field_, given in (("scalars", f.data.get("scalars", ())), ("outputs", f.data.get("outputs", ())), ("operands", names)):
        for name in (*ROW_NAMES, *FAMILY_NAMES[family]):
            if family in REDUCING and name in given:
                raise f.error(field_, f"the name `{name}` cannot be used", UNUSABLE)
    for field_, table in (("saved", saved), ("updates", updates), ("grads", grads)):
        for name, text in table.items():
            if not isinstance(text, str):
                raise f.error(field_, f"{name} is {text!r}", "give it an expression, in quotes")
    for name in saved:
        if not usable(name) or name in names or name in (*ROW_NAMES, *FAMILY_NAMES["row"]):
            raise f.error("saved", f"the name `{name}` cannot be used", UNUSABLE)
    kept = [o.name for o in operands if o.kind == "per_row" and o.dtype == "acc" and not o.grad]
    for name in updates:
        if name not in kept:
            fix = f'those are "per_row", of dtype "acc" and with grad = false: {", ".join(kept) or "none"}'
            raise f.error("updates", f"`{name}` is no operand that can be updated", fix)
        if updated(name) in names | taken | set(saved):
            raise f.error("updates", f"`{updated(name)}`, its next value, is a name already", "rename one of the two")
    wanted = [o.name for o in operands if o.grad]
    for name in grads:
        if name not in wanted:
            raise f.error("grads", f"`{name}` is no operand with a gradient", f"those are: {', '.join(wanted) or 'none'}")
    return saved, updates, grads


def _check_layout(f, op):
    if op.layout != "channels":
        raise f.error("layout", f"is {op.layout!r}", 'write "channels", or leave it out: operands say the rest by their kinds')
    odd = next((o for o in op.operands if o.kind not in ("elem", "per_row")), None)
    if op.family != "row" or odd:
        problem = f'is "channels" of an op with `{odd.name}`, a {odd.kind!r}' if odd else f"is {op.layout!r} of an op of family {op.family!r}"
        raise f.error("layout", problem, 'rows of channels belong to family = "row" and operands "elem" and "per_row" (one value per channel)')


def _in_every_dtype(value):
    """Whether every dtype holds the number as it is."""
    try:
        f16, f32 = struct.pack(">e", value), struct.pack(">f", value)
    except (OverflowError, struct.error):  # of a float, of an integer
        return False
    return struct.unpack(">e", f16)[0] == value == struct.unpack(">f", f32[:2] + bytes(2))[0] and abs(value) <= 65504


def _operands(f, scalars, family):
    table = f.get("operands", dict, required=True, what='{ x = "elem", ... }')
    operands, names = [], set(scalars)
    for name, value in table.items():
        value = {"kind": value} if isinstance(value, str) else value
        if not isinstance(value, dict) or value.get("kind") not in FAMILIES[family]:
            raise f.error("operands", f"{name} is {value!r}", f"give it a kind: {', '.join(FAMILIES[family])}")
        unknown = set(value) - {"kind", "dtype", "grad", "parts", "positive", "absent"}
        if unknown:
            raise f.error("operands", f"{name} has the unknown property {sorted(unknown)[0]!r}", "use kind, dtype, grad, parts, positive, absent")
        parts, flags = value.get("parts", []), {p: value.get(p, p == "grad") for p in ("grad", "positive")}
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise f.error("operands", f"{name} has parts {parts!r}", 'write parts = ["first", "second"]')
        for p, flag in flags.items():
            if not isinstance(flag, bool):
                raise f.error("operands", f"{name} has {p} = {flag!r}", f"write {p} = true or false")
        absent = value.get("absent")
        absent_at = family == "row" and value["kind"] != "elem"
        if absent is not None and (not absent_at or isinstance(absent, bool) or not isinstance(absent, (int, float))):
            fix = 'a "row", a "per_row", a "channel", a "group" or a "shared" of an op over rows may be absent: absent = 1, its value then'
            raise f.error("operands", f"{name} has absent = {absent!r}", fix)
        if absent is not None and not _in_every_dtype(absent):
            raise f.error("operands", f"{name} has absent = {absent!r}", "write a number that every dtype holds, f16 and bf16 as well, such as 1")
        operand = Operand(name, value["kind"], value.get("dtype", "T"), parts=tuple(parts), absent=absent, **flags)
        others = {"map": ("acc",), "row": ("acc", "U"), "reduce": ()}[family] if operand.kind not in ("elem", "half") else ()
        others = {"shared": ()}.get(operand.kind, others)
        others += {"per_row": ("i64",), "shared": ("u8",)}.get(operand.kind, ()) if not operand.grad else ()
        if operand.dtype not in ("T", *others):
            fix = ('use "T"; rows and channels may be "acc"; in ops over rows all but "elem" and "shared" may be "acc" or "U", a "per_row" with '
                   'grad = false "i64", a "shared" "u8"')
            raise f.error("operands", f"{name} has dtype {operand.dtype!r}", fix)
        if (operand.kind == "half") != (len(operand.parts) == 2):
            raise f.error("operands", f"{name} has parts {list(operand.parts)}", 'a "half" operand, and no other, has parts = ["first", "second"]')
        for n in {operand.name, *operand.values}:
            if not usable(n) or n in names:
                raise f.error("operands", f"the name `{n}` cannot be used", UNUSABLE)
        names |= {operand.name, *operand.values}
        operands.append(operand)
    kinds = {o.kind for o in operands}
    if not kinds & {"elem", "half"}:
        whole = " or ".join(f'"{kind}"' for kind in FAMILIES[family] if kind in ("elem", "half"))
        raise f.error("operands", "has no operand with the shape of the result", f"make at least one of them {whole}")
    others = {"row", "half", "per_row", "shared"}
    for kind, not_with in (("channel", others), ("group", others | {"channel"})):
        if kind in kinds and kinds & not_with:
            last = ' or "shared"' if kind == "channel" else ', "shared" or "channel"'
            raise f.error("operands", f'mixes "{kind}" with "row", "half", "per_row"{last}', "an op has one kind of broadcast")
    for o in operands:
        if o.kind == "shared" and o.grad:
            raise f.error("operands", f"{o.name} is shared by heads and has a gradient", "add grad = false to it")
    if "half" in kinds and any(o.kind == "row" and o.grad for o in operands):
        raise f.error("operands", 'has a "half" beside a "row" with a gradient', 'add grad = false to the "row", or take two "elem" for the "half"')
    return operands


def _activations_of(spec, op):
    if not op.has_act:
        return [spec.activations["none"]] if "none" in spec.activations else []
    for name in op.without:
        if name not in spec.activations:
            known = ", ".join(spec.activations)
            raise SpecError(op.file, f"op.{op.pattern}", "without", f"`{name}` is no activation", f"the activations are: {known}")
    return [a for a in spec.activations.values() if a.name not in op.without]


def _check_scalars(op, act):
    """An activation's scalars are arguments beside the op's own."""
    taken = {*op.scalars, *op.outputs, *op.values_of_rows, *(n for o in op.operands for n in (o.name, *o.values))}
    taken |= {f"d{n}" for n in taken}
    for name in act.scalars:
        if name in taken and op.has_act:
            fix = f"choose a longer name, or add \"{act.name}\" to the op's `without`"
            if op.builtin:
                raise SpecError(act.file, f"activation.{act.name}", "scalars", f"`{name}` is an argument of [op.{op.pattern}] too", fix)
            raise SpecError(op.file, f"op.{op.pattern}", "operands", f"`{name}` is a scalar of [activation.{act.name}] too", fix)


def names_read(text):
    """The names in an expression but for those it calls: a value may be called `mean`, which is a word as well."""
    return set(re.findall(r"\b\w+\b(?!\s*\()", text))


def in_order(texts):
    """The names of {name: expression}, each after those that it reads."""
    waiting, found = dict(texts), []
    while waiting:
        ready = next((n for n, text in waiting.items() if not (names_read(text) & set(waiting)) - {n}), None)
        if ready is None:
            raise ExprError(f"{' and '.join(f'`{n}`' for n in sorted(waiting))} read each other")
        found.append(ready)
        del waiting[ready]
    return found


def op_graph(op):
    """The op's graph: (graph, {name: node} of what it reads and of what is saved, {output: node}). An output over elements that
    another expression reads is a `stored` node there, which has the output's name."""
    levels = {o.name: ROW for o in op.operands if o.kind in ("per_row", "channel")} | dict.fromkeys(op.scalars, UNIFORM)
    graph = Graph(levels if op.family in REDUCING else None)
    env = {name: graph.var(name) for o in op.operands for name in o.values}
    env |= {name: graph.var(name) for name in (*op.scalars, *{"map": (), "row": (COLUMN, COUNT, QUERY, QUERIES), "reduce": (COUNT,)}[op.family])}
    env |= {INF: graph.const(float("inf"))} if op.family in REDUCING else {}
    extra = ({} if op.family == "reduce" else {"dropout": None}) | ({"act": None} if op.has_act else {})
    if op.family == "map":
        return graph, env, {name: parse(graph, text, {**env, **extra}) for name, text in op.outputs.items()}
    outs, known = {}, dict(env)
    own = op.values_of_rows
    for name in in_order(own | op.outputs):
        try:
            node = parse(graph, own[name], known) if name in own else parse(graph, op.outputs[name], {**known, **extra})
        except ExprError as e:
            e.field = "saved" if name in op.saved else "updates" if name in own else "expr"
            raise
        if name in own:
            env[name] = known[name] = node
        else:
            outs[name] = node
            known[name] = graph.add("stored", node, value=name) if graph.level(node) == ELEM else node
    return graph, env, {name: outs[name] for name in op.outputs}


def has_queries(op, graph, env, outputs):
    """Whether the rows of an op over rows are the queries of [batch, heads, queries, keys]."""
    read = graph.variables([*outputs.values(), *(env[n] for n in op.values_of_rows)])
    return bool(read & {QUERY, QUERIES}) or any(o.kind == "shared" for o in op.operands)


def op_gradients(op, graph, env, outputs):
    """{value of an operand: node of its gradient, None if it has none}. Adds to the graph: the results' gradients d<output>, and
    for closed forms the results themselves, as variables."""
    douts = {name: graph.var(f"d{name}") for name in outputs}
    if graph.levels is not None:
        graph.levels |= {name: graph.level(outputs[name[1:]]) for name in (f"d{o}" for o in outputs)}
        graph.levels |= {name: graph.level(node) for name, node in outputs.items()}
    wanted = [v for o in op.operands if o.grad for v in o.values]
    derived = [v for v in wanted if v not in op.grads]
    found = gradient(graph, {outputs[n]: douts[n] for n in outputs}, [env[v] for v in derived]) if derived else {}
    names = {**env, **{n: graph.var(n) for n in outputs}, **{f"d{n}": d for n, d in douts.items()}} | ({"act_bwd": None} if op.has_act else {})
    names |= {"dropout": None} if op.dropout else {}  # of the same mask
    return {v: parse(graph, op.grads[v], names) if v in op.grads else found[env[v]] for v in wanted}


def _check_expressions(op):
    field_ = "expr"
    try:
        graph, env, outputs = op_graph(op)
        if op.family in REDUCING:
            _check_rows(op, graph, env, outputs)
        used = graph.variables([*outputs.values(), *(env[n] for n in op.values_of_rows)])
        for o in op.operands:
            if not used & set(o.values):
                raise SpecError(op.file, f"op.{op.pattern}", "operands", f"`{o.name}` is not read by the expression", "remove it")
        if op.family in REDUCING and any(o.grad for o in op.operands):
            op_gradients(replace(op, grads={}), *op_graph(op))
            field_ = "grads"
            _check_grads(op, *op_graph(op))
    except ExprError as e:
        where = getattr(e, "field", field_)
        raise SpecError(op.file, f"op.{op.pattern}", where, str(e), "see the expression language in docs/hacking.md") from None
    if op.has_act and not graph.uses("act", outputs.values()):
        raise SpecError(op.file, f"op.{op.pattern}", "expr", "never calls act(...), but the name has {act}", "call act(...) once")
    if op.ints:
        if op.scalars or op.dropout or any(o.kind != "elem" for o in op.operands) or op.family in REDUCING:
            raise SpecError(op.file, f"op.{op.pattern}", "ints", "needs elem operands alone, without scalars, dropout and rows", "drop ints")
        _check_ints(graph, outputs.values(), op.file, f"op.{op.pattern}")


def _check_rows(op, graph, env, outputs):
    def wrong(field_, problem, fix):
        return SpecError(op.file, f"op.{op.pattern}", field_, problem, fix)

    odd = next((o for o in op.operands if o.kind in ("row", "channel", "group")), None)
    queried = has_queries(op, graph, env, outputs)
    if odd and queried:
        raise wrong("operands", f"`{odd.name}` is a {odd.kind!r} of an op over queries and keys", 'use "elem", "shared" or "per_row"')
    if op.layout and queried:
        raise wrong("layout", f"is {op.layout!r} of an op over queries and keys", "leave one of the two out")
    if op.types == "pairs":
        raise wrong("types", f"is {op.types!r}, but ops over rows have one dtype", "leave it out")
    columns = {graph.nodes[node.args[1]].value for node in graph.nodes if node.op == "pick"}
    word = "pick" if columns else "dropout"
    if odd and odd.kind == "group" and (columns or op.dropout):
        raise wrong("operands", f"`{odd.name}` is a 'group' of an op that calls {word}()", "a row of groups is in pieces: write a second op for it")
    if op.layout and (columns or op.dropout):
        raise wrong("layout", f"is {op.layout!r} of an op that calls {word}()", "a row of channels is in pieces: write a second op for it")
    for name in sorted(columns & {o.name for o in op.operands if o.dtype != "i64"}):
        fix = f'give `{name}` dtype = "i64", grad = false'
        raise wrong("operands", f"`{name}` is the number of a column, which pick() needs as a whole number", fix)
    for name in op.values_of_rows:
        if graph.level(env[name]) != ROW:
            problem = "differs within a row" if graph.level(env[name]) == ELEM else "reads no tensor"
            fix = "save what is the same for a row: sums and what is made of them"
            raise wrong("saved" if name in op.saved else "updates", f"`{name}` {problem}", fix)
    for name, node in outputs.items():
        if graph.level(node) == UNIFORM:
            raise wrong("expr", f"`{name}` reads no tensor", "write an expression of the operands")
        if graph.level(node) == ELEM and op.family == "reduce":
            raise wrong("expr", f"`{name}` differs along the axis", 'reduce it, or write family = "row" for a result of elements')
    roots = [*outputs.values(), *(env[n] for n in op.values_of_rows)]
    if not stages(graph, roots) and not graph.uses("pick", roots):
        raise wrong("expr", "reduces nothing over a row and picks nothing from it", f'leave out family = "{op.family}"')


def _check_grads(op, graph, env, outputs):
    """That a gradient there is, and that a closed one differs over what its operand differs over."""
    def wrong(field_, problem, fix):
        return SpecError(op.file, f"op.{op.pattern}", field_, problem, fix)

    for name, node in op_gradients(op, graph, env, outputs).items():
        level = UNIFORM if node is None else graph.level(node)
        if level == UNIFORM and name in op.grads:
            raise wrong("grads", f"that of `{name}` reads no tensor", "write an expression of the operands, the results and their gradients")
        if level == UNIFORM:
            raise wrong("operands", f"the gradient for `{name}` is zero", "add grad = false to it")
        if level == ELEM and graph.level(env[name]) == ROW:
            raise wrong("grads", f"that of `{name}` differs within a row, `{name}` does not", "add up what its elements give: sum(...)")


def _check_ints(graph, roots, file, entry):
    for i in graph.reachable(roots):
        node = graph.nodes[i]
        if node.op == "const" and not isinstance(node.value, int):
            raise SpecError(file, entry, "ints", f"the constant {node.value} is no integer", "drop ints, or write integers")
        if node.op not in INT_WORDS:
            raise SpecError(file, entry, "ints", f"`{node.op}` has no integer form", "drop ints, or use + - * max min where and comparisons")


def _check_activation_expressions(act):
    for name, text in (("expr", act.expr), ("dexpr", act.dexpr)):
        if text is None:
            continue
        graph = Graph()
        env = {n: graph.var(n) for n in ("x", *act.scalars)}
        if name == "dexpr":
            env["dy"] = graph.var("dy")
        try:
            root = parse(graph, text, env)
            if name == "expr" and act.ints:
                _check_ints(graph, [root], act.file, f"activation.{act.name}")
            if name == "expr" and act.dexpr is None:
                act.build_bwd(graph, env["x"], graph.var("dy"), {s: env[s] for s in act.scalars})
        except ExprError as e:
            raise SpecError(act.file, f"activation.{act.name}", name, str(e), "see the expression language in docs/hacking.md") from None
