# SPDX-License-Identifier: Apache-2.0
"""PyTorch's arguments of norms: their order, and normalized_shape, whose dimensions become one for
the call."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from kernel_fusion import _arguments, _products, _spellings
from kernel_fusion._spellings import SHAPE
from kernel_fusion._table import Op


def reader(op: Op, activation: str) -> Callable[[Sequence[Any], dict[str, Any]], Any] | None:
    """Makes the function that reads a call in the order of PyTorch's norms, or None if the op is no
    norm.

    - normalized_shape in front of the weight
    - num_groups as second argument
    - training, momentum and eps after the weights of a batch norm

    It returns (positional arguments, keyword arguments, normalized_shape or None).
    """
    first = next((i for i, t in enumerate(_spellings.ordered(op)) if t.name == "weight"), None)
    scalars = [v.name for v in op.forward.scalars]
    if first is None or "eps" not in scalars or op.forward.inputs[0].name != "x":
        return None
    weight, where = _spellings.ordered(op)[first], op.display_name(activation)
    has_rows = weight.name in per_column(op)
    flag = len(op.forward.inputs) if "momentum" in scalars and op.has_axis else 0

    def read(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        named = kwargs.pop(SHAPE, None) if has_rows and SHAPE in kwargs else None
        if len(args) > first and _spellings.is_shape(args[first]):
            value, args = args[first], (*args[:first], *args[first + 1 :])
            if has_rows and named is None:
                named = value
            elif op.has_groups and isinstance(value, int) and "groups" not in kwargs:
                kwargs["groups"] = value
            else:
                known = "one normalized_shape" if has_rows else "a tensor"
                known = "groups once" if op.has_groups else known
                raise TypeError(f"{where}: weight is {value!r}, expected {known}")
        if flag and len(args) > flag and isinstance(args[flag], bool):
            args = _trained(where, args, flag, kwargs)
        return args, kwargs, named

    return read


def per_column(op: Op) -> set[str]:
    """Names of the inputs with one value per column of x."""
    x, *others = op.forward.inputs
    return {t.name for t in others if t.extents == x.extents[-1:]}


def _trained(where: str, args: Sequence[Any], at: int, kwargs: dict[str, Any]) -> Sequence[Any]:
    """Moves training, momentum and eps of PyTorch's batch_norm to keyword arguments."""
    training, *numbers = args[at:]
    if not training:
        raise ValueError(
            f"{where}: training is False, expected True: batch_norm normalizes by running "
            f"statistics"
        )
    if len(numbers) > 2:
        raise TypeError(f"{where}: {len(args)} arguments are given, expected at most {at + 3}")
    given = dict(zip(("momentum", "eps"), numbers))
    for name in given.keys() & kwargs.keys():
        raise TypeError(f"{where}: {name} is given twice")
    kwargs.update(given)
    return args[:at]


def named(op: Op, activation: str, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by name."""
    placed = list(_arguments.signature(op, activation).parameters)
    if len(args) > len(placed) or kwargs.keys() & set(placed[: len(args)]):
        _arguments.bound(op, activation, args, kwargs)  # raises the error
    return {**dict(zip(placed, args)), **kwargs}


def _shaped(where: str, shape: Any, have: Sequence[Any]) -> tuple[int, ...]:
    """Returns normalized_shape after checks against the shape of x."""
    try:
        wanted = tuple(map(operator.index, shape if isinstance(shape, (tuple, list)) else (shape,)))
    except TypeError:
        raise TypeError(
            f"{where}: {SHAPE} is {shape!r}, expected a whole number or several"
        ) from None
    if not wanted or tuple(have[len(have) - len(wanted) :]) != wanted:
        raise ValueError(
            f"{where}: {SHAPE} is {wanted}, expected the last dimensions of x, whose shape is "
            f"{tuple(have)}"
        )
    return wanted


def flattened(
    op: Op, where: str, function: Callable[..., Any], given: dict[str, Any], shape: Any
) -> Any:
    """Calls a function over rows with the last dimensions, which `shape` names, as one.

    Args:
        given: all arguments by name.
    """
    x: Any = given.get("x")
    if not hasattr(x, "shape"):
        return function(**given)  # raises the error
    have = tuple(x.shape)
    wanted = _shaped(where, shape, have)
    known, weights = {t.name for t in op.forward.inputs}, per_column(op)
    tensors = {n: t for n, t in given.items() if n in known and hasattr(t, "shape")}
    for name, t in tensors.items():
        if name in weights and tuple(t.shape) != wanted:
            raise ValueError(
                f"{where}: {name} has the shape {tuple(t.shape)}, expected {SHAPE} {wanted}"
            )
    if len(wanted) == 1:
        return function(**given)
    if given.get("out") is not None:
        raise TypeError(
            f"{where}: out is given, expected None beside several dimensions in {SHAPE}"
        )
    size = math.prod(wanted)
    lead = have[: len(have) - len(wanted)]
    rows = {
        name: _products.reshaped(t, (size,) if name in weights else (*lead, size))
        for name, t in tensors.items()
        if name in weights or tuple(t.shape) == have
    }
    found = function(**given | rows)
    if isinstance(found, (tuple, list)):
        return tuple(_products.reshaped(y, have) for y in found)
    return _products.reshaped(found, have)
