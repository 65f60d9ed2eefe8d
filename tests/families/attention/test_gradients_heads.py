# SPDX-License-Identifier: Apache-2.0
"""Gradients of operands with one number per head, and of the sink, on both backends: sinks of -inf,
queries that see no key, empty tensors, calls that want them alone, packed sequences, bits."""

import attention_gradients
import checks
import emulator
import gradient_calls
import kflib
import numpy as np
import pytest
import toolkit
import user_ops
from conftest import BUILD
from gradient_calls import Case, GradientCall, slope
from launcher import HEADS_FIRST, close
from scores import modified
from storage import from_float, to_float
from test_gradients import packed, run

FUNCTIONS = {f["name"]: f for f in kflib.manifest()["functions"] if f["family"] == "attention"}
SINKS = [FUNCTIONS[f"kf_sink_window_attention_bwd_{d}"] for d in ("bf16", "f16", "f32", "f64")]
SLOPES = [FUNCTIONS[f"kf_alibi_causal_attention_bwd_{d}"] for d in ("bf16", "f16", "f32", "f64")]
DROPPED = [
    FUNCTIONS[f"kf_{name}"]
    for name in (
        "sink_window_attention_dropout_bwd_bf16",
        "alibi_causal_attention_dropout_state_bwd_f32",
    )
]
OF_SEQUENCES = [
    FUNCTIONS[f"kf_{name}"]
    for name in (
        "sink_window_attention_varlen_bwd_f32",
        "sink_window_attention_varlen_bwd_bf16_i32",
        "alibi_causal_attention_varlen_bwd_f32_i32",
        "alibi_causal_attention_varlen_bwd_bf16",
    )
]
TESTED = [*SINKS, *SLOPES, *DROPPED, *OF_SEQUENCES]
# Relative to the sum of the magnitudes of the summands, whose factors are rounded to the dtype.
TOLERANCE = {"bf16": 5e-3, "f16": 1e-3, "f32": 4e-6, "f64": 1e-14}


@pytest.fixture(scope="module")
def cpu():
    lib = kflib.build("cpu", TESTED, BUILD / "attention_heads", ("-O1", "-Wall", "-Werror"))
    return lib, checks.CpuMemory(1 << 26)


@pytest.fixture(scope="module")
def portable():
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    # Head dimensions of the smallest tile alone, as in test_gradients.py.
    lib = emulator.build(TESTED, BUILD / "attention_heads", more=("-DKF_HEAD_DIMS=1",))
    return lib, emulator.Memory(emulator.Emulator(lib), ((emulator.RANDOM, 1),), 1 << 26)


@pytest.fixture
def emu(portable):
    lib, memory = portable
    memory.emulator.set(hopper=0)
    return lib, memory


@pytest.fixture
def hopper(portable):
    """The emulated device has wgmma."""
    lib, memory = portable
    memory.emulator.set(hopper=1)
    yield lib, memory
    memory.emulator.set(hopper=0)


@pytest.fixture(params=["cpu", "emu"])
def backend(request):
    return request.getfixturevalue(request.param)


def prepared(f, case, sink=None):
    """Returns a call with the results of its forward, and its gradients in float64.

    sink: [heads], in place of those of scores.py.
    """
    name = f["op"].removesuffix("_dropout")
    case.more, score, see, options = modified(name, case)
    if sink is not None:
        case.more["sink"][...] = sink
    call = GradientCall(f, case)
    call.forward(score, see, options)
    return call, call.wanted(score, see, slope(name, case), options)


def own_of(f):
    return "dsink" if "sink" in f["op"] else "dslope"


def check_own(call, got, want):
    name, dtype = own_of(call.f), call.dtype
    error = np.abs(got[name] - want[name]).max(initial=0)
    assert error <= TOLERANCE[dtype] * call.magnitude, (call.f["name"], call.case, name, error)


def check(backend, f, case, sink=None):
    """Compares all gradients; returns them."""
    call, want = prepared(f, case, sink)
    got = call.run(*backend)
    check_own(call, got, want)
    for name in got.keys() - {own_of(f)}:
        assert np.isfinite(got[name]).all(), (f["name"], case, name)
        limit = gradient_calls.TOLERANCE[f["dtypes"][0]]
        close((f["name"], case, name), got[name], want[name], limit)
    return got


