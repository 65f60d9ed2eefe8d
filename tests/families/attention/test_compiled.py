# SPDX-License-Identifier: Apache-2.0
"""Tests which kernels of attention a file for sm_90a compiles (KF_HEAD_DIMS, KF_SCHEDULES)."""

import sys

import kflib
import pytest

sys.path.insert(0, str(kflib.ROOT / "tests/headers"))
import budget  # noqa: E402
from instructions import cubin_of  # noqa: E402

pytestmark = [pytest.mark.check, pytest.mark.skipif(not budget.NVCC, reason="no nvcc")]
ARCH = "-gencode=arch=compute_90a,code=sm_90a"
EMPTY = 32  # instructions of a kernel without code, at most
CALL = """#include <kf/ops/causal_attention.cuh>
kf_result_t call(const kf_bf16 *q, const kf_bf16 *k, const kf_bf16 *v, kf_bf16 *out,
    const kf_attention_t *shape, void *workspace, size_t bytes, cudaStream_t stream)
{
    return kf_causal_attention_bf16(q, k, v, out, nullptr, nullptr, nullptr, shape, nullptr, 1.0f,
        workspace, bytes, stream);
}
"""


@pytest.mark.parametrize(
    ("dims", "schedules", "expected"),
    [
        # wgmma alone; mma.sync, alone and beside wgmma; in place of both for other rows.
        (2, 4, {"hopper": 1}),
        (1, 2, {"mma": 1}),
        (1, 6, {"hopper": 1, "mma": 1}),
        (1, 7, {"hopper": 1, "mma": 1}),
        (8, 1, {"mma": 1, "simt": 1}),
    ],
)
def test_kernels_with_code(dims, schedules, expected, include, tmp_path):
    (tmp_path / "call.cu").write_text(CALL)
    found = cubin_of(
        tmp_path / "call.cu",
        include,
        tmp_path,
        f"-DKF_HEAD_DIMS={dims}",
        f"-DKF_SCHEDULES={schedules}",
        arch=ARCH,
    )
    coded = [name for name, count in found.items() if count > EMPTY]
    kinds = {
        kind: sum(f"attention_{kind}I" in n for n in coded) for kind in ("hopper", "mma", "simt")
    }
    assert {kind: count for kind, count in kinds.items() if count} == expected, found


@pytest.mark.level(2)
def test_time(include, tmp_path):
    """Limits the processor time relative to a file without kf: 2.4 for one dimension in practice,
    6.5 for all."""
    for name, text in (("call", CALL), ("floor", budget.FLOOR)):
        (tmp_path / f"{name}.cu").write_text(text)
    flags = [budget.NVCC, "-std=c++17", "-O3", ARCH, *(f"-I{d}" for d in include), "-c"]
    cut = ["-DKF_HEAD_DIMS=2", "-DKF_SCHEDULES=4"]
    floor, one, every = (
        min(budget.compile_seconds([*flags, *more, "-o", "made.o"], tmp_path) for _ in range(2))
        for more in (["floor.cu"], ["call.cu", *cut], ["call.cu"])
    )
    assert one <= 3 * floor and every <= 8 * floor, (floor, one, every)
