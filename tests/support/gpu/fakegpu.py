# SPDX-License-Identifier: Apache-2.0
"""Implements gpu.py's methods on the CPU, with C functions as launchers.

The robustness checks can so be tested without a GPU. A planted fault breaks one promise, and the
check must notice it.
"""

import contextlib
import ctypes

import checks
import counting
import numpy as np

COUNTERS = {"counting.c": f"long long kft_counts[{len(counting.CALLS)}];\n"}


class FakeGpu:
    def __init__(self, size=1 << 26):
        self.size, self.side = size, 1
        self.arenas = [np.zeros(size + 4096, np.uint8) for _ in range(2)]
        self.base, self.spare = (a.ctypes.data + -a.ctypes.data % 4096 for a in self.arenas)
        self.is_busy, self.stuck, self.waiting, self.captured, self.found = (
            False,
            False,
            [],
            None,
            [0, 0],
        )
        self.blocks = {}
        self.before = None  # the arena before the last call that nothing has waited for

    def view(self, pointer, count):
        return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(pointer))

    def upload(self, image, stream=0, to=None):
        self.view(to or self.base, image.size)[:] = image
        self.before = None

    def download(self, count, stream=0, start=None):
        return self.view(start or self.base, count).copy()

    def run(self, image, call):
        self.upload(image)
        return call(self.base), self.download(image.size)

    def run_on(self, stream, image, call, seconds):
        self.upload(image)
        result = call(self.base)
        self.finish(stream)
        return result, self.download(image.size)

    def malloc(self, size):
        block = np.full(size + 256, 0x11, np.uint8)
        pointer = block.ctypes.data + -block.ctypes.data % 256
        self.blocks[pointer] = block
        return pointer

    def free(self, pointer):
        del self.blocks[pointer]

    def copy(self, to, start, count, stream=0):
        self.view(to, count)[:] = self.view(start, count).copy()
        self.before = None

    def fill(self, to, value, count, stream=0):
        self.view(to, count)[:] = value

    def synchronize(self):
        self.before = None

    def finish(self, stream, seconds=20.0):
        if stream and self.stuck:
            raise TimeoutError
        self.before = None

    @contextlib.contextmanager
    def busy(self):
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = self.stuck = False
            for work in self.waiting:
                work()
            self.waiting.clear()

    def begin_capture(self, stream):
        self.captured = []

    def end_capture(self, stream):
        graph, self.captured = self.captured, None
        return graph

    def launch(self, graph, stream):
        for work in graph:
            work()

    def destroy(self, graph):
        pass

    def begin_comparison(self, stream=0):
        self.found = [0, 2**64 - 1]

    def compare(self, a, b, count, stream=0):
        first = np.flatnonzero(self.view(a, count) != self.view(b, count))
        self.found[0] += first.size
        self.found[1] = min([self.found[1], *first[:1]])

    def repeat(self, to, start, count, period, size, stream=0):
        unit = self.view(start, period * size)
        self.view(to, count * size)[:] = np.resize(unit, count * size)

    def compare_periodic(
        self, a, kept, dropped, count, period, first, philox, threshold, size, stream=0
    ):
        want = np.resize(self.view(kept, period * size).reshape(-1, size), (count, size))
        if dropped:
            keep = checks.philox(*philox, first + count)[first:] >= threshold
            want = np.where(
                keep[:, None],
                want,
                np.resize(self.view(dropped, period * size).reshape(-1, size), (count, size)),
            )
        wrong = np.flatnonzero((self.view(a, count * size).reshape(-1, size) != want).any(axis=1))
        self.found[0] += wrong.size
        self.found[1] = min([self.found[1], *wrong[:1]])

    def differences(self, stream=0):
        return tuple(self.found)


class FakeLib:
    """A library of C functions with the interface of launchers. fault: the promise to break."""

    backend = "cpu"

    def __init__(self, lib, gpu, fault=None):
        self.lib, self.gpu, self.fault, self.dll, self.calls = lib, gpu, fault, lib.dll, 0
        counts = ctypes.c_longlong * len(counting.CALLS)
        self.counts = (
            counts.in_dll(lib.dll, "kft_counts") if hasattr(lib.dll, "kft_counts") else counts()
        )  # see COUNTERS

    def workspace_bytes(self, f, sizes):
        return self.lib.workspace_bytes(f, sizes)

    @property
    def detail(self):
        return self.lib.detail

    def count(self, name):
        self.counts[list(counting.CALLS).index(name)] += 1

    def arena(self):
        return self.gpu.view(self.gpu.base, self.gpu.size // 8)

    def call(self, f, given, stream=0):
        gpu = self.gpu
        if any(given[s] <= 0 for s in f["sizes"]):
            return self.lib.call(f, given)
        self.calls += 1
        self.count(counting.LAUNCH)
        if self.fault == "allocates":
            self.count("cudaMallocAsync")
        if gpu.captured is not None:
            return self.capture(f, given)
        if self.fault == "default stream" and gpu.is_busy:
            gpu.waiting.append(lambda: self.lib.call(f, given))
            return 0
        if self.fault == "waits" and gpu.is_busy:
            gpu.stuck = True
        if self.fault == "does not wait for the call before" and gpu.before is not None:
            now, gpu.before[:] = self.arena().copy(), gpu.before
            self.arena()[:] = gpu.before
            gpu.before[:] = now
        elif self.fault == "does not wait for the call before":
            gpu.before = self.arena().copy()
        result = self.lib.call(f, given)
        flaky = (
            self.fault == "other bits"
            or self.fault == "other bits sometimes"
            and self.calls % 7 == 0
        )
        if flaky or (self.fault == "depends on other rows" and given[f["sizes"][0]] == 1):
            out = next(
                a
                for a in f["arguments"]
                if a["role"] in ("out", "sum", "inout") and given.get(a["name"])
            )
            gpu.view(given[out["name"]], 1)[0] ^= 1
        return result

    def capture(self, f, given):
        gpu = self.gpu
        if self.fault == "runs while captured":
            self.lib.call(f, given)
        if self.fault == "keeps the first inputs":
            old = self.arena().copy()

            def replay():
                self.arena()[:] = old
                self.lib.call(f, given)

            gpu.captured.append(replay)
        else:
            gpu.captured.append(lambda: self.lib.call(f, given))
        return 0
