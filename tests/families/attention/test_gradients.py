# SPDX-License-Identifier: Apache-2.0
"""Launchers of attention's backward: numbers, layouts, shards, saved statistics, keys that hold NaN
and infinities, bits."""

import dataclasses

import attention_gradients
import checks
import emulator
import kflib
import numpy as np
import pytest
import toolkit
from conftest import BUILD
from gradient_calls import SAVED, Case, GradientCall, check, slope
from launcher import HEADS_FIRST, PACKED
from scores import diagonal, modified

FUNCTIONS = {
    f["name"]: f
    for f in kflib.manifest()["functions"]
    if f["family"] == "attention" and f["bwd"] and f["form"] == "dense"
}
CAUSAL = [FUNCTIONS[f"kf_causal_attention_bwd_{d}"] for d in ("bf16", "f16", "f32", "f64")]
SCORES = ("window", "softcap_causal", "alibi_causal", "bias", "mask", "sink_window")
MODIFIED = [FUNCTIONS[f"kf_{name}_attention_bwd_{d}"] for name in SCORES for d in ("bf16", "f32")]
PLAIN = FUNCTIONS["kf_attention_bwd_f32"]
TESTED = [*CAUSAL, *MODIFIED, PLAIN]
SCALARS = {"scale": 0.3, "left": 20, "right": 3, "softcap": 2.5}


@pytest.fixture(scope="module")
def cpu():
    lib = kflib.build("cpu", TESTED, BUILD / "attention_bwd", ("-O1", "-Wall", "-Werror"))
    return lib, checks.CpuMemory(1 << 26)


@pytest.fixture(scope="module")
def emu():
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    # Head dimensions of the smallest tile alone, as in test_emu.py; FMAs take any in slices.
    lib = emulator.build(TESTED, BUILD / "attention_bwd", more=("-DKF_HEAD_DIMS=1",))
    return lib, emulator.Memory(emulator.Emulator(lib), ((emulator.RANDOM, 1),), 1 << 26)


@pytest.fixture(params=["cpu", "emu"])
def backend(request):
    return request.getfixturevalue(request.param)


CASES = [
    Case(),
    Case(queries=70, keys=100, heads=4, kv_heads=2, batch=2),
    # Lengths of 64 modulo 128, and queries that see no key.
    Case(queries=192, keys=64, layout=HEADS_FIRST, heads=2, saved=("lse",)),
    Case(queries=5, keys=330, layout=PACKED, heads=2, batch=2, dlse=False),
    Case(queries=9, keys=0),
    Case(queries=0, keys=9, heads=2),
    Case(queries=9, keys=12, dim=40, dim_v=24, shared_kv=True, batch=2),
    Case(queries=9, keys=12, scalars={"scale": -0.5}),
    Case(queries=9, keys=12, scalars={"scale": 0.0}),
    Case(queries=20, keys=90, shard={"query_base": 30, "queries_total": 90}),
    Case(queries=60, keys=40, shard={"key_base": 25, "keys_total": 70}),
    Case(queries=10, keys=40, shard={"key_base": 50, "queries_total": 90, "keys_total": 90}),
    Case(queries=33, keys=41, heads=7, kv_heads=1, dim=8),
    Case(queries=17, keys=21, heads=4, kv_heads=1, dim=72, dim_v=96),
    Case(queries=9, keys=300, dim=192, dim_v=128),
    Case(queries=130, keys=9, dim=256),
    # Dimensions and addresses without alignment.
    Case(queries=9, keys=12, dim=7, dim_v=3),
    Case(queries=33, keys=70, dim=64, offset=1),
    Case(queries=3, keys=5, dim=0, dim_v=8),
    Case(queries=3, keys=5, dim=8, dim_v=0),
    Case(queries=30, keys=50, skipped=("dk",)),
    Case(queries=30, keys=50, skipped=("dq", "dv")),
    Case(queries=50, keys=90, hidden=(slice(60, 90),), shard={"queries_total": 90}),
]


@pytest.mark.parametrize("f", CAUSAL, ids=lambda f: f["name"])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_numbers(request, backend, f, case):
    small = f["dtypes"][0] in ("bf16", "f16")
    if request.node.callspec.params["backend"] == "emu" and small:
        case = dataclasses.replace(case, dim=min(case.dim, 64), dim_v=min(case.dim_v, 64))
    check(*backend, f, case)


SHARD = {"query_base": 7, "queries_total": 90, "key_base": 5, "keys_total": 120}


