# SPDX-License-Identifier: Apache-2.0
"""The oracle's scores and visible keys of each op, and operands for them."""

import numpy as np
from launcher import Call, close, visible


def diagonal(case):
    return visible(case, last=lambda i: i + case.total("keys") - case.total("queries"))


def modified(name, case):
    """Returns (operands, score of the products, visible keys, options of the oracle) of an op."""
    rng = np.random.default_rng(5)
    shape = case.batch, case.heads, case.queries, case.keys
    shift = case.total("keys") - case.total("queries")
    i = np.arange(case.queries)[:, None] + case.shard.get("query_base", 0)
    j = np.arange(case.keys)[None] + case.shard.get("key_base", 0)
    scaled, more = (lambda s: s * case.scalars["scale"]), {}
    see = diagonal(case) if "causal" in name else None
    if "window" in name:
        left = case.scalars["left"]
        right = 0 if "sink" in name else case.scalars["right"]
        see = visible(case, lambda i: i + shift - left, lambda i: i + shift + right)
    if name == "bias_attention":
        more["bias"] = rng.standard_normal(shape) * 2
        more["bias"][..., 3::7] = -np.inf
        return more, lambda s: scaled(s) + more["bias"], see, {}
    if name == "mask_attention":
        more["mask"] = (rng.random(shape) < 0.6).astype(np.uint8)
        more["mask"][..., :2, :] = 0  # queries that see no key
        return more, lambda s: np.where(more["mask"], scaled(s), -np.inf), see, {}
    if name == "alibi_causal_attention":
        more["slope"] = 0.5 ** np.arange(case.heads)
        slope = more["slope"][:, None, None]
        return more, lambda s: scaled(s) - slope * (i + shift - j), see, {}
    if name == "softcap_causal_attention":
        cap = case.scalars["softcap"]
        return more, lambda s: cap * np.tanh(scaled(s) / cap), see, {}
    if name == "sink_window_attention":
        more["sink"] = np.resize([0.0, 3.0, -20.0, 60.0], case.heads)
        return more, scaled, see, {"sink": more["sink"]}
    return more, scaled, see, {}


def check(lib, memory, f, case):
    """Compares a call of any op with the oracle."""
    case.more, score, see, options = modified(f["op"].removesuffix("_dropout"), case)
    return Call(f, case).check(lib, memory, score, see, **options)


def check_hidden_values(lib, memory, f, case, tolerance):
    """Compares a call whose v has NaN and infinities at keys that some queries do not see."""
    see = diagonal(case)
    masks = "mask" in f["op"]
    if masks:
        case.more = {"mask": np.broadcast_to(see, (1, 1, *see.shape)).astype(np.uint8)}
    call, scale = Call(f, case), case.scalars["scale"]
    last = case.keys - 10
    call.values["v"][0, 0, case.keys - case.queries + 3 : last : 3] = np.nan
    call.values["v"][0, 0, last::3] = np.inf
    scaled = (lambda s: np.where(see, s * scale, -np.inf)) if masks else lambda s: s * scale
    got = call.run(lib, memory)["out"]
    want = call.expected(scaled, see)["out"]
    assert np.isnan(want).any() and np.isfinite(want).any()
    assert np.array_equal(np.isnan(got), np.isnan(want)), (f["name"], case)
    seen = ~np.isnan(want)
    close((f["name"], case), got[seen], want[seen], tolerance[f["dtypes"][0]])
