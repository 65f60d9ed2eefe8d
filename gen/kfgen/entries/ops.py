# SPDX-License-Identifier: Apache-2.0
"""Reads [op.<pattern>] entries: fields, operands and expressions, with their checks."""

import ast
import json
import struct

from kfgen import families
from kfgen.entries import type_tables
from kfgen.entries.fields import Fields, scalars, values
from kfgen.entries.spec_checks import check_layout
from kfgen.families import FAMILIES
from kfgen.model import limits
from kfgen.model.entries import PATTERN, UNUSABLE, Op, Operand, updated, usable
from kfgen.model.names import LAYOUT, OF_GRADIENTS, VARIANTS, fill_layout


def load_op(spec, file, pattern, f, builtin):
    """Reads an entry and adds its op, and those of its `reduced` field, to the spec."""
    _check_pattern(spec, pattern, f)
    if LAYOUT in pattern or "layouts" in f.data:
        return _load_layouts(spec, file, pattern, f, builtin)
    family = _family(f)
    scalar_info = scalars(f, limits.SCALARS)
    given = values(scalar_info)
    integers = tuple(name for name, value in given.items() if isinstance(value, int))
    if integers and not family.integers:
        raise f.error(
            "scalars",
            f"`{integers[0]}` is an integer, which family {family.name!r} does not accept",
            "write a number instead of a table",
        )
    ints = f.get("ints", bool, False, what="true or false")
    types = type_tables.read(f, family, ints)
    operands = _operands(f, given, family, types)
    outputs, refs, dtypes = _outputs(f, given, operands, types, family)
    saved, updates, grads, of_saved = _row_fields(f, family, {*given, *outputs}, operands, types)
    _read_update_references(f, updates, refs)
    _check_gradient_names(f, operands, {*given, *outputs, *saved, *map(updated, updates)})
    op = Op(
        pattern=pattern,
        entry=f.entry.removeprefix("op."),
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
        ints=ints,
        without=tuple(f.get("without", list, [], what='["none"]')),
        types=types,
        dtypes=dtypes | of_saved,
        variants=_variants(f, family, operands),
        source=f.get("source", str, "", what='"where the op is defined"'),
        since=f.get("since", str, "", what='"the version that brought it"'),
    )
    op.own = family.own_fields(f, op)
    op.reduced = tuple(_reductions(f, op))
    f.done()
    _check_values(f, op)
    type_tables.complete(f, op, family)
    spec.ops[pattern] = op
    for word in op.reduced:
        name = f"{pattern}_{word}"
        load_op(spec, file, name, Fields(file, f"op.{name}", _reduced(f, op, word)), builtin)
        spec.ops[name].reduction, spec.ops[name].entry = word, op.entry
    for name, data in family.made(op, f.data).items():
        load_op(spec, file, name, Fields(file, f.entry, data), builtin)


def _load_layouts(spec, file, pattern, f, builtin):
    """Adds an op for each of `layouts`, whose words stand for {layout} in the name."""
    family, fix = _family(f), 'a name with {layout} lists them: layouts = ["", "nn"]'
    words = f.get("layouts", list, required=True, what='["", "nn"], the words for {layout}')
    if LAYOUT not in pattern or "layout" in f.data:
        field = "layouts" if LAYOUT not in pattern else "layout"
        raise f.error(field, f"is given in an entry named `{pattern}`", fix)
    known = ("", *family.layouts)
    odd = [word for word in words if word not in known]
    if odd or not words or len(set(words)) < len(words):
        problem = f"has {odd[0]!r}" if odd else f"is {words!r}"
        what = ", ".join(f'"{word}"' for word in known)
        raise f.error("layouts", problem, f"family {family.name!r} has, each once, {what}")
    data = {name: value for name, value in f.data.items() if name != "layouts"}
    for word in words:
        fields = Fields(file, f.entry, data | ({"layout": word} if word else {}))
        load_op(spec, file, fill_layout(pattern, word), fields, builtin)


def _check_pattern(spec, pattern, f):
    if not PATTERN.match(pattern) or any(pattern.count(p) > 1 for p in ("{act}", LAYOUT)):
        raise f.error(
            "name",
            f"`{pattern}` is not a pattern",
            "use lower-case words joined by underscores, one of them may be {act}, one {layout}",
        )
    if pattern in spec.ops:
        raise f.error(
            "name",
            f"`{pattern}` is already defined in {spec.ops[pattern].file}",
            "choose another name",
        )


