# SPDX-License-Identifier: Apache-2.0
"""Lists of blocks of keys on both backends: numbers, bits, lists that are shared, hidden values,
lists that are wrong, arguments that are refused."""

import checks
import emulator
import kflib
import numpy as np
import pytest
import toolkit
from block_calls import Call, Case
from block_lists import lists_of
from conftest import BUILD
from launcher import HEADS_FIRST, LSE, TOLERANCE, close

FUNCTIONS = {f["name"]: f for f in kflib.manifest()["functions"] if f["family"] == "attention"}
TESTED = [FUNCTIONS[f"kf_block_sparse_attention_{d}"] for d in ("bf16", "f16", "f32", "f64")]
DENSE = [FUNCTIONS[f"kf_attention_{d}"] for d in ("bf16", "f32")]
CAUSAL = [FUNCTIONS[f"kf_causal_attention_{d}"] for d in ("bf16", "f32")]
COMPILED = [*TESTED, *DENSE, *CAUSAL]


@pytest.fixture(scope="module")
def emu():
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    # Head dimensions of the smallest tile alone: others take minutes to compile.
    lib = emulator.build(COMPILED, BUILD / "attention_lists", more=("-DKF_HEAD_DIMS=1",))
    return lib, emulator.Memory(emulator.Emulator(lib), ((emulator.RANDOM, 1),), 1 << 24)


@pytest.fixture
def hopper(emu):
    """The emulated device has wgmma, which no list takes."""
    lib, memory = emu
    memory.emulator.set(hopper=1)
    yield lib, memory
    memory.emulator.set(hopper=0)


@pytest.fixture(scope="module")
def cpu():
    lib = kflib.build("cpu", COMPILED, BUILD / "attention_lists", ("-O1", "-Wall", "-Werror"))
    return lib, checks.CpuMemory(1 << 24)


@pytest.fixture(params=["cpu", "emu", "hopper"])
def backend(request):
    return request.getfixturevalue(request.param)


