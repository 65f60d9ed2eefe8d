# SPDX-License-Identifier: Apache-2.0
"""Reference of ops over rows: values and gradients of `ref` in float64, and a bound on the rounding
error of each result.

Gradients come from a tape over NumPy that shares nothing with kfgen's own differentiation. The
error is followed through the formula (running error analysis): the propagated errors of an
operation's arguments, plus its own rounding.
"""

import functools

import numpy as np
import scipy.special as sp

from kfgen.families import reference as elements_reference
from kfgen.language import passes
from kfgen.language.emit import evaluate
from kfgen.language.expr import Graph, parse
from kfgen.language.primitives import (
    ARG_REDUCTIONS,
    BOOLEAN,
    PER_COUNT,
    PRIMITIVES,
    query_names,
    row_names,
)
from kfgen.model.derive import in_order
from kfgen.model.entries import names_read


class Tape(np.lib.mixins.NDArrayOperatorsMixin):
    """A value and its inputs: [(tape, function from its adjoint to that tape's)]."""

    def __init__(self, value, parents=()):
        self.value, self.parents = np.asarray(value, np.float64), parents

    @property
    def T(self):
        return Tape(self.value.T, [(self, np.transpose)])

    def __array_ufunc__(self, ufunc, method, *args, **kwargs):
        if ufunc is np.matmul and method == "__call__" and not kwargs:
            return _matmul(*args)
        if (
            method != "__call__"
            or kwargs
            or (ufunc not in elements_reference.UFUNC_RULES and not ufunc.types[0].endswith("?"))
        ):
            raise TypeError(
                f"the reference uses np.{ufunc.__name__}, whose derivative kfgen does not know"
            )
        values = [a.value if isinstance(a, Tape) else a for a in args]
        y = ufunc(*values)
        if ufunc not in elements_reference.UFUNC_RULES:
            return y
        partials = elements_reference.UFUNC_RULES[ufunc](y, *values)
        return Tape(
            y, [(a, lambda d, p=p: d * p) for a, p in zip(args, partials) if isinstance(a, Tape)]
        )

    def __array_function__(self, function, types, args, kwargs):
        if function is not np.where:
            return NotImplemented
        condition, *arms = args
        y = np.where(condition, *(a.value if isinstance(a, Tape) else a for a in arms))
        return Tape(
            y,
            [
                (a, lambda d, k=k: np.where(condition, *((d, 0.0) if k == 0 else (0.0, d))))
                for k, a in enumerate(arms)
                if isinstance(a, Tape)
            ],
        )


def _matmul(*factors):
    a, b = (f if isinstance(f, Tape) else Tape(f) for f in factors)
    return Tape(a.value @ b.value, [(a, lambda d: d @ b.value.T), (b, lambda d: a.value.T @ d)])


def _reduce(a):
    a = a if isinstance(a, Tape) else Tape(a)
    return Tape(
        np.sum(a.value, -1, keepdims=True), [(a, lambda d: np.broadcast_to(d, a.value.shape))]
    )


def _extreme(a, b, word):
    """Maximum or minimum: of a row, where ties share the gradient, or of two values."""
    if b is not None:
        return (np.maximum if word == "max" else np.minimum)(a, b)
    y = (np.max if word == "max" else np.min)(
        a.value, -1, keepdims=True, initial=-np.inf if word == "max" else np.inf
    )
    ties = a.value == y
    return Tape(
        y, [(a, lambda d: np.where(ties, d / np.maximum(ties.sum(-1, keepdims=True), 1), 0.0))]
    )


def _product(a):
    def rule(d):  # product of the other elements
        others = [np.prod(np.delete(a.value, i, -1), -1) for i in range(a.value.shape[-1])]
        return d * (np.stack(others, -1) if others else np.zeros_like(a.value))

    return Tape(np.prod(a.value, -1, keepdims=True), [(a, rule)])


