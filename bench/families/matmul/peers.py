# SPDX-License-Identifier: Apache-2.0
"""Linear layers and matrix products as a PyTorch user writes them."""

import torch


def _linear(t, x="x", weight="weight", bias="bias"):
    return (
        torch.baddbmm(t[bias].unsqueeze(1), t[x], t[weight].mT)
        if bias in t
        else torch.bmm(t[x], t[weight].mT)
    )


def _behind(t, x):
    """A linear layer applied to x."""
    return torch.baddbmm(t["bias"].unsqueeze(1), x, t["weight"].mT)


def _gated(act, both):
    gate, up = both.chunk(2, -1)
    return act(gate) * up


FORWARD = {
    "linear_{act}": lambda act, t, s, drop: act(_linear(t)),
    "linear_{act}_add": lambda act, t, s, drop: act(_linear(t)) + t["residual"],
    "linear_add_{act}": lambda act, t, s, drop: act(_linear(t) + t["residual"]),
    "linear_{act}_dropout": lambda act, t, s, drop: drop(act(_linear(t))),
    "linear_dropout_add": lambda act, t, s, drop: drop(_linear(t)) + t["residual"],
    "linear_{act}_mul": lambda act, t, s, drop: (
        act(_linear(t, "x", "gate_weight", "gate_bias")) * _linear(t, "x", "up_weight", "up_bias")
    ),
    "linear_{act}_glu": lambda act, t, s, drop: _gated(act, _linear(t)),
    "linear_nn_{act}": lambda act, t, s, drop: act(
        torch.baddbmm(t["bias"].unsqueeze(1), t["x"], t["weight"])
    ),
    "{act}_linear": lambda act, t, s, drop: _behind(t, act(t["x"] + t["shift"].unsqueeze(1))),
    "{act}_mul_linear": lambda act, t, s, drop: _behind(t, act(t["gate"]) * t["up"]),
    "matmul_nn": lambda act, t, s, drop: torch.bmm(t["a"], t["b"]) * s["alpha"],
    "matmul_nt": lambda act, t, s, drop: torch.bmm(t["a"], t["b"].mT) * s["alpha"],
    "matmul_tn": lambda act, t, s, drop: torch.bmm(t["a"].mT, t["b"]) * s["alpha"],
    "matmul_tt": lambda act, t, s, drop: torch.bmm(t["a"].mT, t["b"].mT) * s["alpha"],
}
