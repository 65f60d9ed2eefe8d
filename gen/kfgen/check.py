# SPDX-License-Identifier: Apache-2.0
"""Compares every entry with its own reference in float64: values, edges, and derivatives with
finite differences.

The references are separate NumPy expressions, so an error in an expression, in a closed gradient or
in a gradient rule shows as a difference.
"""

import numpy as np

from kfgen import check_activations, families
from kfgen.differences import DY, STENCIL, Trouble, compare, difference, smooth, step_at
from kfgen.entries.expand import counted
from kfgen.families import reference as elements_reference


def _chosen(selection):
    """Returns (activations, [(op, activation)]) to check: all, or those with a user's entries."""
    acts = selection.activations
    pairs = [(op, act) for op in selection.ops for act in op.activations]
    if all(entry.builtin for entry in (*acts, *selection.ops)):
        return acts, pairs
    return [a for a in acts if not a.builtin], [
        (op, act) for op, act in pairs if not (op.builtin and act.builtin)
    ]


def run(selection):
    """Checks the entries of a selection; returns (error messages, summary lines)."""
    failures, edges, wrong = [], 0, []
    acts, pairs = _chosen(selection)
    for act in acts:
        before = len(failures)
        try:
            edges += check_activations.check(act, failures)
        except Trouble as e:
            failures.append(str(e))
        wrong += [act] if len(failures) > before else []  # all ops with it would fail, too
    pairs = [(op, act) for op, act in pairs if act not in wrong]
    for op, act in pairs:
        try:
            _op(op, act, failures)
        except Trouble as e:
            failures.append(str(e))
    launchers = [(k, a) for k in selection.all_kernels() for a in k.launchers]
    return failures, [
        f"{_count(len(acts), 'activation')}: values, derivatives and {edges} edges",
        f"{_count(len({op.pattern for op, _ in pairs}), 'op')} with their activations, "
        f"{len(pairs)} in all: values and gradients",
        f"{counted(launchers)}: names{f', {len(failures)} wrong' if failures else ''}",
    ]


def _count(n, word):
    return f"{n} {word}{'' if n == 1 else 's'}"


# ---- ops -----------------------------------------------------------------------------------------


def _op(op, act, failures):
    """Compares an op's own expressions with its reference."""
    place = f"{op.file}: [op.{op.pattern}]" + (f" with {act.name}" if op.has_act else "")
    reference = families.of(op).reference(op, act)
    rng = np.random.default_rng(11)
    inputs, mask = reference.inputs(rng), reference.mask(rng)

    def values(at):
        try:
            found = reference.values(at, mask)
            return {n: np.asarray(v, np.float64) for n, v in found.items()}
        except Exception as e:  # the reference is text of a user
            done = "evaluated" if reference.pointwise else "evaluated or differentiated"
            raise Trouble(f"{place} ref: cannot be {done}: {e}") from None

    expected, found = values(inputs), reference.results(False, inputs | mask)
    shapes = {}
    for name, value in expected.items():
        shape = np.broadcast_shapes(np.shape(value), np.shape(found[name]), reference.result)
        shapes[name], want = shape, np.broadcast_to(value, shape)
        what, tolerance = f"expr of {name} against its ref", 1e-9 * np.abs(want) + 1e-11
        points = reference.points(inputs, want)
        compare(failures, place, what, points, found[name], want, tolerance)
    if not reference.differentiable:
        return
    douts = {
        n: np.full(shapes[n], DY + k) if reference.pointwise else rng.standard_normal(shapes[n])
        for k, n in enumerate(reference.op.outputs)
    }
    try:
        exact = reference.gradients(inputs, douts, mask)
    except Exception as e:
        known = elements_reference.known()
        problem = f"cannot be differentiated: {e}; write it with {known}"
        raise Trouble(f"{place} ref: {problem}") from None
    env = inputs | mask | found | {f"d{n}": d for n, d in douts.items()}
    for by in reference.ways:
        got = reference.results(True, env, by=by)
        for name, want in exact.items():
            value = reference.summed(name, got[f"d{name}"])
            if reference.pointwise:
                checked = reference, name, value, env
                _of_elements(place, checked, inputs, douts, values, want, failures)
            else:
                checked = name, value, rng
                _of_tensor(place, checked, inputs, douts, values, want, failures)
            _at_nan(place, reference, (name, value, by), (inputs, mask, douts), failures)


