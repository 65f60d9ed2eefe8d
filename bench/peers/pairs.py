# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings, as a PyTorch user writes them."""

import torch


def _tables(t):
    return [t[name][t["position"]].unsqueeze(1) for name in ("cosine", "sine")]


def _halves(act, t, s, drop):
    (cosine, sine), pairs = _tables(t), t["cosine"].shape[1]
    a, b, rest = t["x"].split((pairs, pairs, t["x"].shape[2] - 2 * pairs), dim=2)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine, rest), dim=2).to(t["x"].dtype)


def _neighbours(act, t, s, drop):
    (cosine, sine), pairs = _tables(t), t["cosine"].shape[1]
    turned, rest = t["x"].split((2 * pairs, t["x"].shape[2] - 2 * pairs), dim=2)
    a, b = turned[..., 0::2], turned[..., 1::2]
    both = torch.stack((a * cosine - b * sine, b * cosine + a * sine), dim=3).flatten(2)
    return torch.cat((both, rest), dim=2).to(t["x"].dtype)


FORWARD = {"rope": _halves, "rope_interleaved": _neighbours}
DRAW = {op: {"position": "labels"} for op in FORWARD}
