# SPDX-License-Identifier: Apache-2.0
"""Timing of functions of arrays or tensors on the CPU or a GPU.

    from kernel_fusion import benchmarks
    print(benchmarks.benchmark_kernel(kf.ops.gelu, [x]))
    gelus = {"kf": kf.ops.gelu, "torch": torch.nn.functional.gelu}
    print(benchmarks.compare_implementations(gelus, x))

A sample is one call with cold caches: before it, a buffer larger than the caches is written. This
is the state a call meets in a program that touches more than its operands. cold=False leaves the
operands in the caches and times several calls per sample if one is too short for the clock.

On a GPU, CUDA events on the current stream of PyTorch or CuPy measure a sample, and a buffer larger
than the L2 cache is written before it.

Reported are the median and the middle half of the samples, not the minimum, since machines are
shared. Implementations are timed in rotation, so that disturbances affect all of them. `bytes`
counts each operand and result once: the minimum that has to be moved.
"""

import html
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernel_fusion import _cuda_clock

ENOUGH = 50_000  # minimum duration of a sample with warm caches, in nanoseconds
MOST_CACHE = 1 << 28


@dataclass(frozen=True)
class Timing:
    """Samples of one function, in seconds per call."""

    name: str
    samples: tuple[float, ...]
    bytes: int | None  # bytes of operands and results; None if they are no arrays
    cold: bool
    # Largest difference from the first implementation's result; None for the first, or if the
    # results cannot be compared.
    difference: float | None = None

    @property
    def median(self) -> float:
        """Median of the samples, in seconds."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile of the samples, in seconds."""
        found = (
            statistics.quantiles(self.samples, n=4, method="inclusive")
            if len(self.samples) > 1
            else [self.samples[0]] * 3
        )
        return found[0], found[2]

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median."""
        low, high = self.quartiles
        return (high - low) / self.median

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second."""
        return None if self.bytes is None else self.bytes / self.median

    def __str__(self) -> str:
        speed = (
            ""
            if self.bandwidth is None
            else f", {self.bandwidth / 1e9:.3g} GB/s of {self.bytes} bytes"
        )
        low, high = map(_seconds, self.quartiles)
        caches = "cold" if self.cold else "warm"
        middle = f"middle half {low} to {high}"
        return f"{self.name}: {_seconds(self.median)} ({middle}){speed}, {caches} caches"


@dataclass(frozen=True)
class Comparison:
    """Timings of several implementations, relative to the first; str() gives a table."""

    timings: tuple[Timing, ...]
    head: tuple[str, ...] = field(
        default=("", "median", "middle half", "GB/s", "times the first", "differs by"), repr=False
    )

    def __getitem__(self, name: str) -> Timing:
        for t in self.timings:
            if t.name == name:
                return t
        raise KeyError(name)

    def rows(self) -> list[tuple[str, ...]]:
        """Rows of the table, as texts."""
        first = self.timings[0].median
        return [
            (
                t.name,
                _seconds(t.median),
                f"{_seconds(t.quartiles[0])} to {_seconds(t.quartiles[1])}",
                "" if t.bandwidth is None else f"{t.bandwidth / 1e9:.3g}",
                f"{t.median / first:.2f}",
                "" if t.difference is None else f"{t.difference:.2g}",
            )
            for t in self.timings
        ]

    def __str__(self) -> str:
        rows = [self.head, *self.rows()]
        width = [max(len(row[i]) for row in rows) for i in range(len(self.head))]
        lines = [
            " | ".join(
                text.ljust(w) if i == 0 else text.rjust(w)
                for i, (text, w) in enumerate(zip(row, width))
            )
            for row in rows
        ]
        return "\n".join([lines[0], "-|-".join("-" * w for w in width), *lines[1:]])

    def plot(self, path: str | pathlib.Path | None = None) -> str:
        """Draws bars of the medians, with their middle halves.

        Args:
            path: file to write, or None

        Returns:
            The SVG text.
        """
        most = max(t.quartiles[1] for t in self.timings)
        height, lines = 28 * len(self.timings) + 12, []
        for i, t in enumerate(self.timings):
            y, (low, high) = 8 + 28 * i, t.quartiles
            lines += [
                f'<text x="150" y="{y + 15}" text-anchor="end">{html.escape(t.name)}</text>',
                f'<rect x="160" y="{y}" width="{400 * t.median / most:.1f}" height="20" '
                f'fill="#4878a8"/>',
                f'<path d="M{160 + 400 * low / most:.1f} {y + 10}H{160 + 400 * high / most:.1f}" '
                f'stroke="#222" stroke-width="2"/>',
                f'<text x="570" y="{y + 15}">{_seconds(t.median)}</text>',
            ]
        text = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="660" height="{height}" '
            f'font-family="sans-serif" font-size="13">\n' + "\n".join(lines) + "\n</svg>\n"
        )
        if path is not None:
            pathlib.Path(path).write_text(text)
        return text


def _seconds(s: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if s >= scale:
            return f"{s / scale:.3g} {unit}"
    return f"{s * 1e9:.3g} ns"


def _cache_bytes() -> int:
    """Size of the largest cache in bytes, at least 64 MiB."""
    found = [64 << 20]
    for path in pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        found.append(int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1:], 0))
    return min(max(found), MOST_CACHE)