def _place(word):
    return lambda a: Tape(getattr(np, word)(a.value, -1, keepdims=True))  # also named so in NumPy


WORDS = {
    "sum": _reduce,
    "prod": _product,
    **{word: _place(word) for word in ARG_REDUCTIONS},
    "mean": lambda a: _reduce(a) / np.float64(a.value.shape[-1]),
    "max": lambda a, b=None: _extreme(a, b, "max"),
    "min": lambda a, b=None: _extreme(a, b, "min"),
}


def reference(op, act, inputs, scalars, stored=None, keep=None, keep_scale=1.0):
    """({output: Tape}, {operand: Tape}) for float64 arrays that broadcast to [rows, cols].

    stored: outputs that others read, with their stored values. keep: elements that dropout keeps.
    """
    leaves = {n: Tape(v) for n, v in inputs.items()}
    # Values per row have a last axis of 1.
    along = [o.name for o in op.operands if o.kind not in ("per_row", "channel", "number")]
    scalars = scalars | row_names(max(np.shape(inputs[n])[-1] for n in along), np)

    def apply_act(z):
        slope = elements_reference.act_derivative(act, z.value, scalars)
        return Tape(elements_reference.act_value(act, z.value, scalars), [(z, lambda d: d * slope)])

    def dropout(z):
        def masked(v):
            return np.where(keep, v * keep_scale, 0.0)

        return Tape(masked(z.value), [(z, masked)])

    words = WORDS | {"act": apply_act, "dropout": dropout}
    with np.errstate(all="ignore"):
        outputs, values = {}, leaves | scalars
        for n in in_order(op.refs):
            values |= outputs | {name: Tape(v) for name, v in (stored or {}).items()}
            read = {name: values[name] for name in names_read(op.refs[n]) & set(values)}
            found = elements_reference._eval(op.refs[n], words | read)
            outputs[n] = found if isinstance(found, Tape) else Tape(found)
        return outputs, leaves


def gradients(outputs, leaves, douts):
    """{operand: gradient, in its own shape}."""
    order, seen = [], set()

    def visit(t):
        if id(t) not in seen:
            seen.add(id(t))
            for parent, _ in t.parents:
                visit(parent)
            order.append(t)

    for t in outputs.values():
        visit(t)
    adjoint = {id(outputs[n]): _like(d, outputs[n].value.shape) for n, d in douts.items()}
    with np.errstate(all="ignore"):
        for t in reversed(order):
            d = adjoint.get(id(t))
            for parent, rule in t.parents if d is not None else ():
                given = _like(rule(d), parent.value.shape)
                adjoint[id(parent)] = (
                    adjoint[id(parent)] + given if id(parent) in adjoint else given
                )
    return {n: adjoint.get(id(t), np.zeros_like(t.value)) for n, t in leaves.items()}


def _like(d, shape):
    """Sums over the axes that were broadcast."""
    d = np.asarray(d, np.float64)
    while d.ndim > len(shape):
        d = d.sum(0)
    for axis, n in enumerate(shape):
        if n == 1 and d.shape[axis] != 1:
            d = d.sum(axis, keepdims=True)
    return np.broadcast_to(d, shape)


@functools.cache
def _partials(op):
    """[(graph, node of the derivative for dy = 1)] per argument."""
    names, rules = PRIMITIVES[op]
    found = []
    for name in names:
        graph = Graph(levels={})
        env = {n: graph.var(n) for n in (*names, "y")} | {"dy": graph.const(1), "act_bwd": None}
        found.append((graph, parse(graph, rules[name], env)))
    return names, found


EXACT = {"neg", "abs", "where", "rowmax", "rowmin", "max", "min"}


