# SPDX-License-Identifier: Apache-2.0
"""kf's ops by name: `kf.ops.layer_norm_gelu(x, weight, bias)`, `kf.ops.call("layer_norm", x, weight, bias, activation="gelu")`. A function
is made when it is first asked for. Nothing but them is here: an op called `sum` would stand in the way of code that adds something up."""

import sys
from collections.abc import Callable
from typing import Any

from kernel_fusion._dispatch import lookup, names
from kernel_fusion._dispatch import plain as _plain
from kernel_fusion._dispatch import word as _word

__all__ = ["call"]
_self = sys.modules[__name__]


def __getattr__(name: str) -> Callable[..., Any]:
    op, _, label = name.removeprefix("_plain_").partition(
        "__"
    )  # _plain_matmul_nn__matmul: as a function of several calls has it
    found = globals()[name] = _plain(op, label) if name.startswith("_plain_") else lookup(name)
    return found


def call(name: str, *args: Any, activation: str | None = None, **kwargs: Any) -> Any:
    """An op by its name and, where it has one, its activation: call("layer_norm", x, weight, bias, activation="gelu")."""
    return getattr(_self, _word(name, activation))(*args, **kwargs)


def __dir__() -> list[str]:
    return names()
