# SPDX-License-Identifier: Apache-2.0
"""Builds the texts of spec files with mistakes."""

ACT = {"brief": '"twice x"', "expr": '"2 * x"', "ref": '"2 * x"'}
ROW = {
    "family": '"rows"',
    "brief": '"x over its sum"',
    "operands": '{ x = "elem" }',
    "expr": '"x / sum(x)"',
    "ref": '"x / sum(x)"',
}
OP = {
    "brief": '"a + b"',
    "operands": '{ a = "elem", b = "elem" }',
    "expr": '"act(a + b)"',
    "ref": '"act(a + b)"',
}


def entry(kind, name, fields, change):
    fields = {**fields, **change}
    return f"[{kind}.{name}]\n" + "".join(
        f"{k} = {v}\n" for k, v in fields.items() if v is not None
    )


def act(name="twice", **change):
    return entry("activation", name, ACT, change)


def op(name="plus_{act}", **change):
    return entry("op", f'"{name}"', OP, change)


COLUMN = '{ kind = "per_row", dtype = "I", grad = false }'
KEPT = '{ x = "elem", k = { kind = "per_row", dtype = "acc", grad = false } }'


def row(name="share", **change):
    return entry("op", f'"{name}"', ROW, change)


def reduce(**change):
    return entry(
        "op",
        '"total"',
        ROW | {"family": '"reduction"', "expr": '"sum(x)"', "ref": '"sum(x)"'},
        change,
    )


def weight(of, **change):
    """An op over rows with another operand w."""
    return row(operands=f'{{ x = "elem", w = {of} }}', expr='"x * w / sum(x)"', **change)
