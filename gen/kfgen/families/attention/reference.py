# SPDX-License-Identifier: Apache-2.0
"""Oracle of attention in float64: the whole matrix of scores, its softmax, one product. It shares
nothing with the kernels, which see a few keys at a time.

Tensors are [batch, heads, rows, dim]. A key head serves heads / kv_heads query heads.
"""

import numpy as np
import scipy.special as sp

from kfgen.families import reference as elements_reference
from kfgen.families.attention.scores import DSCORE, PRODUCTS
from kfgen.families.reference import Dual, Reference
from kfgen.language.emit import evaluate
from kfgen.language.primitives import COLUMN, COUNT, KEEP, QUERIES, QUERY


def window(queries, keys, shift, left=None, right=None):
    """[queries, keys]: query i sees keys i + shift - left to i + shift + right. None: unbounded.

    shift: keys - queries aligns the last query with the last key (bottom right), 0 the first ones
    (top left).
    """
    i, j = np.arange(queries)[:, None], np.arange(keys)[None]
    see = np.ones((queries, keys), bool)
    if left is not None:
        see &= j >= i + shift - min(left, 2**40)
    if right is not None:
        see &= j <= i + shift + min(right, 2**40)
    return see


def products(q, k):
    """q . k of each query and key, [batch, heads, queries, keys]."""
    group = q.shape[1] // max(k.shape[1], 1)
    return q @ np.repeat(k, group, 1).swapaxes(-1, -2)


def weights(scores, see=None, sink=None, keep=None, keep_scale=1.0):
    """Softmax of the scores, 0 at hidden keys. Returns (weights, row_max, log_sum).

    see: which keys are visible; a score of -inf hides a key as well. sink: [heads], a score that
    has no value. keep: which weights dropout keeps, times keep_scale.
    """
    s = scores if see is None else np.where(see, scores, -np.inf)
    most = s.max(-1, keepdims=True, initial=-np.inf)
    if sink is not None:
        sink = np.asarray(sink, np.float64)[:, None, None]
        most = np.maximum(most, sink)
    shift = np.where(np.isneginf(most), 0, most)
    with np.errstate(invalid="ignore"):
        p = np.exp(s - shift)
        total = p.sum(-1, keepdims=True)
        if sink is not None:
            total = total + np.exp(sink - shift)
        p = np.where(np.isneginf(s), 0, p / np.where(total == 0, 1, total))
    if keep is not None:
        p = np.where(keep, p * keep_scale, 0)
    with np.errstate(divide="ignore"):
        return p, most[..., 0], np.log(total[..., 0])


def add(p, v):
    """p . v. Keys of weight 0 contribute nothing, whatever their values."""
    group = p.shape[1] // max(v.shape[1], 1)
    v = np.repeat(v, group, 1)
    if np.isfinite(v).all():
        return p @ v
    out = np.zeros((*p.shape[:3], v.shape[-1]))
    with np.errstate(invalid="ignore"):
        for at in np.ndindex(p.shape[:3]):
            keys = np.flatnonzero(p[at] != 0)
            out[at] = p[at][keys] @ v[at[:2]][keys]
    return out


def forward(q, k, v, scores=None, **options):
    """Attention of q, k and v. Returns (out, lse, row_max, log_sum).

    scores: a function of the products; None: they are the scores. options: those of `weights`.
    """
    dots = products(q, k)
    p, most, log_sum = weights(dots if scores is None else scores(dots), **options)
    return add(p, v), most + log_sum, most, log_sum


def backward(q, k, v, dout, slope=1.0, dlse=None, scores=None, out=None, **options):
    """Gradients of `forward` by q, k and v, and by the scores: (dq, dk, dv, dscores).

    slope: derivative of the scores by the products, of their shape or a number. dlse: gradient of
    lse, which dropout does not see. out: the result of `forward` as it is stored; None: exact.
    """
    shared_heads, group = k.shape[1], q.shape[1] // max(k.shape[1], 1)
    keep = options.pop("keep", None)
    factor = 1.0 if keep is None else np.where(keep, options.pop("keep_scale", 1.0), 0.0)
    dots = products(q, k)
    p, _, _ = weights(dots if scores is None else scores(dots), **options)
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    dp = dout @ v.swapaxes(-1, -2) * factor
    delta = (p * dp if out is None else dout * out).sum(-1, keepdims=True)
    ds = p * (dp - delta)
    if dlse is not None:
        ds = ds + p * dlse[..., None]
    ddots = ds * slope

    def shared(x):
        return x.reshape(x.shape[0], shared_heads, group, *x.shape[2:]).sum(2)

    dk = shared(ddots.swapaxes(-1, -2) @ q)
    dv = shared((p * factor).swapaxes(-1, -2) @ dout)
    return ddots @ k, dk, dv, ds


