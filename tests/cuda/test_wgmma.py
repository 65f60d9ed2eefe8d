# SPDX-License-Identifier: Apache-2.0
"""Products by wgmma (kf/core/gemm_hopper.cuh) on a GPU of compute capability 9.0, in code compiled for sm_90a: shapes that fill tiles and the ring of
stages or do not, of every op that goes this way; and that it is this way that they go. Needs such a GPU."""

import ctypes

import checks
import kflib
import pytest
from conftest import BUILD
from wgmma import FUNCTIONS

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)
if kflib.capability() != (9, 0):
    pytest.skip("the device has no wgmma", allow_module_level=True)

FLAGS = ("-O3", "-gencode=arch=compute_90a,code=sm_90a")
COUNTED = """extern "C" int kft_threads;
#define KF_ON_LAUNCH(function, kernel, config) kft_threads = (int)(config)->blockDim.x
"""
SHAPES = [(1, 130, 136, 72), (2, 200, 72, 712), (1, 65, 8, 8), (3, 129, 40, 64), (1, 1000, 1032, 520), (2, 1024, 2304, 768), (1, 3000, 136, 72)]


def build():
    header = BUILD / "cuda/threads.h"
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(COUNTED)
    return kflib.build("cuda", FUNCTIONS, BUILD / "cuda", (*FLAGS, "-include", str(header)), extra={"threads.cu": "int kft_threads = 0;\n"})


@pytest.fixture(scope="module")
def lib():
    return build()


@pytest.mark.parametrize("f", FUNCTIONS, ids=[f["name"] for f in FUNCTIONS])
def test_launchers(lib, f):
    memory = checks.CudaMemory()
    for sizes in SHAPES:
        checks.run(lib, memory, f, sizes)
        if not f["bwd"] and (sizes[1] % 8 == 0 or not {"tn", "tt"} & set(f["op"].split("_"))):  # rows of x as they lie there
            assert ctypes.c_int.in_dll(lib.dll, "kft_threads").value == 384
