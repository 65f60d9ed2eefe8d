# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention over lists of blocks of keys on both backends: numbers, bits, blocks that
nobody lists, hidden values, lists that are wrong, arguments that are refused."""

import dataclasses

import block_calls
import checks
import emulator
import gradient_calls
import kflib
import numpy as np
import pytest
import toolkit
import user_ops
from conftest import BUILD
from gradient_calls import SAVED, TOLERANCE
from launcher import HEADS_FIRST, PACKED, close
from test_block_sparse import WRONG, causal, draw

FUNCTIONS = {f["name"]: f for f in kflib.manifest()["functions"] if f["family"] == "attention"}
DTYPES = ("bf16", "f16", "f32", "f64")
TESTED = [FUNCTIONS[f"kf_block_sparse_attention_bwd_{d}"] for d in DTYPES]
TWO = [TESTED[0], TESTED[2]]
WHOLE = ("attention", "causal_attention")
DENSE = [FUNCTIONS[f"kf_{op}_bwd_{d}"] for op in WHOLE for d in ("bf16", "f32")]


@dataclasses.dataclass
class Case(block_calls.Case, gradient_calls.Case):
    pass


class Call(block_calls.Call, gradient_calls.GradientCall):
    """A backward that is given the results of the forward with the mask."""

    def __init__(self, f, case):
        super().__init__(f, case)
        scale = case.scalars["scale"]
        self.score, self.slope = (lambda s: s * scale), (lambda s: np.full(s.shape, scale))
        self.forward(self.score, case.mask, {})

    def run(self, lib, memory):
        return {n: x for n, x in super().run(lib, memory).items() if n in ("dq", "dk", "dv")}

    def oracle(self):
        return self.wanted(self.score, self.case.mask, self.slope, {})


def check(backend, f, case):
    """Compares a call with the oracle; returns the gradients."""
    call = Call(f, case)
    got, want = call.run(*backend), call.oracle()
    for name, x in got.items():
        assert np.isfinite(x).all(), (f["name"], case, name)
        close((f["name"], case, name), x, want[name], TOLERANCE[f["dtypes"][0]])
    assert got.keys() == {n for n in ("dq", "dk", "dv") if want[n].size} - {*case.skipped}
    return got


@pytest.fixture(scope="module")
def cpu():
    own = ("-O1", "-Wall", "-Werror")
    lib = kflib.build("cpu", [*TESTED, *DENSE], BUILD / "attention_block_gradients", own)
    return lib, checks.CpuMemory(1 << 25)


@pytest.fixture(scope="module")
def emu():
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    # Head dimensions of the smallest tile alone: others take minutes to compile.
    more = ("-DKF_HEAD_DIMS=1",)
    lib = emulator.build([*TESTED, *DENSE], BUILD / "attention_block_gradients", more=more)
    return lib, emulator.Memory(emulator.Emulator(lib), ((emulator.RANDOM, 1),), 1 << 25)


@pytest.fixture
def hopper(emu):
    """The emulated device has wgmma, which no list takes."""
    lib, memory = emu
    memory.emulator.set(hopper=1)
    yield lib, memory
    memory.emulator.set(hopper=0)


@pytest.fixture(params=["cpu", "emu"])
def backend(request):
    return request.getfixturevalue(request.param)


CASES = [
    Case(queries=64, keys=64, mask=draw(1, 1, 64, 64, 2)),
    Case(queries=130, keys=200, heads=4, kv_heads=2, batch=2, mask=draw(2, 4, 130, 200)),
    Case(queries=200, keys=130, heads=3, mask=draw(1, 1, 200, 130), layout=HEADS_FIRST),
    # Few blocks: some queries see no key, and some keys are seen by nobody.
    Case(queries=70, keys=400, batch=2, mask=draw(2, 1, 70, 400, 0.2), saved=("lse",)),
    Case(queries=330, keys=70, heads=2, kv_heads=1, mask=draw(1, 2, 330, 70, 0.3), dlse=False),
    Case(queries=200, keys=300, heads=2, block_size=128, mask=draw(1, 2, 200, 300, block=128)),
    Case(queries=140, keys=257, block_size=128, mask=draw(1, 1, 140, 257, block=128), dim=40),
    Case(queries=9, keys=12, dim=40, dim_v=24, mask=draw(1, 1, 9, 12, 2), layout=PACKED),
    Case(queries=70, keys=70, mask=draw(1, 1, 70, 70), scalars={"scale": -0.5}),
    Case(queries=70, keys=70, mask=draw(1, 1, 70, 70) & False),
    Case(queries=9, keys=0, mask=draw(1, 1, 9, 0)),
    Case(queries=0, keys=70, mask=draw(1, 1, 0, 70)),
    Case(queries=70, keys=90, mask=draw(1, 1, 70, 90), scalars={"scale": 0.0}),
    Case(queries=70, keys=90, heads=5, kv_heads=1, mask=draw(1, 5, 70, 90), skipped=("dq",)),
    Case(queries=70, keys=90, mask=draw(1, 1, 70, 90), skipped=("dk", "dv")),
    Case(queries=70, keys=90, mask=draw(1, 1, 70, 90), skipped=("dk",)),
    # Head dimensions that are no multiples of 8, unaligned rows, none.
    Case(queries=70, keys=90, dim=7, dim_v=3, mask=draw(1, 1, 70, 90)),
    Case(queries=70, keys=130, offset=1, mask=draw(1, 1, 70, 130)),
    Case(queries=7, keys=70, dim=0, dim_v=8, mask=draw(1, 1, 7, 70)),
]


@pytest.mark.parametrize("f", TESTED, ids=lambda f: f["name"])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_numbers(backend, f, case):
    check(backend, f, case)


@pytest.mark.parametrize("f", TESTED[:2], ids=lambda f: f["name"])
def test_device_with_wgmma(hopper, f):
    """It runs the kernels by mma.sync."""
    hopper[1].emulator.forget()
    check(hopper, f, CASES[1])
    unused = hopper[1].emulator.missing()
    assert not any("bwd_mma_sparse<" in name for name in unused if f["dtypes"][0] in name), unused


def same(got, want):
    assert got.keys() == want.keys() and got
    for name, value in got.items():
        assert np.array_equal(value, want[name]), name


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("f", TESTED, ids=lambda f: f["name"])
def test_bits_of_the_whole_mask(backend, f, block):
    """Blocks that are left out, or listed without a mask, have the bits of all blocks' masks, in
    every run."""
    mask = draw(1, 2, 130, 330, block=block)
    case = Case(queries=130, keys=330, heads=2, kv_heads=1, block_size=block, mask=mask)
    whole = Case(**vars(case) | {"whole": True, "more": {}})
    assert case.listed_blocks < whole.listed_blocks and case.partial_blocks < whole.partial_blocks
    got = Call(f, case).run(*backend)
    same(got, Call(f, whole).run(*backend))
    same(got, Call(f, case).run(*backend))


@pytest.mark.parametrize("which", WHOLE)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_bits_of_attention(emu, which, dtype):
    """All keys and causal masks have the bits of the functions without lists."""
    mask = causal(130, 200) if which == "causal_attention" else np.ones((1, 1, 130, 200), bool)
    case = Case(queries=130, keys=200, heads=2, kv_heads=1, mask=mask)
    call = Call(FUNCTIONS[f"kf_block_sparse_attention_bwd_{dtype}"], case)
    got = call.run(*emu)
    other = gradient_calls.GradientCall(FUNCTIONS[f"kf_{which}_bwd_{dtype}"], case)
    other.values, other.rows, other.dlse, other.more = call.values, call.rows, call.dlse, {}
    same(got, other.run(*emu))


@pytest.mark.parametrize("f", TESTED, ids=lambda f: f["name"])
def test_nobody(backend, f):
    """Keys of a block that no list has, and queries of an empty list, have gradients of 0, whatever
    these tensors hold."""
    mask = draw(1, 2, 200, 260, 0.9)
    mask[:, :, 64:128] = mask[..., 64:192] = False
    case = Case(queries=200, keys=260, heads=2, kv_heads=1, mask=mask)
    call = Call(f, case)
    want = call.run(*backend)
    for name in ("q", "dout"):
        call.values[name][:, :, 64:128, ::3] = np.nan
    for name in ("k", "v"):
        call.values[name][:, :, 64:192, 1::3] = np.inf
    got = call.run(*backend)
    for name, x in got.items():  # C sums blocks of rows with NaN in another order
        assert np.isfinite(x).all(), name
        close((f["name"], name), x, want[name], TOLERANCE[f["dtypes"][0]])
    assert not got["dq"][:, :, 64:128].any() and got["dq"][:, :, 128:].any()
    for name in ("dk", "dv"):
        assert not got[name][:, :, 64:192].any() and got[name][:, :, 192:].any()


@pytest.mark.parametrize("f", TWO, ids=lambda f: f["name"])
def test_hidden_values(backend, f):
    """NaN and infinities of k and v at keys that a query does not see do not reach its gradient,
    those of q and dout reach no key that the query does not see."""
    mask = draw(1, 1, 70, 200, 1.2, seed=3)
    mask[..., 3, :] = mask[..., 20] = False
    mask[..., 3, 100:150] = mask[..., 30:60, 20] = True
    case = Case(queries=70, keys=200, mask=mask)
    call = Call(f, case)
    clean = call.run(*backend)
    call.values["v"][..., 20, 3] = np.nan
    got, seen = call.run(*backend)["dq"], mask[0, 0, :, 20]
    assert np.isnan(got[:, :, seen]).all(-1).all() and np.isfinite(got[:, :, ~seen]).all()
    close(f["name"], got[:, :, ~seen], clean["dq"][:, :, ~seen], TOLERANCE[f["dtypes"][0]])
    call = Call(f, case)
    call.values["dout"][..., 3, 1] = np.nan
    got, seen = call.run(*backend), mask[0, 0, 3]
    for name in ("dk", "dv"):
        assert np.isnan(got[name][:, :, seen]).any(-1).all(), name
        assert np.isfinite(got[name][:, :, ~seen]).all(), name
        close(f["name"], got[name][:, :, ~seen], clean[name][:, :, ~seen], 0.02)


@pytest.mark.parametrize("which", WRONG)
@pytest.mark.parametrize("f", TWO, ids=lambda f: f["name"])
def test_wrong_blocks(backend, f, which):
    """Queries of such a list, and keys of the key head, have NaN; others are right."""
    mask = np.ones((1, 4, 130, 190), bool)
    mask[:, 0, 70, 100] = False
    case = Case(queries=130, keys=190, heads=4, kv_heads=2, mask=mask)
    offsets, entries, masks = case.lists
    assert len(masks) == 1
    WRONG[which](entries)
    case.given = offsets, entries, masks
    call = Call(f, case)
    for x in call.rows.values():
        x[:, 0, :64] = np.nan
    call.values["out"][:, 0, :64] = np.nan
    got = call.run(*backend)
    call.values["out"][:, 0, :64] = 0
    for name, want in call.oracle().items():
        if name not in got:
            continue
        right = np.ones(want.shape, bool)
        right[:, 0, : 64 if name == "dq" else None] = False
        assert np.isnan(got[name][~right]).all()
        close((f["name"], name), got[name][right], want[right], TOLERANCE[f["dtypes"][0]])


@pytest.mark.parametrize("f", TWO, ids=lambda f: f["name"])
def test_bounds_outside(backend, f):
    """They are clamped, and a list that ends before its beginning is empty."""
    mask = np.ones((1, 1, 190, 190), bool)
    case = Case(queries=190, keys=190, mask=mask)
    want = Call(f, case).run(*backend)
    bounds = np.array((-5, 3, 6, 2**31 - 1), np.int32).reshape(1, 1, 4)
    case.given = (bounds, *case.lists[1:])
    same(Call(f, case).run(*backend), want)
    mask[:, :, 64:128] = False
    case = Case(queries=190, keys=190, mask=mask)
    want = Call(f, case).run(*backend)
    offsets, entries, masks = case.lists
    entries = np.concatenate((entries[:3], entries))
    case.given = np.array((6, 9, 3, 6), np.int32).reshape(1, 1, 4), entries, masks
    offsets[0, 0] = (3, 6, 6, 9)
    assert [*case.given[0][0, 0, 1:3]] == [9, 3]
    got = Call(f, case).run(*backend)
    same(got, want)


def test_bits_of_a_head(backend):
    """A batch and head has the same bits alone as among several with other lists."""
    f, mask = TESTED[2], draw(3, 4, 150, 200)
    case = Case(queries=150, keys=200, heads=4, kv_heads=2, batch=3, mask=mask)
    call = Call(f, case)
    whole = call.run(*backend)
    one = Case(queries=150, keys=200, heads=2, kv_heads=1, mask=mask[1:2, 2:])
    part = Call(f, one)
    for name, x in call.values.items():
        part.values[name] = x[1:2, 1:] if name in "kv" else x[1:2, 2:]
    part.rows = {n: call.rows[n][1:2, 2:] for n in SAVED}
    part.dlse = call.dlse[1:2, 2:]
    alone = part.run(*backend)
    same(alone, {n: x[1:2, 2:] if n == "dq" else x[1:2, 1:] for n, x in whole.items()})


@pytest.mark.parametrize("block", [32, 96, 256])
def test_refused(backend, block):
    mask = np.ones((1, 1, 64, 64), bool)
    case = Case(queries=64, keys=64, block_size=block, mask=mask)
    with pytest.raises(AssertionError, match=f"block_size is {block}, expected 64 or 128"):
        Call(TESTED[0], case).run(*backend)


OWN = """
[op.listed_attention]
family = "attention"
dropout = "listed_attention_dropout"
brief = "causal attention of listed blocks with a bias and a slope"
expr = "softmax(dot * scale + bias - fall * (query - column) * 0.02) * v"
ref = "softmax(dot * scale + bias - fall * (query - column) * 0.02) * v"
last = "query + (count - queries)"
operands.q = "query"
operands.k = "key"
operands.v = "value"
operands.block_offsets = { kind = "block_offsets", dtype = "i32", grad = false }
operands.key_blocks = { kind = "key_blocks", dtype = "i32", grad = false }
operands.block_masks = { kind = "block_masks", dtype = "i32", grad = false }
operands.bias = "score"
operands.fall = { kind = "head", dtype = "acc" }
scalars = { scale = 0.125 }