def draw(batch, heads, queries, keys, density=0.5, block=64, seed=0):
    """Draws a mask of full, partial and empty blocks."""
    rng = np.random.default_rng(seed)
    rows, cols = -(-queries // block), -(-keys // block)
    kind = rng.random((batch, heads, rows, cols))
    large = np.repeat(np.repeat(kind, block, 2), block, 3)[:, :, :queries, :keys]
    part = rng.random((batch, heads, queries, keys)) < 0.3
    return (large < density / 2) | ((large < density) & part)


def causal(queries, keys):
    return np.tri(queries, keys, keys - queries, dtype=bool)[None, None]


CASES = [
    Case(queries=64, keys=64, mask=draw(1, 1, 64, 64, 2)),
    Case(queries=130, keys=200, heads=4, kv_heads=2, batch=2, mask=draw(2, 4, 130, 200)),
    Case(queries=300, keys=130, heads=2, mask=draw(1, 1, 300, 130), layout=HEADS_FIRST),
    Case(queries=70, keys=600, batch=2, mask=draw(2, 1, 70, 600, 0.2), saved=("lse",)),
    Case(queries=200, keys=300, heads=2, block_size=128, mask=draw(1, 2, 200, 300, block=128)),
    Case(queries=9, keys=12, dim=40, dim_v=24, mask=draw(1, 1, 9, 12, 2)),
    Case(queries=70, keys=70, mask=draw(1, 1, 70, 70), scalars={"scale": -0.5}),
    Case(queries=70, keys=70, mask=draw(1, 1, 70, 70) & False),
    Case(queries=9, keys=0, mask=draw(1, 1, 9, 0)),
    Case(queries=70, keys=90, mask=draw(1, 1, 70, 90), scalars={"scale": 0.0}, saved=()),
    # Head dimensions that are no multiples of 8, unaligned rows.
    Case(queries=70, keys=90, dim=7, dim_v=3, mask=draw(1, 1, 70, 90)),
    Case(queries=70, keys=130, offset=1, mask=draw(1, 1, 70, 130)),
]


@pytest.mark.parametrize("f", TESTED, ids=lambda f: f["name"])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_numbers(backend, f, case):
    Call(f, case).check_mask(*backend)


def same(got, want):
    assert got.keys() == want.keys()
    for name, value in got.items():
        assert np.array_equal(value, want[name]), name


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("f", TESTED, ids=lambda f: f["name"])
def test_bits_of_the_whole_mask(backend, f, block):
    """Blocks that are left out, or listed without a mask, have the bits of all blocks' masks."""
    case = Case(
        queries=130, keys=330, heads=2, block_size=block, mask=draw(1, 2, 130, 330, block=block)
    )
    whole = Case(**vars(case) | {"whole": True, "more": {}})
    assert case.listed_blocks < whole.listed_blocks and case.partial_blocks < whole.partial_blocks
    same(Call(f, case).run(*backend), Call(f, whole).run(*backend))


@pytest.mark.parametrize("which", ["all keys", "causal"])
def test_bits_of_attention(emu, which):
    """All keys and causal masks have the bits of the functions without lists."""
    for sparse, dense, limit in ((TESTED[0], 0, 300), (TESTED[2], 1, 300)):
        mask = causal(130, limit) if which == "causal" else np.ones((1, 1, 130, limit), bool)
        call = Call(sparse, Case(queries=130, keys=limit, mask=mask))
        got = call.run(*emu)
        other = Call.__mro__[1]((CAUSAL if which == "causal" else DENSE)[dense], call.case)
        other.values, other.more = call.values, {}
        same(got, other.run(*emu))


def test_hidden_values(backend):
    """NaN and infinities at keys that a query does not see do not reach its result."""
    for f in (TESTED[0], TESTED[2]):
        case = Case(queries=70, keys=200, mask=draw(1, 1, 70, 200))
        call = Call(f, case)
        call.values["v"][0, 0, 3::29] = np.nan
        call.values["v"][0, 0, 7::31] = np.inf
        got = call.run(*backend)["out"]
        want = call.expected(lambda s: s * 0.125, case.mask)["out"]
        assert np.isnan(want).any() and np.isfinite(want).any()
        assert np.array_equal(np.isnan(got), np.isnan(want))
        seen = np.isfinite(want)
        assert np.array_equal(got[~seen & ~np.isnan(want)], want[~seen & ~np.isnan(want)])
        close(f["name"], got[seen], want[seen], TOLERANCE[f["dtypes"][0]])


WRONG = {
    "a block behind the keys": lambda n: n.__setitem__((1, 0), 3),
    "a block before the keys": lambda n: n.__setitem__((1, 0), -1),
    "a huge block": lambda n: n.__setitem__((1, 0), 2**31 - 1),
    "no such mask": lambda n: n.__setitem__((1, 1), 1),
    "a mask below -1": lambda n: n.__setitem__((1, 1), -(2**31)),
}


@pytest.mark.parametrize("which", WRONG)
def test_wrong_blocks(backend, which):
    """Queries of such a list are NaN, others right."""
    mask = np.ones((1, 1, 130, 190), bool)
    mask[:, :, 70, 100] = False
    for f in (TESTED[0], TESTED[2]):
        case = Case(queries=130, keys=190, mask=mask)
        offsets, entries, masks = case.lists
        assert len(masks) == 1
        WRONG[which](entries)
        case.given = offsets, entries, masks
        call = Call(f, case)
        got = call.run(*backend)
        for name, x in call.expected(lambda s: s * 0.125, mask).items():
            if name in ("out", "lse"):
                assert np.isnan(got[name][:, :, :64]).all()
                limit = (TOLERANCE if name == "out" else LSE)[f["dtypes"][0]]
                close((f["name"], which), got[name][:, :, 64:], x[:, :, 64:], limit)


class Beside(Call):
    """The results lie behind the bounds of the lists, with one guard between them."""

    def placed(self, arena):
        found = super().placed(arena)
        found["block_offsets"] = arena.add(self.more["block_offsets"])
        real = np.float64 if self.dtype == "f64" else np.float32
        found["lse"] = arena.add(np.full(self.shapes["out"][:3], 77, real))
        return found


@pytest.mark.parametrize("shared", ["batch", "heads", "both"])
def test_memory_of_shared_lists(backend, shared):
    """Lists that batches or heads share have no elements for each of them."""
    batch, heads = (1 if shared in (n, "both") else 16 for n in ("batch", "heads"))
    for f in TESTED:
        mask = draw(batch, heads, 3, 70)
        Beside(f, Case(batch=16, heads=16, queries=3, keys=70, mask=mask)).check_mask(*backend)


# Bounds of the lists of three blocks of queries, and those that they stand for; None: more entries
# than blocks of keys.
BOUNDS = {
    (-5, 3, 6, 2**31 - 1): (0, 3, 6, 9),
    (-(2**31), 3, 2, 9): (0, 3, 3, 9),
    (0, 3, 9, 9): None,
}


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_bounds_outside(backend, bounds):
    """They are clamped, and a list that ends before its beginning is empty."""
    for f in (TESTED[0], TESTED[2]):
        mask = np.ones((1, 1, 190, 190), bool)
        offsets, entries, masks = lists_of(mask, 64)
        given = np.array(bounds, np.int32).reshape(1, 1, 4)
        case = Case(queries=190, keys=190, mask=mask, given=(given, entries, masks))
        got = Call(f, case).run(*backend)
        if BOUNDS[bounds] is None:
            assert (
                np.isnan(got["out"][:, :, 64:128]).all()
                and not np.isnan(got["lse"][..., 128:]).any()
            )
            continue
        want = Call(f, Case(queries=190, keys=190, mask=mask)).run(*backend)
        if bounds[1] > bounds[2]:
            assert not got["out"][:, :, 64:128].any() and (got["lse"][..., 64:128] == -np.inf).all()
            rows = np.r_[0:64]
        else:
            rows = np.r_[0:190]
        assert np.array_equal(got["out"][:, :, rows], want["out"][:, :, rows])


@pytest.mark.parametrize("block", [32, 96, 256])
def test_refused(backend, block):
    lib, memory = backend
    case = Case(queries=64, keys=64, block_size=block, mask=np.ones((1, 1, 64, 64), bool))
    with pytest.raises(AssertionError, match=f"block_size is {block}, expected 64 or 128"):
        Call(TESTED[0], case).run(lib, memory)
