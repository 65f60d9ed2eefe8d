# SPDX-License-Identifier: Apache-2.0
"""Contexts and streams, as C programs have them (kf/runtime.h), and the functions that take a stream: kf.fused_bias_relu(x, bias, stream=stream).
Of the CPU, where what was called is done when its call returns."""

import functools
from collections.abc import Callable
from typing import Any

from kernel_fusion import _dispatch, _table, ops
from kernel_fusion._info import cuda_available

PREFIX = "fused_"
CPU = -1


def _whole(where: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{where}: {name} is {type(value).__name__}, expected a whole number")
    found: int = value.__index__()
    return found


class Context:
    """A device: the CPU, -1. On a GPU there are no contexts in Python: calls go to the stream of whoever made the array."""

    def __init__(self, device_id: int = CPU):
        self.device_id = _whole("kf.Context", "device_id", device_id)
        if self.device_id < CPU:
            raise ValueError(
                f"kf.Context: device_id is {device_id}, expected -1 (the CPU) or a GPU's number"
            )
        if self.device_id > CPU:
            why = (
                "on a GPU a call goes to PyTorch's or CuPy's current stream"
                if cuda_available()
                else "no CUDA device answers"
            )
            raise NotImplementedError(
                f"kf.Context: device_id is {device_id}, expected -1 (the CPU): {why}"
            )

    def synchronize(self) -> None:
        """Waits for all that its streams were given."""

    def __repr__(self) -> str:
        return f"kf.Context(device_id={self.device_id})"


class Stream:
    """Work of a context, done in its order. priority: greater is higher; of the CPU it changes nothing."""

    def __init__(self, context: Context, priority: int = 0):
        if not isinstance(context, Context):
            raise TypeError(
                f"kf.Stream: context is {type(context).__name__}, expected a kf.Context"
            )
        self.context, self.priority = context, _whole("kf.Stream", "priority", priority)

    def synchronize(self) -> None:
        """Waits for all that it was given."""

    def __repr__(self) -> str:
        return f"kf.Stream({self.context!r}, priority={self.priority})"


def _name(name: str) -> str | None:
    """What kf.ops calls a function whose name begins with fused_."""
    known = (*_table.functions(), *_table.aliases(), *_dispatch.composed())
    return next((n for n in (name, name.removeprefix(PREFIX)) if n in known), None)


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """kf.fused_<name>: the function of kf.ops, which takes a stream besides."""
    found = _name(name)
    if found is None:
        raise AttributeError(
            f"module 'kernel_fusion' has no attribute '{name}': kf.ops has neither it nor `{name.removeprefix(PREFIX)}`"
        )
    of_ops = getattr(ops, found)

    def fused(*args: Any, stream: Stream | None = None, **kwargs: Any) -> Any:
        if stream is not None and not isinstance(stream, Stream):
            raise TypeError(f"kf.{name}: stream is {type(stream).__name__}, expected a kf.Stream")
        return of_ops(*args, **kwargs)

    fused.__name__ = fused.__qualname__ = name
    fused.__module__ = "kernel_fusion"
    fused.__doc__ = (
        f"kf.ops.{found}; stream: a kf.Stream, None: its context's default one.\n\n{of_ops.__doc__}"
    )
    return fused


def names() -> list[str]:
    """All of them; of two spellings that differ by fused_ alone, one."""
    known = (*_table.functions(), *_table.aliases(), *_dispatch.composed())
    return sorted({PREFIX + n.removeprefix(PREFIX) for n in known})
