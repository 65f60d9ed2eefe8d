# SPDX-License-Identifier: Apache-2.0
"""Every mistake in a spec file is answered with the file, the entry, the field and what to do."""

import cases
import pytest
from kfgen.cli import main
from kfgen.entries import activations, spec

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


# {mistake: (text, entry, field, part of the message, part of the fix)}
CASES = {
    "not TOML": ("[op.x\n", "file", "syntax", "line 1", "toml.io"),
    "unknown section": (
        "[ops.x]\nbrief = 'x'\n",
        "ops",
        "section",
        "not known",
        "[activation.<name>]",
    ),
    "section of a word": ("op = 3\n", "op", "section", "not known", "[op.<pattern>]"),
    "entry of a word": ("[op]\nx = 3\n", "op.x", "entry", "not a table", "[op.x]"),
    "unknown field": (
        act(expression='"x"'),
        "activation.twice",
        "expression",
        "is not a field",
        "correct its spelling",
    ),
    "misspelt field": (
        act(edgs="{}"),
        "activation.twice",
        "edgs",
        "is not a field",
        "did you mean `edges`?",
    ),
    "misspelt and required": (
        op(expr=None, exprs='"a + b"'),
        "op.plus_{act}",
        "expr",
        "is missing",
        "rename `exprs`, which is not a field",
    ),
    "misspelt brief": (
        act(brief=None, breif='"twice"'),
        "activation.twice",
        "brief",
        "is missing",
        "rename `breif`, which is not a field",
    ),
    "statements": (
        op(ref='"t = a + b; act(t)"'),
        "op.plus_{act}",
        "ref",
        "is not one Python expression",
        "(t := a + b, 2 * t)[1]",
    ),
    "unknown field of an op": (
        op(referenz='"x"'),
        "op.plus_{act}",
        "referenz",
        "is not a field",
        "correct its spelling",
    ),
    "wrong type": (act(brief="3"), "activation.twice", "brief", "is 3", "brief = "),
    "number for a word": (op(ints="1"), "op.plus_{act}", "ints", "is 1", "true or false"),
    "own id": (act(id="1024"), "activation.twice", "id", "is set by kfgen", "remove it"),
    "duplicate name": (
        act("gelu"),
        "activation.gelu",
        "name",
        "already defined in entries/activations.toml",
        "another name",
    ),
    "duplicate op": (
        op("add_{act}"),
        "op.add_{act}",
        "name",
        "already defined in elementwise/ops.toml",
        "another name",
    ),
    "bad activation name": (
        act("Twice"),
        "activation.Twice",
        "name",
        "is not a word",
        "lower-case",
    ),
    "bad pattern": (
        op("{act}_{act}"),
        "op.{act}_{act}",
        "name",
        "is not a pattern",
        "one of them may be {act}",
    ),
    "bad pattern's letters": (op("Plus"), "op.Plus", "name", "is not a pattern", "lower-case"),
    "long brief": (act(brief='"a\\nb"'), "activation.twice", "brief", "is 'a\\nb'", "one line"),
    "no expr": (act(expr=None), "activation.twice", "expr", "is missing", "add expr"),
    "no ref": (act(ref=None), "activation.twice", "ref", "is missing", "NumPy"),
    "no ref of an op": (
        op(ref=None),
        "op.plus_{act}",
        "ref",
        "has no reference for `out`",
        "NumPy",
    ),
    "no refs": (
        op(expr=None, ref=None, outputs='{ y = "act(a + b)" }'),
        "op.plus_{act}",
        "refs",
        "has no reference for `y`",
        "NumPy",
    ),
    "unreadable ref": (
        act(ref='"2 *"'),
        "activation.twice",
        "ref",
        "is not one Python expression",
        "np",
    ),
    "no expr of an op": (op(expr=None), "op.plus_{act}", "expr", "is missing", "outputs"),
    "expr and outputs": (
        op(outputs='{ y = "a" }', refs='{ y = "a" }'),
        "op.plus_{act}",
        "expr",
        "is given together with `outputs`",
        "either",
    ),
    "unreadable expression": (
        act(expr='"2 * (x"'),
        "activation.twice",
        "expr",
        "is not an expression",
        "docs/hacking.md",
    ),
    "unreadable dexpr": (
        act(dexpr='"dy +"'),
        "activation.twice",
        "dexpr",
        "is not an expression",
        "docs/hacking.md",
    ),
    "no value": (
        act(expr='"t = x"'),
        "activation.twice",
        "expr",
        "must end with",
        "docs/hacking.md",
    ),
    "assigned twice": (
        act(expr='"t = x; t = 2; t"'),
        "activation.twice",
        "expr",
        "assigns `t`, which already",
        "docs/hacking.md",
    ),
    "a loop": (
        act(expr='"for i in x: i\\nx"'),
        "activation.twice",
        "expr",
        "may only hold",
        "docs/hacking.md",
    ),
    "unknown word": (
        act(expr='"gamma(x)"'),
        "activation.twice",
        "expr",
        "calls `gamma`; the functions are: ",
        "docs/hacking.md",
    ),
    "unknown name": (
        act(expr='"2 * y"'),
        "activation.twice",
        "expr",
        "reads `y`, which is not one of: x",
        "docs/hacking.md",
    ),
    "wrong arity": (
        act(expr='"max(x)"'),
        "activation.twice",
        "expr",
        "calls `max` with 1 arguments, it takes 2",
        "docs/hacking.md",
    ),
    "condition as number": (
        act(expr='"(x > 0) * x"'),
        "activation.twice",
        "expr",
        "uses the condition `x > 0` as a number",
        "docs/hacking.md",
    ),
    "condition as value": (
        act(expr='"x > 0"'),
        "activation.twice",
        "expr",
        "is a condition",
        "docs/hacking.md",
    ),
    "number as condition": (
        act(expr='"where(x, 1, 0)"'),
        "activation.twice",
        "expr",
        "uses the number `x` as a condition",
        "docs/hacking.md",
    ),
    "True": (
        act(expr='"where(True, 1, x)"'),
        "activation.twice",
        "expr",
        "has no True",
        "docs/hacking.md",
    ),
    "minus True": (
        act(expr='"-True * x"'),
        "activation.twice",
        "expr",
        "has no True",
        "docs/hacking.md",
    ),
    "number beyond float32": (
        act(expr='"1e39 * x"'),
        "activation.twice",
        "expr",
        "float32 does not hold",
        "docs/hacking.md",
    ),
    "number beyond float64": (
        act(expr='"-1e999 * x"'),
        "activation.twice",
        "expr",
        "float32 does not hold",
        "docs/hacking.md",
    ),
    "integer beyond float64": (
        act(expr=f'"{"9" * 400} * x"'),
        "activation.twice",
        "expr",
        "float32 does not hold",
        "docs/hacking.md",
    ),
    "deep nesting": (
        act(expr=f'"{"-" * 3000}x"'),
        "activation.twice",
        "expr",
        "nested too deeply",
        "docs/hacking.md",
    ),
    "long sum": (
        act(expr=f'"x{" + x" * 5000}"'),
        "activation.twice",
        "expr",
        "nested too deeply",
        "docs/hacking.md",
    ),
    "deep nesting of a ref": (
        act(ref=f'"{"-" * 3000}x"'),
        "activation.twice",
        "ref",
        "is not one Python expression",
        "np",
    ),
    "name of two lines": (
        act().replace("activation.twice", 'activation."a\\nb"'),
        "activation.a\\nb",
        "name",
        "`a\\nb` is not a word",
        "lower-case",
    ),
    "power": (act(expr='"x ** 2"'), "activation.twice", "expr", "uses `x ** 2`", "docs/hacking.md"),
    "act in an activation": (
        act(expr='"act(x)"'),
        "activation.twice",
        "expr",
        "no meaning here",
        "docs/hacking.md",
    ),
    "unread operand": (
        op(operands='{ a = "elem", b = "elem", c = "row" }'),
        "op.plus_{act}",
        "operands",
        "`c` is not read",
        "remove it",
    ),
    "no act": (op(expr='"a + b"'), "op.plus_{act}", "expr", "does not call act", "call act"),
    "act without {act}": (op("plus"), "op.plus", "expr", "no meaning here", "docs/hacking.md"),
    "unknown kind": (
        op(operands='{ a = "elem", b = "col" }'),
        "op.plus_{act}",
        "operands",
        "b is {'kind': 'col'}",
        "elem, row",
    ),
    "unknown property": (
        op(operands='{ a = "elem", b = { kind = "row", gard = false } }'),
        "op.plus_{act}",
        "operands",
        "'gard'",
        "grad",
    ),
    "grad of a word": (
        op(operands='{ a = "elem", b = { kind = "row", grad = "no" } }'),
        "op.plus_{act}",
        "operands",
        "grad = 'no'",
        "true or false",
    ),
    "mixed broadcast": (
        op(expr='"act(a + b + c)"', operands='{ a = "elem", b = "row", c = "channel" }'),
        "op.plus_{act}",
        "operands",
        'mixes "channel" with',
        "one kind",
    ),
    "planes and rows": (
        row(operands='{ x = "elem", w = "channel", r = "per_row" }', expr='"x * w * r / sum(x)"'),
        "op.share",
        "operands",
        'mixes "channel" with',
        "one kind",
    ),
    "reduced twice": (
        op("plus", expr='"a + b"', reduced='["sum", "sum"]'),
        "op.plus",
        "reduced",
        "is ['sum', 'sum']",
        "each reduction once",
    ),
    "reduced by no reduction": (
        op("plus", expr='"a + b"', reduced='["max"]'),
        "op.plus",
        "reduced",
        "is ['max']",
        '["mean", "sum"]',
    ),
    "reduced rows": (
        op("plus", expr='"a + b"', operands='{ a = "elem", b = "row" }', reduced='["sum"]'),
        "op.plus",
        "reduced",
        "needs one result, elem operands",
        'family = "reduction"',
    ),
    "reduced with activations": (
        op(reduced='["sum"]'),
        "op.plus_{act}",
        "reduced",
        "no {act}",
        'family = "reduction"',
    ),
    "queries and rows": (
        row(
            operands='{ x = "elem", w = "row", r = { kind = "shared", grad = false } }',
            expr='"x * w * r / sum(x)"',
        ),
        "op.share",
        "operands",
        "`w` is a 'row' of an op over queries",
        '"per_row"',
    ),
    "a query's columns": (
        row(operands='{ x = "elem", w = "row" }', expr='"x * w * query / sum(x)"'),
        "op.share",
        "operands",
        "`w` is a 'row' of an op over queries",
        '"per_row"',
    ),
    "shared planes": (
        row(
            operands='{ x = "elem", w = "channel", r = { kind = "shared", grad = false } }',
            expr='"x * w * r / sum(x)"',
        ),
        "op.share",
        "operands",
        'mixes "channel" with',
        "one kind",
    ),
    "groups and planes": (
        row(operands='{ x = "elem", w = "group", r = "channel" }', expr='"x * w * r / sum(x)"'),
        "op.share",
        "operands",
        'mixes "group" with',
        "one kind",
    ),
    "a group's queries": (
        row(operands='{ x = "elem", w = "group" }', expr='"x * w * query / sum(x)"'),
        "op.share",
        "operands",
        "`w` is a 'group' of an op over queries",
        '"per_row"',
    ),
    "dropout of groups": (
        row(
            "share_dropout",
            operands='{ x = "elem", w = "group" }',
            expr='"dropout(x * w / sum(x))"',
        ),
        "op.share_dropout",
        "operands",
        "`w` is a 'group' of an op that calls dropout()",
        "second op",
    ),
    "unknown layout": (row(layout='"planes"'), "op.share", "layout", "is 'planes'", '"channels"'),
    "a layout of elements": (
        op(layout='"channels"'),
        "op.plus_{act}",
        "layout",
        "of an op of family 'elementwise'",
        'family = "rows"',
    ),
    "channels of rows": (
        row(layout='"channels"', operands='{ x = "elem", w = "row" }', expr='"x * w / sum(x)"'),
        "op.share",
        "layout",
        "is \"channels\" of an op with `w`, a 'row'",
        '"per_row" (one value per channel)',
    ),
    "channels and queries": (
        row(layout='"channels"', expr='"x * query / sum(x)"'),
        "op.share",
        "layout",
        "over queries and keys",
        "leave one",
    ),
    "dropout of channels": (
        row("share_dropout", layout='"channels"', expr='"dropout(x / sum(x))"'),
        "op.share_dropout",
        "layout",
        "of an op that calls dropout()",
        "second op",
    ),
    "update of elements": (
        op(updates='{ a = "a" }'),
        "op.plus_{act}",
        "updates",
        "belongs to ops over rows",
        'family = "rows"',
    ),
    "update of no operand": (
        row(updates='{ k = "sum(x)" }'),
        "op.share",
        "updates",
        "`k` is not an operand that can be updated",
        "none",
    ),
    "update of a weight": (
        row(
            operands='{ x = "elem", k = "per_row" }',
            expr='"x * k / sum(x)"',
            updates='{ k = "sum(x)" }',
        ),
        "op.share",
        "updates",
        "`k` is not an operand that can be updated",
        "grad = false",
    ),
    "update without reference": (
        row(operands=KEPT, updates='{ k = "k + sum(x)" }'),
        "op.share",
        "refs",
        "has no reference for `k`",
        "NumPy",
    ),
    "update of elements' values": (
        row(operands=KEPT, updates='{ k = "k + x" }', refs='{ k = "k + x" }'),
        "op.share",
        "updates",
        "`k_out` differs within a row",
        "constant within a row",
    ),
    "an update's name": (
        row(
            operands=KEPT,
            updates='{ k = "k + sum(x)" }',
            refs='{ k = "k + sum(x)" }',
            saved='{ k_out = "sum(x)" }',
        ),
        "op.share",
        "updates",
        "`k_out`, the name of its next value, is already used",
        "rename",
    ),
    "shared with a gradient": (
        row(operands='{ x = "elem", k = "shared" }', expr='"x * k / sum(x)"'),
        "op.share",
        "operands",
        "k is shared by heads and has a gradient",
        "grad = false",
    ),
    "shared of another dtype": (
        row(
            operands='{ x = "elem", k = { kind = "shared", dtype = "acc", grad = false } }',
            expr='"x * k / sum(x)"',
        ),
        "op.share",
        "operands",
        "k has dtype 'acc'",
        '"shared" "u8"',
    ),
    "conditions of an elem": (
        row(
            operands='{ x = "elem", k = { kind = "elem", dtype = "u8", grad = false } }',
            expr='"x * k / sum(x)"',
        ),
        "op.share",
        "operands",
        "k has dtype 'u8'",
        '"shared" "u8"',
    ),
    "half and row": (
        op(
            operands='{ a = { kind = "half", parts = ["a1", "a2"] }, c = "row" }',
            expr='"act(a1 + a2 + c)"',
        ),
        "op.plus_{act}",
        "operands",
        'has a "half" beside a "row"',
        "grad = false",
    ),
    "nothing elementwise": (
        op(operands='{ a = "row", b = "row" }'),
        "op.plus_{act}",
        "operands",
        "shape of the result",
        "elem",
    ),
    "parts of an elem": (
        op(operands='{ a = { kind = "elem", parts = ["g", "h"] }, b = "elem" }'),
        "op.plus_{act}",
        "operands",
        "has parts",
        "half",
    ),
    "half without parts": (
        op(operands='{ a = "half", b = "elem" }'),
        "op.plus_{act}",
        "operands",
        "has parts []",
        "parts = ",
    ),
    "dtype of an elem": (
        op(operands='{ a = { kind = "elem", dtype = "acc" }, b = "elem" }'),
        "op.plus_{act}",
        "operands",
        "dtype 'acc'",
        "rows",
    ),
    "float constant and ints": (
        op(ints="true", expr='"act(a + 0.5 * b)"'),
        "op.plus_{act}",
        "ints",
        "constant 0.5",
        "write integers",
    ),
    "float word and ints": (
        op(ints="true", expr='"act(a + exp(b))"'),
        "op.plus_{act}",
        "ints",
        "`exp` has no integer form",
        "drop ints",
    ),
    "rows and ints": (
        op(ints="true", operands='{ a = "elem", b = "row" }'),
        "op.plus_{act}",
        "ints",
        "elem operands",
        "drop ints",
    ),
    "float constant in an activation": (
        act(ints="true", expr='"0.5 * x"'),
        "activation.twice",
        "ints",
        "constant 0.5",
        "write integers",
    ),
    "unknown without": (
        op(without='["nope"]'),
        "op.plus_{act}",
        "without",
        "`nope` is not an activation",
        "relu",
    ),
    "without of a list": (
        op(without='[["none"]]'),
        "op.plus_{act}",
        "without",
        "is [['none']]",
        'without = ["none"]',
    ),
    "unknown types": (op(types='"three"'), "op.plus_{act}", "types", "'three'", "pairs"),
    "default beyond a bound": (
        act(scalars="{ knee = { value = 1, default = 3, most = 2 } }"),
        "activation.twice",
        "scalars",
        "the default of knee, 3, is outside its bounds",
        "correct one",
    ),
    "bound that is none": (
        act(scalars="{ knee = { value = 1, maximum = 3 } }"),
        "activation.twice",
        "scalars",
        "knee is {'value'",
        "least = 0",
    ),
    "scalar that is no number": (
        act(scalars='{ knee = "x" }'),
        "activation.twice",
        "scalars",
        "knee is 'x'",
        "a number",
    ),
    "too many scalars": (
        act(scalars="{ k1 = 1, k2 = 1, k3 = 1, k4 = 1, k5 = 1 }"),
        "activation.twice",
        "scalars",
        "has 5 entries",
        "at most 4",
    ),
    "too many scalars of an op": (
        row(scalars="{ " + ", ".join(f"k{i} = 1" for i in range(9)) + " }"),
        "op.share",
        "scalars",
        "has 9 entries",
        "at most 8",
    ),
    "scalar of an op's name": (
        act(scalars="{ alpha = 1 }", expr='"alpha * x"'),
        "activation.twice",
        "scalars",
        "`alpha` is an argument of [op.axpby_{act}] too",
        "longer name",
    ),
    "operand of a scalar's name": (
        op(operands='{ a = "elem", elu_alpha = "elem" }', expr='"act(a + elu_alpha)"'),
        "op.plus_{act}",
        "operands",
        "`elu_alpha` is a scalar of [activation.elu] too",
        "without",
    ),
    "operand of a gradient's name": (
        op(operands='{ a = "elem", da = "elem" }', expr='"act(a + da)"'),
        "op.plus_{act}",
        "operands",
        "also the name of the gradient of `a`",
        "rename",
    ),
    "no ulp": (act(ulp="{ f32 = 4 }"), "activation.twice", "ulp", "has no f64", "f64 = 4"),
    "unknown rounding": (
        act(rounding='"up"'),
        "activation.twice",
        "rounding",
        "is 'up'",
        "intermediates",
    ),
    "budget without reason": (
        act(budget="{ lp = 99 }"),
        "activation.twice",
        "budget",
        "no reason",
        "why",
    ),
    "edge at a word": (
        act(edges="{ top = 1 }"),
        "activation.twice",
        "edges",
        "top is 1",
        "such as nan",
    ),
    **{
        f"operand called {name}": (
            op(operands=f'{{ a = "elem", {name} = "elem" }}', expr=f'"act(a + {name})"'),
            "op.plus_{act}",
            "operands",
            f"`{name}` cannot be used",
            "lower-case name",
        )
        for name in (
            "n",
            "rows",
            "stream",
            "workspace",
            "out",
            "int",
            "class",
            "co_await",
            "lambda",
            "exp",
            "act",
            "size_t",
            "errno",
            "kf_x",
            "kfi_x0",
            "np",
            "Upper",
            "_x",
            "x_",
            "x__y",
        )
    },
    # Reductions over an axis.
    "reduced to elements": (
        reduce(expr='"x / sum(x)"'),
        "op.total",
        "expr",
        "`out` differs along the axis",
        'family = "rows"',
    ),
    "nothing reduced over an axis": (
        reduce(expr='"x"'),
        "op.total",
        "expr",
        "`out` differs along the axis",
        "reduce it",
    ),
    "another kind over an axis": (
        reduce(operands='{ x = "elem", w = "row" }', expr='"sum(x * w)"'),
        "op.total",
        "operands",
        "w is {'kind': 'row'}",
        "give it a kind: elem",
    ),
    "saved over an axis": (
        reduce(saved='{ s = "sum(x)" }'),
        "op.total",
        "saved",
        "belongs to ops over rows",
        'family = "rows"',
    ),
    "column over an axis": (
        reduce(expr='"sum(x * column)"'),
        "op.total",
        "expr",
        "reads `column`, which is not one of: count, inf, x",
        "docs/hacking.md",
    ),
    "empty as a number": (reduce(empty='"zero"'), "op.total", "empty", "is 'zero'", '"error"'),
    "empty over rows": (
        row(empty='"error"'),
        "op.share",
        "empty",
        "is 'error'",
        'family = "reduction"',
    ),
    **{
        f"operand called {name} over an axis": (
            reduce(operands=f'{{ {name} = "elem" }}', expr=f'"sum({name})"'),
            "op.total",
            "operands",
            f"`{name}` cannot be used",
            "lower-case name",
        )
        for name in ("axis", "inner", "count")
    },
    # Ops over rows.
    "family of a number": (row(family="3"), "op.share", "family", "is 3", '"rows"'),
    "unknown family": (row(family='"col"'), "op.share", "family", "is 'col'", ", rows"),
    "row's kinds": (
        row(operands='{ x = "half" }'),
        "op.share",
        "operands",
        "x is {'kind': 'half'}",
        "elem, row, per_row, channel",
    ),
    "half of a row": (
        row(operands='{ x = { kind = "half", parts = ["x1", "x2"] } }'),
        "op.share",
        "operands",
        "'kind': 'half'",
        "per_row",
    ),
    "per_row elsewhere": (
        op(operands='{ a = "elem", b = "per_row" }'),
        "op.plus_{act}",
        "operands",
        "{'kind': 'per_row'}",
        "elem, row, channel",
    ),
    "a row of nothing": (
        row(operands='{ x = "per_row" }'),
        "op.share",
        "operands",
        "shape of the result",
        'make at least one of them "elem"',
    ),
    "absent elem": (
        row(operands='{ x = { kind = "elem", absent = 1 } }'),
        "op.share",
        "operands",
        "x has absent = 1",
        'in ops over rows, "row", "per_row", "channel", "group" and "shared"',
    ),
    "whole numbers with a gradient": (
        weight('{ kind = "per_row", dtype = "I" }'),
        "op.share",
        "operands",
        "dtype 'I'",
        "grad = false",
    ),
    "whole numbers of an elem": (
        row(operands='{ x = { kind = "elem", dtype = "I", grad = false } }'),
        "op.share",
        "operands",
        "dtype 'I'",
        "per_row",
    ),
    "absent elsewhere": (
        op(operands='{ a = "elem", b = { kind = "row", absent = 1 } }'),
        "op.plus_{act}",
        "operands",
        "absent = 1",
        "over rows",
    ),
    "absent of a word": (
        weight('{ kind = "row", absent = "1" }'),
        "op.share",
        "operands",
        "absent = '1'",
        "absent = 1",
    ),
    "absent of true": (
        weight('{ kind = "row", absent = true }'),
        "op.share",
        "operands",
        "absent = True",
        "absent = 1",
    ),
    **{
        f"absent = {value}": (
            weight(f'{{ kind = "row", absent = {value} }}'),
            "op.share",
            "operands",
            "w has absent = ",
            "every dtype represents",
        )
        for value in ("nan", "inf", "-inf", "1e39", "70000", "0.1", "1e-30", "9" * 19)
    },
    "second dtype of an elem": (
        row(operands='{ x = { kind = "elem", dtype = "U" } }', types='"weights"'),
        "op.share",
        "operands",
        "dtype 'U'",
        'all kinds but "elem"',
    ),
    "second dtype elsewhere": (
        op(operands='{ a = "elem", b = { kind = "row", dtype = "U" } }', types='"weights"'),
        "op.plus_{act}",
        "operands",
        "dtype 'U'",
        "over rows",
    ),
    "second dtype without weights": (
        weight('{ kind = "row", dtype = "U" }'),
        "op.share",
        "types",
        "is 'one'",
        'types = "weights"',
    ),
    "weights without a second dtype": (
        row(types='"weights"'),
        "op.share",
        "types",
        "is 'weights'",
        'dtype = "U"',
    ),
    "weights elsewhere": (
        op(types='"weights"'),
        "op.plus_{act}",
        "types",
        "is 'weights'",
        'dtype = "U"',
    ),
    "pairs over rows": (
        row(types='"pairs"'),
        "op.share",
        "types",
        "ops over rows have one dtype",
        "leave it out",
    ),
    "ints over rows": (row(ints="true"), "op.share", "ints", "and rows", "drop ints"),
    "a word as a value": (
        op(expr='"act(a) + b + dropout"'),
        "op.plus_{act}",
        "expr",
        "reads `dropout`, which is not one of: a, b",
        "docs/hacking.md",
    ),
    "dropout of what is saved": (
        row(saved='{ s = "sum(dropout(x))" }'),
        "op.share",
        "saved",
        "calls `dropout`, which has no meaning here",
        "docs/hacking.md",
    ),
    "dropout in a gradient alone": (
        row(grads='{ x = "dropout(dout) - sum(dout * out)" }'),
        "op.share",
        "grads",
        "calls `dropout`, which has no meaning here",
        "docs/hacking.md",
    ),
    "outputs in a circle": (
        row(
            expr=None,
            ref=None,
            outputs='{ a = "x + sum(b)", b = "x + sum(a)" }',
            refs='{ a = "x", b = "x" }',
        ),
        "op.share",
        "expr",
        "`a` and `b` read each other",
        "docs/hacking.md",
    ),
    "an output of itself": (
        row(expr='"x + sum(out)"'),
        "op.share",
        "expr",
        "reads `out`, which is not",
        "docs/hacking.md",
    ),
    "saved of itself": (
        row(saved='{ s = "sum(x * s)" }'),
        "op.share",
        "saved",
        "reads `s`, which is not",
        "docs/hacking.md",
    ),
    **{
        f"{text} over a row": (
            row(
                expr=f'"sum({text} * x * r)"',
                operands=f'{{ x = "elem", r = "per_row", label = {COLUMN} }}',
            ),
            "op.share",
            "expr",
            message,
            "docs/hacking.md",
        )
        for text, message in (
            ("pick(x)", "`pick` with 1 arguments, it takes 2"),
            *(
                (f"pick({of})", "`pick` with other arguments than an operand")
                for of in ("x, x", "x * x, label", "r, label", "x, label + 1")
            ),
        )
    },
    "pick of a broken column": (
        row(expr='"pick(x, r) / sum(x)"', operands='{ x = "elem", r = "per_row" }'),
        "op.share",
        "operands",
        "`r` is a column index",
        'give `r` dtype = "I"',
    ),
    "nothing reduced": (
        row(expr='"x * 2"'),
        "op.share",
        "expr",
        "does not reduce a row",
        'leave out family = "rows"',
    ),
    "a result of no tensor": (
        row(
            expr=None,
            ref=None,
            outputs='{ y = "x / sum(x)", z = "2" }',
            refs='{ y = "x / sum(x)", z = "2" }',
        ),
        "op.share",
        "expr",
        "`z` reads no tensor",
        "the operands",
    ),
    **{
        f"{word} in a map op": (
            op(expr=f'"act(a - {word}(b))"'),
            "op.plus_{act}",
            "expr",
            f"`{word}`, which this op's family",
            "docs/hacking.md",
        )
        for word in ("sum", "mean", "pick", "stop")
    },
    **{
        f"{word} of one in a map op": (
            op(expr=f'"act(a - {word}(b))"'),
            "op.plus_{act}",
            "expr",
            f"calls `{word}` with 1 arguments, it takes 2",
            "docs/hacking.md",
        )
        for word in ("max", "min")
    },
    "sum in an activation": (
        act(expr='"x / sum(x)"'),
        "activation.twice",
        "expr",
        "calls `sum`",
        "docs/hacking.md",
    ),
    **{
        f"{text} over a row": (
            row(
                expr=f'"x * {text}"',
                operands='{ x = "elem", r = "per_row" }',
                scalars="{ knee = 1 }",
            ),
            "op.share",
            "expr",
            message,
            "docs/hacking.md",
        )
        for text, message in (
            ("sum(sum(x))", "`sum` on a value that is constant within a row"),
            ("max(r)", "`max` on a value that is constant within a row"),
            ("mean(knee)", "`mean` on a value that is constant within a row"),
            ("min(2)", "`min` on a value that is constant within a row"),
            ("sum(x, r)", "`sum` with 2 arguments, it takes 1"),
            ("mean()", "`mean` with 0 arguments, it takes 1"),
            ("max(x, x, r)", "`max` with 3 arguments, it takes 2"),
            ("sum(x > r)", "the condition `x > r` as a number"),
            ("rowmax(x)", "calls `rowmax`; the functions are: "),
            ("counts", "reads `counts`, which is not one of: column, count, inf"),
        )
    },
    "saved elsewhere": (
        op(saved='{ s = "a" }'),
        "op.plus_{act}",
        "saved",
        "belongs to ops over rows",
        'family = "rows"',
    ),
    "grads elsewhere": (
        op(grads='{ a = "dout" }'),
        "op.plus_{act}",
        "grads",
        "belongs to ops over rows",
        'family = "rows"',
    ),
    "saved of a list": (row(saved='["s"]'), "op.share", "saved", "is ['s']", "saved = { rstd"),
    "saved of a number": (
        row(saved="{ s = 2 }"),
        "op.share",
        "saved",
        "s is 2",
        "an expression, in quotes",
    ),
    **{
        f"saved called {name}": (
            row(saved=f'{{ {name} = "sum(x)" }}'),
            "op.share",
            "saved",
            f"`{name}` cannot be used",
            "lower-case name",
        )
        for name in ("x", "out", "rows", "count", "Upper")
    },
    **{
        f"{field_} called count": (
            row(**{"expr": '"x / sum(x) + count"', **fields}),
            "op.share",
            field_,
            "`count` cannot be used",
            "lower-case name",
        )
        for field_, fields in (
            ("operands", {"operands": '{ x = "elem", count = "row" }'}),
            ("scalars", {"scalars": "{ count = 1 }"}),
            (
                "outputs",
                {
                    "expr": None,
                    "ref": None,
                    "outputs": '{ count = "sum(x)" }',
                    "refs": '{ count = "sum(x)" }',
                },
            ),
        )
    },
    "saved of a gradient's name": (
        row(saved='{ dx = "sum(x)" }'),
        "op.share",
        "operands",
        "also the name of the gradient of `x`",
        "rename",
    ),
    "saved of a scalar's name": (
        row("share_{act}", saved='{ elu_alpha = "sum(x)" }', expr='"act(x / elu_alpha)"'),
        "op.share_{act}",
        "operands",
        "`elu_alpha` is a scalar of [activation.elu] too",
        "without",
    ),
    "unreadable saved": (
        row(saved='{ s = "sum(" }'),
        "op.share",
        "saved",
        "is not an expression",
        "docs/hacking.md",
    ),
    "saved of an unknown name": (
        row(saved='{ s = "sum(y)" }'),
        "op.share",
        "saved",
        "reads `y`, which is not one of: column, count, inf,",
        "docs/hacking.md",
    ),
    "saved reads the activation": (
        row("share_{act}", saved='{ s = "sum(act(x))" }', expr='"act(x) / s"'),
        "op.share_{act}",
        "saved",
        "calls `act`, which has no meaning here",
        "docs/hacking.md",
    ),
    "saved of each element": (
        row(saved='{ s = "x + 1" }'),
        "op.share",
        "saved",
        "`s` differs within a row",
        "constant within a row",
    ),
    "saved of a constant": (
        row(saved='{ s = "2" }'),
        "op.share",
        "saved",
        "`s` reads no tensor",
        "constant within a row",
    ),
    "grads of a list": (row(grads="[3]"), "op.share", "grads", "is [3]", "grads = { x"),
    "grads of a number": (
        row(grads="{ x = 3 }"),
        "op.share",
        "grads",
        "x is 3",
        "an expression, in quotes",
    ),
    "grads for nobody": (
        row(grads='{ y = "dout" }'),
        "op.share",
        "grads",
        "`y` is not an operand with a gradient",
        "those are: x",
    ),
    "grads for who has none": (
        weight('{ kind = "row", grad = false }', grads='{ w = "dout" }'),
        "op.share",
        "grads",
        "`w` is not an operand",
        "are: x",
    ),
    "unreadable grads": (
        row(grads='{ x = "dout *" }'),
        "op.share",
        "grads",
        "is not an expression",
        "docs/hacking.md",
    ),
    "grads of an unknown name": (
        row(grads='{ x = "dy" }'),
        "op.share",
        "grads",
        "reads `dy`, which is not one of: column, count, dout, inf, out, queries, query, x",
        "docs/hacking.md",
    ),
    "grads of a condition": (
        row(grads='{ x = "dout > 0" }'),
        "op.share",
        "grads",
        "is a condition",
        "docs/hacking.md",
    ),
    "grads calls act": (
        row("share_{act}", expr='"act(x / sum(x))"', grads='{ x = "act(dout)" }'),
        "op.share_{act}",
        "grads",
        "no meaning here",
        "docs/hacking.md",
    ),
    "grads calls act_bwd": (
        row(grads='{ x = "act_bwd(x, dout)" }'),
        "op.share",
        "grads",
        "calls `act_bwd`",
        "docs/hacking.md",
    ),
    "grads of a constant": (
        row(grads='{ x = "2" }'),
        "op.share",
        "grads",
        "that of `x` reads no tensor",
        "the operands",
    ),
    "grads within a row": (
        weight('"per_row"', grads='{ w = "dout * x" }'),
        "op.share",
        "grads",
        "that of `w` differs within a row",
        "sum(",
    ),
    "a gradient of zero": (
        weight('"row"', saved='{ s = "sum(w * x)" }').replace("x * w / ", "x / "),
        "op.share",
        "operands",
        "the gradient for `w` is zero",
        "grad = false",
    ),
    "unread per_row": (
        row(operands='{ x = "elem", r = "per_row" }'),
        "op.share",
        "operands",
        "`r` is not read",
        "remove it",
    ),
    "scalar called x": (
        act(scalars="{ x = 1 }"),
        "activation.twice",
        "scalars",
        "`x` cannot be used",
        "lower-case name",
    ),
    **cases.merged("REFUSED"),
}


