# SPDX-License-Identifier: Apache-2.0
"""Launchers of attention on both backends: numbers, layouts, shards of longer sequences, the kernel
that a call takes, arguments that are refused."""

import checks
import emulator
import kflib
import numpy as np
import pytest
import toolkit
from conftest import BUILD
from launcher import HEADS_FIRST, PACKED, TOLERANCE, Call, Case, visible
from scores import check, check_hidden_values, diagonal

FUNCTIONS = {f["name"]: f for f in kflib.manifest()["functions"] if f["family"] == "attention"}
SCORES = (
    "window_attention",
    "softcap_causal_attention",
    "alibi_causal_attention",
    "bias_attention",
    "mask_attention",
    "sink_window_attention",
)
MODIFIED = [FUNCTIONS[f"kf_{name}_{d}"] for name in SCORES for d in ("bf16", "f32")]
TESTED = [FUNCTIONS[f"kf_causal_attention_{d}"] for d in ("bf16", "f16", "f32", "f64")]
PLAIN = FUNCTIONS["kf_attention_bf16"]


@pytest.fixture(scope="module")
def emu():
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    # Head dimensions of the smallest tile alone: others take minutes to compile.
    lib = emulator.build(
        [*TESTED, *MODIFIED, PLAIN], BUILD / "attention", more=("-DKF_HEAD_DIMS=1",)
    )
    return lib, emulator.Memory(emulator.Emulator(lib), ((emulator.RANDOM, 1),), 1 << 24)


@pytest.fixture
def hopper(emu):
    """The emulated device has wgmma."""
    lib, memory = emu
    memory.emulator.set(hopper=1)
    yield lib, memory
    memory.emulator.set(hopper=0)


@pytest.fixture(scope="module")
def cpu():
    lib = kflib.build(
        "cpu", [*TESTED, *MODIFIED, PLAIN], BUILD / "attention", ("-O1", "-Wall", "-Werror")
    )
    return lib, checks.CpuMemory(1 << 24)


@pytest.fixture(params=["cpu", "emu", "hopper"])
def backend(request):
    return request.getfixturevalue(request.param)


CASES = [
    Case(),
    Case(queries=70, keys=100, heads=4, kv_heads=2, batch=2),
    Case(queries=100, keys=70, layout=HEADS_FIRST, heads=2, saved=("lse",)),
    Case(queries=5, keys=130, layout=PACKED, heads=2, batch=2, saved=()),
    Case(queries=9, keys=0),
    Case(queries=9, keys=12, dim=40, dim_v=24, shared_kv=True, batch=2),
    Case(queries=9, keys=12, scalars={"scale": -0.5}),
    Case(queries=9, keys=12, scalars={"scale": 0.0}),
    # A shard of queries, of keys, and keys that no query of the shard sees.
    Case(queries=20, keys=90, shard={"query_base": 30, "queries_total": 90}),
    Case(queries=60, keys=40, shard={"key_base": 25, "keys_total": 70}),
    Case(queries=10, keys=40, shard={"key_base": 50, "queries_total": 90, "keys_total": 90}),
]
# Head dimensions that are no multiples of 8, unaligned rows.
ODD = [
    Case(queries=9, keys=12, dim=7, dim_v=3),
    Case(queries=33, keys=70, dim=64, offset=1),
    Case(queries=3, keys=5, dim=0, dim_v=8),
    Case(queries=3, keys=5, dim=8, dim_v=0),
]


@pytest.mark.parametrize("f", TESTED, ids=lambda f: f["name"])
@pytest.mark.parametrize("case", [*CASES, *ODD], ids=range(len(CASES + ODD)))
def test_numbers(backend, f, case):
    lib, memory = backend
    Call(f, case).check(lib, memory, lambda s: s * case.scalars["scale"], diagonal(case))


def test_all_keys(backend):
    lib, memory = backend
    case = Case(queries=70, keys=33, heads=2)
    Call(PLAIN, case).check(lib, memory, lambda s: s * 0.125, None)


