# SPDX-License-Identifier: Apache-2.0
"""Calls attention's backward with tensors in any layout, and compares the gradients with the oracle
in float64: softmax weights, and derivatives of the scores written by hand (`slope`)."""

import dataclasses

import launcher
import numpy as np
from kfgen.families.attention import reference
from scores import modified
from storage import from_float, to_float

SAVED = ("lse", "row_max", "log_sum")
GRADIENTS = {"dq": "q", "dk": "k", "dv": "v", "dout": "out"}
# Relative to the largest gradient: C rounds results once, tensor cores their factors, too.
TOLERANCE = {"bf16": 0.02, "f16": 0.003, "f32": 2e-5, "f64": 3e-13}


@dataclasses.dataclass
class Case(launcher.Case):
    dlse: bool = True
    skipped: tuple = ()  # gradients that are NULL
    factor: float = 1.0  # multiplies q
    hidden: tuple = ()  # keys whose k and v are NaN and infinite


def slope(name, case):
    """Returns the derivative of the scores by the products, a function of the products."""
    scale = case.scalars["scale"]
    if name == "softcap_causal_attention":
        cap = case.scalars["softcap"]
        return lambda s: scale / np.cosh(np.clip(s * scale / cap, -300, 300)) ** 2
    if name == "mask_attention":
        return lambda s: np.where(case.more["mask"], scale, 0.0)
    return lambda s: np.full(s.shape, scale)


def by_head(name, case):
    """Returns the derivative of the scores by the op's operand per head, or None."""
    if name != "alibi_causal_attention":
        return None
    i, j = np.arange(case.queries)[:, None], np.arange(case.keys)
    i, j = (x + case.shard.get(base, 0) for x, base in ((i, "query_base"), (j, "key_base")))
    return -(i + case.total("keys") - case.total("queries") - j)


class GradientCall(launcher.Call):
    def __init__(self, f, case):
        super().__init__(f, case)
        self.shapes |= {n: (case.batch, *self.shapes[of][1:]) for n, of in GRADIENTS.items()}
        rng = np.random.default_rng(case.seed + 1)
        self.values["q"] = self.rounded(self.values["q"] * case.factor)
        for keys in case.hidden:
            self.values["k"][:, :, keys, ::3] = np.nan
            self.values["v"][:, :, keys, 1::2] = np.inf
        self.values["dout"] = self.rounded(rng.standard_normal(self.shapes["out"]))
        self.real = np.float64 if self.dtype == "f64" else np.float32
        rows = self.shapes["out"][:3]
        self.dlse = rng.standard_normal(rows) if case.dlse else np.zeros(rows)
        self.dlse = self.dlse.astype(self.real).astype(np.float64)

    def forward(self, score, see, options):
        """Sets the results of the forward, as a call stores them."""
        with np.errstate(invalid="ignore"):
            found = self.expected(score, see, **options)
        self.values["out"] = self.rounded(found["out"])
        self.rows = {n: found[n].astype(self.real) for n in SAVED}

    def placed(self, arena):
        kept = self.case.saved
        self.case.saved = ()
        found = super().placed(arena)
        self.case.saved = kept
        found |= {n: arena.add(x) for n, x in self.rows.items()}
        found |= {n: None for n in SAVED[1:] if n not in kept}
        found["dlse"] = arena.add(self.dlse.astype(self.real)) if self.case.dlse else None
        for a in self.f["arguments"]:
            if a.get("kind") in ("score", "head") and a["role"] != "in":
                whole = (*self.shapes["out"][:3], self.case.keys)
                shape = whole if a["kind"] == "score" else whole[1:2]
                self.own = a["name"], a["dtype"], shape
                count = int(np.prod(shape))
                found[a["name"]] = arena.add(from_float(np.full(count, np.nan), a["dtype"]))
        return found | dict.fromkeys(self.case.skipped)

    def results(self, before, back, begin, bytes_):
        kept, found = np.ones(back.size, bool), {}
        if bytes_:
            kept[begin["workspace"] : begin["workspace"] + bytes_] = False
        kind = from_float(np.zeros(1), self.dtype).dtype
        for name in ("dq", "dk", "dv"):
            last, _ = self.layout(name)
            if begin[name] is None or not last:
                continue
            span = slice(begin[name], begin[name] + last * kind.itemsize)
            found[name] = to_float(self.view(back[span].copy().view(kind), name).copy(), self.dtype)
            own = np.zeros(last, kind)
            self.view(own, name)[...] = np.ones(1).astype(kind)
            kept[span] = np.repeat(own == 0, kind.itemsize)
        if hasattr(self, "own") and begin[self.own[0]] is not None:
            name, dtype, shape = self.own
            kind = from_float(np.zeros(1), dtype).dtype
            span = slice(begin[name], begin[name] + int(np.prod(shape)) * kind.itemsize)
            found[name] = to_float(back[span].copy().view(kind), dtype).reshape(shape)
            kept[span] = False
        assert (before[kept] == back[kept]).all(), "bytes outside the results were written"
        return found

    def wanted(self, score, see, derivative, options):
        """Returns {gradient: array}. Values of hidden keys do not matter. Sets `magnitude`, the
        largest sum of magnitudes in a gradient with one number per head.
        """
        finite = {n: np.nan_to_num(self.values[n], nan=0, posinf=0, neginf=0) for n in "kv"}
        finite = {n: np.repeat(x, self.case.batch // len(x), 0) for n, x in finite.items()}
        dots = reference.products(self.values["q"], finite["k"])
        options = self.mask() | options
        *found, ds = reference.backward(
            self.values["q"],
            finite["k"],
            finite["v"],
            self.values["dout"],
            derivative(dots),
            dlse=self.dlse,
            scores=score,
            out=self.values["out"],
            see=see,
            **options,
        )
        found = dict(zip(("dq", "dk", "dv", "dbias"), (*found, ds)))
        distance = by_head(self.f["op"].removesuffix("_dropout"), self.case)
        if distance is not None:
            found["dslope"] = (ds * distance).sum((0, 2, 3))
            self.magnitude = np.abs(ds * distance).sum((0, 2, 3)).max(initial=1)
        if "sink" in options:
            delta = (self.values["dout"] * self.values["out"]).sum(-1) - self.dlse
            given = options["sink"], score(dots), see
            found["dsink"] = reference.sink_gradient(*given, delta)
            self.magnitude = -reference.sink_gradient(*given, np.abs(delta)).min(initial=-1)
        return found


def check(lib, memory, f, case):
    """Compares a call of any op with the oracle; returns the gradients."""
    name = f["op"].removesuffix("_dropout")
    case.more, score, see, options = modified(name, case)
    call = GradientCall(f, case)
    if case.hidden:
        see = np.ones((case.queries, case.keys), bool) if see is None else see
        assert not any(see[:, keys].any() for keys in case.hidden)
    call.forward(score, see, options)
    got = call.run(lib, memory)
    want = call.wanted(score, see, slope(name, case), options)
    for gradient, value in got.items():
        limit = TOLERANCE[f["dtypes"][0]]
        assert np.isfinite(value).all(), (f["name"], case, gradient)
        launcher.close((f["name"], case, gradient), value, want[gradient], limit)
    return got
