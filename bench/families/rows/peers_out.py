# SPDX-License-Identifier: Apache-2.0
"""PyTorch's functions over rows that write into given tensors, where they exist."""

import torch

aten = torch.ops.aten


def _layer_norm_into(x, t, s, out, kept):
    aten.native_layer_norm.out(
        x, x.shape[-1:], t["weight"], t["bias"], s["eps"], out0=out, out1=kept[0], out2=kept[1]
    )


def _kept(t):
    """Receives PyTorch's mean and rstd of rows."""
    return [torch.empty(len(t["x"]), 1, dtype=t["x"].dtype) for _ in range(2)]


def _layer_norm(t, o, s, p):
    kept = _kept(t)
    return lambda: _layer_norm_into(t["x"], t, s, o["out"], kept)


def _add_layer_norm(t, o, s, p):
    kept = _kept(t)

    def call():
        torch.add(t["x"], t["residual"], out=o["residual_out"])
        _layer_norm_into(o["residual_out"], t, s, o["out"], kept)

    return call


def _layer_norm_dropout(t, o, s, p):
    mask, kept, zero = torch.empty_like(t["x"]), _kept(t), t["x"].new_zeros(())

    def call():
        _layer_norm_into(t["x"], t, s, o["out"], kept)
        torch.addcmul(zero, mask.bernoulli_(1 - p), o["out"], value=1 / (1 - p), out=o["out"])

    return call


def _l2_normalize(t, o, s, p):
    norm = torch.empty(len(t["x"]), 1, dtype=t["x"].dtype)

    def call():
        torch.linalg.vector_norm(t["x"], dim=-1, keepdim=True, out=norm)
        torch.div(t["x"], norm.clamp_min_(s["eps"]), out=o["out"])

    return call


def _cross_entropy(t, o, s, p):
    logs = torch.empty_like(t["x"])
    loss, total = (torch.empty(n, dtype=logs.dtype) for n in ((len(logs),), ()))
    o["loss"] = loss  # PyTorch's loss has the logits' dtype

    def call():
        torch.log_softmax(t["x"], -1, out=logs)
        aten.nll_loss_forward.output(
            logs, t["label"], None, 0, int(s["ignore_index"]), output=loss, total_weight=total
        )

    return call


def _gradient(fn):
    return lambda t, o, s, p: lambda: fn(t["dout"], t["out"], -1, t["out"].dtype, o["dx"])


OUT = {
    ("softmax", False): lambda t, o, s, p: lambda: torch.softmax(t["x"], -1, out=o["out"]),
    ("log_softmax", False): lambda t, o, s, p: lambda: torch.log_softmax(t["x"], -1, out=o["out"]),
    ("softmax", True): _gradient(
        lambda d, y, dim, dtype, dx: aten._softmax_backward_data.out(
            d, y, dim, dtype, grad_input=dx
        )
    ),
    ("log_softmax", True): _gradient(
        lambda d, y, dim, dtype, dx: aten._log_softmax_backward_data.out(d, y, dim, dtype, out=dx)
    ),
    ("layer_norm_{act}", False): _layer_norm,
    ("add_layer_norm_{act}", False): _add_layer_norm,
    ("layer_norm_{act}_dropout", False): _layer_norm_dropout,
    ("l2_normalize", False): _l2_normalize,
    ("cross_entropy", False): _cross_entropy,
}