@pytest.mark.parametrize("f", MODIFIED, ids=lambda f: f["name"])
@pytest.mark.parametrize("shard", [{}, SHARD], ids=["whole", "shard"])
def test_scores(backend, f, shard):
    case = Case(70, 101, heads=4, kv_heads=2, batch=2, scalars=SCALARS, shard=shard)
    check(*backend, f, case)


def test_all_keys(backend):
    check(*backend, PLAIN, Case(queries=130, keys=300, heads=2, kv_heads=1))


def test_low_scores(backend):
    """exp(-lse) overflows for an lse below -88.7."""
    f = FUNCTIONS["kf_bias_attention_bwd_f32"]
    case = Case(queries=64, keys=192, scalars=SCALARS)
    case.more, score, see, _ = modified(f["op"], case)
    case.more["bias"] -= 200
    call = GradientCall(f, case)
    call.forward(score, see, {})
    assert call.rows["lse"].max() < -88.7
    got, want = call.run(*backend), call.wanted(score, see, slope(f["op"], case), {})
    for name, value in got.items():
        assert np.abs(value - want[name]).max() < 2e-5 * np.abs(want[name]).max(), name


def test_pair_of_statistics(backend):
    """A bias of -1e9 everywhere: lse rounds the rest away, row_max and log_sum keep it."""
    f = FUNCTIONS["kf_bias_attention_bwd_f32"]
    case = Case(queries=9, keys=40, scalars={"scale": 0.0})
    case.more = {"bias": np.full((1, 1, 9, 40), -1e9)}
    call = GradientCall(f, case)
    call.forward(lambda s: s * 0 + case.more["bias"], None, {})
    want = call.wanted(lambda s: s * 0, None, lambda s: s * 0, {})
    dv = call.run(*backend)["dv"]
    assert np.abs(dv - want["dv"]).max() < 2e-5
    case.saved = ("lse", "row_max")  # one of the two is ignored
    assert np.abs(call.run(*backend)["dv"] / want["dv"] - 40).max() < 1e-3


@pytest.mark.parametrize("f", [CAUSAL[2], MODIFIED[8], MODIFIED[7]], ids=lambda f: f["name"])
def test_hidden_values(backend, f):
    """NaN and infinities of k and v at keys that some queries do not see reach those alone."""
    case = Case(queries=60, keys=100, scalars=SCALARS)
    case.more, score, see, options = modified(f["op"], case)
    if "mask" in f["op"]:
        case.more["mask"][...] = diagonal(case)
    if "bias" in f["op"]:
        case.more["bias"] = np.where(diagonal(case)[None, None], 0.25, -np.inf)
    call = GradientCall(f, case)
    call.forward(score, see, options)
    clean = call.run(*backend)
    first = 70  # seen by the queries from 30 on
    call.values["v"][..., first + 1, 3] = np.nan
    if "bias" not in f["op"]:  # which would add -inf to an infinite product
        call.values["k"][..., first, 5] = np.inf
    got = call.run(*backend)
    seen = np.arange(case.queries) >= first - (case.keys - case.queries)
    assert np.isfinite(got["dq"][:, :, ~seen]).all() and np.isnan(got["dq"][:, :, seen]).any()
    assert np.allclose(got["dq"][:, :, ~seen], clean["dq"][:, :, ~seen], 1e-4, 1e-5)


def test_other_queries(backend):
    """NaN in q and dout reaches no key that the query does not see."""
    f, case = CAUSAL[2], Case(queries=60, keys=100)
    case.more, score, see, options = modified(f["op"], case)
    call = GradientCall(f, case)
    call.forward(score, see, options)
    clean = call.run(*backend)
    call.values["q"][..., 3, 5] = call.values["dout"][..., 2, 1] = np.nan
    got = call.run(*backend)
    for name in ("dk", "dv"):
        assert np.isfinite(got[name][:, :, 44:]).all() and np.isnan(got[name][:, :, :40]).any()
        assert not np.allclose(got[name][:, :, 44:], 0)
        assert got[name].shape == clean[name].shape


def test_bits(backend):
    """A head has the same bits alone as in a batch of several."""
    f = CAUSAL[2]
    for case in (Case(queries=200, keys=300, heads=4, kv_heads=2, batch=3), Case(70, 70, batch=2)):
        case.more, score, see, options = modified(f["op"], case)
        call = GradientCall(f, case)
        call.forward(score, see, options)
        whole = call.run(*backend)
        again = call.run(*backend)
        assert all(np.array_equal(whole[n], again[n]) for n in whole)
        heads, group = case.heads // case.groups, case.heads // case.groups
        one = Case(case.queries, case.keys, heads=heads, kv_heads=1)
        part = GradientCall(f, one)
        for name, x in call.values.items():
            count = 1 if name in "kv" else group
            part.values[name] = x[1:2, :count]
        part.rows = {n: call.rows[n][1:2, :group] for n in SAVED}
        part.dlse = call.dlse[1:2, :group]
        alone = part.run(*backend)
        for name, x in alone.items():
            count = 1 if name in ("dk", "dv") else group
            assert np.array_equal(x, whole[name][1:2, :count]), name


