# SPDX-License-Identifier: Apache-2.0
"""CUDA launchers over a runtime that only counts: they launch on the caller's stream, within the
limits of every GPU, and return the status of the launch itself.
"""

import ctypes
import os
import subprocess
import sys

import cases
import hostcuda
import kflib
import pytest
import selection
import toolkit
from refusals import (
    BUILD,
    CUDA,
    DEVICE,
    FUNCTIONS,
    NO_KERNEL_IMAGE,
    PARTS,
    UNSUPPORTED,
    Call,
    tensors_of,
)

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
STREAM = 0x5EED0
NO_DRIVER, NO_IMAGE, INVALID_FUNCTION, NO_MEMORY = 35, 209, 98, 2


@pytest.fixture(scope="module")
def cuda():
    return hostcuda.build(kflib.on("cuda", FUNCTIONS), BUILD, flags=PARTS)


@pytest.fixture(scope="module")
def lib(cuda):
    """Overrides the fixture that selects the functions: only this backend."""
    return cuda


EVERY_DEVICE = 48 << 10  # bytes of shared memory that a launch gets without asking
SHARED = dict.fromkeys(("matmul", "linear_cross_entropy"), 99 << 10)  # raised first


def most_shared(f):
    """Bytes of dynamic shared memory; none for kernels whose launch steps describe none."""
    described = any(launch["shared"] for step in f["steps"] for launch in step["launches"])
    return SHARED.get(f["family"], EVERY_DEVICE) if described else 0


def least_launches(f):
    """Two if a workspace carries partial results from one step to the next.

    Products without split-K and sums of few rows take one launch. So does a call whose other
    steps depend on the kernel, or that has a single step.
    """
    if not f["scratch"] or f["family"] in ("matmul", "elementwise"):
        return 1
    return min(2, sum(not step["when"].startswith("the kernel ") for step in f["steps"]))


def test_the_callers_stream(cuda, functions):
    for f in functions:
        call = Call(cuda, f)
        before = cuda.seen.count
        assert cuda.call(f, call.values, STREAM) == 0
        seen = cuda.seen
        launches = seen.count - before
        assert least_launches(f) <= launches <= cases.most_launches(f), f["name"]
        assert seen.stream == STREAM, f["name"]
        threads = seen.block[0] * seen.block[1] * seen.block[2]
        assert 0 < threads <= 1024 and threads % 32 == 0, f["name"]
        assert 0 < seen.grid[0] < 2**31 and 0 < seen.grid[1] < 2**16 and seen.grid[2] == 1, f[
            "name"
        ]
        assert 0 <= seen.shared_bytes <= most_shared(f), f["name"]


FOUND_FIRST = """import ctypes, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
import refusals
f = next(f for f in refusals.FUNCTIONS if refusals.outputs(f) == ["out"])
refusals.Call(refusals.library("cuda"), f).accepts("a valid call", ["out"])
"""