class Bound:
    """Value and error bound of each result, and whether float32 overflowed on the way. An output
    that others read is a variable to them, with its stored value.
    """

    def __init__(self, kernel, act):
        graph, roots = passes.inlined(kernel.graph, kernel.roots, act, passes.stored(kernel.graph))
        self.graph, self.roots = elements_reference.expand(graph, roots)
        self.doubles = kernel.dtype.compute == "f64"

    def evaluate(self, env, count, eps, tiny, largest):
        """[(value, error)], and the rows in which a value exceeds `largest`. Arrays are [rows,
        cols] or [rows, 1].
        """
        value, error, beyond = self.follow(env, count, eps, tiny, largest, {})
        beyond = np.broadcast_to(beyond, np.broadcast_shapes(np.shape(beyond), (1, 1)))
        return [(value[r], error[r]) for r in self.roots], beyond.any(-1)

    def follow(self, env, count, eps, tiny, largest, errors):
        """({node: value}, {node: error}, where a value exceeds `largest`). errors: known errors of
        variables.
        """
        env = env | row_names(count, np)
        nodes = self.graph.reachable(self.roots)
        value = dict(zip(nodes, evaluate(self.graph, nodes, env, np, sp)))
        error, beyond = {}, False
        with np.errstate(all="ignore"):
            for i in nodes:
                node, v = self.graph.nodes[i], value[i]
                args = [error[a] for a in node.args]
                if not self.graph.is_bool(i):
                    beyond = beyond | (np.abs(np.where(np.isfinite(v), v, 0.0)) > largest)
                if node.op == "var" and self.graph.is_bool(i):  # the mask of dropout
                    error[i] = np.zeros((), bool)
                elif node.op in ("const", "var"):
                    rounded = node.op == "var" and (self.doubles or node.value == PER_COUNT)
                    error[i] = errors.get(node.value, eps * np.abs(v) if rounded else np.zeros(()))
                elif node.op in BOOLEAN:
                    error[i] = self._undecided(node, value, args)
                elif node.op == "where":
                    near, a, b = args
                    v0, v1 = (value[n] for n in node.args[1:])
                    error[i] = np.where(value[node.args[0]], a, b) + np.where(
                        near, np.nan_to_num(np.abs(v0 - v1), posinf=0.0), 0.0
                    )
                elif node.op == "sum":
                    term = value[node.args[0]]
                    terms = np.abs(
                        np.nan_to_num(
                            np.broadcast_to(term, np.broadcast_shapes(np.shape(term), (1, count)))
                        )
                    )
                    reach = terms.sum(-1, keepdims=True)
                    # Summed in another order, the partial sums may overflow.
                    beyond = beyond | (reach > largest)
                    error[i] = np.sum(np.broadcast_to(args[0], terms.shape), -1, keepdims=True)
                    error[i] = error[i] + eps * (3 + np.sqrt(count) / 4) * reach + tiny * count
                elif node.op == "rowprod":
                    term = np.broadcast_to(
                        value[node.args[0]],
                        np.broadcast_shapes(np.shape(value[node.args[0]]), (1, count)),
                    )
                    logs = np.nan_to_num(np.log2(np.abs(term)), nan=0.0, posinf=0.0, neginf=0.0)
                    # A partial product may overflow in another order.
                    reach = np.maximum(
                        logs.clip(0).sum(-1, keepdims=True),
                        -logs.clip(max=0).sum(-1, keepdims=True),
                    )
                    beyond = beyond | (reach > np.log2(largest) - 2)
                    share = (
                        np.nan_to_num(args[0] / np.abs(term), posinf=0.0).sum(-1, keepdims=True)
                        if np.ndim(args[0])
                        else args[0] * count
                    )
                    # Roundings near 1 have the same sign.
                    error[i] = (
                        np.nan_to_num(np.abs(v), posinf=0.0) * (share + eps * (3 + count / 16))
                        + tiny
                    )
                elif node.op == "pick":  # an operand has no error
                    error[i] = np.zeros(())
                elif node.op in ("rowmax", "rowmin"):
                    error[i] = (
                        np.max(args[0], -1, keepdims=True, initial=0.0)
                        if np.ndim(args[0])
                        else args[0]
                    )
                elif node.op in ("max", "min"):  # near equality, either may be the result
                    a, b = (value[n] for n in node.args)
                    taken = np.where((a >= b) == (node.op == "max"), args[0], args[1])
                    error[i] = np.where(
                        np.abs(a - b) <= 4 * (args[0] + args[1]),
                        np.maximum(args[0], args[1]),
                        taken,
                    )
                else:
                    names, partials = _partials(node.op)
                    local = dict(zip(names, (value[a] for a in node.args))) | {"y": v}
                    derivatives = [evaluate(g, [p], local, np, sp)[0] for g, p in partials]
                    error[i] = sum(
                        np.nan_to_num(np.abs(s) * e, posinf=0.0) for s, e in zip(derivatives, args)
                    )
                    if node.op not in EXACT:
                        error[i] = error[i] + eps * np.nan_to_num(np.abs(v), posinf=0.0) + tiny
        return value, error, beyond

    def _undecided(self, node, value, args):
        """Comparisons of rounded values near equality."""
        if node.op in ("and", "or", "not"):
            return functools.reduce(np.logical_or, args)
        a, b = (value[n] for n in node.args)
        return (np.abs(a - b) <= 4 * (args[0] + args[1])) & (args[0] + args[1] > 0)


