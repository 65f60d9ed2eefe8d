# SPDX-License-Identifier: Apache-2.0
"""Contexts, streams and functions with a `stream` argument, as in the C runtime (kf/runtime.h).

They run on the CPU only, where a call is complete when it returns: kf.fused_bias_relu(x, bias,
stream=stream).
"""

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
    """A device: -1 is the CPU. GPU calls use the stream of the arrays' library instead of a
    context.

    Args:
        device_id: -1

    Raises:
        NotImplementedError: device_id is the number of a GPU.
        ValueError: device_id is below -1.
    """

    def __init__(self, device_id: int = CPU):
        self.device_id = _whole("kf.Context", "device_id", device_id)
        if self.device_id < CPU:
            raise ValueError(
                f"kf.Context: device_id is {device_id}, expected -1 (the CPU) or a GPU's number"
            )
        if self.device_id > CPU:
            why = (
                "a GPU call runs on PyTorch's or CuPy's current stream"
                if cuda_available()
                else "no CUDA device was found"
            )
            raise NotImplementedError(
                f"kf.Context: device_id is {device_id}, expected -1 (the CPU): {why}"
            )

    def synchronize(self) -> None:
        """Waits until all work of the context's streams is complete."""

    def __repr__(self) -> str:
        return f"kf.Context(device_id={self.device_id})"


class Stream:
    """A queue of work of a context, executed in order.

    Args:
        context: a kf.Context
        priority: a greater number is a higher priority; ignored on the CPU
    """

    def __init__(self, context: Context, priority: int = 0):
        if not isinstance(context, Context):
            raise TypeError(
                f"kf.Stream: context is {type(context).__name__}, expected a kf.Context"
            )
        self.context, self.priority = context, _whole("kf.Stream", "priority", priority)

    def synchronize(self) -> None:
        """Waits until all work of the stream is complete."""

    def __repr__(self) -> str:
        return f"kf.Stream({self.context!r}, priority={self.priority})"


def _name(name: str) -> str | None:
    """Returns the kf.ops name of a function whose name may begin with fused_."""
    known = (*_table.functions(), *_table.aliases(), *_dispatch.composed())
    return next((n for n in (name, name.removeprefix(PREFIX)) if n in known), None)


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """Makes kf.fused_<name>: the function of kf.ops with a `stream` argument."""
    found = _name(name)
    if found is None:
        raise AttributeError(
            f"module 'kernel_fusion' has no attribute '{name}': kf.ops has neither it nor "
            f"`{name.removeprefix(PREFIX)}`"
        )
    of_ops = getattr(ops, found)

    def fused(*args: Any, stream: Stream | None = None, **kwargs: Any) -> Any:
        if stream is not None and not isinstance(stream, Stream):
            raise TypeError(f"kf.{name}: stream is {type(stream).__name__}, expected a kf.Stream")
        return of_ops(*args, **kwargs)

    fused.__name__ = fused.__qualname__ = name
    fused.__module__ = "kernel_fusion"
    fused.__doc__ = (
        f"kf.ops.{found} on a stream (a kf.Stream; None is the default stream).\n\n{of_ops.__doc__}"
    )
    return fused


def names() -> list[str]:
    """Names of all functions, one for spellings that differ by fused_ only."""
    known = (*_table.functions(), *_table.aliases(), *_dispatch.composed())
    return sorted({PREFIX + n.removeprefix(PREFIX) for n in known})