def sink_gradient(sink, scores, see, delta):
    """Gradient of the sink [heads]: a score without a value. delta: dout . out, less dlse."""
    _, most, log_sum = weights(scores, see, sink)
    sink = np.asarray(sink)[:, None]
    with np.errstate(invalid="ignore"):
        p = np.where(np.isneginf(sink), 0.0, np.exp(sink - most - log_sum))
    return -np.where(p == 0, 0.0, p * delta).sum((0, 2))


def differentiated(op, names, wanted):
    """Evaluates the score of an entry's `ref`.

    Args:
        names: values of `dot`, positions, operands and scalars.
        wanted: names by which the scores are differentiated.

    Returns:
        (scores, {name: derivative of the scores}, sink or None)
    """
    kept = {}

    def softmax(scores, sink=None):
        kept.update(scores=scores, sink=sink)
        return 1.0

    value = next(o.name for o in op.operands if o.kind == "value")
    duals = {n: Dual(names[n], {n: np.ones_like(names[n])}) for n in wanted}
    own = {value: 1.0, "softmax": softmax, "dropout": lambda p: p}
    elements_reference._eval(op.refs["out"], names | duals | own)
    scores, sink = kept["scores"], kept["sink"]
    shape = np.shape(names["dot"])
    found = {n: np.broadcast_to(scores.tangents.get(n, 0.0), shape) for n in wanted}
    return scores.value, found, None if sink is None else np.reshape(sink, -1)


class _Values:
    """V as the right factor of `softmax(score) * v` in a reference."""

    __array_ufunc__ = None

    def __init__(self, v):
        self.v = v

    def __rmul__(self, p):
        return add(p, self.v)


