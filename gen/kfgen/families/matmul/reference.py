# SPDX-License-Identifier: Apache-2.0
"""Reference of matmul ops in float64 and error bounds of their results.

Gradients of an op's `ref` come from a tape over NumPy. The first axis of every array is the batch.
"""

from dataclasses import dataclass

import numpy as np

from kfgen.families import reference as elements_reference
from kfgen.families.rows import reference as rows_reference
from kfgen.language.expr import Graph
from kfgen.language.gradient import substitute

DOT = "kfi_dot"
LEAST = 2.0**-126  # the least normal number of float32


@dataclass
class Number:
    """Values, their rounding error bounds, and a mask of those with an overflow on the way."""

    value: np.ndarray
    error: np.ndarray
    beyond: np.ndarray


@dataclass
class Rounding:
    """Rounding errors of a backend's arithmetic."""

    eps: float  # relative error of normal numbers
    tiny: float  # absolute error of subnormal numbers
    largest: float  # the largest finite number
    # Rounding of stored intermediates: values -> (absolute error of each, the largest number).
    store: object = None
    # Rounding of a computed left factor on backends that store it; same signature as `store`.
    factor: object = None
    factors: float = 0.0  # relative error from rounding each factor of a product
    least: float = 0.0  # the least normal number of a tensor core's operands; 0: no tensor core


EXACT = Rounding(0.0, 0.0, np.inf)


def transposed(array):
    return array.swapaxes(-1, -2)


def inlined(k, act, by):
    """Inlines the activation's expressions into the kernel's graph. Returns (graph, roots)."""
    if by:
        return k.graph_by(act)
    graph = Graph()
    own = {s: graph.var(s) for s in act.scalars}
    return graph, substitute(
        k.graph,
        graph,
        k.roots,
        {},
        act=(lambda x: act.build(graph, x, own), lambda x, dy: act.build_bwd(graph, x, dy, own)),
    )


class _Elements(rows_reference.Bound):
    def __init__(self, graph, roots, doubles):
        self.graph, self.roots = elements_reference.expand(graph, roots)
        self.doubles = doubles

    def numbers(self, env, shape, rounding, errors):
        """Evaluates each root, broadcast to `shape`. Returns a list of Number."""
        value, error, beyond = self.follow(
            env, shape[-1], rounding.eps, rounding.tiny, rounding.largest, errors
        )
        return [
            Number(*(np.broadcast_to(v, shape) for v in (value[r], error[r], beyond)))
            for r in self.roots
        ]


