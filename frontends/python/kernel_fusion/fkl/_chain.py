# SPDX-License-Identifier: Apache-2.0
"""Makes one op of a chain of operations, by kf.fuse."""

from collections.abc import Callable, Sequence
from typing import Any

from kernel_fusion._fuse import fuse
from kernel_fusion.fkl.operations import Binary

MOST_SCALARS = 8  # limit of an op; further numbers become constants of the kernel


def compose(where: str, operations: Sequence[Any]) -> Callable[..., Any]:
    """Returns a function of one array, and of `out`.

    Chains of the same operations share a kernel, whatever their first eight numbers are.

    Raises:
        TypeError: an operation is none of Mul, Add, Sub, Div.
    """
    formula, scalars = "x", {}
    for i, operation in enumerate(operations):
        if not isinstance(operation, Binary):
            raise TypeError(
                f"{where}: operation {i + 1} is {type(operation).__name__}, expected Mul, Add, Sub "
                f"or Div"
            )
        name = f"s{i}" if i < MOST_SCALARS else f"({float(operation.number)!r})"
        if i < MOST_SCALARS:
            scalars[name] = float(operation.number)
        formula = f"({formula} {operation.sign} {name})"
    fused = fuse(formula, x="elem", **dict.fromkeys(scalars, 1.0))

    def chain(x: Any, **more: Any) -> Any:
        return fused(x, **scalars, **more)

    return chain