def _at_nan(place, reference, checked, given, failures):
    """Checks that no comparison turns the gradient of NaN into 0: training would go on unnoticed.
    A closed gradient may say so (`dedges`). Only gradients that are otherwise not 0 count.
    """
    (name, usual, by), (inputs, mask, douts) = checked, given
    if reference.act.dedges.get("nan") == 0:
        return
    one = reference.pointwise or np.arange(inputs[name].size).reshape(inputs[name].shape) == 0
    at = inputs | {name: np.where(one, np.nan, inputs[name])} | mask
    found = reference.results(False, at)
    env = at | found | {f"d{n}": d for n, d in douts.items()}
    got = reference.summed(name, reference.results(True, env, by=by)[f"d{name}"])
    nan = [np.isnan(found[n]) for n in douts]
    lost = np.any(nan, 0) if reference.pointwise else one & any(v.any() for v in nan)
    lost = lost & (got == 0) & (usual != 0)
    if lost.any():
        failures.append(
            f"{place} expr: where {name} is NaN the result is NaN, but the gradient for {name} is "
            "0; write the comparison so that NaN takes an arm that reads it: where(x <= 0, 0, dy), "
            "not where(x > 0, dy, 0)"
        )


def _exact(failures, place, name, points, value, want):
    what = f"gradient for {name} against the derivative of ref"
    compare(failures, place, what, points, value, want, 1e-9 * np.abs(want) + 1e-11)


def _smooth(reference, name, env, x):
    """True for the points near which neither results nor gradient have a kink."""
    near = [{**reference.scalars, **env, name: x + s * step_at(x)} for s in (0.0, *STENCIL)]
    graph, nodes = reference.expressions(False)
    back, gradients = reference.expressions(True)
    both = smooth(graph, [*nodes.values()], near) & smooth(back, [gradients[f"d{name}"]], near)
    return near, np.broadcast_to(both, x.shape)


def _of_elements(place, checked, inputs, douts, values, exact, failures):
    """Compares the gradient of each element with a finite difference and with the exact derivative
    of ref.
    """
    reference, name, got, env = checked
    x = inputs[name]
    got = np.broadcast_to(got, x.shape)
    near, is_smooth = _smooth(reference, name, env, x)
    is_smooth = is_smooth & np.isfinite(
        sum(sum(values({**inputs, name: e[name]}).values()) for e in near)
    )
    if not is_smooth.any():
        problem = f"at no point can its gradient for {name} be checked"
        raise Trouble(f"{place} expr: {problem}; is `positive = true` missing?")
    fd, tolerance = 0.0, 0.0
    for out, d in douts.items():
        slope, error = difference(lambda at, out=out: values({**inputs, name: at})[out], x)
        fd, tolerance = fd + d * slope, tolerance + np.abs(d) * error
    kept = {n: v[is_smooth] for n, v in inputs.items()}
    got, fd, exact, tolerance = (
        np.broadcast_to(v, x.shape)[is_smooth] for v in (got, fd, exact, tolerance)
    )
    what = f"gradient for {name} against finite differences of ref"
    compare(failures, place, what, kept, got, fd, tolerance)
    _exact(failures, place, name, kept, got, exact)


def _of_tensor(place, checked, inputs, douts, values, exact, failures):
    """Compares a gradient with the exact derivative of ref, and with a directional difference,
    since both derivatives might share an error.
    """
    name, value, rng = checked
    _exact(failures, place, name, {name: inputs[name]}, value, exact)
    direction, near = rng.standard_normal(inputs[name].shape), []
    for step in (1e-5, -1e-5):
        moved = values(inputs | {name: inputs[name] + step * direction})
        near.append(sum((moved[n] * d).sum() for n, d in douts.items()))
    slope = np.array([(near[0] - near[1]) / 2e-5])
    what = f"gradient for {name} against finite differences of ref"
    along = np.array([(value * direction).sum()])
    bound = 1e-6 * np.abs(slope) + 1e-6 * np.abs(value * direction).sum()
    compare(failures, place, what, {"step": slope}, along, slope, bound)
