# SPDX-License-Identifier: Apache-2.0
"""kf.benchmarks: order and number of calls, statistics, and errors."""

import re
import types
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest


@pytest.fixture
def benchmarks(kf):
    from kernel_fusion import benchmarks

    return benchmarks


@pytest.fixture
def clock(benchmarks, monkeypatch):
    """A fake clock, which functions made by waiting() advance by given milliseconds per call."""
    now = types.SimpleNamespace(ns=0)
    monkeypatch.setattr(benchmarks, "time", types.SimpleNamespace(perf_counter_ns=lambda: now.ns))

    def waiting(calls, *milliseconds):
        def fn(x):
            now.ns += int(milliseconds[len(calls) % len(milliseconds)] * 1e6)
            calls.append(fn)
            return x * 2

        return fn

    return waiting


def test_one_function(benchmarks, clock):
    calls, x = [], np.ones(1000)
    found = benchmarks.benchmark_kernel(
        clock(calls, 90, 90, 90, 1, 5, 2, 4, 3), [x], warmup=2, repeat=5
    )
    assert len(calls) == 1 + 2 + 5 and found.samples == (1e-3, 5e-3, 2e-3, 4e-3, 3e-3)
    assert (
        found.median == 3e-3
        and found.quartiles == (2e-3, 4e-3)
        and abs(found.spread - 2 / 3) < 1e-12
    )
    assert found.bytes == 16000 and found.bandwidth == 16000 / 3e-3
    assert (
        str(found)
        == "fn: 3 ms (middle half 2 ms to 4 ms), 0.00533 GB/s of 16000 bytes, cold caches"
    )
    by_name = benchmarks.benchmark_kernel(lambda x: None, {"x": 3}, warmup=0, repeat=1, cold=False)
    assert by_name.bytes is None and len(by_name.samples) == 1


def test_short_calls_are_timed_in_a_row(benchmarks, clock):
    """Times 50 calls of 1 us per sample, even if one of three probes is disturbed; not with cold
    caches.
    """
    calls = []
    found = benchmarks.benchmark_kernel(
        clock(calls, 1, 7, *[0.001] * 200), [0], warmup=0, repeat=3, cold=False
    )
    assert len(calls) == 1 + 3 + 3 * 50 and abs(found.median - 1e-6) < 1e-12
    calls.clear()
    benchmarks.benchmark_kernel(clock(calls, 0.001), [0], warmup=0, repeat=3)
    assert len(calls) == 1 + 3


def test_cold_caches(benchmarks, monkeypatch):
    """A buffer larger than the largest cache is written before each sample."""
    flushed = []
    monkeypatch.setattr(
        benchmarks._Flush, "__call__", lambda self: flushed.append(self.memory.nbytes)
    )
    benchmarks.compare_implementations({"a": lambda: 0, "b": lambda: 0}, warmup=3, repeat=4)
    assert len(flushed) == 8 and min(flushed) >= 2 * benchmarks._cache_bytes() >= 64 << 20


def test_comparison(benchmarks, clock, tmp_path):
    calls, x = [], np.arange(6.0)
    fast, slow, wrong = clock([], 0.1), clock([], 1), clock(calls, 0.2)
    found = benchmarks.compare_implementations(
        {"fast & sure": fast, "slow": slow, "wrong": lambda x: wrong(x) + 0.5},
        x,
        warmup=1,
        repeat=4,
        cold=False,
    )
    assert found["slow"].median == 1e-3 and abs(found["fast & sure"].median - 1e-4) < 1e-12
    assert [t.difference for t in found.timings] == [None, 0, 0.5]
    with pytest.raises(KeyError, match="fastest"):
        found["fastest"]
    table = str(found).splitlines()
    assert (
        len(table) == 5
        and "times the first" in table[0]
        and re.search(r"^wrong .*\| +0.5$", table[4])
        and len({len(line) for line in table}) == 1
    )
    picture = ElementTree.fromstring(found.plot(tmp_path / "bars.svg"))
    bars = [float(e.get("width")) for e in picture.iter() if e.tag.endswith("rect")]
    assert bars == [40, 400, 80] and (tmp_path / "bars.svg").read_text() == found.plot()


def test_what_is_no_number_does_not_differ(benchmarks):
    """Equal NaN and infinities have no difference."""
    x = np.array([np.nan, np.inf, -np.inf, 1])
    found = benchmarks.compare_implementations(
        {
            "a": lambda: x,
            "b": lambda: x + 0,
            "c": lambda: -x,
            "d": lambda: np.nan_to_num(x, nan=0.0),
        },
        warmup=0,
        repeat=1,
    )
    assert [t.difference for t in found.timings[:3]] == [None, 0, np.inf] and np.isnan(
        found["d"].difference
    )


def test_turns(benchmarks):
    order = []
    benchmarks.compare_implementations(
        {n: lambda n=n: order.append(n) for n in "abc"}, warmup=0, repeat=3
    )
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"


def test_of_kf(benchmarks, kf):
    torch = pytest.importorskip("torch")
    x = torch.randn(64, 64)
    found = benchmarks.compare_implementations(
        {"kf": kf.ops.gelu, "torch": torch.nn.functional.gelu}, x, warmup=1, repeat=3, cold=False
    )
    assert found["torch"].difference < 1e-5 and found["kf"].bytes == 2 * 4 * 64 * 64


def test_what_is_refused(benchmarks):
    torch = pytest.importorskip("torch")
    for call, error, text in (
        (lambda: benchmarks.benchmark_kernel(3, []), TypeError, "3 is int, expected a function"),
        (
            lambda: benchmarks.benchmark_kernel(abs, [1], repeat=0),
            ValueError,
            "repeat is 0, expected a whole number of",
        ),
        (
            lambda: benchmarks.compare_implementations([abs], 1),
            TypeError,
            "the functions are list, expected {name: function}",
        ),
        (
            lambda: benchmarks.benchmark_kernel(abs, [torch.ones(1, device="meta")]),
            NotImplementedError,
            "an input is on meta",
        ),
    ):
        with pytest.raises(error, match=re.escape(text)):
            call()
