# SPDX-License-Identifier: Apache-2.0
"""Bits of attention to a cache, in C and in the emulation: a sequence has the same ones alone and
in a batch, in any pages and with contiguous caches, with several queries and with one at a time.
"""

import checks
import emulator
import kflib
import numpy as np
import pytest
import storage
import toolkit
from conftest import BUILD

MANIFEST = {f["name"]: f for f in kflib.manifest()["functions"]}
DECODE = [MANIFEST[f"kf_attention_decode_{word}"] for word in ("f32", "bf16", "f64")]
OTHERS = [MANIFEST["kf_kv_append_f32"], MANIFEST["kf_attention_merge_f32"]]
ROOM = 1 << 24
# Several chunks of 128 and of 256 keys, no key, one key.
COUNTS = (300, 0, 1, 1100, 129)
MOST = 1120
UNBOUNDED = 2**63 - 1


@pytest.fixture(
    scope="module",
    params=[
        "cpu",
        pytest.param(
            "emu", marks=pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
        ),
    ],
)
def backend(request):
    functions = [*DECODE, *OTHERS]
    if request.param == "cpu":
        lib = kflib.build("cpu", functions, BUILD / "decoding", ("-O1", "-fopenmp"))
        return lib, checks.CpuMemory(ROOM)
    # Few blocks, so that one has several items and another one a part of a sequence.
    lib = emulator.build(functions, BUILD / "decoding", more=("-DKFI_DECODE_BLOCKS=5",))
    return lib, emulator.Memory(emulator.Emulator(lib), emulator.RUNS[:1], size=ROOM)


def each():
    return pytest.mark.parametrize("f", DECODE, ids=[f["dtypes"][0] for f in DECODE])


