# SPDX-License-Identifier: Apache-2.0
"""Functions that take more arguments than their ops, as those of kf.ops do."""

from collections.abc import Callable
from typing import Any

from kernel_fusion import _block_masks, _flash
from kernel_fusion import _composed as of_ops

from kernel_fusion_tensorflow._attention import scaled_dot_product_attention


def gelu(x: Any, *, approximate: str = "none") -> Any:
    return _OF_OPS["gelu"](x, approximate=approximate)


def softmax(x: Any, dim: int = -1, dtype: Any = None, *, axis: int | None = None) -> Any:
    return _OF_OPS["softmax"](_tensor("softmax", x), dim, dtype, axis=axis)


def log_softmax(x: Any, dim: int = -1, dtype: Any = None, *, axis: int | None = None) -> Any:
    return _OF_OPS["log_softmax"](_tensor("log_softmax", x), dim, dtype, axis=axis)


def matmul(a: Any, b: Any, *, alpha: float = 1.0) -> Any:
    given = [_tensor("matmul", t, name) for name, t in (("a", a), ("b", b))]
    for name, t in zip("ab", given):
        if t.shape.rank is None:
            raise ValueError(f"kf.matmul: {name} has an unknown number of dimensions, expected one")
    return _OF_OPS["matmul"](*given, alpha=alpha)


def prelu_bias(x: Any, weight: Any = None, bias: Any = None, *, alpha: Any = None) -> Any:
    return _OF_OPS["prelu_bias"](x, weight, bias, alpha=alpha)


def _tensor(function: str, x: Any, name: str = "x") -> Any:
    from kernel_fusion_tensorflow import _functions  # which imports this module

    return _functions.tensor(f"kf.{function}", name, x)


class _Ops:
    """The functions of this module, as kf.ops has them; `of` is that of kf.jax."""

    @staticmethod
    def of(fused: Any) -> Callable[..., Any]:
        from kernel_fusion_tensorflow import _functions  # which imports this module

        return _functions.make(fused.op, "none")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        from kernel_fusion_tensorflow import _functions  # which imports this module

        plain = name.removeprefix("_plain_")
        if plain == name:
            return _functions.lookup(name)
        own, _, label = plain.partition("__")
        return _functions.plain(own, label)


_OF_OPS = of_ops.rebound(of_ops, _Ops()) | of_ops.rebound(_flash, _Ops())
_OWN: tuple[Callable[..., Any], ...] = (gelu, softmax, log_softmax, matmul, prelu_bias)
FUNCTIONS: dict[str, Callable[..., Any]] = {f.__name__: f for f in _OWN}
FUNCTIONS |= {f.__name__: _OF_OPS[f.__name__] for f in _flash.FUNCTIONS}
FUNCTIONS |= {f.__name__: f for f in _block_masks.FUNCTIONS}
FUNCTIONS[scaled_dot_product_attention.__name__] = scaled_dot_product_attention
for _f in _OWN:
    _lines = (of_ops.FUNCTIONS[_f.__name__].__doc__ or "").splitlines()
    _f.__doc__ = "\n".join(line for line in _lines if " out:" not in line)
