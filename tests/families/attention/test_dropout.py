# SPDX-License-Identifier: Apache-2.0
"""Dropout of attention's weights on both backends: bits by the number of a weight, the scale, p of
0 and 1, statistics, parts of longer sequences, packed sequences, values of dropped keys, arguments
that are refused."""

import checks
import emulator
import kflib
import numpy as np
import packed
import pytest
import toolkit
from conftest import BUILD
from launcher import HEADS_FIRST, Call, Case, close
from scores import check

FUNCTIONS = {f["name"]: f for f in kflib.manifest()["functions"] if f["family"] == "attention"}
CAUSAL = [
    FUNCTIONS[f"kf_causal_attention_dropout_{d}"]
    for d in ("bf16", "state_f16", "f32", "state_f32", "f64")
]
SCORES = [
    FUNCTIONS[f"kf_{name}"]
    for name in (
        "full_attention_dropout_bf16",
        "bias_attention_dropout_f32",
        "mask_attention_dropout_state_bf16",
        "softcap_causal_attention_dropout_bf16",
        "sink_window_attention_dropout_f32",
    )
]
VARLEN = [
    FUNCTIONS[f"kf_{name}"]
    for name in (
        "causal_attention_dropout_varlen_bf16_i32",
        "causal_attention_dropout_varlen_state_f32",
        "bias_attention_dropout_varlen_f32_i32",
    )
]
PLAIN = [FUNCTIONS[f"kf_causal_attention_{d}"] for d in ("bf16", "f32")]
TESTED = [*CAUSAL, *SCORES, *VARLEN, *PLAIN]


@pytest.fixture(scope="module")
def emu():
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    # Head dimensions of the smallest tile alone: others take minutes to compile.
    lib = emulator.build(TESTED, BUILD / "attention_dropout", more=("-DKF_HEAD_DIMS=1",))
    return lib, emulator.Memory(emulator.Emulator(lib), ((emulator.RANDOM, 1),), 1 << 24)


@pytest.fixture(scope="module")
def cpu():
    lib = kflib.build("cpu", TESTED, BUILD / "attention_dropout", ("-O1", "-Wall", "-Werror"))
    return lib, checks.CpuMemory(1 << 24)


@pytest.fixture(params=["cpu", "emu"])
def backend(request):
    return request.getfixturevalue(request.param)


# Rows of weights that begin at a multiple of 8, and at each place behind one; tiles and their ends;
# rows of 16 bytes and others.
CASES = [
    Case(queries=70, keys=136, heads=2, p=0.5),
    Case(queries=9, keys=12, heads=3),
    Case(queries=70, keys=101, heads=4, kv_heads=2, batch=2, layout=HEADS_FIRST),
    Case(queries=33, keys=67, offset=1, p=0.9),
    Case(queries=5, keys=130, dim=7, dim_v=3, p=0.1),
    Case(queries=20, keys=600, p=0.999),
    Case(queries=9, keys=0),
    Case(queries=9, keys=12, p=1.0),
    # Shards of queries, of keys, and of heads.
    Case(queries=20, keys=90, shard={"query_base": 30, "queries_total": 90}),
    Case(queries=60, keys=40, shard={"key_base": 25, "keys_total": 71}, batch=2),
    Case(queries=9, keys=40, heads=2, batch=2, shard={"head_base": 3, "heads_total": 7}),
]


@pytest.mark.parametrize("f", CAUSAL, ids=lambda f: f["name"])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_numbers(backend, f, case):
    check(*backend, f, case)


@pytest.mark.parametrize("f", SCORES, ids=lambda f: f["name"])
def test_scores(backend, f):
    scalars = {"scale": 0.3, "left": 20, "right": 3, "softcap": 2.5}
    shard = {"query_base": 7, "queries_total": 90, "key_base": 5, "keys_total": 120}
    for own in ({}, shard):
        case = Case(40, 101, heads=4, kv_heads=2, batch=2, scalars=scalars, shard=own, p=0.4)
        check(*backend, f, case)


@pytest.mark.parametrize("plain", PLAIN, ids=lambda f: f["name"])
def test_without_a_probability(backend, plain):
    """p = 0 has the bits of the op without dropout; p changes no statistics."""
    f = FUNCTIONS[plain["name"].replace("attention", "attention_dropout")]
    for case in (Case(70, 101, heads=2), Case(33, 70, offset=1, dim=40)):
        want = Call(plain, case).run(*backend)
        case.p = 0.0
        got = Call(f, case).run(*backend)
        assert all(np.array_equal(got[n], want[n]) for n in want)
        case.p = 0.5
        got = Call(f, case).run(*backend)
        assert all(np.array_equal(got[n], want[n]) for n in want if n != "out")


@pytest.mark.parametrize("f", [CAUSAL[0], CAUSAL[2], SCORES[2]], ids=lambda f: f["name"])
def test_values_of_dropped_keys(backend, f):
    """NaN and infinities at a key that is dropped do not reach a result."""
    case = Case(queries=40, keys=70, p=0.8)
    if "mask" in f["op"]:
        case.more = {"mask": np.ones((1, 1, 40, 70), np.uint8)}
    call = Call(f, case)
    call.values["v"][0, 0, 30::7] = np.nan
    call.values["v"][0, 0, 33::7] = np.inf
    see = None if case.more else np.tri(40, 70, 30, dtype=bool)
    got, want = call.run(*backend)["out"], call.expected(lambda s: s * 0.125, see)["out"]
    assert np.isnan(want).any() and np.isinf(want).any() and np.isfinite(want).any()
    close((f["name"], case), np.nan_to_num(got), np.nan_to_num(want), 0.01)
    assert np.array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.parametrize("f", VARLEN, ids=lambda f: f["name"])
def test_packed(backend, f):
    """A weight has the number that it has among those of all rows."""
    for case in (
        packed.Case((5,), (8,), bounded=True),
        packed.Case((3, 70, 1), (9, 33, 128), heads=3, before=2, behind=1, bounded=True, p=0.5),
        packed.Case((0, 9, 40), (4, 0, 71), heads=4, kv_heads=2, bounded=True),
        packed.Case((9, 7), (5, 9), bounded=True, p=1.0),
    ):
        packed.Call(f, case).check(*backend)


def test_one_sequence(backend):
    """A packed sequence alone has the bits of a batch of one."""
    f = CAUSAL[0], VARLEN[0]
    one, alone = Call(f[0], Case(33, 70, heads=2)), packed.Call(f[1], packed.Case((33,), (70,)))
    for name in "qkv":
        alone.values[name] = one.values[name][0].swapaxes(0, 1)
    want = one.run(*backend)["out"][0].swapaxes(0, 1)
    assert np.array_equal(alone.run(*backend)["out"], want)


REFUSED = [
    ({"p": 1.5}, "p is 1.5, expected 0 <= p <= 1"),
    ({"p": float("nan")}, "p is nan, expected 0 <= p <= 1"),
    ({"shard": {"queries_total": 2**30, "keys_total": 2**30}}, "expected at most 2\\^58 scores"),
]


@pytest.mark.parametrize(("more", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(backend, more, message):
    for f in (CAUSAL[0], CAUSAL[3]):
        with pytest.raises(AssertionError, match=message):
            Call(f, Case(5, 9, **more)).run(*backend)