def _family(f):
    known = " or ".join(f'"{name}"' for name in FAMILIES).replace(" or ", ", ", len(FAMILIES) - 2)
    word = f.get("family", str, families.DEFAULT, what=known)
    if families.named(word) not in FAMILIES:
        raise f.error("family", f"is {word!r}", f"the families are: {', '.join(FAMILIES)}")
    return FAMILIES[families.named(word)]


def _outputs(f, given, operands, types, family):
    """Reads `expr` and `ref`, or `outputs` and `refs`: {name: expression}, {name: reference},
    {name: type variable}.
    """
    outputs, refs = {}, {}
    expr = f.get("expr", str, what='"an expression of the operands"')
    ref = f.get("ref", str, what='"the same in NumPy"')
    if expr is not None:
        outputs, refs = {"out": expr}, {"out": ref}
    table = f.get("outputs", dict, {}, what='{ name = "expression", ... }')
    table_refs = f.get("refs", dict, {}, what='{ name = "the same in NumPy", ... }')
    if family.in_place and f.data.get("updates") and expr is None and not table:
        return {}, dict(table_refs), {}
    if (expr is None) == (not table):
        fix = 'give either expr = "..." or outputs = { name = "..." }'
        raise (
            f.missing("expr", fix)
            if expr is None
            else f.error("expr", "is given together with `outputs`", fix)
        )
    table, dtypes = type_tables.split(f, "outputs", table, types, family.conditions)
    outputs.update(table)
    refs.update(table_refs)
    field = "ref" if expr is not None else "refs"
    for name, text in outputs.items():
        if not isinstance(text, str) or not isinstance(refs.get(name), str):
            raise f.error(field, f"has no reference for `{name}`", "give the same formula in NumPy")
        f.oracle(field, refs[name])
        if expr is None and (
            not (name == "out" or usable(name))
            or name in given
            or any(name in (o.name, *o.values) for o in operands)
        ):
            raise f.error("outputs", f"the name `{name}` cannot be used", UNUSABLE)
    return outputs, refs, dtypes


def _read_update_references(f, updates, refs):
    """Moves the references of updates to the names of the outputs."""
    table = f.data.get("refs", {})
    for name in updates:
        if not isinstance(table.get(name), str):
            raise f.error(
                "refs", f"has no reference for `{name}`", "give the same formula in NumPy"
            )
        f.oracle("refs", table[name])
        refs[updated(name)] = refs.pop(name)


def _check_gradient_names(f, operands, others):
    names = others | {n for o in operands for n in (o.name, *o.values)}
    if not any(o.grad for o in operands):
        return
    for name in sorted(names & {f"d{n}" for n in names}):
        raise f.error(
            "operands",
            f"`{name}` is also the name of the gradient of `{name[1:]}`",
            "rename one of the two",
        )


def _check_values(f, op):
    """Checks the fields that have a few values."""
    if not all(isinstance(name, str) for name in op.without):
        raise f.error(
            "without",
            f"is {list(op.without)!r}",
            'write the names of activations: without = ["none"]',
        )
    if op.layout:
        check_layout(f, op)
    fields = families.of(op).fields
    if op.empty not in ("value", "error") or (op.empty == "error" and "empty" not in fields):
        raise f.error(
            "empty",
            f"is {op.empty!r}",
            'write "value", or "error" in an op of family = "reduction" without a value then',
        )


def _reductions(f, op):
    """Reads `reduced`, the reductions of the op that become ops of their own: ["mean", "sum"]."""
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
    if words and (not simple or op.has_act or op.ints or not op.types.single or op.dropout):
        raise f.error(
            "reduced",
            "needs one result, elem operands, no {act} and no dropout",
            'write an op of family = "reduction"',
        )
    return words


def _reduced(f, op, word):
    """Returns the fields of the op that reduces op's result over an axis."""
    text = op.outputs["out"]
    try:
        *names, value = ast.parse(text.strip()).body
        text = "; ".join([*map(ast.unparse, names), f"{word}({ast.unparse(value)})"])
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        pass  # the op itself has been refused
    kept = {k: v for k, v in f.data.items() if k in ("operands", "scalars", "source", "since")}
    return kept | {
        "family": families.of(op).reduced_by,
        "types": "results",
        "brief": f"the {word} of {op.brief}",
        "expr": text,
        "ref": f"{word}({op.refs['out']})",
    }


