# SPDX-License-Identifier: Apache-2.0
"""Tests the attention kernels of kf/core/attention in the emulator against float64
(attention_core.py). Planted faults must be noticed."""

import attention_core
import cases
import emulator
import faults
import pytest
import toolkit
from attention_core import BF16, BIAS, F16, F32, F64, MMA, SIMT, SOFTCAP, Case

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")

# Lengths around 64 rows and 128 (80) keys; queries before, at and behind the keys; more tiles than
# blocks.
HOPPER = [
    Case(queries=1, keys=1),
    Case(queries=64, keys=127, heads=4, kv_heads=1),
    Case(queries=130, keys=300),
    Case(queries=130, keys=128, right=0, heads=2),
    Case(queries=193, keys=193, right=0),
    Case(queries=193, keys=150, right=0, shift=0, dim=40),
    Case(queries=130, keys=300, right=0, heads=7, kv_heads=1, dim=72, packed=True),
    Case(queries=65, keys=70, right=0, shift=0, dim=72, batch=2, packed=True),
    Case(queries=130, keys=400, left=20, right=0, dim=64),
    Case(queries=65, keys=300, left=64, right=3, dim=96, type=F16),
    Case(queries=63, keys=129, dim=128, right=0),
    Case(queries=300, keys=130, dim=128, right=0, hidden_nan=True, blocks=1),
    Case(queries=129, keys=200, right=70, left=70, hidden_nan=True),
    Case(queries=400, keys=400, left=20, right=0, blocks=1),
    Case(queries=65, keys=170, dim=192, dim_v=128, right=0),
    Case(queries=65, keys=170, dim=256, right=0, hidden_nan=True),
    Case(queries=65, keys=81, dim=136, dim_v=8),
    Case(queries=65, keys=0),
    Case(queries=65, keys=170, left=-200),
    Case(queries=65, keys=170, dim=128, type=F16, score=BIAS, right=0, heads=2),
    Case(queries=65, keys=170, score=SOFTCAP, hidden_nan=True, right=0),
    Case(queries=65, keys=170, dim=128, type=F16, score=BIAS, hidden_nan=True, right=0),
    Case(queries=65, keys=170, scale=-0.3, right=0),
    Case(queries=65, keys=170, scale=0.0, right=0),
    Case(queries=65, keys=170, scale=40.0),
]
# Lengths around 64 rows and 64 (32) keys; rows that begin anywhere (offset), in all tensors or in v
# and out alone; dimensions that are no multiples of 8.
PORTABLE = [
    Case(kernel=MMA, queries=1, keys=1),
    Case(kernel=MMA, queries=65, keys=130),
    Case(kernel=MMA, queries=63, keys=65, right=0, heads=7, kv_heads=1),
    Case(kernel=MMA, queries=130, keys=129, right=0, hidden_nan=True, heads=4, kv_heads=1),
    Case(kernel=MMA, queries=130, keys=129, right=0, shift=0, dim=40, offset=1),
    Case(kernel=MMA, queries=70, keys=200, right=0, dim=128, packed=True, heads=3, batch=2),
    Case(kernel=MMA, queries=70, keys=200, left=60, right=3, dim=72, type=F16, offset=3),
    Case(kernel=MMA, queries=70, keys=100, right=0, dim=256, left=50, hidden_nan=True),
    Case(kernel=MMA, queries=70, keys=100, right=0, dim=200, dim_v=104),
    Case(kernel=MMA, queries=70, keys=100, right=0, type=F16, score=SOFTCAP),
    Case(kernel=MMA, queries=70, keys=100, right=0, dim=128, score=BIAS, heads=2),
    Case(kernel=MMA, queries=70, keys=100, right=0, dim=128, score=BIAS, hidden_nan=True),
    Case(kernel=MMA, queries=70, keys=100, right=0, dim=40, dim_v=20),
    Case(kernel=MMA, queries=70, keys=100, left=50, dim=7, dim_v=100, type=F16, hidden_nan=True),
    Case(kernel=MMA, queries=70, keys=0),
    Case(kernel=MMA, queries=100, keys=70, right=0, scale=-1.0),
    Case(kernel=MMA, queries=100, keys=70, scale=40.0),
    Case(kernel=SIMT, type=F32, queries=1, keys=1),
    Case(kernel=SIMT, type=F32, queries=65, keys=130, left=40),
    Case(
        kernel=SIMT, type=F32, queries=130, keys=65, right=0, hidden_nan=True, heads=4, kv_heads=1
    ),
    Case(kernel=SIMT, type=F32, queries=70, keys=100, dim=128, right=0, score=BIAS),
    Case(kernel=SIMT, type=F32, queries=70, keys=100, dim=256, dim_v=250, right=0, packed=True),
    Case(kernel=SIMT, type=F32, queries=65, keys=70, scale=40.0),
    Case(kernel=SIMT, type=F64, queries=65, keys=70, right=0, dim=40, offset=1, heads=2, batch=2),
    Case(kernel=SIMT, type=F64, queries=65, keys=70, right=0, dim=128, score=SOFTCAP),
    Case(kernel=SIMT, type=F64, queries=35, keys=70, right=0, dim=256, hidden_nan=True),
    Case(kernel=SIMT, type=F64, queries=65, keys=70, right=0, scale=-0.3),
    Case(kernel=SIMT, type=F64, queries=5, keys=0),
    Case(kernel=SIMT, type=BF16, queries=65, keys=70, right=0),
    Case(kernel=SIMT, type=F16, queries=65, keys=70, right=0, dim=72),
]
# Warpgroups without rows let many blocks pass, and lanes of a warp may be stages apart.
PASSED = [Case(queries=1, keys=1500, delay=3, seed=seed) for seed in range(6)]
ORDERS = cases.by_level((emulator.RANDOM,), (emulator.RANDOM, emulator.FORWARD, emulator.REVERSED))


