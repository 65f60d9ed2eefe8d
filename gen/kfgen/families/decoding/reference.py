# SPDX-License-Identifier: Apache-2.0
"""Oracles of decoding in float64. They walk over sequences and rows one by one, and share nothing
with the kernels, nor with the statements that `kfgen check` compares with them.
"""

import numpy as np
import scipy.special as sp

from kfgen.families import reference as elements_reference
from kfgen.families.reference import Reference


def row_of(table, page_size, blocks, sequence, row):
    """Returns (block, row of the block) of a sequence's row; None if it has no memory.

    table: [sequences, pages]; None: block s for sequence s.
    """
    page = row // page_size if page_size else 0
    if row < 0 or row >= (1 if table is None else table.shape[1]) * page_size:
        return None
    block = int(sequence if table is None else table[sequence, page])
    return (block, int(row - page * page_size)) if 0 <= block < blocks else None


def gathered(cache, table, sequence, rows):
    """Returns the rows of a sequence, [rows, heads, dim]; NaN for those without memory."""
    blocks, page_size = cache.shape[:2]
    found = np.full((rows, *cache.shape[2:]), np.nan)
    for row in range(rows):
        at = row_of(table, page_size, blocks, sequence, row)
        if at is not None:
            found[row] = cache[at]
    return found


def seen(count, queries, left, right):
    """[queries, count]: the keys that each query sees; the last one is at the last key."""
    at = np.arange(queries)[:, None] + count - queries
    keys = np.arange(count)[None]
    return (keys >= at - min(left, 2**40)) & (keys <= at + max(min(right, 2**40), -(2**40)))


