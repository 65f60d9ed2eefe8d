# SPDX-License-Identifier: Apache-2.0
"""Arrays on a GPU: reads the CUDA array interface (version 3) and DLPack, and defines kf's array.

kf's own array implements both, for results of libraries that provide no allocator.
"""

import contextlib
import contextvars
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_fusion import _dlpack, _gpu

# Stream of the calls of a block that names one; None: the arrays determine it.
running_on: contextvars.ContextVar[int | None] = contextvars.ContextVar("stream", default=None)
LEGACY, DEFAULT = 1, (1, 2)  # the default streams in both interfaces
WORDS = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "bool": "u8",
}
LONG = {word: long for long, word in WORDS.items() if long != "bool"}
BYTES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8, "i32": 4, "i64": 8, "u8": 1}


def is_one(x: Any) -> bool:
    """True if x is an array on a GPU."""
    if isinstance(x, np.ndarray) or x is None:
        return False
    return hasattr(x, "__cuda_array_interface__") or (
        hasattr(x, "__dlpack_device__") and int(x.__dlpack_device__()[0]) in _dlpack.CUDA
    )


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of a contiguous array, in elements."""
    found, distance = [], 1
    for n in reversed(shape):
        found.append(distance)
        distance *= max(n, 1)
    return tuple(reversed(found))


class Array:
    """An array in GPU memory, whose work is ordered on `stream`.

    `dtype` is NumPy's name; `strides` are in elements.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: str,
        device: int,
        stream: int,
        *,
        strides: tuple[int, ...] | None = None,
        writable: bool = True,
        owner: Any = None,
    ):
        self.address, self.shape, self.dtype, self.device, self.stream = (
            address,
            shape,
            dtype,
            device,
            stream,
        )
        self.strides = dense(shape) if strides is None else strides  # elements
        self.word, self.writable, self.owner = WORDS.get(dtype, ""), writable, owner

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_dense(self) -> bool:
        return 0 in self.shape or all(
            n == 1 or s == d for n, s, d in zip(self.shape, self.strides, dense(self.shape))
        )

    def _viewed(self, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> "Array":
        """Returns the same memory with another shape; strides None: contiguous."""
        return Array(
            self.address,
            shape,
            self.dtype,
            self.device,
            self.stream,
            strides=strides,
            writable=self.writable,
            owner=self,
        )

    def reshaped(self, shape: tuple[int, ...]) -> "Array":
        """Returns a contiguous array with other dimensions."""
        return self._viewed(shape, None)

    def permuted(self, order: Sequence[int]) -> "Array":
        """Returns the array with its dimensions in another order."""
        return self._viewed(
            tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order)
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype == "bfloat16":
            raise AttributeError("the CUDA array interface has no bfloat16; use DLPack")
        size = BYTES[self.word]
        return {
            "shape": self.shape,
            "typestr": np.dtype(self.dtype).str,
            "data": (self.address, not self.writable),
            "version": 3,
            "strides": None if self.is_dense else tuple(s * size for s in self.strides),
            "stream": self.stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.CUDA[0], self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """Exports the array for a consumer on `stream`; -1 requests no synchronisation."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(
                "a kf array can be exported only without a copy and from its own device"
            )
        if stream == -1 or (stream or LEGACY) != self.stream:
            self.read_elsewhere()
        if stream != -1 and (stream or LEGACY) != self.stream:
            _gpu.library().wait(self.device, self.stream)
        return _dlpack.give(self, self.address, self.device, self.shape, self.strides, self.dtype)

    def read_elsewhere(self) -> None:
        """Marks the memory as used by another stream: it is freed only after the device has
        finished.
        """
        owner = self.owner
        while isinstance(owner, Array):
            owner = owner.owner
        if isinstance(owner, Memory):
            owner.freed_on = None

    def __repr__(self) -> str:
        return f"<kf array on cuda:{self.device}, dtype {self.dtype}, shape {self.shape}>"


class Memory:
    """Stream-ordered device memory.

    `freed_on` is the stream the memory is freed on, if it surely still exists then; with None
    freeing waits until the device has finished all work.
    """

    def __init__(self, device: int, stream: int, size: int, freed_on: int | None):
        self.device, self.freed_on, self.address = device, freed_on, 0
        self.address = _gpu.library().allocate(device, size, stream)

    def __del__(self) -> None:
        if self.address:
            # The process may be shutting down.
            with contextlib.suppress(Exception):
                _gpu.library().free(self.device, self.address, self.freed_on)


def new(shape: tuple[int, ...], dtype: str, device: int, stream: int) -> Array:
    size = int(np.prod(shape)) * BYTES[WORDS[dtype]]
    memory = Memory(device, stream, size, stream if stream in DEFAULT else None) if size else None
    return Array(memory.address if memory else 0, shape, dtype, device, stream, owner=memory)


def _device_of(x: Any, address: int) -> int:
    if hasattr(x, "__dlpack_device__"):
        return int(x.__dlpack_device__()[1])
    return _gpu.library().device_of(address) if address else 0


def read(where: str, name: str, x: Any, stream: int | None) -> Array:
    """Describes an object's memory as an Array.

    Args:
        stream: the call's stream; None if this object determines it.
    """
    if isinstance(x, Array):
        return x
    if hasattr(x, "__cuda_array_interface__"):
        found = _of_interface(where, name, x)
    elif is_one(x):
        stream = stream or running_on.get()
        taken = _dlpack.take(x.__dlpack__(stream=stream or LEGACY))
        device = int(x.__dlpack_device__()[1])
        found = Array(
            taken.address,
            taken.shape,
            taken.dtype,
            device,
            stream or LEGACY,
            strides=taken.strides,
            owner=taken.owner,
        )
    else:
        raise TypeError(
            f"{where}: {name} is {type(x).__name__}, expected an array on a GPU like the others"
        )
    if not found.word:
        raise TypeError(
            f"{where}: {name} has the dtype {found.dtype}, expected one of "
            f"{', '.join(dict.fromkeys(WORDS.values()))}"
        )
    return found


def _of_interface(where: str, name: str, x: Any) -> Array:
    told = x.__cuda_array_interface__
    if told.get("mask") is not None:
        raise TypeError(f"{where}: {name} has a mask, which kf does not read")
    dtype = getattr(getattr(x, "dtype", None), "name", None) or np.dtype(told["typestr"]).name
    (address, readonly), strides = told["data"], told.get("strides")
    size = BYTES.get(WORDS.get(dtype, ""), 1)
    if strides is not None and any(s % size for s in strides):
        raise ValueError(
            f"{where}: {name} has strides of {strides} bytes, expected multiples of {size}"
        )
    # Stream None means that no one has to wait, so the default stream is correct.
    return Array(
        address or 0,
        tuple(told["shape"]),
        dtype,
        _device_of(x, address or 0),
        told.get("stream") or LEGACY,
        strides=None if strides is None else tuple(s // size for s in strides),
        writable=not readonly,
        owner=x,
    )
