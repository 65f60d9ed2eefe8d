# SPDX-License-Identifier: Apache-2.0
"""Sizes of a call and shapes of its tensors, for any number of dimensions.

The Python evaluator of kfgen's rules (gen/kfgen/model/shapes.py); include/kf/runtime/layout.h is
the one in C. It is independent of frameworks: dimensions may be symbolic, and torch.compile traces
it.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kfgen.model import shapes as data

Shape = Sequence[int]
Extent = Any  # a name, a number, or [operator, left, right]
Line = tuple[int, str, int]  # factor * size + addend
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


class Shaped(Protocol):
    """A tensor argument."""

    @property
    def name(self) -> str: ...

    @property
    def extents(self) -> Sequence[Extent]: ...

    @property
    def lines(self) -> Sequence[Line | None]:
        """The extents that determine a size (`lines`); None for other expressions."""


class ShapeError(ValueError):
    """Shape error of a tensor; the caller adds the op's name."""

    def __init__(self, tensor: str, shape: Shape, expected: str):
        super().__init__(f"{tensor} has the shape {tuple(shape)}, expected {expected}")


def lines(extents: Sequence[Extent], sizes: Sequence[str]) -> tuple[Line | None, ...]:
    """Returns the extents of a tensor as factor * size + addend."""
    found = [data.linear(extent) for extent in extents]
    return tuple(line if line and line[1] in sizes else None for line in found)


def value(extent: Extent, names: Mapping[str, int]) -> int:
    """Evaluates an extent; `/` rounds towards minus infinity."""
    if isinstance(extent, str):
        return names[extent]
    if isinstance(extent, int):
        return extent
    sign, left, right = extent
    found: int = OPERATORS[sign](value(left, names), value(right, names))
    return found


class Rules:
    """How tensors' dimensions determine the sizes of an op's calls.

    Args:
        sizes: {size: rule} in the order of the size arguments.
        axis: the default.
        defaults: {integer: the value that its 0 stands for}.
    """

    def __init__(
        self,
        sizes: Mapping[str, Mapping[str, Any]],
        axis: int | None,
        defaults: Mapping[str, int] | None = None,
    ):
        self.sizes, self.axis, self.defaults = sizes, axis, defaults or {}
        self.least = data.least(axis)  # minimum number of dimensions
        # Sizes that the call gives: {size: name of the argument}.
        self.arguments = {s: rule["argument"] for s, rule in sizes.items() if "argument" in rule}
        # Sizes that must divide another one: {size: the other}.
        self.divisors = {s: rule["divides"] for s, rule in sizes.items() if "divides" in rule}
        # Number of dimensions of each size that does not depend on a call.
        self.count = {s: rule.get("dims", 1) for s, rule in sizes.items()}
        self.before = [s for s, count in self.count.items() if count == "before axis"]
        self.fixed = {s: count for s, count in self.count.items() if isinstance(count, int)}
        # True if callers choose the axis; otherwise it is the default, or the channels' one.
        self.has_axis = bool(self.before) and not self.arguments