def test_its_own_runtime(cuda, tmp_path):
    """A library that counts launches reaches its own runtime, even if CUDA's is loaded globally, as
    PyTorch does.
    """
    (tmp_path / "runtime.c").write_text(
        "int cudaLaunchKernelExC(const void *c, const void *f, void **a) { return 100; }\n"
        "int cudaGetDevice(int *d) { return 100; }\nint cudaGetLastError(void) { return 100; }\n"
    )
    subprocess.run(
        ["gcc", "-w", "-shared", "-fPIC", tmp_path / "runtime.c", "-o", tmp_path / "libruntime.so"],
        check=True,
    )
    done = subprocess.run(
        [sys.executable, "-c", FOUND_FIRST, tmp_path / "libruntime.so"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    )
    assert done.returncode == 0, done.stderr


ROWS = [
    f for f in FUNCTIONS if f["family"] == "rows" and f["activation"] == "none"
]  # the activation does not affect a launch


@pytest.fixture(scope="module", params=[900, 1200] if cases.LEVEL == 1 else [800, 900, 1200])
def rows(request):
    return request.param, hostcuda.build(ROWS, BUILD, request.param)


def test_shared_memory(rows):
    """Rows in every schedule, with and without clusters, use at most the shared memory of a GPU.
    Beyond 48 KiB the launcher raises the limit first. The limit is constant per kernel, since
    another thread may raise it between this thread's two calls.
    """
    architecture, cuda = rows
    for f in ROWS:
        cuda.seen.raised, allowed = 0, {}
        for cols in (1, 1000, 4096, 10001, 16384, 65536, 131072, 300001, 2**21):
            sizes = cases.rows_of(f, [[(1056, cols), 0]])[0][0]
            call = (
                Call(cuda, f)
                .set(**dict(zip(f["sizes"], sizes)))
                .set(workspace_bytes=2**60, workspace=2**60)
            )
            for i, a in enumerate(tensors_of(f)):
                call.set(**{a["name"]: (i + 1) * 2**52})
            assert cuda.call(f, call.values) == 0, f"{f['name']} {cols}: {cuda.detail}"
            if cuda.seen.raised:
                assert (
                    allowed.setdefault(cuda.seen.raised_of, cuda.seen.raised) == cuda.seen.raised
                ), f"{f['name']} {cols}"
        if f["scratch"] and architecture == 900:
            assert 48 << 10 < cuda.seen.raised, f["name"]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (NO_DRIVER, CUDA),
        (NO_MEMORY, CUDA),
        (NO_IMAGE, NO_KERNEL_IMAGE),
        (INVALID_FUNCTION, NO_KERNEL_IMAGE),
    ],
)
def test_the_launchs_own_status(cuda, functions, status, code):
    """A failed launch is the result of the call; the second stage of a sum is not launched."""
    cuda.seen.status = status
    try:
        for f in functions:
            before = cuda.seen.count
            assert cuda.call(f, Call(cuda, f).values) == code, f["name"]
            assert cuda.seen.count == before + 1, f["name"]
            assert (
                cuda.detail.startswith(f"{f['name']}: launch of ")
                and f"CUDA error {status} (" in cuda.detail
            ), cuda.detail
    finally:
        cuda.seen.status = 0


def test_the_streams_device(cuda, functions):
    """The stream must belong to the current device: the message names both, and nothing is
    launched.
    """
    for current, own in ((0, 1), (1, 0)):
        cuda.seen.current, cuda.seen.own = current, own
        try:
            for f in functions:
                before = cuda.seen.count
                assert (
                    cuda.call(f, Call(cuda, f).values, STREAM) == DEVICE
                    and cuda.seen.count == before
                ), f["name"]
                assert (
                    cuda.detail == f"{f['name']}: stream is of device {own}, "
                    f"expected the current one, device {current}"
                )
        finally:
            cuda.seen.current = cuda.seen.own = 0


def test_a_captured_stream_is_not_asked(cuda, functions):
    """A device query would end the capture."""
    cuda.seen.capturing = 1
    try:
        for f in functions:
            assert cuda.call(f, Call(cuda, f).values, STREAM) == 0, cuda.detail
    finally:
        cuda.seen.capturing = cuda.seen.status = 0


LARGE = {
    "flat": (2**45,),
    "rows": (2**40, 32),
    "planes": (2**40, 2, 16),
    "heads": (2**38, 2, 4, 16),
    "groups": (2**36, 2, 4, 8, 16),
}


def test_more_blocks_than_a_launch_may_have(cuda, functions):
    """Tensors of 2^45 elements, whose pointers nobody dereferences: refused by functions that need
    a CTA for a fixed number of elements.
    """
    for f in functions:
        large = cases.own(f).LARGE if cases.own(f) else cases.of_form(f, LARGE)
        call = Call(cuda, f).set(**dict(zip(f["sizes"], large)))
        for i, a in enumerate(tensors_of(f)):
            call.set(**{a["name"]: (i + 1) * 2**52})
        # these sum with a fixed number of CTAs
        few = f["bwd"] and getattr(cases.own(f), "FEW_BLOCKS", False)
        if cases.persistent(f) or cases.channels(f) or few:
            call.set(workspace_bytes=2**60, workspace=2**60).accepts("very many rows", ["sums"])
        else:
            call.set(workspace_bytes=2**60, workspace=2**60)
            got = cuda.call(f, call.values)
            assert got == UNSUPPORTED, f"{f['name']}: {got} {cuda.detail}"
            assert (
                cuda.detail.startswith(f"{f['name']}: launch of ")
                and "more blocks than a launch may have" in cuda.detail
            )


