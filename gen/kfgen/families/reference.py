# SPDX-License-Identifier: Apache-2.0
"""Oracle in float64: values and gradients of the `ref` fields, and error bounds of float32.

`Family.reference` returns an oracle; the class `Reference` is the one of expressions of elements.

Gradients come from forward-mode differentiation of the reference (dual numbers over NumPy). They
share no code with kfgen's reverse mode.
"""

import functools

import numpy as np
import scipy.special as sp

from kfgen.language.emit import evaluate
from kfgen.language.expr import Graph, parse
from kfgen.language.gradient import gradient, substitute
from kfgen.language.primitives import KEEP, KEEP_SCALE

POINTS = 96

UFUNC_RULES = {
    np.add: lambda y, a, b: (1.0, 1.0),
    np.subtract: lambda y, a, b: (1.0, -1.0),
    np.multiply: lambda y, a, b: (b, a),
    np.divide: lambda y, a, b: (1 / b, -a / (b * b)),
    np.negative: lambda y, a: (-1.0,),
    np.square: lambda y, a: (2 * a,),
    np.sqrt: lambda y, a: (0.5 / y,),
    np.exp: lambda y, a: (y,),
    np.expm1: lambda y, a: (np.exp(a),),
    np.log: lambda y, a: (1 / a,),
    np.log1p: lambda y, a: (1 / (1 + a),),
    np.tanh: lambda y, a: (1 / np.square(np.cosh(a)),),
    np.abs: lambda y, a: (np.sign(a),),
    np.sin: lambda y, a: (np.cos(a),),
    np.cos: lambda y, a: (-np.sin(a),),
    np.power: lambda y, a, b: (b * np.power(a, b - 1.0), 0.0 * a),
    # A tie gives each argument half of the gradient; NaN passes the gradient to both.
    np.maximum: lambda y, a, b: (
        np.where(a < b, 0.0, np.where(a == b, 0.5, 1.0)),
        np.where(b < a, 0.0, np.where(a == b, 0.5, 1.0)),
    ),
    np.minimum: lambda y, a, b: (
        np.where(a > b, 0.0, np.where(a == b, 0.5, 1.0)),
        np.where(b > a, 0.0, np.where(a == b, 0.5, 1.0)),
    ),
    np.logaddexp: lambda y, a, b: (np.exp(a - y), np.exp(b - y)),
    sp.expit: lambda y, a: (sp.expit(a) * sp.expit(-a),),
    sp.ndtr: lambda y, a: (np.exp(-0.5 * a * a) * 0.3989422804014327,),
    sp.erf: lambda y, a: (1.1283791670955126 * np.exp(-a * a),),
}


def known():
    """Names of the functions that kfgen can differentiate in a reference, comma-separated."""
    return ", ".join(
        sorted(
            f"{'np' if hasattr(np, ufunc.__name__) else 'sp'}.{ufunc.__name__}"
            for ufunc in UFUNC_RULES
        )
    )


class Dual(np.lib.mixins.NDArrayOperatorsMixin):
    """Dual number: a value and its derivatives with respect to each input."""

    def __init__(self, value, tangents):
        self.value, self.tangents = value, tangents

    def __array_ufunc__(self, ufunc, method, *args, **kwargs):
        if method != "__call__" or kwargs or ufunc not in UFUNC_RULES:
            if (
                method == "__call__"
                and not kwargs
                and ufunc.nout == 1
                and ufunc.types[0].endswith("?")
            ):
                return ufunc(*(a.value if isinstance(a, Dual) else a for a in args))
            raise TypeError(
                f"the reference uses np.{ufunc.__name__}, whose derivative kfgen does not know"
            )
        values = [a.value if isinstance(a, Dual) else a for a in args]
        y = ufunc(*values)
        partials = UFUNC_RULES[ufunc](y, *values)
        tangents = {}
        for a, partial in zip(args, partials):
            for name, t in (a.tangents if isinstance(a, Dual) else {}).items():
                product = partial * t
                tangents[name] = tangents[name] + product if name in tangents else product
        return Dual(y, tangents)

    def __array_function__(self, function, types, args, kwargs):
        if function is np.where:
            condition, a, b = args
            names = {n for v in (a, b) if isinstance(v, Dual) for n in v.tangents}

            def pick(v, n):
                return v.tangents.get(n, 0.0) if isinstance(v, Dual) else 0.0

            def val(v):
                return v.value if isinstance(v, Dual) else v

            return Dual(
                np.where(condition, val(a), val(b)),
                {n: np.where(condition, pick(a, n), pick(b, n)) for n in names},
            )
        if function is np.clip:
            return np.minimum(np.maximum(args[0], args[1]), args[2])
        if function is np.ones_like:
            return np.ones_like(args[0].value)
        return NotImplemented