def attend(q, k, v, see, lost, scale):
    """Attention of a sequence: q [queries, heads, dim], k and v [keys, kv_heads, dim]. Returns
    (out [queries, heads, dim_v], lse [heads, queries]).

    lost: keys without memory, whose scores are NaN.
    """
    group = q.shape[1] // max(k.shape[1], 1)
    out = np.zeros((*q.shape[:2], v.shape[2]))
    lse = np.full((q.shape[1], q.shape[0]), -np.inf)
    for i, h in np.ndindex(q.shape[:2]):
        keys = np.flatnonzero(see[i])
        if not keys.size:
            continue
        score = np.where(lost[keys], np.nan, k[keys, h // group] @ q[i, h] * scale)
        most = score.max()
        weight = np.exp(score - (most if np.isfinite(most) else 0))
        lse[h, i] = np.log(weight.sum()) + (most if np.isfinite(most) else 0)
        weight /= weight.sum()
        with_weight = weight != 0
        out[i, h] = weight[with_weight] @ v[keys[with_weight], h // group]
    return out, lse


def decode(q, k_cache, v_cache, table, counts, left, right, scale):
    """Attention of all sequences to their cached rows. Returns (out, lse)."""
    out = np.full((*q.shape[:3], v_cache.shape[3]), np.nan)
    lse = np.full((q.shape[0], q.shape[2], q.shape[1]), np.nan)
    rows = (1 if table is None else table.shape[1]) * k_cache.shape[1]
    for s in range(q.shape[0]):
        count = int(counts[s])
        if not 0 <= count <= rows:
            continue
        k, v = (gathered(cache, table, s, count) for cache in (k_cache, v_cache))
        blocks, page_size = k_cache.shape[:2]
        lost = [row_of(table, page_size, blocks, s, row) is None for row in range(count)]
        see = seen(count, q.shape[1], left, right)
        with np.errstate(invalid="ignore"):
            out[s], lse[s] = attend(q[s], k, v, see, np.array(lost, bool), scale)
    return out, lse


def rotate(x, cosine, sine, neighbours):
    """Rotates the pairs of [heads, dim] by angles [pairs]; the rest is copied."""
    pairs = len(cosine)
    first, second = (
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
        if neighbours
        else (slice(0, pairs), slice(pairs, 2 * pairs))
    )
    found = np.array(x)
    a, b = x[..., first], x[..., second]
    found[..., first], found[..., second] = a * cosine - b * sine, b * cosine + a * sine
    return found


def angles(cosine, sine, place, pairs):
    """Angles of a row of the tables, NaN outside. A missing table stands for 1, or 0."""
    found = []
    for table, value in ((cosine, 1.0), (sine, 0.0)):
        inside = table is None or 0 <= place < len(table)
        row = np.full(pairs, value) if table is None else table[place] if inside else np.nan
        found.append(np.broadcast_to(row, pairs))
    return found


def rotated(k, cosine, sine, position, counts, pairs, neighbours):
    """Rotates new keys [batch, rows, heads, dim] by the angles of their positions."""
    found = np.array(k)
    for s, i in np.ndindex(k.shape[:2] if cosine is not None or sine is not None else (0, 0)):
        place = int(counts[s]) + i if position is None else int(position[s, i])
        with np.errstate(invalid="ignore"):
            found[s, i] = rotate(k[s, i], *angles(cosine, sine, place, pairs), neighbours)
    return found


def stored(new, table, counts, cache):
    """Returns a cache with the new rows [batch, rows, heads, dim] behind those of sequences."""
    found = np.array(cache)
    blocks, page_size = found.shape[:2]
    for s, i in np.ndindex(new.shape[:2]):
        at = row_of(table, page_size, blocks, s, int(counts[s]) + i)
        if at is not None:
            found[at] = new[s, i]
    return found


class _Statements(Reference):
    """Compares the statements of NumPy with the oracle."""

    pointwise = single = False
    SIZES = {}

    def __init__(self, family, op, act):
        super().__init__(family, op, act)
        self.names = [o.name for o in op.operands]

    def results(self, bwd, env, single=False, by=False):
        kernel = self.kernel(bwd)
        names = {"np": np, "sp": sp, "T": np.float64} | self.SIZES | self.scalars
        names |= {n: np.array(x) for n, x in env.items()}
        with np.errstate(all="ignore"):
            exec("\n".join(self.family.statements(kernel, self.act, "numpy")), names)  # noqa: S102
        return {s.next_name if s.role == "inout" else s.name: names[s.name] for s in kernel.written}


class DecodeReference(_Statements):
    SIZES = {
        "batch": 3,
        "heads": 4,
        "kv_heads": 2,
        "queries": 2,
        "blocks": 9,
        "page_size": 4,
        "pages": 3,
        "dim": 6,
        "dim_v": 6,
    }
    result = elements = (3, 2, 4, 6)

    def inputs(self, rng):
        n = self.SIZES
        shapes = [(3, 2, 4, n["dim"]), (9, 4, 2, n["dim"]), (9, 4, 2, n["dim_v"])]
        found = [rng.standard_normal(shape) for shape in shapes]
        return dict(zip(self.names, [*found, rng.permutation(9).reshape(3, 3), [0, 7, 12]]))

    def points(self, inputs, want):
        return {self.names[0]: inputs[self.names[0]]}

    def values(self, inputs, mask):
        q, k, v, table, counts = (np.asarray(inputs[n]) for n in self.names)
        bounds = [self.scalars[n] for n in self.op.integers]

        class Values:
            """The cache of values, as the right factor of softmax(score) * values."""

            __array_ufunc__ = None

            def __rmul__(self, factor):  # `dot` is 1: the products' factor
                return decode(q, k, v, table, counts, *bounds, factor)[0]

        names = self.scalars | {self.names[0]: q, self.names[2]: Values(), "dot": 1.0}
        names["softmax"] = lambda score: score
        return {n: elements_reference._eval(text, names) for n, text in self.op.refs.items()}


class AppendReference(_Statements):
    SIZES = {
        "batch": 2,
        "kv_heads": 2,
        "queries": 3,
        "blocks": 5,
        "page_size": 3,
        "pages": 2,
        "dim": 7,
        "dim_v": 7,
        "positions": 8,
        "pairs": 2,
    }
    result = elements = ()

    def inputs(self, rng):
        n, rows = self.SIZES, (2, 3, 2)
        caches = [rng.standard_normal((5, 3, 2, n[d])) for d in ("dim", "dim_v")]
        found = [rng.standard_normal((*rows, n[d])) for d in ("dim", "dim_v")]
        found += [rng.standard_normal((8, 2)) for _ in "cs"]
        found += [rng.integers(-1, 9, (2, 3)), np.array([[3, 1], [0, 4]]), np.array([1, 4])]
        return dict(zip(self.names, [*found, *caches]))

    def points(self, inputs, want):
        """Returns the new rows at their places in a cache, and NaN elsewhere."""
        table, counts = (inputs[n] for n in self.names[5:7])
        none = np.full(want.shape, np.nan)
        return {n: stored(inputs[n], table, counts, none) for n in self.names[:2]}

    def values(self, inputs, mask):
        position, table, counts = (inputs[n] for n in self.names[4:7])

        def rotation(neighbours):
            return lambda k, *tables: rotated(k, *tables, position, counts, 2, neighbours)

        names = inputs | {"rotate_halves": rotation(False), "rotate_neighbours": rotation(True)}
        new = [elements_reference._eval(text, names) for text in self.op.refs.values()]
        caches = (inputs[n] for n in self.names[7:])
        found = (stored(x, table, counts, cache) for x, cache in zip(new, caches))
        return dict(zip(self.op.refs, found))


class MergeReference(_Statements):
    SIZES = {"batch": 2, "rows": 3, "heads": 2, "dim": 4}
    result = ()
    elements = (2, 3, 2, 4)

    def shape(self, operand):
        return self.elements if operand.kind == "part" else (2, 2, 3)

    def inputs(self, rng):
        return {o.name: rng.standard_normal(self.shape(o)) for o in self.op.operands}

    def _broadcast(self, inputs):
        """Values per query as columns beside the results."""
        per_query = [o.name for o in self.op.operands if o.kind == "per_query"]
        return inputs | {n: inputs[n].swapaxes(1, 2)[..., None] for n in per_query}

    def points(self, inputs, want):
        if want.shape != self.elements:  # lse
            return {n: v for n, v in inputs.items() if v.shape == want.shape}
        return super().points(self._broadcast(inputs), want)

    def values(self, inputs, mask):
        found = super().values(self._broadcast(inputs), mask)
        return found | {"lse": found["lse"][..., 0].swapaxes(1, 2)}

    def gradients(self, inputs, douts, mask):
        douts = douts | {"lse": douts["lse"].swapaxes(1, 2)[..., None]}
        duals = elements_reference.reference(
            self.op, self.act, self._broadcast(inputs), self.scalars
        )
        found = {}
        for o in self.op.operands:
            total = sum(d * duals[out].tangents.get(o.name, 0.0) for out, d in douts.items())
            if o.kind == "per_query":
                own = douts["out"] * duals["out"].tangents[o.name]
                total = own.sum(3, keepdims=True) + douts["lse"] * duals["lse"].tangents[o.name]
                total = total[..., 0].swapaxes(1, 2)
            else:
                total = douts["out"] * duals["out"].tangents[o.name]
            found[o.name] = total
        return found


def of(family, op, act):
    """Returns the oracle of an op."""
    kind = op.operands[0].kind
    found = {"query": DecodeReference, "new_keys": AppendReference, "part": MergeReference}[kind]
    return found(family, op, act)