class AttentionReference(Reference):
    """For `kfgen check`: the score of the kernel, online over single keys, against `ref`."""

    pointwise = single = False
    BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM, DIM_V = 2, 4, 2, 5, 7, 6, 6
    QUERY_BASE, KEY_BASE = 3, 2  # a shard's; the whole has the totals
    QUERIES_TOTAL, KEYS_TOTAL = 9, 10

    def __init__(self, family, op, act):
        super().__init__(family, op, act)
        scores = (self.BATCH, self.HEADS, self.QUERIES, self.KEYS)
        self.shapes = {
            "query": (*scores[:3], self.DIM),
            "key": (self.BATCH, self.KV_HEADS, self.KEYS, self.DIM),
            "value": (self.BATCH, self.KV_HEADS, self.KEYS, self.DIM_V),
            "score": scores,
            "head": (1, self.HEADS, 1, 1),
        }
        self.kinds = {o.kind: o.name for o in op.operands}
        self.elements, self.result = scores, (*scores[:3], self.DIM_V)

    def inputs(self, rng):
        found = {}
        for o in self.op.operands:
            if o.dtype in ("I", "i32"):  # one sequence's expressions, of all blocks of keys
                continue
            x = rng.standard_normal(self.shapes[o.kind])
            found[o.name] = (x > -0.5).astype(np.float64) if o.dtype == "u8" else x
        return found

    def points(self, inputs, want):
        index = np.arange(want.size).reshape(want.shape)
        return {"index": index, self.kinds["query"]: inputs[self.kinds["query"]]}

    def _positions(self):
        """Names that a score may read beside its operands: indices in the whole tensors."""
        return self.scalars | {
            QUERY: np.arange(self.QUERIES).reshape(1, 1, -1, 1) + self.QUERY_BASE,
            COLUMN: np.arange(self.KEYS).reshape(1, 1, 1, -1) + self.KEY_BASE,
            "head": np.arange(self.HEADS).reshape(1, -1, 1, 1),
            QUERIES: self.QUERIES_TOTAL,
            COUNT: self.KEYS_TOTAL,
        }

    def _visible(self, names):
        """Whether a query sees a key, by the entry's `first` and `last`."""
        see = np.ones(self.elements, bool)
        for field, compare in (("first", np.greater_equal), ("last", np.less_equal)):
            if bound := self.op.own[field]:
                see &= compare(names[COLUMN], elements_reference._eval(bound.text, names))
        return see

    def values(self, inputs, mask):
        q, k, v = (self.kinds[kind] for kind in PRODUCTS)
        names = self._positions() | inputs
        see = self._visible(names)

        def softmax(scores, sink=None):
            sink = None if sink is None else np.reshape(sink, -1)
            return weights(np.broadcast_to(scores, self.elements), see, sink)[0]

        names |= {
            "dot": products(inputs[q], inputs[k]),
            v: _Values(inputs[v]),
            "softmax": softmax,
            "dropout": lambda p: np.where(mask[KEEP], p * mask["keep_scale"], 0.0),
        }
        return {n: elements_reference._eval(text, names) for n, text in self.op.refs.items()}

    def gradients(self, inputs, douts, mask):
        q, k, v = (inputs[self.kinds[kind]] for kind in PRODUCTS)
        names = self._positions() | inputs | {"dot": products(q, k)}
        kernel = self.kernel(True)
        wanted = [s.of for _, s in kernel.tensor_gradients]
        scores, slope, sink = differentiated(self.op, names, ["dot", *wanted])
        options = {"see": self._visible(names), "sink": sink}
        if self.op.dropout:
            options |= {"keep": mask[KEEP], "keep_scale": mask["keep_scale"]}
        with np.errstate(invalid="ignore"):
            *found, ds = backward(
                q, k, v, douts["out"], slope["dot"], scores=lambda _: scores, **options
            )
        found = dict(zip((self.kinds[kind] for kind in PRODUCTS), found))
        found |= self._by_head(kernel, {name: ds * slope[name] for name in wanted})
        if kernel.sink_gradient:
            kept = options.get("keep", 1.0) * options.get("keep_scale", 1.0)
            scores = np.broadcast_to(scores, self.elements)
            p, _, _ = weights(scores, options["see"], sink)
            out = add(p * kept, v)
            delta = (douts["out"] * out).sum(-1)
            of_sink = sink_gradient(sink, scores, options["see"], delta)
            found[kernel.sink.name] = of_sink.reshape(self.shapes["head"])
        return {o.name: found[o.name] for o in self.op.operands if o.grad}

    def _by_head(self, kernel, found):
        """Sums gradients of operands with a number per head."""
        by_head = {s.of for _, s in kernel.head_gradients}
        return {
            name: x.sum((0, 2, 3), keepdims=True) if name in by_head else x
            for name, x in found.items()
        }

    def results(self, bwd, env, single=False, by=False):
        return self._gradients(env) if bwd else self._forward(env)

    def _gradients(self, env):
        """The kernel's own score and its derivatives."""
        k, group = self.kernel(True), self.HEADS // self.KV_HEADS
        q, key, v = (env[self.kinds[kind]] for kind in PRODUCTS)
        key, v = (np.repeat(x, group, 1) for x in (key, v))
        names = self._positions() | env | {"dot": np.einsum("bhqd,bhkd->bhqk", q, key)}
        seen, sink = self._visible(names), env[k.sink.name].reshape(-1) if k.sink else None
        kept = np.where(env[KEEP], env["keep_scale"], 0.0) if k.keeps else 1.0
        [scores] = evaluate(k.graph, k.roots[:1], names, np, sp)
        p, _, _ = weights(np.broadcast_to(scores, self.elements), seen, sink)
        dots = np.einsum("bhqd,bhkd->bhqk", env["dout"], v) * kept
        delta = (env["dout"] * env["out"]).sum(-1, keepdims=True)
        dscore = np.where(p == 0, 0.0, p * (dots - delta))
        ddot, *others = evaluate(k.graph, k.roots[1:], names | {DSCORE: dscore}, np, sp)

        def shared(x):
            return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

        found = {
            self.kinds["query"]: np.einsum("bhqk,bhkd->bhqd", ddot, key),
            self.kinds["key"]: shared(np.einsum("bhqk,bhqd->bhkd", ddot, q)),
            self.kinds["value"]: shared(np.einsum("bhqk,bhqd->bhkd", p * kept, env["dout"])),
        }
        others = [np.broadcast_to(x, self.elements) for x in others]
        found |= self._by_head(k, dict(zip((s.of for _, s in k.tensor_gradients), others)))
        if k.sink_gradient:
            of_sink = sink_gradient(
                sink, np.broadcast_to(scores, self.elements), seen, delta[..., 0]
            )
            found[k.sink.name] = of_sink.reshape(self.shapes["head"])
        return {s.name: found[s.of] for s in k.outputs}

    def _forward(self, env):
        """The kernel's own score, exponentiated key by key."""
        k, group = self.kernel(False), self.HEADS // self.KV_HEADS
        q, key, v = (env[self.kinds[kind]] for kind in PRODUCTS)
        key, v = (np.repeat(x, group, 1) for x in (key, v))
        names = self._positions() | env | {"dot": np.einsum("bhqd,bhkd->bhqk", q, key)}
        scores = np.broadcast_to(evaluate(k.graph, k.roots, names, np, sp)[0], self.elements)
        scores = np.where(self._visible(names), scores, -np.inf)
        out, most, total = np.zeros(self.result), np.full((*self.result[:3], 1), -np.inf), 0.0
        if k.sink:
            most, total = np.broadcast_to(env[k.sink.name], most.shape), 1.0
        for j in range(self.KEYS):
            s = scores[..., j, None]
            higher = np.maximum(most, s)
            base = np.where(np.isneginf(higher), 0.0, higher)
            old, p = np.exp(most - base), np.exp(s - base)
            total, most = total * old + p, higher
            kept = env[KEEP][..., j, None] * env["keep_scale"] if k.keeps else 1.0
            out = out * old + p * kept * v[:, :, None, j]
        return {"out": out / np.where(total == 0, 1.0, total)}
