# SPDX-License-Identifier: Apache-2.0
"""Loads and checks spec files. Every error names the file, the entry, the field and what to do."""

import ast
import copy
import functools
import json
import pathlib
import re
import struct
import tomllib

from kfgen import families
from kfgen.entries.fields import Fields, is_number, scalars, values
from kfgen.entries.spec_checks import (
    check_activation_expressions,
    check_by_result,
    check_expressions,
    check_layout,
    check_scalars,
)
from kfgen.families import FAMILIES
from kfgen.model import limits
from kfgen.model.entries import (
    KF_IDS,
    NAME,
    PATTERN,
    UNUSABLE,
    Activation,
    Op,
    Operand,
    Spec,
    SpecError,
    own_id,
    updated,
    usable,
)
from kfgen.paths import ENTRIES, called
from kfgen.paths import FAMILIES as FAMILY_FOLDERS


def stem_of(file):
    """The word that names are made with of a user's spec file: its own, or its folder's where it is a family's ops.toml."""
    path = pathlib.Path(file)
    of_family = path.name == "ops.toml" and (path.parent / "family.py").is_file()
    return path.resolve().parent.name if of_family else path.stem


def with_families(files, folders):
    """A user's spec files, before them the ops.toml of each folder of a family that has one."""
    known = {pathlib.Path(f).resolve() for f in files}
    own = [path for f in folders if (path := pathlib.Path(f) / "ops.toml").is_file()]
    return [*(str(path) for path in own if path.resolve() not in known), *files]


def user_stem(files):
    """What the headers of the user's own spec files are called after: kf/<stem>.h, kf/user/<stem>/."""
    stem = "_".join(re.sub(r"[^a-z0-9]+", "_", stem_of(f).lower()) for f in files)
    if (
        not NAME.match(stem)
        or stem in ("kf", "core", "ops", "user", "runtime")
        or re.match(r"kf_(\w+_)?launchers\Z", stem)
    ):
        raise SpecError(
            str(files[0]),
            "file",
            "name",
            f"would give the header kf/{stem}.h",
            "rename the file to a lower-case word of its own",
        )
    return stem


def builtin_files():
    return [ENTRIES / "activations.toml", *sorted(FAMILY_FOLDERS.glob("*/*.toml"))]


def load(files=(), builtin=True):
    """All entries of the built-in files and of `files`, checked on their own and against each other."""
    own = (
        _own(tuple((path, _text(called(path), path)) for path in builtin_files()))
        if builtin
        else Spec({}, {}, [])
    )
    ops = {pattern: copy.copy(op) for pattern, op in own.ops.items()}
    return _checked(Spec(dict(own.activations), ops, list(own.files), own), files)


@functools.lru_cache(2)
def _own(files):
    """The entries of the built-in files, [(path, text)], checked once: a process that loads one spec file after the other has them again."""
    spec = Spec({}, {}, [])
    for path, text in files:
        _load_text(spec, path, called(path), text, True)
    return _checked(spec, ())


def _checked(spec, files):
    known = set(spec.own.activations) if spec.own else ()
    for path in files:
        _load_file(spec, pathlib.Path(path), False)
    finish(spec)
    for name, act in spec.activations.items():
        if name not in known:
            check_activation_expressions(act)
    return spec


def load_files(builtin, files=()):
    """The entries of these files, each checked on its own."""
    spec = Spec({}, {}, [])
    for path, own in [(p, True) for p in builtin] + [(pathlib.Path(p), False) for p in files]:
        _load_file(spec, path, own)
    return spec


def finish(spec):
    """Gives ops their activations, and checks their expressions. What of kf's own is checked already stays as it is, as far as it is the same."""
    known = spec.own or Spec({}, {}, [])
    for op in spec.ops.values():
        found = _activations_of(spec, op)
        if found != op.activations:
            op.activations = found
    for op in spec.ops.values():
        made_of = tuple(_entry(spec, op, name) for name in families.of(op).made_of(op))
        if not all(map(spec.as_own, made_of)) or op.pattern not in known.ops:
            op.made_of = made_of
        if op.pattern not in known.ops:
            check_expressions(op)
        for act in op.activations:
            if op.pattern not in known.ops or act.name not in known.activations:
                check_scalars(op, act)


def _entry(spec, op, name):
    """Another entry, of which an op is made."""
    if name not in spec.ops:
        raise SpecError(
            op.file,
            f"op.{op.pattern}",
            "rows",
            f"`{name}` is no entry",
            f"the entries are: {', '.join(spec.ops)}",
        )
    return spec.ops[name]


