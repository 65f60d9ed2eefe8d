# SPDX-License-Identifier: Apache-2.0
"""Sizes inferred from several tensors, such as those of a product."""

from collections.abc import Mapping

from kernel_fusion._table import Call, Op, Shape, ShapeError


def elements(op: Op, call: Call, shapes: Mapping[str, Shape]) -> tuple[tuple[int, ...], int]:
    """Infers all sizes from the tensors of `call.shaped_by`.

    Each tensor has one dimension per size, except for one size of any number of dimensions, which
    takes the rest.

    Returns:
        (dimensions of all sizes, one size after the other; index of the first dimension after
            those of the first size)
    """
    count = {size: 1 for size, what in op.parts.items() if isinstance(what, int)}
    parts = {
        t.name: [extent.rpartition(" * ") for extent in t.shape]
        for t in call.inputs
        if t.name in call.shaped_by
    }
    of = {name: [size for *_, size in extents] for name, extents in parts.items()}
    for name in call.shaped_by:
        shape, unknown = shapes[name], [size for size in of[name] if size not in count]
        left = len(shape) - sum(count[size] for size in of[name] if size in count)
        if left < 0 or (left and not unknown):
            first = call.shaped_by[0]
            beside = f" beside {first} of the shape {tuple(shapes[first])}" if name != first else ""
            raise ShapeError(
                name,
                shape,
                f"{'at least ' if unknown else ''}{len(shape) - left} dimensions{beside}",
            )
        count |= {size: left for size in unknown}
    known: dict[str, tuple[int, ...]] = {}
    for name in reversed(call.shaped_by):
        at = 0
        for factor, _, size in parts[name]:
            found, times = shapes[name][at : at + count[size]], int(factor or 1)
            if any(n % times for n in found):
                raise ShapeError(
                    name, shapes[name], f"a dimension {at} that is a multiple of {times}"
                )
            known.setdefault(size, tuple(n // times for n in found))
            at += count[size]
    return tuple(n for size in call.sizes for n in known[size]), count[call.sizes[0]]
