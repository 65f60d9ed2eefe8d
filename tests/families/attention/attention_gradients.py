# SPDX-License-Identifier: Apache-2.0
"""The float64 oracle of attention's gradients for the generic tests: softmax weights from the
entry's `ref`, and the derivative of its score by dual numbers.

Heads are in front of rows. A packed sequence is a batch of one."""

import dataclasses

import numpy as np
import storage
from kfgen.families import reference as elements_reference
from kfgen.families.attention import reference
from kfgen.language.primitives import COLUMN, COUNT, QUERIES, QUERY

# Sizes over which gradients are summed, by kind.
SUMMED = {"query": ["keys"], "key": ["queries", "heads"], "value": ["queries", "heads"]}
SUMMED |= {"score": [], "head": ["batch", "queries", "keys"]}
SAVED = ("lse", "row_max", "log_sum")
# Relative to the largest gradient: results are rounded once in C; tensor cores round factors.
TOLERANCE = {"bf16": 0.02, "f16": 0.003, "f32": 1e-5, "f64": 3e-14}
# Rounding of an accumulator, relative to what a gradient of a score cancels: dout . v and delta.
ROUNDING = {"f64": 2.0**-53}


@dataclasses.dataclass
class Part:
    """A batch, or a packed sequence: its operands and positions.

    Attributes:
        tensors: {name: [batch, heads, rows, dim] or values per query}.
        more: further operands, which broadcast to the scores.
        mask: the weights that dropout keeps, and their scale; empty without dropout.
        of_sink: name of the sink.
    """

    op: object
    scalars: dict
    tensors: dict
    more: dict
    mask: tuple = ()
    of_sink: str = ""

    def __post_init__(self):
        self.kinds = {o.kind: o.name for o in self.op.operands}
        self.q, self.k, self.v = (self.tensors[self.kinds[n]] for n in reference.PRODUCTS)
        self.dots = reference.products(self.q, self.k)
        self.names = self.scalars | {
            QUERY: np.arange(self.q.shape[2]).reshape(1, 1, -1, 1),
            COLUMN: np.arange(self.k.shape[2]).reshape(1, 1, 1, -1),
            "head": np.arange(self.q.shape[1]).reshape(1, -1, 1, 1),
            QUERIES: self.q.shape[2],
            COUNT: self.k.shape[2],
            "dot": self.dots,
            **self.more,
        }
        own = [o.name for o in self.op.operands if o.grad and o.kind in ("score", "head")]
        self.wanted = [name for name in own if name != self.of_sink]
        self.by_head = [o.name for o in self.op.operands if o.kind == "head"]
        self.scores, self.derivative, self.sink = reference.differentiated(
            self.op, self.names, ["dot", *self.wanted]
        )
        self.scores = np.broadcast_to(self.scores, self.dots.shape)

    @property
    def see(self):
        """Whether a query sees a key."""
        see = np.ones(self.dots.shape, bool)
        for field, compare in (("first", np.greater_equal), ("last", np.less_equal)):
            if bound := self.op.own[field]:
                see &= compare(self.names[COLUMN], elements_reference._eval(bound.text, self.names))
        return see

    def dropped(self, x):
        """Returns x with dropout."""
        if not self.mask:
            return x
        keep, scale = self.mask
        return np.multiply(x, scale, where=keep, out=np.zeros(x.shape))

    def forward(self):
        """Returns {result: float64}."""
        p, most, log_sum = reference.weights(self.scores, self.see, self.sink)
        out = reference.add(self.dropped(p), self.v)
        found = {"out": out, "row_max": most, "log_sum": log_sum}
        with np.errstate(invalid="ignore"):
            return found | {"lse": most + log_sum}

    def magnitude(self):
        """The largest sum of magnitudes in a gradient of a score."""
        p, _, _ = reference.weights(self.scores, self.see, self.sink)
        dout, group = np.abs(self.tensors["dout"]), self.q.shape[1] // max(self.k.shape[1], 1)
        v = np.abs(np.repeat(self.v, group, 1))
        delta = (dout * np.abs(self.tensors["out"])).sum(-1, keepdims=True)
        return (p * (self.dropped(dout @ v.swapaxes(-1, -2)) + delta)).max(initial=0)

    def gradients(self):
        """Returns {operand: float64}, from the results that the call is given."""
        p, _, _ = reference.weights(self.scores, self.see, self.sink)
        group = self.q.shape[1] // max(self.k.shape[1], 1)
        k, v = (np.repeat(x, group, 1) for x in (self.k, self.v))
        dout = self.tensors["dout"]
        delta = (dout * self.tensors["out"]).sum(-1) - self.tensors["dlse"]
        with np.errstate(invalid="ignore"):
            dp = self.dropped(dout @ v.swapaxes(-1, -2))
            dscore = np.where(p == 0, 0, p * (dp - delta[..., None]))
            ddot = dscore * np.where(p == 0, 0, self.derivative["dot"])

        def shared(x):
            return x.reshape(len(x), self.k.shape[1], group, *x.shape[2:]).sum(2)

        names = (self.kinds[n] for n in reference.PRODUCTS)
        found = (ddot @ k, shared(ddot.mT @ self.q), shared(self.dropped(p).mT @ dout))
        found = dict(zip(names, found)) | {n: dscore * self.derivative[n] for n in self.wanted}
        self.sizes = {n: np.abs(found[n]).sum((0, 2, 3)) for n in self.by_head if n in found}
        found |= {n: found[n].sum((0, 2, 3)) for n in self.sizes}
        if self.of_sink:
            given = self.sink, self.scores, self.see
            found[self.of_sink] = reference.sink_gradient(*given, delta)
            self.sizes[self.of_sink] = -reference.sink_gradient(*given, np.abs(delta))
        return found


