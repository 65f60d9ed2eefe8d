# SPDX-License-Identifier: Apache-2.0
"""Decoding in PyTorch: gathered pages and a mask, and weights of two parts.

Contiguous caches of equal lengths also have cuDNN and FlashAttention 2, to which the queries that
share a head of k are the rows of one head.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention


def _rows(cache, table):
    """Rows [batch, heads, rows, dim] of each sequence. Without a table a block is a sequence."""
    return (cache if table is None else cache[table.long()].flatten(1, 2)).transpose(1, 2)


def _seen(t, s, rows):
    """Returns the mask [batch, queries, rows] of the rows that each query sees."""
    count, queries = t["key_length"].long(), t["q"].shape[1]
    at = torch.arange(rows, device=count.device)
    own = (torch.arange(queries, device=count.device) + count[:, None] - queries)[..., None]
    seen = (at <= own + min(s["right"], 2**40)) & (at < count[:, None, None])
    return seen & (at >= own - min(s["left"], 2**40))


def _decode(act, t, s, drop):
    q = t["q"].transpose(1, 2)
    k, v = (_rows(t[name], t.get("page_table")) for name in ("k_cache", "v_cache"))
    gqa, mask = q.shape[1] != k.shape[1], _seen(t, s, k.shape[2])[:, None]
    found = scaled_dot_product_attention(q, k, v, mask, scale=s["scale"], enable_gqa=gqa)
    return found.transpose(1, 2)


def _packed(case, data, backend):
    """Returns (call, names of its results) of a backend of scaled_dot_product_attention, or None
    if it would have to gather pages, and for other functions."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    t, which = data[0][0], getattr(SDPBackend, backend)
    if case.f["op"] != "attention_decode" or "page_table" in t:
        return None
    b, n, h, d = t["q"].shape
    rows, heads = t["k_cache"].shape[1:3]
    if not bool((t["key_length"] == rows).all()):
        return None
    seen = _seen(t, case.scalars, rows)[0].repeat_interleave(h // heads, 0)
    mask = None if bool(seen.all()) else seen

    def call(i):
        q, k, v = (data[i][0][name] for name in ("q", "k_cache", "v_cache"))
        q = q.view(b, n, heads, -1, d).transpose(1, 2).reshape(b, heads, -1, d)
        with sdpa_kernel(which):
            out = scaled_dot_product_attention(
                q, k.transpose(1, 2), v.transpose(1, 2), mask, scale=case.scalars["scale"]
            )
        return [out.view(b, heads, n, h // heads, -1).transpose(1, 2).reshape(b, n, h, -1)]

    return call, case.results


def cudnn(case, data):
    return _packed(case, data, "CUDNN_ATTENTION")


def flash2(case, data):
    return _packed(case, data, "FLASH_ATTENTION")


def _merge(act, t, s, drop):
    lse = torch.logaddexp(t["lse_a"], t["lse_b"])
    wa, wb = ((t[f"lse_{part}"] - lse).exp().transpose(1, 2)[..., None] for part in "ab")
    return (t["out_a"] * wa + t["out_b"] * wb).to(t["out_a"].dtype), lse


def _blocks(case):
    """Draws a table of shuffled blocks, each of one sequence if there are enough."""
    n = dict(zip(case.f["sizes"], case.sizes))
    count = n["batch"] * n["pages"]
    order = torch.randperm(n["blocks"], generator=torch.Generator().manual_seed(1))
    return order.repeat(-(-count // n["blocks"]))[:count].view(n["batch"], n["pages"])


def _lengths(case):
    """All rows of each sequence."""
    n = dict(zip(case.f["sizes"], case.sizes))
    pages = 1 if "page_table" in case.skip else n["pages"]
    return torch.full((n["batch"],), pages * n["page_size"])


FORWARD = {"attention_decode": _decode, "attention_merge": _merge}
DRAW = {"attention_decode": {"page_table": _blocks, "key_length": _lengths}}
