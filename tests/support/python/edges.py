# SPDX-License-Identifier: Apache-2.0
"""Edge values of tensors, and the few places where kf differs from PyTorch there by intent.

For tests that compare values and gradients with PyTorch's formulas in float64.
"""

import numpy as np
import pytorch

torch = pytorch.load()

KEPT = 1.25  # scale of what dropout keeps
NAN, INF = np.nan, np.inf
# Values that replace some elements, or one row, of a tensor.
SPECIAL = (
    (),
    (NAN,),
    (INF,),
    (-INF,),
    (NAN, INF, -INF),
    (0.0, -0.0),
    (1.0,),
    (-3.0, 3.0, 6.0, 0.0, -1.0, 1.25),
)
# Added to whole rows of logits: the largest are float64's masks, beside which scores are lost.
OFFSETS = (1e4, -1e9, 1e17, -1.7e308)
OFFSET_OPS = ("softmax", "cross_entropy", "logsumexp")
# Activations whose gradient at NaN differs between PyTorch's scalar and vector code, or is 0 there.
# kf's is NaN or the incoming gradient, never 0. PyTorch's of |x| is 0; kf's is NaN.
AT_NAN = {"relu6", "hardtanh", "elu", "selu", "hardswish", "hardsigmoid"}
NOT_0_AT_NAN = {"clamp"}  # ops of which the same holds
OF_ABS = {"abs", "l1", "l1_mean", "l1_sum", "mean_abs"}
TOLERANCE = {"hardsigmoid": 1e-7}  # PyTorch's 1/6 is a float32
SCALARS = {"clamp": {"min_val": -3.0, "max_val": 3.0}}  # whose defaults bound nothing


def _logsumexp(x):
    """PyTorch's gradient, exp(x - logsumexp), forgets the sum beside a large offset."""
    top = x.detach().amax(1, keepdim=True) if x.numel() else x[:, :1]
    top = torch.where(top.isfinite(), top, 0.0)
    return [(x - top).exp().sum(1).log() + top.squeeze(1)]


FORMULAS = {  # instead of the benchmarks'
    "logsumexp": lambda t: _logsumexp(t["x"]),
    "nll": lambda t: [
        torch.nn.functional.nll_loss(t["x"], t["label"], t["weight"], reduction="none")
    ],
}
# Ops that PyTorch refuses for empty tensors.
FULL = ("amax", "amin", "argmax", "argmin", "instance_norm_{act}", "batch_norm_train_{act}")


def has_offset(pattern, number):
    """True if rows of this draw get an offset."""
    return any(word in pattern for word in OFFSET_OPS) and number % 3 == 2


def values(pattern, kind, rng, number):
    """Returns the special values of a tensor of this draw."""
    found = SPECIAL[number % len(SPECIAL)] if rng.random() < 0.7 else ()
    if pattern.startswith("bce"):  # PyTorch's loss of -inf is NaN, kf's inf * target
        found = [v for v in found if v != -INF]
    if kind not in ("elem", "half", "shared"):  # inf * 0: the order of products matters
        found = [v for v in found if np.isnan(v) or np.isfinite(v)]
    return found


def make_special(x, rng, values, axis):
    """Replaces elements or whole rows of x by values.

    Args:
        axis: the axis along which an offset is common; None: no offset
    """
    if len(values):
        where = rng.random(x.shape) < 0.3
        if rng.random() < 0.3:
            where[..., :] = rng.random((*x.shape[:-1], 1)) < 0.5
        x[where] = rng.choice(values, where.sum())
    if axis is not None and x.ndim > 1:
        of_rows = np.expand_dims(np.take(x, 0, axis), axis).shape
        x += rng.choice(OFFSETS, of_rows)


def expected(call, got, want, given, gradient):
    """Replaces what PyTorch computes in another way by intent.

    Args:
        call: has the pattern, activation, form and scalars of the op
        given: arrays of the inputs, in kf's shapes
    """
    at_nan = call.activation in AT_NAN or call.pattern in NOT_0_AT_NAN
    if gradient and (call.pattern in OF_ABS or at_nan):
        with np.errstate(invalid="ignore"):
            x = given["x"] - given.get("target", 0.0)
        known = (got != 0) if at_nan else np.isnan(got)
        want = np.where(np.isnan(x) & known, got, want)
    return _of_scores(call, got, want, given) if call.form == "heads" else want


def _of_scores(call, got, want, given):
    """Queries that see nothing: 0. A hidden key beside NaN: NaN."""
    score = given["x"] * call.scalars["scale"]
    mask = given.get("mask")
    if "causal" in call.pattern:
        queries, keys = score.shape[-2:]
        seen = np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries)
        score = np.where(seen, score, -INF)
    if mask is not None and mask.dtype == np.uint8:
        score = np.where(mask[:, None] == 0, -INF, score)
    elif mask is not None:
        with np.errstate(over="ignore"):
            score = score + mask[:, None]
    hidden = (score == -INF).all(-1, keepdims=True)
    want = np.where(hidden, 0.0, want)
    return np.where(np.isnan(got) & np.isnan(want).any(-1, keepdims=True), np.nan, want)


def differs(got, want, tolerance):
    """Returns the first places that differ."""
    got, want = np.asarray(got, float), np.asarray(want, float)
    assert got.shape == want.shape
    with np.errstate(all="ignore"):
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        same |= np.abs(got - want) <= tolerance * np.maximum(1.0, np.abs(want))
    return np.argwhere(~same)[:3].tolist()
