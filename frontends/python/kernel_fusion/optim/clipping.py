# SPDX-License-Identifier: Apache-2.0
"""Clipping of gradients by their norm."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from kernel_fusion import ops
from kernel_fusion.optim._step import number
from kernel_fusion.optim._tensors import Held, gradient, is_distributed, local

WHERE = "kf.optim.clip_grad_norm_"


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scales gradients in place so that their norm is at most max_norm.

    Replaces torch.nn.utils.clip_grad_norm_, and does not wait for a GPU unless error_if_nonfinite.

    Args:
        parameters: parameters; those without a gradient do not count
        max_norm: largest norm
        norm_type: order of the norm, or infinity
        error_if_nonfinite: raises an error if the norm is infinite or NaN
        foreach: PyTorch's argument for the computation of the norm

    Returns:
        The norm of all gradients before, a tensor without dimensions. Order 2 is computed in
        float32 for 2-byte gradients, and in float64 if some gradients are float64.

    Raises:
        RuntimeError: a gradient is sparse, or the norm is infinite or NaN.
    """
    given = [parameters] if isinstance(parameters, Tensor) else [*parameters]
    params: dict[int, Any] = {i: p for i, p in enumerate(given) if p.grad is not None}
    held: dict[Any, list[Held]] = {}
    for i, param in params.items():
        grad = gradient(WHERE, f"parameters[{i}]".format, param, placed=False)
        held.setdefault((grad.device, grad.dtype), []).append(Held([grad]))
    lists = [[h.written[0] for h in own] for own in held.values()]
    if norm_type != 2 or any(is_distributed(p.grad) for p in params.values()):
        grads = [p.grad for p in params.values() if p.numel()]
        norm = torch.nn.utils.get_total_norm(grads, norm_type, foreach=foreach)
    else:
        norm = _l2_norm(lists)
    if error_if_nonfinite and not bool(norm.isfinite()):
        raise RuntimeError(
            f"{WHERE}: the norm of order {norm_type} of the gradients is {norm.item()}, expected a "
            f"finite one"
        )
    for own, tensors in zip(held.values(), lists):
        ops.multi_clip(tensors, norm=number(_whole(norm), tensors[0]), max_norm=float(max_norm))
        for h in own:
            h.write_back()
    return norm


def _l2_norm(lists: list[list[Tensor]]) -> Tensor:
    """Returns the norm of lists of tensors on their devices, in float32 or float64."""
    norms: dict[Any, Tensor] = {}
    for tensors in lists:
        zero = number(0.0, tensors[0])
        norm = norms.setdefault((zero.device, zero.dtype), zero)
        ops.multi_l2_norm(tensors, norm=norm)
    if len(norms) < 2:
        return next(iter(norms.values()), torch.zeros(1)).reshape(())
    first = next(iter(norms.values())).device
    wide = [norm.to(first, torch.float64) for norm in norms.values()]
    found: Tensor = torch.linalg.vector_norm(torch.cat(wide))
    return found


def _whole(norm: Any) -> Tensor:
    """Returns a norm that may be a DTensor as a tensor of this process."""
    return local(norm.full_tensor() if is_distributed(norm) else norm)