[op.sinked_attention]
family = "attention"
brief = "attention of listed blocks with a sink"
expr = "softmax(dot * scale, rest) * v"
ref = "softmax(dot * scale, rest) * v"
operands.q = "query"
operands.k = "key"
operands.v = "value"
operands.block_offsets = { kind = "block_offsets", dtype = "i32", grad = false }
operands.key_blocks = { kind = "key_blocks", dtype = "i32", grad = false }
operands.block_masks = { kind = "block_masks", dtype = "i32", grad = false }
operands.rest = "head"
scalars = { scale = 0.125 }
"""
SIZES = [
    (2, 4, 2, 70, 150, 24, 16, 64, 20, 4),
    (1, 2, 1, 200, 260, 64, 64, 128, 12, 3),
    (1, 3, 3, 5, 0, 8, 8, 64, 2, 1),
]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own_lists")
    path, _, functions = user_ops.load(OWN, folder, activations=())
    functions = [f for f in functions if f["dtypes"][0] in ("bf16", "f32") and not f["state"]]
    return path, functions, folder


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_own(own, device):
    """Scores with gradients, dropout and sinks beside lists, some of them wrong."""
    path, functions, folder = own
    include = [kflib.ROOT / "include", kflib.rendered(), folder]
    if device == "cpu":
        lib = kflib.build("cpu", functions, folder, ("-O1", "-Wall", "-Werror"), include=include)
        memory = checks.CpuMemory(1 << 24)
    else:
        lib = emulator.build(functions, folder, include=include, more=("-DKF_HEAD_DIMS=1",))
        memory = emulator.Memory(emulator.Emulator(lib), ((emulator.RANDOM, 1),), 1 << 24)
    names = {a["name"] for f in functions if f["bwd"] for a in f["arguments"]}
    assert names >= {"dq", "dk", "dv", "dbias", "dfall", "drest"}
    for f in functions:
        for sizes in SIZES:
            for values in ("normal", "special"):
                checks.run(lib, memory, f, sizes, values, files=(path,))