def expit(v):
    """Sigmoid that keeps subnormal results (SciPy's returns 0 for them)."""
    if isinstance(v, Dual):
        return sp.expit(v)
    return np.exp(np.minimum(v, 0)) / (1 + np.exp(-np.abs(v)))


@functools.cache
def _compiled(text):
    return compile(" ".join(text.split()), "<ref>", "eval")


def _eval(text, names):
    with np.errstate(all="ignore"):
        # One dictionary: a lambda inside a reference sees globals only.
        names = {"np": np, "sp": sp, "expit": expit, **names}
        return eval(_compiled(text), names)  # noqa: S307 (the user's own spec file)


def act_value(act, x, scalars):
    return np.broadcast_to(_eval(act.ref, {"x": x, **scalars}), np.shape(x))


def act_derivative(act, x, scalars):
    if act.dref is not None:
        return _eval(act.dref, {"x": x, **scalars})
    with np.errstate(all="ignore"):
        dual = _eval(act.ref, {"x": Dual(x, {"x": np.ones_like(x)}), **scalars})
    tangents = dual.tangents if isinstance(dual, Dual) else {}  # none: it does not read x
    return np.broadcast_to(tangents.get("x", 0.0), x.shape)


def act_derivative_out(act, y, scalars):
    """Derivative of the activation, computed from its result y."""
    return np.broadcast_to(_eval(act.dref_out, {"y": y, **scalars}), np.shape(y))


def reference(op, act, inputs, scalars, keep=None, keep_scale=1.0, result=None):
    """Evaluates an op on float64 arrays of one shape. Returns {output: Dual}.

    Tangents are keyed by the operand's value name. result: the activation's result, from which its
    derivative is computed; None computes it from the argument.
    """

    def apply_act(z):
        dz = (
            act_derivative(act, z.value, scalars)
            if result is None
            else act_derivative_out(act, result, scalars)
        )
        return Dual(act_value(act, z.value, scalars), {n: dz * t for n, t in z.tangents.items()})

    def dropout(z):
        return Dual(
            np.where(keep, z.value * keep_scale, 0.0),
            {n: np.where(keep, t * keep_scale, 0.0) for n, t in z.tangents.items()},
        )

    names = (
        {n: Dual(v, {n: np.ones_like(v)}) for n, v in inputs.items()}
        | scalars
        | {"act": apply_act, "dropout": dropout}
    )
    with np.errstate(all="ignore"):
        found = {name: _eval(text, names) for name, text in op.refs.items()}
    return {n: v if isinstance(v, Dual) else Dual(v, {}) for n, v in found.items()}


def values(op, act, inputs, scalars, keep=None, keep_scale=1.0):
    """Evaluates an op without derivatives. Returns {output: float64 array}."""
    names = (
        inputs
        | scalars
        | {
            "act": lambda z: act_value(act, z, scalars),
            "dropout": lambda z: np.where(keep, z * keep_scale, 0.0),
        }
    )
    return {name: _eval(text, names) for name, text in op.refs.items()}


# Expansions of fused primitives: the bound counts the roundings of the formula.
EXPANSIONS = {"gelu": "a * normcdf(a)", "gelu_bwd": "normcdf(a) + a * normpdf(a)"}


def expand(source, roots):
    """Copies the graph of `roots` with EXPANSIONS applied. Returns (graph, roots)."""
    target, new = Graph(source.levels), {}
    for i in source.reachable(roots):
        node = source.nodes[i]
        args = [new[a] for a in node.args]
        new[i] = (
            parse(target, EXPANSIONS[node.op], {"a": args[0]})
            if node.op in EXPANSIONS
            else target.add(node.op, *args, value=node.value)
        )
    return target, [new[r] for r in roots]


