# SPDX-License-Identifier: Apache-2.0
"""A linear layer and its loss: PyTorch with all logits, Liger by chunks of rows."""

import torch
import torch.nn.functional as F


def _loss(t, s):
    logits = F.linear(t["x"], t["weight"], t.get("bias"))
    logits = logits if logits.dtype == torch.float64 else logits.float()
    options = {
        "ignore_index": int(s["ignore_index"]),
        "label_smoothing": s["label_smoothing"],
        "reduction": "none",
    }
    loss = F.cross_entropy(logits, t["label"].long(), **options)
    return (
        loss
        + s["z_loss"] * torch.logsumexp(logits, -1).square() * (t["label"] != s["ignore_index"])
        if s["z_loss"]
        else loss
    )


def liger(case, data):
    """(a call, names of its results): gradients of the summed loss."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    s = case.scalars

    def call(i):
        leaves = [data[i][0][n].detach().requires_grad_() for n in ("x", "weight", "bias")]
        given = (
            leaves[0],
            leaves[1],
            data[i][0]["label"],
            leaves[2],
            None,
            int(s["ignore_index"]),
            s["z_loss"],
            s["label_smoothing"],
            "sum",
        )
        found = LigerFusedLinearCrossEntropyFunction.apply(*given)
        return torch.autograd.grad(found[0] if isinstance(found, tuple) else found, leaves)

    return call, ["dx", "dweight", "dbias"]


FORWARD = {
    "linear_cross_entropy": lambda act, t, s, drop: _loss(t, s),
    "linear_cross_entropy_with_grad": lambda act, t, s, drop: _loss(t, s),
}
ONE_PASS = {"linear_cross_entropy_with_grad": ("x", "weight", "bias")}
DRAW = dict.fromkeys(FORWARD, {"label": "words", "weight": "small", "bias": "small"})
# 2-byte gradients are rounded after each chunk of rows; for a token that is a label, terms of about
# 1 may cancel.
LIMIT = dict.fromkeys(FORWARD, lambda sizes: 0.05)
ROWS_DIFFER = True  # gradients of label tokens are a thousand times larger than others


def EACH(sizes):  # noqa: N802 (elements per row)
    return sizes[1]
