# SPDX-License-Identifier: Apache-2.0
"""A layer and its loss, as a PyTorch user writes them, all logits at once; and Liger's kernels, which take some rows at a time."""

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
    """(a call, names of its results): the gradients of the sum."""
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
# Gradients of 2 bytes are rounded after each chunk of rows: of a word that is a label, terms of about 1 that may cancel.
LIMIT = dict.fromkeys(FORWARD, lambda sizes: 0.05)
ROWS_DIFFER = True  # a word that is a label has a gradient a thousand times as large as others'


def EACH(sizes):  # noqa: N802 (of a row the numbers that are there)
    return sizes[1]
