# SPDX-License-Identifier: Apache-2.0
"""Lion, which torch.optim lacks, with the arguments and the state of its Adam."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kernel_fusion.optim import _rules
from kernel_fusion.optim._own import Own
from kernel_fusion.optim._rules import Group, Rule


class Lion(Own):
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
        super().__init__(
            params,
            {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay},
            {
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
                "fused": fused,
            },
        )

    def rule(self, group: Group) -> Rule:
        return _rules.LION