def values(call):
    """Returns {tensor of the call: float64, heads in front of rows}; heads of values broadcast to
    the scores."""
    found = {}
    for name, a in call.tensors.items():
        if a["role"] != "in" or a["dtype"][0] == "i":
            continue
        x = storage.to_float(call.data[name], a["dtype"])
        x = np.zeros_like(x) if name == "dlse" and name in call.drop else x
        if a["kind"] in ("query", "key", "value", "elem"):
            x = x.swapaxes(-2, -3)
        found[name] = x.reshape(1, -1, 1, 1) if a["kind"] == "head" else x
    return found


def parts(call):
    """Yields (Part, slices of queries and keys, index of the sequence); sequences that are longer
    than the tensors of the scores' shape are left out."""
    op, found = call.kernel.op, values(call)
    kinds = {a["kind"]: n for n, a in call.tensors.items()}
    more = [o.name for o in op.operands if o.kind in ("score", "head")]
    keep, *scale = call.mask() or (None,)
    of_sink = call.kernel.sink.name if call.kernel.sink else ""
    if call.f["form"] == "dense":
        own, mask = {n: found.pop(n) for n in more}, (keep, *scale) if scale else ()
        yield Part(op, call.scalars, found, own, mask, of_sink), (slice(None), slice(None)), 0
        return
    offsets = (call.data[kinds[f"{word}_offsets"]] for word in ("query", "key"))
    bounds = [list(zip(x, x[1:])) for x in offsets]
    for i, (rows, keys) in enumerate(zip(*(map(lambda b: slice(*b), x) for x in bounds))):
        lengths = rows.stop - rows.start, keys.stop - keys.start
        scores = [x.shape[2:] for n, x in found.items() if call.tensors[n]["kind"] == "score"]
        if any(a > b for most in scores for a, b in zip(lengths, most)):
            continue
        own = {}
        for name in more:
            x = found[name]
            if call.tensors[name]["kind"] == "score":
                x = x[i : i + 1, :, : lengths[0], : lengths[1]]
            own[name] = x
        part = {
            n: x[None, :, keys if call.tensors[n]["kind"] in ("key", "value") else rows]
            for n, x in found.items()
            if n not in more
        }
        mask = (keep[None, :, rows, keys], *scale) if scale else ()
        yield Part(op, call.scalars, part, own, mask, of_sink), (rows, keys), i


