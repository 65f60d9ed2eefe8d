# SPDX-License-Identifier: Apache-2.0
"""Times several contenders in rounds of shuffled order, in seconds per call.

A contender is a function of the index of a tensor set. Rotating through the sets keeps inputs out
of the cache; interleaving lets drifting clocks affect all alike. On a GPU no host time is measured:
calls replay as a CUDA graph, or are queued behind a kernel that waits for all of them.
"""

import collections
import math
import random
import statistics
import time

import torch

BATCH = 2e-3  # about what one sample takes
METHOD = (
    "rounds in shuffled order, inside CUDA graphs; what cannot be captured is queued behind a "
    "waiting kernel, so that no host time is in it; inputs cold in the L2 cache"
)
PACES = {
    "shuffled": "one sample after the other",
    "burst": "each sample after 50 ms of nothing and one replay of its graph",
    "sustained": "each sample at the end of 0.2 s of the same",
}
CPU_METHOD = "rounds in shuffled order, one call a sample, wall clock"
SPIN_PER_SECOND = 2e9  # cycles of torch.cuda._sleep at the highest clock


def summary(samples):
    q = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    return {
        "us": statistics.median(samples) * 1e6,
        "iqr_us": (q[2] - q[0]) * 1e6,
        "samples": len(samples),
    }


def interleave(names, rounds, sample, seed=0):
    """Returns {name: samples}: two per contender and round, in shuffled order."""
    found, order = {name: [] for name in names}, random.Random(seed)
    for _ in range(rounds):
        both = [*names, *names]
        order.shuffle(both)
        for name in both:
            found[name].append(sample(name))
    return found


class KeepAlive:
    """Keeps the last results alive, so that the allocator cannot reuse one hot buffer."""

    def __init__(self, call, sets):
        self.call, self.kept = call, collections.deque(maxlen=sets)

    def __call__(self, i):
        self.kept.append(self.call(i))


class Cuda:
    def __init__(self):
        # One stream for everything, forward passes included: graphs cannot be captured on the
        # default stream, and autograd runs a backward where its forward ran.
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.pairs = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def warm_up(self, seconds=0.3):
        """Raises the clocks."""
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
        """Returns (seconds of a call, host seconds of it)."""
        for i in range(
            max(sets, 3)
        ):  # a first call may load modules; the first of a set may run its forward
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
        )  # autograd launches from its own thread
        try:
            for i in range(calls):
                call(i % sets)
        finally:
            graph.capture_end()
        graph.replay()
        self.stream.synchronize()
        return graph

    def _paced(self, work, pace):
        """Returns one sample of a replayed graph."""
        if pace == "sustained":
            taken = self._events(work)
            for _ in range(int(0.2 / taken)):
                work()
        elif pace == "burst":
            time.sleep(0.05)
        work()  # one ahead of the clock
        return self._events(work)

    def measure(self, contenders, sets, rounds, pace="shuffled"):
        """Returns {name: summary with how it was timed, or why it failed}.

        Without rounds everything is called and nothing timed.
        """
        torch.cuda.empty_cache()  # pools of previous graphs; nothing can be freed during a capture
        failed, estimates = {}, {}
        kept_calls = {name: KeepAlive(call, sets) for name, call in contenders.items()}
        for name, kept_call in kept_calls.items():
            try:
                estimates[name] = self._estimate(kept_call, sets)
            except Exception as error:  # noqa: BLE001 (a peer's failure is a result)
                failed[name] = f"{type(error).__name__}: {error}"[:300]
        if "kf" in failed:
            raise RuntimeError(failed["kf"])
        work, per_sample, how, waits = {}, {}, {}, {}
        for name, (estimate, host) in estimates.items():
            kept_call = kept_calls[name]
            calls = (
                math.ceil(min(max(1, math.ceil(BATCH / max(estimate, 2e-6))), 256) / sets) * sets
            )
            try:
                work[name], per_sample[name], how[name] = (
                    self._graph(kept_call, calls, sets).replay,
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
                (
                    lambda kept_call=kept_call, calls=calls: [
                        kept_call(i % sets) for i in range(calls)
                    ]
                ),
                calls,
            )
            waits[name] = int(2 * host * calls * SPIN_PER_SECOND)

        def sample(name):
            if how[name] == "graph":
                return self._paced(work[name], pace) / per_sample[name]
            torch.cuda._sleep(waits[name])  # until the host has queued everything
            return self._events(work[name]) / per_sample[name]

        samples = interleave(list(work), rounds, sample)
        found = {
            name: summary(s) | {"how": how[name], "calls": per_sample[name]}
            for name, s in samples.items()
            if s
        }
        return found | {name: {"failed": why} for name, why in failed.items()}


class Cpu:
    """Times one call per sample, since calls take milliseconds."""

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
