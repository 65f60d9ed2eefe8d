# SPDX-License-Identifier: Apache-2.0
"""Mistakes in type variables, variants and layouts, and the error messages that they give."""

from spec_errors.texts import entry, op, reduce, row, weight

TYPED = '{ kind = "row", dtype = "W" }'
PRODUCT = {
    "family": '"matmul"',
    "brief": '"x . weight^T"',
    "operands": '{ x = "left", weight = "right" }',
    "expr": '"acc"',
    "ref": '"x @ weight.T"',
}


def product(name="own", **change):
    return entry("op", f'"{name}"', PRODUCT, change)


def _types(table, problem, fix, given=TYPED):
    return weight(given, types=table), "op.share", "types", problem, fix


CASES = {
    "a number for types": _types("3", "is 3", 'write types = "weights", or { T = '),
    "products elsewhere": _types(
        '"products"', "is 'products'", 'write "one", "weights"', given='"row"'
    ),
    "a table without T": _types('{ W = ["f32"] }', "is {'W': ['f32']}", "begin with T"),
    "an empty table": _types("{}", "is {}", "begin with T"),
    "a variable of small letters": _types(
        '{ T = ["f32"], w = ["T"] }', "the name `w` cannot be used", "capital letters"
    ),
    "the integers' variable": _types(
        '{ T = ["f32"], I = ["T"] }', "the name `I` cannot be used", "but I"
    ),
    "a dtype for a list": _types('{ T = "f32", W = ["T"] }', "T is 'f32'", "list its dtypes"),
    "an empty list": _types('{ T = ["f32"], W = [] }', "W is []", "list its dtypes"),
    "an unknown dtype": _types('{ T = ["f8"], W = ["T"] }', "T lists 'f8'", "f32, f16, bf16, f64"),
    "a dtype that is a number": _types('{ T = ["f32"], W = [1] }', "W lists 1", "T, acc"),
    "a dtype twice": _types('{ T = ["f32", "f32"], W = ["T"] }', "T lists a dtype twice", "once"),
    "a later variable": _types('{ T = ["W"], W = ["f32"] }', "T lists 'W'", "f32, f16"),
    "integers without ints": _types(
        '{ T = ["i32"], W = ["T"] }', "T lists 'i32'", "add ints = true"
    ),
    "tf32 outside of products": _types('{ T = ["tf32"], W = ["T"] }', "T lists 'tf32'", "f32"),
    "float64 beside float32": _types(
        '{ T = ["f32"], W = ["f64"] }', "T = f32, W = f64: other arithmetic", '"acc"'
    ),
    "float32 beside float64": _types(
        '{ T = ["f16", "f64"], W = ["T", "f32"] }', "T = f64, W = f32: W is narrower", "in W"
    ),
    "a weight narrower than the elements": _types(
        '{ T = ["f32"], W = ["bf16"] }', "W is narrower than T", "list wider dtypes in W"
    ),
    "a variable that nothing has": _types(
        '{ T = ["f32"], W = ["f32"], V = ["f32"] }', "no tensor has the dtype V", 'dtype = "V"'
    ),
    "a variable of another name": _types(
        '{ T = ["f32"], V = ["f32"] }', "a table without W, and w has dtype 'W'", "T = "
    ),
    "two functions of one name": (
        row(
            operands=f'{{ x = "elem", w = {TYPED}, b = {{ kind = "row", dtype = "B" }} }}',
            expr='"x * w / sum(x) + b"',
            types='{ T = ["f16"], W = ["T", "f32"], B = ["T", "f32"] }',
        ),
        "op.share",
        "types",
        "W = f16, B = f32 and T = f16, W = f32, B = f16 have the same name",
        "leaves out dtypes equal to that of T",
    ),
    "a result with a dtype over rows": (
        row(
            expr=None,
            ref=None,
            types='{ T = ["f16"], W = ["f32"] }',
            outputs='{ out = { expr = "x / sum(x)", dtype = "W" } }',
            refs='{ out = "x / sum(x)" }',
        ),
        "op.share",
        "types",
        "has W, a dtype of results",
        "have weights of another dtype",
    ),
    "a result with an unknown dtype": (
        reduce(
            expr=None,
            ref=None,
            types='{ T = ["f16"], W = ["f32"] }',
            outputs='{ out = { expr = "sum(x)", dtype = "V" } }',
            refs='{ out = "sum(x)" }',
        ),
        "op.total",
        "outputs",
        "out has dtype 'V'",
        "a variable of `types`: T, W",
    ),
    "a saved value with a dtype": (
        row(
            types='{ T = ["f16"], W = ["f32"] }',
            saved='{ s = { expr = "sum(x)", dtype = "W" } }',
            expr='"x / s"',
        ),
        "op.share",
        "types",
        "has W, a dtype of saved values",
        "weights of another dtype",
    ),
    "a result of more than expr and dtype": (
        reduce(
            expr=None,
            ref=None,
            outputs='{ out = { expr = "sum(x)", kind = "elem" } }',
            refs='{ out = "sum(x)" }',
        ),
        "op.total",
        "refs",
        "has no reference for `out`",
        "NumPy",
    ),
    "a gradient of an unknown dtype": (
        weight('{ kind = "row", grad = "G" }'),
        "op.share",
        "operands",
        "w has grad = 'G'",
        "a variable of `types`: T",
    ),
    "a gradient of its own dtype over rows": (
        weight('{ kind = "row", grad = "G" }', types='{ T = ["f16"], G = ["f32"] }'),
        "op.share",
        "types",
        "has G, a dtype of gradients of weights",
        "weights of another dtype",
    ),
    "gradients of several dtypes in a product": (
        product(
            types='{ T = ["f16"], G = ["f32"] }',
            operands='{ x = "left", weight = { kind = "right", grad = "G" }, bias = "row" }',
            expr='"acc + bias"',
            ref='"x @ weight.T + bias"',
        ),
        "op.own",
        "operands",
        "gradients of several type variables",
        'grad = "G"',
    ),
    # Variants and layouts.
    "variants of a family without": (
        row(variants='["device"]'),
        "op.share",
        "variants",
        "has 'device'",
        "functions of family 'rows' have no variants",
    ),
    "a layout's word without layouts": (
        product("own_{layout}"),
        "op.own_{layout}",
        "layouts",
        "is missing",
        'layouts = ["", "nn"]',
    ),
    "layouts without a layout's word": (
        product(layouts='["", "nn"]'),
        "op.own",
        "layouts",
        "in an entry named `own`",
        "a name with {layout}",
    ),
    "layout beside layouts": (
        product("own_{layout}", layouts='["", "nn"]', layout='"tn"'),
        "op.own_{layout}",
        "layout",
        "in an entry named `own_{layout}`",
        "a name with {layout}",
    ),
    "an unknown layout": (
        product("own_{layout}", layouts='["", "nw"]'),
        "op.own_{layout}",
        "layouts",
        "has 'nw'",
        '"", "nn", "tn", "tt"',
    ),
    "a layout twice": (
        product("own_{layout}", layouts='["nn", "nn"]'),
        "op.own_{layout}",
        "layouts",
        "is ['nn', 'nn']",
        "each once",
    ),
    "two layouts' words": (
        product("{layout}_own_{layout}", layouts='["nn"]'),
        "op.{layout}_own_{layout}",
        "name",
        "is not a pattern",
        "one {layout}",
    ),
    "layouts in another family": (
        op("own_{layout}", layouts='["", "channels"]'),
        "op.own_{layout}",
        "layouts",
        "has 'channels'",
        "family 'elementwise' has",
    ),
    "a layout's name that is taken": (
        product("own_{layout}", layouts='["", "nn"]') + product("own_nn"),
        "op.own_nn",
        "name",
        "is already defined",
        "another name",
    ),
}