def test_more_channels_than_a_launch_may_have(cuda):
    """Gradients per channel take one CTA each: too many are refused before any launch, unless no
    such gradient is wanted.
    """
    planes = [
        f
        for f in FUNCTIONS
        if f["family"] == "elementwise" and f["scratch"] and "channels" in f["sizes"]
    ]
    for f in planes:
        for channels in (2**31 - 1, 2**31, 2**32 + 5):
            call = (
                Call(cuda, f)
                .set(**dict(zip(f["sizes"], (1, channels, 2))))
                .set(workspace_bytes=2**60, workspace=2**60)
            )
            for i, a in enumerate(tensors_of(f)):
                call.set(**{a["name"]: (i + 1) * 2**52})
            before = cuda.seen.count
            got = cuda.call(f, call.values)
            assert (got, cuda.seen.count - before) == (
                (0, 2) if channels < 2**31 else (UNSUPPORTED, 0)
            ), f"{f['name']} {channels}"
            call.set(**{a["name"]: None for a in tensors_of(f) if a["role"] == "sum"})
            assert cuda.call(f, call.values) == 0, f"{f['name']} {channels}: {cuda.detail}"
    assert planes


def test_products_that_are_left_out(tmp_path):
    """A gradient fails before any launch if KF_SCHEDULES leaves out one of its products."""
    f = next(f for f in kflib.manifest()["functions"] if f["name"] == "kf_linear_bwd_bf16")
    cuda = hostcuda.build([f], tmp_path, flags=("-DKF_SCHEDULES=2",))
    call = (
        Call(cuda, f)
        .set(**dict(zip(f["sizes"], (1, 64, 64, 64))))
        .set(workspace_bytes=2**60, workspace=2**60)
    )
    for i, a in enumerate(tensors_of(f)):
        call.set(**{a["name"]: (i + 1) * 2**52})
    before = cuda.seen.count
    assert cuda.call(f, call.values) == 0 and cuda.seen.count > before, cuda.detail
    before = cuda.seen.count
    assert (
        cuda.call(f, call.set(x=2**52 + 2).values) == UNSUPPORTED and "KF_SCHEDULES" in cuda.detail
    ), cuda.detail
    assert cuda.seen.count == before


HOOK = """
#include <stdio.h>
inline char kft_launch[300];
inline void kft_record(const char *function, const void *kernel, const cudaLaunchConfig_t *c)
{
    snprintf(kft_launch, sizeof kft_launch, "%s %p %u %u %u %llu %p", function, kernel,
             c->gridDim.x, c->gridDim.y, c->blockDim.x, (unsigned long long)c->dynamicSmemBytes,
             (void *)c->stream);
}
#define KF_ON_LAUNCH(function, kernel, config) kft_record(function, kernel, config)
"""


def test_who_asked_is_told_each_launch(tmp_path):
    """KF_ON_LAUNCH receives the function's name, with activation and state, and the launch
    parameters.
    """
    hook = tmp_path / "hook.h"
    hook.write_text(HOOK)
    chosen = [
        f
        for f in kflib.on("cuda", selection.FUNCTIONS)
        if f["dtypes"] == ["f32"]
        and f["activation"] in ("none", "gelu")
        and f["op"].startswith(("layer_norm", "bias_"))
    ]
    lib = hostcuda.build(
        chosen, tmp_path, flags=(*PARTS, "-include", str(hostcuda.HEADER), "-include", str(hook))
    )
    recorded = (ctypes.c_char * 300).in_dll(lib.dll, "kft_launch")
    for f in chosen:
        assert lib.call(f, Call(lib, f).values, STREAM) == 0
        seen = lib.seen
        wanted = (
            f"{f['name']} {seen.kernel:#x} {seen.grid[0]} {seen.grid[1]} {seen.block[0]} "
            f"{seen.shared_bytes} {STREAM:#x}"
        )
        assert recorded.value.decode() == wanted
    assert any(f["state"] for f in chosen) and any(f["scratch"] for f in chosen)
