# SPDX-License-Identifier: Apache-2.0
"""Mistakes in fields and operands of ops over rows and an axis.

CASES: {mistake: (text, entry, field, part of the message, part of the fix)}.
"""

import cases

from spec_errors.texts import reduce, row, weight

CASES = {
    "planes and rows": (
        row(operands='{ x = "elem", w = "channel", r = "per_row" }', expr='"x * w * r / sum(x)"'),
        "op.share",
        "operands",
        'mixes "channel" with',
        "one kind",
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
    "too many scalars of an op": (
        row(scalars="{ " + ", ".join(f"k{i} = 1" for i in range(9)) + " }"),
        "op.share",
        "scalars",
        "has 9 entries",
        "at most 8",
    ),
    "another kind over an axis": (
        reduce(operands='{ x = "elem", w = "row" }', expr='"sum(x * w)"'),
        "op.total",
        "operands",
        "w is 'row'",
        "give it a kind: elem",
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
        "x is 'half'",
        "elem, row, per_row, channel",
    ),
    "half of a row": (
        row(operands='{ x = { kind = "half", parts = ["x1", "x2"] } }'),
        "op.share",
        "operands",
        "'kind': 'half'",
        "per_row",
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
    "pairs over rows": (
        row(types='"pairs"'),
        "op.share",
        "types",
        "ops of family 'rows' do not convert",
        "leave it out",
    ),
    "ints over rows": (row(ints="true"), "op.share", "ints", "and rows", "drop ints"),
    "pick of a broken column": (
        row(expr='"pick(x, r) / sum(x)"', operands='{ x = "elem", r = "per_row" }'),
        "op.share",
        "operands",
        "`r` is a column index",
        'give `r` dtype = "I"',
    ),
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
    **cases.merged("REFUSED"),
}