def name_of(case):
    default = Case()
    own = {k: v for k, v in vars(case).items() if v != getattr(default, k)}
    return "-".join(f"{k}{v}" for k, v in own.items()) or "default"


@pytest.fixture(scope="module")
def kernels(include, once):
    folder = once(
        "attention kernels", lambda folder: [folder, attention_core.library(include, folder)][0]
    )
    return attention_core.load(folder / "attention_plain.so")


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"order{order}")
@pytest.mark.parametrize("case", HOPPER, ids=name_of)
def test_hopper(kernels, case, order):
    attention_core.check(kernels, case, order)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"order{order}")
@pytest.mark.parametrize("case", PORTABLE, ids=name_of)
def test_portable(kernels, case, order):
    attention_core.check(kernels, case, order)


@pytest.mark.parametrize("case", PASSED, ids=name_of)
def test_hopper_passes_blocks(kernels, case):
    attention_core.check(kernels, case)


HOPPER_FILE, PORTABLE_FILE, SIMT_FILE, STORE, SOFTMAX, ARGS, SCORE = (
    f"kf/core/attention/{name}.cuh"
    for name in ("hopper", "portable", "simt", "store", "softmax", "args", "score")
)
# file, pattern, replacement
SEEDED = {
    "a stage of K is released before its warp has passed the wait": (
        HOPPER_FILE,
        r"(wait_k<tile>\(\*w\);\n)        __syncwarp\(\);\n",
        r"\1",
    ),
    "a stage of V is released before its warp has passed the wait": (
        HOPPER_FILE,
        r"(wait_v<tile>\(\*w\);\n)        __syncwarp\(\);\n",
        r"\1",
    ),
    "a block at the end is not masked": (SOFTMAX, r"block > b\.last_whole", "false"),
    "a block at the beginning is not masked": (SOFTMAX, r"block < b\.first_whole", "false"),
    "a pair is read from an odd key on": (SCORE, r" && key % 2 == 0", ""),
    "a masked value reaches a row": (
        STORE,
        r"if \(\(partial \|\| score != KFI_SCORE_PLAIN [^)]*\(a\)\) &&",
        "if (false &&",
    ),
    "the row of a masked value is not recomputed with its own reference": (
        STORE,
        r"r\.reference = __shfl_sync\(0xffffffffu, reference, from\)",
        "r.reference = 0",
    ),
    "accumulators are not rescaled": (HOPPER_FILE, r"kfi_attention_rescale<t\.dim_v>\(", "(void)("),
    "a negative scale is taken for a positive one": (
        ARGS,
        r"a->scales = !\(scale > 0\)",
        "a->scales = scale == 0",
    ),
    "a stage of K is read before its copy is complete": (
        PORTABLE_FILE,
        r"kfi_fetch_wait<1>\(\);( // this block of K)",
        r"\1",
    ),
    "a stage of V is read before its copy is complete": (
        PORTABLE_FILE,
        r"kfi_fetch_wait<1>\(\);( // this block of V)",
        r"\1",
    ),
    "a stage of K is refilled while warps read it": (
        PORTABLE_FILE,
        r"__syncthreads\(\);( *// for all threads; the next)",
        r"\1",
    ),
    "a chunk past the dimension is loaded": (PORTABLE_FILE, r" && 8 \* chunk < from\.dim", ""),
    "an element past the dimension is loaded": (PORTABLE_FILE, r"e < count \? x : [^;]*;", "x;"),
    "a masked value reaches a sum": (SIMT_FILE, r"if \(masked && ", "if (false && "),
    "a slice is overwritten while warps read it": (
        SIMT_FILE,
        r"(d \+= slice\) \{\n)        __syncthreads\(\);\n",
        r"\1",
    ),
    "a slice of V is overwritten while warps read it": (
        SIMT_FILE,
        r"(c \+= KFI_ATTENTION_SIMT_COLS\) \{\n)            __syncthreads\(\);\n",
        r"\1",
    ),
    "the last warpgroup passes one block less": (
        HOPPER_FILE,
        r"pass_v<tile>\(w, b\.first - work\.first\)",
        "pass_v<tile>(w, 0)",
    ),
}


def passes(dll):
    try:
        for order in ORDERS:
            for case in HOPPER + PORTABLE:
                attention_core.check(dll, case, order)
        for case in PASSED:
            attention_core.check(dll, case)
    except AssertionError as error:
        print(error)
        return False
    return True


def test_every_fault_has_its_place(include, tmp_path):
    for file, text, instead in SEEDED.values():
        faults.plant(include, tmp_path, file, text, instead)


@pytest.mark.check
@pytest.mark.parametrize("what", faults.some(SEEDED))
def test_seeded_fault(include, tmp_path, what):
    broken = faults.plant(include, tmp_path, *SEEDED[what])
    assert not passes(attention_core.library(broken, tmp_path)), f"nobody notices {what}"
