# SPDX-License-Identifier: Apache-2.0
"""Attention's formulas in PyTorch, the float64 references of values and gradients of kf.ops in
tests/support/python/torchops.py."""

import math

import block_lists
import numpy as np


def formula(of_score=lambda score, t, s: score, before=None, behind=None, dropout=False):
    """Returns attention in PyTorch's plain operations: values of pairs that the softmax or dropout
    leaves out reach neither a result nor a gradient (tests/support/python/torchops.py).

    Args:
        of_score: the score as a function of the scaled product, the tensors and the scalars. Among
            these, `distance` is the position of a key minus that of the query's own key.
        before, behind: the largest distance of a key in each direction: a number, the name of a
            scalar, or None.
        dropout: True if `drop` of the scalars drops weights.
    """

    def found(t, s):
        import torch

        q, k, v = (t[name].transpose(1, 2) for name in "qkv")
        k, v = (x.repeat_interleave(q.shape[1] // max(x.shape[1], 1), 1) for x in (k, v))
        queries, keys = q.shape[2], k.shape[2]
        distance = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
        seen = torch.ones(distance.shape, dtype=bool)
        if before is not None:
            seen &= distance >= -s.get(before, before)
        if behind is not None:
            seen &= distance <= s.get(behind, behind)

        def scores(hidden):
            """0 * NaN is NaN: hidden pairs are left out in front of each product."""
            pairs = (
                x.masked_fill(hidden[..., None], 0.0) for x in (q[:, :, :, None], k[:, :, None])
            )
            dot = math.prod(pairs).sum(-1)
            score = of_score(dot * s["scale"], t, s | {"distance": distance})
            return score.masked_fill(hidden, -torch.inf)

        hidden = ~seen.expand(*q.shape[:2], -1, -1)
        with torch.no_grad():
            hidden = scores(hidden) == -torch.inf
        score = scores(hidden)
        if "sink" in t:
            sink = t["sink"].reshape(-1, 1, 1).expand(*score.shape[:3], 1)
            score = torch.cat([score, sink.to(score.dtype)], 3)
        none = (score == -torch.inf).all(-1, keepdim=True)
        weight = score.masked_fill(none, 0.0).softmax(-1)[..., :keys]
        if dropout:
            hidden = hidden | (s["drop"](torch.ones_like(weight)) == 0)
            weight = s["drop"](weight)
        value = v[:, :, None].masked_fill(hidden[..., None], 0.0)
        return [(weight[..., None] * value).sum(3).transpose(1, 2)]

    return found


def packed_formula(of_sequence):
    """The same of packed sequences; rows of no sequence give 0."""
    scores = ("bias", "mask")  # [batch, heads, max_query, max_key]

    def found(t, s):
        bounds = [t[name].tolist() for name in ("query_offsets", "key_offsets")]
        none = sum(t[n][:0].sum() for n in "qkv")  # has gradients without any sequence
        out = t["q"].new_zeros(*t["q"].shape[:2], t["v"].shape[2]) + none
        for i, ((a, b), (c, d)) in enumerate(zip(*(zip(x, x[1:]) for x in bounds))):
            own = {"q": t["q"][a:b], "k": t["k"][c:d], "v": t["v"][c:d]}
            own |= {n: t[n][i, :, : b - a, : d - c] for n in scores if n in t}
            own = {n: x[None] for n, x in own.items()}
            own |= {n: t[n] for n in ("sink", "slope") if n in t}
            out[a:b] = of_sequence(own, s)[0][0]
        return [out]

    return found


def _softcap(score, t, s):
    return s["softcap"] * (score / s["softcap"]).tanh()


def _listed(score, t, s):
    """Scores of the keys in lists of blocks; others are hidden."""
    import torch

    lists = (t[kind].numpy() for kind in block_lists.KINDS)
    seen = block_lists.mask_of(*lists, *score.shape[2:])
    return score.masked_fill(torch.from_numpy(seen <= 0), -torch.inf)


# {op: arguments of its formula}
DENSE = {
    "attention": {},
    "causal_attention": {"behind": 0},
    "window_attention": {"before": "left", "behind": "right"},
    "softcap_causal_attention": {"of_score": _softcap, "behind": 0},
    "alibi_causal_attention": {
        "of_score": lambda score, t, s: score + t["slope"].reshape(-1, 1, 1) * s["distance"],
        "behind": 0,
    },
    "bias_attention": {"of_score": lambda score, t, s: score + t["bias"]},
    "mask_attention": {"of_score": lambda score, t, s: score.masked_fill(t["mask"] == 0, -np.inf)},
    "sink_window_attention": {"before": "left", "behind": 0},
}
REFERENCES = {op: formula(**more) for op, more in DENSE.items()}
REFERENCES |= {f"{op}_varlen": packed_formula(of) for op, of in REFERENCES.items()}
REFERENCES |= {
    f"{'full_attention' if op == 'attention' else op}_dropout": formula(**more, dropout=True)
    for op, more in DENSE.items()
}
REFERENCES["block_sparse_attention"] = formula(_listed)
