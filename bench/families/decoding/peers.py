# SPDX-License-Identifier: Apache-2.0
"""Decoding in PyTorch: gathered pages and a mask, indexed stores, and weights of two parts."""

import torch
from torch.nn.functional import scaled_dot_product_attention


def _rows(cache, table):
    """Rows [batch, heads, rows, dim] of all pages of each sequence."""
    return cache[table.long()].flatten(1, 2).transpose(1, 2)


def _decode(act, t, s, drop):
    q, count = t["q"].transpose(1, 2), t["key_length"].long()
    k, v = (_rows(t[name], t["page_table"]) for name in ("k_cache", "v_cache"))
    at = torch.arange(k.shape[2], device=q.device)
    own = torch.arange(q.shape[2], device=q.device) + count[:, None] - q.shape[2]
    seen = (at <= (own + s["right"])[..., None]) & (at < count[:, None, None])
    seen &= at >= (own - min(s["left"], 2**40))[..., None]
    gqa = q.shape[1] != k.shape[1]
    found = scaled_dot_product_attention(q, k, v, seen[:, None], scale=s["scale"], enable_gqa=gqa)
    return found.transpose(1, 2)


def _merge(act, t, s, drop):
    lse = torch.logaddexp(t["lse_a"], t["lse_b"])
    wa, wb = ((t[f"lse_{part}"] - lse).exp().transpose(1, 2)[..., None] for part in "ab")
    return (t["out_a"] * wa + t["out_b"] * wb).to(t["out_a"].dtype), lse


FORWARD = {"attention_decode": _decode, "attention_merge": _merge}
DRAW = {"attention_decode": {"page_table": "blocks", "key_length": "page_size"}}
