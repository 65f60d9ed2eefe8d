# SPDX-License-Identifier: Apache-2.0
"""Operations of a chain: what reads, what computes, what writes."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Binary:
    """An operation with a number: value <sign> number."""

    number: float
    sign = ""

    def __post_init__(self) -> None:
        where = f"kf.fkl.{type(self).__name__}"
        if isinstance(self.number, bool) or not hasattr(self.number, "__float__"):
            raise TypeError(f"{where}: {type(self.number).__name__} is given, expected a number")
        if not math.isfinite(self.number):
            raise ValueError(f"{where}: {self.number} is given, expected a finite number")


class Mul(Binary):
    """value * number"""

    sign = "*"


class Add(Binary):
    """value + number"""

    sign = "+"


class Sub(Binary):
    """value - number"""

    sign = "-"


class Div(Binary):
    """value / number"""

    sign = "/"


@dataclass(frozen=True, eq=False)
class TensorRead:
    """Reads a kernel_fusion.fkl.Tensor: the first operation of a chain."""

    tensor: Any


@dataclass(frozen=True, eq=False)
class TensorWrite:
    """Writes a kernel_fusion.fkl.Tensor: the last operation of a chain."""

    tensor: Any
