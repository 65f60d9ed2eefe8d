# SPDX-License-Identifier: Apache-2.0
"""LAMB, which torch.optim lacks, with the arguments and the state of its Adam."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kernel_fusion.optim import _rules
from kernel_fusion.optim._own import Own
from kernel_fusion.optim._rules import Group, Rule


class LAMB(Own):
    """LAMB: Adam's update plus the weight decay, scaled to the norm of its parameter.

    You et al. 2020, arXiv:1904.00962. The trust ratio of a parameter is its norm over that of its
    update, or 1 where either is 0; a step subtracts lr * ratio * update.

    Args:
        params: parameters, or groups of parameters
        lr: learning rate, a number or a tensor of one number
        betas: weights of the past in the averages of the gradient and of its square
        eps: added to the root of the second average
        weight_decay: factor of the parameter in its update
        bias_correction: divides the averages by 1 - beta ** step
        trust_clip: limits trust ratios to 1
        max_trust: largest trust ratio; None: no limit
        maximize: ascends
        foreach: accepted; a step always updates all parameters together
        capturable: a CUDA graph may capture steps
        differentiable: only False
        fused: GradScaler leaves scaling and skipping to the kernels
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        bias_correction: bool = True,
        trust_clip: bool = False,
        max_trust: float | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ):
        if max_trust is not None and not max_trust > 0:
            raise ValueError(f"{self.where}: max_trust is {max_trust}, expected more than 0")
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": tuple(betas),
                "eps": eps,
                "weight_decay": weight_decay,
                "bias_correction": bias_correction,
                "trust_clip": trust_clip,
                "max_trust": max_trust,
            },
            {
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
                "fused": fused,
            },
        )

    def rule(self, group: Group) -> Rule:
        return _rules.LAMB
