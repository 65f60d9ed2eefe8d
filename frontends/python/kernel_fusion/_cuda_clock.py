# SPDX-License-Identifier: Apache-2.0
"""Timing of GPU work by CUDA events, through PyTorch or CuPy."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

# Writing the buffer takes longer than the host needs to enqueue a call.
LEAST_BUFFER = 256 << 20


class _Torch:
    """Events on PyTorch's current stream of a device."""

    def __init__(self, device: Any):
        self.torch = sys.modules["torch"]
        self.device = device
        self.begin, self.end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        size = max(2 * self.torch.cuda.get_device_properties(device).L2_cache_size, LEAST_BUFFER)
        self.memory = self.torch.empty(size // 4, dtype=self.torch.int32, device=device)

    def flush(self) -> None:
        self.memory.zero_()

    def sample(self, call: Callable[[], Any], count: int) -> float:
        """Returns the seconds of a call, out of `count` in a row."""
        with self.torch.cuda.device(self.device):
            self.begin.record()
            for _ in range(count):
                call()
            self.end.record()
            self.end.synchronize()
        return float(self.begin.elapsed_time(self.end)) * 1e-3 / count


class _CuPy:
    """Events on CuPy's current stream of a device."""

    def __init__(self, device: Any):
        self.cupy = sys.modules["cupy"]
        self.device = device
        with device:
            self.begin, self.end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            size = max(2 * int(device.attributes["L2CacheSize"]), LEAST_BUFFER)
            self.memory = self.cupy.empty(size // 4, "i")

    def flush(self) -> None:
        with self.device:
            self.memory.fill(0)

    def sample(self, call: Callable[[], Any], count: int) -> float:
        """Returns the seconds of a call, out of `count` in a row."""
        with self.device:
            self.begin.record()
            for _ in range(count):
                call()
            self.end.record()
            self.end.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(self.begin, self.end)) * 1e-3 / count


def _is_cupy(a: Any) -> bool:
    return type(a).__module__.partition(".")[0] == "cupy"


def knows(a: Any) -> bool:
    """True if the array's device can be timed."""
    return _is_cupy(a) or getattr(getattr(a, "device", None), "type", "cpu") in ("cpu", "cuda")


def of(arrays: Sequence[Any]) -> Any:
    """Returns the clock of the first array on a GPU, or None."""
    for a in arrays:
        if _is_cupy(a):
            return _CuPy(a.device)
        if getattr(getattr(a, "device", None), "type", "cpu") == "cuda":
            return _Torch(a.device)
    return None
