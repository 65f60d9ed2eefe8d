# SPDX-License-Identifier: Apache-2.0
"""Tests the promises of every launcher on a GPU beyond right numbers, one test per check of
support/gpu/robust.py."""

import cases
import checks
import counting
import kflib
import pytest
import robust
import selection

if not kflib.has_gpu():
    pytest.skip("no CUDA device answers", allow_module_level=True)

FUNCTIONS = kflib.on("cuda", selection.gate())
LAUNCHES = kflib.on("cuda", selection.launches())
every = pytest.mark.parametrize("f", LAUNCHES, ids=[f["name"] for f in LAUNCHES])
GROUPS = {}
for function in FUNCTIONS:
    GROUPS.setdefault((function["header"], *function["dtypes"]), []).append(function)


@pytest.fixture(scope="session")
def lib(libraries):
    return libraries("default")


@every
def test_graph(gpu, lib, f):
    for sizes, shift in cases.of_form(f, robust.SHAPES):
        robust.graph(gpu, lib, f, sizes, shift)


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: "_".join(g).removeprefix("kf/ops/"))
def test_streams(gpu, lib, group):
    robust.streams(
        gpu,
        lib,
        [
            (f, sizes, shift)
            for f in GROUPS[group]
            for sizes, shift in cases.of_form(f, robust.SHAPES)
        ],
    )


def test_a_call_that_allocates_is_counted(lib):
    counting.take(lib)
    counting.planted(lib)
    assert counting.take(lib) == {
        "cudaMalloc": 1,
        "cudaMemsetAsync": 1,
        "cudaStreamSynchronize": 1,
        "cudaFree": 1,
    }


@every
def test_only_launches(gpu, lib, f):
    for sizes, shift in cases.of_form(f, robust.SHAPES) + cases.of_form(f, robust.LARGE)[:1]:
        robust.only_launches(gpu, lib, f, sizes, shift)


@pytest.mark.alone
def test_memory_stays(gpu, lib):
    """Free device memory does not shrink once every kernel has been loaded."""
    calls = [
        (f, checks.Layout(lib, f, sizes, shift=shift))
        for f in FUNCTIONS
        for sizes, shift in cases.of_form(f, robust.SHAPES)
    ]

    def all_functions():
        for f, call in calls:
            robust.succeed(lib, f, call, call.given(gpu.base))
        gpu.synchronize()
        return gpu.free_bytes()

    gpu.fill(gpu.base, 0x3C, gpu.size)
    all_functions()
    before, after = all_functions(), all_functions()
    assert after >= before, f"{before - after} bytes of device memory are gone"


@every
def test_repeated(gpu, lib, f):
    """Sums are split by shape, so they get more shapes."""
    shapes = cases.of_form(f, robust.LARGE) if f["scratch"] else cases.of_form(f, robust.LARGE)[:1]
    shapes = shapes + (robust.PARTED if f["family"] == "reduction" else [])
    for sizes, shift in shapes:
        robust.repeated(gpu, lib, f, sizes, shift)


@every
def test_chained(gpu, lib, f):
    robust.chained(gpu, lib, f, cases.of_form(f, robust.LARGE)[0][0])


@every
def test_alone(gpu, lib, f):
    for sizes, shift in cases.of_form(f, robust.SHAPES):
        robust.alone(gpu, lib, f, sizes, shift)


@every
def test_unaligned(gpu, lib, f):
    robust.unaligned(gpu, lib, f)