def _load_file(spec, path, builtin):
    name = called(path) if builtin else str(path)
    _load_text(spec, path, name, _text(name, path), builtin)


SYNTAX = "see https://toml.io; quote keys that hold braces"


def _text(name, path):
    try:
        return path.read_text()
    except OSError as e:
        raise SpecError(
            name, "file", "path", e.strerror or str(e), "give the path of a readable .toml file"
        ) from None
    except UnicodeDecodeError as e:
        raise SpecError(name, "file", "syntax", str(e), SYNTAX) from None


def _load_text(spec, path, name, text, builtin):
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise SpecError(name, "file", "syntax", str(e), SYNTAX) from None
    spec.files.append(path)
    for section, entries in data.items():
        if section not in ("activation", "op") or not isinstance(entries, dict):
            raise SpecError(
                name,
                section,
                "section",
                "is not known",
                "entries are [activation.<name>] or [op.<pattern>]",
            )
        for key, entry in entries.items():
            if not isinstance(entry, dict):
                raise SpecError(
                    name,
                    f"{section}.{key}",
                    "entry",
                    "is not a table",
                    f"write [{section}.{key}] above its fields",
                )
            shown = (
                key if key.isprintable() else repr(key)[1:-1]
            )  # a message has its place on one line
            (_load_activation if section == "activation" else load_op)(
                spec, name, key, Fields(name, f"{section}.{shown}", entry), builtin
            )


def _load_activation(spec, file, name, f, builtin):
    if not NAME.match(name):
        shown = name if name.isprintable() else repr(name)[1:-1]
        raise f.error(
            "name",
            f"`{shown}` is not a word",
            "use lower-case letters, digits and single underscores",
        )
    if name in spec.activations:
        raise f.error(
            "name",
            f"`{name}` is already defined in {spec.activations[name].file}",
            "choose another name",
        )
    act = Activation(
        name=name,
        id=_id(spec, file, name, f, builtin),
        file=file,
        builtin=builtin,
        brief=f.line("brief"),
        expr=f.get("expr", str, required=True, what='"an expression of x"'),
        dexpr=f.get("dexpr", str),
        scalars=values(scalar_info := scalars(f, limits.ACT_SCALARS, own=("x", "y"))),
        scalar_info=scalar_info,
        dexpr_out=f.get("dexpr_out", str),
        dref_out=f.get("dref_out", str),
        rising=tuple(f.get("rising", list, [], what='["a_scalar"]')),
        ref=f.get(
            "ref",
            str,
            required=True,
            what='"the same function in NumPy (np) and scipy.special (sp)"',
        ),
        dref=f.get("dref", str),
        edges=f.get("edges", dict, {}, what='{ nan = "nan", inf = ... }'),
        dedges=f.get("dedges", dict, {}, what='{ nan = "nan", inf = ... }'),
        ulp=f.get("ulp", dict, {"f32": 4, "f64": 4}, what="{ f32 = 4, f64 = 4 }"),
        ints=f.get("ints", bool, False, what="true or false"),
        rounding=f.get("rounding", str, "result", what='"result" or "intermediates"'),
        budget=f.get("budget", dict, {}, what='{ lp = 13, lp_bwd = 25, f32 = 30, why = "..." }'),
        heavy=f.get("heavy", bool, False, what="true or false"),
        source=f.get("source", str, "", what='"where the function is defined"'),
        since=f.get("since", str, "", what='"the version that brought it"'),
    )
    f.done()
    f.oracle("ref", act.ref)
    f.oracle("dref", act.dref or "0")
    check_by_result(f, act)
    for field_, table in (("edges", act.edges), ("dedges", act.dedges)):
        for point, value in table.items():
            if (
                not is_number(point)
                or isinstance(value, bool)
                or not isinstance(value, (int, float, str))
            ):
                raise f.error(
                    field_,
                    f"{point} is {value!r}",
                    'write a point such as nan, "-inf", "-0" or 3 and the value there, "nan" or 0.5',
                )
    for dtype in ("f32", "f64"):
        if not isinstance(act.ulp.get(dtype), (int, float)):
            raise f.error("ulp", f"has no {dtype}", "write ulp = { f32 = 4, f64 = 4 }")
    if act.rounding not in ("result", "intermediates"):
        raise f.error("rounding", f"is {act.rounding!r}", 'write "result" or "intermediates"')
    if act.budget and not act.budget.get("why"):
        raise f.error("budget", "gives no reason", 'add why = "..."')
    spec.activations[name] = act


