# SPDX-License-Identifier: Apache-2.0
"""Dropout of attention in Python: bits in every frontend, gradients, flash-attn's functions, heads
side by side, the module in training."""

import warnings

import frontend
import numpy as np
import pytest

P, RNG = 0.4, (7, 2**33 + 1)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@frontend.parametrize()
@pytest.mark.parametrize("keys", [16, 13])
def test_bits(kf, which, keys):
    """The bits are those of scale_mask_softmax_dropout over [batch, heads, queries, keys]. Values
    of an identity matrix show the weights."""
    call = frontend.Frontend(which, kf)
    q, k = draw(2, 5, 4, 8), draw(2, keys, 2, 8, seed=1)
    v = np.broadcast_to(np.eye(keys, dtype=np.float32)[:, None], (2, keys, 2, keys)).copy()
    scores = np.einsum("bihd,bjhd->bhij", q, k.repeat(2, 2))
    weights = call("scale_mask_softmax_dropout", scores, scale=0.3, p=P, rng=RNG)
    got = call("full_attention_dropout", q, k, v, scale=0.3, p=P, rng=RNG).swapaxes(1, 2)
    assert np.array_equal(got == 0, weights == 0) and 0.2 < (got == 0).mean() < 0.6
    assert np.allclose(got, weights, 1e-4, 1e-6)
    plain = call("attention", q, k, v, scale=0.3)
    none, all_ = (
        call("full_attention_dropout", q, k, v, scale=0.3, p=p, rng=RNG) for p in (0.0, 1.0)
    )
    assert np.array_equal(none, plain) and not all_.any()


@frontend.parametrize("numpy", "torch")
def test_flash_attn(kf, which):
    call = frontend.Frontend(which, kf)
    q, k = draw(5, 4, 16), draw(7, 2, 16, seed=1)
    for given in ({}, {"causal": True}, {"window_size": (2, 1)}):
        dense = q[None], k[None], k[None]
        plain = call("flash_attn_func", *dense, **given)
        assert np.array_equal(call("flash_attn_func", *dense, 0.0, **given), plain)
        assert not call("flash_attn_func", *dense, dropout_p=1.0, **given).any()
        found = [call("flash_attn_func", *dense, 0.5, **given) for _ in range(2)]
        assert not np.array_equal(*found)
    with pytest.raises(ValueError, match="kf.flash_attn_func: dropout_p is 1.5, expected 0 to 1"):
        call("flash_attn_func", *dense, 1.5)


def test_heads_side_by_side(kf):
    q, k = draw(2, 5, 32), draw(2, 7, 32)
    assert not kf.ops.fused_multihead_attention(q, k, k, 4, dropout_p=1.0).any()
    assert kf.ops.fused_multihead_attention(q, k, k, 4, causal=True, dropout_p=0.5).any()
    with pytest.raises(ValueError, match="fused_multihead_attention: dropout_p is 2, expected 0"):
        kf.ops.fused_multihead_attention(q, k, k, 4, dropout_p=2)


# ---- PyTorch


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def kept(kf, torch, like):
    """The mask that the next call draws."""
    state = torch.get_rng_state()
    rng = torch.randint(-(2**63), 2**63 - 1, (2,))
    torch.set_rng_state(state)
    return kf.ops.dropout(torch.ones(like, dtype=torch.float64), p=P, rng=rng)


def formula(torch, q, k, v, mask, scale, keep):
    """Attention in PyTorch's plain operations."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.mT * scale
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask
    return (scores.softmax(-1) * keep) @ v


@pytest.mark.parametrize("has_kernel", [True, False], ids=["kernel", "recomputed"])
@pytest.mark.parametrize("masked", ["none", "causal", "bool", "bias"])
def test_gradients(kf, torch, masked, has_kernel, monkeypatch):
    """Gradients have the mask that the forward has drawn; a bias has one, too. Kernels compute them
    without the scores, or kf's products and softmax where a device has none; a warning says so."""
    from kernel_fusion.torch import _recomputed

    _recomputed._said.clear()
    if not has_kernel:
        monkeypatch.setattr(_recomputed, "_has_kernel", lambda q: False)
    tensors = [draw(2, 4, 5, 8), draw(2, 2, 7, 8, seed=1), draw(2, 2, 7, 6, seed=2)]
    q, k, v = (torch.from_numpy(t).double().requires_grad_() for t in tensors)
    mask = {
        "causal": torch.ones(5, 7, dtype=torch.bool).tril(),
        "bool": torch.from_numpy(draw(2, 1, 5, 7, seed=3) > -1),
        "bias": torch.from_numpy(draw(1, 4, 5, 7, seed=4)).double().requires_grad_(),
    }.get(masked)
    torch.manual_seed(3)
    keep = kept(kf, torch, (2, 4, 5, 7))
    more = {"is_causal": True} if masked == "causal" else {"attn_mask": mask}
    text = "with dropout, gradients recompute and store the scores there"
    with warnings.catch_warnings() if has_kernel else pytest.warns(UserWarning, match=text):
        if has_kernel:
            warnings.simplefilter("error")
        got = kf.ops.scaled_dot_product_attention(q, k, v, dropout_p=P, enable_gqa=True, **more)
    want = formula(torch, q, k, v, mask, 8**-0.5, keep)
    assert torch.allclose(got, want, 1e-12, 1e-12)
    up = torch.from_numpy(draw(2, 4, 5, 6, seed=5)).double()
    inputs = [q, k, v, *([mask] if masked == "bias" else [])]
    for a, b in zip(*(torch.autograd.grad(out, inputs, up) for out in (got, want))):
        assert torch.allclose(a, b, 1e-11, 1e-11)


