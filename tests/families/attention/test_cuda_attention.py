# SPDX-License-Identifier: Apache-2.0
"""Attention on a GPU against float64: every op and dtype, by wgmma, and by mma.sync and FMAs in
libraries that KF_SCHEDULES compiles without wgmma."""

import concurrent.futures
import ctypes
import os

import checks
import gpu_cases
import kflib
import numpy as np
import pytest
import scores
from conftest import BUILD
from launcher import TOLERANCE, Call

pytestmark = pytest.mark.skipif(not kflib.has_gpu(), reason="no GPU")
FUNCTIONS = {f["name"]: f for f in kflib.manifest()["functions"] if f["family"] == "attention"}
DTYPES = ("bf16", "f16", "f32", "f64")
SCORES = (
    "attention",
    "window_attention",
    "softcap_causal_attention",
    "alibi_causal_attention",
    "bias_attention",
    "mask_attention",
    "sink_window_attention",
)
# The last launch's threads: a block of wgmma has 384 or 512, others have 128.
LAUNCHED = """extern "C" { __attribute__((weak)) int kft_threads = 0; }
#define KF_ON_LAUNCH(function, kernel, config) (kft_threads = (int)(config)->blockDim.x)
"""
WGMMA, NO_WGMMA, SMALL = "-DKF_SCHEDULES=4", "-DKF_SCHEDULES=3", "-DKF_HEAD_DIMS=1"
# Small dimensions, of which one kernel of each schedule is compiled.
DIMS = ((64, 64), (40, 24), (8, 56))
ODD = ((7, 3), (33, 63))


def of(op, dtypes):
    return [FUNCTIONS[f"kf_{op}_{d}"] for d in dtypes]


def hopper():
    return kflib.capability() == (9, 0)


def builds():
    """Returns {name: (functions, flags)}. All head dimensions: causal attention, a library per
    dtype; other ops have one dimension."""
    found = {d: (of("causal_attention", [d]), NO_WGMMA) for d in DTYPES}
    if hopper():
        found |= {f"{d} wgmma": (of("causal_attention", [d]), WGMMA) for d in DTYPES[:2]}
    for d in DTYPES:
        every = [f for op in SCORES for f in of(op, [d])]
        found[f"{d} scores"] = every, SMALL
        if d in DTYPES[:2]:
            found[f"{d} scores, no wgmma"] = every, f"{SMALL} {NO_WGMMA}"
    return found


@pytest.fixture(scope="module")
def libraries():
    """{name: library}, compiled at once."""
    folder = BUILD / "cuda"
    folder.mkdir(parents=True, exist_ok=True)
    header = folder / "attention_launched.h"
    written = header.with_suffix(f".{os.getpid()}")
    written.write_text(LAUNCHED)
    written.replace(header)  # other processes may be reading it
    own = "-gencode=arch=compute_90a,code=sm_90a" if hopper() else "-arch=native"

    def build(name, functions, more):
        word = name.replace(",", "").replace(" ", "_")
        # The name keeps builds at the same time from writing one object.
        flags = ("-O3", own, "-include", str(header), f"-DKFT_{word}", *more.split())
        return kflib.build("cuda", functions, folder / f"attention_{word}", flags)

    wanted = builds()
    with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
        made = {name: pool.submit(build, name, *one) for name, one in wanted.items()}
        return {name: one.result() for name, one in made.items()}


@pytest.fixture(scope="module")
def memory():
    return checks.CudaMemory(1 << 28)


def threads(lib):
    return ctypes.c_int.in_dll(lib.dll, "kft_threads")


def run(lib, memory, f, case, expected=None):
    """Compares a call with the oracle. expected: the threads of its launch."""
    threads(lib).value = 0
    found = scores.check(lib, memory, f, case)
    if expected:
        assert threads(lib).value in expected, (f["name"], case, threads(lib).value)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_dimensions(libraries, memory, dtype):
    """Causal attention by mma.sync and FMAs."""
    [f] = of("causal_attention", [dtype])
    for case in [*gpu_cases.aligned(), *gpu_cases.others(), *gpu_cases.shards()]:
        run(libraries[dtype], memory, f, case, (0, 128))


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_all_dimensions_by_wgmma(libraries, memory, dtype):
    if not hopper():
        pytest.skip("the device has no wgmma")
    [f] = of("causal_attention", [dtype])
    for case in [*gpu_cases.aligned(), *gpu_cases.shards()]:
        run(libraries[f"{dtype} wgmma"], memory, f, case, (384, 512))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", SCORES)
def test_scores(libraries, memory, op, dtype):
    """Every op by the schedule that the launcher picks, and without wgmma."""
    [f] = of(op, [dtype])
    small = dtype in DTYPES[:2]
    fast = (384, 512) if small and hopper() else (128,)
    aligned = [*gpu_cases.aligned(DIMS), *gpu_cases.shards()]
    for case in aligned:
        run(libraries[f"{dtype} scores"], memory, f, case, fast)
    for case in gpu_cases.others(DIMS, ODD):
        portable = (128,) if case.queries and case.keys else None
        run(libraries[f"{dtype} scores"], memory, f, case, portable)
    for case in aligned if small else ():
        run(libraries[f"{dtype} scores, no wgmma"], memory, f, case, (128,))


def own_libraries(libraries, dtype, op):
    """Libraries that have an op."""
    names = [n for n in libraries if n.split()[0] == dtype]
    return [libraries[n] for n in names if ("scores" in n) == (op != "causal_attention")]


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_visible_key(libraries, memory, dtype):
    """A mask, a bias or a window hides all keys: results of 0, lse of -inf."""
    for op, seen in (("mask_attention", 0), ("bias_attention", -np.inf), ("window_attention", 0)):
        [f] = of(op, [dtype])
        for lib in own_libraries(libraries, dtype, op):
            case = gpu_cases.case(0, (64, 64), (70, 101))
            case.scalars |= {"left": -300, "right": 0}
            if op != "window_attention":
                shape = case.batch, case.heads, 70, 101
                case.more = {op.split("_")[0]: np.full(shape, seen, np.float64)}
            found = Call(f, case).run(lib, memory)
            assert (found["out"] == 0).all() and np.isneginf(found["lse"]).all(), f["name"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_values(libraries, memory, dtype):
    """NaN and infinities at keys that a query does not see do not reach its result."""
    for op in ("causal_attention", "mask_attention"):
        [f] = of(op, [dtype])
        for lib in own_libraries(libraries, dtype, op):
            for queries, keys in ((40, 70), (200, 300)):
                case = gpu_cases.Case(queries, keys)
                scores.check_hidden_values(lib, memory, f, case, TOLERANCE)


def test_same_bits_in_every_run(libraries, memory):
    for dtype in DTYPES:
        [f] = of("causal_attention", [dtype])
        for lib in own_libraries(libraries, dtype, f["op"]):
            call = Call(f, gpu_cases.case(1, (64, 64), (257, 255)))
            first, *more = (call.run(lib, memory) for _ in range(5))
            for found in more:
                assert all(np.array_equal(first[n], x, equal_nan=True) for n, x in found.items())
