# SPDX-License-Identifier: Apache-2.0
"""Reductions of [outer, axis, inner] over the axis in PyTorch."""

import torch
import torch.nn.functional as F

FORWARD = {
    "sum": lambda act, t, s, drop: t["x"].sum(1),
    "mean": lambda act, t, s, drop: t["x"].mean(1),
    "sum_squared": lambda act, t, s, drop: t["x"].square().sum(1),
    "mean_abs": lambda act, t, s, drop: t["x"].abs().mean(1),
    "amax": lambda act, t, s, drop: t["x"].amax(1),
    "amin": lambda act, t, s, drop: t["x"].amin(1),
    "argmax": lambda act, t, s, drop: t["x"].argmax(1),
    "argmin": lambda act, t, s, drop: t["x"].argmin(1),
    "prod": lambda act, t, s, drop: t["x"].prod(1),
    "l2_norm": lambda act, t, s, drop: torch.linalg.vector_norm(t["x"], dim=1),
    "logsumexp": lambda act, t, s, drop: t["x"].logsumexp(1),
    "var": lambda act, t, s, drop: t["x"].var(1, correction=s["correction"]),
    "std": lambda act, t, s, drop: t["x"].std(1, correction=s["correction"]),
    "any_nonfinite": lambda act, t, s, drop: (
        torch.logical_not(torch.isfinite(t["x"])).any(1).to(t["x"].dtype)
    ),
}


def _loss(loss, word, **scalars):
    def forward(act, t, s, drop):
        found = loss(
            t["x"], t["target"], reduction="none", **{name: s[key] for name, key in scalars.items()}
        )
        return getattr(found, word)(1)

    return forward


LOSSES = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "kl_div": F.kl_div,
}
FORWARD |= {
    f"{op}_{word}": _loss(loss, word) for op, loss in LOSSES.items() for word in ("mean", "sum")
}
FORWARD |= {f"huber_{word}": _loss(F.huber_loss, word, delta="delta") for word in ("mean", "sum")}
DRAW = {op: {"target": "uniform"} for op in FORWARD if "bce" in op or "kl_div" in op} | {
    "prod": {"x": "near_one"}
}
# Near 1 the roundings of a product's factors have the same sign.
LIMIT = {"prod": lambda sizes: 2.0**-27 * sizes[1]}
