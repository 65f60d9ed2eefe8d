# SPDX-License-Identifier: Apache-2.0
"""Linear layers, gates, softmax, dropout."""

from typing import Any

import torch
from torch import Tensor

from kernel_fusion import ops
from kernel_fusion.nn.norms import _Activated


class Linear(_Activated, torch.nn.Linear):
    """act(input . weight^T + bias). fuse_wgrad_accumulation: the weight's gradient is added to weight.main_grad, a tensor of its shape, of its dtype
    or float32, in the product that makes it, and weight.grad stays as it is; the bias's likewise, where it has a main_grad."""

    op = "linear"

    def __init__(
        self,
        *args: Any,
        activation: str = "none",
        fuse_wgrad_accumulation: bool = False,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self._chosen(activation)
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation

    def forward(self, input: Tensor) -> Any:
        if not (
            self.fuse_wgrad_accumulation and self.weight.requires_grad and torch.is_grad_enabled()
        ):
            return self.call(input, self.weight, self.bias)
        if not hasattr(self.weight, "main_grad"):
            raise ValueError(
                "kf.nn.Linear: weight has no main_grad, expected a tensor to which its gradient is added"
            )
        grads = {
            name: p.main_grad
            for name, p in (("weight", self.weight), ("bias", self.bias))
            if p is not None and p.requires_grad and hasattr(p, "main_grad")
        }
        return self.call(input, self.weight, self.bias, grads=grads)


class PReLU(torch.nn.PReLU):
    """Of several parameters, those of dimension 1: where that is not the last the input is copied."""

    def forward(self, input: Tensor) -> Any:
        if self.num_parameters == 1:
            x, weight = (
                input if input.dim() else input[None],
                self.weight.expand(input.shape[-1] if input.dim() else 1),
            )
        elif input.dim() > 1 and input.shape[1] == self.num_parameters:
            x, weight = input.movedim(1, -1), self.weight
        else:
            raise ValueError(
                f"kf.nn.PReLU: the input has the shape {tuple(input.shape)}, expected {self.num_parameters} in dimension 1"
            )
        found: Tensor = ops.prelu_bias(x, weight, torch.zeros_like(weight))
        return found.reshape(input.shape) if self.num_parameters == 1 else found.movedim(-1, 1)


class GLU(torch.nn.GLU):
    """PyTorch's: the first half times the sigmoid of the second. The halves are copied apart."""

    def forward(self, input: Tensor) -> Any:
        if not input.dim() or input.shape[self.dim] % 2:
            raise ValueError(
                f"kf.nn.GLU: the input has the shape {tuple(input.shape)}, expected an even dimension {self.dim}"
            )
        first, second = input.chunk(2, self.dim)
        return ops.sigmoid_mul(second, first)


class ActGLU(_Activated):
    """act(the first half of the last axis) times the second: of a product that gives gate and value side by side."""

    op = "act_glu"

    def __init__(self, activation: str):
        super().__init__()
        self._chosen(activation)

    def forward(self, input: Tensor) -> Any:
        return self.call(input)


class SwiGLU(ActGLU):
    def __init__(self) -> None:
        super().__init__("silu")


class GEGLU(ActGLU):
    def __init__(self) -> None:
        super().__init__("gelu")


class ReGLU(ActGLU):
    def __init__(self) -> None:
        super().__init__("relu")


def _along(function: Any, x: Tensor, dim: int | None, name: str) -> Tensor:
    if dim is None:
        raise ValueError(f"kf.nn.{name}: dim is None, expected a dimension")
    if not x.dim() and dim in (0, -1):  # one element, of which PyTorch too makes a row
        return _along(function, x[None], 0, name)[0]
    last = dim in (-1, x.dim() - 1)
    found: Tensor = function(x if last else x.movedim(dim, -1))
    return found if last else found.movedim(-1, dim)


class Softmax(torch.nn.Softmax):
    """Along another dimension than the last the input is copied."""

    def forward(self, input: Tensor) -> Tensor:
        return _along(ops.softmax, input, self.dim, "Softmax")


class LogSoftmax(torch.nn.LogSoftmax):
    """Along another dimension than the last the input is copied."""

    def forward(self, input: Tensor) -> Tensor:
        return _along(ops.log_softmax, input, self.dim, "LogSoftmax")


class Dropout(_Activated, torch.nn.Dropout):
    """act(input), of which elements are dropped."""

    op = "act_dropout"

    def __init__(self, p: float = 0.5, inplace: bool = False, activation: str = "none"):
        super().__init__(p, inplace)
        self._chosen(activation)

    def forward(self, input: Tensor) -> Any:
        return self.call(input, p=self.p, training=self.training)
