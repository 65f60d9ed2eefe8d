# SPDX-License-Identifier: Apache-2.0
"""Tests on the host that the queried workspace holds what the blocks of a reduced gradient write,
for every shape, aligned or not."""

import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from budget import NVCC  # noqa: E402

pytestmark = pytest.mark.skipif(not NVCC, reason="no nvcc")
SOURCE = r"""
#include <kf/core/elementwise/elementwise.cuh>
#ifndef KFI_DEVICE_PASS // the launchers' arithmetic is not in the device's pass
static long long bad, shapes;
static void check(kf_i64 rows, kf_i64 channels, kf_i64 cols, bool is_channel, int size, int threads)
{
    const kf_i64 promised = (kf_i64)kfi_map_workspace(rows, channels, cols, is_channel, size,
        threads, 1, 1);
    const bool plane = is_channel && cols > 1;
    const kf_i64 period = plane ? channels * cols : is_channel ? channels : cols;
    const kfi_split split = kfi_make_split(rows, period, size, threads);
    for (int vec = 1; vec <= 16 / size; vec *= 16 / size) {
        const kf_i64 bx = vec > 1 ? split.bx : kfi_clamp(period, 1, KFI_MAP_THREADS);
        const kf_i64 tile = bx * vec;
        if (vec > 1 && (period % vec || (plane && cols < vec))) continue;
        const kf_i64 written = split.parts * split.slabs *
            (plane ? kfi_ceil(period, tile) * kfi_slots(tile, cols) : kfi_ceil(period, 4) * 4);
        if ((written > promised || bx > threads) && bad++ < 10)
            printf("%lld x %lld x %lld, %d bytes, vec %d: %lld values written, %lld promised\n",
                rows, channels, cols, size, vec, written, promised);
    }
    ++shapes;
}
int main()
{
    const kf_i64 rows[] = {1, 7, 64, 5350};
    const int threads[] = {512, 768, 1024}, sizes[] = {2, 4, 8};
    for (kf_i64 r : rows)
        for (int t : threads)
            for (int size : sizes) {
                for (kf_i64 channels = 1; channels < 300; ++channels)
                    for (kf_i64 inner = 1; inner < 70; ++inner)
                        check(r, channels, inner, true, size, t);
                for (kf_i64 cols = 1; cols < 5000; ++cols) check(r, 0, cols, false, size, t);
                const kf_i64 large[][2] =
                    {{64, 4096}, {512, 49}, {3, 100352}, {2048, 196}, {1 << 20, 16}, {5, 1 << 22}};
                for (auto &s : large) check(r, s[0], s[1], true, size, t);
            }
    printf("%lld shapes, %lld too small\n", shapes, bad);
    return bad != 0 || shapes < 100000;
}
#endif
"""


def test_the_workspace_holds_the_partial_sums(include, tmp_path):
    (tmp_path / "w.cu").write_text(SOURCE)
    subprocess.run(
        [NVCC, "-std=c++17", "-O2", "-arch=sm_90", *(f"-I{d}" for d in include), "w.cu", "-o", "w"],
        cwd=tmp_path,
        check=True,
    )
    done = subprocess.run([tmp_path / "w"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
