# SPDX-License-Identifier: Apache-2.0
"""User ops at the limits of a spec: many operands, many summed gradients, mixed dtypes. No op of kf
reaches them; tests/cpu, tests/emu and tests/cuda run them."""

import cases
import user_ops

# Rows that C processes repeatedly, on tiles of every size, and others; sums of several parts; an
# empty tensor.
SHAPES = {
    "rows": [(64, 100), (3, 5), (5, 2500), (2100, 12), (9, 700), (9, 1024), (0, 8)],
    "planes": [(4, 7, 1), (2, 3, 304), (40, 3, 40), (70, 3, 130), (0, 3, 4)],
    "groups": [(2, 1, 3, 12, 5), (2, 9, 2, 32, 1), (3, 1, 2, 6, 64)],
    "axis": [(3, 70, 5), (1, 2500, 1), (40, 9, 1), (2, 300, 33)],
}


def _through(names, first):
    """Returns an expression that applies the operands to `first` in turn, as summand and factor."""
    expr = first
    for i, name in enumerate(names):
        expr = f"({expr}) {'+*'[i % 2]} {name}"
    return expr


def _op(name, expr, operands, **fields):
    lines = [
        f"[op.{name}]",
        f'brief = "{expr}"',
        f'expr = "{expr}"',
        f'ref = "{fields.pop("ref", expr)}"',
        'since = "0.1"',
    ]
    lines += [
        f"{key} = {value if value.startswith('{') else repr(value)}"
        for key, value in fields.items()
    ]
    return (
        "\n".join(
            [*lines, f"[op.{name}.operands]", *(f"{n} = {kind}" for n, kind in operands.items())]
        )
        + "\n"
    )


def _many(kind, count, grad):
    return {f"a{i}": f'{{ kind = "{kind}", grad = {str(grad).lower()} }}' for i in range(count)}


def _wide(family, kind, count, grad):
    """Returns an op that applies `count` operands of a kind to x."""
    operands, first, more = _many(kind, count, grad), "x", {}
    if family == "rows":
        first, more = "x - mu", {"family": "rows", "saved": '{ mu = "mean(x)" }'}
    expr = _through(operands, first)
    # Rows that are groups sum the products with their statistics, which the forward saves.
    return _op(
        f"{family}_{kind}_{count}_{'summed' if grad else 'read'}",
        expr,
        {"x": '"elem"'} | operands,
        **({"ref": expr.replace("mu", "mean(x)")} if family == "rows" else {}),
        **more,
    )


def _mixed(family, kind, order):
    """Returns an op with summed gradients of several dtypes."""
    operands = {n: f'{{ kind = "{kind}", dtype = "{d}" }}' for n, d in order}
    expr = _through(operands, "x - mu" if family == "rows" else "x")
    more = (
        {"family": "rows", "saved": '{ mu = "mean(x)" }', "ref": expr.replace("mu", "mean(x)")}
        if family == "rows"
        else {}
    )
    return _op(
        f"{family}_{kind}_of_{'_'.join(d.lower() for _, d in order)}",
        expr,
        {"x": '"elem"'} | operands,
        **more,
    )


ORDERS = [(("w", "T"), ("b", "acc")), (("b", "acc"), ("w", "T"), ("v", "T"), ("c", "acc"))]
KINDS = [
    ("elementwise", "row"),
    ("elementwise", "channel"),
    ("rows", "row"),
    ("rows", "channel"),
    ("rows", "group"),
]
WIDE = "\n".join([_wide(*KINDS[0], 8, False), *(_wide(f, k, 9, True) for f, k in KINDS)])
WIDE += cases.by_level(
    "",
    "\n".join(
        [*(_wide(f, k, 8, False) for f, k in KINDS[1:]), *(_wide(f, k, 5, True) for f, k in KINDS)]
    ),
)
# A packed tensor, whose rows are two rows apart, beside a value computed once per column.
WIDE += _op(
    "halves_by_column",
    "(y + w) * rsqrt(r * r + 1)",
    {"x": '{ kind = "half", parts = ["y", "w"] }', "r": '{ kind = "row", grad = false }'},
    ref="(y + w) / np.sqrt(r * r + 1)",
)
# Many elementwise tensors beside summed gradients: the kernel loads rows asynchronously into shared
# memory.
_ELEMS = {n: '"elem"' for n in ("x", "y", "z", "w", "r")}
LARGE = "\n".join(
    _op(f"large_{kind}", "(x * a0 + y * a1 + z * a2) * w + r", _ELEMS | _many(kind, 3, True))
    for kind in ("row", "channel")
)
MIXED = "\n".join(_mixed(f, k, order) for f, k in KINDS for order in ORDERS)


def _typed(kind):
    """Returns an op over rows with two weights, each of a type variable of its own."""
    weights = {n: f'{{ kind = "{kind}", dtype = "{n.upper()}" }}' for n in ("w", "b")}
    return _op(
        f"typed_{kind}",
        "(x - mu) * w + b",
        {"x": '"elem"'} | weights,
        family="rows",
        types='{ T = ["bf16"], W = ["T", "f32"], B = ["f32"] }',
        saved='{ mu = "mean(x)" }',
        ref="(x - mean(x)) * w + b",
    )


TYPED = "\n".join(map(_typed, cases.by_level(("row",), ("row", "channel", "group"))))
TYPED += """
[op.two_results]
family = "reduction"
brief = "mean and sum"
types = { T = ["bf16", "f32"], M = ["f32"], S = ["f16", "M"] }
operands = { x = "elem" }
outputs = { m = { expr = "mean(x)", dtype = "M" }, s = { expr = "sum(x * x)", dtype = "S" } }
refs = { m = "mean(x)", s = "sum(x * x)" }
since = "0.1"
"""


def load(text, folder, dtypes=()):
    """Returns (spec file, its functions). Mixed dtypes use bf16 beside float32, since other dtypes
    have only one type."""
    path, _, functions = user_ops.load(text, folder, activations=["none"])
    wanted = dtypes or cases.by_level(("f32",), ("f32", "bf16"))
    wanted = {MIXED: ("bf16",), TYPED: ("bf16", "f32")}.get(text, wanted)
    return path, [f for f in functions if f["dtypes"][0] in wanted]
