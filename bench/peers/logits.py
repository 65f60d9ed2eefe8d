# SPDX-License-Identifier: Apache-2.0
"""A layer and its loss, as a PyTorch user writes them: all logits at once."""

import torch
import torch.nn.functional as F


def _loss(t, s):
    logits = F.linear(t["x"], t["weight"], t.get("bias"))
    lse = torch.logsumexp(logits.float(), -1)
    options = {"ignore_index": int(s["ignore_index"]), "label_smoothing": s["label_smoothing"], "reduction": "none"}
    return F.cross_entropy(logits.float(), t["label"].long(), **options) + s["z_loss"] * lse * lse * (t["label"] != s["ignore_index"])


FORWARD = {
    "linear_cross_entropy": lambda act, t, s, drop: _loss(t, s),
    "linear_cross_entropy_with_grad": lambda act, t, s, drop: _loss(t, s),
}
DRAW = dict.fromkeys(FORWARD, {"label": "labels"})
