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
    return _OF_OPS["gelu"](x, approximate=approximate)


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

        plain = name.removeprefix("_plain_")
        return _functions.lookup(name) if plain == name else _functions.plain(plain)


_OF_OPS = of_ops.rebound(of_ops, _Ops()) | of_ops.rebound(_flash, _Ops())
_OWN: tuple[Callable[..., Any], ...] = (gelu, softmax, log_softmax)
FUNCTIONS: dict[str, Callable[..., Any]] = {f.__name__: f for f in _OWN}
FUNCTIONS |= {f.__name__: _OF_OPS[f.__name__] for f in _flash.FUNCTIONS}
for _f in _OWN:
    _lines = (of_ops.FUNCTIONS[_f.__name__].__doc__ or "").splitlines()
    _f.__doc__ = "\n".join(line for line in _lines if " out:" not in line)