class Bound:
    """Error bound of each result y of a kernel, evaluated in float64.

    S = |y| + the sum of |dy/dt * t| over the formula's rounded intermediates t.
    """

    def __init__(self, kernel, act, by=False):
        """by: True computes the activation's gradient from its result."""
        self.graph = Graph()
        scalars = {s: self.graph.var(s) for s in act.scalars}
        if by:
            self.graph, self.roots = kernel.graph_by(act)
        else:
            self.roots = substitute(
                kernel.graph,
                self.graph,
                kernel.roots,
                {},
                act=(
                    lambda x: act.build(self.graph, x, scalars),
                    lambda x, dy: act.build_bwd(self.graph, x, dy, scalars),
                ),
            )
        self.graph, self.roots = expand(self.graph, self.roots)
        self.terms = []  # for each root: [(intermediate, adjoint)]
        # The float64 reference rounds as well. Its error counts as one rounding of the inputs.
        inputs = kernel.dtype.compute == "f64"
        for root in self.roots:
            inner = [
                i
                for i in self.graph.reachable([root])
                if (self.graph.nodes[i].args or (inputs and self.graph.nodes[i].op == "var"))
                and not self.graph.is_bool(i)
            ]
            adjoints = gradient(self.graph, {root: self.graph.const(1)}, inner)
            self.terms.append(
                [(i, adjoints[i]) for i in inner if adjoints[i] is not None and i != root]
            )
        self.extremes = [self._extremes(root) for root in self.roots]

        # Comparisons of rounded values: near equality both branches are valid.
        self.kinks = []
        for i in self.graph.reachable(self.roots):
            node = self.graph.nodes[i]
            if node.op in ("lt", "le", "gt", "ge", "eq", "ne"):
                for side in node.args:
                    inner = [
                        j
                        for j in self.graph.reachable([side])
                        if self.graph.nodes[j].args and not self.graph.is_bool(j)
                    ]
                    if inner:
                        adjoints = gradient(self.graph, {side: self.graph.const(1)}, inner)
                        self.kinks.append(
                            (
                                *node.args,
                                [(j, adjoints[j]) for j in inner if adjoints[j] is not None],
                            )
                        )

    def _extremes(self, root):
        """Lists each max and min in the graph of `root`.

        An entry is (first argument, second argument, derivative of the root with respect to the max
        or min, [(rounded intermediate of an argument, its derivative)]). If the arguments differ by
        less than their roundings, float32 may select the other one, so the bound includes both.
        """
        found = []
        for i in self.graph.reachable([root]):
            node = self.graph.nodes[i]
            if node.op not in ("max", "min"):
                continue
            terms = []
            for side in node.args:
                inner = [
                    j
                    for j in self.graph.reachable([side])
                    if self.graph.nodes[j].args and not self.graph.is_bool(j)
                ]
                adjoints = gradient(self.graph, {side: self.graph.const(1)}, inner) if inner else {}
                terms += [(j, adjoints[j]) for j in inner if adjoints[j] is not None]
            by = gradient(self.graph, {root: self.graph.const(1)}, [i])[i]
            if terms and by is not None:
                found.append((*node.args, by, terms))
        return found

    def undecided(self, env, eps, tiny, largest):
        """Mask of the elements whose float32 result is not determined.

        A comparison of rounded values is near equality there, or an intermediate is finite in
        float64 and outside float32's range.
        """
        where = np.zeros(1, bool)
        with np.errstate(all="ignore"):
            for a, b, terms in self.kinks:
                va, vb, *values = evaluate(
                    self.graph, [a, b] + [n for pair in terms for n in pair], env, np, sp
                )
                reach = sum(
                    np.nan_to_num(np.abs(t * d)) * eps + np.nan_to_num(np.abs(d)) * tiny
                    for t, d in zip(values[::2], values[1::2])
                )
                where = where | (np.abs(va - vb) <= 4 * reach)
            inner = [
                i
                for i in self.graph.reachable(self.roots)
                if self.graph.nodes[i].args and not self.graph.is_bool(i)
            ]
            for value in evaluate(self.graph, inner, env, np, sp):
                where = where | (np.isfinite(value) & (np.abs(value) > largest))
        return where

    def evaluate(self, env, eps, tiny):
        """Returns (S, sum of |dy/dt|, largest finite |t|) for each root.

        eps: relative rounding error of normal numbers. tiny: absolute rounding error of subnormal
        numbers.
        """
        results = []
        with np.errstate(all="ignore"):
            for root, terms, extremes in zip(self.roots, self.terms, self.extremes):
                nodes = [root] + [n for pair in terms for n in pair]
                y, *values = evaluate(self.graph, nodes, env, np, sp)
                s, slope, top = np.abs(y), np.ones_like(y), np.where(np.isfinite(y), np.abs(y), 0.0)
                for t, adjoint in zip(values[::2], values[1::2]):
                    s = s + np.nan_to_num(np.abs(t * adjoint), nan=0.0, posinf=0.0)
                    slope = slope + np.nan_to_num(np.abs(adjoint), nan=0.0, posinf=0.0)
                    top = np.fmax(top, np.where(np.isfinite(t), np.abs(t), 0.0))
                for a, b, by, near in extremes:
                    va, vb, factor, *values = evaluate(
                        self.graph, [a, b, by] + [n for pair in near for n in pair], env, np, sp
                    )
                    factor = np.nan_to_num(np.abs(factor), posinf=0.0)
                    reach = sum(
                        np.nan_to_num(np.abs(t * d), posinf=0.0)
                        for t, d in zip(values[::2], values[1::2])
                    )
                    moves = sum(np.nan_to_num(np.abs(d), posinf=0.0) for d in values[1::2])
                    either = np.abs(va - vb) <= 4 * (eps * reach + tiny * moves)
                    s, slope = (
                        s + np.where(either, factor * reach, 0.0),
                        slope + np.where(either, factor * moves, 0.0),
                    )
                results.append((s, slope, top))
        return results


