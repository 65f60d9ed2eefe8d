# SPDX-License-Identifier: Apache-2.0
"""Axes of reductions: `dim` as a number, several numbers or None, and `keepdim`.

Kernels reduce one axis of [outer, axis, inner]. Adjacent axes become this axis by a reshape; other
axes are moved next to each other first, which copies the tensor.
"""

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from kernel_fusion import _plan
from kernel_fusion._table import Op


class Fold(NamedTuple):
    """How a tensor becomes one whose single axis a kernel reduces."""

    order: tuple[int, ...] | None  # permutation of the dimensions; None: they stay
    shape: tuple[Any, ...]  # after the permutation, with the axes as one dimension
    axis: int
    result: tuple[Any, ...]  # shape of the results

    def planned(self, plan: _plan.Plan) -> _plan.Plan:
        """Returns the plan of a call of the folded tensors with the shape of the results."""
        return dataclasses.replace(plan, shapes=(self.result,) * len(plan.shapes))


def applies(op: Op) -> bool:
    """True if the op has `keepdim`, and `dim` may be several numbers or None."""
    return op.has_axis and op.axis_may_be_none


def has_index(op: Op) -> bool:
    """True if a result is an index, which counts along one axis."""
    return any(t.var == "i64" for t in op.forward.outputs)


def numbers(where: str, op: Op, dim: Any) -> tuple[int, ...]:
    """Returns the axes of an argument that is no single number; none stand for all.

    Raises:
        TypeError: an axis is no whole number, or the op has an index and several axes are given.
    """
    if dim is None:
        return ()
    if not isinstance(dim, (tuple, list)):
        dim = (dim,)
    elif has_index(op):
        raise TypeError(
            f"{where}: dim is {tuple(dim)}, expected a whole number or None: an index counts along "
            f"one axis"
        )
    for axis in dim:
        if isinstance(axis, bool) or not hasattr(axis, "__index__"):
            raise TypeError(
                f"{where}: dim is {type(axis).__name__}, expected a whole number, a tuple of them "
                f"or None"
            )
    return tuple(map(operator.index, dim))


def check_keepdim(where: str, keepdim: Any) -> None:
    if not isinstance(keepdim, bool):
        raise TypeError(f"{where}: keepdim is {type(keepdim).__name__}, expected True or False")


def _counted(where: str, name: str, shape: tuple[Any, ...], dim: Sequence[int]) -> tuple[int, ...]:
    """Returns the axes counted from the front, in ascending order."""
    rank = max(len(shape), 1)
    for axis in dim:
        if not -rank <= axis < rank:
            raise ValueError(
                f"{where}: {name} has the shape {shape}, expected a dimension {axis}, the axis"
            )
    found = [axis % rank for axis in dim]
    twice = [axis for axis in found if found.count(axis) > 1]
    if twice:
        raise ValueError(
            f"{where}: dim is {tuple(dim)}, expected different dimensions: dim {twice[0]} appears "
            f"multiple times"
        )
    return tuple(sorted(found))


def fold(where: str, name: str, given: Sequence[Any], dim: Sequence[int], keepdim: bool) -> Fold:
    """Makes several axes of a tensor one axis.

    Args:
        name: of the tensor.
        given: its shape, whose dimensions may be symbols.
        dim: the axes; none stand for all.
    """
    shape = tuple(given)
    axes = _counted(where, name, shape, dim) or tuple(range(len(shape)))
    if not shape:
        return Fold(None, (1,), 0, ())
    kept = tuple(i for i in range(len(shape)) if i not in axes)
    result = tuple(1 if i in axes else n for i, n in enumerate(shape) if keepdim or i in kept)
    order, first = None, axes[0]
    if axes[-1] - first != len(axes) - 1:
        # The last dimension stays the last one, so that the copy reads and writes whole rows.
        last = axes[-1] == len(shape) - 1
        order, first = ((*kept, *axes), len(kept)) if last else ((*axes, *kept), 0)
        shape = tuple(shape[i] for i in order)
    end = first + len(axes)
    return Fold(order, (*shape[:first], math.prod(shape[first:end]), *shape[end:]), first, result)


def of(op: Op, arguments: Any, shapes: Sequence[Any]) -> Fold | None:
    """Returns the fold of a call's tensors, or None if the kernel takes them as they are.

    Args:
        arguments: _arguments.Arguments.
        shapes: one per tensor, None if it is absent or its shape is not known.
    """
    axes, keepdim, first = arguments.axes, arguments.keepdim, shapes[0]
    if not applies(op) or first is None or (axes is None and not keepdim and len(first)):
        return None
    where, inputs = arguments.where, op.forward.inputs
    _plan.check_flat(where, inputs, shapes)
    return fold(where, inputs[0].name, first, (arguments.axis,) if axes is None else axes, keepdim)
