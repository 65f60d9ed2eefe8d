# SPDX-License-Identifier: Apache-2.0
"""Mistakes in expressions of ops over rows and an axis.

CASES: {mistake: (text, entry, field, part of the message, part of the fix)}.
"""

from spec_errors.texts import COLUMN, KEPT, reduce, row, weight

CASES = {
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
        "docs/expressions.md",
    ),
    "dropout of what is saved": (
        row(saved='{ s = "sum(dropout(x))" }'),
        "op.share",
        "saved",
        "calls `dropout`, which has no meaning here",
        "docs/expressions.md",
    ),
    "dropout in a gradient alone": (
        row(grads='{ x = "dropout(dout) - sum(dout * out)" }'),
        "op.share",
        "grads",
        "calls `dropout`, which has no meaning here",
        "docs/expressions.md",
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
        "docs/expressions.md",
    ),
    "an output of itself": (
        row(expr='"x + sum(out)"'),
        "op.share",
        "expr",
        "reads `out`, which is not",
        "docs/expressions.md",
    ),
    "saved of itself": (
        row(saved='{ s = "sum(x * s)" }'),
        "op.share",
        "saved",
        "reads `s`, which is not",
        "docs/expressions.md",
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
            "docs/expressions.md",
        )
        for text, message in (
            ("pick(x)", "`pick` with 1 arguments, it takes 2"),
            *(
                (f"pick({of})", "`pick` with other arguments than an operand")
                for of in ("x, x", "x * x, label", "r, label", "x, label + 1")
            ),
        )
    },
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
        f"{text} over a row": (
            row(
                expr=f'"x * {text}"',
                operands='{ x = "elem", r = "per_row" }',
                scalars="{ knee = 1 }",
            ),
            "op.share",
            "expr",
            message,
            "docs/expressions.md",
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
    "unreadable saved": (
        row(saved='{ s = "sum(" }'),
        "op.share",
        "saved",
        "is not an expression",
        "docs/expressions.md",
    ),
    "saved of an unknown name": (
        row(saved='{ s = "sum(y)" }'),
        "op.share",
        "saved",
        "reads `y`, which is not one of: column, count, inf,",
        "docs/expressions.md",
    ),
    "saved reads the activation": (
        row("share_{act}", saved='{ s = "sum(act(x))" }', expr='"act(x) / s"'),
        "op.share_{act}",
        "saved",
        "calls `act`, which has no meaning here",
        "docs/expressions.md",
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
        "docs/expressions.md",
    ),
    "grads of an unknown name": (
        row(grads='{ x = "dy" }'),
        "op.share",
        "grads",
        "reads `dy`, which is not one of: column, count, dout, inf, out, queries, query, x",
        "docs/expressions.md",
    ),
    "grads of a condition": (
        row(grads='{ x = "dout > 0" }'),
        "op.share",
        "grads",
        "is a condition",
        "docs/expressions.md",
    ),
    "grads calls act": (
        row("share_{act}", expr='"act(x / sum(x))"', grads='{ x = "act(dout)" }'),
        "op.share_{act}",
        "grads",
        "no meaning here",
        "docs/expressions.md",
    ),
    "grads calls act_bwd": (
        row(grads='{ x = "act_bwd(x, dout)" }'),
        "op.share",
        "grads",
        "calls `act_bwd`",
        "docs/expressions.md",
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
}
