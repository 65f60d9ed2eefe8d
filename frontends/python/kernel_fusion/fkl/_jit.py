# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA source with NVRTC and launches its kernel."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_fusion import _driver, _gpu_array, _nvrtc, _streams

NUMBERS = {
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
}


def _argument(value: Any) -> Any:
    """Converts an argument: int and float are C's int and float; a NumPy number has its dtype."""
    if isinstance(value, (ctypes._SimpleCData, ctypes.Structure)):
        return value
    if isinstance(value, np.generic) and value.dtype.name in NUMBERS:
        return NUMBERS[value.dtype.name](value.item())
    if isinstance(value, int):
        return ctypes.c_int(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    value = getattr(value, "array", value)  # a kf.fkl.Tensor
    if _gpu_array.is_one(value):
        if hasattr(value, "detach"):
            value = value.detach()
        return ctypes.c_void_p(_gpu_array.read("kf.fkl.Kernel", "argument", value, None).address)
    raise TypeError(
        f"kf.fkl.Kernel: an argument is {type(value).__name__}, expected a number, a ctypes value "
        f"or an array on a GPU"
    )


def _three(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    given = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(given) <= 3:
        raise ValueError(f"kf.fkl.Kernel: {name} is {value}, expected one to three numbers")
    return (*given, 1, 1)[:3]


class Kernel:
    """A compiled kernel.

    Attributes:
        name: lowered name
        cubin: machine code
        architecture: such as "sm_90"
    """

    def __init__(self, name: str, cubin: bytes, architecture: str):
        self.name, self.cubin, self.architecture = name, cubin, architecture
        self._loaded: dict[int, Any] = {}

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *args: Any,
        shared: int = 0,
        stream: Any = None,
        device: int = 0,
    ) -> None:
        """Launches the kernel; nothing is checked beyond the driver's own checks.

        Args:
            grid: blocks, one to three numbers
            block: threads of a block, one to three numbers
            args: int and float are C's int and float; NumPy's numbers and ctypes values have their
                own type; an array on a GPU is its address
            shared: bytes of dynamic shared memory
            stream: a kf.Stream, a kf.fkl.Stream, or a stream of PyTorch or CuPy; None: the default
            device: number of the GPU, if stream names none
        """
        values = [_argument(a) for a in args]
        extents = _three("grid", grid), _three("block", block)
        handle = 0
        if stream is not None:
            stream = stream.of(device) if hasattr(stream, "of") else stream
            own, handle = _streams._read("kf.fkl.Kernel", stream)
            device = device if own is None else own
        if device not in self._loaded:
            self._loaded[device] = _driver.load(device, self.cubin, self.name.encode())
        _driver.launch(device, self._loaded[device], *extents, values, shared, handle)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.launch(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<kf.fkl.Kernel {self.name} for {self.architecture}, {len(self.cubin)} bytes>"


class JITCompiler:
    """NVRTC, CUDA's run-time compiler."""

    def compile(self, kernel_code: str, kernel_name: str, options: Sequence[str] = ()) -> Kernel:
        """Compiles a kernel.

        Args:
            kernel_code: CUDA C++ source
            kernel_name: name of the kernel, an instance of a template included
            options: NVRTC's options; without -arch=sm_..., the first GPU's architecture is used

        Returns:
            The Kernel.

        Raises:
            RuntimeError: NVRTC or CUDA's headers were not found, there is no GPU to compile for, or
                the compiler refuses the source; the message has its log.
        """
        chosen = [o for o in options if o.startswith(("-arch=", "--gpu-architecture="))]
        rest = [o for o in options if o not in chosen]
        architecture = chosen[-1].partition("=")[2] if chosen else _driver.architecture(0)
        architecture = architecture.replace("compute_", "sm_")
        cubin, name = _nvrtc.compile_kernel(kernel_code, kernel_name, architecture, rest)
        return Kernel(name.decode(), cubin, architecture)
