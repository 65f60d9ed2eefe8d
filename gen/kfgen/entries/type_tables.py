# SPDX-License-Identifier: Apache-2.0
"""Reads the type variables of an entry: `types`, and what names them."""

import re
from dataclasses import replace

from kfgen.families.family import FURTHER
from kfgen.model.dtypes import DTYPE, DTYPES, FLOAT_DTYPES, INT_DTYPES
from kfgen.model.types import (
    ABBREVIATIONS,
    ACC,
    FIRST,
    GRADIENTS,
    RESERVED,
    RESULTS,
    SAVED,
    WEIGHTS,
    Types,
    Variable,
    described,
)

NAME = re.compile(r"[A-Z][A-Z0-9]*\Z")
EXAMPLE = '{ T = ["f16", "bf16"], W = ["T", "f32"] }'


def read(f, family, ints):
    """Reads `types`: an abbreviation, or {variable: dtypes, earlier variables or "acc"}."""
    given = f.get("types", (str, dict), family.types, what=f'"weights", or {EXAMPLE}')
    if isinstance(given, dict):
        return Types(_table(f, family, given, ints))
    stored = {*FLOAT_DTYPES, *INT_DTYPES, *family.storage}
    known = {word: t for word, t in ABBREVIATIONS.items() if stored.issuperset(t.first.members)}
    if given not in known:
        words = ", ".join(f'"{word}"' for word in known)
        raise f.error("types", f"is {given!r}", f"write {words}, or a table such as {EXAMPLE}")
    found = known[given]
    if not ints or found.converts:
        return found
    first, *others = found.variables
    return replace(found, variables=(replace(first, members=first.members + INT_DTYPES), *others))


def _table(f, family, given, ints):
    """Reads the variables of a table; their roles follow from what names them."""
    if next(iter(given), "") != FIRST:
        fix = f"begin with T, the dtype of the elements: types = {EXAMPLE}"
        raise f.error("types", f"is {given!r}", fix)
    stored = FLOAT_DTYPES + family.storage + (INT_DTYPES if ints else ())
    found = []
    for name, members in given.items():
        if not NAME.match(name) or name in RESERVED:
            fix = "choose capital letters and digits, but I, the integers' variable"
            raise f.error("types", f"the name `{name}` cannot be used", fix)
        known = stored + ((*(v.name for v in found), ACC) if found else ())
        if not isinstance(members, list) or not members:
            raise f.error("types", f"{name} is {members!r}", f"list its dtypes: {EXAMPLE}")
        odd = [m for m in members if not isinstance(m, str) or m not in known]
        if odd or len(set(members)) < len(members):
            problem = f"{name} lists {odd[0]!r}" if odd else f"{name} lists a dtype twice"
            more = "" if ints or not set(map(str, odd)) & set(INT_DTYPES) else "; add ints = true"
            raise f.error("types", problem, f"list some of {', '.join(known)}, each once{more}")
        found.append(Variable(name, tuple(members)))
    _check_beside_elements(f, family, found)
    return tuple(found)


def _check_beside_elements(f, family, variables):
    """Raises an error for a dtype that functions cannot have beside that of their elements."""
    every = Types(tuple(variables))
    for types in every.assignments(every.names, DTYPES):
        elements = DTYPE[types[FIRST]]
        for name, word in types.items():
            if DTYPE[word].size < elements.size and not family.narrower:
                fix = f"list wider dtypes in {name}, or fewer dtypes in T"
                raise f.error("types", f"{described(types)}: {name} is narrower than T", fix)
            if DTYPE[word].compute != elements.compute:
                fix = (
                    f'list "T" or "acc" (float32, or float64 beside f64) in {name}, '
                    "or fewer dtypes in T"
                )
                raise f.error("types", f"{described(types)}: other arithmetic than that of T", fix)


def operand_dtype(f, name, value, types, family):
    """Checks the dtype of an operand, given as a table of properties."""
    dtype, fixed = value.get("dtype", FIRST), family.dtypes(value["kind"], value.get("grad", True))
    if dtype in (FIRST, *(d for d in fixed if d != FURTHER)):
        return
    if FURTHER not in fixed or not NAME.match(str(dtype)) or dtype in RESERVED:
        fix = (
            'use "T"; rows and channels may have "acc", "elem" with grad = false "u8"; in ops over '
            'rows all kinds but "elem" and "shared" may have "acc" or another type variable, '
            '"per_row" with grad = false "I", "shared" "u8"'
        )
        raise f.error("operands", f"{name} has dtype {dtype!r}", fix)
    if dtype not in types.names:
        given = repr(types.word) if types.word else f"a table without {dtype}"
        fix = f'write types = "weights" if and only if an operand has dtype = "U", or {EXAMPLE}'
        raise f.error("types", f"is {given}, and {name} has dtype {dtype!r}", fix)