class Product:
    """Float64 evaluation of a matmul kernel with one activation."""

    def __init__(self, kernel, act, by=False):
        self.k, (graph, roots) = kernel, inlined(kernel, act, by)
        doubles, first = kernel.dtype.compute == "f64", len(kernel.outs)

        def elements(places):
            return _Elements(graph, [roots[i] for i in places], doubles)

        self.doubles = doubles
        self.dout_is_dacc = kernel.bwd and bool(kernel.gradient_as_dacc(act)) and not by
        self.factor = elements([len(roots) - 1])
        self.left = [s.name for s in kernel.operands if s.kind in ("left", "depth")]
        self.elem = [i for i, s in enumerate(kernel.outs) if s.kind in ("elem", "row")]
        self.inner = [i for i, s in enumerate(kernel.outs) if s.kind in ("left", "depth")]
        self.results = elements(self.elem)
        self.inputs = elements(self.inner)
        self.dacc = elements(range(first, first + len(kernel.products)) if kernel.bwd else ())

    def run(self, env, sizes, rounding=EXACT, beta=0.0):
        """Evaluates the kernel. Returns {output: Number}, with both halves of a packed output.

        env: tensors in their stored layout (absent ones are 0), scalars, keep and keep_scale.
        """
        k = self.k
        batch, rows, cols, depth = sizes
        env = dict(env)
        for s in k.inputs + k.outputs:
            if (halves := k.halves_of(s)) and s.name in env:
                env |= zip(halves, np.split(env[s.name], [cols], k.joined_at(s)))
        for s in k.operands:
            if s.kind in ("left", "right") and k.form["left" != s.kind] == "t":
                env[s.name] = transposed(env[s.name])  # [rows, depth], [depth, cols]
            elif s.kind in ("row", "depth") and np.ndim(env[s.name]):
                env[s.name] = env[s.name][:, None, :]
        with np.errstate(all="ignore"):
            [factor] = self.factor.numbers(env, (batch, rows, depth), rounding, {})
            factor = factor if k.plain else self._stored(factor, rounding.factor)
            found = (
                self._backward(env, sizes, rounding, factor)
                if k.bwd
                else self._forward(env, sizes, rounding, factor)
            )
            for s in k.outs:
                found[s.name] = self._as_stored(s, found[s.name])
                if beta and k.accumulated(s):
                    old = beta * env[s.name]
                    n = found[s.name]
                    error = n.error + 2 * rounding.eps * np.nan_to_num(
                        np.abs(old) + np.abs(n.value), posinf=0.0
                    )
                    found[s.name] = Number(n.value + old, error, n.beyond)
            for s in k.outputs:
                if halves := k.halves_of(s):
                    both = [(n.value, n.error, n.beyond) for n in map(found.get, halves)]
                    found[s.name] = Number(
                        *(np.concatenate(of, k.joined_at(s)) for of in zip(*both))
                    )
        return found

    def _as_stored(self, s, n):
        """Transposes the gradient of a factor back to the factor's stored layout."""
        if s.kind in ("left", "right") and self.k.form["left" != s.kind] == "t":
            return Number(*(transposed(v) for v in (n.value, n.error, n.beyond)))
        return n

    def _forward(self, env, sizes, rounding, factor):
        acc = {
            p.name: self._times(factor, self._exact(env[p.weight.name], rounding), rounding)
            for p in self.k.products
        }
        numbers = self._of(self.results, env, acc, (sizes[0], sizes[1], sizes[2]), rounding)
        return dict(zip((self.k.outs[i].name for i in self.elem), numbers))

    def _backward(self, env, sizes, rounding, factor):
        k, (batch, rows, cols, depth) = self.k, sizes
        dacc = self._of(self.dacc, env, {}, (batch, rows, cols), rounding)
        dacc = dacc if self.dout_is_dacc else [self._stored(n, rounding.store) for n in dacc]
        found = dict(
            zip(
                (k.outs[i].name for i in self.elem),
                self._of(self.results, env, {}, (batch, rows, cols), rounding),
            )
        )
        dots = [
            self._times(n, self._exact(transposed(env[p.weight.name]), rounding), rounding)
            for n, p in zip(dacc, k.products)
        ]
        dot = (
            dots[0]
            if len(dots) == 1
            else Number(
                *(
                    a + b
                    for a, b in zip(
                        *(
                            (
                                d.value,
                                d.error + rounding.eps * np.abs(np.nan_to_num(d.value)),
                                d.beyond,
                            )
                            for d in dots
                        )
                    )
                )
            )
        )
        inner = self._of(self.inputs, env, {DOT: dot}, (batch, rows, depth), rounding)
        found |= dict(zip((k.outs[i].name for i in self.inner), inner))
        for n, p in zip(dacc, k.products):
            if any(s.of == p.weight.name for s in k.outs):
                found[f"d{p.weight.name}"] = self._times(
                    Number(*(transposed(v) for v in (factor.value, factor.error, factor.beyond))),
                    n,
                    rounding,
                )
        for s in k.outs:
            if s.kind in ("row", "depth"):
                found[s.name] = self._summed(found[s.name], rounding)
        return found

    @staticmethod
    def _of(elements, env, numbers, shape, rounding):
        if not elements.roots:
            return []
        found = elements.numbers(
            env | {n: v.value for n, v in numbers.items()},
            shape,
            rounding,
            {n: v.error for n, v in numbers.items()},
        )
        for n in numbers.values():
            for f in found:
                f.beyond = f.beyond | n.beyond
        return found

    def _exact(self, value, rounding):
        return Number(
            value,
            (rounding.eps if self.doubles else 0.0)
            * np.abs(np.nan_to_num(value, posinf=0.0, neginf=0.0)),
            np.zeros(value.shape, bool),
        )

    @staticmethod
    def _times(a, b, rounding):
        """Matrix product with a bound that holds for any order of the sum.

        A tensor core aligns the terms and the accumulator to their largest exponent and truncates
        the bits below. A term's exponent is the sum of its factors' stored exponents. A subnormal
        number is stored with the exponent of the least normal number: in f16, 2^-24 * 30000
        truncates as many bits of the other terms as 2^-14 * 30000. Each of n terms aligned to 2^e
        has an error below 2^(e - 24), and so has the sum. The total is (n + 2) / 2 eps of the
        largest term. This is within (4 + sqrt(n)) eps for up to 16 terms, which one instruction
        adds, if magnitudes below the least normal number count as that number.
        """
        size_a, size_b = (np.nan_to_num(np.abs(v), nan=0.0, posinf=0.0) for v in (a.value, b.value))
        size, count = size_a @ size_b, a.value.shape[-1]
        aligned = (
            np.matmul(
                *(np.where(s > 0, np.maximum(s, rounding.least), 0.0) for s in (size_a, size_b))
            )
            if rounding.least
            else size
        )
        if rounding.factors:
            a, b = (
                Number(
                    n.value,
                    n.error + rounding.factors * np.maximum(s, LEAST),
                    n.beyond | (s > rounding.largest),
                )
                for n, s in ((a, size_a), (b, size_b))
            )
        error = (
            a.error @ size_b
            + size_a @ b.error
            + a.error @ b.error
            + rounding.eps * (4 + np.sqrt(count)) * aligned
            + rounding.tiny * count
        )
        unknown = (
            a.beyond.astype(float) @ np.ones_like(size_b)
            + np.ones_like(size_a) @ b.beyond.astype(float)
            > 0
        )
        return Number(a.value @ b.value, error, (size > rounding.largest) | unknown)

    @staticmethod
    def _summed(n, rounding):
        size, count = np.nan_to_num(np.abs(n.value), nan=0.0, posinf=0.0).sum(1), n.value.shape[1]
        error = n.error.sum(1) + rounding.eps * (4 + np.sqrt(count)) * size + rounding.tiny * count
        return Number(n.value.sum(1), error, (size > rounding.largest) | n.beyond.any(1))

    @staticmethod
    def _stored(n, store):
        """Rounds dacc, or a computed left factor, to the dtype in which it is stored."""
        if not store:
            return n
        moved, largest = store(n.value)
        return Number(
            n.value,
            n.error + moved,
            n.beyond
            | (np.abs(np.nan_to_num(n.value, posinf=0.0, neginf=0.0)) + n.error + moved > largest),
        )


