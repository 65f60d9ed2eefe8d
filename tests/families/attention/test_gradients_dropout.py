# SPDX-License-Identifier: Apache-2.0
"""Launchers of attention's backward with dropout on both backends: the forward's bits, p of 0 and
1, parts of longer sequences, packed sequences, values of dropped keys, refused arguments."""

import attention_gradients
import checks
import emulator
import kflib
import numpy as np
import pytest
import toolkit
from conftest import BUILD
from gradient_calls import Case, GradientCall, check
from launcher import HEADS_FIRST, Call
from scores import modified

FUNCTIONS = {f["name"]: f for f in kflib.manifest()["functions"] if f["family"] == "attention"}
CAUSAL = [
    FUNCTIONS[f"kf_causal_attention_dropout_{d}"]
    for d in ("bwd_bf16", "state_bwd_f16", "bwd_f32", "state_bwd_f32", "bwd_f64")
]
SCORES = [
    FUNCTIONS[f"kf_{name}"]
    for name in (
        "full_attention_dropout_bwd_bf16",
        "bias_attention_dropout_bwd_f32",
        "bias_attention_dropout_bwd_bf16",
        "mask_attention_dropout_state_bwd_bf16",
        "softcap_causal_attention_dropout_bwd_bf16",
        "sink_window_attention_dropout_bwd_f32",
        "alibi_causal_attention_dropout_bwd_f16",
    )
]
VARLEN = [
    FUNCTIONS[f"kf_{name}"]
    for name in (
        "causal_attention_dropout_varlen_bwd_bf16_i32",
        "causal_attention_dropout_varlen_state_bwd_f32",
        "bias_attention_dropout_varlen_bwd_f32_i32",
    )
]
PLAIN = [FUNCTIONS[f"kf_causal_attention_bwd_{d}"] for d in ("bf16", "f32")]
FORWARD = [FUNCTIONS[f"kf_causal_attention_dropout_{d}"] for d in ("bf16", "f32")]
TESTED = [*CAUSAL, *SCORES, *VARLEN, *PLAIN, *FORWARD]


@pytest.fixture(scope="module")
def emu():
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    # Head dimensions of the smallest tile alone, as in test_gradients.py.
    lib = emulator.build(TESTED, BUILD / "attention_dropout_bwd", more=("-DKF_HEAD_DIMS=1",))
    return lib, emulator.Memory(emulator.Emulator(lib), ((emulator.RANDOM, 1),), 1 << 24)


@pytest.fixture(scope="module")
def cpu():
    lib = kflib.build("cpu", TESTED, BUILD / "attention_dropout_bwd", ("-O1", "-Wall", "-Werror"))
    return lib, checks.CpuMemory(1 << 24)


@pytest.fixture(params=["cpu", "emu"])
def backend(request):
    return request.getfixturevalue(request.param)


