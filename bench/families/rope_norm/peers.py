# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings after a root mean square norm of each head, as a PyTorch user writes them."""

import torch
from peers import rope


def _normed(x, weight, eps):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight


def _both(op):
    turn = rope.FORWARD[op]

    def fn(act, t, s, drop):
        given = t | {name: _normed(t[name], t[f"{name}_weight"], s["eps"]) for name in ("q", "k")}
        return tuple(found.to(t["q"].dtype) for found in turn(act, given, s, drop))

    return fn


FORWARD = {
    "rope_rms_norm_qk": _both("rope_qk"),
    "rope_interleaved_rms_norm_qk": _both("rope_interleaved_qk"),
}
DRAW = {op: {"position": "labels"} for op in FORWARD}
