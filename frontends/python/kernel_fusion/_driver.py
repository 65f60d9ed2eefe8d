# SPDX-License-Identifier: Apache-2.0
"""CUDA's driver through ctypes: streams with priorities, and kernels from cubins."""

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from typing import Any

NON_BLOCKING = 1
MAJOR, MINOR = 75, 76  # attributes of a device: its compute capability
SHARED = 8  # attribute of a function: the most dynamic shared memory
DEFAULT_SHARED = 48 << 10


@functools.cache
def library() -> Any:
    """Loads and initialises the driver.

    Raises:
        RuntimeError: there is no driver, or it fails to initialise.
    """
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise RuntimeError("no CUDA driver was found (libcuda.so.1)") from None
    code = found.cuInit(0)
    if code:
        raise RuntimeError(f"the CUDA driver failed to initialise: error {code}")
    return found


def check(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        library().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{what}: {(text.value or b'unknown').decode()} (error {code})")


def count() -> int:
    """Returns the number of GPUs."""
    found = ctypes.c_int()
    check(library().cuDeviceGetCount(ctypes.byref(found)), "cuDeviceGetCount")
    return found.value


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    """Retains the primary context of a device, which the CUDA runtime uses too."""
    found = ctypes.c_void_p()
    check(library().cuDevicePrimaryCtxRetain(ctypes.byref(found), device), "the primary context")
    return found


@contextlib.contextmanager
def on(device: int) -> Iterator[Any]:
    """Makes a device current for the block; gives the driver."""
    driver = library()
    check(driver.cuCtxPushCurrent_v2(_context(device)), "cuCtxPushCurrent")
    try:
        yield driver
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def architecture(device: int) -> str:
    """Returns the architecture of a device, such as sm_90."""
    found = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        code = library().cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        check(code, f"the architecture of device {device}")
        found.append(str(value.value))
    return f"sm_{''.join(found)}"


def new_stream(device: int, priority: int) -> int:
    """Creates a stream; a greater priority is higher, and the driver limits it to its range.

    It lives as long as the process: allocators keep memory by stream.
    """
    found = ctypes.c_void_p()
    with on(device) as driver:
        code = driver.cuStreamCreateWithPriority(ctypes.byref(found), NON_BLOCKING, -priority)
        check(code, "cuStreamCreateWithPriority")
    return found.value or 0


def wait(device: int, stream: int) -> None:
    with on(device) as driver:
        check(driver.cuStreamSynchronize(ctypes.c_void_p(stream)), "cuStreamSynchronize")


def wait_all(device: int) -> None:
    with on(device) as driver:
        check(driver.cuCtxSynchronize(), "cuCtxSynchronize")


def load(device: int, cubin: bytes, name: bytes) -> ctypes.c_void_p:
    """Loads a kernel for the process's life."""
    module, found = ctypes.c_void_p(), ctypes.c_void_p()
    with on(device) as driver:
        check(driver.cuModuleLoadData(ctypes.byref(module), cubin), "cuModuleLoadData")
        code = driver.cuModuleGetFunction(ctypes.byref(found), module, name)
        check(code, "cuModuleGetFunction")
    return found


def launch(
    device: int,
    kernel: ctypes.c_void_p,
    grid: Sequence[int],
    block: Sequence[int],
    values: Sequence[Any],
    shared: int,
    stream: int,
) -> None:
    """Launches a kernel; values are ctypes objects."""
    pointers = [ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values]
    given = (ctypes.c_void_p * max(len(values), 1))(*pointers)
    with on(device) as driver:
        if shared > DEFAULT_SHARED:
            check(driver.cuFuncSetAttribute(kernel, SHARED, shared), "cuFuncSetAttribute")
        code = driver.cuLaunchKernel(
            kernel, *grid, *block, shared, ctypes.c_void_p(stream), given, None
        )
        check(code, "cuLaunchKernel")
