# SPDX-License-Identifier: Apache-2.0
"""kf's ops by name: `kf.ops.layer_norm_gelu(x, weight, bias)`, `kf.ops.call("layer_norm", x, weight, bias, activation="gelu")`. A function
is made when it is first asked for. Nothing but them is here: an op called `sum` would stand in the way of code that adds something up."""

from collections.abc import Callable
from typing import Any

from kernel_fusion._dispatch import call, lookup, names

__all__ = ["call"]


def __getattr__(name: str) -> Callable[..., Any]:
    found = globals()[name] = lookup(name)
    return found


def __dir__() -> list[str]:
    return names()
