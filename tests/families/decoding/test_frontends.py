# SPDX-License-Identifier: Apache-2.0
"""Caches in Python: contiguous and paged ones in every frontend, new rows, merged parts, graphs,
and flash-attn's flash_attn_with_kvcache."""

import frontend
import numpy as np
import pytest
from kfgen.families.decoding import reference

UNBOUNDED = 2**63 - 1
TABLE = np.array([[4, 0, 6], [1, 5, 2]], np.int32)
COUNTS = np.array([9, 5], np.int32)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def case(queries=2):
    """Returns q and paged caches."""
    return draw(2, queries, 4, 8), draw(7, 4, 2, 8, seed=1), draw(7, 4, 2, 6, seed=2)


def gathered(cache):
    """The contiguous caches with the rows of both sequences."""
    return cache[TABLE].reshape(2, 12, *cache.shape[2:])


def wanted(q, k, v, table, counts, left=UNBOUNDED, right=0, scale=8**-0.5):
    double = (x.astype(np.float64) for x in (q, k, v))
    return reference.decode(*double, table, counts, left, right, scale)


@frontend.parametrize()
@pytest.mark.parametrize("more", [{}, {"left": 2, "right": 1}, {"scale": 0.3}], ids=range(3))
def test_decode(kf, which, more):
    """With a table, and without one for a contiguous cache, to the same bits."""
    call = frontend.Frontend(which, kf)
    q, k, v = case()
    found = call("attention_decode", q, k, v, COUNTS, page_table=TABLE, **more)
    assert np.allclose(found, wanted(q, k, v, TABLE, COUNTS, **more)[0], atol=1e-6)
    again = call("attention_decode", q, gathered(k), gathered(v), COUNTS, **more)
    assert np.array_equal(found, again)


@frontend.parametrize("numpy", "torch", "jax")
def test_decode_returns_lse(kf, which):
    call = frontend.Frontend(which, kf)
    q, k, v = case()
    out, lse = call("attention_decode", q, k, v, COUNTS, page_table=TABLE, return_lse=True)
    want = wanted(q, k, v, TABLE, COUNTS)
    assert np.allclose(out, want[0], atol=1e-6) and np.allclose(lse, want[1], atol=1e-5)


def test_other_layouts_in_torch(kf):
    """Heads in front of rows: strides, not copies."""
    torch = pytest.importorskip("torch")
    q, k, v = map(torch.from_numpy, case())
    k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    table, counts = torch.from_numpy(TABLE), torch.from_numpy(COUNTS)
    found = kf.ops.attention_decode(q, k, v, counts, page_table=table)
    assert np.allclose(found, wanted(*(x.numpy() for x in (q, k, v)), TABLE, COUNTS)[0], atol=1e-6)


ANGLES = draw(20, 3, seed=5), draw(20, 3, seed=6)
APPENDED = [
    ("kv_append", {}),
    ("kv_append", {"cosine": ANGLES[0], "sine": ANGLES[1]}),
    ("kv_append_interleaved", {"cosine": ANGLES[0], "sine": ANGLES[1]}),
]


@frontend.parametrize("numpy", "torch")
@pytest.mark.parametrize("name, more", APPENDED, ids=range(len(APPENDED)))
@pytest.mark.parametrize("paged", [True, False])
def test_append(kf, which, name, more, paged):
    call = frontend.Frontend(which, kf)
    _, k_cache, v_cache = case()
    table = TABLE if paged else None
    caches = [x.copy() if paged else gathered(x).copy() for x in (k_cache, v_cache)]
    k, v = draw(2, 3, 2, 8, seed=3), draw(2, 3, 2, 6, seed=4)
    before = [x.copy() for x in caches]
    own = [call.to(x) for x in caches]
    given = {word: call.to(x) for word, x in ({"page_table": table} | more).items()}
    assert getattr(call.ops, name)(*map(call.to, (k, v, COUNTS)), *own, **given) is None
    angles = (more.get("cosine"), more.get("sine"))
    new = reference.rotated(k, *angles, None, COUNTS, 3, name.endswith("interleaved"))
    for found, x, old in zip(own, (new, v), before):
        assert np.allclose(found, reference.stored(x, table, COUNTS, old), atol=1e-6)
        assert not np.array_equal(found, old)


def test_a_cache_that_is_no_block_of_memory(kf):
    _, k_cache, v_cache = case()
    k, v = draw(2, 1, 2, 8), draw(2, 1, 2, 6)
    with pytest.raises(ValueError, match="kf.kv_append: k_cache is overwritten, expected contig"):
        kf.ops.kv_append(k, v, COUNTS, k_cache.swapaxes(0, 1), v_cache, page_table=TABLE)


