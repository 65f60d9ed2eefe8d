# SPDX-License-Identifier: Apache-2.0
"""A GPU for the robustness tests: an arena, streams, graphs, and a kernel that keeps the default
stream busy.

It uses libcudart and a small library of helper kernels through ctypes. fakegpu.py has the same
methods for a machine without a GPU.
"""

import contextlib
import ctypes
import hashlib
import os
import pathlib
import subprocess
import time

import numpy as np

NOT_READY = 600
HELPERS = pathlib.Path(__file__).with_name("gpu_helpers.cu")
VOID, SIZE, INT, LONG = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_longlong


def build_helpers(folder, flags=("-O2", "-arch=native")):
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(HELPERS.read_bytes() + repr(flags).encode()).hexdigest()[:16]
    path = folder / f"libkfg_{digest}.so"
    if not path.exists():
        work = path.with_suffix(f".{os.getpid()}")
        subprocess.run(
            ["nvcc", *flags, "-Xcompiler", "-fPIC", "-shared", str(HELPERS), "-o", str(work)],
            check=True,
        )
        os.replace(work, path)
    return ctypes.CDLL(str(path))


class Gpu:
    def __init__(self, helpers, size=1 << 26):
        self.rt, self.helpers, self.size = ctypes.CDLL("libcudart.so"), helpers, size
        self.rt.cudaGetErrorString.restype = ctypes.c_char_p
        self.base = self.malloc(size)
        self.spare = self.malloc(size)  # a second arena, for results to compare with
        self.found = self.malloc(16)
        pinned, flag = VOID(), VOID()
        self.call("cudaHostAlloc", ctypes.byref(pinned), SIZE(size), ctypes.c_uint(0))
        self.pinned = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pinned.value))
        self.call("cudaHostAlloc", ctypes.byref(flag), SIZE(4), ctypes.c_uint(2))  # mapped
        self.flag = ctypes.c_int.from_address(flag.value)
        device = VOID()
        self.call("cudaHostGetDevicePointer", ctypes.byref(device), flag, ctypes.c_uint(0))
        self.flag_pointer = device.value
        self.side = self.stream()

    def close(self):
        for pointer in (self.base, self.spare, self.found):
            self.free(pointer)
        for host in (self.pinned.ctypes.data, ctypes.addressof(self.flag)):
            self.call("cudaFreeHost", VOID(host))

    def check(self, status, what):
        if status != 0:
            raise RuntimeError(
                f"{what}: CUDA error {status}: {self.rt.cudaGetErrorString(status).decode()}"
            )

    def call(self, name, *arguments):
        self.check(getattr(self.rt, name)(*arguments), name)

    def help(self, name, *arguments):
        self.check(getattr(self.helpers, name)(*arguments), name)

    # memory

    def malloc(self, size):
        pointer = VOID()
        self.call("cudaMalloc", ctypes.byref(pointer), SIZE(max(size, 1)))
        return pointer.value

    def free(self, pointer):
        self.call("cudaFree", VOID(pointer))

    def free_bytes(self):
        free, total = SIZE(), SIZE()
        self.call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def upload(self, image, stream=0, to=None):
        """Copies through pinned memory on `stream` and waits for it."""
        self.pinned[: image.size] = image
        self.call(
            "cudaMemcpyAsync",
            VOID(to or self.base),
            VOID(self.pinned.ctypes.data),
            SIZE(image.size),
            1,
            VOID(stream),
        )
        self.finish(stream)

    def download(self, count, stream=0, start=None):
        self.call(
            "cudaMemcpyAsync",
            VOID(self.pinned.ctypes.data),
            VOID(start or self.base),
            SIZE(count),
            2,
            VOID(stream),
        )
        self.finish(stream)
        return self.pinned[:count].copy()

    def run(self, image, call):
        """Runs a call as checks.CudaMemory does, for checks.run."""
        self.upload(image)
        result = call(self.base)
        self.synchronize()
        return result, self.download(image.size)

    def run_on(self, stream, image, call, seconds):
        """Runs a call on `stream` alone: queues both copies and the call, then waits."""
        half, count = self.size // 2, image.size
        self.pinned[:count] = image
        self.call(
            "cudaMemcpyAsync",
            VOID(self.base),
            VOID(self.pinned.ctypes.data),
            SIZE(count),
            1,
            VOID(stream),
        )
        result = call(self.base)
        self.call(
            "cudaMemcpyAsync",
            VOID(self.pinned.ctypes.data + half),
            VOID(self.base),
            SIZE(count),
            2,
            VOID(stream),
        )
        self.finish(stream, seconds)
        return result, self.pinned[half : half + count].copy()

    def copy(self, to, start, count, stream=0):
        self.call("cudaMemcpyAsync", VOID(to), VOID(start), SIZE(count), 3, VOID(stream))

    def fill(self, to, value, count, stream=0):
        self.call("cudaMemsetAsync", VOID(to), value, SIZE(count), VOID(stream))

    # streams

    def stream(self):
        """Creates a stream that does not wait for the default stream."""
        stream = VOID()
        self.call("cudaStreamCreateWithFlags", ctypes.byref(stream), ctypes.c_uint(1))
        return stream.value

    def synchronize(self):
        self.call("cudaDeviceSynchronize")

    def is_done(self, stream):
        status = self.rt.cudaStreamQuery(VOID(stream))
        if status != NOT_READY:
            self.check(status, "cudaStreamQuery")
        return status == 0

    def finish(self, stream, seconds=20.0):
        """Waits for a stream; raises TimeoutError after `seconds`."""
        end = time.monotonic() + seconds
        while not self.is_done(stream):
            if time.monotonic() > end:
                raise TimeoutError(f"the stream has not finished after {seconds} s")

    @contextlib.contextmanager
    def busy(self, seconds=120):
        """Context in which a kernel occupies the default stream."""
        self.synchronize()
        self.flag.value = 0
        self.help("kfg_spin", VOID(self.flag_pointer), ctypes.c_ulonglong(seconds), VOID(0))
        try:
            yield
            if self.is_done(0):
                raise RuntimeError(
                    "the kernel on the default stream has ended early: nothing is proven"
                )
        finally:
            self.flag.value = 1
            self.synchronize()

    # graphs

    def begin_capture(self, stream):
        """Begins a capture in global mode: CUDA refuses calls that allocate or synchronise, and
        they invalidate the capture."""
        self.call("cudaStreamBeginCapture", VOID(stream), 0)

    def end_capture(self, stream):
        graph, ready = VOID(), VOID()
        self.call("cudaStreamEndCapture", VOID(stream), ctypes.byref(graph))
        try:
            self.call(
                "cudaGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_ulonglong(0)
            )
        finally:
            self.rt.cudaGraphDestroy(graph)
        return ready.value

    def launch(self, graph, stream):
        self.call("cudaGraphLaunch", VOID(graph), VOID(stream))

    def destroy(self, graph):
        self.call("cudaGraphExecDestroy", VOID(graph))

    # comparisons on the device

    def repeat(self, to, start, count, period, size, stream=0):
        self.help(
            "kfg_repeat", VOID(to), VOID(start), LONG(count), LONG(period), size, VOID(stream)
        )

    def begin_comparison(self, stream=0):
        self.fill(self.found, 0, 8, stream)
        self.fill(self.found + 8, 0xFF, 8, stream)

    def compare(self, a, b, count, stream=0):
        self.help("kfg_differ", VOID(a), VOID(b), LONG(count), VOID(self.found), VOID(stream))

    def compare_periodic(
        self, a, kept, dropped, count, period, first, philox, threshold, size, stream=0
    ):
        seed, offset = map(ctypes.c_ulonglong, philox)
        self.help(
            "kfg_differ_periodic",
            VOID(a),
            VOID(kept),
            VOID(dropped),
            LONG(count),
            LONG(period),
            LONG(first),
            seed,
            offset,
            ctypes.c_uint(threshold),
            size,
            VOID(self.found),
            VOID(stream),
        )

    def differences(self, stream=0):
        """Returns (number of differences, index of the first) since begin_comparison."""
        found = self.download(16, stream, self.found).view(np.uint64)
        return int(found[0]), int(found[1])

    # devices

    def device_count(self):
        count = INT(0)
        self.call("cudaGetDeviceCount", ctypes.byref(count))
        return count.value

    def set_device(self, device):
        self.call("cudaSetDevice", device)
