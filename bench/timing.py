# SPDX-License-Identifier: Apache-2.0
"""Times several contenders in rounds, each round in an order of its own.

A contender is a function of the number of a tensor set; the sets are cycled through, so that no call finds its inputs in the cache. A drift
of the clocks meets all alike. On a GPU no host code runs while the clock does: calls are replayed as a CUDA graph; what cannot be captured is
launched behind a kernel that waits until all of it is queued. Times are seconds per call.
"""

import collections
import math
import random
import statistics
import time

import torch

BATCH = 2e-3  # about what one sample takes
METHOD = (
    "rounds in shuffled order, inside CUDA graphs; what cannot be captured is queued behind a waiting kernel, so that no host time is in it; "
    "inputs cold in the L2 cache"
)
PACES = {
    "shuffled": "one sample after the other",
    "burst": "each sample after 50 ms of nothing and one replay of its graph",
    "sustained": "each sample at the end of 0.2 s of the same",
}
CPU_METHOD = "rounds in shuffled order, one call a sample, wall clock"
SPIN_PER_SECOND = 2e9  # cycles of torch.cuda._sleep, at the highest clock there is


def summary(samples):
    q = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    return {
        "us": statistics.median(samples) * 1e6,
        "iqr_us": (q[2] - q[0]) * 1e6,
        "samples": len(samples),
    }


def interleave(names, rounds, sample, seed=0):
    """{name: samples}, two of each a round, in shuffled order."""
    found, order = {name: [] for name in names}, random.Random(seed)
    for _ in range(rounds):
        both = [*names, *names]
        order.shuffle(both)
        for name in both:
            found[name].append(sample(name))
    return found


class Ring:
    """Keeps the last results alive, so that the caching allocator cannot hand out one hot buffer call after call."""

    def __init__(self, call, sets):
        self.call, self.kept = call, collections.deque(maxlen=sets)

    def __call__(self, i):
        self.kept.append(self.call(i))


class Cuda:
    def __init__(self):
        # Everything runs on one stream, the peers' forward passes too: graphs cannot be captured on the default one, and
        # autograd runs a backward where its forward ran.
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.pairs = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def warm_up(self, seconds=0.3):
        """Brings the clocks up."""
        a = torch.randn(1 << 26, device="cuda")
        b = torch.empty_like(a)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(20):
                b.copy_(a)
            self.stream.synchronize()

    def _events(self, work):
        start, stop = self.pairs
        start.record(self.stream)
        work()
        stop.record(self.stream)
        stop.synchronize()
        return start.elapsed_time(stop) * 1e-3

    def _estimate(self, call, sets):
        """(seconds of a call, seconds that the host takes for it)"""
        for i in range(
            max(sets, 3)
        ):  # a first call may load modules, and each set's may run its forward pass
            call(i % sets)
        self.stream.synchronize()
        start = time.perf_counter()
        taken = self._events(lambda: [call(i % sets) for i in range(4)]) / 4
        return taken, (time.perf_counter() - start) / 4

    def _graph(self, call, calls, sets):
        graph = torch.cuda.CUDAGraph()
        self.stream.synchronize()
        graph.capture_begin(
            capture_error_mode="thread_local"
        )  # autograd launches from a thread of its own
        try:
            for i in range(calls):
                call(i % sets)
        finally:
            graph.capture_end()
        graph.replay()
        self.stream.synchronize()
        return graph

    def _paced(self, work, pace):
        """A sample of a graph that is replayed."""
        if pace == "sustained":
            taken = self._events(work)
            for _ in range(int(0.2 / taken)):
                work()
        elif pace == "burst":
            time.sleep(0.05)
        work()  # one ahead of the clock
        return self._events(work)

    def measure(self, contenders, sets, rounds, pace="shuffled"):
        """{name: summary, with how it was timed}; one that fails says why instead. No rounds: everything is called, and nothing timed."""
        torch.cuda.empty_cache()  # the pools of the last case's graphs: nothing can be freed while one is captured
        failed, estimates = {}, {}
        rings = {name: Ring(call, sets) for name, call in contenders.items()}
        for name, ring in rings.items():
            try:
                estimates[name] = self._estimate(ring, sets)
            except Exception as error:  # noqa: BLE001 (a peer that cannot run is a result, kf's own failure is raised below)
                failed[name] = f"{type(error).__name__}: {error}"[:300]
        if "kf" in failed:
            raise RuntimeError(failed["kf"])
        work, per_sample, how, waits = {}, {}, {}, {}
        for name, (estimate, host) in estimates.items():
            ring = rings[name]
            calls = (
                math.ceil(min(max(1, math.ceil(BATCH / max(estimate, 2e-6))), 256) / sets) * sets
            )
            try:
                work[name], per_sample[name], how[name] = (
                    self._graph(ring, calls, sets).replay,
                    calls,
                    "graph",
                )
                continue
            except Exception as error:  # noqa: BLE001
                torch.cuda.synchronize()
                if name == "kf":
                    raise
                how[name] = (
                    f"queued behind a waiting kernel; no graph: {type(error).__name__}: {error}"[
                        :200
                    ]
                )
            calls = min(calls, 20)
            work[name], per_sample[name] = (
                (lambda ring=ring, calls=calls: [ring(i % sets) for i in range(calls)]),
                calls,
            )
            waits[name] = int(2 * host * calls * SPIN_PER_SECOND)

        def sample(name):
            if how[name] == "graph":
                return self._paced(work[name], pace) / per_sample[name]
            torch.cuda._sleep(waits[name])  # until the host has queued all
            return self._events(work[name]) / per_sample[name]

        samples = interleave(list(work), rounds, sample)
        found = {
            name: summary(s) | {"how": how[name], "calls": per_sample[name]}
            for name, s in samples.items()
            if s
        }
        return found | {name: {"failed": why} for name, why in failed.items()}


class Cpu:
    """One call per sample: at the sizes of a result a call takes milliseconds."""

    def __init__(self, threads):
        self.threads = threads

    def measure(self, contenders, sets, rounds):
        failed = {}
        for name, call in list(contenders.items()):
            try:
                call(0)
            except Exception as error:  # noqa: BLE001
                if name == "kf":
                    raise
                failed[name] = f"{type(error).__name__}: {error}"[:300]
        work = {name: call for name, call in contenders.items() if name not in failed}

        def sample(name):
            torch.set_num_threads(1 if name == "copy_1" else self.threads)
            start = time.perf_counter()
            kept = work[name](0)
            taken = time.perf_counter() - start
            del kept  # freeing a result is not part of the call
            return taken

        samples = interleave(list(work), rounds, sample)
        torch.set_num_threads(self.threads)
        return {
            name: summary(s) | {"how": "wall clock", "calls": 1} for name, s in samples.items()
        } | {name: {"failed": why} for name, why in failed.items()}
