# SPDX-License-Identifier: Apache-2.0
"""Optimizers in PyTorch, which timed_lists.py times beside kf's."""

import torch

# {op: (state in kf's order, PyTorch's optimizer)}. Its keys are the ops of the bench.
OPTIMIZERS = {
    "adamw": (("exp_avg", "exp_avg_sq"), torch.optim.AdamW),
    "adam": (("exp_avg", "exp_avg_sq"), torch.optim.Adam),
    "sgd_momentum": (("momentum_buffer",), lambda p, **k: torch.optim.SGD(p, momentum=0.9, **k)),
}
# Ops of lists are not cases of bench.py, whose tensors have one size each.
FORWARD = {}


def fused(op, params, grads):
    """Returns a step of PyTorch's fused optimizer over these tensors, as a function."""
    made = OPTIMIZERS[op][1]([torch.nn.Parameter(p) for p in params], lr=1e-3, fused=True)
    for p, g in zip(made.param_groups[0]["params"], grads):
        p.grad = g.to(p.dtype)
    return made.step
