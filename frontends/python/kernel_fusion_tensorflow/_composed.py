# SPDX-License-Identifier: Apache-2.0
"""Functions that take more arguments than their ops, as those of kf.ops do."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from kernel_fusion import _arguments, _flash
from kernel_fusion import _composed as of_ops


def _plain(name: str) -> Callable[..., Any]:
    """Returns the function of an op."""
    from kernel_fusion_tensorflow import _functions  # which imports this module

    return _functions.plain(name)


def gelu(x: Any, *, approximate: str = "none") -> Any:
    """x * Phi(x), where Phi is the cumulative distribution function of the normal distribution.

    Args:
        x: [...], float32 float16 bfloat16 float64
        approximate: "none", or "tanh" for the tanh approximation

    Returns:
        out [...]

    Raises:
        TypeError: the dtype has no function.
        ValueError: approximate is neither "none" nor "tanh".
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"kf.gelu: approximate is {approximate!r}, expected 'none' or 'tanh'")
    return _plain("gelu_tanh" if approximate == "tanh" else "gelu")(x)


def softmax(x: Any, dim: int = -1, dtype: Any = None, *, axis: int | None = None) -> Any:
    return _along("softmax", x, of_ops.dim_of("softmax", dim, axis), dtype)


def log_softmax(x: Any, dim: int = -1, dtype: Any = None, *, axis: int | None = None) -> Any:
    return _along("log_softmax", x, of_ops.dim_of("log_softmax", dim, axis), dtype)


def _along(name: str, x: Any, dim: int, dtype: Any) -> Any:
    """Calls a function over the last dimension for another one."""
    where = f"kf.{name}"
    x = _tensor(where, "x", x)
    if dtype is not None:
        x = tf.cast(x, _arguments.long_word(where, dtype))
    dim, rank = _arguments.whole(where, "dim", dim), x.shape.rank
    if rank is None:
        raise ValueError(f"{where}: the number of dimensions of x is not known, expected a number")
    last = max(rank, 1)
    if not -last <= dim < last:
        raise ValueError(
            f"{where}: dim is {dim}, expected a dimension of x, whose shape is {x.shape}"
        )
    if not rank:
        return tf.reshape(_plain(name)(tf.reshape(x, [1])), [])
    if dim % rank == rank - 1:
        return _plain(name)(x)
    order = list(range(rank))
    order[dim], order[-1] = order[-1], order[dim]
    return tf.transpose(_plain(name)(tf.transpose(x, order)), order)


def _tensor(where: str, name: str, x: Any) -> Any:
    from kernel_fusion_tensorflow import _functions  # which imports this module

    return _functions.tensor(where, name, x)


class _Ops:
    """The functions of this module, as kf.ops has them."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        from kernel_fusion_tensorflow import _functions  # which imports this module

        return _functions.lookup(name)


_FUNCTIONS = (gelu, softmax, log_softmax)
_FLASH = of_ops.rebound(_flash, _Ops())
FUNCTIONS: dict[str, Callable[..., Any]] = {f.__name__: f for f in _FUNCTIONS}
FUNCTIONS |= {f.__name__: _FLASH[f.__name__] for f in _flash.FUNCTIONS}
for _name in ("softmax", "log_softmax"):
    _lines = (of_ops.FUNCTIONS[_name].__doc__ or "").splitlines()
    FUNCTIONS[_name].__doc__ = "\n".join(line for line in _lines if " out:" not in line)
