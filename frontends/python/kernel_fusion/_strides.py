# SPDX-License-Identifier: Apache-2.0
"""Strides of a framework's tensor as a launcher takes them: one number for each size in front of what lies side by side."""

from collections.abc import Mapping, Sequence

from kernel_fusion._table import Call, Layout, Tensor

BROADCAST = -(2**63)  # KF_BROADCAST: a distance of 0


def of(
    t: Tensor, layout: Layout, shape: Sequence[int], strides: Sequence[int]
) -> tuple[int, ...] | None:
    """A tensor's fields in the struct of strides, those of its outermost size first, 0 for dense; empty where it has none; None: it must be made
    contiguous. strides: in elements."""
    if 0 in shape or _dense(shape, strides):
        return (0,) * len(t.strides)
    if not t.strides:
        return None
    found: list[int] = []
    dims = _parts(t, layout)
    start = len(t.strides)
    if layout.op.has_groups or (
        layout.op.has_axis and all(shape[d] == 1 for part in dims[start:] for d in part)
    ):
        start -= 1  # a group's channels lie side by side, and the elements of an axis behind which there is nothing
    own = [d for part in dims[start:] for d in part]
    if not _dense([shape[d] for d in own], [strides[d] for d in own]):
        return None
    for part in dims[:start]:
        one = _collapsed([(shape[d], strides[d]) for d in part if shape[d] != 1])
        if one is None:
            return None
        found.append(one)
    return (*found, *[0] * (len(t.strides) - start))


def _parts(t: Tensor, layout: Layout) -> list[range]:
    """A tensor's own dimensions, by the extents that they are."""
    found, at = [], 0
    for extent in t.shape:
        count = len(layout.dims[extent.rpartition(" * ")[2]])  # "2 * cols" is one of cols
        found.append(range(at, at + count))
        at += count
    return found


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    wanted = 1
    for n, s in zip(reversed(shape), reversed(strides)):
        if n != 1 and s != wanted:
            return False
        wanted *= n
    return True


def _collapsed(dims: Sequence[tuple[int, int]]) -> int | None:
    """The distance of neighbours along some dimensions taken as one."""
    if not dims:
        return 0
    distance = dims[-1][1]
    wanted = distance
    for n, s in reversed(dims):
        if s != wanted:
            return None
        wanted = s * n
    return BROADCAST if distance == 0 else None if distance < 0 else distance


def struct(call: Call, found: Mapping[str, Sequence[int]]) -> list[int] | None:
    """The whole struct, from the fields of some tensors; None: all is dense."""
    if not found:
        return None
    values = dict.fromkeys(call.strides, 0)
    for t in (*call.inputs, *call.outputs):
        for name, value in zip(reversed(t.strides), found.get(t.name, ())):
            values[name] = value
    return list(values.values())