OF_SEQUENCES = [
    f
    for f in kflib.manifest()["functions"]
    if f["name"] in ("kf_causal_attention_varlen_bwd_f32", "kf_bias_attention_varlen_bwd_f32_i32")
]
LENGTHS = [(0, 3), (70, 129), (5, 0), (0, 0), (64, 64), (1, 300)]


@pytest.fixture(scope="module")
def packed_cpu():
    lib = kflib.build(
        "cpu", OF_SEQUENCES, BUILD / "attention_varlen_bwd", ("-O1", "-Wall", "-Werror")
    )
    return lib, checks.CpuMemory(1 << 26)


def packed(lib, f, lengths=LENGTHS, most=None, seed=0):
    """Returns a call of packed sequences with 2 rows and 3 keys in front, 4 and 1 behind."""
    bounds = [np.cumsum([first, *(n[i] for n in lengths)]) for i, first in enumerate((2, 3))]
    rows, keys = int(bounds[0][-1]) + 4, int(bounds[1][-1]) + 1
    sizes = (len(lengths), 4, 2, rows, keys, 24, 16)
    longest = most or tuple(max(n[i] for n in lengths) for i in (0, 1))
    call = checks.Layout(
        lib, f, (*sizes, *longest) if "max_query" in f["sizes"] else sizes, seed=seed
    )
    for name, x in zip(("query_offsets", "key_offsets"), bounds):
        call.put(name, x.astype(call.data[name].dtype))
    attention_gradients.fill(call)
    for name in ("out", *SAVED):
        call.put(name, call.data[name])
    return call, bounds


def run(lib, memory, call):
    code, back = memory.run(call.image, lambda base: lib.call(call.f, call.given(base)))
    assert code == 0, lib.detail
    call.untouched(back)
    return call.outputs(back)


@pytest.mark.parametrize("f", OF_SEQUENCES, ids=lambda f: f["name"])
def test_packed(packed_cpu, f):
    """Empty sequences, rows of no sequence, NaN there; a sequence has the same bits alone."""
    lib, memory = packed_cpu
    call, (rows, keys) = packed(lib, f)
    for name, bounds in (("q", rows), ("dout", rows), ("k", keys), ("v", keys)):
        x = call.data[name].copy()
        x[: bounds[0]] = x[bounds[-1] :] = np.nan
        call.put(name, x)
    got = run(lib, memory, call)
    clean, _ = packed(lib, f)
    attention_gradients.check(clean, got)
    for i in (1, 4, 5):
        one, (own_rows, own_keys) = packed(lib, f, [LENGTHS[i]])
        spans = slice(*rows[i : i + 2]), slice(*keys[i : i + 2])
        own = slice(*own_rows), slice(*own_keys)
        for name, a in one.tensors.items():
            if a["role"] != "in" or a["kind"].endswith("offsets"):
                continue
            x = one.data[name].copy()
            if a["kind"] == "score":
                x[0] = call.data[name][i, :, : x.shape[2], : x.shape[3]]
            elif a["kind"] == "per_query":
                x[:, own[0]] = call.data[name][:, spans[0]]
            else:
                of_keys = a["kind"] in ("key", "value")
                x[own[of_keys]] = call.data[name][spans[of_keys]]
            one.put(name, x)
        alone = run(lib, memory, one)
        for name in ("dq", "dk", "dv"):
            at = name != "dq"
            assert np.array_equal(alone[name][own[at]], got[name][spans[at]]), (name, i)


def test_longer_than_allowed(packed_cpu):
    """The gradients of a sequence longer than the bias are NaN, those of the others are not."""
    lib, memory = packed_cpu
    call, (rows, keys) = packed(lib, OF_SEQUENCES[1], [(9, 12), (20, 7), (8, 12)], (10, 12))
    got = run(lib, memory, call)
    for name, bounds in (("dq", rows), ("dk", keys), ("dv", keys)):
        for i in range(3):
            assert np.isnan(got[name][slice(*bounds[i : i + 2])]).all() == (i == 1), (name, i)
            assert np.isnan(got[name][slice(*bounds[i : i + 2])]).any() == (i == 1), (name, i)
    assert [bool(np.isnan(x).any()) for x in got["dbias"]] == [False, True, False]