def _id(spec, file, name, f, builtin):
    """An activation's number, which no other one has."""
    if not builtin and "id" in f.data:
        raise f.error(
            "id", "is given by kfgen: it follows from the names of file and activation", "remove it"
        )
    ident = (
        f.get("id", int, required=True, what="a number never used before")
        if builtin
        else own_id(stem_of(file), name)
    )
    if builtin and ident not in KF_IDS:
        raise f.error("id", f"{ident} is not one of kf's own", f"they are below {KF_IDS.stop}")
    for other in spec.activations.values():
        if other.id == ident:
            if builtin:
                raise f.error(
                    "id", f"{ident} is already {other.name}'s", "choose a number that is free"
                )
            raise f.error(
                "name",
                f"gives the id {ident}, which is already {other.name}'s",
                "rename one of the two",
            )
    return ident


def load_op(spec, file, pattern, f, builtin):
    if not PATTERN.match(pattern) or pattern.count("{act}") > 1:
        raise f.error(
            "name",
            f"`{pattern}` is not a pattern",
            "use lower-case words joined by underscores, one of them may be {act}",
        )
    if pattern in spec.ops:
        raise f.error(
            "name",
            f"`{pattern}` is already defined in {spec.ops[pattern].file}",
            "choose another name",
        )
    word = f.get(
        "family",
        str,
        "elementwise",
        what=" or ".join(f'"{name}"' for name in FAMILIES).replace(" or ", ", ", len(FAMILIES) - 2),
    )
    if families.named(word) not in FAMILIES:
        raise f.error("family", f"is {word!r}", f"the families are: {', '.join(FAMILIES)}")
    family = FAMILIES[families.named(word)]
    scalar_info = scalars(f, limits.SCALARS)
    given = values(scalar_info)
    integers = tuple(name for name, value in given.items() if isinstance(value, int))
    if integers and not family.integers:
        raise f.error(
            "scalars",
            f"`{integers[0]}` is a whole number, which family {family.name!r} does not take",
            "give it a number alone",
        )
    operands = _operands(f, given, family)
    outputs, refs = {}, {}
    expr = f.get("expr", str, what='"an expression of the operands"')
    ref = f.get("ref", str, what='"the same in NumPy"')
    if expr is not None:
        outputs, refs = {"out": expr}, {"out": ref}
    table = f.get("outputs", dict, {}, what='{ name = "expression", ... }')
    table_refs = f.get("refs", dict, {}, what='{ name = "the same in NumPy", ... }')
    if (expr is None) == (not table):
        fix = 'give either expr = "..." or outputs = { name = "..." }'
        raise (
            f.missing("expr", fix)
            if expr is None
            else f.error("expr", "stands beside outputs", fix)
        )
    outputs.update(table)
    refs.update(table_refs)
    for name, text in outputs.items():
        if not isinstance(text, str) or not isinstance(refs.get(name), str):
            raise f.error(
                "ref" if expr is not None else "refs",
                f"has no reference for `{name}`",
                "give the same formula in NumPy",
            )
        f.oracle("ref" if expr is not None else "refs", refs[name])
        if expr is None and (
            not (name == "out" or usable(name))
            or name in given
            or any(name in (o.name, *o.values) for o in operands)
        ):
            raise f.error("outputs", f"the name `{name}` cannot be used", UNUSABLE)
    saved, updates, grads = _row_fields(f, family, {*given, *outputs}, operands)
    for name in updates:
        if not isinstance(table_refs.get(name), str):
            raise f.error(
                "refs", f"has no reference for `{name}`", "give the same formula in NumPy"
            )
        f.oracle("refs", table_refs[name])
        refs[updated(name)] = refs.pop(name)
    plain = {
        *given,
        *outputs,
        *saved,
        *map(updated, updates),
        *(n for o in operands for n in (o.name, *o.values)),
    }
    for name in sorted(plain & {f"d{n}" for n in plain}) if any(o.grad for o in operands) else ():
        raise f.error(
            "operands",
            f"`{name}` is also the name of the gradient of `{name[1:]}`",
            "rename one of the two",
        )
    op = Op(
        pattern=pattern,
        file=file,
        builtin=builtin,
        operands=operands,
        outputs=outputs,
        scalars=given,
        scalar_info=scalar_info,
        refs=refs,
        family=family.name,
        integers=integers,
        saved=saved,
        updates=updates,
        grads=grads,
        layout=f.get("layout", str, "", what='"channels"'),
        empty=f.get("empty", str, "value", what='"value" or "error"'),
        brief=f.line("brief"),
        ints=f.get("ints", bool, False, what="true or false"),
        without=tuple(f.get("without", list, [], what='["none"]')),
        types=f.get("types", str, "one", what='"one", "pairs", "weights" or "results"'),
        source=f.get("source", str, "", what='"where the op is defined"'),
        since=f.get("since", str, "", what='"the version that brought it"'),
    )
    op.own = family.own_fields(f, op)
    op.reduced = reduced = tuple(_reduced_words(f, op))
    f.done()
    if not all(isinstance(name, str) for name in op.without):
        raise f.error(
            "without",
            f"is {list(op.without)!r}",
            'write the names of activations: without = ["none"]',
        )
    if op.types not in ("one", "pairs", "weights", *family.types):
        others = "".join(f', "{word}"' for word in family.types)
        raise f.error("types", f"is {op.types!r}", f'write "one", "pairs" or "weights"{others}')
    if op.layout:
        check_layout(f, op)
    if op.empty not in ("value", "error") or (op.empty == "error" and "empty" not in family.fields):
        raise f.error(
            "empty",
            f"is {op.empty!r}",
            'write "value", or "error" in an op of family = "reduction" that has no value then',
        )
    if (op.types == "weights") != any(o.dtype == "U" for o in operands):
        raise f.error(
            "types",
            f"is {op.types!r}",
            'write types = "weights" where, and only where, an operand has dtype = "U"',
        )
    spec.ops[pattern] = op
    for word in reduced:
        load_op(
            spec,
            file,
            f"{pattern}_{word}",
            Fields(file, f"op.{pattern}_{word}", _reduced(f, op, word)),
            builtin,
        )
        spec.ops[f"{pattern}_{word}"].reduction = word


