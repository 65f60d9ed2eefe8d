# SPDX-License-Identifier: Apache-2.0
"""Normalisation modules with a fused activation, and with a residual, which PyTorch lacks."""

import math
from typing import Any

import torch
from torch import Tensor

from kernel_fusion.nn._activated import Activated


def wide(x: Tensor) -> torch.dtype:
    """Dtype of statistics."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _LastAxes(Activated):
    """Base of norms over normalized_shape, whose axes are joined into one."""

    normalized_shape: tuple[int, ...]
    weight: Tensor | None

    def flat(self, x: Tensor) -> Tensor:
        n = len(self.normalized_shape)
        if tuple(x.shape[-n:]) != tuple(self.normalized_shape):
            raise ValueError(
                f"kf.nn.{type(self).__name__}: the input has the shape {tuple(x.shape)}, expected "
                f"(..., "
                f"{', '.join(map(str, self.normalized_shape))})"
            )
        return x if n == 1 else x.flatten(-n)

    def weights(self) -> tuple[Tensor | None, Tensor | None]:
        return tuple(
            None if t is None else t.flatten() for t in (self.weight, getattr(self, "bias", None))
        )  # type: ignore[return-value]


class LayerNorm(_LastAxes, torch.nn.LayerNorm):  # type: ignore[misc]
    """act(layer_norm(input)), a replacement of torch.nn.LayerNorm.

    Args:
        *args, **kwargs: as torch.nn.LayerNorm
        activation: name of an activation
    """

    op = "layer_norm"

    def __init__(self, *args: Any, activation: str = "none", **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._set_activation(activation)

    def forward(self, input: Tensor) -> Tensor:
        found: Tensor = self.call(self.flat(input), *self.weights(), eps=self.eps)
        return found.view(input.shape)


class RMSNorm(_LastAxes, torch.nn.RMSNorm):  # type: ignore[misc]
    """act(rms_norm(x)), a replacement of torch.nn.RMSNorm.

    Args:
        *args, **kwargs: as torch.nn.RMSNorm
        activation: name of an activation
    """

    op = "rms_norm"

    def __init__(self, *args: Any, activation: str = "none", **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._set_activation(activation)

    def epsilon(self, x: Tensor) -> float:
        """Returns eps; by default, as in PyTorch, the machine epsilon of the
        computation's dtype.
        """
        return float(torch.finfo(wide(x)).eps if self.eps is None else self.eps)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.call(self.flat(x), self.weights()[0], eps=self.epsilon(x))
        return found.view(x.shape)


class GemmaRMSNorm(_LastAxes):
    """x * rstd * (1 + weight), with weight initialised to 0.

    Args:
        dim: size of the last dimension
        eps: added to the mean square
    """

    op = "gemma_rms_norm"

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.normalized_shape, self.eps = (dim,), eps
        self.weight = torch.nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Any:
        return self.call(self.flat(x), self.weight, eps=self.eps)


def _of_sum(norm: Any, x: Tensor, residual: Tensor, *weights: Tensor | None, eps: float) -> Any:
    """Normalises x + residual, in float32 if the residual is float32 beside a 2-byte x."""
    dtype = x.dtype
    wider = residual.dtype == torch.float32 and dtype in (torch.float16, torch.bfloat16)
    if wider:
        x = x.float()
        weights = tuple(None if t is None else t.float() for t in weights)
    out, added = norm.call(norm.flat(x), norm.flat(residual), *weights, eps=eps)
    return out.view(x.shape).to(dtype) if wider else out.view(x.shape), added.view(x.shape)


class AddLayerNorm(LayerNorm):
    """Returns (act(layer_norm(x + residual)), x + residual); arguments as LayerNorm.

    The residual may be float32 beside a 2-byte x: so is then the sum.
    """

    op = "add_layer_norm"

    def forward(self, input: Tensor, residual: Tensor) -> Any:  # type: ignore[override]
        return _of_sum(self, input, residual, *self.weights(), eps=self.eps)


class AddRMSNorm(RMSNorm):
    """Returns (act(rms_norm(x + residual)), x + residual); arguments as RMSNorm.

    The residual may be float32 beside a 2-byte x: so is then the sum.
    """

    op = "add_rms_norm"

    def forward(self, x: Tensor, residual: Tensor) -> Any:  # type: ignore[override]
        return _of_sum(self, x, residual, self.weights()[0], eps=self.epsilon(x))


def _several(name: str, x: Tensor, values: int, of: str) -> None:
    """Refuses a single value, whose variance is undefined, as PyTorch does."""
    if values == 1:
        raise ValueError(
            f"kf.nn.{name}: the input has the shape {tuple(x.shape)}, expected more than one "
            f"value per {of}"
        )


class GroupNorm(Activated, torch.nn.GroupNorm):
    """act(group_norm(input)), a replacement of torch.nn.GroupNorm.

    Args:
        *args, **kwargs: as torch.nn.GroupNorm
        activation: name of an activation
    """

    op = "group_norm"

    def __init__(self, *args: Any, activation: str = "none", **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._set_activation(activation)

    def forward(self, input: Tensor) -> Any:
        if input.dim() > 1:
            _several(
                "GroupNorm",
                input,
                input.shape[0] * (input.shape[1] // self.num_groups) * math.prod(input.shape[2:]),
                "group",
            )
        return self.call(input, self.weight, self.bias, groups=self.num_groups, eps=self.eps)


class _InstanceNorm(Activated):
    op = "instance_norm"
    _check_input_dim: Any
    _get_no_batch_dim: Any

    def __init__(self, *args: Any, activation: str = "none", **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._set_activation(activation)
        if getattr(self, "track_running_stats", False):
            raise ValueError(
                f"kf.nn.{type(self).__name__}: track_running_stats is True, expected False"
            )

    def forward(self, input: Tensor) -> Any:
        self._check_input_dim(input)
        if input.dim() == self._get_no_batch_dim():
            return self.forward(input.unsqueeze(0)).squeeze(0)
        _several(type(self).__name__, input, math.prod(input.shape[2:]), "channel")
        return self.call(input, self.weight, self.bias, eps=self.eps)


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """act(instance_norm(input)), a replacement of torch.nn.InstanceNorm1d."""


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """act(instance_norm(input)), a replacement of torch.nn.InstanceNorm2d."""


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """act(instance_norm(input)), a replacement of torch.nn.InstanceNorm3d."""


class _BatchNorm(Activated):
    op = "batch_norm_train"
    hidden = ("eps",)
    _check_input_dim: Any
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any

    def __init__(self, *args: Any, activation: str = "none", **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._set_activation(activation)

    def forward(self, input: Tensor) -> Any:
        self._check_input_dim(input)
        if self.training or self.running_mean is None:
            return self._of_batch(input)
        acc = wide(input)
        weight = (
            self.running_var.new_ones(()).expand_as(self.running_var)
            if self.weight is None
            else self.weight
        )
        bias = (
            self.running_mean.new_zeros(()).expand_as(self.running_mean)
            if self.bias is None
            else self.bias
        )
        return self.call(
            input,
            running_mean=self.running_mean.to(acc),
            running_var=self.running_var.to(acc),
            weight=weight.to(acc),
            bias=bias.to(acc),
            eps=self.eps,
            op="batch_norm",
        )

    def _of_batch(self, x: Tensor) -> Any:
        """Normalises by the batch's statistics and updates the running ones."""
        _several(type(self).__name__, x, x.shape[0] * math.prod(x.shape[2:]), "channel")
        running: tuple[Any, Any] = (None, None)
        momentum: Any = self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            momentum = 1 / float(self.num_batches_tracked) if momentum is None else momentum
            running = self.running_mean, self.running_var
        statistics = [None if t is None else t.to(wide(x)) for t in running]
        out = self.call(
            x,
            *statistics,
            self.weight,
            self.bias,
            eps=self.eps,
            momentum=0.0 if momentum is None else momentum,
        )
        for own, new in zip(running, statistics):
            if own is not new:  # another dtype
                own.copy_(new)
        return out


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """act(batch_norm(input)), a replacement of torch.nn.BatchNorm1d."""


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """act(batch_norm(input)), a replacement of torch.nn.BatchNorm2d."""


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """act(batch_norm(input)), a replacement of torch.nn.BatchNorm3d."""
