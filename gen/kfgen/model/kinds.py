# SPDX-License-Identifier: Apache-2.0
"""Kinds of tensors: their elements, which of them may share memory, how kernels access them.

A family lists its kinds (`Family.kinds`). The checks of a call read them from the codes of
core/operand.h, which have a character each for extent, overlap class and access.
"""

from dataclasses import dataclass, replace

# Extents of core/operand.h. GIVEN: the family's host code gives the number of elements.
ELEMENTS, HALVES, COLUMNS, ONE, ROWS, PLANES, SHARED, GROUPS, GIVEN = "ehc1rpsg."
NONE = "."  # overlap class of tensors that share no memory with an input


@dataclass(frozen=True)
class Kind:
    """A kind of tensor."""

    name: str
    extent: str = GIVEN  # number of elements
    # Overlap class, a letter: an output may have the pointer of an input of the same class, because
    # the thread that writes an element has read it. NONE: no input.
    overlap: str = NONE
    vectors: bool = True  # kernels access it by vectors if all such tensors are aligned
    whole: bool = False  # has the result's shape: an entry needs one if the family has such kinds
    parts: int = 0  # values per element, each of which has a name; 0: one, the operand's
    index: bool = False  # expressions do not read the operand
    small: bool = False  # smaller than the result
    per_row: bool = False  # has one value per row
    weight: bool = False  # rows or batches share it: its gradient is reduced
    operand: bool = True  # False: entries cannot give it to an operand

    def but(self, **changes):
        """Returns the kind with other properties."""
        return replace(self, **changes)


ELEM = Kind("elem", ELEMENTS, "e", whole=True)
HALF = Kind("half", HALVES, "h", whole=True, parts=2)
ROW = Kind("row", COLUMNS, small=True, weight=True)
CHANNEL = Kind("channel", COLUMNS, small=True, weight=True)
GROUP = Kind("group", GROUPS, vectors=False, small=True, weight=True)
SHARED_BY_HEADS = Kind("shared", SHARED, small=True)
PER_ROW = Kind("per_row", ROWS, vectors=False, small=True, per_row=True)
# Values per row of layouts whose rows are parts of tensors with more dimensions.
PER_PLANE, PER_QUERY, PER_GROUP, PER_CHANNEL = (
    Kind(f"per_{word}", PLANES, vectors=False, small=True, per_row=True, operand=False)
    for word in ("plane", "query", "group", "channel")
)
STATE = Kind("one", ONE, vectors=False, operand=False)  # seed and offset of `_state` functions

OUT, NULLABLE, UNREAD, VECTORS = 1, 2, 4, 8  # flags of core/operand.h


def code(size, kind, flags, alias):
    """Encodes a tensor for core/operand.h.

    Args:
        size: bytes of an element.
        flags: OUT, NULLABLE and UNREAD.
        alias: index, from 1, of the tensor whose pointer the output may have; 0: none.
    """
    flags |= VECTORS if kind.vectors else 0
    digits = (chr(ord("0") + n) for n in (flags, alias))
    return f"{size}{kind.extent}{kind.overlap}{''.join(digits)}"
