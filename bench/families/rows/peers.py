# SPDX-License-Identifier: Apache-2.0
"""Ops over rows as a PyTorch user writes them, on tensors with kf's shapes."""

import torch
import torch.nn.functional as F

BATCH = 32  # batch of batch norm in NHWC, which has many positions


def _layer_norm(t, s, x):
    """PyTorch accepts only weights of x's dtype: computes in that of the weights, like its
    autocast.
    """
    return F.layer_norm(x.to(t["weight"].dtype), x.shape[-1:], t["weight"], t["bias"], s["eps"]).to(
        x.dtype
    )


def _rms_norm(t, s, x):
    return F.rms_norm(x, x.shape[-1:], t["weight"], s["eps"])


def _group_norm(t, s):
    """x: [outer, length, channels, inner]. PyTorch's [outer, channels, length, inner] is a strided
    view of NHWC.
    """
    y = F.group_norm(t["x"].permute(0, 2, 1, 3), s["groups"], t["weight"], t["bias"], s["eps"])
    return y.permute(0, 2, 1, 3)


def _batch_norm(t, s):
    """x: [outer, channels, inner]; with inner = 1 in PyTorch's channels-last layout."""
    x, nhwc = t["x"], t["x"].shape[2] == 1
    if nhwc:
        batch = BATCH if len(x) % BATCH == 0 else 1
        x = x.reshape(batch, -1, 1, x.shape[1]).permute(0, 3, 1, 2)
    y = F.batch_norm(x, None, None, t["weight"], t["bias"], True, 0.1, s["eps"])
    return (y.permute(0, 2, 3, 1) if nhwc else y).reshape(t["x"].shape)


def _after_sum(norm):
    def forward(act, t, s, drop):
        total = t["x"] + t["residual"]
        return act(norm(t, s, total)), total

    return forward


def _causal(x):
    queries, keys = x.shape[-2:]
    seen = torch.arange(keys, device=x.device)[None] <= torch.arange(queries, device=x.device)[
        :, None
    ] + (keys - queries)
    return x.masked_fill(~seen, -torch.inf)


def _scores(t, s):
    return F.softmax(t["x"] * s["scale"] + t["mask"][:, None], -1)


def _cross_entropy(t, s, weight=None):
    weight = (
        None if weight is None else weight.to(t["x"].dtype)
    )  # kf's losses are float32 for 2-byte logits
    return F.cross_entropy(
        t["x"],
        t["label"],
        weight,
        reduction="none",
        ignore_index=int(s["ignore_index"]),
        label_smoothing=s.get("label_smoothing", 0.0),
    )


FORWARD = {
    "softmax": lambda act, t, s, drop: F.softmax(t["x"], -1),
    "log_softmax": lambda act, t, s, drop: F.log_softmax(t["x"], -1),
    "layer_norm_{act}": lambda act, t, s, drop: act(_layer_norm(t, s, t["x"])),
    "layer_norm_{act}_dropout": lambda act, t, s, drop: drop(act(_layer_norm(t, s, t["x"]))),
    "rms_norm_{act}": lambda act, t, s, drop: act(_rms_norm(t, s, t["x"])),
    "add_layer_norm_{act}": _after_sum(_layer_norm),
    "add_rms_norm_{act}": _after_sum(_rms_norm),
    "gemma_rms_norm": lambda act, t, s, drop: F.rms_norm(
        t["x"], t["x"].shape[-1:], 1 + t["weight"], s["eps"]
    ),
    "l2_normalize": lambda act, t, s, drop: F.normalize(t["x"], dim=-1, eps=s["eps"]),
    "instance_norm_{act}": lambda act, t, s, drop: act(
        F.instance_norm(t["x"], weight=t["weight"], bias=t["bias"], eps=s["eps"])
    ),
    "group_norm_{act}": lambda act, t, s, drop: act(_group_norm(t, s)),
    "batch_norm_train_{act}": lambda act, t, s, drop: act(_batch_norm(t, s)),
    "scale_mask_softmax": lambda act, t, s, drop: _scores(t, s),
    "scale_bool_mask_softmax": lambda act, t, s, drop: F.softmax(
        (t["x"] * s["scale"]).masked_fill(~t["mask"][:, None], -torch.inf), -1
    ),
    "scale_causal_softmax": lambda act, t, s, drop: F.softmax(_causal(t["x"] * s["scale"]), -1),
    "scale_mask_softmax_dropout": lambda act, t, s, drop: drop(_scores(t, s)),
    "cross_entropy": lambda act, t, s, drop: _cross_entropy(t, s),
    "cross_entropy_with_grad": lambda act, t, s, drop: _cross_entropy(t, s),
    "cross_entropy_weighted": lambda act, t, s, drop: _cross_entropy(t, s, t["weight"]),
    "cross_entropy_soft": lambda act, t, s, drop: F.cross_entropy(
        t["x"], t["target"], reduction="none"
    ),
    "nll": lambda act, t, s, drop: F.nll_loss(
        t["x"], t["label"], reduction="none", ignore_index=int(s["ignore_index"])
    ),
}
ONE_PASS = {"cross_entropy_with_grad": ("x",)}  # the loss and its gradient dx


def _softmax_gradient(t, s):
    return {
        "dx": t["out"]
        * (t["dout"] - (t["dout"] * t["out"]).sum(-1, keepdim=True))
        * s.get("scale", 1.0)
    }


GRADIENT = dict.fromkeys(
    ("softmax", "scale_mask_softmax", "scale_bool_mask_softmax", "scale_causal_softmax"),
    _softmax_gradient,
)
GRADIENT["log_softmax"] = lambda t, s: {
    "dx": t["dout"] - t["out"].exp() * t["dout"].sum(-1, keepdim=True)
}

LABELS = {"label": "labels"}
DRAW = dict.fromkeys(("cross_entropy", "cross_entropy_with_grad", "nll"), LABELS) | {
    "cross_entropy_weighted": LABELS | {"weight": "uniform"},
    "cross_entropy_soft": {"target": "distribution"},
    "scale_mask_softmax": {"mask": "mask"},
    "scale_mask_softmax_dropout": {"mask": "mask"},
    "scale_bool_mask_softmax": {"mask": "seen"},
}