def parts():
    found = [draw(2, 3, 2, 8, seed=1), draw(2, 2, 3, seed=2), draw(2, 3, 2, 8, seed=3)]
    found.append(draw(2, 2, 3, seed=4))
    found[1][0, 0, 0] = found[3][0, 0, 0] = found[1][1, 1, 2] = -np.inf
    return found


@frontend.parametrize()
def test_merge(kf, which):
    call = frontend.Frontend(which, kf)
    a, lse_a, b, lse_b = parts()
    out, lse = call("attention_merge", a, lse_a, b, lse_b)
    assert np.allclose(lse, np.logaddexp(lse_a, lse_b), atol=1e-6)
    assert (out[0, 0, 0] == 0).all() and lse[0, 0, 0] == -np.inf
    assert np.array_equal(out[1, 2, 1], b[1, 2, 1])


def test_gradient_of_merge(kf):
    torch = pytest.importorskip("torch")
    rng = torch.Generator().manual_seed(1)
    shapes = ((1, 2, 2, 3), (1, 2, 2), (1, 2, 2, 3), (1, 2, 2))
    given = [
        torch.randn(shape, dtype=torch.float64, generator=rng, requires_grad=True)
        for shape in shapes
    ]
    assert torch.autograd.gradcheck(kf.ops.attention_merge, given)
    out, lse = kf.ops.attention_merge(*given)
    out.sum().backward()  # without a gradient of lse
    assert all(x.grad is not None and torch.isfinite(x.grad).all() for x in given)


def test_graphs(kf):
    """torch.compile traces a step of decoding, with dimensions that are symbols, too."""
    torch = pytest.importorskip("torch")

    def step(q, k, v, k_cache, v_cache, table, counts):
        kf.ops.kv_append(k, v, counts, k_cache, v_cache, page_table=table)
        return kf.ops.attention_decode(q, k_cache, v_cache, counts + 1, page_table=table)

    q, k_cache, v_cache = map(torch.from_numpy, case(1))
    k, v = torch.from_numpy(draw(2, 1, 2, 8, seed=3)), torch.from_numpy(draw(2, 1, 2, 6, seed=4))
    table, counts = torch.from_numpy(TABLE), torch.from_numpy(COUNTS)
    own = k_cache.clone(), v_cache.clone()
    want = step(q, k, v, *own, table, counts)
    for dynamic in (False, True):
        caches = k_cache.clone(), v_cache.clone()
        whole = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        assert torch.equal(whole(q, k, v, *caches, table, counts), want)
        assert all(map(torch.equal, caches, own))


def test_opcheck(kf):
    torch = pytest.importorskip("torch")
    q, *caches = case(1)
    q, k, v = map(torch.from_numpy, (q, draw(2, 1, 2, 8, seed=3), draw(2, 1, 2, 6, seed=4)))
    table, counts = torch.from_numpy(TABLE), torch.from_numpy(COUNTS)
    for pages in (table, None):  # without a table, a cache has the rows of each sequence
        own = caches if pages is not None else map(gathered, caches)
        k_cache, v_cache = (torch.from_numpy(x.copy()) for x in own)
        given = (k, v, None, None, None, pages, counts, k_cache, v_cache)
        torch.library.opcheck(torch.ops.kf.kv_append, given)
        given = (q, k_cache, v_cache, pages, counts, UNBOUNDED, 0, 0.5, False)
        torch.library.opcheck(torch.ops.kf.attention_decode.default, given)
    torch.library.opcheck(
        torch.ops.kf.attention_merge.default, tuple(map(torch.from_numpy, parts()))
    )


# ---- flash-attn


def flash(q, k_cache, v_cache, table, counts, k=None, v=None, angles=None, causal=False, **more):
    """flash_attn_with_kvcache in NumPy, interleaved pairs. Returns (out, lse, caches)."""
    local = causal or "window_size" in more
    left, right = (UNBOUNDED if n < 0 else n for n in more.pop("window_size", (-1, -1)))
    caches = [k_cache, v_cache]
    if angles:
        steps = np.arange(q.shape[1]) * local
        places = counts[:, None] + steps
        q = reference.rotated(q, *angles, places, counts, 3, True)
        k = reference.rotated(k, *angles, None, counts, 3, True)
    if k is not None:
        caches = [reference.stored(new, table, counts, cache) for new, cache in zip((k, v), caches)]
        counts = counts + k.shape[1]
    found = wanted(q, *caches, table, counts, left, 0 if causal else right, **more)
    return (*found, caches)


