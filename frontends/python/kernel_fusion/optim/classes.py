# SPDX-License-Identifier: Apache-2.0
"""Optimizers that torch.optim has, with its arguments, state and errors."""

import torch

from kernel_fusion.optim import _rules
from kernel_fusion.optim._rules import Group, Rule
from kernel_fusion.optim._step import Stepped


class SGD(Stepped, torch.optim.SGD):
    """Stochastic gradient descent with momentum, a replacement of torch.optim.SGD."""

    def rule(self, group: Group) -> Rule:
        return _rules.SGD[group["momentum"] != 0]


class Adam(Stepped, torch.optim.Adam):
    """Adam and AMSGrad, a replacement of torch.optim.Adam."""

    def rule(self, group: Group) -> Rule:
        return _rules.ADAM[group["amsgrad"], group.get("decoupled_weight_decay", False)]


class AdamW(Stepped, torch.optim.AdamW):
    """Adam and AMSGrad with decoupled weight decay, a replacement of torch.optim.AdamW."""

    def rule(self, group: Group) -> Rule:
        return _rules.ADAM[group["amsgrad"], True]


class NAdam(Stepped, torch.optim.NAdam):
    """Adam with Nesterov momentum, a replacement of torch.optim.NAdam."""

    def rule(self, group: Group) -> Rule:
        return _rules.NADAM[group["decoupled_weight_decay"] and group["weight_decay"] != 0]


class RAdam(Stepped, torch.optim.RAdam):
    """Adam with a rectified learning rate, a replacement of torch.optim.RAdam."""

    def rule(self, group: Group) -> Rule:
        return _rules.RADAM


class Adagrad(Stepped, torch.optim.Adagrad):
    """Adagrad, a replacement of torch.optim.Adagrad."""

    def rule(self, group: Group) -> Rule:
        return _rules.ADAGRAD


class RMSprop(Stepped, torch.optim.RMSprop):
    """RMSprop, also centered or with momentum, a replacement of torch.optim.RMSprop."""

    def rule(self, group: Group) -> Rule:
        return _rules.RMSPROP[group["centered"] or group["momentum"] > 0]