class Sequences:
    """Keys, values and queries of several sequences, as tensors [rows, heads, dim]."""

    def __init__(self, f, counts=COUNTS, queries=2, heads=4, kv_heads=2, dim=16, dim_v=16):
        rng = np.random.default_rng(5)
        self.f, self.counts, self.dtype = f, counts, f["dtypes"][0]
        self.sizes = {"heads": heads, "kv_heads": kv_heads, "dim": dim, "dim_v": dim_v}
        self.q = [rng.standard_normal((queries, heads, dim)) for _ in counts]
        self.k = [rng.standard_normal((n, kv_heads, dim)) for n in counts]
        self.v = [rng.standard_normal((n, kv_heads, dim_v)) for n in counts]

    def run(self, backend, page_size, chosen=None, shuffled=True, first=0, most=None, **scalars):
        """Runs the sequences `chosen` with pages of a size; None: a contiguous cache.

        Args:
            first, most: queries of each sequence.

        Returns:
            {sequence: (out, lse)}
        """
        lib, memory = backend
        chosen = list(range(len(self.counts))) if chosen is None else chosen
        queries = len(self.q[0][first:most])
        size = page_size or MOST
        pages = -(-MOST // size)
        blocks = len(chosen) * pages + 1
        sizes = self.sizes | {"batch": len(chosen), "queries": queries}
        sizes |= {"blocks": blocks, "page_size": size, "pages": pages}
        drop = () if page_size else ("page_table",)
        call = checks.Layout(lib, self.f, [sizes[n] for n in self.f["sizes"]], drop=drop)
        order = np.random.default_rng(len(chosen) + size).permutation(blocks)
        order = order if shuffled and page_size else np.arange(blocks)
        table = order[: len(chosen) * pages].reshape(len(chosen), pages)
        for name, source in (("k_cache", self.k), ("v_cache", self.v)):
            shape = call.data[name].shape
            cache = np.full((shape[0] * size, *shape[2:]), np.nan)  # rows of no sequence
            for at, s in enumerate(chosen):
                rows = np.arange(self.counts[s])
                cache[table[at, rows // size] * size + rows % size] = source[s]
            call.put(name, storage.from_float(cache.reshape(shape), self.dtype))
        q = np.array([self.q[s][first:most] for s in chosen])
        call.put("q", storage.from_float(q, self.dtype))
        call.put("page_table", table.astype(np.int32))
        call.put("key_length", np.array([self.counts[s] for s in chosen], np.int32))
        call.scalars |= {"left": UNBOUNDED, "right": 0, "scale": 0.25} | scalars
        memory.spans = call.spans()
        code, back = memory.run(call.image, lambda base: lib.call(self.f, call.given(base)))
        assert code == 0, lib.detail
        call.untouched(back)
        found = call.outputs(back)
        return {s: (found["out"][at], found["lse"][at]) for at, s in enumerate(chosen)}


def same(a, b):
    """True if both results of a sequence have the same bits."""
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b))


@each()
@pytest.mark.parametrize("left", [UNBOUNDED, 200])
def test_pages(backend, f, left):
    """Pages of any size, shuffled, and contiguous caches."""
    own = Sequences(f)
    wanted = own.run(backend, None, left=left)
    for page_size in (1, 3, 16, 64, 256):
        found = own.run(backend, page_size, left=left)
        assert all(same(found[s], wanted[s]) for s in wanted), page_size


@each()
def test_batches(backend, f):
    """A sequence alone and in batches of others, in any place."""
    own = Sequences(f)
    wanted = own.run(backend, 16)
    for chosen in ([3], [4, 3], [0, 1, 2, 3], [3, 3, 3, 0, 3]):
        found = own.run(backend, 16, chosen)
        assert all(same(found[s], wanted[s]) for s in found), chosen


@each()
@pytest.mark.parametrize("left", [UNBOUNDED, 150])
def test_queries(backend, f, left):
    """Several queries, and one at a time that sees as far; several rows of a tile, and one."""
    own = Sequences(f, queries=5)
    together = own.run(backend, 16, left=left)
    for i in range(5):
        after = 4 - i
        alone = own.run(
            backend,
            16,
            first=i,
            most=i + 1,
            left=left if left == UNBOUNDED else left + after,
            right=-after,
        )
        for s, (out, lse) in alone.items():
            if left != UNBOUNDED and own.counts[s] > left:
                continue  # another window has other chunks
            assert out[0].tobytes() == together[s][0][i].tobytes(), (i, s)
            assert lse[:, 0].tobytes() == together[s][1][:, i].tobytes(), (i, s)


@each()
@pytest.mark.parametrize("left", [UNBOUNDED, 150])
def test_values_that_a_query_does_not_see(backend, f, left):
    """NaN and infinities of values reach the queries that see their key, and change no bit of the
    others."""
    queries, odd = 5, (np.nan, np.inf, -np.inf)
    own = Sequences(f, queries=queries)
    plain = own.run(backend, 16, left=left)
    for s, n in enumerate(own.counts):
        # Keys that some queries see: at the end, and at the beginning of the windows.
        keys = [n - 1 - i for i in range(queries - 1)]
        keys += [n - left - i for i in range(2, queries + 1)] if left < n else []
        for key in keys:
            if key < 0:
                continue
            column, value = key % 16, odd[key % 3]
            kept = own.v[s][key, :, column].copy()
            own.v[s][key, :, column] = value
            found = own.run(backend, 16, left=left)
            own.v[s][key, :, column] = kept
            assert all(same(found[other], plain[other]) for other in plain if other != s)
            for i in range(queries):
                at = n - queries + i
                want = plain[s][0][i].copy()
                if at - left <= key <= at:
                    word = storage.from_float(np.array([value]), own.dtype)[0]
                    want[:, column] = word
                got = storage.to_float(found[s][0][i], own.dtype)
                want = storage.to_float(want, own.dtype)
                assert np.array_equal(got, want, equal_nan=True), (s, key, i)


@each()
def test_steps(backend, f):
    """Successive steps of one query, whose lengths differ, have the bits of one call of all."""
    counts = (305, 20)
    own = Sequences(f, counts, queries=4)
    together = own.run(backend, 16)
    for i in range(4):
        step = Sequences(f, tuple(n - 3 + i for n in counts), queries=4)
        step.k = [k[: len(k) - 3 + i] for k in own.k]
        step.v = [v[: len(v) - 3 + i] for v in own.v]
        step.q = own.q
        found = step.run(backend, 16, first=i, most=i + 1)
        assert all(
            found[s][0][0].tobytes() == together[s][0][i].tobytes() for s in range(len(counts))
        ), i


@each()
def test_parts_are_merged(backend, f):
    """attention_merge of two halves of the keys gives attention to all of them."""
    merge = OTHERS[1]
    if f["dtypes"][0] != "f32":
        f = DECODE[0]
    own = Sequences(f, (300,), queries=3)
    whole = own.run(backend, 16, right=UNBOUNDED)[0]
    parts = []
    for begin, end in ((0, 170), (170, 300)):
        half = Sequences(f, (end - begin,), queries=3)
        half.q, half.k, half.v = own.q, [own.k[0][begin:end]], [own.v[0][begin:end]]
        parts.append(half.run(backend, 16, right=UNBOUNDED)[0])
    lib, memory = backend
    call = checks.Layout(lib, merge, (1, 3, 4, 16))
    for part, (out, lse) in zip("ab", parts):
        call.put(f"out_{part}", out[None])
        call.put(f"lse_{part}", lse[None])
    memory.spans = call.spans()
    code, back = memory.run(call.image, lambda base: lib.call(merge, call.given(base)))
    assert code == 0, lib.detail
    found = call.outputs(back)
    assert np.allclose(found["out"][0], whole[0], atol=1e-6)
    assert np.allclose(found["lse"][0], whole[1], atol=1e-6)