LEFT = {"scale": 0.3, "left": 20}
CASES = [
    Case(70, 101, heads=5, scalars=LEFT, batch=3),
    # Blocks of 64 rows and one more; heads that share a key head.
    Case(129, 65, heads=6, kv_heads=2, scalars=LEFT, layout=HEADS_FIRST),
    # Queries that see no key: those before the first key, or whose window ended.
    Case(90, 33, heads=2, scalars={"scale": 0.3, "left": 3}, saved=("lse",)),
    Case(9, 70, heads=3, kv_heads=1, dim=7, dim_v=3, scalars=LEFT, dlse=False),
    Case(33, 70, dim=56, heads=2, offset=1, scalars=LEFT),
    Case(20, 90, heads=2, shard={"query_base": 30, "queries_total": 90}, scalars=LEFT),
    Case(9, 0, heads=3, scalars=LEFT),
    Case(0, 9, heads=3, scalars=LEFT),
    Case(3, 5, heads=2, dim=0, dim_v=8, scalars=LEFT),
    Case(70, 40, heads=2, batch=2, scalars=LEFT, skipped=("dq", "dk")),
]


@pytest.mark.parametrize("f", [*SINKS, *SLOPES, *DROPPED], ids=lambda f: f["name"])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_numbers(backend, f, case):
    check(backend, f, case)


@pytest.mark.parametrize("f", SINKS, ids=lambda f: f["name"])
def test_no_sink(backend, f):
    """The gradient of a sink of -inf is 0, of queries that see no key as well."""
    case = Case(70, 33, heads=4, kv_heads=2, batch=2, scalars={"scale": 0.3, "left": 5})
    got = check(backend, f, case, [-np.inf, 2.0, -np.inf, -80.0])["dsink"]
    assert (got[[0, 2]] == 0).all() and got[1] != 0


@pytest.mark.parametrize("f", [SINKS[0], SINKS[2]], ids=lambda f: f["name"])
@pytest.mark.parametrize("dlse", [True, False])
def test_without_keys(backend, f, dlse):
    """The dout of a query that sees no key may hold anything; its dlse counts."""
    case = Case(70, 33, heads=2, scalars={"scale": 0.3, "left": 5}, dlse=dlse)
    call, want = prepared(f, case)
    call.values["dout"][:, :, : 70 - 33, 1] = np.nan
    call.values["dout"][:, :, 3, 2] = np.inf
    got = call.run(*backend)
    check_own(call, got, want)
    close(f["name"], got["dq"], want["dq"], gradient_calls.TOLERANCE[f["dtypes"][0]])


@pytest.mark.parametrize("f", [*SINKS[::2], *SLOPES[::2]], ids=lambda f: f["name"])
def test_alone(backend, f):
    """A call that wants nothing else computes the same bits; one that wants the rest leaves them
    alone."""
    own = own_of(f)
    case = Case(130, 70, heads=4, kv_heads=2, batch=2, scalars=LEFT)
    call, _ = prepared(f, case)
    whole = call.run(*backend)
    again = call.run(*backend)
    assert np.array_equal(whole[own], again[own])
    case.skipped = ("dq", "dk", "dv")
    assert np.array_equal(call.run(*backend)[own], whole[own])
    case.skipped = (own,)
    rest = call.run(*backend)
    assert sorted(rest) == ["dk", "dq", "dv"]
    assert all(np.array_equal(x, whole[name]) for name, x in rest.items())


@pytest.mark.parametrize("skipped", [(), ("dq", "dk", "dv")], ids=["all", "alone"])
def test_sink_by_wgmma(hopper, skipped):
    """A window without a left end takes kernels by wgmma."""
    lib, memory = hopper
    f = SINKS[0]
    case = Case(130, 130, heads=4, kv_heads=2, batch=2, skipped=skipped)
    case.scalars = {"scale": 0.3, "left": 2**63 - 1}
    memory.emulator.forget()
    check((lib, memory), f, case)
    unused = memory.emulator.missing()
    assert any("bwd_mma<" in name for name in unused), unused
    assert not any("bwd_prepare<" in name or "bwd_sink<" in name for name in unused), unused