SHARD = {"query_base": 7, "queries_total": 90, "key_base": 5, "keys_total": 120}


@pytest.mark.parametrize("f", MODIFIED, ids=lambda f: f["name"])
@pytest.mark.parametrize("shard", [{}, SHARD], ids=["whole", "shard"])
def test_scores(backend, f, shard):
    lib, memory = backend
    scalars = {"scale": 0.3, "left": 20, "right": 3, "softcap": 2.5}
    case = Case(queries=70, keys=101, heads=4, kv_heads=2, batch=2, scalars=scalars, shard=shard)
    check(lib, memory, f, case)


@pytest.mark.parametrize("name", ["window_attention", "sink_window_attention"])
@pytest.mark.parametrize("left", [2**63 - 1, -(2**63), -200, 0])
def test_any_window(backend, name, left):
    lib, memory = backend
    scalars = {"scale": 0.125, "left": left, "right": -(2**63) if left == 0 else 1}
    case = Case(queries=20, keys=33, scalars=scalars)
    case.more = {"sink": np.array([-np.inf])} if "sink" in name else {}
    near = max(min(left, 2**40), -(2**40)), max(scalars["right"], -(2**40))
    right = 0 if "sink" in name else near[1]
    see = visible(case, lambda i: i + 13 - near[0], lambda i: i + 13 + right)
    f = FUNCTIONS[f"kf_{name}_f32"]
    Call(f, case).check(lib, memory, lambda s: s * 0.125, see)


@pytest.mark.parametrize("name", ["bias_attention", "mask_attention"])
@pytest.mark.parametrize("shape", [(1, 2, 1, 41), (2, 1, 33, 41), (1, 1, 33, 41)])
def test_broadcast_scores(backend, name, shape):
    """Batches, heads or queries share a bias or a mask; odd rows are read element by element."""
    lib, memory = backend
    case = Case(queries=33, keys=41, heads=2, batch=2)
    rng = np.random.default_rng(3)
    given = rng.standard_normal(shape) if "bias" in name else (rng.random(shape) < 0.5) * 1.0
    case.more = {name.split("_")[0]: given}

    def score(s):
        return s * 0.125 + given if "bias" in name else np.where(given, s * 0.125, -np.inf)

    Call(FUNCTIONS[f"kf_{name}_bf16"], case).check(lib, memory, score, None)


def test_hidden_values(backend):
    """NaN and infinities at keys that a query does not see do not reach its result."""
    lib, memory = backend
    for f in (TESTED[0], TESTED[2], FUNCTIONS["kf_mask_attention_bf16"]):
        check_hidden_values(lib, memory, f, Case(queries=40, keys=70), TOLERANCE)


REFUSED = [
    (Case(heads=4, kv_heads=3), "kv_heads is 3, expected a divisor of heads, 4"),
    (Case(shard={"queries_total": 63}), "queries_total is 63, expected at least 64"),
    (Case(shard={"key_base": 7, "keys_total": 70}), "keys_total is 70, expected at least 71"),
    (Case(shard={"head_base": 2, "heads_total": 2}), "heads_total is 2, expected at least 3"),
]


@pytest.mark.parametrize(("case", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(backend, case, message):
    lib, memory = backend
    with pytest.raises(AssertionError, match=message):
        Call(PLAIN, case).run(lib, memory)


def test_refused_by_cuda(emu):
    """Head dimensions without a kernel: too large, or not compiled (KF_HEAD_DIMS)."""
    lib, memory = emu
    for case, message in (
        (Case(dim=8, dim_v=257), "dim_v is 257, expected at most 256"),
        (Case(dim=128), "KF_HEAD_DIMS leaves it out"),
        (Case(dim=264, dim_v=8), "KF_HEAD_DIMS leaves it out"),
    ):
        with pytest.raises(AssertionError, match=message):
            Call(PLAIN, case).run(lib, memory)
