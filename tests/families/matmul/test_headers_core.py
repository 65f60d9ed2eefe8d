# SPDX-License-Identifier: Apache-2.0
"""kf/core/matmul/matmul.cuh under endings written by hand (kernel.cuh), compiled: sums stay in registers, in every way to load; before sm_80 too,
where a kernel of mma.sync may have 32 threads, by which a launcher knows it; and by NVRTC."""

import re

import cases
import kflib
import nvrtc
import pytest
import toolkit
from compilers import NVCC, passes, write

INCLUDE = [kflib.ROOT / "include", kflib.ROOT / "tests/families/matmul"]
SIGNATURE = "(kfi_gemm_side, kfi_gemm_side, kf_i64, kf_i64, ending, kfi_gemm)"
BF16, F32, F64 = 0, 2, 3
MIDDLE, SMALL, WIDE, LEAST = range(4)
# type, tile, layout, products, how
KERNELS = cases.by_level(
    [(BF16, MIDDLE, 0, 1, 0), (BF16, MIDDLE, 3, 1, 1), (F32, WIDE, 0, 1, 0)],
    [
        *((BF16, tile, layout, 1, 0) for tile in (MIDDLE, SMALL) for layout in range(4)),
        (BF16, MIDDLE, 0, 2, 0),
        *((BF16, tile, layout, 1, 1) for tile in (MIDDLE, SMALL) for layout in range(4)),
        *(
            (F32, tile, layout, 1, how)
            for tile in (WIDE, LEAST)
            for layout in range(4)
            for how in (0, 1)
        ),
        *((F64, LEAST, layout, 1, 0) for layout in range(4)),
        (BF16, LEAST, 0, 1, 1),
    ],
)
FEW = 64  # bytes: a few addresses, read back once a stage, which is 1,024 fma or 64 mma.sync of a thread; sums spilled would be 256 and more


def run(kernels, folder, *options):
    """What nvcc says of these kernels; the result is in folder / "out"."""
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
    said = run(KERNELS, tmp_path, f"-arch={arch}", "-Xptxas", "-v", "-cubin")
    frames = re.findall(
        r"Function properties for \w*?productI(\w+?)EEv\w*\n\s+(\d+) bytes stack frame", said
    )
    found = {of(name): int(frame) for name, frame in frames}
    assert set(found) == set(KERNELS)
    assert not {kernel: frame for kernel, frame in found.items() if frame > FEW}


@pytest.mark.skipif(not NVCC, reason="no nvcc")
def test_before_sm_80(tmp_path):
    """A kernel of mma.sync has a warp's launch bounds there."""
    kernels = (BF16, MIDDLE, 0, 1, 0), (BF16, LEAST, 0, 1, 1)
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
