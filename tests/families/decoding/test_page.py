# SPDX-License-Identifier: Apache-2.0
"""Parts of docs/families/decoding.md that a caller copies: strides of other layouts, and examples
in Python."""

import re

import checks
import kflib
import numpy as np
import pytest
import strided
from conftest import BUILD, ROOT
from kfgen.families.decoding import reference

PAGE = (ROOT / "docs/families/decoding.md").read_text()
MANIFEST = {f["name"]: f for f in kflib.manifest()["functions"]}
DECODE, APPEND = MANIFEST["kf_attention_decode_f32"], MANIFEST["kf_kv_append_f32"]
SIZES = {
    "batch": 3,
    "heads": 4,
    "kv_heads": 2,
    "queries": 2,
    "blocks": 6,
    "page_size": 4,
    "pages": 2,
    "dim": 8,
    "dim_v": 6,
    "positions": 12,
    "pairs": 3,
}


@pytest.fixture(scope="module")
def lib():
    return kflib.build("cpu", [DECODE, APPEND], BUILD / "decoding", ("-O1",))


def heads_first():
    """Returns {cache: its strides [head, row, block]} of the page for heads in front of rows."""
    text = " ".join(PAGE.split())
    known = dict(re.findall(r"`([kv]_cache\w*)` = ([\w* ]+?)(?=[,.]| and )", text))
    levels = ("_head", "", "_block")
    return {
        cache: [int(eval(known[cache + level], {}, SIZES)) for level in levels]  # noqa: S307
        for cache in ("k_cache", "v_cache")
    }


@pytest.mark.parametrize("f", [DECODE, APPEND], ids=["decode", "append"])
@pytest.mark.parametrize("drop", [(), ("page_table",)], ids=["pages", "contiguous"])
def test_strides_of_heads_in_front_of_rows(lib, f, drop):
    """They give the bits of a contiguous call, and leave no room between the blocks."""
    memory, strides = checks.CpuMemory(), heads_first()
    call = checks.Layout(lib, f, [SIZES[n] for n in f["sizes"]], drop=drop)
    call.put("key_length", np.array([3, 1, 2], np.int32))
    code, back = strided.memory_run(memory, call, lambda base: lib.call(f, call.given(base)))
    assert code == 0, lib.detail
    turned = strided.Call(call, strides)
    for cache, steps in strides.items():
        assert steps[2] * SIZES["blocks"] == call.data[cache].size
    strided.compare(*turned.run(lib, memory), call.outputs(back), "heads in front of rows")


# ---- examples in Python


def run(kf, word, **names):
    """Runs the example with a word; returns its variables as arrays."""
    torch = pytest.importorskip("torch")
    [text] = (t for t in re.findall(r"```python\n(.*?)```", PAGE, re.S) if word in t)
    names = {n: torch.from_numpy(x.copy()) for n, x in names.items()} | {"kf": kf, "torch": torch}
    exec(text, names)  # noqa: S102
    return {n: x.numpy() for n, x in names.items() if isinstance(x, torch.Tensor)}


def draw(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def wanted(q, k, v, counts):
    """Attention of queries at the ends of sequences of `counts` rows of contiguous caches."""
    return reference.decode(
        *(x.astype(float) for x in (q, k, v)), None, counts, 2**63 - 1, 0, 8**-0.5
    )


def test_step_with_rotation(kf):
    """Queries and keys are rotated by the rows that the new tokens have in their sequences."""
    rows, lengths, pairs = 9, np.array([5, 2], np.int32), 3
    q, k = draw(2, 2, 4, 8, seed=1), draw(2, rows, 2, 8, seed=2)
    v, cosine, sine = (draw(*s, seed=i) for i, s in enumerate(((2, rows, 2, 6), (20, 3), (20, 3))))
    place = np.arange(rows)[None].repeat(2, 0)
    turned = reference.rotated(k, cosine, sine, place, None, pairs, False)
    new = lengths[:, None] + np.arange(2)
    chosen = (np.arange(2)[:, None], new)
    found = run(
        kf,
        "kf.ops.rope(",
        q=q,
        k=k[chosen],
        v=v[chosen],
        cosine=cosine,
        sine=sine,
        lengths=lengths,
        k_cache=np.where(place[..., None, None] < lengths[:, None, None, None], turned, 0),
        v_cache=np.where(place[..., None, None] < lengths[:, None, None, None], v, 0),
    )
    own = reference.rotated(q, cosine, sine, new, None, pairs, False)
    want = wanted(own, turned, v, lengths + 2)[0]
    assert found["lengths"].tolist() == (lengths + 2).tolist()
    assert np.allclose(found["out"], want, atol=1e-6)


def test_shared_prefix(kf):
    """All queries see the whole prefix, and their own rows causally."""
    lengths, prefix = np.array([5, 2], np.int32), np.array([6], np.int32)
    q = draw(2, 2, 4, 8, seed=1)
    caches = [draw(2, 7, 2, d, seed=d) for d in (8, 6)]
    shared = [draw(1, 6, 2, d, seed=d + 1) for d in (8, 6)]
    names = dict(zip(("k_cache", "v_cache", "k_prefix", "v_prefix"), (*caches, *shared)))
    found = run(kf, "k_prefix", q=q, lengths=lengths, prefix_length=prefix, **names)
    whole = [np.concatenate((x.repeat(2, 0), own), 1) for x, own in zip(shared, caches)]
    want = wanted(q, *whole, lengths + 6)
    assert np.allclose(found["out"], want[0], atol=1e-6)
    assert np.allclose(found["lse"], want[1], atol=1e-5)
