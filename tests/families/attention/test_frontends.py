# SPDX-License-Identifier: Apache-2.0
"""kf.ops.scaled_dot_product_attention and kf.nn.MultiheadAttention beside PyTorch's: layouts,
masks, groups of heads, gradients, dropout, errors."""

import itertools
import warnings

import kflib
import numpy as np
import pytest
import pytorch

torch = pytorch.load()

import torch.nn.functional as F  # noqa: E402

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def draw(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def near(got, want, dtype=torch.float32):
    limit = TOLERANCE[dtype]
    assert got.shape == want.shape and got.dtype == want.dtype
    assert torch.allclose(got, want, limit, limit, equal_nan=True), (got - want).abs().max()


@pytest.fixture
def sdpa(kf):
    return kf.ops.scaled_dot_product_attention


SHAPES = [
    ((2, 4, 5, 16), (2, 4, 7, 16), (2, 4, 7, 16)),
    ((3, 5, 8), (3, 7, 8), (3, 7, 12)),  # no batch: three heads
    ((5, 8), (7, 8), (7, 8)),
    ((2, 3, 2, 5, 8), (2, 3, 2, 7, 8), (2, 3, 2, 7, 8)),
    ((4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)),  # broadcast
    ((2, 4, 0, 8), (2, 4, 7, 8), (2, 4, 7, 8)),
    ((2, 4, 5, 8), (2, 4, 0, 8), (2, 4, 0, 8)),
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_shapes(sdpa, dtype):
    for shapes in SHAPES:
        q, k, v = (draw(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes))
        for causal in (False, True):
            want = F.scaled_dot_product_attention(
                *(t.double() for t in (q, k, v)), is_causal=causal
            )
            want = want.nan_to_num().to(dtype)  # no keys: 0
            near(sdpa(q, k, v, is_causal=causal), want, dtype)
            if dtype != torch.bfloat16:
                arrays = (t.numpy() for t in (q, k, v))
                near(torch.from_numpy(sdpa(*arrays, is_causal=causal).copy()), want, dtype)


def test_layouts_are_read_without_copies(kf, sdpa):
    """Heads side by side, q, k and v in one tensor; the result is laid out likewise."""
    packed = draw(2, 5, 3 * 4 * 8)
    q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in packed.chunk(3, -1))
    found = sdpa(q, k, v, scale=0.3)
    near(found, F.scaled_dot_product_attention(q, k, v, scale=0.3))
    assert found.transpose(1, 2).is_contiguous()


MASKS = [(5, 7), (1, 1, 5, 7), (5, 1), (2, 1, 1, 7), (4, 5, 7), (2, 4, 5, 7), (4, 1, 7)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks(sdpa, shape):
    q, k, v = draw(2, 4, 5, 8), draw(2, 4, 7, 8, seed=1), draw(2, 4, 7, 8, seed=2)
    added = draw(*shape)
    seen = added > -0.5
    seen[..., :1, :] = False  # a query that sees no key
    for mask in (seen, added, added.masked_fill(~seen, -torch.inf)):
        want = F.scaled_dot_product_attention(q, k, v, mask).nan_to_num()
        near(sdpa(q, k, v, mask), want)
        arrays = (t.numpy() for t in (q, k, v, mask))
        near(torch.from_numpy(sdpa(*arrays).copy()), want)
    half = [t.bfloat16() for t in (q, k, v)]
    want = F.scaled_dot_product_attention(*(t.float() for t in half), added)
    near(sdpa(*half, added), want.bfloat16(), torch.bfloat16)


def test_groups_of_heads(sdpa):
    q, k, v = draw(2, 8, 5, 8), draw(2, 2, 7, 8), draw(2, 2, 7, 12)
    for more in ({}, {"is_causal": True}, {"attn_mask": draw(5, 7) > 0}):
        want = F.scaled_dot_product_attention(q, k, v, **more, enable_gqa=True)
        near(sdpa(q, k, v, **more, enable_gqa=True), want.nan_to_num())
    near(
        sdpa(q[0], k[0], v[0], enable_gqa=True),
        F.scaled_dot_product_attention(q[0], k[0], v[0], enable_gqa=True),
    )


@pytest.mark.parametrize("has_kernel", [True, False], ids=["kernel", "recomputed"])
def test_gradients_are_pytorchs(kf, sdpa, monkeypatch, has_kernel):
    """Gradients of q, k, v and an added mask; without a kernel one warning tells about it."""
    from kernel_fusion.torch import _recomputed

    _recomputed._said.clear()
    if not has_kernel:
        monkeypatch.setattr(_recomputed, "_has_kernel", lambda q: False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for more in ({}, {"is_causal": True}, {"attn_mask": draw(5, 7)}):
            found = []
            for function in (sdpa, F.scaled_dot_product_attention):
                given = [draw(2, 4, n, 8, seed=n).requires_grad_() for n in (5, 7, 7)]
                mask = {n: m.clone().requires_grad_() for n, m in more.items() if n == "attn_mask"}
                out = function(*given, **(more | mask))
                out.square().sum().backward()
                found.append([out.detach(), *(t.grad for t in (*given, *mask.values()))])
            for got, want in zip(*found):
                near(got, want)
    texts = [str(w.message) for w in caught if "no backward kernel" in str(w.message)]
    assert len(texts) == (not has_kernel)
    assert has_kernel or texts[0].startswith("kf.scaled_dot_product_attention ")
    q = draw(2, 3, 8).requires_grad_()
    near(
        torch.func.grad(lambda q: sdpa(q, q, q).sum())(q.detach()),
        torch.func.grad(lambda q: F.scaled_dot_product_attention(q, q, q).sum())(q.detach()),
    )


def test_gradient_of_lse(kf):
    """Attention over two halves of the keys, joined by their lse, is attention over all."""
    given = [draw(1, n, 2, 8, seed=n, dtype=torch.float64).requires_grad_() for n in (5, 8, 8)]
    found = []
    for halves in (False, True):
        q, k, v = given
        out = kf.ops.attention(q, k, v)
        if halves:
            parts = [
                kf.ops.attention(q, k[:, own], v[:, own], return_lse=True)
                for own in (slice(0, 3), slice(3, 8))
            ]
            share = torch.stack([lse for _, lse in parts]).softmax(0).swapaxes(-1, -2)[..., None]
            out = sum(own * x for own, (x, _) in zip(share, parts))
        found.append(torch.autograd.grad((out**2).sum(), given))
    for got, want in zip(*found):
        near(got, want, torch.float64)


def test_gradients_by_differences(kf):
    """gradcheck of q, k, v and of a bias that heads share."""
    q, k, v = (draw(1, n, 2, 4, dtype=torch.float64, seed=n).requires_grad_() for n in (3, 5, 5))
    bias = draw(1, 1, 3, 5, dtype=torch.float64).requires_grad_()
    slope = torch.tensor([0.5, 0.25], dtype=torch.float64)
    ops = kf.ops
    for function, more in (
        (lambda *t: ops.softcap_causal_attention(*t, softcap=2.0), ()),
        (lambda *t: ops.window_attention(*t, left=1, right=1), ()),
        (lambda *t: ops.alibi_causal_attention(*t, slope), ()),
        (lambda *t: ops.bias_attention(*t), (bias,)),
    ):
        assert torch.autograd.gradcheck(function, (q, k, v, *more), fast_mode=True)


def test_dropout(sdpa):
    """Weights of 0 and weights / (1 - p), in the mean the weights; gradients likewise."""
    q, k, v = draw(2, 4, 5, 8), draw(2, 4, 64, 8), torch.eye(64).expand(2, 4, 64, 64)
    exact = sdpa(q, k, v)
    torch.manual_seed(0)
    for more in ({}, {"is_causal": True}, {"attn_mask": draw(5, 64) > 0}):
        want = sdpa(q, k, v, **more)
        got = sdpa(q, k, v, dropout_p=0.5, **more)
        kept = got != 0
        assert torch.allclose(got[kept], 2 * want[kept], 1e-4, 1e-6)
        assert 0.3 < kept[want != 0].double().mean() < 0.7
    assert (sdpa(q, k, v, dropout_p=1.0) == 0).all()
    near(sdpa(q, k, v, None, 0.0), exact)
    grads = q.clone().requires_grad_()
    sdpa(grads, k, v, dropout_p=0.5).sum().backward()
    assert grads.grad is not None and torch.isfinite(grads.grad).all()


def test_autocast_and_compile(sdpa):
    q, k, v = draw(2, 4, 5, 8), draw(2, 4, 7, 8), draw(2, 4, 7, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert sdpa(q, k, v).dtype == F.scaled_dot_product_attention(q, k, v).dtype
    whole = torch.compile(sdpa, backend="eager", fullgraph=True)
    near(whole(q, k, v, is_causal=True), sdpa(q, k, v, is_causal=True))
    found = []
    for function in (sdpa, whole):
        given = [t.clone().requires_grad_() for t in (q, k, v)]
        (function(*given, is_causal=True) ** 2).sum().backward()
        found.append([t.grad for t in given])
    for got, want in zip(*found):
        near(got, want)


Q, K = draw(2, 4, 5, 8), draw(2, 4, 7, 8)
REFUSED = [
    ((Q, K, K), {"attn_mask": draw(5, 7), "is_causal": True}, ValueError, "beside is_causal"),
    ((Q, K, K), {"dropout_p": 1.5}, ValueError, "dropout_p is 1.5, expected 0 to 1"),
    ((Q, K, K), {"attn_mask": draw(5, 6)}, ValueError, "mask has the shape (5, 6), expected one"),
    ((Q, K.double(), K), {}, TypeError, "key has the dtype torch.float64, expected torch.float32"),
    ((Q, draw(2, 4, 7, 9), K), {}, ValueError, "key has the shape (2, 4, 7, 9), expected ("),
    ((Q, K, draw(2, 4, 6, 8)), {}, ValueError, "value has the shape (2, 4, 6, 8), expected ("),
    ((Q, K[:, :2], K[:, :2]), {}, ValueError, "leading dimensions (2, 4) and (2, 2)"),
    ((Q, K[:, :3], K[:, :3]), {"enable_gqa": True}, ValueError, "have 4, 3 and 3 heads"),
    ((Q, K, [1.0]), {}, TypeError, "value is list, expected an array"),
    ((Q.long(), K.long(), K.long()), {}, TypeError, "kf.attention"),
]


@pytest.mark.parametrize("given", REFUSED, ids=range(len(REFUSED)))
def test_errors(sdpa, given):
    arguments, more, kind, text = given
    with pytest.raises(kind) as e:
        sdpa(*arguments, **more)
    assert text in str(e.value), str(e.value)


def test_packed_sequences(kf):
    """Each sequence of q, k and v as alone; rows of no sequence are 0."""
    q, k, v = draw(14, 4, 8), draw(17, 2, 8, seed=1), draw(17, 2, 12, seed=2)
    queries, keys = torch.tensor([1, 4, 4, 12]), torch.tensor([0, 5, 9, 17])
    want = torch.zeros(14, 4, 12)
    for a, b, c, d in zip(queries, queries[1:], keys, keys[1:]):
        own = (t[None] for t in (q[a:b], k[c:d], v[c:d]))
        want[a:b] = kf.ops.causal_attention(*own, scale=0.3)[0]
    given = q, k, v, queries, keys
    near(kf.ops.causal_attention_varlen(*given, scale=0.3), want)
    arrays = (t.numpy() for t in given)
    near(torch.from_numpy(kf.ops.causal_attention_varlen(*arrays, scale=0.3)), want)
    whole = torch.compile(kf.ops.causal_attention_varlen, backend="eager", fullgraph=True)
    near(whole(*given, scale=0.3), want)
    with pytest.raises(ValueError, match="key_offsets has the shape"):
        kf.ops.causal_attention_varlen(q, k, v, queries, keys[:2])


# ---- the module

OPTIONS = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
    {"kdim": 10, "vdim": 14},
]


def modules(kf, **options):
    from kernel_fusion import nn as own

    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(24, 4, **options)
    mine = own.MultiheadAttention(24, 4, **options)
    mine.load_state_dict(theirs.state_dict())
    return mine, theirs


def masks():
    """Combinations of masks of 5 queries and 7 keys; True hides."""
    hidden = draw(5, 7) > 0.7
    hidden[:, 0] = False
    padding = draw(3, 7) > 0.7
    padding[:, 0] = False
    return [
        {},
        {"attn_mask": hidden},
        {"key_padding_mask": padding},
        {"attn_mask": hidden, "key_padding_mask": padding},
        {"attn_mask": draw(12, 5, 7), "key_padding_mask": padding},
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_module(kf, options):
    mine, theirs = modules(kf, **options)
    q, k, v = (
        draw(3, 5, 24),
        draw(3, 7, options.get("kdim", 24)),
        draw(3, 7, options.get("vdim", 24)),
    )
    if not options.get("batch_first"):
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    for given, train in itertools.product(masks(), (False, True)):
        mine.train(train), theirs.train(train)
        got, weights = mine(q, k, v, need_weights=False, **given)
        near(got, theirs(q, k, v, need_weights=False, **given)[0])
        assert weights is None
        for x, y in zip(mine(q, k, v, **given), theirs(q, k, v, **given)):
            near(x, y)
    one = [t[0] if options.get("batch_first") else t[:, 0] for t in (q, k, v)]
    near(mine(*one, need_weights=False)[0], theirs(*one, need_weights=False)[0])


def test_module_trains(kf):
    mine, theirs = modules(kf, batch_first=True)
    x = draw(3, 5, 24)
    for module in (mine, theirs):
        module(x, x, x, need_weights=False)[0].square().sum().backward()
    for p, r in zip(mine.parameters(), theirs.parameters()):
        near(p.grad, r.grad)
    dropped, _ = modules(kf, dropout=0.5)
    assert dropped(x, x, x, need_weights=False)[0].shape == x.shape
    for bad in ({"is_causal": True}, {"attn_mask": draw(3, 5, 5)}):
        with pytest.raises(ValueError, match="kf.nn.MultiheadAttention: "):
            mine(x, x, x, need_weights=False, **bad)


def test_arrays_agree_with_tensors(kf):
    """fused_multihead_attention of NumPy's arrays."""
    q, k = draw(2, 5, 32), draw(2, 7, 32)
    got = kf.ops.fused_multihead_attention(*(t.numpy() for t in (q, k, k)), 4, causal=True)
    want = kf.ops.fused_multihead_attention(q, k, k, 4, causal=True)
    assert np.abs(got - want.numpy()).max() < 1e-6


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_statements_hide_values(library):
    """A value of a key that a query does not see does not reach the fallback's result."""
    manifest = kflib.manifest()
    f = next(f for f in manifest["functions"] if f["name"] == "kf_causal_attention_f64")
    shape = next(a for a in f["arguments"] if a["role"] == "shape")
    names = {x["name"]: 0 for x in shape["fields"]}
    names |= dict(zip(f["sizes"], (1, 2, 1, 5, 5, 3, 3)), scale=1.0, np=np, torch=torch)
    of = torch.from_numpy if library == "torch" else np.asarray
    v = np.ones((1, 5, 1, 3))
    v[0, 1:, 0] = [(1, 1, np.inf), (1, -np.inf, 1), (1, np.inf, -np.inf), (np.nan, 1, 1)]
    tensors = {"q": np.ones((1, 5, 2, 3)), "k": np.ones((1, 5, 1, 3)), "v": v}
    names |= {n: of(x) for n, x in tensors.items()}
    with np.errstate(all="ignore"):
        exec("\n".join(manifest["statements"][f["statements"]][library]), names)
    nan, inf = np.nan, np.inf
    want = [(1, 1, 1), (1, 1, inf), (1, -inf, inf), (1, nan, nan), (nan, nan, nan)]
    for head in (0, 1):
        assert np.allclose(np.asarray(names["out"])[0, :, head], want, equal_nan=True)
