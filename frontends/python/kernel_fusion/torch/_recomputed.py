# SPDX-License-Identifier: Apache-2.0
"""Gradients of kf's fused attention: its backward kernels, or functions that PyTorch
differentiates, computed again where a device has no kernels: PyTorch's own; with dropout kf's
products and softmax."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from kernel_fusion import _multihead, _table
from kernel_fusion.torch import _public

BACKENDS = {"cpu": "c", "cuda": "cuda"}  # backends by device type


def _devices() -> frozenset[str]:
    """Returns the device types on which the gradients have functions."""
    backward = _table.ops()["attention"].backward
    known = () if backward is None else backward.backends
    return frozenset(device for device, backend in BACKENDS.items() if backend in known)


DEVICES = _devices()  # torch.compile cannot trace the reading of the table


def _differentiable(
    where: str,
    given: Sequence[Tensor],
    mask: Tensor | None,
    right: int | None,
    scale: float,
    gqa: bool,
    dropout_p: float = 0.0,
    rng: Tensor | None = None,
) -> Tensor:
    """PyTorch's function; with dropout, kf's products and softmax, which draw the same bits."""
    if dropout_p:
        found: Tensor = _multihead.unfused(where, given, mask, right, scale, gqa, dropout_p, rng)
        return found
    q, k, v = given
    queries, keys = q.shape[-2], k.shape[-2]
    if right is not None and right != queries - keys:  # not PyTorch's is_causal
        mask, right = _multihead.visible(q, queries, keys, right), None
    # The operator, not torch.nn.functional's name for it, which kf.nn.sdpa() hands to kf.
    function = torch.ops.aten.scaled_dot_product_attention
    found = function(q, k, v, mask, 0.0, right is not None, scale=scale, enable_gqa=gqa)
    return found


class Recomputed(torch.autograd.Function):
    """The fused forward; the backward computes what is differentiable again."""

    @staticmethod
    def forward(
        ctx: Any,
        where: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        rest: tuple[Any, ...],
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, mask)
        ctx.where, ctx.rest = where, rest
        found: Tensor = _multihead.fused(where, (q, k, v), mask, *rest)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:5]
        saved: list[Any] = [
            t if t is None else t.detach().requires_grad_(need)
            for t, need in zip(ctx.saved_tensors, wanted)
        ]
        with torch.enable_grad():
            out = _differentiable(ctx.where, saved[:3], saved[3], *ctx.rest)
        inputs = [t for t, need in zip(saved, wanted) if need]
        grads = iter(torch.autograd.grad(out, inputs, dout))
        return (None, *(next(grads) if need else None for need in wanted), None)


_said: set[str] = set()
WITHOUT = "PyTorch's scaled_dot_product_attention is recomputed for gradients"
WITH_DROPOUT = "with dropout, gradients recompute and store the scores there"


def _say(where: str, text: str) -> None:
    if text in _said:
        return
    _said.add(text)
    warnings.warn(f"kf.{where} has no backward kernel: {text}", stacklevel=5)


def _has_kernel(q: Tensor) -> bool:
    """True if the gradients have functions on a tensor's device."""
    return q.device.type in DEVICES


def _autocast(given: Sequence[Tensor]) -> list[Tensor]:
    """Casts as PyTorch does for its function."""
    device = given[0].device.type
    if not torch._C._is_any_autocast_enabled() or not torch.is_autocast_enabled(device):
        return [*given]
    to = torch.get_autocast_dtype(device)
    return [t if t.dtype == torch.float64 else t.to(to) for t in given]


def call(
    where: str,
    given: Sequence[Tensor],
    mask: Tensor | None,
    right: int | None,
    scale: float,
    gqa: bool,
    dropout_p: float = 0.0,
) -> Tensor:
    """Calls the fused function, whose gradients are those of kf.ops. What PyTorch differentiates
    replaces it in transforms, and in torch.compile without a backward kernel."""
    tensors = [t for t in (*given, mask) if isinstance(t, Tensor)]
    given, rest = _autocast(given), (right, scale, gqa, dropout_p)
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        return _differentiable(where, given, mask, *rest)
    found: Tensor
    if (
        not torch.is_grad_enabled()
        or not any(t.requires_grad for t in tensors)
        or _has_kernel(given[0])
    ):
        found = _multihead.fused(where, given, mask, *rest)
        return found
    if torch.compiler.is_compiling():
        return _differentiable(where, given, mask, *rest)
    _say(where, WITH_DROPOUT if dropout_p else WITHOUT)
    rng = _public.seed_of(f"kf.{where}", given[0], None, True) if dropout_p else None
    apply: Any = Recomputed.apply
    found = apply(where, *given, mask, (*rest, rng))
    return found
