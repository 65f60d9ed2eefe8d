# SPDX-License-Identifier: Apache-2.0
"""Lion, which torch.optim lacks, with the arguments and the state of its Adam."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kernel_fusion.optim import _rules
from kernel_fusion.optim._rules import Group, Rule
from kernel_fusion.optim._step import Stepped


class Lion(Stepped):
    """Lion: the sign of a moving average of the gradients, with decoupled weight decay.

    Chen et al. 2023, arXiv:2302.06675. Takes a third to a tenth of AdamW's learning rate.

    Args:
        params: parameters, or groups of parameters
        lr: learning rate, a number or a tensor of one number
        betas: weights of the past in the update and in the moving average
        weight_decay: decoupled weight decay
        maximize: ascends
        foreach: accepted; a step always updates all parameters together
        capturable: a CUDA graph may capture steps
        differentiable: only False
        fused: GradScaler leaves scaling and skipping to the kernels
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: Sequence[float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ):
        self._check_values(lr, betas, weight_decay)
        if fused and foreach:
            raise ValueError(f"{self.where}: fused and foreach are True, expected one of them")
        given = {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay}
        given |= {"maximize": maximize, "capturable": capturable, "differentiable": differentiable}
        super().__init__(params, given | {"foreach": foreach, "fused": fused})

    def _check_values(self, lr: Any, betas: Sequence[float], weight_decay: float) -> None:
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError(
                f"{self.where}: lr has the shape {tuple(lr.shape)}, expected one number"
            )
        for name, x in (("lr", lr), ("weight_decay", weight_decay)):
            if not x >= 0:
                raise ValueError(f"{self.where}: {name} is {x}, expected at least 0")
        for i, x in enumerate(betas):
            if not 0 <= x < 1:
                raise ValueError(
                    f"{self.where}: betas[{i}] is {x}, expected at least 0 and below 1"
                )

    def rule(self, group: Group) -> Rule:
        return _rules.LION