def _row_fields(f, family, taken, operands, types):
    """Reads and checks `saved`, `updates` and `grads` of ops over rows. Returns their expressions,
    and {saved value: type variable}.
    """
    saved = f.get("saved", dict, {}, what='{ rstd = "an expression that is constant in a row" }')
    saved, dtypes = type_tables.split(f, "saved", saved, types)
    what = '{ running_mean = "an expression of its next value, constant in a row" }'
    updates = f.get("updates", dict, {}, what=what)
    what = '{ x = "an expression of the operands, the results and their gradients" }'
    grads = f.get("grads", dict, {}, what=what)
    tables = (("saved", saved), ("updates", updates), ("grads", grads))
    for field, table in tables:
        if table and field not in family.fields:
            raise f.error(field, "belongs to ops over rows", 'add family = "rows"')
    names = taken | {n for o in operands for n in (o.name, *o.values)}
    for field, given in (
        ("scalars", f.data.get("scalars", ())),
        ("outputs", f.data.get("outputs", ())),
        ("operands", names),
    ):
        for name in family.taken:
            if name in given:
                raise f.error(field, f"the name `{name}` cannot be used", UNUSABLE)
    for field, table in tables:
        for name, text in table.items():
            if not isinstance(text, str):
                raise f.error(field, f"{name} is {text!r}", "give it an expression, in quotes")
    for name in saved:
        if not usable(name) or name in names or name in family.taken:
            raise f.error("saved", f"the name `{name}` cannot be used", UNUSABLE)
    _check_updates(f, family, operands, updates, names | taken | set(saved))
    wanted = [o.name for o in operands if o.grad]
    for name in grads:
        if name not in wanted:
            raise f.error(
                "grads",
                f"`{name}` is not an operand with a gradient",
                f"those are: {', '.join(wanted) or 'none'}",
            )
    return saved, updates, grads, dtypes


def _check_updates(f, family, operands, updates, names):
    if family.in_place:
        what = " or ".join(f'"{kind}"' for kind in family.in_place)
        kept = [o.name for o in operands if o.kind in family.in_place]
    else:
        what = '"per_row", of dtype "acc" and with grad = false'
        kept = [o.name for o in operands if o.kind == "per_row" and o.dtype == "acc" and not o.grad]
    for name in updates:
        if name not in kept:
            fix = f"such operands are {what}: {', '.join(kept) or 'none'}"
            raise f.error("updates", f"`{name}` is not an operand that can be updated", fix)
        if updated(name) in names:
            raise f.error(
                "updates",
                f"`{updated(name)}`, the name of its next value, is already used",
                "rename one of the two",
            )


def _in_every_dtype(value):
    """True if every dtype represents the number exactly."""
    try:
        f16, f32 = struct.pack(">e", value), struct.pack(">f", value)
    except (OverflowError, struct.error):  # floats, integers
        return False
    return (
        struct.unpack(">e", f16)[0] == value == struct.unpack(">f", f32[:2] + bytes(2))[0]
        and abs(value) <= 65504
    )


def _variants(f, family, operands):
    """Reads `variants`, the suffixes of names that the functions also exist with."""
    words = f.get("variants", list, [], what='["varlen"]')
    known = [word for word in VARIANTS if word in family.variants]
    odd = [word for word in words if word not in known]
    if odd or len(set(words)) < len(words):
        problem = f"has {odd[0]!r}" if odd else f"is {words!r}"
        fix = (
            f"functions of family {family.name!r} have, each once, {', '.join(known)}"
            if known
            else f"leave it out: functions of family {family.name!r} have no variants"
        )
        raise f.error("variants", problem, fix)
    lost = [word for word in words if word in OF_GRADIENTS]
    if lost and not any(o.grad for o in operands):
        raise f.error("variants", f"has {lost[0]!r}, but the op has no gradient", "leave it out")
    return tuple(words)