class Layout:
    """Sizes of a call and shapes of its tensors.

    Args:
        tensors: the tensors that determine the sizes, in the order of the rules. Each has the
            dimensions of the rules; the rest are those of at most one size that no earlier tensor
            has. If several tensors have a size, the last one gives its dimensions.
        shapes: their shapes; None for absent tensors. Sizes that no other tensor has are 0 then.
        numbers: values of arguments by name: those of rules, and integers that extents read.

    Attributes:
        axis: counted from the front.
        dims: {size: its dimensions}.
        values: {size or argument: value}.
    """

    def __init__(
        self,
        rules: Rules,
        tensors: Sequence[Shaped],
        shapes: Sequence[Shape | None],
        axis: int = -1,
        numbers: Mapping[str, int] | None = None,
    ):
        self.rules = rules
        there = [(t, shape) for t, shape in zip(tensors, shapes) if shape is not None]
        tensors, present = [t for t, _ in there], [shape for _, shape in there]
        self.values = dict(numbers or {})
        for name, default in rules.defaults.items():
            if name in self.values and self.values[name] == 0:
                self.values[name] = default
        self.axis = self._axis(tensors[0].name, present[0], axis)
        count = self._counts(tensors, present)
        self.dims = self._dims(tensors, present, count)
        for size, own in self.dims.items():
            n = 1
            for d in own:
                n = n * d
            self.values[size] = n

    def _axis(self, name: str, shape: Shape, axis: int) -> int:
        rules, rank = self.rules, len(shape)
        if rank < rules.least:
            raise ShapeError(name, shape, f"at least {rules.least} dimensions")
        if rules.has_axis and not -rank <= axis < rank:
            raise ShapeError(name, shape, f"a dimension {axis}, the axis")
        return (axis if rules.has_axis else rules.axis or 0) % max(rank, 1)

    def _counts(self, tensors: Sequence[Shaped], shapes: Sequence[Shape]) -> dict[str, int]:
        """Returns the number of dimensions of each size."""
        count = dict(self.rules.fixed)
        for size in self.rules.before:
            count[size] = self.axis
        for t, shape in zip(tensors, shapes):
            known, unknown = 0, ""
            for line in t.lines:
                if line and line[1] not in count:
                    unknown = line[1]
                else:
                    known += count[line[1]] if line else 1
            left = len(shape) - known
            if left < 0 or (left and not unknown):
                first = tensors[0].name
                beside = f" beside {first} of the shape {tuple(shapes[0])}"
                raise ShapeError(
                    t.name,
                    shape,
                    f"{'at least ' if unknown else ''}{known} dimensions"
                    f"{beside if t.name != first else ''}",
                )
            if unknown:
                count[unknown] = left
        return count

    def _dims(
        self, tensors: Sequence[Shaped], shapes: Sequence[Shape], count: Mapping[str, int]
    ) -> dict[str, tuple[int, ...]]:
        """Returns the dimensions of each size."""
        known: dict[str, tuple[int, ...]] = {
            size: (self.values[name],) for size, name in self.rules.arguments.items()
        }
        for t, shape in zip(reversed(tensors), reversed(shapes)):
            at = 0
            for line in t.lines:
                end = at + (count[line[1]] if line else 1)
                if line and line[1] not in known:
                    factor, size, addend = line
                    own: tuple[int, ...] = tuple(shape[at:end])
                    if factor != 1 or addend:
                        own = _solved(t.name, shape, at, line, len(tensors) == 1)
                    known[size] = own
                at = end
        # No tensor has a size without dimensions; absent tensors alone have those of 0.
        none: tuple[int, ...] = (0,)
        return {
            size: known.get(size, none * n) if n else ()
            for size, n in ((size, count[size]) for size in self.rules.sizes)
        }

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of all sizes, one size after the other."""
        given = self.rules.arguments
        return tuple(n for size, own in self.dims.items() if size not in given for n in own)

    @property
    def sizes(self) -> list[int]:
        """Values of the size arguments, in order."""
        return [self.values[size] for size in self.rules.sizes]

    def parts(self, t: Shaped) -> list[tuple[int, ...]]:
        """Returns the dimensions of each extent of a tensor."""
        found = []
        for i, line in enumerate(t.lines):
            plain = line and line[0] == 1 and not line[2]
            found.append(self.dims[line[1]] if line and plain else (self._value(t, i),))
        return found

    def of(self, t: Shaped) -> tuple[int, ...]:
        """Returns a tensor's shape."""
        return tuple(n for own in self.parts(t) for n in own)

    def flat(self, t: Shaped) -> tuple[int, ...]:
        """Returns a tensor's shape in the function's arguments: one dimension per extent."""
        return tuple(self._value(t, i) for i in range(len(t.extents)))

    def _value(self, t: Shaped, i: int) -> int:
        """Evaluates an extent of a tensor."""
        extent, line = t.extents[i], t.lines[i]
        if line and line[2] >= 0:  # sizes are not negative
            return value(extent, self.values)
        try:
            n = value(extent, self.values)
        except ZeroDivisionError:
            raise ShapeError(t.name, (), f"no division by 0 in {data.text(extent)}") from None
        if n < 0:
            raise ShapeError(t.name, (n,), f"{data.text(extent)} of at least 0")
        return n


def _solved(name: str, shape: Shape, at: int, line: Line, alone: bool) -> tuple[int]:
    """Returns the size of a dimension factor * size + addend."""
    factor, _, addend = line
    n = shape[at] - addend
    if addend > 0 and n < 0:
        raise ShapeError(name, shape, f"a dimension {at} of at least {addend}")
    if n % factor:
        multiple = f"a dimension {at} that is a multiple of {factor}"
        half = alone and line[0] == 2 and at == len(shape) - 1 and not addend
        raise ShapeError(
            name,
            shape,
            "an even last dimension: two halves"
            if half
            else multiple + (f" plus {addend}" if addend else ""),
        )
    return (n // factor,)