NEW = {"k": draw(2, 3, 2, 8, seed=3), "v": draw(2, 3, 2, 6, seed=4)}
ROTARY = {"rotary_cos": ANGLES[0], "rotary_sin": ANGLES[1]}
FLASH = [
    {},
    {"causal": True},
    {"softmax_scale": 0.3, "window_size": (3, 1), "num_splits": 4},
    {"causal": True, **NEW},
    {"causal": True, **NEW, **ROTARY},
    {**NEW, **ROTARY},
]


@frontend.parametrize("numpy", "torch")
@pytest.mark.parametrize("given", FLASH, ids=range(len(FLASH)))
@pytest.mark.parametrize("paged", [True, False])
def test_flash_attn_with_kvcache(kf, which, given, paged):
    call = frontend.Frontend(which, kf)
    q, k_cache, v_cache = case(3)
    caches = [k_cache, v_cache] if paged else [gathered(x) for x in (k_cache, v_cache)]
    own = [call.to(x.copy()) for x in caches]
    more = {"block_table": TABLE} if paged else {}
    more |= {"cache_seqlens": COUNTS, "return_softmax_lse": True} | given
    more = {word: call.to(x) for word, x in more.items()}
    out, lse = call.ops.flash_attn_with_kvcache(call.to(q), *own, **more)
    rest = {word: x for word, x in given.items() if word not in (*ROTARY, "num_splits")}
    if "softmax_scale" in rest:
        rest["scale"] = rest.pop("softmax_scale")
    angles = ANGLES if "rotary_cos" in given else None
    want = flash(q, *caches, TABLE if paged else None, COUNTS, angles=angles, **rest)
    assert np.allclose(out, want[0], atol=2e-6) and np.allclose(lse, want[1], atol=1e-5)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(own, want[2]))


@frontend.parametrize("numpy", "torch")
def test_sequences_of_a_cache(kf, which):
    """cache_batch_idx, one length for all, and all rows."""
    call = frontend.Frontend(which, kf)
    q, k, v = draw(2, 1, 4, 8), draw(5, 6, 2, 8, seed=1), draw(5, 6, 2, 8, seed=2)
    chosen = np.array([4, 1], np.int32)
    for given, counts in (({"cache_seqlens": 4}, 4), ({}, 6)):
        found = call("flash_attn_with_kvcache", q, k, v, cache_batch_idx=chosen, **given)
        want = wanted(q, k[chosen], v[chosen], None, np.array([counts] * 2, np.int32))
        assert np.allclose(found, want[0], atol=1e-6)


REFUSED = [
    ({"cache_leftpad": COUNTS}, "cache_leftpad is given, expected None"),
    ({"softcap": 20.0}, "softcap is given, expected 0"),
    ({"alibi_slopes": np.ones(4, np.float32)}, "alibi_slopes is given, expected None"),
    ({"window_size": 3}, r"window_size is 3, expected \(left, right\)"),
    ({"k": NEW["k"]}, "k is given alone, expected k and v"),
    ({"rotary_cos": ANGLES[0]}, "rotary_cos is given alone, expected rotary_cos and rotary_sin"),
    (ROTARY, "rotary_cos is given without k, expected new keys"),
    (NEW | {"cache_seqlens": None}, "cache_seqlens is None, expected the rows before those of k"),
    ({"cache_batch_idx": COUNTS}, "cache_batch_idx is given beside block_table, expected one"),
    ({"block_table": None}, "k_cache has 7 sequences, expected the 2 of q, or cache_batch_idx"),
]


@pytest.mark.parametrize("more, text", REFUSED, ids=range(len(REFUSED)))
def test_arguments_without_kernel(kf, more, text):
    given = {"cache_seqlens": COUNTS, "block_table": TABLE} | more
    with pytest.raises(ValueError, match=f"kf.flash_attn_with_kvcache: {text}"):
        kf.ops.flash_attn_with_kvcache(*case(), **given)


def test_arrays_that_are_never_overwritten(kf):
    jax = pytest.importorskip("kernel_fusion.jax")
    with pytest.raises(ValueError, match="k is given, expected None: these arrays are never"):
        jax.flash_attn_with_kvcache(*case(), **NEW, cache_seqlens=COUNTS, block_table=TABLE)