def _operands(f, scalars_, family, types):
    table = f.get("operands", dict, required=True, what='{ x = "elem", ... }')
    operands, names = [], set(scalars_)
    kinds = [value.get("kind") if isinstance(value, dict) else value for value in table.values()]
    overwrites = any(kind in family.in_place for kind in kinds)
    for name, value in table.items():
        operand = _operand(f, name, value, family, types, overwrites)
        for n in {operand.name, *operand.values}:
            if not usable(n) or n in names:
                raise f.error("operands", f"the name `{n}` cannot be used", UNUSABLE)
        names |= {operand.name, *operand.values}
        operands.append(operand)
    wanted = [kind for kind in family.operand_kinds if kind in family.whole]
    if wanted and not {o.kind for o in operands} & set(wanted):
        whole = " or ".join(f'"{kind}"' for kind in wanted)
        raise f.error(
            "operands",
            "has no operand with the shape of the result",
            f"make at least one of them {whole}",
        )
    _check_pages(f, family, operands)
    family.check_operands(f, operands)
    return operands


def _check_pages(f, family, operands):
    """Checks that the caches of an entry have one table of block numbers."""
    for cache, table in family.paged.items():
        kinds = [o.kind for o in operands]
        if cache in kinds and kinds.count(table) != 1:
            raise f.error(
                "operands",
                f'has {kinds.count(table)} operands of kind "{table}" beside a "{cache}"',
                "add one, which has the block numbers of all caches",
            )


def _operand(f, name, value, family, types, overwrites):
    """Reads one operand: its kind, or a table of properties.

    overwrites: True if the entry has operands that updates may overwrite, and so no gradient.
    """
    text, value = value, {"kind": value} if isinstance(value, str) else value
    if overwrites and isinstance(value, dict):
        value = {"grad": False} | value
    if not isinstance(value, dict) or value.get("kind") not in family.operand_kinds:
        raise f.error(
            "operands", f"{name} is {text!r}", f"give it a kind: {', '.join(family.operand_kinds)}"
        )
    unknown = set(value) - {"kind", "dtype", "grad", "parts", "positive", "absent"}
    if unknown:
        raise f.error(
            "operands",
            f"{name} has the unknown property {sorted(unknown)[0]!r}",
            "use kind, dtype, grad, parts, positive, absent",
        )
    parts = value.get("parts", [])
    grad, grad_dtype = type_tables.gradient_dtype(f, name, value, types)
    flags = {"grad": grad, "positive": value.get("positive", False)}
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise f.error(
            "operands", f"{name} has parts {parts!r}", 'write parts = ["first", "second"]'
        )
    for p, flag in flags.items():
        if not isinstance(flag, bool):
            raise f.error("operands", f"{name} has {p} = {flag!r}", f"write {p} = true or false")
    if grad and overwrites:
        fix = "leave it out: an op that overwrites operands has no gradient"
        raise f.error("operands", f"{name} has grad = {value['grad']!r}", fix)
    absent = _absent(f, name, value, family)
    type_tables.operand_dtype(f, name, value, types, family)
    operand = Operand(
        name,
        value["kind"],
        value.get("dtype", "T"),
        grad_dtype=grad_dtype,
        parts=tuple(parts),
        absent=absent,
        **flags,
    )
    _check_parts(f, operand, family)
    return operand


def _absent(f, name, value, family):
    """Reads the value that a NULL pointer stands for; None: NULL is an error."""
    absent = value.get("absent")
    if absent is None:
        return None
    number = isinstance(absent, (int, float)) and not isinstance(absent, bool)
    if not family.absent(value["kind"]) or not number:
        fix = (
            'in ops over rows, "row", "per_row", "channel", "group" and "shared" operands may '
            "have a default: absent = 1"
        )
        raise f.error("operands", f"{name} has absent = {absent!r}", fix)
    if not _in_every_dtype(absent):
        raise f.error(
            "operands",
            f"{name} has absent = {absent!r}",
            "write a number that every dtype represents, f16 and bf16 as well, such as 1",
        )
    return absent


def _check_parts(f, operand, family):
    """Checks the number of an operand's parts."""
    if len(operand.parts) != family.parts.get(operand.kind, 0):
        kind = operand.kind if operand.kind in family.parts else next(iter(family.parts), "half")
        count = family.parts.get(operand.kind, 2)
        parts = json.dumps(["first", "second", "third", "fourth"][:count])
        fix = f'a "{kind}" operand, and no other, has parts = {parts}'
        raise f.error("operands", f"{operand.name} has parts {list(operand.parts)}", fix)
