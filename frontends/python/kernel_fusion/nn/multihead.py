# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention."""

from typing import Any

import torch
from torch import Tensor

from kernel_fusion import ops


class MultiheadAttention(torch.nn.MultiheadAttention):
    """A replacement of torch.nn.MultiheadAttention.

    Without need_weights, kf.ops.linear computes the projections and one kernel the attention, with
    dropout too, whose scores are not stored. With need_weights, which is PyTorch's default, or
    nested tensors PyTorch's own code runs. Gradients of the attention are kernels, too.

    Args:
        *args, **kwargs: as torch.nn.MultiheadAttention
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        if need_weights or any(t.is_nested for t in (query, key, value)):
            return super().forward(
                query,
                key,
                value,
                key_padding_mask,
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
            )
        if is_causal and attn_mask is None:
            raise ValueError(
                "kf.nn.MultiheadAttention: is_causal is True beside attn_mask = None, expected the "
                "mask, as torch.nn.MultiheadAttention does"
            )
        batched = query.dim() == 3
        if query.dim() not in (2, 3) or not key.dim() == value.dim() == query.dim():
            raise ValueError(
                f"kf.nn.MultiheadAttention: query, key and value have {query.dim()}, {key.dim()} "
                f"and {value.dim()} dimensions, expected 2 or 3 for each"
            )
        given = [t if batched else t[None] for t in (query, key, value)]
        if batched and not self.batch_first:
            given = [t.transpose(0, 1) for t in given]
        if key_padding_mask is not None and not batched:
            key_padding_mask = key_padding_mask[None]
        found = self._attend(given, key_padding_mask, attn_mask)
        if not batched:
            return found[0], None
        return found if self.batch_first else found.transpose(0, 1), None

    def _attend(
        self, given: list[Tensor], key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        """Attention of [batch, rows, features]."""
        q, k, v = self._projected(given)
        mask = _joined(self._of_scores(attn_mask, q), _padding(key_padding_mask), q.dtype)
        k, v, mask = self._more_keys(k, v, mask)
        q, k, v = (
            t.unflatten(-1, (self.num_heads, t.shape[-1] // self.num_heads)).transpose(1, 2)
            for t in (q, k, v)
        )
        p = self.dropout if self.training else 0.0
        found = ops.scaled_dot_product_attention(q, k, v, mask, p)
        out: Tensor = ops.linear(
            found.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias
        )
        return out

    def _projected(self, given: list[Tensor]) -> list[Tensor]:
        """The products of query, key and value with their weights; one for those that are one."""
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        if self._qkv_same_embed_dim:
            if given[0] is given[1] is given[2]:
                return list(
                    ops.linear(given[0], self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
                )
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        return [ops.linear(x, w, b) for x, w, b in zip(given, weights, biases)]

    def _of_scores(self, attn_mask: Tensor | None, q: Tensor) -> Tensor | None:
        """Returns attn_mask as [batch or 1, heads or 1, queries, keys]."""
        if attn_mask is None or attn_mask.dim() == 2:
            return attn_mask if attn_mask is None else attn_mask[None, None]
        if attn_mask.dim() != 3 or attn_mask.shape[0] != q.shape[0] * self.num_heads:
            raise ValueError(
                f"kf.nn.MultiheadAttention: attn_mask has the shape {tuple(attn_mask.shape)}, "
                f"expected two dimensions, or three with {q.shape[0] * self.num_heads} first"
            )
        found: Tensor = attn_mask.unflatten(0, (q.shape[0], self.num_heads))
        return found

    def _more_keys(
        self, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Appends the keys of bias_k and bias_v, and one of zeros, which every query sees."""
        added = 0
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                torch.cat((t, b.expand(len(t), 1, -1)), 1)
                for t, b in ((k, self.bias_k), (v, self.bias_v))
            )
            added += 1
        if self.add_zero_attn:
            k, v = (torch.cat((t, t.new_zeros(len(t), 1, t.shape[-1])), 1) for t in (k, v))
            added += 1
        if mask is not None and added:
            mask = torch.nn.functional.pad(mask, (0, added), value=mask.dtype == torch.bool)
        return k, v, mask


def _padding(mask: Tensor | None) -> Tensor | None:
    """Returns key_padding_mask as [batch, 1, 1, keys]."""
    return mask if mask is None else mask[:, None, None]


def _joined(first: Tensor | None, second: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Joins the module's masks, where True hides a key: bool with True for visible keys if both
    are, else numbers to add."""
    masks = [m for m in (first, second) if m is not None]
    if not masks:
        return None
    if all(m.dtype == torch.bool for m in masks):
        return ~masks[0] if len(masks) == 1 else ~(masks[0] | masks[1])
    numbers = [
        torch.zeros_like(m, dtype=dtype).masked_fill(m, float("-inf"))
        if m.dtype == torch.bool
        else m.to(dtype)
        for m in masks
    ]
    return sum(numbers[1:], numbers[0])
