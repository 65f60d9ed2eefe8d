# SPDX-License-Identifier: Apache-2.0
"""Memory formats: results keep the order in which their inputs' dimensions lie in memory.

A kernel takes contiguous tensors. Dimensions are therefore permuted into their order in memory, a
view, and results are permuted back: a channels_last tensor is read and written without a copy. The
order of mixed layouts is that of PyTorch's TensorIterator.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernel_fusion._table import Op
from kernel_fusion.torch._schema import schema

WHOLE = ("elem", "half")  # kinds of operands that have the result's dimensions
# Exceptions of a call one of whose arguments is no dense tensor.
ERRORS = "(AttributeError, RuntimeError)"


class Order(NamedTuple):
    """How results get back the order of their dimensions."""

    memory: tuple[int, ...]  # dimensions, the slowest first
    inverse: tuple[int, ...]
    copies: bool  # the kernel computes contiguous results, which are copied


def applies(op: Op) -> bool:
    """True if results do not depend on the order of the dimensions, but for the axis."""
    return op.any_order


def lines(op: Op) -> list[str]:
    """Lines of a function of kf.ops that permute its tensors, and its axis, into memory order."""
    if not applies(op):
        return []
    whole = [t for t in op.forward.inputs if t.kind in WHOLE]
    dense = " and ".join(
        f"({t.name} is None or {t.name}.is_contiguous())"
        if t.nullable
        else f"{t.name}.is_contiguous()"
        for t in whole
    )
    names = "".join(f"{t.name}, " for t in whole)
    where = "dim" if op.has_axis else "last" if op.channels_last else "_"
    return [
        *(["last = False"] if op.channels_last else []),
        "order = None",
        f"if not ({dense}):",
        f"    ({names}), {where}, order = arranged(({names}), {'dim' if op.has_axis else False})",
    ]


def in_memory(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Returns the dimensions of TensorIterator's result, the slowest first.

    Args:
        strides: those of each operand; earlier operands decide.
    """

    def compare(a: int, b: int) -> int:
        """Positive if dimension a is slower than b, negative if it is faster, 0 if unknown."""
        for own in strides:
            if own[a] == 0 or own[b] == 0:
                continue
            if own[a] != own[b]:
                return 1 if own[a] > own[b] else -1
            if shape[a] > shape[b]:
                return 1
        return 0

    found = list(reversed(range(len(shape))))  # the fastest first
    for i in range(1, len(found)):
        at = i
        for other in range(i - 1, -1, -1):
            which = compare(found[other], found[at])
            if which > 0:
                found[other], found[at] = found[at], found[other]
                at = other
            elif which < 0:
                break
    return tuple(reversed(found))


_cached = functools.lru_cache(4096)(in_memory)


def _order(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[int, ...]:
    if torch.compiler.is_compiling():
        return in_memory(shape, strides)
    try:
        return _cached(shape, strides)
    except TypeError:  # a symbol has no hash
        return in_memory(shape, strides)


def _is_hidden() -> bool:
    """True if strides of tensors are not those of their memory, or cannot be read."""
    transformed: bool = torch._C._are_functorch_transforms_active()
    return transformed or torch._C._get_tracing_state() is not None


def _placer(op: Op) -> Callable[[Sequence[int], int], tuple[bool, int]]:
    """Makes a function that returns whether a kernel takes the dimensions in an order, and the
    argument for the axis: its number, or whether it is last.
    """
    # Read here, because torch.compile cannot trace the first reading of a cached property.
    is_flat, has_axis, own, takes_last = op.is_flat, op.has_axis, op.axis, bool(op.channels_last)

    def place(order: Sequence[int], dim: int) -> tuple[bool, int]:
        if is_flat:
            return True, dim
        if has_axis:
            return True, order.index(dim % len(order))
        axis = (own or 0) % len(order)
        if set(order[:axis]) != set(range(axis)):
            return False, dim
        last = takes_last and order[-1] == axis
        return last or order[axis] == axis, last

    return place


def arranger(op: Op) -> Callable[..., Any]:
    """Makes a function that permutes the dimensions of an op's operands into memory order.

    It takes the operands that have the result's dimensions, and the axis if calls choose it. It
    returns them, with whether the axis is last if calls do not choose it, and an Order, or None if
    nothing is permuted.
    """
    halved, place = op.forward.template.kind == "half", _placer(op)

    def arranged(given: Sequence[Tensor | None], dim: int) -> Any:
        tensors = [t for t in given if t is not None]
        rank = tensors[0].dim()
        end = rank - halved
        differs = any(t.dim() != rank or t.shape[:end] != tensors[0].shape[:end] for t in tensors)
        if rank < op.rules.least or differs or _is_hidden():
            return given, dim, None
        if op.has_axis and not (type(dim) is int and -rank <= dim < rank):
            return given, dim, None
        shape = tensors[0].shape
        if halved:
            shape = torch.Size((*shape[:-1], shape[-1] // 2))
        order = _order(shape, tuple(t.stride() for t in tensors))
        if order == tuple(range(rank)):
            return given, dim, None
        inverse = tuple(order.index(d) for d in range(rank))
        takes, axis = place(order, dim)
        if not takes:
            return given, dim, Order(order, inverse, True)
        moved = [None if t is None else t.permute(order) for t in given]
        return moved, axis, Order(order, inverse, False)

    return arranged


def restored(result: Tensor, order: Order) -> Tensor:
    """Returns a result whose dimensions are in their own order, and in memory as Order says."""
    if order.copies:
        result = result.permute(order.memory).contiguous()
    return result.permute(order.inverse)


def undoer(op: Op) -> Callable[..., Any]:
    """Makes a function that undoes the permutation of an op's arguments, for errors."""
    s = schema(op, False)

    def undone(given: Sequence[Any], order: Order) -> tuple[Any, ...]:
        found = list(given)
        for i, t in enumerate(op.forward.inputs):
            if t.kind in WHOLE and given[i] is not None and not order.copies:
                found[i] = given[i].permute(order.inverse)
        if op.channels_last:
            found[s.at["last"]] = False
        if op.has_axis and not order.copies:
            found[s.at["dim"]] = order.memory[given[s.at["dim"]]]
        return tuple(found)

    return undone
