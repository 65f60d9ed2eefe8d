# SPDX-License-Identifier: Apache-2.0
"""Compiles kf/core/matmul/matmul.cuh with hand-written epilogues (kernel.cuh). Accumulators
must stay in registers with every kind of load. Before sm_80 a kernel of mma.sync must have launch
bounds of 32 threads, by which launchers recognise it. NVRTC must compile it too."""

import re

import cases
import kflib
import nvrtc
import pytest
import toolkit
from compilers import NVCC, passes, write

INCLUDE = [kflib.ROOT / "include", kflib.ROOT / "tests/families/matmul"]
SIGNATURE = "(kfi_gemm_matrix, kfi_gemm_matrix, kf_i64, kf_i64, ending, kfi_gemm)"
BF16, F32, F64 = 0, 2, 3
MMA_128x128, MMA_64x64, SIMT_128x128, SIMT_64x64 = range(4)
# type, tile, layout, products, how
KERNELS = cases.by_level(
    [(BF16, MMA_128x128, 0, 1, 0), (BF16, MMA_128x128, 3, 1, 1), (F32, SIMT_128x128, 0, 1, 0)],
    [
        *((BF16, tile, layout, 1, 0) for tile in (MMA_128x128, MMA_64x64) for layout in range(4)),
        (BF16, MMA_128x128, 0, 2, 0),
        *((BF16, tile, layout, 1, 1) for tile in (MMA_128x128, MMA_64x64) for layout in range(4)),
        *(
            (F32, tile, layout, 1, how)
            for tile in (SIMT_128x128, SIMT_64x64)
            for layout in range(4)
            for how in (0, 1)
        ),
        *((F64, SIMT_64x64, layout, 1, 0) for layout in range(4)),
        (BF16, SIMT_64x64, 0, 1, 1),
    ],
)
# Bytes of a frame: a few addresses, read back once per stage of 1,024 fma or 64 mma.sync of a
# thread. Spilled accumulators would take 256 and more.
MOST_FRAME = 64


def run(kernels, folder, *options):
    """Returns nvcc's output for these kernels; the result is in folder / "out"."""
    text = "".join(
        f"template __global__ void product<{', '.join(map(str, k))}>{SIGNATURE};\n" for k in kernels
    )
    [source] = write(folder, {"products.cu": '#include "kernel.cuh"\n' + text})
    return passes(
        [
            NVCC,
            "-O3",
            "-std=c++17",
            *options,
            *(f"-I{d}" for d in INCLUDE),
            source,
            "-o",
            folder / "out",
        ],
        cwd=folder,
    )


def of(name):
    return tuple(int(n) for n in re.findall(r"Li(\d+)", name))


@pytest.mark.skipif(not NVCC, reason="no nvcc")
@pytest.mark.parametrize(
    "arch", cases.by_level(["sm_90"], ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100"])
)
def test_sums_are_in_registers(arch, tmp_path):
    output = run(KERNELS, tmp_path, f"-arch={arch}", "-Xptxas", "-v", "-cubin")
    frames = re.findall(
        r"Function properties for \w*?productI(\w+?)EEv\w*\n\s+(\d+) bytes stack frame", output
    )
    found = {of(name): int(frame) for name, frame in frames}
    assert set(found) == set(KERNELS)
    assert not {kernel: frame for kernel, frame in found.items() if frame > MOST_FRAME}


@pytest.mark.skipif(not NVCC, reason="no nvcc")
def test_before_sm_80(tmp_path):
    """A kernel of mma.sync has a warp's launch bounds before sm_80."""
    kernels = (BF16, MMA_128x128, 0, 1, 0), (BF16, SIMT_64x64, 0, 1, 1)
    for arch, threads in (("sm_75", [32, 128]), ("sm_80", [128, 128])):
        run(kernels, tmp_path, f"-arch={arch}", "-ptx")
        found = re.findall(
            r"\.entry \w*?productI(\w+?)EEv\w*\([^{]*?\.maxntid (\d+)",
            (tmp_path / "out").read_text(),
        )
        assert {of(name): int(n) for name, n in found} == dict(zip(kernels, threads))


@pytest.mark.skipif(not toolkit.nvrtc(), reason="no NVRTC")
def test_nvrtc():
    kernels = ["product<0, 0, 0, 1, 0>", "product<3, 3, 3, 1, 1>", "joint<0, 1>"]
    _, names, log = nvrtc.compile_text('#include "kernel.cuh"\n', kernels, INCLUDE)
    assert len(names) == 3 and "error" not in log