def fill(call):
    """Gives a backward the results of its forward."""
    if not call.f["bwd"]:
        return
    dense = call.f["form"] == "dense"
    wide = {
        n: np.full(call.data[n].shape, 0.0 if n in ("out", "log_sum") else -np.inf)
        for n in ("out", *SAVED)
    }
    if call.kernel.sink:  # queries of no sequence have one, too
        name = call.kernel.sink.name
        sink = storage.to_float(call.data[name], call.tensors[name]["dtype"]).reshape(-1, 1)
        wide |= {n: np.broadcast_to(sink, wide[n].shape).copy() for n in ("lse", "row_max")}
    for part, (rows, _), _ in parts(call):
        for name, x in part.forward().items():
            x = x.swapaxes(1, 2) if name == "out" else x
            x = x if dense else x[0]
            at = (slice(None),) * (x.ndim - 1 if name != "out" else x.ndim - 3)
            wide[name][(*at, rows)] = x
    for name, x in wide.items():
        call.data[name] = storage.from_float(x, call.tensors[name]["dtype"])


def _outside(call):
    """The sink's gradient by queries of no sequence, whose weight it has alone: the sum of dlse."""
    if call.f["form"] == "dense" or "dlse" in call.drop:
        return 0.0
    dlse = storage.to_float(call.data["dlse"], call.tensors["dlse"]["dtype"]).copy()
    for _, (rows, _), _ in parts(call):
        dlse[:, rows] = 0.0
    return dlse.sum(1)


def expected(call):
    """Returns {gradient: float64}. Sets call.magnitudes: those of sums per head."""
    call.magnitudes = {}
    of = {a["of"]: n for n, a in call.tensors.items() if a["role"] != "in"}
    found = {n: np.zeros(call.data[n].shape) for n in of.values()}
    dense = call.f["form"] == "dense"
    for part, (rows, keys), i in parts(call):
        for name, x in part.gradients().items():
            if name not in of:
                continue
            to, kind = found[of[name]], call.tensors[of[name]]["kind"]
            if kind == "head":
                to += x
                call.magnitudes[of[name]] = part.sizes[name] + call.magnitudes.get(of[name], 0.0)
            elif kind == "score":
                if dense:
                    to[...] = x
                else:
                    to[i, :, : x.shape[2], : x.shape[3]] = x[0]
            elif dense:
                to[...] = x.swapaxes(1, 2)
            else:
                to[rows if kind == "query" else keys] = x[0].swapaxes(0, 1)
    if call.kernel.bwd and call.kernel.sink_gradient:
        found[call.kernel.sink_gradient.name] += _outside(call)
    return found


def check(call, got):
    want, dtype = expected(call), call.f["dtypes"][0]
    least = 2 * ROUNDING.get(dtype, 2.0**-24)
    least *= max((part.magnitude() for part, *_ in parts(call)), default=0)
    for name, x in got.items():
        if name in call.drop:
            continue
        value, wanted = storage.to_float(x, call.tensors[name]["dtype"]), want[name]
        where = f"{call.where}: {name}"
        assert np.isfinite(value).all(), f"{where} is not finite"
        limit = TOLERANCE[dtype] * max(1.0, np.abs(wanted).max(initial=0))
        limit = max(limit, least) if call.tensors[name]["kind"] == "score" else limit
        limit = max(limit, TOLERANCE[dtype] * np.max(call.magnitudes.get(name, 0.0), initial=0))
        error = np.abs(value - wanted).max(initial=0)
        assert error <= limit, f"{where} differs by {error:.3g}, at most {limit:.3g} expected"