# ---- the oracle of an op -------------------------------------------------------------------------

SIZES = (2, 5, 4, 3)  # batch, rows, cols, depth


class MatmulReference(elements_reference.Reference):
    pointwise = False
    single = False
    elements = result = SIZES[:3]

    @property
    def ways(self):
        return (False, True) if self.kernel(True).by(self.act) else (False,)

    def shape(self, operand):
        at = dict(zip(("batch", "rows", "cols", "depth"), SIZES))
        form = self.family.forms[self.op.layout or "nt"]
        return tuple(at[extent] for extent in form[operand.kind].split(", "))

    def inputs(self, rng):
        return {o.name: rng.standard_normal(self.shape(o)) for o in self.op.operands}

    def points(self, inputs, want):
        return {"value": want}

    def _tapes(self, inputs, mask):
        """Evaluates `ref`. Returns ({output: Tape}, {operand: Tape}) of each batch."""
        keep, keep_scale = mask.values()
        return [
            rows_reference.reference(
                self.op,
                self.act,
                {n: v[b] for n, v in inputs.items()},
                self.scalars,
                None,
                keep[b],
                keep_scale,
            )
            for b in range(SIZES[0])
        ]

    def values(self, inputs, mask):
        tapes = self._tapes(inputs, mask)
        return {
            n: np.stack([np.broadcast_to(outs[n].value, SIZES[1:3]) for outs, _ in tapes])
            for n in self.op.outputs
        }

    def gradients(self, inputs, douts, mask):
        found = [
            rows_reference.gradients(*taped, {n: d[b] for n, d in douts.items()})
            for b, taped in enumerate(self._tapes(inputs, mask))
        ]
        return {o.name: np.stack([g[o.name] for g in found]) for o in self.op.operands if o.grad}

    def bound(self, kernel, by=False):
        return Product(kernel, self.act, by)

    def results(self, bwd, env, single=False, by=False):
        found = self.bound(self.kernel(bwd), by).run(self.scalars | env, SIZES)
        return {n: v.value for n, v in found.items()}
