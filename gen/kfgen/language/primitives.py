# SPDX-License-Identifier: Apache-2.0
"""The words of the expression language: primitives with the rules of their gradients, names that expressions over rows read."""

# name: (argument names, {argument: rule for its adjoint}). A rule is written in the language itself; it sees the
# arguments, `y` (the primitive's own value) and `dy` (the adjoint of y). A missing rule means "not differentiable".
PRIMITIVES = {
    "add": ("ab", {"a": "dy", "b": "dy"}),
    "sub": ("ab", {"a": "dy", "b": "-dy"}),
    "mul": ("ab", {"a": "dy * b", "b": "dy * a"}),
    "div": ("ab", {"a": "dy / b", "b": "-(dy * (y / b))"}),
    "neg": ("a", {"a": "-dy"}),
    "abs": ("a", {"a": "where(a > 0, dy, where(a < 0, -dy, dy * 0))"}),
    # A tie gives each half, NaN passes the gradient to both: PyTorch's rule.
    "max": (
        "ab",
        {
            "a": "where(a < b, 0, where(a == b, 0.5 * dy, dy))",
            "b": "where(b < a, 0, where(a == b, 0.5 * dy, dy))",
        },
    ),
    "min": (
        "ab",
        {
            "a": "where(a > b, 0, where(a == b, 0.5 * dy, dy))",
            "b": "where(b > a, 0, where(a == b, 0.5 * dy, dy))",
        },
    ),
    "exp": ("a", {"a": "dy * y"}),
    "expm1": ("a", {"a": "dy * exp(a)"}),
    "log": ("a", {"a": "dy / a"}),
    "log1p": ("a", {"a": "dy / (1 + a)"}),
    "log1p01": ("a", {"a": "dy * rcp(1 + a)"}),  # log1p for 0 <= a <= 1
    "sqrt": ("a", {"a": "dy * (0.5 / y)"}),
    "rsqrt": ("a", {"a": "dy * (-0.5 * (y * y * y))"}),
    "rcp": ("a", {"a": "-(dy * (y * y))"}),  # 1 / a for 2^-120 <= |a| <= 2^120
    "sin": ("a", {"a": "dy * cos(a)"}),
    "cos": ("a", {"a": "-(dy * sin(a))"}),
    "tanh": ("a", {"a": "dy * (1 - y * y)"}),
    "sigmoid": ("a", {"a": "dy * (y * sigmoid(-a))"}),
    "erf": ("a", {"a": "dy * (1.1283791670955126 * exp(-(a * a)))"}),
    "normcdf": ("a", {"a": "dy * normpdf(a)"}),
    "normpdf": ("a", {"a": "-(dy * (a * y))"}),
    "gelu": ("a", {"a": "dy * gelu_bwd(a)"}),
    "gelu_bwd": ("a", {"a": "dy * ((2 - a * a) * normpdf(a))"}),
    "act": ("a", {"a": "act_bwd(a, dy)"}),
    "act_bwd": (("a", "d"), {}),
    "act_bwd_out": (
        ("y", "d"),
        {},
    ),  # the same of act's result, where the derivative can be made of it
    "where": ("cab", None),  # differentiated by hand: its guard is applied to the adjoint last
    # Over a row, where a graph has levels: ops over rows and reductions over an axis. Ties share a row's largest element: PyTorch's amax.
    "sum": ("a", {"a": "dy"}),
    "rowmax": ("a", {"a": "where(a == y, dy / sum(where(a == y, 1, 0)), 0)"}),
    "rowmin": ("a", {"a": "where(a == y, dy / sum(where(a == y, 1, 0)), 0)"}),
    # Without zeros the product over a; with one of them, that one gets the product of the others: PyTorch's prod.
    "rowprod": (
        "a",
        {
            "a": "zeros = sum(where(a == 0, 1, 0)); others = prod(where(a == 0, 1, a)); "
            "dy * where(a == 0, where(zeros == 1, others, 0), where(zeros > 0, 0, y / a))"
        },
    ),
    "pick": (
        "ab",
        None,
    ),  # a row's value in column b, NaN where there is no such column; differentiated by hand
    "stop": ("a", {"a": None}),  # the value without its gradient
    "stored": ("a", {"a": "dy"}),  # an output as others read it: rounded to its dtype
    "lt": ("ab", {}),
    "le": ("ab", {}),
    "gt": ("ab", {}),
    "ge": ("ab", {}),
    "eq": ("ab", {}),
    "ne": ("ab", {}),
    "and": ("ab", {}),
    "or": ("ab", {}),
    "not": ("a", {}),
}
REDUCTIONS = {
    "sum": "sum",
    "max": "rowmax",
    "min": "rowmin",
    "prod": "rowprod",
}  # as a spec calls them, of one argument
ARG_REDUCTIONS = {
    "argmax": "rowmax",
    "argmin": "rowmin",
}  # where the first of these is: a result of its own, of a reduction over an axis
OVER_ROWS = {"pick", "stop", "stored", *REDUCTIONS.values()}
# What a value is the same for: everything (numbers, scalars), a row of the tensor, nothing.
UNIFORM, ROW, ELEM = range(3)
COUNT, PER_COUNT = "count", "per_count"  # elements of a row, and 1 over it
COLUMN = "column"  # the place of an element in its row, from 0 on
# Of [batch, heads, queries, keys], whose rows are the queries of a head: which one a row is, from 0 on, and how many there are.
QUERY, QUERIES = "query", "queries"
INF = "inf"
ROW_NAMES = (COLUMN, COUNT, PER_COUNT, QUERY, QUERIES, INF)
ROW_COUNTS = (COLUMN, COUNT, QUERY, QUERIES)  # whole numbers
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
BOOLEAN = {*COMPARISONS, "and", "or", "not"}
# What takes many instructions on a CPU, and how many times as many as an exponential.
TRANSCENDENTAL = dict.fromkeys(
    ("exp", "expm1", "log", "log1p", "log1p01", "sin", "cos", "tanh", "sigmoid"), 1
)
TRANSCENDENTAL |= dict.fromkeys(("erf", "normcdf", "normpdf", "gelu", "gelu_bwd"), 3)
# What a spec may call; the rest of PRIMITIVES is reached through operators.
CALLABLE = sorted(
    set(PRIMITIVES)
    - BOOLEAN
    - OVER_ROWS
    - {"add", "sub", "mul", "div", "neg", "act_bwd", "act_bwd_out"}
) + ["dropout"]
ROW_CALLABLE = ["mean", "pick", "prod", "stop", "sum"]  # beside max and min of one argument
# The Philox mask of a dropout is two inputs of the graph, so that its gradient needs no rule of its own.
KEEP, KEEP_SCALE = "keep", "keep_scale"


def query_names(rows, queries, np):
    """The same of so many rows, of which `queries` in turn are a head's."""
    return {
        QUERY: (np.arange(float(rows)) % max(queries, 1)).reshape(-1, 1),
        QUERIES: np.float64(queries),
    }


def row_names(n, np):
    """What expressions over rows of n elements read beside their operands."""
    return {
        COUNT: np.float64(n),
        PER_COUNT: np.float64(1.0 / n if n else float("inf")),
        COLUMN: np.arange(float(n)),
    }
