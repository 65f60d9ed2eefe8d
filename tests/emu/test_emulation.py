# SPDX-License-Identifier: Apache-2.0
"""Tests the emulator itself: its features behave as CUDA's, and it reports the faults it must
report."""

import pathlib
import re
import subprocess
import sys

import cases
import emulator
import numpy as np
import pytest
import toolkit

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from fault_kernels import (  # noqa: E402
    CLUSTER_REPORTS,
    ORDERS,
    REPORTS,
    SOURCE,
    Faults,
    in_a_process,
    library,
    line_of,
)

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")


@pytest.fixture(scope="module")
def faults():
    path = library("plain")
    yield Faults(path)
    path.unlink()


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
class TestWords:
    def test_shared_memory_is_nan(self, faults, order):
        for _ in range(2):  # also after a launch or a block has written there
            result, out = faults.run("unwritten", threads=1, blocks=3, order=order)
            assert result == 0 and list(out[:6]) == [1] * 6

    @pytest.mark.parametrize("threads", [1, 31, 256, 1024])
    def test_barriers(self, faults, order, threads):
        result, out = faults.run("reversal", threads, 3, order=order)
        want = [10000 * b + threads - 1 - t for b in range(3) for t in range(threads)]
        assert result == 0 and list(out[: 3 * threads]) == want

    def test_dynamic_memory(self, faults, order):
        for threads, blocks, cluster in ((1, 3, 0), (100, 4, 0), (100, 4, 2)):
            result, out = faults.run("dynamic", threads, blocks, cluster, 8 * threads, order=order)
            assert result == 0 and [
                list(pair) for pair in out[: 2 * threads * blocks].reshape(-1, 2)
            ] == [[1, 1000 * b + threads - 1 - t] for b in range(blocks) for t in range(threads)]
        for cluster, want in ((0, 11), (1, 11)):
            result, out = faults.run("no_dynamic", order=order, cluster=cluster)
            assert result == 0 and out[0] == want

    @pytest.mark.parametrize(
        "threads, blocks, cluster",
        [(1, 2, 2), (40, 8, 2), (33, 12, 4), (64, 16, 8), (64, 3, 1), (64, 3, 0)],
    )
    def test_clusters(self, faults, order, threads, blocks, cluster):
        n = max(cluster, 1)
        result, out = faults.run(
            "all_to_all",
            threads,
            blocks,
            cluster=cluster,
            dynamic=8 * (n + 1) * threads,
            order=order,
        )
        cluster_of = [range(b // n * n, b // n * n + n) for b in range(blocks)]
        sent = [
            [sum(1000 * other + t + 7 * (b % n) for other in cluster_of[b]) for t in range(threads)]
            for b in range(blocks)
        ]
        want = [
            [
                sent[b][(t + 2) % threads],
                sum(sent[other][(t + 1) % threads] for other in cluster_of[b]),
            ]
            for b in range(blocks)
            for t in range(threads)
        ]
        assert (
            result == 0
            and [list(pair) for pair in out[: 2 * threads * blocks].reshape(-1, 2)] == want
        ), faults.emu.report

    def test_a_cluster_as_large_as_can_be(self, faults, order):
        result, out = faults.run("some_return", 1024, 8, cluster=8, size=8192, order=order)
        assert result == 0 and list(out) == [int(t % 3 == 2) for _ in range(8) for t in range(1024)]

    @pytest.mark.parametrize("cluster", [0, 2])
    def test_warps(self, faults, order, cluster):
        result, out = faults.run("shuffles", 64, 2, cluster=cluster, order=order)
        assert result == 0
        for t, got in enumerate(out[:1024].reshape(128, 8)):
            t %= 64
            lane = t % 32
            down = lane + 4 if lane % 8 < 4 else lane
            up, multiples_of_3 = (
                lane - 2 if lane >= 2 else lane,
                sum(1 << i for i in range(0, 32, 3)),
            )
            want = [
                5,
                lane ^ 3,
                up,
                int(0.5 * down),
                multiples_of_3,
                101 if lane < 7 else 0,
                lane // 4 * 4 + (lane + 1) % 4,
                int(lane < 8),
            ]
            assert list(got) == want

    def test_copies(self, faults, order):
        """A cp.async copy is complete after its wait. Before that the destination holds ones in one
        order, and the data in another."""
        result, out = faults.run("copies", 64, order=order)
        got = out[:256].reshape(64, 4)
        t = np.arange(64)
        assert (
            result == 0
            and (got[:, 1] == 1000 + t).all()
            and (got[:, 2] == 3000 + t + 10000 * (4000 + t)).all()
        )
        for column in (0, 3):
            late, there = got[:, column] == -1, got[:, column] == 1000 + t
            assert (late | there).all()
            assert (
                late.all()
                if order == emulator.FORWARD
                else there.all()
                if order == emulator.REVERSED
                else 10 < late.sum() < 54
            )

    def test_matrices(self, faults, order):
        result, out = faults.run("four_matrices", 32, order=order)
        assert result == 0
        numbers = np.arange(256).reshape(4, 8, 8)
        for transposed, source in enumerate((numbers, numbers.transpose(0, 2, 1))):
            want = [
                [
                    source[i, lane // 4, lane % 4 * 2]
                    + (source[i, lane // 4, lane % 4 * 2 + 1] << 16)
                    for i in range(4)
                ]
                for lane in range(32)
            ]
            assert out[transposed * 128 :][:128].reshape(32, 4).tolist() == [
                [int(v) for v in row] for row in want
            ]

    def test_products(self, faults, order):
        result, out = faults.run("multiplied", 32, order=order)
        a = np.diag(np.arange(1.0, 17.0)) + np.fliplr(np.eye(16))
        want = 512 * (a @ np.outer(2.0 ** (np.arange(16) - 8), np.arange(1.0, 9.0)) + 0.5)
        assert result == 0 and (out[:256].reshape(2, 16, 8) == want).all()

    def test_votes(self, faults, order):
        result, out = faults.run("votes", 1024, order=order)
        assert result == 0 and set(out[:1024]) == {0 + 10 + 51200}
        result, out = faults.run("votes", 7, 4, cluster=4, order=order)
        assert result == 0 and set(out[:7]) == {1 + 0 + 400}

    def test_atomics(self, faults, order):
        result, out = faults.run("atomics", 100, 2, order=order)
        assert (
            result == 0
            and list(out[[0, 1, 2, 4, 5, 6, 7]]) == [600, 99, -99, 1, 1, 7, 1]
            and out[3:4].view(np.float64)[0] == 100.0
        )

    @pytest.mark.parametrize("cluster", [0, 2])
    def test_indices(self, faults, order, cluster):
        result, out = faults.run("indices", 5, 2, cluster=cluster, order=order)
        assert result == 0 and list(out[: 12 * 40]) == [
            1000 * b + t for b in range(12) for t in range(40)
        ]


def test_orders(faults):
    seen = {
        name: tuple(faults.run("order", 40, 3, order=order)[1][1:121])
        for name, order in ORDERS.items()
    }
    assert seen["forward"] == tuple(range(120)) and seen["reversed"] == tuple(reversed(range(120)))
    assert sorted(seen["random"]) == list(range(120)) and len(set(seen.values())) == 3
    again, other = (
        tuple(faults.run("order", 40, 3, order=emulator.RANDOM, seed=s)[1][1:121]) for s in (1, 2)
    )
    assert again == seen["random"] and sorted(other) == list(range(120)) and other != again


def test_orders_of_clusters(faults):
    """All threads of a cluster's blocks run before those of the next cluster."""
    seen = {
        name: tuple(faults.run("order", 20, 6, cluster=3, order=order)[1][1:121])
        for name, order in ORDERS.items()
    }
    assert seen["forward"] == tuple(range(120)) and seen["reversed"] == tuple(reversed(range(120)))
    clusters, blocks = [t // 60 for t in seen["random"]], [t // 20 for t in seen["random"]]
    assert (
        sorted(seen["random"]) == list(range(120))
        and sum(a != b for a, b in zip(clusters, clusters[1:])) == 1
    )
    assert sum(a != b for a, b in zip(blocks, blocks[1:])) > 40


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("which", REPORTS)
def test_reports(faults, which, order):
    threads, first, rest = REPORTS[which]
    result, out = faults.run(which, threads, order=order)
    text = faults.emu.report
    assert result == 719, text  # cudaErrorLaunchFailure
    assert text.startswith(f"{which}, block (0, 0, 0) of (1, 1, 1): ") and re.search(first, text), (
        text
    )
    assert re.search(rest, text), text
    if which == "barrier_not_reached":
        line = (
            SOURCE.read_text()
            .split("\n")
            .index("    __syncthreads(); /* the tests know this line */")
            + 1
        )
        assert f"faults.cpp:{line}\n" in text and out[0] == 0
    assert faults.run("reversal", 256, order=order)[0] == 0  # the next launch succeeds


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("which", CLUSTER_REPORTS)
def test_reports_of_clusters(faults, which, order):
    first, rest = CLUSTER_REPORTS[which]
    result, _ = faults.run(which, 64, 2, cluster=2, dynamic=64, order=order)
    text = faults.emu.report
    assert result == 719 and re.match(
        rf"{which}, block \([01], 0, 0\) of \(2, 1, 1\) in a cluster of 2: {first}", text
    ), text
    assert re.search(rest, text), text
    if which == "arrives_twice":
        assert f"faults.cpp:{line_of('the tests know this one')}\n" in text
    assert faults.run("reversal", 256, order=order)[0] == 0
    assert faults.run("all_to_all", 40, 8, cluster=4, dynamic=1600, order=order)[0] == 0


def test_copies_that_nobody_waits_for(faults):
    result, _ = faults.run("too_many_copies", 1)
    assert (
        result == 719
        and "thread 0 has more copies under way than there is room for, 256\n" in faults.emu.report
    )
    assert re.search(r"threads 0: is at cp.async, .*faults.cpp:\d+\n", faults.emu.report)
    # Copies complete at once in reversed order.
    assert faults.run("too_many_copies", 1, order=emulator.REVERSED)[0] == 0


def test_static_memory_without_clusters(faults):
    assert (
        faults.run("static_in_a_cluster", 64, 2)[0] == 0
        and faults.run("static_in_a_cluster", 64, 2, cluster=1)[0] == 0
    )


def test_a_warp_that_is_not_whole(faults):
    result, _ = faults.run("beyond_the_warp", threads=40)
    assert (
        result == 719
        and "threads 32-39: waits at __shfl_sync of lanes ffffffff" in faults.emu.report
    )
    assert faults.run("beyond_the_warp", threads=64)[0] == 0


def test_launches_that_a_device_refuses(faults):
    assert faults.run("no_race", threads=1024)[0] == 0
    assert (
        faults.run("no_race", threads=1025)[0] == 9
        and faults.run("no_race", threads=0)[0] == 9
        and faults.run("no_race", blocks=0)[0] == 9
    )
    assert faults.dll.kft_launch_nothing() == 98
    assert (
        faults.run("dynamic", dynamic=48 << 10)[0] == 0
        and faults.run("dynamic", dynamic=(48 << 10) + 1)[0] == 1
    )
    allow = faults.dll.kft_allow_dynamic
    assert (
        allow(96 << 10) == 0
        and faults.run("dynamic", dynamic=96 << 10)[0] == 0
        and faults.run("dynamic", dynamic=(96 << 10) + 1)[0] == 1
    )
    assert allow((227 << 10) + 1) == 1 and allow(48 << 10) == 0
    assert (
        faults.run("no_dynamic", blocks=16, cluster=8)[0] == 0
        and faults.run("no_dynamic", blocks=16, cluster=16)[0] == 912
    )
    assert (
        faults.run("no_dynamic", blocks=7, cluster=2)[0] == 912
        and faults.dll.kft_launch_flat_cluster() == 801
    )
    faults.emu.set(failure=209)
    before = faults.emu.launches
    assert (
        faults.run("no_race")[0] == 209
        and faults.emu.launches == before
        and faults.run("no_race")[0] == 0
    )


def test_missing_barriers_show_in_some_order(faults):
    want = [0, *range(63)]
    # The values happen to be there in forward order.
    assert list(faults.run("race", 64)[1][:64]) == want
    assert list(faults.run("race", 64, order=emulator.REVERSED)[1][:64]) != want


def test_a_fault_aborts(faults):
    """A fault aborts a program that has not disabled that."""
    done = in_a_process(faults.dll._name, "barrier_not_reached", aborts=1)
    assert done.returncode == -6 and done.stdout == ""
    assert (
        "kf_emu: barrier_not_reached, block (0, 0, 0) of (2, 1, 1): no thread can go on"
        in done.stderr
    )
    assert "threads 3, 35, 61-63: has returned" in done.stderr


def test_races_are_reported():
    """Races between threads and between blocks are reported with file and line. Barriers, launches
    and a thread's own memory cause no report."""
    path = library("tsan")
    try:
        done = in_a_process(path, "no_race,reversal,atomics,shuffles", "tsan")
        assert (
            done.returncode == 0 and done.stdout == "0\n" * 4 and "data race" not in done.stderr
        ), done.stderr[:3000]
        for which, text in (
            ("race", "buffer[threadIdx.x - 1]"),
            ("late_readers", "too early"),
            ("race_of_blocks", "void race_of_blocks"),
        ):
            done = in_a_process(path, which, "tsan")
            assert done.returncode == 66 and "WARNING: ThreadSanitizer: data race" in done.stderr, (
                which + done.stderr[:3000]
            )
            assert f"faults.cpp:{line_of(text)}" in done.stderr, done.stderr[:3000]
        done = in_a_process(
            path,
            "dynamic,all_to_all,shuffles,some_return,dynamic,all_to_all",
            "tsan",
            blocks=8,
            cluster=2,
            dynamic=1600,
        )
        assert (
            done.returncode == 0 and done.stdout == "0\n" * 6 and "data race" not in done.stderr
        ), done.stderr[:3000]
        done = in_a_process(path, "race_in_a_cluster", "tsan", cluster=2, dynamic=512)
        assert done.returncode == 66 and "WARNING: ThreadSanitizer: data race" in done.stderr, (
            done.stderr[:3000]
        )
        assert f"faults.cpp:{line_of('too early for a block')}" in done.stderr, done.stderr[:3000]
    finally:
        path.unlink()


def test_accesses_out_of_bounds_are_reported():
    path = library("asan")
    try:
        done = in_a_process(path, "beyond_shared", "asan", threads=17)
        assert done.returncode == 66 and re.search(
            "global-buffer-overflow|insufficient space for an object", done.stderr
        ), done.stderr[:3000]
        assert f"faults.cpp:{line_of('17 threads write 16 elements')}" in done.stderr
        assert in_a_process(path, "beyond_shared", "asan", threads=16).returncode == 0
        for which, threads, cluster, fault, text in (
            ("beyond_dynamic", 42, 0, "heap-buffer-overflow", "42 threads write 41 bytes"),
            ("beyond_dynamic", 42, 2, "heap-buffer-overflow", "42 threads write 41 bytes"),
            ("ended_since", 42, 2, "use-after-poison", "a block that has ended"),
        ):
            done = in_a_process(path, which, "asan", threads=threads, cluster=cluster, dynamic=41)
            assert done.returncode == 66 and fault in done.stderr, done.stderr[:3000]
            assert f"faults.cpp:{line_of(text)}" in done.stderr
        done = in_a_process(path, "beyond_dynamic", "asan", threads=41, dynamic=41)
        assert done.returncode == 0 and done.stdout == "0\n", done.stderr[:3000]
        done = in_a_process(
            path,
            "all_to_all,has_ended,all_to_all,dynamic",
            "asan",
            blocks=8,
            cluster=4,
            dynamic=64 * 5 * 8,
        )
        assert done.returncode == 0 and done.stdout == "0\n719\n0\n0\n", done.stderr[:3000]
        done = in_a_process(path, "barrier_not_reached", "asan")
        # Stacks of threads that never returned do not confuse AddressSanitizer.
        assert done.returncode == 0 and done.stdout == "719\n", done.stderr[:3000]
    finally:
        path.unlink()


USER = """
#include <cuda_runtime.h>
#include <%s.cuh>
#include <%s.h>
float by_hand(float x) { return kf_gelu(x) + kf_silu_bwd(x, 1.0f); }
kf_result_t both(const float *x, float *y)
{
    return kf_cpu_relu_f32(x, y, 1) ? KF_SUCCESS : kf_relu_f32(x, y, 1, nullptr);
}
"""


def test_umbrellas(include, tmp_path):
    """Hand-written kernels compile with the umbrella headers. Level 1 takes the headers of one op,
    because all take ten seconds to parse."""
    (tmp_path / "user.cpp").write_text(USER.replace("%s", cases.by_level("kf/ops/act", "kf/kf")))
    folders = [f"-I{d}" for d in (emulator.HERE / "include", emulator.HERE, *include)]
    subprocess.run(
        [
            "g++",
            "-std=c++17",
            "-Werror",
            *emulator.flags("plain"),
            *folders,
            "-fsyntax-only",
            str(tmp_path / "user.cpp"),
        ],
        check=True,
    )