# Rows of weights that begin at a multiple of 8, and at each place behind one; blocks and their
# ends; rows of 16 bytes and others.
CASES = [
    Case(queries=70, keys=136, heads=2, p=0.5),
    Case(queries=9, keys=12, heads=3, dlse=False),
    Case(queries=70, keys=101, heads=4, kv_heads=2, batch=2, layout=HEADS_FIRST),
    Case(queries=33, keys=67, offset=1, p=0.9),
    Case(queries=5, keys=130, dim=7, dim_v=3, p=0.1),
    Case(queries=20, keys=600, p=0.999),
    Case(queries=9, keys=0),
    Case(queries=9, keys=12, p=1.0),
    Case(queries=30, keys=50, skipped=("dq", "dk")),
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


def prepared(f, case):
    """Returns a call with the results of its forward."""
    case.more, score, see, options = modified(f["op"].removesuffix("_dropout"), case)
    call = GradientCall(f, case)
    call.forward(score, see, options)
    return call


@pytest.mark.parametrize("plain", PLAIN, ids=lambda f: f["name"])
def test_without_a_probability(backend, plain):
    """p = 0 has the bits of the op without dropout."""
    f = FUNCTIONS[plain["name"].replace("attention", "attention_dropout")]
    for more in ({"heads": 2}, {"offset": 1, "dim": 40}):
        want = prepared(plain, Case(70, 101, **more)).run(*backend)
        got = prepared(f, Case(70, 101, p=0.0, **more)).run(*backend)
        assert want.keys() == got.keys()
        assert all(np.array_equal(got[n], want[n]) for n in want)


@pytest.mark.parametrize("f", FORWARD, ids=lambda f: f["name"])
def test_bits_of_the_forward(backend, f):
    """Values and gradients of an identity matrix show the weights that each direction drops."""
    case = Case(32, 32, dim=32, heads=2, scalars={"scale": 0.0}, p=0.5)
    back = FUNCTIONS[f["name"].replace("dropout", "dropout_bwd")]
    call = prepared(back, case)
    call.values["v"][...] = call.values["dout"][...] = np.eye(32)
    # The forward reads the same operands of the same layout.
    case.saved, forward = (), Call(f, case)
    forward.values |= {n: call.values[n] for n in "qkv"}
    out, dv = forward.run(*backend)["out"], call.run(*backend)["dv"]
    assert np.array_equal(out != 0, dv.swapaxes(2, 3) != 0)
    assert 0.3 < (out != 0)[..., np.tri(32, dtype=bool)].mean() < 0.7


@pytest.mark.parametrize("f", [CAUSAL[0], CAUSAL[2]], ids=lambda f: f["name"])
def test_values_of_dropped_keys(backend, f):
    """NaN of v at a dropped key reaches no gradient of the query, NaN of dout no dropped key."""
    case = Case(queries=40, keys=70, p=0.8)
    call = prepared(f, case)
    clean = call.run(*backend)
    keep = call.mask()["keep"][0, 0] & np.tri(40, 70, 30, dtype=bool)
    call.values["v"][0, 0, 33] = np.nan
    got = call.run(*backend)
    assert np.array_equal(np.isnan(got["dq"][0, 0]).any(-1), keep[:, 33])
    others = ~keep[:, 33]
    assert np.array_equal(got["dq"][0, 0][others], clean["dq"][0, 0][others])
    assert np.array_equal(got["dv"], clean["dv"])
    call = prepared(f, case)
    call.values["dout"][0, 0, 20] = np.inf
    call.values["out"][0, 0, 20] = 0.0
    got = call.run(*backend)["dv"][0, 0]
    assert np.array_equal(~np.isfinite(got).all(-1), keep[20])


LENGTHS = [(0, 3), (70, 129), (5, 0), (0, 0), (64, 64), (1, 70)]


@pytest.mark.parametrize("f", VARLEN, ids=lambda f: f["name"])
@pytest.mark.parametrize("p", [0.25, 1.0])
def test_packed(backend, f, p):
    """A weight has the number that it has among those of all rows."""
    lib, memory = backend
    bounds = [np.cumsum([first, *(n[i] for n in LENGTHS)]) for i, first in enumerate((2, 3))]
    rows, keys = (int(x[-1]) + 4 for x in bounds)
    sizes = (len(LENGTHS), 4, 2, rows, keys, 24, 16)
    sizes += (70, 129) if "max_query" in f["sizes"] else ()
    call = checks.Layout(lib, f, sizes, p=p)
    for name, x in zip(("query_offsets", "key_offsets"), bounds):
        call.put(name, x.astype(call.data[name].dtype))
    attention_gradients.fill(call)
    for name in ("out", *attention_gradients.SAVED):
        call.put(name, call.data[name])
    code, back = memory.run(call.image, lambda base: lib.call(f, call.given(base)))
    assert code == 0, lib.detail
    call.untouched(back)
    attention_gradients.check(call, call.outputs(back))


REFUSED = [
    ({"p": 1.5}, "p is 1.5, expected 0 <= p <= 1"),
    ({"p": float("nan")}, "p is nan, expected 0 <= p <= 1"),
    ({"shard": {"queries_total": 2**30, "keys_total": 2**30}}, "expected at most 2\\^58 scores"),
]


@pytest.mark.parametrize(("more", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(backend, more, message):
    for f in (CAUSAL[0], CAUSAL[3]):
        case = Case(5, 9)
        call = prepared(f, case)
        for name, value in more.items():
            setattr(case, name, value)
        with pytest.raises(AssertionError, match=message):
            call.run(*backend)
