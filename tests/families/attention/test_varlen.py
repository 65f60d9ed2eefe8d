# SPDX-License-Identifier: Apache-2.0
"""Packed sequences on both backends: empty sequences anywhere, rows of no sequence, lengths around
tiles, scores of each kind, values of other sequences, arguments that are refused."""

import checks
import emulator
import kflib
import numpy as np
import pytest
import toolkit
from conftest import BUILD
from packed import Call, Case

FUNCTIONS = {
    f["name"]: f
    for f in kflib.manifest()["functions"]
    if f["family"] == "attention" and f["op"].endswith("_varlen")
}
NAMES = (*("window", "softcap_causal", "alibi_causal"), *("bias", "mask", "sink_window"))
SCORES = [
    FUNCTIONS[f"kf_{name}_attention_varlen_{d}"] for name in NAMES for d in ("bf16", "f32_i32")
]
CAUSAL = [
    FUNCTIONS[f"kf_causal_attention_varlen_{d}"] for d in ("bf16_i32", "f16", "f32", "f64_i32")
]
PLAIN = FUNCTIONS["kf_attention_varlen_bf16"]
TESTED = [*SCORES, *CAUSAL, PLAIN]


@pytest.fixture(scope="module")
def emu():
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    # Head dimensions of the smallest tile alone: others take minutes to compile.
    lib = emulator.build(TESTED, BUILD / "attention_varlen", more=("-DKF_HEAD_DIMS=1",))
    return lib, emulator.Memory(emulator.Emulator(lib), ((emulator.RANDOM, 1),), 1 << 26)


@pytest.fixture
def hopper(emu):
    """The emulated device has wgmma."""
    lib, memory = emu
    memory.emulator.set(hopper=1)
    yield lib, memory
    memory.emulator.set(hopper=0)


@pytest.fixture(scope="module")
def cpu():
    lib = kflib.build("cpu", TESTED, BUILD / "attention_varlen", ("-O1", "-Wall", "-Werror"))
    return lib, checks.CpuMemory(1 << 26)


EMULATED = [pytest.param(name, marks=pytest.mark.check) for name in ("emu", "hopper")]


@pytest.fixture(params=["cpu", *EMULATED])
def backend(request):
    return request.getfixturevalue(request.param)


CASES = [
    Case((5,)),
    Case((3, 70, 1), (9, 33, 200)),
    # Sequences without queries, without keys, without either: first, last and between.
    Case((0, 4, 0, 3, 0), (0, 5, 7, 0, 0)),
    Case((0, 0, 6, 6), (4, 0, 0, 8), before=3, behind=2),
    Case((2, 0), (0, 3)),
    Case((0, 0)),
    Case(()),
    Case((), behind=3),
    # Lengths around tiles of rows; a sequence of many tiles beside short ones.
    Case((64, 63, 65, 1, 128, 127), before=1, heads=3, kv_heads=1),
    Case((1,) * 40, behind=70, heads=4, kv_heads=2),
    Case((1, 500, 1), (700, 1, 64), heads=1),
    Case((9, 30), (12, 8), dim=40, dim_v=24, bounded=True),
    Case((9, 30, 5), (70, 8, 60), hidden=(0, 2), heads=1),
    Case((9, 30), (12, 8), strided=True, scalars={"scale": -0.5}),
]
ODD = [Case((9, 0, 33), (12, 5, 8), dim=7, dim_v=3), Case((5, 4), (7, 2), dim=0, dim_v=8)]


@pytest.mark.parametrize("f", [*CAUSAL, PLAIN], ids=lambda f: f["name"])
def test_numbers(backend, f):
    for case in [*CASES, *ODD]:
        Call(f, case).check(*backend)


@pytest.mark.parametrize("f", SCORES, ids=lambda f: f["name"])
def test_scores(backend, f):
    scalars = {"scale": 0.3, "left": 20, "right": 3, "softcap": 2.5}
    for case in (
        Case((40, 0, 70), (101, 9, 33), bounded=True, scalars=scalars, heads=4, kv_heads=2),
        Case((0, 70, 3, 9), (8, 71, 0, 12), bounded=True, scalars=scalars, before=2, behind=1),
        Case((9, 7), (5, 8), most=(9, 7), scalars=scalars),
        Case((9, 7), (5, 9), bounded=True, bias=(1, 1, 0, 0), scalars=scalars),
        Case((9, 7), (5, 9), bounded=True, bias=(1, 0, 1, 0), scalars=scalars),
    ):
        Call(f, case).check(*backend)


def test_longer_than_the_bias(backend):
    """Results of such sequences are NaN."""
    for f in (SCORES[6], SCORES[9]):
        for most in ((6, 100), (9, 80), (0, 0)):
            Call(f, Case((5, 9, 6), (70, 70, 81), most=most)).check(*backend)


def test_as_alone(backend):
    """A sequence has the bits that it has alone."""
    for f in (CAUSAL[0], CAUSAL[2]):
        whole = Call(f, Case((70, 33, 5), (80, 40, 130)))
        got = whole.run(*backend)
        for i, (queries, keys) in enumerate(whole.case.lengths):
            alone = Call(f, Case((queries,), (keys,)))
            at, of_keys = (slice(*whole.case.offsets(n)[i : i + 2]) for n in (0, 1))
            for name, rows in (("q", at), ("k", of_keys), ("v", of_keys)):
                alone.values[name] = whole.values[name][rows]
            own = alone.run(*backend)
            assert np.array_equal(own["out"], got["out"][at])
            assert np.array_equal(own["lse"], got["lse"][:, at])


OUTSIDE = {
    (-5, 3, 7): Case((3, 4)),
    (0, 900, 7): Case((7, 0)),
    (2, 2, 2**31 - 1): Case((0, 5), before=2),
    (7, 3, 0): None,
}


@pytest.mark.parametrize("bounds", OUTSIDE, ids=str)
def test_bounds_outside_the_tensors(backend, bounds):
    """They are clamped; of bounds that descend nothing is promised but that it stays inside."""
    for f in (CAUSAL[0], CAUSAL[2]):
        got = Call(f, Case((4, 3), bounds=bounds)).run(*backend)
        if case := OUTSIDE[bounds]:
            want = Call(f, case).run(*backend)
            assert np.array_equal(got["out"], want["out"])
            assert np.array_equal(got["lse"], want["lse"])


def test_refused(backend):
    lib, memory = backend
    for f, case, message in (
        (PLAIN, Case((4,), scalars={"scale": 1.0, "query_base": 1}), "query_base is 1, expected 0"),
        (PLAIN, Case((4,), scalars={"scale": 1.0, "keys_total": 9}), "keys_total is 9, expected 0"),
        (PLAIN, Case((4,), heads=4, kv_heads=3), "kv_heads is 3, expected a divisor of heads, 4"),
    ):
        with pytest.raises(AssertionError, match=message):
            Call(f, case).run(lib, memory)