def _reduced_words(f, op):
    """The reductions that an op over elements is wanted with as well: ["mean", "sum"]."""
    words = f.get("reduced", list, [], what='["mean", "sum"]')
    unknown = [w for w in words if w not in ("mean", "sum")]
    if unknown or len(set(words)) < len(words):
        raise f.error(
            "reduced", f"is {words!r}", 'write each reduction once: reduced = ["mean", "sum"]'
        )
    simple = (
        "reduced" in families.of(op).fields
        and set(op.outputs) == {"out"}
        and all(o.kind == "elem" for o in op.operands)
    )
    if words and (not simple or op.has_act or op.ints or op.types != "one" or op.dropout):
        raise f.error(
            "reduced",
            "needs one result, elem operands, no {act} and no dropout",
            'write an op of family = "reduction"',
        )
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
    return kept | {
        "family": "reduction",
        "types": "results",
        "brief": f"the {word} of {op.brief}",
        "expr": text,
        "ref": f"{word}({op.refs['out']})",
    }


def _row_fields(f, family, taken, operands):
    """What ops over rows have beside the others: (saved, updates, grads)."""
    saved = f.get("saved", dict, {}, what='{ rstd = "an expression that is the same for a row" }')
    updates = f.get(
        "updates",
        dict,
        {},
        what='{ running_mean = "an expression of its next value, the same for a row" }',
    )
    grads = f.get(
        "grads",
        dict,
        {},
        what='{ x = "an expression of the operands, the results and their gradients" }',
    )
    for field_, table in (("saved", saved), ("updates", updates), ("grads", grads)):
        if table and field_ not in family.fields:
            raise f.error(field_, "belongs to ops over rows", 'add family = "rows"')
    names = taken | {n for o in operands for n in (o.name, *o.values)}
    for field_, given in (
        ("scalars", f.data.get("scalars", ())),
        ("outputs", f.data.get("outputs", ())),
        ("operands", names),
    ):
        for name in family.names:
            if name in given:
                raise f.error(field_, f"the name `{name}` cannot be used", UNUSABLE)
    for field_, table in (("saved", saved), ("updates", updates), ("grads", grads)):
        for name, text in table.items():
            if not isinstance(text, str):
                raise f.error(field_, f"{name} is {text!r}", "give it an expression, in quotes")
    for name in saved:
        if not usable(name) or name in names or name in family.names:
            raise f.error("saved", f"the name `{name}` cannot be used", UNUSABLE)
    kept = [o.name for o in operands if o.kind == "per_row" and o.dtype == "acc" and not o.grad]
    for name in updates:
        if name not in kept:
            fix = f'those are "per_row", of dtype "acc" and with grad = false: {", ".join(kept) or "none"}'
            raise f.error("updates", f"`{name}` is no operand that can be updated", fix)
        if updated(name) in names | taken | set(saved):
            raise f.error(
                "updates",
                f"`{updated(name)}`, its next value, is a name already",
                "rename one of the two",
            )
    wanted = [o.name for o in operands if o.grad]
    for name in grads:
        if name not in wanted:
            raise f.error(
                "grads",
                f"`{name}` is no operand with a gradient",
                f"those are: {', '.join(wanted) or 'none'}",
            )
    return saved, updates, grads


