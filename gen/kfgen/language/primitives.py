# SPDX-License-Identifier: Apache-2.0
"""Primitives of the expression language with their gradient rules, and the names that expressions
over rows may read.
"""

# Gradient of the largest or the smallest element.
SHARED = "n = sum(where(a == y, 1, 0)); where(a == y, dy / n, 0 * dy / n)"
# name: (argument names, {argument: rule for its adjoint}). A rule is an expression of the language;
# it reads the arguments, `y` (the primitive's value) and `dy` (the adjoint of y). A primitive
# without a rule is not differentiable.
PRIMITIVES = {
    "add": ("ab", {"a": "dy", "b": "dy"}),
    "sub": ("ab", {"a": "dy", "b": "-dy"}),
    "mul": ("ab", {"a": "dy * b", "b": "dy * a"}),
    "div": ("ab", {"a": "dy / b", "b": "-(dy * (y / b))"}),
    "neg": ("a", {"a": "-dy"}),
    # NaN fails every comparison: the last arm reads the argument, so that NaN stays NaN.
    "abs": ("a", {"a": "where(a > 0, dy, where(a < 0, -dy, dy * a))"}),
    # A tie gives half to each argument, NaN passes the gradient to both: PyTorch's rule.
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
    "act_bwd_out": (("y", "d"), {}),  # gradient from act's result y, for activations that allow it
    "where": ("cab", None),  # gradient.py has the rule: it applies the guard to the adjoint last
    # Reductions over a row, in graphs with levels (rows and reduction). Equal largest elements
    # share the gradient, as PyTorch's amax. No element equals a NaN: 0 / 0 is the gradient.
    "sum": ("a", {"a": "dy"}),
    "rowmax": ("a", {"a": SHARED}),
    "rowmin": ("a", {"a": SHARED}),
    # Without zeros y / a. A single zero gets the product of the other elements: PyTorch's prod.
    # With zeros the other elements get y: 0, or NaN if there is one.
    "rowprod": (
        "a",
        {
            "a": "zeros = sum(where(a == 0, 1, 0)); others = prod(where(a == 0, 1, a)); "
            "dy * where(a == 0, where(zeros == 1, others, y), where(zeros > 0, y, y / a))"
        },
    ),
    # Element of the row in column b, NaN if b is no column. gradient.py has the rule.
    "pick": ("ab", None),
    "stop": ("a", {"a": None}),  # the value without its gradient
    "stored": ("a", {"a": "dy"}),  # an output that other expressions read: rounded to its dtype
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
# {function of one argument in a spec: primitive}
REDUCTIONS = {"sum": "sum", "max": "rowmax", "min": "rowmin", "prod": "rowprod"}
# {function: reduction}: index of the first such element, a result of a reduction over an axis
ARG_REDUCTIONS = {"argmax": "rowmax", "argmin": "rowmin"}
OVER_ROWS = {"pick", "stop", "stored", *REDUCTIONS.values()}
# Level of a value: constant for the whole call, constant per row, different per element.
UNIFORM, ROW, ELEM = range(3)
COUNT, PER_COUNT = "count", "per_count"  # elements of a row, and the reciprocal
COLUMN = "column"  # index of an element in its row, from 0
# Tensors [batch, heads, queries, keys]: index of the row among the queries of its head, from 0, and
# the number of queries.
QUERY, QUERIES = "query", "queries"
INF = "inf"
ROW_NAMES = (COLUMN, COUNT, PER_COUNT, QUERY, QUERIES, INF)
ROW_COUNTS = (COLUMN, COUNT, QUERY, QUERIES)  # integers
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
BOOLEAN = {*COMPARISONS, "and", "or", "not"}
# Expensive primitives on a CPU: cost relative to an exponential.
TRANSCENDENTAL = dict.fromkeys(
    ("exp", "expm1", "log", "log1p", "log1p01", "sin", "cos", "tanh", "sigmoid"), 1
)
TRANSCENDENTAL |= dict.fromkeys(("erf", "normcdf", "normpdf", "gelu", "gelu_bwd"), 3)
# Functions that a spec may call; operators reach the other primitives.
CALLABLE = sorted(
    set(PRIMITIVES)
    - BOOLEAN
    - OVER_ROWS
    - {"add", "sub", "mul", "div", "neg", "act_bwd", "act_bwd_out"}
) + ["dropout"]
# Functions that a spec over rows may call, besides max and min of one argument.
ROW_CALLABLE = ["mean", "pick", "prod", "stop", "sum"]
# Dropout's Philox mask and its scale are inputs of the graph, so dropout needs no gradient rule.
KEEP, KEEP_SCALE = "keep", "keep_scale"


def query_names(rows, queries, np):
    """Values of `query` and `queries` for rows that belong to heads of `queries` rows each."""
    return {
        QUERY: (np.arange(float(rows)) % max(queries, 1)).reshape(-1, 1),
        QUERIES: np.float64(queries),
    }


def row_names(n, np):
    """Values of `count`, `per_count` and `column` for rows of n elements."""
    return {
        COUNT: np.float64(n),
        PER_COUNT: np.float64(1.0 / n if n else float("inf")),
        COLUMN: np.arange(float(n)),
    }
