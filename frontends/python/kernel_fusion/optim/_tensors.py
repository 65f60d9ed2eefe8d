# SPDX-License-Identifier: Apache-2.0
"""Memory of parameters, gradients and state, as the ops take it: dense, real, of this process."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PLAIN = (Tensor, torch.nn.Parameter)


def is_distributed(x: Tensor) -> bool:
    """True for a DTensor."""
    return type(x) not in PLAIN and hasattr(x, "placements") and hasattr(x, "to_local")


def is_split(x: Any) -> bool:
    """True for a DTensor of which this process has a part."""
    return is_distributed(x) and not all(p.is_replicate() for p in x.placements)


def local(x: Any) -> Tensor:
    """Returns a tensor's memory in this process as real numbers.

    Args:
        x: a tensor; of a DTensor the local shard, of a complex tensor its two parts.
    """
    if is_distributed(x):
        x = x.to_local()
        x = x.wait() if hasattr(x, "wait") else x  # the result of a collective in flight
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def gradient(where: str, name: Callable[[], str], param: Any, placed: bool = True) -> Tensor:
    """Returns a parameter's gradient in this process.

    Args:
        name: returns the parameter's name in messages.
        placed: redistributes a DTensor's gradient as the parameter is.
    """
    found = param.grad
    if found.layout is not torch.strided:
        raise RuntimeError(
            f"{where}: {name()} has a sparse gradient ({found.layout}), expected a dense one"
        )
    if placed and is_distributed(param) and tuple(found.placements) != tuple(param.placements):
        found = found.redistribute(param.device_mesh, param.placements)
    return local(found)


class Held:
    """Tensors of one parameter in one order of elements, overwritten ones written back.

    Args:
        written: param, then its state; overwritten by the op.
        grad: read by the op; None: the op reads no other tensor.
    """

    def __init__(self, written: list[Tensor], grad: Tensor | None = None):
        self.grad, self.written, self.own = grad, written, written
        if not all(x.is_contiguous() for x in written) or not (
            grad is None or grad.is_contiguous()
        ):
            self._arrange()

    def _arrange(self) -> None:
        """Permutes all tensors as a dense parameter is, and copies what is not dense then."""
        param = self.written[0]
        strides, order = param.stride(), [*range(param.dim())]
        if not param.is_contiguous():
            order.sort(key=lambda i: -strides[i])  # for example channels-last
        self.own = [x.permute(order) for x in self.written]
        self.written = [x.contiguous() for x in self.own]
        if self.grad is not None:
            self.grad = self.grad.permute(order).contiguous()

    def write_back(self) -> None:
        """Copies results to tensors whose memory is not contiguous."""
        if self.own is not self.written:
            for own, x in zip(self.own, self.written):
                if own.data_ptr() != x.data_ptr():
                    own.copy_(x)
