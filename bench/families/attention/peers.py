# SPDX-License-Identifier: Apache-2.0
"""Attention in PyTorch, on tensors [batch, rows, heads, dim]."""

import torch
from torch.nn.functional import scaled_dot_product_attention


def _attention(t, s, mask=None, causal=False):
    q, k, v = (t[name].transpose(1, 2) for name in "qkv")
    return scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=s["scale"], enable_gqa=q.shape[1] != k.shape[1]
    ).transpose(1, 2)


FORWARD = {
    "attention": lambda act, t, s, drop: _attention(t, s),
    "causal_attention": lambda act, t, s, drop: _attention(
        t, s, causal=t["q"].shape[1] == t["k"].shape[1]
    ),
    "bias_attention": lambda act, t, s, drop: _attention(t, s, t["bias"]),
    "mask_attention": lambda act, t, s, drop: _attention(t, s, t["mask"].to(torch.bool)),
}