LENGTHS = [(0, 3), (70, 129), (5, 0), (0, 0), (64, 64), (1, 300)]


@pytest.mark.parametrize("f", OF_SEQUENCES, ids=lambda f: f["name"])
def test_packed(backend, f):
    """Sums over all sequences; rows of no sequence add their dlse to the sink's gradient, whatever
    dout holds there, and nothing to a slope's."""
    lib, memory = backend
    call, (rows, _) = packed(lib, f, LENGTHS)
    clean, _ = packed(lib, f, LENGTHS)
    x = call.data["dout"].copy()
    x[: rows[0]] = x[rows[-1] :] = from_float(np.full(1, np.nan), f["dtypes"][0])
    call.put("dout", x)
    got = run(lib, memory, call)
    attention_gradients.check(clean, got)
    assert all(np.array_equal(got[n], x) for n, x in run(lib, memory, call).items())


@pytest.mark.parametrize("f", OF_SEQUENCES, ids=lambda f: f["name"])
def test_no_sequence(backend, f):
    """Without sequences the gradients are sums over rows of no sequence."""
    lib, memory = backend
    call, _ = packed(lib, f, [], (1, 1))
    got = run(lib, memory, call)
    attention_gradients.check(call, got)
    dlse = call.data["dlse"].sum(1)
    if "sink" in f["op"]:
        dsink = to_float(got["dsink"], f["dtypes"][0])
        assert np.abs(dlse).min() > 0.1 and np.allclose(dsink, dlse, 0.01)
    else:
        assert (got["dslope"] == 0).all()


OWN = """
[op.sinked_attention]
family = "attention"
varlen = true
brief = "attention with a bias and a sink in the accumulators' type"
expr = "softmax(dot * scale + bias, rest) * v"
ref = "softmax(dot * scale + bias, rest) * v"
operands.q = "query"
operands.k = "key"
operands.v = "value"
operands.bias = "score"
operands.rest = { kind = "head", dtype = "acc" }
scalars = { scale = 0.125 }

[op.twice_attention]
family = "attention"
varlen = true
dropout = "twice_attention_dropout"
brief = "attention whose scores have two factors per head"
expr = "softmax(dot * scale * warm - fall * (query - column) * 0.02) * v"
ref = "softmax(dot * scale * warm - fall * (query - column) * 0.02) * v"
operands.q = "query"
operands.k = "key"
operands.v = "value"
operands.warm = { kind = "head", dtype = "acc" }
operands.fall = "head"
scalars = { scale = 0.125 }
"""
SIZES = [(2, 4, 2, 70, 67, 24, 16), (3, 2, 1, 9, 130, 64, 64), (1, 3, 3, 5, 0, 8, 8)]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own_heads")
    path, _, functions = user_ops.load(OWN, folder, activations=())
    functions = [f for f in functions if f["dtypes"][0] in ("bf16", "f32") and not f["state"]]
    return path, [f for f in functions if f["form"] == "dense" or "_i32" in f["name"]], folder


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_own(own, device):
    """Two gradients per head in one entry; a sink of another dtype beside a bias."""
    path, functions, folder = own
    include = [kflib.ROOT / "include", kflib.rendered(), folder]
    if device == "cpu":
        lib = kflib.build("cpu", functions, folder, ("-O1", "-Wall", "-Werror"), include=include)
        memory = checks.CpuMemory(1 << 24)
    else:
        lib = emulator.build(functions, folder, include=include, more=("-DKF_HEAD_DIMS=1",))
        memory = emulator.Memory(emulator.Emulator(lib), ((emulator.RANDOM, 1),), 1 << 24)
    assert {f["bwd"] for f in functions} == {True, False}
    for f in functions:
        for sizes in SIZES:
            longest = sizes[3:5] if "max_query" in f["sizes"] else ()
            checks.run(lib, memory, f, (*sizes, *longest), files=(path,))