def gradient_dtype(f, name, value, types):
    """Reads `grad` of an operand: (true or false, type variable of the gradient or "")."""
    grad = value.get("grad", True)
    if isinstance(grad, bool):
        return grad, ""
    if grad not in types.names:
        fix = f"write grad = true or false, or a variable of `types`: {', '.join(types.names)}"
        raise f.error("operands", f"{name} has grad = {grad!r}", fix)
    return True, grad


def split(f, field, table, types, conditions=False):
    """Reads {name: expression or { expr, dtype }}: {name: expression}, {name: type variable}.

    conditions: True allows the dtype "u8".
    """
    texts, dtypes, known = {}, {}, [*types.names, *(["u8"] if conditions else [])]
    for name, value in table.items():
        if isinstance(value, dict) and value.keys() == {"expr", "dtype"}:
            if value["dtype"] not in known:
                fix = f"name a variable of `types`: {', '.join(known)}"
                raise f.error(field, f"{name} has dtype {value['dtype']!r}", fix)
            dtypes[name] = value["dtype"]
        texts[name] = value["expr"] if name in dtypes else value
    return texts, dtypes


def complete(f, op, family):
    """Sets roles and the variables of tensors that an abbreviation implies; checks all."""
    if op.types.word:
        _fill(op, family)
    used = _used(op)
    variables = tuple(_with_role(f, op, v, used) for v in op.types.variables)
    op.types = replace(op.types, variables=variables)
    for variable in op.types.variables[1:]:
        _check_role(f, op, family, variable, used)
    for bwd in (False, True) if any(o.grad for o in op.operands) else (False,):
        both = op.types.clash(family.variables(op, bwd), op.indexed)
        if both:
            problem = f"{described(both[0])} and {described(both[1])} have the same name"
            fix = "a name leaves out dtypes equal to that of T: list fewer dtypes"
            raise f.error("types", problem, fix)


def _fill(op, family):
    """Gives results and gradients of weights the variable of the abbreviation."""
    results, gradients = (op.types.variable_of(role) for role in (RESULTS, GRADIENTS))
    if results != FIRST:
        op.dtypes = dict.fromkeys(op.outputs, results) | op.dtypes
    if gradients != FIRST:
        op.operands = [
            replace(o, grad_dtype=o.grad_dtype or gradients)
            if o.grad and o.kind in family.summed
            else o
            for o in op.operands
        ]


def _used(op):
    """Returns {variable: roles of the tensors that name it}."""
    found = {}
    for role, variables in (
        (WEIGHTS, [o.dtype for o in op.operands]),
        (RESULTS, [op.dtypes[name] for name in op.outputs if name in op.dtypes]),
        (SAVED, [op.dtypes[name] for name in op.saved if name in op.dtypes]),
        (GRADIENTS, [o.grad_dtype for o in op.operands]),
    ):
        for variable in variables:
            found.setdefault(variable, {})[role] = None
    return {variable: list(roles) for variable, roles in found.items()}


def _with_role(f, op, variable, used):
    """Sets the role of a table's variable: that of the first tensors that name it."""
    if op.types.word or variable.name == FIRST:
        return variable
    if variable.name not in used:
        fix = f'give an operand or a result dtype = "{variable.name}", or remove it'
        raise f.error("types", f"no tensor has the dtype {variable.name}", fix)
    return replace(variable, of=used[variable.name][0])


def _check_role(f, op, family, variable, used):
    """Raises an error for a variable of tensors whose dtype must be T in the family."""
    shown = repr(op.types.word) if op.types.word else f"has {variable.name}"
    if op.types.converts:
        if not family.converts:
            problem = f"is 'pairs', but ops of family {family.name!r} do not convert"
            raise f.error("types", problem, "leave it out")
        return
    if variable.of == WEIGHTS and variable.name not in used:
        fix = 'write types = "weights" if and only if an operand has dtype = "U"'
        raise f.error("types", f"is {shown}", fix)
    for role in used.get(variable.name, [variable.of]):
        if role not in family.roles:
            known = " and ".join(family.roles) or "no tensors"
            fix = f"leave it out: functions of the family have {known} of another dtype"
            raise f.error("types", f"is {shown}, a dtype of {role}", fix)
