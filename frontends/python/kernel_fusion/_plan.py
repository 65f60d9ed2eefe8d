# SPDX-License-Identifier: Apache-2.0
"""Plans a call from shapes and dtypes: function, sizes and results, the same for every framework.

Invalid calls raise a TypeError or a ValueError that names op, argument, shapes and dtypes.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kfgen.model import names

from kernel_fusion import _caches
from kernel_fusion._sizes import Layout, Shape, ShapeError
from kernel_fusion._table import WIDE, Call, Op, Tensor, Value

Given = tuple[Shape, str]  # (shape, dtype) of a tensor


@dataclass(frozen=True)
class Plan:
    """Function, layout and results of a call."""

    function: str
    layout: Layout
    shapes: tuple[tuple[int, ...], ...]  # outputs
    dtypes: tuple[str, ...]
    sizes: tuple[int, ...]


def plan(
    op: Op,
    activation: str,
    backward: bool,
    given: Sequence[Given | None],
    axis: int = -1,
    groups: int = 1,
    asked: str | None = None,
    integers: tuple[int, ...] = (),
    last: bool = False,
) -> Plan:
    """Plans a call.

    Args:
        given: one tensor per input; None if it is absent or not read.
        asked: dtype of the results, if it is an argument (cast).
        integers: the call's integers, if extents read them (`Call.reads_integers`).
        last: True if the tensors' channels are last, for an op with rules for it.
    """
    call, where = (
        op.direction(backward),
        f"{op.display_name(activation)}{' (backward)' if backward else ''}",
    )
    check_present(where, call, activation, given)
    first = given[call.inputs.index(call.template)]
    # The shape of this tensor is read.
    assert first is not None
    variables = variables_of(op, activation, call, where, given, asked)
    shapes = {t.name: g[0] for t, g in zip(call.inputs, given) if g is not None}
    try:
        layout = op.lay_out(call, shapes, axis, groups, integers, last)
        _check_sizes(op, where, layout, backward)
        _caches.check_shapes(where, call, shapes, layout.values)
        for t, g in zip(call.inputs, given):
            if g is not None:
                _check(where, t, g, layout, variables, call.template.name, first)
        made = tuple(layout.of(t) for t in call.outputs)
    except ShapeError as e:
        raise ValueError(f"{where}: {e}") from None
    return Plan(
        op.function(activation, words_of(op, variables), backward),
        layout,
        made,
        tuple(variables.get(t.var, t.var) for t in call.outputs),
        tuple(layout.sizes),
    )


# For shapes of numbers, not symbols: most programs make few different calls.
cached = functools.lru_cache(4096)(plan)


def of_sums(op: Op, call: Call) -> set[str]:
    """Type variables of results that a call sums in several steps and that may be float32."""
    return {t.var for t in call.outputs if t.accumulated and t.var in op.further}


def summed(op: Op, call: Call, activation: str, backward: bool, made: Plan) -> Plan:
    """Returns the plan with float32 for 2-byte results that a forward sums in several steps.

    The caller rounds them once. In their own dtype each step would round.
    """
    of = of_sums(op, call)
    if backward or not of:
        return made
    own = {t.var: dtype for t, dtype in zip(call.outputs, made.dtypes)}
    variables = {v: WIDE[own[v]] if v in of else own.get(v, own["T"]) for v in op.variables}
    return dataclasses.replace(
        made,
        function=op.function(activation, words_of(op, variables), backward),
        dtypes=tuple(variables.get(t.var, d) for t, d in zip(call.outputs, made.dtypes)),
    )


def check_present(where: str, call: Call, activation: str, given: Sequence[Given | None]) -> None:
    """Checks that no required input is absent."""
    missing = [
        t.name
        for t, g in zip(call.inputs, given)
        if g is None and not t.nullable and (t.name in call.shaped_by or activation not in t.unread)
    ]
    if missing:
        raise TypeError(f"{where}: {missing[0]} is missing")


def words_of(op: Op, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the dtypes in the function's name."""
    found: tuple[str, ...] = names.words({v: variables[v] for v in op.variables})
    return found


def variables_of(
    op: Op,
    activation: str,
    call: Call,
    where: str,
    given: Sequence[Given | None],
    asked: str | None,
) -> dict[str, str]:
    """Returns the dtype of each type variable."""

    def first(var: str) -> str | None:
        return next(
            (g[1] for t, g in zip(call.inputs, given) if g is not None and t.var == var), None
        )

    own = first("T")
    assert own is not None
    found = {"T": own, "acc": WIDE.get(own, own)}
    found |= {v: (asked if v == op.asked else first(v)) or own for v in op.further}
    named = call.template.name
    # Names do not decide: they leave out dtypes equal to that of T.
    if not any(all(found[v] == d for v, d in types.items()) for types in op.types):
        known = sorted({d[0] for d in op.dtypes})
        if own not in known:
            swapped = any(g is not None and g[1] in known for g in given)
            order = ", ".join(t.name for t in call.inputs)
            raise TypeError(
                f"{where}: {named} has the dtype {own}, expected one of {', '.join(known)}"
                + (f"; the order of arguments is {order}" if swapped else "")
            )
        raise TypeError(f"{where}: {_refused(op, call, given, found)} beside {named} of {own}")
    if own in ("i32", "i64") and activation not in op.integer_activations:
        raise TypeError(
            f"{where}: {named} has the dtype {own}, expected a floating-point dtype: the "
            f"activations for integers are "
            f"{', '.join(op.integer_activations)}"
        )
    return found


