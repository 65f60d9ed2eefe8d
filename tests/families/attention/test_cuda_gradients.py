# SPDX-License-Identifier: Apache-2.0
"""Attention's backward on a GPU against float64: every op and dtype, with dropout and without it,
all dimensions of the causal one, by wgmma, and by mma.sync and FMAs in libraries that KF_SCHEDULES
compiles without wgmma; equal bits in every run."""

import concurrent.futures

import checks
import gpu_cases
import gradient_calls
import kflib
import numpy as np
import pytest
import scores
from conftest import BUILD

pytestmark = pytest.mark.skipif(not kflib.has_gpu(), reason="no GPU")
FUNCTIONS = {f["name"]: f for f in kflib.manifest()["functions"] if f["family"] == "attention"}
DTYPES = ("bf16", "f16", "f32", "f64")
SCORES = ("window", "softcap_causal", "alibi_causal", "bias", "mask", "sink_window")
WGMMA, NO_WGMMA, SMALL = "-DKF_SCHEDULES=4", "-DKF_SCHEDULES=3", "-DKF_HEAD_DIMS=1"
WIDEST = 128  # dimensions of the kernels by wgmma
DIMS, ODD = ((64, 64), (40, 24), (8, 56)), ((7, 3), (33, 63))


def hopper():
    return kflib.capability() == (9, 0)


def causal(dtype):
    return FUNCTIONS[f"kf_causal_attention_bwd_{dtype}"]


def modified(dtype):
    return [FUNCTIONS[f"kf_{name}_attention_bwd_{dtype}"] for name in SCORES]


def dropped(dtype, state=""):
    return FUNCTIONS[f"kf_causal_attention_dropout{state}_bwd_{dtype}"]


def modified_dropped(dtype):
    return [FUNCTIONS[f"kf_{name}_attention_dropout_bwd_{dtype}"] for name in SCORES]


def gradients(cases):
    """The same calls of the backward. Its lse is required."""
    found = [gradient_calls.Case(**vars(case)) for case in cases]
    for i, case in enumerate(found):
        case.saved = case.saved or ("lse",)
        case.p = (0.1, 0.5, 0.9, 0.25, 0.0, 1.0)[i % 6]  # read by functions with dropout
    return found


def builds():
    """Returns {name: (functions, flags)}: causal attention of each dtype, and other ops with one
    dimension; the same with dropout. A library with wgmma alone refuses a call that it does not
    compute."""
    found = {d: ([causal(d)], (NO_WGMMA,)) for d in DTYPES}
    if hopper():
        found |= {f"{d}_wgmma": ([causal(d)], (WGMMA,)) for d in DTYPES[:2]}
    found |= {f"{d}_scores": (modified(d), (SMALL,)) for d in DTYPES}
    found |= {f"{d}_dropped": ([dropped(d), dropped(d, "_state")], ()) for d in DTYPES}
    return found | {f"{d}_dropped_scores": (modified_dropped(d), (SMALL,)) for d in DTYPES}


@pytest.fixture(scope="module")
def libraries():
    """{name: library}, compiled at once."""
    folder = BUILD / "cuda"
    own = "-gencode=arch=compute_90a,code=sm_90a" if hopper() else "-arch=native"

    def build(name, functions, more):
        return kflib.build("cuda", functions, folder / f"attention_bwd_{name}", ("-O3", own, *more))

    wanted = builds()
    with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
        made = {name: pool.submit(build, name, *one) for name, one in wanted.items()}
        return {name: one.result() for name, one in made.items()}


@pytest.fixture(scope="module")
def memory():
    return checks.CudaMemory(1 << 28)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_dimensions(libraries, memory, dtype):
    for case in gradients([*gpu_cases.aligned(), *gpu_cases.others(), *gpu_cases.shards()]):
        gradient_calls.check(libraries[dtype], memory, causal(dtype), case)


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_all_dimensions_by_wgmma(libraries, memory, dtype):
    if not hopper():
        pytest.skip("the device has no wgmma")
    dims = tuple(d for d in gpu_cases.DIMS if max(d) <= WIDEST)
    for case in gradients([*gpu_cases.aligned(dims), *gpu_cases.shards()]):
        gradient_calls.check(libraries[f"{dtype}_wgmma"], memory, causal(dtype), case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("i", range(len(SCORES)), ids=SCORES)
def test_scores(libraries, memory, dtype, i):
    found = [*gpu_cases.aligned(DIMS), *gpu_cases.others(DIMS, ODD), *gpu_cases.shards()]
    for case in gradients(found):
        gradient_calls.check(libraries[f"{dtype}_scores"], memory, modified(dtype)[i], case)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_of_all_dimensions(libraries, memory, dtype):
    found = [*gpu_cases.aligned(), *gpu_cases.others(), *gpu_cases.shards()]
    for i, case in enumerate(gradients(found)):
        f = dropped(dtype, "_state" if i % 4 == 0 else "")
        gradient_calls.check(libraries[f"{dtype}_dropped"], memory, f, case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("i", range(len(SCORES)), ids=SCORES)
def test_dropout_of_scores(libraries, memory, dtype, i):
    found = [*gpu_cases.aligned(DIMS), *gpu_cases.others(DIMS, ODD), *gpu_cases.shards()]
    for case in gradients(found):
        f = modified_dropped(dtype)[i]
        gradient_calls.check(libraries[f"{dtype}_dropped_scores"], memory, f, case)


def results(library, memory, f, case, times=1):
    """Returns the gradients of some calls."""
    name = f["op"].removesuffix("_dropout")
    case.more, score, see, options = scores.modified(name, case)
    call = gradient_calls.GradientCall(f, case)
    call.forward(score, see, options)
    return [call.run(library, memory) for _ in range(times)]


def same(a, b):
    return all(np.array_equal(a[n], x, equal_nan=True) for n, x in b.items())


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_in_every_run(libraries, memory, dtype):
    [case] = gradients([gpu_cases.case(1, (64, 64), (257, 255))])
    for f, word in ((causal(dtype), ""), (dropped(dtype), "_dropped"), (causal(dtype), "_wgmma")):
        if f"{dtype}{word}" not in libraries:
            continue
        first, *more = results(libraries[f"{dtype}{word}"], memory, f, case, 5)
        assert all(same(first, found) for found in more), f["name"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_probability_of_0_has_the_bits_of_no_dropout(libraries, memory, dtype):
    for case in gradients([gpu_cases.case(1, d, (257, 255)) for d in ((64, 64), (256, 256))]):
        case.p = 0.0
        [want] = results(libraries[dtype], memory, causal(dtype), case)
        [got] = results(libraries[f"{dtype}_dropped"], memory, dropped(dtype), case)
        assert same(got, want)
