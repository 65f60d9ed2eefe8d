# SPDX-License-Identifier: Apache-2.0
"""Loss modules.

Targets have the inputs' shape and dtype, or are class indices; nothing is broadcast. Sums over
rows are float32 for 2-byte inputs.
"""

from typing import Any

import torch
from torch import Tensor

from kernel_fusion import _dispatch, ops
from kernel_fusion.nn.activations import only
from kernel_fusion.nn.norms import wide

# Docstring of the losses that _elements makes; kfgen's reference page shows it too.
DOC = "A replacement of torch.nn.{name}: kf.ops.{op}, {op}_mean or {op}_sum, by reduction."


def _elements(
    name: str, op: str, scalars: tuple[str, ...] = (), absent: tuple[str, ...] = (), **fixed: Any
) -> Any:
    """Makes the class of an elementwise loss, whose mean and sum are ops of their own.

    Args:
        absent: tensor arguments of PyTorch that kf does not support.
    """
    functions = {
        "none": _dispatch.lookup(op),
        "mean": _dispatch.lookup(f"{op}_mean"),
        "sum": _dispatch.lookup(f"{op}_sum"),
    }
    base: Any = getattr(torch.nn, name)

    class Module(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            only(
                name,
                **{n: (getattr(self, n), value) for n, value in fixed.items()},
                **{n: (getattr(self, n), None) for n in absent},
                reduction=(self.reduction, *functions, *(("batchmean",) if op == "kl_div" else ())),
            )

        def forward(self, input: Tensor, target: Tensor) -> Any:
            given = {n: float(getattr(self, n)) for n in scalars}
            if self.reduction == "none":
                return functions["none"](input, target, **given)
            if self.reduction == "batchmean":
                return functions["sum"](input, target, dim=None, **given) / (
                    input.shape[0] if input.dim() else 1
                )
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


BCEWithLogitsLoss: type[torch.nn.BCEWithLogitsLoss] = _elements(
    "BCEWithLogitsLoss", "bce_with_logits", absent=("weight", "pos_weight")
)
KLDivLoss: type[torch.nn.KLDivLoss] = _elements("KLDivLoss", "kl_div", log_target=False)


def _rows(x: Tensor) -> Tensor:
    """Moves the classes, PyTorch's second dimension, to the last one; a copy if they differ."""
    return x if x.dim() < 3 else x.movedim(1, -1)


def _weights_of(label: Tensor, weight: Tensor | None, ignored: int) -> Tensor:
    """Divisor of a mean: sum of the weights of all labels that are not ignored."""
    counts = label != ignored
    if weight is None:
        return counts.sum()
    return torch.where(counts, weight[torch.where(counts, label, 0)], 0).sum()


def _class_weights(weight: Tensor | None, x: Tensor) -> Tensor | None:
    """Class weights in the dtype of the loss: .half() of a model casts this buffer, too."""
    return None if weight is None else weight.to(wide(x))


def _reduced(loss: Tensor, reduction: str, count: Any) -> Tensor:
    return (
        loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.sum() / count()
    )


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """A replacement of torch.nn.CrossEntropyLoss; does not combine weight with label_smoothing."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.weight is not None:
            only("CrossEntropyLoss with weight", label_smoothing=(self.label_smoothing, 0.0))

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        x, weight = _rows(input), _class_weights(self.weight, input)
        if target.is_floating_point():
            if self.weight is not None or self.label_smoothing:
                raise ValueError(
                    "kf.nn.CrossEntropyLoss: target is a distribution, expected class indices "
                    "beside weight or label_smoothing"
                )
            loss = ops.cross_entropy_soft(x, _rows(target))
            return _reduced(loss, self.reduction, lambda: loss.numel())
        if weight is None:
            loss = ops.cross_entropy(
                x, target, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing
            )
        else:
            loss = ops.cross_entropy_weighted(x, target, weight, ignore_index=self.ignore_index)
        return _reduced(
            loss, self.reduction, lambda: _weights_of(target, weight, self.ignore_index)
        )


class NLLLoss(torch.nn.NLLLoss):
    """A replacement of torch.nn.NLLLoss."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        weight = _class_weights(self.weight, input)
        loss = ops.nll(_rows(input), target, weight, ignore_index=self.ignore_index)
        return _reduced(
            loss, self.reduction, lambda: _weights_of(target, weight, self.ignore_index)
        )