def _in_every_dtype(value):
    """Whether every dtype holds the number as it is."""
    try:
        f16, f32 = struct.pack(">e", value), struct.pack(">f", value)
    except (OverflowError, struct.error):  # of a float, of an integer
        return False
    return (
        struct.unpack(">e", f16)[0] == value == struct.unpack(">f", f32[:2] + bytes(2))[0]
        and abs(value) <= 65504
    )


def _operands(f, scalars, family):
    table = f.get("operands", dict, required=True, what='{ x = "elem", ... }')
    operands, names = [], set(scalars)
    for name, value in table.items():
        value = {"kind": value} if isinstance(value, str) else value
        if not isinstance(value, dict) or value.get("kind") not in family.kinds:
            raise f.error(
                "operands", f"{name} is {value!r}", f"give it a kind: {', '.join(family.kinds)}"
            )
        unknown = set(value) - {"kind", "dtype", "grad", "parts", "positive", "absent"}
        if unknown:
            raise f.error(
                "operands",
                f"{name} has the unknown property {sorted(unknown)[0]!r}",
                "use kind, dtype, grad, parts, positive, absent",
            )
        parts, flags = (
            value.get("parts", []),
            {p: value.get(p, p == "grad") for p in ("grad", "positive")},
        )
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise f.error(
                "operands", f"{name} has parts {parts!r}", 'write parts = ["first", "second"]'
            )
        for p, flag in flags.items():
            if not isinstance(flag, bool):
                raise f.error(
                    "operands", f"{name} has {p} = {flag!r}", f"write {p} = true or false"
                )
        absent = value.get("absent")
        if absent is not None and (
            not family.absent(value["kind"])
            or isinstance(absent, bool)
            or not isinstance(absent, (int, float))
        ):
            fix = 'a "row", a "per_row", a "channel", a "group" or a "shared" of an op over rows may be absent: absent = 1, its value then'
            raise f.error("operands", f"{name} has absent = {absent!r}", fix)
        if absent is not None and not _in_every_dtype(absent):
            raise f.error(
                "operands",
                f"{name} has absent = {absent!r}",
                "write a number that every dtype holds, f16 and bf16 as well, such as 1",
            )
        operand = Operand(
            name, value["kind"], value.get("dtype", "T"), parts=tuple(parts), absent=absent, **flags
        )
        if operand.dtype not in ("T", *family.dtypes(operand.kind, operand.grad)):
            fix = (
                'use "T"; rows and channels may be "acc"; in ops over rows all but "elem" and "shared" may be "acc" or "U", a "per_row" with '
                'grad = false "I", a "shared" "u8"'
            )
            raise f.error("operands", f"{name} has dtype {operand.dtype!r}", fix)
        if len(operand.parts) != family.parts.get(operand.kind, 0):
            kind, count = (
                operand.kind if operand.kind in family.parts else next(iter(family.parts), "half"),
                family.parts.get(operand.kind, 2),
            )
            fix = f'a "{kind}" operand, and no other, has parts = {json.dumps(["first", "second", "third", "fourth"][:count])}'
            raise f.error("operands", f"{name} has parts {list(operand.parts)}", fix)
        for n in {operand.name, *operand.values}:
            if not usable(n) or n in names:
                raise f.error("operands", f"the name `{n}` cannot be used", UNUSABLE)
        names |= {operand.name, *operand.values}
        operands.append(operand)
    wanted = [kind for kind in family.kinds if kind in family.whole]
    if wanted and not {o.kind for o in operands} & set(wanted):
        whole = " or ".join(f'"{kind}"' for kind in wanted)
        raise f.error(
            "operands",
            "has no operand with the shape of the result",
            f"make at least one of them {whole}",
        )
    family.check_operands(f, operands)
    return operands


def _activations_of(spec, op):
    if not op.has_act:
        return [spec.activations["none"]] if "none" in spec.activations else []
    for name in op.without:
        if name not in spec.activations:
            known = ", ".join(spec.activations)
            raise SpecError(
                op.file,
                f"op.{op.pattern}",
                "without",
                f"`{name}` is no activation",
                f"the activations are: {known}",
            )
    heavy = families.of(op).heavy
    return [
        a
        for a in spec.activations.values()
        if a.name not in op.without and (not heavy or a.heavy or not a.builtin)
    ]
