# SPDX-License-Identifier: Apache-2.0
"""Gradients of kf's fused attention, which has no backward kernel: PyTorch's own."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from kernel_fusion import _multihead


def _pytorch(
    given: Sequence[Tensor], mask: Tensor | None, right: int | None, scale: float, gqa: bool
) -> Tensor:
    """PyTorch's function."""
    q, k, v = given
    queries, keys = q.shape[-2], k.shape[-2]
    if right is not None and right != queries - keys:  # not PyTorch's is_causal
        mask, right = _multihead.visible(q, queries, keys, right), None
    causal = right is not None
    return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=gqa)


class Recomputed(torch.autograd.Function):
    """The fused forward; the backward computes PyTorch's function again and differentiates it."""

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., Tensor],
        where: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        rest: tuple[Any, ...],
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, mask)
        ctx.rest = rest
        return compute(where, (q, k, v), mask, *rest)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[2:6]
        saved: list[Any] = [
            t if t is None else t.detach().requires_grad_(need)
            for t, need in zip(ctx.saved_tensors, wanted)
        ]
        with torch.enable_grad():
            out = _pytorch(saved[:3], saved[3], *ctx.rest)
        inputs = [t for t, need in zip(saved, wanted) if need]
        grads = iter(torch.autograd.grad(out, inputs, dout))
        return (None, None, *(next(grads) if need else None for need in wanted), None)


_said = False


def _say(where: str) -> None:
    global _said
    if _said:
        return
    _said = True
    warnings.warn(
        f"kf.{where} has no backward kernel: PyTorch's scaled_dot_product_attention is recomputed "
        "for gradients",
        stacklevel=5,
    )


def _autocast(given: Sequence[Tensor]) -> list[Tensor]:
    """Casts as PyTorch does for its function."""
    device = given[0].device.type
    if not torch._C._is_any_autocast_enabled() or not torch.is_autocast_enabled(device):
        return [*given]
    to = torch.get_autocast_dtype(device)
    return [t if t.dtype == torch.float64 else t.to(to) for t in given]


def call(
    where: str,
    compute: Callable[..., Tensor],
    given: Sequence[Tensor],
    mask: Tensor | None,
    right: int | None,
    scale: float,
    gqa: bool,
) -> Tensor:
    """Calls the fused function. PyTorch's replaces it where transforms or torch.compile
    differentiate."""
    tensors = [t for t in (*given, mask) if isinstance(t, Tensor)]
    given = _autocast(given)
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        return _pytorch(given, mask, right, scale, gqa)
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
        return compute(where, given, mask, right, scale, gqa)
    if torch.compiler.is_compiling():
        return _pytorch(given, mask, right, scale, gqa)
    _say(where)
    apply: Any = Recomputed.apply
    found: Tensor = apply(compute, where, *given, mask, (right, scale, gqa))
    return found