def _refused(op: Op, call: Call, given: Sequence[Given | None], found: Mapping[str, str]) -> str:
    """Describes the first type variable whose dtype no function has beside those before it."""
    left = [t for t in op.types if t["T"] == found["T"]]
    further = [v for v in op.further if v in left[0]]
    for v in further:
        fitting = [t for t in left if t[v] == found[v]]
        if not fitting:
            break
        left = fitting
    known = sorted({t[v] for t in left}, key=lambda d: (d != found["T"], d))
    what = next(
        (t.name for t, g in zip(call.inputs, given) if g is not None and t.var == v), "the result"
    )
    return f"{what} has the dtype {found[v]}, expected {' or '.join(known)}"


def _check_sizes(op: Op, where: str, layout: Layout, backward: bool) -> None:
    for size, other in op.rules.divisors.items():
        n, of = layout.values[size], layout.values[other]
        if n < 1 or of % n:
            raise ValueError(f"{where}: {size} is {n}, expected a divisor of the {of} {other}")
    for size, other in op.beside.items():
        n, of = layout.values[size], layout.values[other]
        if n == 0 and of != 0:
            named = next(t.name for t in op.direction(backward).inputs if size in t.extents)
            raise ValueError(
                f"{where}: {named} has no elements: {size} is 0, expected 1 or more beside {of} "
                f"{other}"
            )
    if op.empty == "error" and not backward and layout.values["axis"] == 0:
        raise ValueError(
            f"{where}: the axis {layout.axis} of the shape {layout.shape} has no elements, so "
            f"{op.word('none')} is undefined"
        )


def _check(
    where: str,
    t: Tensor,
    g: Given,
    layout: Layout,
    variables: Mapping[str, str],
    named: str,
    first: Given,
) -> None:
    shape, dtype = g
    _check_dtype(where, t, dtype, variables, named, first[1])
    expected = layout.of(t)
    if len(shape) != len(expected) or any(a != b for a, b in zip(shape, expected)):
        raise ValueError(
            f"{where}: {t.name} has the shape {tuple(shape)}, expected {expected} beside {named} "
            f"of the shape {tuple(first[0])}"
        )


def _check_dtype(
    where: str, t: Tensor, dtype: str, variables: Mapping[str, str], named: str, first: str
) -> None:
    wanted = variables.get(t.var, t.var)
    if dtype != wanted:
        raise TypeError(
            f"{where}: {t.name} has the dtype {dtype}, expected {wanted} beside {named} of {first}"
        )


def known_dtypes(op: Op, t: Tensor) -> str:
    """Lists the dtypes that an argument may have, for errors."""
    if t.var in ("T", *op.further):
        found = {types[t.var] for types in op.types if t.var in types}
    else:
        found = {"f32", "f64"} if t.var == "acc" else {t.var}
    return ", ".join(sorted(found))


def check_dtypes(
    where: str, call: Call, given: Sequence[Given | None], variables: Mapping[str, str]
) -> None:
    """Checks the dtypes of a call whose shapes are not known yet."""
    first = given[call.inputs.index(call.template)]
    assert first is not None
    for t, g in zip(call.inputs, given):
        if g is not None:
            _check_dtype(where, t, g[1], variables, call.template.name, first[1])


def check_flat(where: str, inputs: Sequence[Tensor], given: Sequence[Shape | None]) -> None:
    """Checks that all tensors have the same shape before their dimensions are joined."""
    first = given[0]
    assert first is not None
    for t, shape in zip(inputs, given):
        if shape is not None and t.kind == "elem" and tuple(shape) != tuple(first):
            raise ValueError(
                f"{where}: {t.name} has the shape {tuple(shape)}, expected {tuple(first)} beside "
                f"{inputs[0].name} of that shape"
            )


def check_value(where: str, value: Value, given: float) -> None:
    """Checks a scalar's bounds that are numbers; NaN is out of bounds."""
    low, high = value.least, value.most
    if low is not None and not given >= low or high is not None and not given <= high:
        refuse_value(where, value.name, given, bounds_of(value, " and "))


def check_between(where: str, values: Sequence[Value], given: Sequence[float]) -> None:
    """Checks the bounds that are other scalars; NaN is out of bounds."""
    if not any(v.least_of or v.most_of for v in values):
        return
    numbers = {v.name: n for v, n in zip(values, given)}
    for v, n in zip(values, given):
        low, high = numbers.get(v.least_of), numbers.get(v.most_of)
        if low is not None and not n >= low or high is not None and not n <= high:
            known = {name: f"{name} = {float(number)}" for name, number in numbers.items()}
            refuse_value(where, v.name, n, bounds_of(v, " and ", known))


def bounds_of(value: Value, between: str, known: Mapping[str, str] | None = None) -> str:
    """Describes a scalar's bounds; empty without any.

    Args:
        known: descriptions of scalars that are bounds, by name; default: their names.
    """
    words = (("at least", value.least), ("at most", value.most))
    found = [f"{word} {bound:g}" for word, bound in words if bound is not None]
    others = (("at least", value.least_of), ("at most", value.most_of))
    return between.join(
        [*found, *(f"{word} {(known or {}).get(name, name)}" for word, name in others if name)]
    )


def refuse_value(where: str, name: str, given: float, expected: str) -> None:
    """Raises the error of a scalar out of its bounds."""
    raise ValueError(f"{where}: {name} is {given}, expected {expected}")
