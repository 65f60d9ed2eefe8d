# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings in PyTorch."""

import torch


def _tables(t):
    return [t[name][t["position"]].unsqueeze(1) for name in ("cosine", "sine")]


def _halves(t, x):
    (cosine, sine), pairs = _tables(t), t["cosine"].shape[1]
    a, b, rest = x.split((pairs, pairs, x.shape[2] - 2 * pairs), dim=2)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine, rest), dim=2).to(x.dtype)


def _neighbours(t, x):
    (cosine, sine), pairs = _tables(t), t["cosine"].shape[1]
    turned, rest = x.split((2 * pairs, x.shape[2] - 2 * pairs), dim=2)
    a, b = turned[..., 0::2], turned[..., 1::2]
    both = torch.stack((a * cosine - b * sine, b * cosine + a * sine), dim=3).flatten(2)
    return torch.cat((both, rest), dim=2).to(x.dtype)


def _one(turn):
    return lambda act, t, s, drop: turn(t, t["x"])


def _both(turn):
    return lambda act, t, s, drop: (turn(t, t["q"]), turn(t, t["k"]))


def _computed(turn):
    """Computes cosine and sine of float32 angles at each call, as modules do."""

    def fn(t, x):
        angle = t["position"].to(t["frequency"].dtype)[:, None] * t["frequency"]
        place = torch.arange(x.shape[0], device=x.device)
        return turn({"cosine": angle.cos(), "sine": angle.sin(), "position": place}, x)

    return fn


def _scaled(op):
    def fn(act, t, s, drop):
        scaled = {name: x * s["scale"] for name, x in t.items() if name in ("x", "q", "k")}
        return op(act, t | scaled, s, drop)

    return fn


FORWARD = {
    "rope": _one(_halves),
    "rope_interleaved": _one(_neighbours),
    "rope_qk": _both(_halves),
    "rope_interleaved_qk": _both(_neighbours),
}
FORWARD |= {
    "rope_computed": _scaled(_one(_computed(_halves))),
    "rope_interleaved_computed": _scaled(_one(_computed(_neighbours))),
    "rope_computed_qk": _scaled(_both(_computed(_halves))),
    "rope_interleaved_computed_qk": _scaled(_both(_computed(_neighbours))),
}
DRAW = {op: {"position": "labels"} for op in FORWARD}
