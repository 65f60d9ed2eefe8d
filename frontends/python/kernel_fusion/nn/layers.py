# SPDX-License-Identifier: Apache-2.0
"""Linear layers, gated units, softmax and dropout."""

from typing import Any

import torch
from torch import Tensor

from kernel_fusion import ops
from kernel_fusion.nn._activated import Activated


class Linear(Activated, torch.nn.Linear):
    """act(input @ weight.T + bias), a replacement of torch.nn.Linear.

    Args:
        *args, **kwargs: as torch.nn.Linear
        activation: name of an activation
        fuse_wgrad_accumulation: if True, the backward adds the weight's gradient to
            weight.main_grad, in the product that computes it, and leaves weight.grad unchanged;
            likewise for a bias with main_grad. main_grad has the parameter's shape, and its dtype
            or float32.
    """

    op = "linear"
    hidden = ("out_features",)

    def __init__(
        self,
        *args: Any,
        activation: str = "none",
        fuse_wgrad_accumulation: bool = False,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self._set_activation(activation)
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation

    def forward(self, input: Tensor) -> Any:
        if not (
            self.fuse_wgrad_accumulation and self.weight.requires_grad and torch.is_grad_enabled()
        ):
            return self.call(input, self.weight, self.bias)
        if not hasattr(self.weight, "main_grad"):
            raise ValueError(
                "kf.nn.Linear: weight has no main_grad, expected a tensor that accumulates its "
                "gradient"
            )
        grads = {
            name: p.main_grad
            for name, p in (("weight", self.weight), ("bias", self.bias))
            if p is not None and p.requires_grad and hasattr(p, "main_grad")
        }
        return self.call(input, self.weight, self.bias, grads=grads)


class PReLU(torch.nn.PReLU):
    """A replacement of torch.nn.PReLU.

    Several parameters belong to dimension 1; if that is not the last one, the input is copied.
    """

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
                f"kf.nn.PReLU: the input has the shape {tuple(input.shape)}, expected "
                f"{self.num_parameters} in dimension 1"
            )
        found: Tensor = ops.prelu_bias(x, weight, torch.zeros_like(weight))
        return found.reshape(input.shape) if self.num_parameters == 1 else found.movedim(-1, 1)


class GLU(torch.nn.GLU):
    """A replacement of torch.nn.GLU: the first half times the sigmoid of the second.

    Both halves are copied.
    """

    def forward(self, input: Tensor) -> Any:
        if not input.dim() or input.shape[self.dim] % 2:
            raise ValueError(
                f"kf.nn.GLU: the input has the shape {tuple(input.shape)}, expected an even "
                f"dimension {self.dim}"
            )
        first, second = input.chunk(2, self.dim)
        return ops.sigmoid_mul(second, first)


class ActGLU(Activated):
    """act(first half of the last axis) * second half, for products with gate and value
    concatenated.

    Args:
        activation: name of an activation
    """

    op = "act_glu"

    def __init__(self, activation: str):
        super().__init__()
        self._set_activation(activation)

    def forward(self, input: Tensor) -> Any:
        return self.call(input)


class SwiGLU(ActGLU):
    """ActGLU with silu."""

    def __init__(self) -> None:
        super().__init__("silu")


class GEGLU(ActGLU):
    """ActGLU with gelu."""

    def __init__(self) -> None:
        super().__init__("gelu")


class ReGLU(ActGLU):
    """ActGLU with relu."""

    def __init__(self) -> None:
        super().__init__("relu")


def _dimension(name: str, dim: int | None) -> int:
    if dim is None:
        raise ValueError(f"kf.nn.{name}: dim is None, expected a dimension")
    return dim


class Softmax(torch.nn.Softmax):
    """A replacement of torch.nn.Softmax; copies the input unless dim is the last dimension."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.softmax(input, _dimension("Softmax", self.dim))


class LogSoftmax(torch.nn.LogSoftmax):
    """A replacement of torch.nn.LogSoftmax; copies the input unless dim is the last dimension."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.log_softmax(input, _dimension("LogSoftmax", self.dim))


class Dropout(Activated, torch.nn.Dropout):
    """dropout(act(input)), a replacement of torch.nn.Dropout.

    Args:
        p: probability that an element is dropped
        inplace: ignored
        activation: name of an activation
    """

    op = "act_dropout"

    def __init__(self, p: float = 0.5, inplace: bool = False, activation: str = "none"):
        super().__init__(p, inplace)
        self._set_activation(activation)

    def forward(self, input: Tensor) -> Any:
        return self.call(input, p=self.p, training=self.training)
