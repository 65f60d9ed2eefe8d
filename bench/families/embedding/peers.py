# SPDX-License-Identifier: Apache-2.0
"""Embeddings in PyTorch."""

import torch.nn.functional as F

FORWARD = {
    "embedding": lambda act, t, s, drop: (
        F.embedding(t["index"], t["weight"], padding_idx=s["padding_idx"]) * s["scale"]
    )
}
DRAW = {"embedding": {"index": "labels"}}
