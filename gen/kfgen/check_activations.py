# SPDX-License-Identifier: Apache-2.0
"""Checks of activations: values, edges and derivatives against their references."""

import numpy as np
import scipy.special as sp

from kfgen.differences import (
    DY,
    STENCIL,
    Trouble,
    compare,
    difference,
    grid,
    scalar_sets,
    smooth,
    step_at,
)
from kfgen.families import reference as elements_reference
from kfgen.language.emit import evaluate
from kfgen.language.expr import ExprError, Graph, parse


def _activation_graph(act):
    graph = Graph()
    env = {s: graph.var(s) for s in act.scalars}
    x = graph.var("x")
    return graph, act.build(graph, x, env), act.build_bwd(graph, x, graph.var("dy"), env)


def check(act, failures):
    """Adds messages about an activation; returns the number of edges checked."""
    graph, y, dx = _activation_graph(act)
    edges = 0
    for scalars in scalar_sets(act.scalars):
        _values(act, graph, y, dx, scalars, failures)
        edges += _edges(act, graph, {"edges": y, "dedges": dx}, scalars, failures)
    return edges // len(scalar_sets(act.scalars))


def _values(act, graph, y, dx, scalars, failures):
    """Compares value and derivatives at the points of a grid."""
    place = f"{act.file}: [activation.{act.name}]"
    nodes = (graph.nodes[i] for i in graph.reachable([y, dx]))
    constants = {float(node.value) for node in nodes if node.op == "const"}
    x = grid(np.random.default_rng(7), sorted(constants | set(scalars.values())))
    points = {"x": x} | scalars
    value, back = evaluate(graph, [y, dx], {"x": x, "dy": np.full_like(x, DY), **scalars}, np, sp)
    try:
        ref = elements_reference.act_value(act, x, scalars) + 0 * x
    except Exception as e:  # the reference is text of a user
        raise Trouble(f"{place} ref: cannot be evaluated: {e}") from None
    tolerance = 1e-9 * np.abs(ref) + 1e-13
    compare(failures, place, "expr against ref", points, value, ref, tolerance)
    field = "dexpr" if act.dexpr else "expr (its derivative)"
    near = [{"x": x + s * step_at(x), "dy": 1.0, **scalars} for s in (0.0, *STENCIL)]
    is_smooth = np.broadcast_to(smooth(graph, [y, dx], near), x.shape)
    if not is_smooth.any():
        problem = "has a kink near every point, so that its derivative cannot be checked"
        raise Trouble(f"{place} expr: {problem}")
    fd, bound = difference(lambda at: elements_reference.act_value(act, at, scalars), x[is_smooth])
    what = f"{field} with dy = {DY} against finite differences of ref"
    got = np.broadcast_to(back, x.shape)[is_smooth]
    compare(failures, place, what, _at(points, is_smooth), got, DY * fd, abs(DY) * bound)
    _derivative(act, place, field, (graph, y, dx), points, scalars, ref, failures)


def _at(points, where):
    return {n: v[where] if np.ndim(v) else v for n, v in points.items()}


def _derivative(act, place, field, nodes, points, scalars, ref, failures):
    """Compares the derivatives by x and by the result with those of the reference."""
    (graph, y, dx), x = nodes, points["x"]
    (slope,) = evaluate(graph, [dx], {"x": x, "dy": np.ones_like(x), **scalars}, np, sp)
    try:
        dref = elements_reference.act_derivative(act, x, scalars) + 0 * x
    except Exception as e:
        name, fix = ("dref", "") if act.dref else ("ref", "; give the activation a dref")
        raise Trouble(f"{place} {name}: cannot be differentiated or evaluated: {e}{fix}") from None
    beside = [
        {"x": x + s * 1e-7 * np.maximum(1.0, np.abs(x)), "dy": 1.0, **scalars}
        for s in (0.0, -1.0, 1.0)
    ]
    away = np.broadcast_to(smooth(graph, [y, dx], beside), x.shape)
    what = f"{field} against {'dref' if act.dref else 'the derivative of ref'}"
    got, want = np.broadcast_to(slope, x.shape)[away], dref[away]
    tolerance = 1e-9 * np.abs(want) + 1e-12
    compare(failures, place, what, _at(points, away), got, want, tolerance)
    if act.dexpr_out and all(scalars[s] >= 0 for s in act.rising):
        _by_result(act, place, points, ref, dref, away, failures)


def _by_result(act, place, points, y, dref, away, failures):
    """Compares the derivative from the result y with dref_out and, away from kinks, with the
    derivative by x. Both use 1 - y with y rounded, which bounds their difference.
    """
    graph = Graph()
    names = {n: graph.var(n) for n in points if n != "x"}
    root = act.build_bwd_out(graph, graph.var("y"), graph.var("dy"), names)
    scalars = {n: points[n] for n in names}
    got = evaluate(graph, [root], {"y": y, "dy": np.ones_like(y), **scalars}, np, sp)[0] + 0 * y
    try:
        want = elements_reference.act_derivative_out(act, y, scalars)
    except Exception as e:  # the reference is text of a user
        raise Trouble(f"{place} dref_out: cannot be evaluated: {e}") from None
    with np.errstate(all="ignore"):
        near = 1e-15 * np.maximum(1.0, np.abs(y)) * max([1.0, *(abs(v) for v in scalars.values())])
    compare(
        failures,
        place,
        "dexpr_out against dref_out",
        points,
        got,
        want,
        1e-9 * np.abs(want) + 2 * near,
    )
    kept = _at(points, away)
    # The tolerance covers results that have reached a bound in float64 while x is beyond it.
    compare(
        failures,
        place,
        "dexpr_out against the derivative by x",
        kept,
        got[away],
        dref[away],
        1e-9 * np.abs(dref[away]) + 4 * near[away],
    )


def _edges(act, graph, roots, scalars, failures):
    count = 0
    for field, root in roots.items():
        for point, text in getattr(act, field).items():
            x = np.array([float(point)])
            want = _edge_value(act, field, point, text, scalars)
            got = float(
                np.reshape(
                    evaluate(graph, [root], {"x": x, "dy": np.ones(1), **scalars}, np, sp)[0], -1
                )[0]
            )
            same = (
                np.isnan(got)
                if np.isnan(want)
                else got == want or abs(got - want) <= 1e-12 * abs(want)
            )
            if want == 0 and field == "edges":
                same = same and np.signbit(got) == np.signbit(want)
            count += 1
            if not same:
                place = f"{act.file}: [activation.{act.name}] {field}"
                failures.append(f"{place}: at x = {point}: {got!r}, expected {want!r}")
    return count


def _edge_value(act, field, point, text, scalars):
    if isinstance(text, (int, float)):
        return float(text)
    try:
        return float(text)  # "nan", "-inf", "-0"
    except ValueError:
        pass
    graph = Graph()
    try:
        root = parse(graph, text, {s: graph.var(s) for s in act.scalars})
    except ExprError as e:
        raise Trouble(
            f"{act.file}: [activation.{act.name}] {field}: the value at {point} {e}"
        ) from None
    return float(evaluate(graph, [root], {s: np.float64(v) for s, v in scalars.items()}, np, sp)[0])
