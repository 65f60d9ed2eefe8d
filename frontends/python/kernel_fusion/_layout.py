# SPDX-License-Identifier: Apache-2.0
"""The structs of include/kf/runtime/layout.h, filled from rules and extents."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kfgen import paths
from kfgen.model import shapes

if TYPE_CHECKING:
    from kernel_fusion._sizes import Extent, Rules

# layout.h and the headers that it includes.
HEADERS = tuple(
    paths.INCLUDE / "kf" / name
    for name in ("runtime/layout.h", "core/extent.h", "core/host.h", "core/config.h")
)
SIZES, EXTENTS, DIMS = shapes.SIZES, shapes.EXTENTS, 80  # KFI_LAYOUT_*
VALUES = SIZES + 16
COUNTS = {"before axis": -1, "rest": -2, None: -3}  # None: a size that the call gives
NEVER, ALONE, ALWAYS = range(3)  # whether a tensor's innermost level must be contiguous
INT, LONG = ctypes.c_int32, ctypes.c_int64


class ExtentOf(ctypes.Structure):
    """kfi_layout_extent."""

    _fields_ = [(n, INT) for n in ("size", "factor", "addend", "code")]


class TensorOf(ctypes.Structure):
    """kfi_layout_tensor."""

    _fields_ = [*[(n, INT) for n in ("extents", "levels", "field")], ("extent", ExtentOf * EXTENTS)]


class RulesOf(ctypes.Structure):
    """kfi_layout_rules."""

    _fields_ = [
        ("sizes", INT),
        ("count", INT * SIZES),
        ("divides", INT * SIZES),
        *[(n, INT) for n in ("least", "has_axis", "first_says", "joined")],
        ("code", ctypes.POINTER(INT)),
        ("defaults", ctypes.POINTER(INT)),
        ("beside", ctypes.POINTER(INT)),
    ]


def rules(
    of: "Rules",
    codes: Sequence[int],
    integers: Sequence[str] = (),
    beside: Mapping[str, str] | None = None,
) -> RulesOf:
    """Returns the struct of an op's rules, with the codes of all its extents.

    Args:
        beside: {size: the size that its 0 stands for in the shape struct}.
    """
    defaults = [of.defaults.get(name, 0) for name in integers]
    sizes, every = list(of.sizes), of.sizes.values()
    counts: list[Any] = [rule.get("dims") for rule in every]
    divides = [sizes.index(rule["divides"]) if "divides" in rule else -1 for rule in every]
    others = shapes.places(sizes, beside or {})
    return RulesOf(
        len(sizes),
        (INT * SIZES)(*[COUNTS.get(count, count) for count in counts]),
        (INT * SIZES)(*divides),
        of.least,
        bool(of.before),
        False,
        ALWAYS if of.arguments else ALONE if of.has_axis else NEVER,
        (INT * max(len(codes), 1))(*codes),
        (INT * len(defaults))(*defaults) if of.defaults else None,
        (INT * len(others))(*others) if others else None,
    )


def tensor(
    extents: Sequence["Extent"],
    sizes: Sequence[str],
    integers: Sequence[str],
    codes: list[int],
    levels: int = 0,
    field: int = 0,
) -> TensorOf:
    """Returns the struct of a tensor; appends the codes of its extents."""
    found = shapes.fields(extents, sizes, [*sizes, *integers], codes)
    return TensorOf(
        len(found), levels, field, (ExtentOf * EXTENTS)(*[ExtentOf(*fields) for fields in found])
    )
