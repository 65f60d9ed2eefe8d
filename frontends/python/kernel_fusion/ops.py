# SPDX-License-Identifier: Apache-2.0
"""kf's ops by name, such as kf.ops.layer_norm_gelu(x, weight, bias).

Functions are made on first access. The module defines nothing else, since names such as `sum`
would shadow builtins.
"""

import sys
from collections.abc import Callable
from typing import Any

from kernel_fusion._dispatch import lookup, names
from kernel_fusion._dispatch import plain as _plain
from kernel_fusion._dispatch import word as _word

__all__ = ["call"]
_self = sys.modules[__name__]


def __getattr__(name: str) -> Callable[..., Any]:
    # For functions of _composed.py, which name themselves in messages.
    """Makes the function `name`; _plain_matmul_nn__matmul is matmul_nn under the label "matmul"."""
    op, _, label = name.removeprefix("_plain_").partition("__")
    found = globals()[name] = _plain(op, label) if name.startswith("_plain_") else lookup(name)
    return found


def call(name: str, *args: Any, activation: str | None = None, **kwargs: Any) -> Any:
    """Calls an op by its name and, if it has one, its activation.

        kf.ops.call("layer_norm", x, weight, bias, activation="gelu")

    Args:
        name: name of an op or of a function
        *args: arguments of the function
        activation: name of an activation, or None
        **kwargs: keyword arguments of the function

    Returns:
        The function's results.

    Raises:
        ValueError: the op or the activation does not exist.
    """
    return getattr(_self, _word(name, activation))(*args, **kwargs)


def __dir__() -> list[str]:
    return names()
