# SPDX-License-Identifier: Apache-2.0
"""Converts a framework's strides into a launcher's: one per size outside of the innermost."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel_fusion._sizes import Layout
    from kernel_fusion._table import Call, Tensor

BROADCAST = -(2**63)  # KF_BROADCAST: stride 0


def of(
    t: "Tensor", layout: "Layout", shape: Sequence[int], strides: Sequence[int]
) -> tuple[int, ...] | None:
    """Returns a tensor's fields of the stride struct, outermost size first; 0 means contiguous.

    Returns an empty tuple if the tensor has no strides, None if it must be copied. `strides` is in
    elements.
    """
    if 0 in shape or _dense(shape, strides):
        return (0,) * len(t.strides)
    if not t.strides:
        return None
    found: list[int] = []
    dims = _parts(t, layout)
    start = len(t.strides)
    rules = layout.rules
    if rules.arguments or (
        rules.has_axis and all(shape[d] == 1 for part in dims[start:] for d in part)
    ):
        # The channels of a group must be contiguous, and so must an axis with nothing after it.
        start -= 1
    own = [d for part in dims[start:] for d in part]
    if not _dense([shape[d] for d in own], [strides[d] for d in own]):
        return None
    for part in dims[:start]:
        one = _collapsed([(shape[d], strides[d]) for d in part if shape[d] != 1])
        if one is None:
            return None
        found.append(one)
    return (*found, *[0] * (len(t.strides) - start))


def _parts(t: "Tensor", layout: "Layout") -> list[range]:
    """Returns the tensor's own dimensions of each extent."""
    found, at = [], 0
    for own in layout.parts(t):
        found.append(range(at, at + len(own)))
        at += len(own)
    return found


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True if the dimensions are contiguous."""
    wanted = 1
    for n, s in zip(reversed(shape), reversed(strides)):
        if n != 1 and s != wanted:
            return False
        wanted *= n
    return True


def _collapsed(dims: Sequence[tuple[int, int]]) -> int | None:
    """Returns the stride of several dimensions joined into one, or None if that is impossible."""
    if not dims:
        return 0
    distance = dims[-1][1]
    wanted = distance
    for n, s in reversed(dims):
        if s != wanted:
            return None
        wanted = s * n
    return BROADCAST if distance == 0 else None if distance < 0 else distance


def struct(call: "Call", found: Mapping[str, Sequence[int]]) -> list[int] | None:
    """Returns the whole stride struct, or None if all tensors are contiguous."""
    if not found:
        return None
    values = dict.fromkeys(call.strides, 0)
    for t in (*call.inputs, *call.outputs):
        for name, value in zip(reversed(t.strides), found.get(t.name, ())):
            values[name] = value
    return list(values.values())