def test_gradients_do_not_store_the_scores(kf, torch):
    """No tensor that autograd saves has a number per query and key."""
    q, k = (torch.from_numpy(draw(1, 2, n, 8, seed=n)).requires_grad_() for n in (50, 70))
    found = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(t.numel()) or t, id):
        kf.ops.scaled_dot_product_attention(q, k, k, dropout_p=P)
    assert found and max(found) < 50 * 70


def test_gradients_under_own_names(kf, torch):
    """A function of kf.ops with a given seed, and its packed form."""
    q, k, v = (torch.from_numpy(draw(n, 2, 8, seed=n)).double().requires_grad_() for n in (5, 7, 7))
    keep = kf.ops.dropout(torch.ones(1, 2, 5, 7, dtype=torch.float64), p=P, rng=RNG)
    heads = (t.transpose(0, 1)[None] for t in (q, k, v))
    want = formula(torch, *heads, None, 0.3, keep)[0].transpose(0, 1)
    up = torch.from_numpy(draw(5, 2, 8, seed=9)).double()
    dense = kf.ops.full_attention_dropout(q[None], k[None], v[None], scale=0.3, p=P, rng=RNG)[0]
    offsets = torch.tensor([0, 5]), torch.tensor([0, 7])
    rows = kf.ops.full_attention_dropout_varlen(q, k, v, *offsets, scale=0.3, p=P, rng=RNG)
    found = [torch.autograd.grad(out, (q, k, v), up) for out in (want, dense, rows)]
    for name, one, *others in zip("qkv", *found):
        assert all(torch.allclose(x, one, 1e-11, 1e-11) for x in others), name


def test_compiled_gradients(kf, torch):
    """torch.compile traces the seed: gradients are those of the same seed without it."""
    q = torch.from_numpy(draw(1, 2, 5, 8)).requires_grad_()

    def step(q):
        return kf.ops.scaled_dot_product_attention(q, q, q, dropout_p=P, is_causal=True)

    found = []
    for run in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(5)
        found.append(torch.autograd.grad(run(q).square().sum(), q)[0])
    assert found[0].any() and torch.equal(*found)


def test_module_in_training(kf, torch):
    """All weights are dropped in training, none in evaluation."""
    from kernel_fusion import nn

    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(24, 4, dropout=1.0), torch.from_numpy(draw(3, 2, 24))
    torch.nn.init.normal_(module.out_proj.bias)
    found = [module.train(train)(x, x, x, need_weights=False)[0] for train in (True, False)]
    assert torch.allclose(found[0], module.out_proj.bias.expand_as(found[0]))
    assert not torch.allclose(found[1], found[0])
    found[0].sum().backward()
    assert module.out_proj.bias.grad is not None and not module.in_proj_weight.grad.any()


def test_module_trains(kf, torch):
    """With dropout the module's loss falls; without it, in evaluation, too."""
    from kernel_fusion import nn

    torch.manual_seed(1)
    module = nn.MultiheadAttention(16, 4, dropout=0.2, batch_first=True)
    x, wanted = (torch.from_numpy(draw(8, 6, 16, seed=n)) for n in (0, 1))
    wanted = x.cumsum(1) / torch.arange(1, 7)[:, None] + 0.1 * wanted
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)

    def loss():
        return (module(x, x, x, need_weights=False)[0] - wanted).square().mean()

    first = [loss().item(), module.eval()(x, x, x, need_weights=False)[0]]
    first[1] = (first[1] - wanted).square().mean().item()
    module.train()
    for _ in range(60):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < 0.7 * first[0]
    module.eval()
    assert loss().item() < 0.6 * first[1]
