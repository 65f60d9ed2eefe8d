# SPDX-License-Identifier: Apache-2.0
"""Loss modules.

Targets have the inputs' shape and dtype, or are class indices; nothing is broadcast. Sums over
rows are float32 for 2-byte inputs.
"""

from typing import Any

import torch
from torch import Tensor

from kernel_fusion import _dispatch, _fuse, ops
from kernel_fusion.nn.activations import only
from kernel_fusion.nn.norms import wide

# Docstring of the losses that _elements makes; kfgen's reference page shows it too.
DOC = "A replacement of torch.nn.{name}: kf.ops.{op}, {op}_mean or {op}_sum, by reduction."


def _elements(name: str, op: str, scalars: tuple[str, ...] = ()) -> Any:
    """Makes the class of an elementwise loss, whose mean and sum are ops of their own."""
    functions = {
        "none": _dispatch.lookup(op),
        "mean": _dispatch.lookup(f"{op}_mean"),
        "sum": _dispatch.lookup(f"{op}_sum"),
    }
    base: Any = getattr(torch.nn, name)

    class Module(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            only(name, reduction=(self.reduction, *functions))

        def forward(self, input: Tensor, target: Tensor) -> Any:
            given = {n: float(getattr(self, n)) for n in scalars}
            if self.reduction == "none":
                return functions["none"](input, target, **given)
            return functions[self.reduction](input, target, dim=None, **given)

    Module.__name__ = Module.__qualname__ = name
    Module.__module__ = __name__
    Module.__doc__ = DOC.format(name=name, op=op)
    return Module


MSELoss: type[torch.nn.MSELoss] = _elements("MSELoss", "mse")
L1Loss: type[torch.nn.L1Loss] = _elements("L1Loss", "l1")
HuberLoss: type[torch.nn.HuberLoss] = _elements("HuberLoss", "huber", ("delta",))


class SmoothL1Loss(torch.nn.SmoothL1Loss):
    """A replacement of torch.nn.SmoothL1Loss: Huber loss / beta; with beta = 0 the L1 loss."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        only("SmoothL1Loss", reduction=(self.reduction, "none", "mean", "sum"))

    def forward(self, input: Tensor, target: Tensor) -> Any:
        name = "l1" if self.beta == 0 else "huber"
        function = getattr(ops, name if self.reduction == "none" else f"{name}_{self.reduction}")
        more = {} if self.reduction == "none" else {"dim": None}
        if self.beta == 0:
            return function(input, target, **more)
        return function(input, target, delta=float(self.beta), **more) / self.beta


# {key: (function in messages, operands, formula)} of losses that have no kernel of their own;
# log1p01 is log1p of a number between 0 and 1.
FORMULAS = {
    "pos_weight": (
        "bce_with_logits",
        ("x", "target", "pos_weight"),
        "w = 1 + (pos_weight - 1) * target; "
        "where(x > 0, x * (1 - target) + w * log1p01(exp(-x)), "
        "w * log1p01(exp(x)) - x * pos_weight * target)",
    ),
    "log_target": ("kl_div", ("x", "target"), "exp(target) * (target - x)"),
}
_fused: dict[str, Any] = {}


def _made(key: str) -> str:
    """Makes the op of a loss by kf.fuse, at its first call; returns its key in _fused."""
    if key not in _fused:
        function, operands, expr = FORMULAS[key]
        _fused[key] = _fuse.labelled(function, expr, dict.fromkeys(operands, "elem"))
    return key


# torch.compile calls it instead of tracing it: an op cannot be made in a trace.
setattr(_made, "_dynamo_marked_constant", True)  # noqa: B010


class BCEWithLogitsLoss(torch.nn.BCEWithLogitsLoss):
    """A replacement of torch.nn.BCEWithLogitsLoss: kf.ops.bce_with_logits and its mean or sum.

    With weight or pos_weight PyTorch reduces the losses of the elements.
    """

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        only("BCEWithLogitsLoss", reduction=(self.reduction, "none", "mean", "sum"))

    def forward(self, input: Tensor, target: Tensor) -> Any:
        weight, positive = self.weight, self.pos_weight
        if weight is None and positive is None:
            return _by_reduction("bce_with_logits", self.reduction, input, target)
        if positive is None:
            loss = ops.bce_with_logits(input, target)
        else:
            function = _fused[_made("pos_weight")]
            loss = function(input, target, positive.to(input.dtype).expand(input.shape))
        loss = loss if weight is None else loss * weight.to(loss.dtype)
        return _reduced(loss, self.reduction, lambda: loss.numel())


def _by_reduction(op: str, reduction: str, *given: Tensor) -> Any:
    """Calls an elementwise loss, or the op of its mean or sum."""
    if reduction == "none":
        return getattr(ops, op)(*given)
    return getattr(ops, f"{op}_{reduction}")(*given, dim=None)


class KLDivLoss(torch.nn.KLDivLoss):
    """A replacement of torch.nn.KLDivLoss: kf.ops.kl_div and its mean or sum.

    With log_target PyTorch reduces the losses of the elements.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        only("KLDivLoss", reduction=(self.reduction, "none", "mean", "sum", "batchmean"))

    def forward(self, input: Tensor, target: Tensor) -> Any:
        batch = self.reduction == "batchmean"
        reduction = "sum" if batch else self.reduction
        if self.log_target:
            loss = _fused[_made("log_target")](input, target)
            found = _reduced(loss, reduction, lambda: loss.numel())
        else:
            found = _by_reduction("kl_div", reduction, input, target)
        return found / (input.shape[0] if input.dim() else 1) if batch else found


def _rows(x: Tensor) -> Tensor:
    """Moves the classes, PyTorch's second dimension, to the last one; a copy if they differ."""
    return x if x.dim() < 3 else x.movedim(1, -1)


def _weights_of(label: Tensor, weight: Tensor | None, ignored: int) -> Tensor:
    """Divisor of a mean: sum of the weights of all labels that are not ignored."""
    counts = label != ignored
    if weight is None:
        return counts.sum()
    return torch.where(counts, weight.take(torch.where(counts, label, 0).long()), 0).sum()


def _class_weights(weight: Tensor | None, x: Tensor) -> Tensor | None:
    """Class weights in the dtype of the loss: .half() of a model casts this buffer, too."""
    return None if weight is None else weight.to(wide(x))


def _reduced(loss: Tensor, reduction: str, count: Any) -> Tensor:
    return (
        loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.sum() / count()
    )


def _label_losses(
    x: Tensor, label: Tensor, weight: Tensor | None, ignored: int, smoothing: float
) -> Tensor:
    """Losses of class indices.

    Smoothed labels with class weights are in part those of a distribution, weight / classes.
    """
    if weight is None:
        return ops.cross_entropy(x, label, ignore_index=ignored, label_smoothing=smoothing)
    loss = ops.cross_entropy_weighted(x, label, weight, ignore_index=ignored)
    if not smoothing:
        return loss
    wide_x = x.to(wide(x))  # a 2-byte dtype would round the weights
    uniform = ops.cross_entropy_soft(wide_x, weight.expand(x.shape))
    uniform = torch.where(label == ignored, 0, uniform) / x.shape[-1]
    return (1 - smoothing) * loss + smoothing * uniform


def _distribution_losses(
    x: Tensor, target: Tensor, weight: Tensor | None, smoothing: float
) -> Tensor:
    """Losses of distributions over the classes."""
    if weight is not None or smoothing:  # a 2-byte dtype would round what becomes of the target
        x, target = x.to(wide(x)), target.to(wide(x))
    if smoothing:
        target = target * (1 - smoothing) + smoothing / x.shape[-1]
    return ops.cross_entropy_soft(x, target if weight is None else target * weight)


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """A replacement of torch.nn.CrossEntropyLoss.

    A distribution as target, and weight beside label_smoothing, cost a tensor of the input's shape.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        x, weight = _rows(input), _class_weights(self.weight, input)
        if target.is_floating_point():
            loss = _distribution_losses(x, _rows(target), weight, self.label_smoothing)
            return _reduced(loss, self.reduction, lambda: loss.numel())
        ignored = self.ignore_index
        loss = _label_losses(x, target, weight, ignored, self.label_smoothing)
        return _reduced(loss, self.reduction, lambda: _weights_of(target, weight, ignored))


class NLLLoss(torch.nn.NLLLoss):
    """A replacement of torch.nn.NLLLoss."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        weight = _class_weights(self.weight, input)
        loss = ops.nll(_rows(input), target, weight, ignore_index=self.ignore_index)
        return _reduced(
            loss, self.reduction, lambda: _weights_of(target, weight, self.ignore_index)
        )