class _Single:
    """NumPy whose float64 is float32, for evaluate()."""

    float64 = np.float32

    def __getattr__(self, name):
        return getattr(np, name)


def evaluated(graph, nodes, env, single=False):
    """Evaluates {name: node} in float64 or float32. Returns {name: value}."""
    if single:
        env = {
            n: np.asarray(v, np.float32) if np.asarray(v).dtype == np.float64 else v
            for n, v in env.items()
        }
    library = _Single() if single else np
    return dict(zip(nodes, evaluate(graph, list(nodes.values()), env, library, sp)))


class Reference:
    """The oracle of an op with one activation: values, gradients and error bounds for given inputs,
    and the results of the op's own expressions, which `kfgen check` compares with it.

    This class has expressions of elements. A family with other expressions derives its own.
    """

    pointwise = True  # elements are independent: `kfgen check` differentiates each of them
    single = True  # results can be computed in float32 (notes.py)
    ways = (False,)  # gradients by the inputs (False), by the activation's result (True)
    elements = (POINTS,)  # shape of the elements
    result = (POINTS,)  # shape of a result, which may be larger along axes of 1
    indices = 11  # bound of random indices

    def __init__(self, family, op, act):
        self.family, self.op, self.act = family, op, act
        self.scalars = op.scalars | act.scalars
        self._kernels, self._expressions = {}, {}

    @property
    def differentiable(self):
        return not self.op.types.converts and any(o.grad for o in self.op.operands)

    def kernel(self, bwd):
        if bwd not in self._kernels:
            direction = self.family.backward if bwd else self.family.forward
            self._kernels[bwd] = direction(self.op, self.op.types.uniform("f64", self.op.indexed))
        return self._kernels[bwd]

    def shape(self, operand):
        """Shape of an operand's values in `inputs`."""
        return self.elements

    def inputs(self, rng):
        """Draws {value of an operand: array}."""
        found = {}
        for o in self.op.operands:
            for n in o.values:
                x = rng.standard_normal(POINTS) * rng.choice([0.5, 1.0, 3.0], POINTS)
                found[n] = np.abs(x) + 0.25 if o.positive else x
                if o.dtype == "u8":
                    found[n] = (x > 0).astype(np.float64)
        return found

    def mask(self, rng):
        """Draws the variables of dropout."""
        return {KEEP: rng.random(self.elements) < 0.7, KEEP_SCALE: 1.25}

    def points(self, inputs, want):
        """Returns {name: array of the shape of `want`}: the inputs, for a message."""
        last = want.shape[-1]
        return {n: np.broadcast_to(v[..., :last], want.shape) for n, v in inputs.items()}

    def is_number(self, operand):
        """True for an operand that is one number, which `inputs` determines."""
        return False

    def values(self, inputs, mask):
        """Returns {output: value of `ref`}."""
        return values(self.op, self.act, inputs, self.scalars, *mask.values())

    def gradients(self, inputs, douts, mask):
        """Returns {value of an operand: derivative of `ref`}. douts: {output: its gradient}."""
        duals = reference(self.op, self.act, inputs, self.scalars, *mask.values())
        return {
            name[1:]: sum(
                d * np.broadcast_to(duals[out].tangents.get(name[1:], 0.0), np.shape(d))
                for out, d in douts.items()
            )
            for name in self.expressions(True)[1]
        }

    def bound(self, kernel, by=False):
        """Returns the error bounds of a kernel of the op."""
        return Bound(kernel, self.act, by)

    def expressions(self, bwd):
        """Returns (graph, {result: node}) of the op's own expressions, the activation inlined."""
        if bwd not in self._expressions:
            self._expressions[bwd] = self._inlined(bwd)
        return self._expressions[bwd]

    def _inlined(self, bwd):
        if self.op.types.converts:
            graph, _, outputs = self.family.graph(self.op)
            return graph, outputs
        graph, kernel = Graph(), self.kernel(bwd)
        scalars = {s: graph.var(s) for s in self.act.scalars}
        act = (
            lambda x: self.act.build(graph, x, scalars),
            lambda x, dy: self.act.build_bwd(graph, x, dy, scalars),
        )
        roots = substitute(kernel.graph, graph, kernel.roots, {}, act=act)
        results = [s.next_name for s in kernel.updated]
        results += [part for s in kernel.outputs for part in s.parts]
        return graph, dict(zip(results, roots))

    def results(self, bwd, env, single=False, by=False):
        """Evaluates the op's own expressions. Returns {result: value}; gradients may have terms
        that `summed` adds.
        """
        graph, nodes = self.expressions(bwd)
        return evaluated(graph, nodes, self.scalars | env, single)

    def summed(self, name, terms):
        """Adds the terms of an operand's gradient."""
        return terms
