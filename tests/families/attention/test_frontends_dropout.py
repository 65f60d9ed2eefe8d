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


@pytest.mark.parametrize("masked", ["none", "causal", "bool", "bias"])
def test_gradients(kf, torch, masked):
    """Gradients have the mask that the forward has drawn; a bias has one, too."""
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = kf.ops.scaled_dot_product_attention(q, k, v, dropout_p=P, enable_gqa=True, **more)
    want = formula(torch, q, k, v, mask, 8**-0.5, keep)
    assert torch.allclose(got, want, 1e-12, 1e-12)
    up = torch.from_numpy(draw(2, 4, 5, 6, seed=5)).double()
    inputs = [q, k, v, *([mask] if masked == "bias" else [])]
    for a, b in zip(*(torch.autograd.grad(out, inputs, up) for out in (got, want))):
        assert torch.allclose(a, b, 1e-11, 1e-11)


def test_the_warning_says_what_gradients_do(kf, torch):
    from kernel_fusion.torch import _recomputed

    q = torch.from_numpy(draw(1, 2, 5, 8)).requires_grad_()
    _recomputed._said.clear()
    with pytest.warns(UserWarning, match="with dropout, gradients recompute and store the scores"):
        kf.ops.scaled_dot_product_attention(q, q, q, dropout_p=P)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kf.ops.scaled_dot_product_attention(q, q, q, dropout_p=P)
        kf.ops.scaled_dot_product_attention(q.detach(), q.detach(), q.detach(), dropout_p=P)
    with pytest.raises(NotImplementedError, match="kf.full_attention_dropout has no gradient"):
        rows = q.transpose(1, 2)
        kf.ops.full_attention_dropout(rows, rows, rows, p=P).sum().backward()


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