@pytest.mark.parametrize("case", CASES)
def test_message(tmp_path, case, capsys):
    text, where, field, problem, fix = CASES[case]
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(spec.SpecError) as caught:
        spec.load([path])
    first, _, second = str(caught.value).partition("\n  fix: ")
    assert first.startswith(f"{path}: [{where}] {field}: ")
    assert problem in first and fix in second
    assert main(["list", "--spec", str(path)]) == 1
    assert str(caught.value) in capsys.readouterr().err


@pytest.mark.parametrize("count, word", [(24, "forward: x0, x1, "), (12, "backward: x0, ")])
def test_too_many_tensors(tmp_path, capsys, count, word):
    path, names = tmp_path / "mine.toml", [f"x{i}" for i in range(count)]
    path.write_text(
        row(
            operands="{" + ", ".join(f'{n} = "elem"' for n in names) + "}",
            expr=f'"{" + ".join(names)} + sum(x0)"',
        )
    )
    assert main(["list", "--spec", str(path)]) == 1
    message = capsys.readouterr().err
    assert (
        f"[op.share] operands: make 25 tensors of the {word}" in message
        and "fix: at most 24 are possible" in message
    )


@pytest.mark.parametrize(
    "count, grads, message",
    [
        (17, None, "makes 17 reductions in one pass over the row of the forward"),
        (
            16,
            '{ x = "dout * (' + " + ".join(f"sum(dout * x * {i})" for i in range(2, 20)) + ')" }',
            "makes 18 reductions in one pass over the row of the backward",
        ),
    ],
)
def test_too_many_reductions(tmp_path, capsys, count, grads, message):
    """A pass has at most as many reductions as core/rows/reduce.cuh encodes. Dependent reductions are
    in another pass.
    """
    path, sums = tmp_path / "mine.toml", " + ".join(f"max(x * {i})" for i in range(2, count + 2))
    path.write_text(row(expr=f'"{sums}"', grads=grads))
    assert main(["list", "--spec", str(path)]) == 1
    assert (
        f"{path}: [op.share] expr: {message}\n  fix: at most 16 are possible: make two ops of it"
        in capsys.readouterr().err
    )
    sums = " + ".join(f"max(x * {i})" for i in range(2, 18))
    path.write_text(
        row(operands='{ x = { kind = "elem", grad = false } }', expr=f'"t = {sums}; sum(x * t)"')
    )
    assert main(["list", "--spec", str(path)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "x, saved, message",
    [
        (
            "elem",
            None,
            "the gradient for `w` needs a sum over the row, for which it would wait\n  fix: save that sum in the forward",
        ),
        (
            '{ kind = "elem", grad = false }',
            '{ s = "sum(x)" }',
            'has a gradient for a "group" and a backward that reduces nothing over the row\n  fix: add grad = false',
        ),
    ],
)
def test_gradients_of_groups(tmp_path, capsys, x, saved, message):
    """They are added up before the passes over a row, which all threads of the row wait for."""
    path, x = tmp_path / "mine.toml", x if x[0] == "{" else f'"{x}"'
    path.write_text(
        row(
            operands=f'{{ x = {x}, w = "group" }}',
            saved=saved,
            expr=f'"x * w / {"s" if saved else "sum(x)"}"',
        )
    )
    assert main(["list", "--spec", str(path)]) == 1
    assert f"{path}: [op.share] expr: {message}" in capsys.readouterr().err
    path.write_text(
        row(operands='{ x = "elem", w = "group" }', saved='{ s = "sum(x)" }', expr='"x * w / s"')
    )
    assert main(["list", "--spec", str(path)]) == 0, capsys.readouterr().err


def test_pick_of_what_may_be_overwritten(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    for text, status in (("x - pick(x, label)", 1), ("x - pick(x, label) / sum(x)", 0)):
        path.write_text(
            row(
                operands=f'{{ x = {{ kind = "elem", grad = false }}, label = {COLUMN} }}',
                expr=f'"{text}"',
            )
        )
        assert main(["list", "--spec", str(path)]) == status
    problem = "stores elements and picks one of a tensor that they may overwrite, with no reduction between\n  fix: make two ops of it"
    assert f"{path}: [op.share] expr: {problem}" in capsys.readouterr().err


def test_good_entries_load(tmp_path):
    path = tmp_path / "mine.toml"
    second = weight(
        '{ kind = "row", dtype = "U", absent = -0.5 }',
        types='"weights"',
        saved='{ s = "sum(x)" }',
        grads='{ w = "dout * x / s" }',
    )
    path.write_text(act() + op() + second)
    loaded = spec.load([path])
    assert loaded.ops["share"].operands[1].absent == -0.5
    assert (
        2**30 <= loaded.activations["twice"].id < 2**31 - 1
        and len(loaded.ops["plus_{act}"].activations) == 20
    )


def test_ids(tmp_path, monkeypatch):
    """kf's own are written down and fixed for ever. A user's follow from the names of file and activation, wherever the file lies; and two
    that are the same are an error with names."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for path in (tmp_path / "mine.toml", folder / "mine.toml", tmp_path / "other.toml"):
        path.write_text(act())
    first, moved, other = (
        spec.load([p]).activations["twice"].id
        for p in (tmp_path / "mine.toml", folder / "mine.toml", tmp_path / "other.toml")
    )
    assert first == moved != other
    assert sorted(a.id for a in spec.load().activations.values()) == list(
        range(len(spec.load().activations))
    )
    monkeypatch.setattr(activations, "own_id", lambda stem, name: 2**30 + 5)
    (tmp_path / "mine.toml").write_text(act() + act("thrice"))
    with pytest.raises(
        spec.SpecError,
        match=r"\[activation.thrice\] name: gives the id \d+, which is already twice's\n  fix: rename one of the two",
    ):
        spec.load([tmp_path / "mine.toml"])


def test_ids_of_kf(tmp_path, monkeypatch):
    """Errors in the ids of built-in activations."""
    for ids, message in (
        ((None, 1), "id: is missing"),
        ((1, 1), "id: 1 is already twice's"),
        ((1, 1024), "id: 1024 is not one of kf's own"),
        (("true", 1), "id: is True"),
    ):
        (tmp_path / "own.toml").write_text(
            "".join(act(name, id=i) for name, i in zip(("twice", "thrice"), ids))
        )
        monkeypatch.setattr(spec, "builtin_files", lambda: [tmp_path / "own.toml"])
        with pytest.raises(spec.SpecError, match=message):
            spec.load()


def test_missing_file(tmp_path, capsys):
    assert main(["list", "--spec", str(tmp_path / "none.toml")]) == 1
    assert "none.toml: [file] path: No such file" in capsys.readouterr().err


def test_across_files(tmp_path):
    """The second file's entries are checked against the first one's."""
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(act())
    second.write_text(act())
    with pytest.raises(spec.SpecError, match="already defined in .*first.toml"):
        spec.load([first, second])


@pytest.mark.parametrize(
    ("text", "name", "others"),
    [
        (
            op("plus", expr='"a + b"', ref='"a + b"') + op("plus_{act}"),
            "kf/ops/plus",
            ("op `plus`", "op `plus_{act}`"),
        ),
        (
            op("add_relu", expr='"a + b"', ref='"a + b"'),
            "kf_add_relu_f32",
            ("`add_{act}` with activation `relu`", "op `add_relu`"),
        ),
        (
            op("add_bwd", expr='"a + b"', ref='"a + b"'),
            "kf_add_bwd_f32",
            ("`add_{act}` with activation `none`, backward", "op `add_bwd`"),
        ),
        (act("gelu_bwd"), "kf_gelu_bwd", ("activation `gelu`", "activation `gelu_bwd`")),
        (act("relu_double"), "kf_relu_double", ("activation `relu`", "activation `relu_double`")),
        (
            act("add_f64"),
            "kf_add_f64",
            ("activation `add_f64`", "op `add_{act}` with activation `none`"),
        ),
        (act("check_abi"), "kf_check_abi", ("kf's core", "activation `check_abi`")),
        (act("f16"), "kf_f16", ("kf's core", "activation `f16`")),
        (
            op("activations", expr='"a + b"', ref='"a + b"'),
            "kf/ops/activations",
            ("kf itself", "op `activations`"),
        ),
    ],
)
def test_name_clashes(tmp_path, text, name, others, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    for command in ("check", "list"):
        assert main([command, "--spec", str(path)]) == 1
        message = capsys.readouterr().err
        assert (
            f"{name}: made from" in message
            and all(o in message for o in others)
            and "rename" in message
        )


@pytest.mark.parametrize("stem", ["kf", "core", "ops", "kf_launchers", "kf_my_launchers"])
def test_spec_file_that_would_hide_kf_own(tmp_path, stem, capsys):
    path = tmp_path / f"{stem}.toml"
    path.write_text(act())
    assert main(["render", "--spec", str(path), "--out", str(tmp_path / "out")]) == 1
    assert "rename the file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, near",
    [
        (["--ops", "addd"], "add"),
        (["--activations", "reluu"], "relu"),
        (["--dtypes", "f33"], "f32"),
    ],
)
def test_unknown_selection(arguments, near, capsys):
    assert main(["list", *arguments]) == 1
    message = capsys.readouterr().err
    assert f"{arguments[0]}: `{arguments[1]}` is not one of: " in message and "{" not in message
    assert message.endswith(f"; did you mean `{near}`?\n")
