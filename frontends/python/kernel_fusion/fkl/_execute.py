# SPDX-License-Identifier: Apache-2.0
"""Streams, tensors and chains between two tensors."""

from typing import Any

import numpy as np

from kernel_fusion import _gpu_array, _streams
from kernel_fusion.fkl import _chain
from kernel_fusion.fkl.operations import TensorRead, TensorWrite


class Stream:
    """A queue of work. Chains of CPU tensors are complete when execute_operations returns.

    Args:
        priority: 0 is normal, a greater number is a higher priority; ignored on the CPU
    """

    def __init__(self, priority: int = 0):
        self.priority = priority
        self._streams: dict[int, _streams.Stream] = {}

    def of(self, device: int) -> _streams.Stream:
        """Returns the stream of a GPU, made on first use."""
        if device not in self._streams:
            context = _streams.Context(device)
            self._streams[device] = _streams.Stream(context, self.priority)
        return self._streams[device]

    def sync(self) -> None:
        """Waits until all chains of the stream are complete."""
        for stream in self._streams.values():
            stream.synchronize()


class Tensor:
    """Memory that chains read and write.

    Args:
        source: an array, whose memory is used: of NumPy, CuPy or PyTorch, or on a GPU; or a shape,
            for new memory on the CPU
        dtype: NumPy dtype of new memory
    """

    def __init__(self, source: Any, dtype: Any = np.float32):
        if isinstance(source, (int, tuple, list)) and not isinstance(source, bool):
            source = np.zeros(source, dtype)
        if not hasattr(source, "shape") or not hasattr(source, "dtype"):
            raise TypeError(
                f"kf.fkl.Tensor: source is {type(source).__name__}, expected an array or a shape"
            )
        if hasattr(source, "detach"):  # the chain writes memory, without a gradient
            source = source.detach()
            if source.device.type == "cpu":
                source = source.numpy()
            else:
                source = _gpu_array.read("kf.fkl.Tensor", "source", source, None)
        self.array = source

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the dimensions."""
        return tuple(self.array.shape)

    def numpy(self) -> Any:
        """Returns the values as a NumPy array; on the CPU they are not copied.

        Raises:
            TypeError: the memory is on a GPU, and not CuPy's.
        """
        if isinstance(self.array, np.ndarray):
            return self.array
        if hasattr(self.array, "get"):
            return self.array.get()
        raise TypeError("kf.fkl.Tensor: the memory is on a GPU, read it by its own library")


def execute_operations(stream: Stream, *operations: Any) -> None:
    """Runs a chain as one kernel: TensorRead, operations with numbers, TensorWrite.

    Raises:
        TypeError: an argument has the wrong type, or the order is another one.
        ValueError: shapes or devices differ.
    """
    where = "kf.fkl.execute_operations"
    if not isinstance(stream, Stream):
        raise TypeError(f"{where}: stream is {type(stream).__name__}, expected a kf.fkl.Stream")
    read, write = (operations[0], operations[-1]) if len(operations) > 1 else (None, None)
    if not isinstance(read, TensorRead) or not isinstance(write, TensorWrite):
        raise TypeError(f"{where}: the chain begins with TensorRead and ends with TensorWrite")
    for end in (read, write):
        if not isinstance(end.tensor, Tensor):
            raise TypeError(
                f"{where}: {type(end).__name__} has {type(end.tensor).__name__}, expected a "
                f"kf.fkl.Tensor"
            )
    x, out = read.tensor.array, write.tensor.array
    chain = _chain.compose(where, operations[1:-1])
    if not _gpu_array.is_one(x):
        chain(x, out=out)
        return
    device = _gpu_array.read(where, "x", x, None).device
    with _streams.current(where, stream.of(device), (x,)):
        chain(x, out=out)
