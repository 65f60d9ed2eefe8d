# SPDX-License-Identifier: Apache-2.0
"""Shapes of tensors as data: extents, and how the sizes of a call follow from them.

An extent is one dimension of a tensor in a function's arguments: an integer expression of sizes and
integer arguments. Families and entries write it as text (`2 * cols`); `parse` turns it into a name,
a number, or a list [operator, left, right]. `/` rounds towards minus infinity.

A rule says how many dimensions of a tensor one size has. With the rules of all its extents, a
tensor's dimensions determine its sizes:

- {"dims": n}: n dimensions; without any, the size is 1
- {"dims": "before axis"}: the dimensions in front of the axis
- {"dims": "rest"}: the dimensions that the tensor's other extents leave
- {"argument": name}: an argument of the call; "divides": a size that it must divide

Two evaluators read extents and rules: include/kf/runtime/layout.h, with the expressions of
include/kf/core/extent.h, and frontends/python/kernel_fusion/_sizes.py.
"""

import ast
import functools

OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
# Codes of extent.h for an expression in postfix order: an index of a value, or one of these.
CODES = {"+": -1, "-": -2, "*": -3, "/": -4, "number": -5, "end": -6}
DEPTH = 16  # maximum number of operands that wait for an operator: KFI_LAYOUT_DEPTH
EXTENTS, SIZES = 6, 10  # maximum of a tensor and of a call: KFI_LAYOUT_EXTENTS, KFI_LAYOUT_SIZES
LARGEST = 2**31 - 1  # numbers are int32_t in C

ONE, NONE = {"dims": 1}, {"dims": 0}
BEFORE_AXIS, REST = {"dims": "before axis"}, {"dims": "rest"}


def argument(name, divides=None):
    """Rule of a size that the call gives."""
    return {"argument": name} | ({"divides": divides} if divides else {})


def named(sizes):
    """Rules of a family without its own: the first size has the dimensions that others leave."""
    first, *others = sizes
    return {first: REST} | dict.fromkeys(others, ONE)


def spans(rule):
    """True if a size may have several dimensions, which are independent of each other."""
    return rule.get("dims") in ("before axis", "rest")


def product(texts):
    """Returns the product of extents as text."""
    return " * ".join(text(parse(t), "+-/" if len(texts) > 1 else "") for t in texts)


def least(axis):
    """Minimum number of dimensions of a tensor that has this default axis."""
    return 0 if axis is None else axis + 1 if axis >= 0 else -axis


@functools.cache
def parse(text):
    """Parses an extent."""
    return _parsed(text, ast.parse(text.strip(), mode="eval").body)


def _parsed(text, node):
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return [OPERATORS[type(node.op)], _parsed(text, node.left), _parsed(text, node.right)]
    if isinstance(node, ast.Name):
        return node.id
    number = node.value if isinstance(node, ast.Constant) else None
    if type(number) is int and number <= LARGEST:
        return number
    raise ValueError(
        f"{text!r} is no extent: write numbers up to 2^31 - 1, names of sizes and integers, "
        "+, -, *, / and parentheses"
    )


def text(extent, enclosed=""):
    """Returns an extent as text, in parentheses if its operator is one of `enclosed`."""
    if isinstance(extent, str | int):
        return str(extent)
    operator, left, right = extent
    of_left, of_right = ("", "+-") if operator in "+-" else ("+-", "+-*/")
    found = f"{text(left, of_left)} {operator} {text(right, of_right)}"
    return f"({found})" if operator in enclosed else found


def names(extent):
    """Returns the names in an extent, in order."""
    if isinstance(extent, str | int):
        return [extent] if isinstance(extent, str) else []
    _, left, right = extent
    return names(left) + names(right)


def linear(extent):
    """Returns (factor, name, addend) of factor * name + addend, or None for other expressions."""
    if isinstance(extent, str):
        return 1, extent, 0
    if isinstance(extent, int):
        return None
    operator, left, right = extent
    if isinstance(left, int) and operator in "+*":
        left, right = right, left
    found = linear(left) if isinstance(right, int) else None
    if not found:
        return None
    factor, name, addend = found
    if operator == "*" and right > 0:
        factor, addend = factor * right, addend * right
    elif operator in "+-":
        addend += right if operator == "+" else -right
    else:
        return None
    return (factor, name, addend) if max(factor, abs(addend)) <= LARGEST else None


def problem(extents, values, rules):
    """Describes why no evaluator can read the extents of a tensor, or returns "".

    Args:
        values: names of sizes and integers.
        rules: {size: rule}.
    """
    if len(extents) > EXTENTS:
        return f"has {len(extents)} extents, at most {EXTENTS} are possible"
    for extent in extents:
        unknown = [name for name in names(extent) if name not in values]
        if unknown:
            return f"`{unknown[0]}` is no size or integer"
        line = linear(extent)
        if isinstance(extent, list) and line and rules.get(line[1], ONE).get("dims", 1) != 1:
            return f"`{text(extent)}` is one dimension, and {line[1]} may have none or several"
        code(extent, values)
    return ""


def undetermined(rules, tensors):
    """Returns the first size of which tensors, in order, do not say the number of dimensions; ""
    if there is none.

    Args:
        tensors: extents of the tensors that determine the sizes.
    """
    known = {size for size, rule in rules.items() if rule.get("dims") != "rest"}
    for extents in tensors:
        lines = [linear(extent) for extent in extents]
        own = {line[1] for line in lines if line and line[1] in rules} - known
        if len(own) > 1:
            return min(own)
        known |= own
    return next((size for size in rules if size not in known), "")


def code(extent, values):
    """Returns an extent in postfix order, as extent.h reads it.

    Args:
        values: names of the values that a call has, in order.
    """
    found = _postfix(extent, list(values))
    depth = deepest = 0
    at = iter(found)
    for word in at:
        if word == CODES["number"]:
            next(at)
        depth += 1 if word >= 0 or word == CODES["number"] else -1
        deepest = max(deepest, depth)
    if deepest > DEPTH:
        raise ValueError(f"{extent!r} needs {deepest} operands at a time, at most {DEPTH} possible")
    return [*found, CODES["end"]]


def _postfix(extent, values):
    if isinstance(extent, str):
        return [values.index(extent)]
    if isinstance(extent, int):
        return [CODES["number"], extent]
    operator, left, right = extent
    return [*_postfix(left, values), *_postfix(right, values), CODES[operator]]


def places(sizes, others):
    """Returns the index of each size's other size, -1 without; empty if no size has one."""
    return [sizes.index(others[size]) if size in others else -1 for size in sizes if others]


def fields(extents, sizes, values, codes):
    """Returns the fields of layout.h's kfi_layout_extent for each extent.

    Args:
        sizes: names of the sizes, in order.
        values: names of all values of a call, the sizes first.
        codes: list to which the codes of expressions are appended.
    """
    found = []
    for extent in extents:
        line = linear(extent)
        if line and line[1] in sizes:
            factor, name, addend = line
            found.append((list(sizes).index(name), factor, addend, 0))
        else:
            found.append((-1, 0, 0, len(codes)))
            codes += code(extent, values)
    return found


def mask_extents(masked, values):
    """Returns the extents of dropout's mask.

    Args:
        masked: `Kernel.masked`
        values: {size or option: number}; a missing one is 0
    """
    return tuple(
        values.get(total, 0) or values[size] + values.get(base, 0) for size, base, total in masked
    )
