# SPDX-License-Identifier: Apache-2.0
"""Attention in PyTorch, on tensors [batch, rows, heads, dim]."""

import torch
from torch.nn.functional import scaled_dot_product_attention


def _attention(t, s, mask=None, causal=False):
    q, k, v = (t[name].transpose(1, 2) for name in "qkv")
    return scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=s["scale"], enable_gqa=q.shape[1] != k.shape[1]
    ).transpose(1, 2)


def _causal(t, s):
    """PyTorch's is_causal sees key 0 with query 0; kf's last query sees the last key."""
    queries, keys = t["q"].shape[1], t["k"].shape[1]
    if queries == keys:
        return _attention(t, s, causal=True)
    mask = torch.ones(queries, keys, dtype=torch.bool, device=t["q"].device)
    return _attention(t, s, mask.tril(keys - queries))


def _dropped(t, s, drop, causal=False):
    q, k, v = (t[name].transpose(1, 2) for name in "qkv")
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * s["scale"]
    if causal:
        seen = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(~seen.tril(k.shape[2] - q.shape[2]), -torch.inf)
    return (drop(scores.softmax(-1)) @ v).transpose(1, 2)


def _listed(t, s):
    """Whole blocks of keys, in lists that all batches and heads share."""
    block, bounds = t["block_masks"].shape[1], t["block_offsets"][0, 0].long()
    rows, keys = len(bounds) - 1, t["k"].shape[1]
    row = torch.repeat_interleave(torch.arange(rows, device=bounds.device), bounds.diff())
    seen = torch.zeros(rows, -(-keys // block), dtype=torch.bool, device=bounds.device)
    seen[row, t["key_blocks"][:, 0].long()] = True
    seen = seen.repeat_interleave(block, 0).repeat_interleave(block, 1)
    return _attention(t, s, seen[: t["q"].shape[1], :keys])


FORWARD = {
    "attention": lambda act, t, s, drop: _attention(t, s),
    "causal_attention": lambda act, t, s, drop: _causal(t, s),
    "full_attention_dropout": lambda act, t, s, drop: _dropped(t, s, drop),
    "causal_attention_dropout": lambda act, t, s, drop: _dropped(t, s, drop, causal=True),
    "bias_attention": lambda act, t, s, drop: _attention(t, s, t["bias"]),
    "block_sparse_attention": lambda act, t, s, drop: _listed(t, s),
    "mask_attention": lambda act, t, s, drop: _attention(t, s, t["mask"].to(torch.bool)),
}


def _sizes(case):
    """Returns (blocks of queries, blocks of a list): all lists have the same length."""
    n = dict(zip(case.f["sizes"], case.sizes))
    rows = -(-n["queries"] // n["block_size"])
    return n, rows, n["listed_blocks"] // rows


def _offsets(case):
    """Lists of all batches and heads in common."""
    n, rows, each = _sizes(case)
    return (torch.arange(rows + 1) * each).expand(n["batch"], n["heads"], -1)


def _windows(case):
    """Blocks up to the diagonal, all keys of each."""
    n, rows, each = _sizes(case)
    first = (torch.arange(rows) + 1 - each).clip(0)[:, None]
    blocks = (first + torch.arange(each)).reshape(-1)
    return torch.stack((blocks, torch.full_like(blocks, -1)), 1)


def _bits(case):
    n, _, _ = _sizes(case)
    return torch.full((n["partial_blocks"], n["block_size"], n["block_size"] // 32), -1)


def flex(case, data):
    """Returns (call, names of its results) of compiled FlexAttention with the same blocks, or None
    for functions without lists."""
    if case.f["op"] != "block_sparse_attention":
        return None
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    n, rows, each = _sizes(case)
    block, listed = n["block_size"], data[0][0]["key_blocks"][:, 0]
    blocks = listed.new_zeros(1, 1, rows, -(-n["keys"] // block))
    none, count = (listed.new_full((1, 1, rows), m) for m in (0, each))
    whole, seen = blocks.clone(), torch.zeros_like(blocks[0, 0], dtype=torch.bool)
    whole[0, 0, :, :each] = listed.view(rows, each)
    seen.scatter_(1, listed.view(rows, each).long(), True)
    mask = BlockMask.from_kv_blocks(
        none,
        blocks,
        count,
        whole,
        BLOCK_SIZE=block,
        mask_mod=lambda b, h, i, j: seen[i // block, j // block],
    )
    # Tiles of 64 queries: the default ones are larger than such blocks.
    options = {"BLOCK_M": 64, "BLOCK_N": 64} if block == 64 else None
    run = torch.compile(flex_attention, dynamic=False)

    def call(i):
        q, k, v = (data[i][0][name].transpose(1, 2) for name in "qkv")
        gqa = q.shape[1] != k.shape[1]
        out = run(q, k, v, None, mask, case.scalars["scale"], gqa, kernel_options=options)
        return [out.transpose(1, 2)]

    return call, case.results


DRAW = {op: {"mask": "seen"} for op in ("mask_attention", "mask_attention_dropout")}
DRAW["block_sparse_attention"] = {
    "block_offsets": _offsets,
    "key_blocks": _windows,
    "block_masks": _bits,
}
