# SPDX-License-Identifier: Apache-2.0
"""Contexts, streams and functions with a `stream` argument, as in the C runtime (kf/runtime.h).

    stream = kf.Stream(kf.Context(device_id=0), priority=1)
    out = kf.fused_bias_relu(x, bias, stream=stream)
    stream.synchronize()

`stream` may also be PyTorch's or CuPy's. As there, a call does not wait for work on other streams:
synchronise before a stream reads what another one writes. On the CPU a call is complete when it
returns.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from kernel_fusion import _dispatch, _driver, _gpu_array, _table, ops
from kernel_fusion._info import cuda_available

PREFIX = "fused_"
CPU = -1


def _whole(where: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{where}: {name} is {type(value).__name__}, expected a whole number")
    found: int = value.__index__()
    return found


class Context:
    """A device.

    Args:
        device_id: -1, the CPU, or the number of a GPU

    Raises:
        RuntimeError: device_id is the number of a GPU, and there is no GPU.
        ValueError: there is no such device.
    """

    def __init__(self, device_id: int = CPU):
        self.device_id = _whole("kf.Context", "device_id", device_id)
        if self.device_id < CPU:
            raise ValueError(
                f"kf.Context: device_id is {device_id}, expected -1 (the CPU) or a GPU's number"
            )
        if self.device_id > CPU and not cuda_available():
            raise RuntimeError(
                f"kf.Context: device_id is {device_id}, expected -1 (the CPU): no CUDA device was "
                f"found"
            )
        if self.device_id > CPU and self.device_id >= _driver.count():
            raise ValueError(
                f"kf.Context: device_id is {device_id}, expected less than {_driver.count()}, the "
                f"number of GPUs"
            )

    def synchronize(self) -> None:
        """Waits until all work of the device is complete."""
        if self.device_id > CPU:
            _driver.wait_all(self.device_id)

    def __repr__(self) -> str:
        return f"kf.Context(device_id={self.device_id})"


class Stream:
    """A queue of work of a context, executed in order. A GPU's streams live as long as the process.

    Args:
        context: a kf.Context
        priority: 0 is normal, a greater number is a higher priority; ignored on the CPU
    """

    def __init__(self, context: Context, priority: int = 0):
        if not isinstance(context, Context):
            raise TypeError(
                f"kf.Stream: context is {type(context).__name__}, expected a kf.Context"
            )
        self.context, self.priority = context, _whole("kf.Stream", "priority", priority)
        on_gpu = context.device_id > CPU
        self.handle = _driver.new_stream(context.device_id, self.priority) if on_gpu else None

    def synchronize(self) -> None:
        """Waits until all work of the stream is complete."""
        if self.handle is not None:
            _driver.wait(self.context.device_id, self.handle)

    def __repr__(self) -> str:
        return f"kf.Stream({self.context!r}, priority={self.priority})"


def _read(where: str, stream: Any) -> tuple[int | None, int]:
    """Returns (device, handle) of a stream of kf, PyTorch or CuPy; device None: the current one."""
    if isinstance(stream, Stream) and stream.handle is not None:
        return stream.context.device_id, stream.handle
    if hasattr(stream, "cuda_stream"):
        return stream.device.index, stream.cuda_stream
    if type(stream).__module__.startswith("cupy"):
        return (None if stream.device_id < 0 else stream.device_id), stream.ptr
    raise TypeError(
        f"{where}: stream is {type(stream).__name__}, expected a kf.Stream, or a stream of PyTorch "
        f"or CuPy"
    )


def _on_gpu(x: Any) -> bool:
    device = getattr(x, "device", None)
    return getattr(device, "type", None) == "cuda" or _gpu_array.is_one(x)


@contextlib.contextmanager
def current(where: str, stream: Any, values: Any) -> Iterator[None]:
    """Makes a GPU's stream current in the library of the arrays among `values`.

    Raises:
        TypeError: stream is no stream.
        ValueError: the arrays are on the CPU or on another device.
    """
    device, handle = _read(where, stream)
    arrays = [x for x in values if hasattr(x, "shape") and hasattr(x, "dtype")]
    first = next((x for x in arrays if _on_gpu(x)), None)
    if first is None:
        raise ValueError(f"{where}: stream is a GPU's, and no array is on a GPU")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        if device is not None and first.device.index != device:
            raise ValueError(f"{where}: stream is on cuda:{device}, an array on {first.device}")
        with torch.cuda.stream(torch.cuda.ExternalStream(handle, device=first.device)):
            yield
    elif type(first).__module__.startswith("cupy"):
        own = sys.modules["cupy"].cuda
        if device is not None and first.device.id != device:
            raise ValueError(f"{where}: stream is on cuda:{device}, an array on {first.device}")
        with own.Device(first.device.id), own.ExternalStream(handle, first.device.id):
            yield
    else:
        token = _gpu_array.running_on.set(handle or _gpu_array.LEGACY)
        try:
            yield
        finally:
            _gpu_array.running_on.reset(token)


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

    def fused(*args: Any, stream: Any = None, **kwargs: Any) -> Any:
        if stream is None or (isinstance(stream, Stream) and stream.handle is None):
            return of_ops(*args, **kwargs)
        with current(f"kf.{name}", stream, (*args, *kwargs.values())):
            return of_ops(*args, **kwargs)

    fused.__name__ = fused.__qualname__ = name
    fused.__module__ = "kernel_fusion"
    fused.__doc__ = (
        f"kf.ops.{found} on a stream (kf.Stream, or PyTorch's or CuPy's; None is the current "
        f"stream).\n\n{of_ops.__doc__}"
    )
    return fused


def names() -> list[str]:
    """Names of all functions, one for spellings that differ by fused_ only."""
    known = (*_table.functions(), *_table.aliases(), *_dispatch.composed())
    return sorted({PREFIX + n.removeprefix(PREFIX) for n in known})
