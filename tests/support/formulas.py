# SPDX-License-Identifier: Apache-2.0
"""Formulas for kf.fuse and kf.fuse_row, and operands for them."""

import torch

SHAPE = (5, 7)


def shape_of(operands):
    return (3, 4, 2) if "channel" in operands.values() else SHAPE


KINDS = {"elem": lambda s: s, "row": lambda s: s[-1:], "channel": lambda s: s[1:2], "per_row": lambda s: s[:-1]}
DTYPES = {"f32": (torch.float32, 2e-5), "f64": (torch.float64, 1e-11), "f16": (torch.float16, 4e-3), "bf16": (torch.bfloat16, 3e-2)}


def draw(operands, shape=SHAPE, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {n: torch.randn(KINDS[k if isinstance(k, str) else k["kind"]](shape), generator=rng, dtype=torch.float64).to(dtype).requires_grad_()
            for n, k in operands.items()}


EACH = [
    ("gelu(x + bias) * gate", {"x": "elem", "bias": "row", "gate": "elem"}, {}),
    ("silu(x) * y + mish(y) - leaky_relu(x, 0.3) + leaky_relu(y)", {"x": "elem", "y": "elem"}, {}),
    ("t = exp(-abs(x)); where(x > low and y < 1, t * y, softplus(x) - low)", {"x": "elem", "y": "elem"}, {"low": -0.25}),
    ("elu(x * w) + c", {"x": "elem", "w": "channel", "c": "channel"}, {})]
ROWS = [
    ("x * rsqrt(mean(x * x) + eps) * (1 + w)", {"x": "elem", "w": "row"}, {"eps": 1e-6}),
    ("e = exp(x - max(x)); silu(e / sum(e)) * s", {"x": "elem", "s": "per_row"}, {}),
    ("sum(gelu(x) * y)", {"x": "elem", "y": "elem"}, {})]


def made(kf, text, operands, scalars):
    return (kf.fuse_row if (text, operands, scalars) in ROWS else kf.fuse)(text, **operands, **scalars)