# ---- the oracle of an op -------------------------------------------------------------------------

ROWS, COLS = 6, 11
SHAPES = {
    "elem": (ROWS, COLS),
    "row": (COLS,),
    "per_row": (ROWS, 1),
    "channel": (ROWS, 1),
    "shared": (ROWS, COLS),  # one batch, one head
    "group": (ROWS, COLS),
}  # inner = 1


class RowsReference(elements_reference.Reference):
    pointwise = False
    elements, result, indices = (ROWS, COLS), (ROWS, 1), COLS

    def __init__(self, family, op, act):
        super().__init__(family, op, act)
        self.scalars = self.scalars | query_names(ROWS, ROWS // 2, np)
        self.kinds = {o.name: family.in_rows.get(o.kind, o.kind) for o in op.operands}

    def shape(self, operand):
        return SHAPES[self.kinds[operand.name]]

    def inputs(self, rng):
        found = {o.name: rng.standard_normal(self.shape(o)) for o in self.op.operands}
        for o in self.op.operands:
            if o.positive:
                found[o.name] = np.abs(found[o.name]) + 0.25
            if o.dtype == "I":
                found[o.name] = rng.integers(0, COLS, self.shape(o)).astype(np.float64)
            if o.dtype == "u8":
                found[o.name] = (rng.random(self.shape(o)) < 0.7).astype(np.float64)
        return found

    def _tapes(self, inputs, mask):
        return reference(self.op, self.act, inputs, self.scalars, None, *mask.values())

    def values(self, inputs, mask):
        return {n: tape.value for n, tape in self._tapes(inputs, mask)[0].items()}

    def gradients(self, inputs, douts, mask):
        found = gradients(*self._tapes(inputs, mask), douts)
        return {o.name: found[o.name] for o in self.op.operands if o.grad}

    def bound(self, kernel, by=False):
        return Bound(kernel, self.act)

    def _inlined(self, bwd):
        kernel = self.kernel(bwd)
        graph, roots = passes.inlined(kernel.graph, kernel.roots, self.act)
        return graph, dict(zip((s.name for s in kernel.outputs), roots))

    def results(self, bwd, env, single=False, by=False):
        return super().results(bwd, env | row_names(COLS, np), single)

    def summed(self, name, terms):
        """Sums over the rows the gradient of an operand that they share."""
        kind = self.kinds[name]
        value = np.broadcast_to(terms, SHAPES["elem" if kind == "row" else kind])
        return value.sum(0) if kind == "row" else value
