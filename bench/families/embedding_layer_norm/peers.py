# SPDX-License-Identifier: Apache-2.0
"""Embeddings of several tables, added up and normalised, as a PyTorch user writes them."""

import torch.nn.functional as F


def _embeddings(act, t, s, drop):
    x = F.embedding(
        t["index"], t["word"], padding_idx=s["padding_idx"] if s["padding_idx"] >= 0 else None
    )
    x = (
        x
        + F.embedding(t["type"], t["type_table"])
        + F.embedding(t["position"], t["position_table"])
    )
    return F.layer_norm(x, x.shape[-1:], t.get("weight"), t.get("bias"), s["eps"])


FORWARD = {"embedding_add_layer_norm": _embeddings}