class _Flush:
    """Evicts the caches by writing a larger buffer."""

    def __init__(self) -> None:
        self.memory = np.zeros(2 * _cache_bytes() // 8)

    def __call__(self) -> None:
        self.memory += 1.0


def _arrays(values: Any) -> list[Any]:
    if isinstance(values, Mapping):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        values = (values,)
    return [v for v in values if hasattr(v, "nbytes")]


def _call(fn: Callable[..., Any], inputs: Any) -> Callable[[], Any]:
    if isinstance(inputs, Mapping):
        return lambda: fn(**inputs)
    given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    return lambda: fn(*given)


def _refuse(where: str, fns: Sequence[Any], inputs: Any, warmup: int, repeat: int) -> None:
    for fn in fns:
        if not callable(fn):
            raise TypeError(
                f"kf.benchmarks.{where}: {fn!r} is {type(fn).__name__}, expected a function"
            )
    for name, value, least in (("warmup", warmup, 0), ("repeat", repeat, 1)):
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
            raise ValueError(
                f"kf.benchmarks.{where}: {name} is {value!r}, expected a whole number of at least "
                f"{least}"
            )
    for a in _arrays(inputs):
        if not _cuda_clock.knows(a):
            raise NotImplementedError(
                f"kf.benchmarks.{where}: an input is on {a.device}, expected the CPU, or a GPU "
                f"with PyTorch or CuPy"
            )


def _several(call: Callable[[], Any], cold: bool, sample: Callable[..., float]) -> int:
    """Number of calls per sample."""
    if cold:
        return 1
    # A single call may be interrupted.
    took = min(sample(call, 1) for _ in range(3)) * 1e9
    return max(1, min(1000, ENOUGH // max(round(took), 1)))


def _sample(call: Callable[[], Any], count: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - begin) / count * 1e-9


def _differs(first: Any, other: Any) -> float | None:
    """Largest difference of two results; None if they are no arrays of one shape."""
    pairs = list(zip(_arrays(first), _arrays(other)))
    if not pairs or any(tuple(a.shape) != tuple(b.shape) for a, b in pairs):
        return None

    def wide(a: Any) -> Any:
        if hasattr(a, "detach"):
            return a.detach().double().cpu().numpy()
        return np.asarray(a.get() if hasattr(a, "get") else a, np.float64)

    def most(a: Any, b: Any) -> float:
        """Equal infinities and common NaN count as equal."""
        with np.errstate(invalid="ignore"):
            return float(
                np.max(
                    np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b)), initial=0
                )
            )

    return max(most(wide(a), wide(b)) for a, b in pairs)


def _run(
    calls: Mapping[str, Callable[[], Any]], inputs: Any, warmup: int, repeat: int, cold: bool
) -> tuple[Timing, ...]:
    results = {name: call() for name, call in calls.items()}
    for call in calls.values():
        for _ in range(warmup):
            call()
    events = _cuda_clock.of(_arrays(inputs))
    sample = events.sample if events else _sample
    counts = {name: _several(call, cold, sample) for name, call in calls.items()}
    flush = (events.flush if events else _Flush()) if cold else None
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for i in range(repeat):
        # The order rotates, so that no function always follows the same one.
        for name in names[i % len(names) :] + names[: i % len(names)]:
            if flush:
                flush()
            samples[name].append(sample(calls[name], counts[name]))
    moved = {
        name: sum(a.nbytes for a in _arrays(inputs) + _arrays(results[name])) or None
        for name in calls
    }
    return tuple(
        Timing(
            name,
            tuple(samples[name]),
            moved[name],
            cold,
            _differs(results[names[0]], results[name]) if i else None,
        )
        for i, name in enumerate(names)
    )


def benchmark_kernel(
    fn: Callable[..., Any],
    inputs: Any,
    warmup: int = 10,
    repeat: int = 100,
    *,
    cold: bool = True,
    plot: str | pathlib.Path | None = None,
) -> Timing:
    """Times fn(*inputs), or fn(**inputs).

    Args:
        fn: function to time
        inputs: sequence or dictionary of arguments, or one argument
        warmup: number of calls before the first sample
        repeat: number of samples
        cold: if True, caches are evicted before each sample
        plot: file that receives Comparison.plot of the result, or None

    Returns:
        The Timing.

    Raises:
        TypeError: fn is no function.
        ValueError: warmup or repeat is no integer or too small.
        NotImplementedError: an input is on a device that is neither the CPU nor a GPU of PyTorch
            or CuPy.
    """
    _refuse("benchmark_kernel", [fn], inputs, warmup, repeat)
    [found] = _run(
        {getattr(fn, "__name__", type(fn).__name__): _call(fn, inputs)},
        inputs,
        warmup,
        repeat,
        cold,
    )
    if plot is not None:
        Comparison((found,)).plot(plot)
    return found


def compare_implementations(
    fns: Mapping[str, Callable[..., Any]],
    *inputs: Any,
    warmup: int = 10,
    repeat: int = 100,
    cold: bool = True,
) -> Comparison:
    """Times several functions of the same inputs in rotation, and compares their results.

    Args:
        fns: {name: function}; the first one is the reference
        inputs: arguments of each function
        warmup: as in benchmark_kernel
        repeat: as in benchmark_kernel
        cold: as in benchmark_kernel

    Returns:
        The Comparison.

    Raises:
        TypeError, ValueError, NotImplementedError: as in benchmark_kernel.
    """
    if not isinstance(fns, Mapping) or not fns:
        raise TypeError(
            f"kf.benchmarks.compare_implementations: the functions are {type(fns).__name__}, "
            f"expected {{name: function}}"
        )
    _refuse("compare_implementations", list(fns.values()), inputs, warmup, repeat)
    return Comparison(
        _run({name: _call(fn, inputs) for name, fn in fns.items()}, inputs, warmup, repeat, cold)
    )
