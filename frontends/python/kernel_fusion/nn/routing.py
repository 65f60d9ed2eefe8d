# SPDX-License-Identifier: Apache-2.0
"""Attention of models that call PyTorch's function, computed by kf."""

import collections
import contextlib
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernel_fusion import ops

NAME = "scaled_dot_product_attention"
PYTORCH = torch.nn.functional.scaled_dot_product_attention
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def _unsupported(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> str:
    """Says what kf does not compute; empty if it computes the call."""
    for name, t in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
        if t is not None and (t.is_nested or t.layout != torch.strided):
            return f"{name} is nested or sparse"
    if query.dtype not in DTYPES:
        return f"query has the dtype {query.dtype}"
    if query.device.type not in ("cpu", "cuda"):
        return f"query is on {query.device}"
    if attn_mask is not None and is_causal:
        return "attn_mask is given beside is_causal"
    return ""


class _Entered(threading.local):
    """This thread's mode, and the counters of its `with` statements, outermost first."""

    def __init__(self) -> None:
        self.mode: TorchFunctionMode | None = None
        self.calls: list[collections.Counter[str]] = []


_entered = _Entered()


def _attend(*args: Any, **kwargs: Any) -> Any:
    """Computes one call by kf or, where it cannot, by PyTorch."""
    try:
        why = _unsupported(*args, **kwargs)
        found = None if why else ops.scaled_dot_product_attention(*args, **kwargs)
    except (AttributeError, TypeError, ValueError) as e:
        found, why = None, str(e)
    # A checkpoint's forward on a GPU runs in a thread of PyTorch that has the mode but no counter.
    if not torch.compiler.is_compiling() and _entered.calls:
        _entered.calls[-1][why or "kf"] += 1
    return PYTORCH(*args, **kwargs) if why else found


def _nothing_overrides(tensors: Any) -> bool:
    return False


def _copy(function: Any, **names: Any) -> Callable[..., Any]:
    """Copies a function of PyTorch, which then does not hand its call to a mode."""
    tests = dict.fromkeys(("has_torch_function", "has_torch_function_unary"), _nothing_overrides)
    own = {**function.__globals__, **tests, **names}
    made = types.FunctionType(function.__code__, own, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_multi_head = torch.nn.functional.multi_head_attention_forward
# PyTorch's mode is off in a function that was handed to it: this one gets kf's function.
_routed_multi_head = _copy(_multi_head, **{NAME: _attend})
# A backward may compute a checkpointed forward again, for which the mode is entered again.
_BACKWARD = {f: _copy(f) for f in (torch.autograd.grad, torch.Tensor.backward)}


class _Mode(TorchFunctionMode):
    """Calls kf in place of PyTorch's function."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is PYTORCH:
            return _attend(*args, **kwargs or {})
        if func is _multi_head:
            return _routed_multi_head(*args, **kwargs or {})
        if func in _BACKWARD:
            with self:
                return _BACKWARD[func](*args, **kwargs or {})
        return func(*args, **kwargs or {})


class sdpa(contextlib.ContextDecorator):  # noqa: N801 it is called like a function
    """Context manager and decorator: torch.nn.functional.scaled_dot_product_attention is
    kf.ops.scaled_dot_product_attention inside.

    It holds in the thread that enters it, for modules that call the function, too:
    torch.nn.MultiheadAttention and torch.nn.TransformerEncoderLayer. Calls that kf does not
    compute, such as those of nested tensors, stay PyTorch's. `with ... as calls` counts both:
    {"kf": 12, "query is nested or sparse": 3}. Dropout draws other elements than PyTorch's does.
    """

    def __enter__(self) -> collections.Counter[str]:
        if not _entered.calls:  # a second mode would be handed the calls that stay PyTorch's
            _entered.mode = _Mode()
            _entered.mode.__enter__()  # type: ignore[no-untyped-call]
        _entered.calls.append(collections.Counter())
        return _entered.calls[-1]

    def __exit__(self, *error: Any) -> None:
        _entered.calls.pop()
        if _entered.mode is not None and not _entered.calls:
            mode, _entered.mode = _entered.mode, None
            mode.__exit__(*error)
