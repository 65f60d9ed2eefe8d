# SPDX-License-Identifier: Apache-2.0
"""Compares every entry with its own reference in float64: values, edges, and derivatives with finite differences.

The references are NumPy text of their own, so that a slip in an expression, in a closed form or in the differentiation
rules shows as a difference between the two.
"""

import numpy as np
import scipy.special as sp

from kfgen import families
from kfgen.entries.expand import counted
from kfgen.families import reference as elements_reference
from kfgen.families.matmul import reference as matmul_reference
from kfgen.families.rows import reference as rows_reference
from kfgen.language import passes
from kfgen.language.emit import evaluate
from kfgen.language.expr import ExprError, Graph, parse
from kfgen.language.gradient import substitute
from kfgen.language.primitives import COMPARISONS, KEEP, KEEP_SCALE, query_names, row_names

DY = -1.75  # the incoming gradient: not 1, so that a dexpr that forgets it is seen
STENCIL = np.array([-2.0, -1.0, 1.0, 2.0])
WEIGHTS = np.array([1.0, -8.0, 8.0, -1.0]) / 12
POINTS = 96
HALVINGS, AGREE = (
    14,
    1e-3,
)  # of the step of a finite difference at most; how well two steps agree that are fine enough


def _chosen(selection):
    """(activations, [(op, activation)]) to look at: all, or where there are a user's own entries those, and kf's with them."""
    acts = selection.activations
    pairs = [(op, act) for op in selection.ops for act in op.activations]
    if all(entry.builtin for entry in (*acts, *selection.ops)):
        return acts, pairs
    return [a for a in acts if not a.builtin], [
        (op, act) for op, act in pairs if not (op.builtin and act.builtin)
    ]


def run(selection):
    """(messages about what is wrong, lines that count what was looked at)."""
    failures, edges, wrong = [], 0, []
    acts, pairs = _chosen(selection)
    for act in acts:
        before = len(failures)
        try:
            edges += _activation(act, failures)
        except Trouble as e:
            failures.append(str(e))
        wrong += [act] if len(failures) > before else []  # every op would fail with it
    pairs = [(op, act) for op, act in pairs if act not in wrong]
    for op, act in pairs:
        try:
            _op(op, act, failures)
        except Trouble as e:
            failures.append(str(e))
    launchers = [(k, a) for k in selection.all_kernels() for a in k.launchers]
    return failures, [
        f"{_count(len(acts), 'activation')}: values, derivatives and {edges} edges",
        f"{_count(len({op.pattern for op, _ in pairs}), 'op')} with their activations, {len(pairs)} in all: values and gradients",
        f"{counted(launchers)}: names{f', {len(failures)} wrong' if failures else ''}",
    ]


def _count(n, word):
    return f"{n} {word}{'' if n == 1 else 's'}"


class Trouble(Exception):
    """An entry that cannot be checked at all."""


def _grid(rng, around):
    """Points over the range in which activations do something, far out, and close to the given ones, where kinks may be."""
    close = [
        c for v in around if abs(v) < 60 for c in (v, -v, v * 1.0002 + 1e-5, v * 0.9998 - 1e-5)
    ]
    tiny = np.exp2(rng.uniform(-20, 0, 8)) * np.tile([1.0, -1.0], 4)
    return np.concatenate(
        [close, rng.uniform(-9, 9, POINTS), rng.uniform(-60, 60, POINTS // 4), tiny]
    )


def _scalar_sets(entry):
    """The values that the entry gives for tests, and others near them."""
    return [dict(entry), {k: v * 1.5 for k, v in entry.items()}] if entry else [{}]


def _step(x):
    return 2e-3 * np.maximum(1.0, np.abs(x) / 16)


def _smooth(graph, roots, envs):
    """Where no comparison, |.|, max or min of the graph changes sides over the evaluations in envs: no kink is between."""
    sides = []
    for i in graph.reachable(roots):
        node = graph.nodes[i]
        if node.op in (*COMPARISONS, "max", "min"):
            sides.append(node.args)
        elif node.op == "abs":
            sides.append((node.args[0], graph.const(0)))
    good = np.ones(1, bool)
    for a, b in sides:
        signs = []
        for env in envs:
            va, vb = evaluate(graph, [a, b], env, np, sp)
            signs.append(np.sign(va - vb))
        first = signs[0]
        for other in signs[1:]:
            good = good & (first == other) & (first != 0)
    return good


def _difference(f, x):
    """(df/dx by central differences of fourth order, a bound of their error) at each x. Where two steps do not agree they are halved: cos(a / b)
    goes through whole periods in a step of b near 0. What two steps read there may be the same by chance, so that three are asked."""
    best, bound, coarse, apart = 0.0, np.inf, None, 0.0
    for halvings in range(HALVINGS):
        h = _step(x) / 2**halvings
        values = [f(x + s * h) for s in STENCIL]
        with np.errstate(all="ignore"):
            fine = sum(w * v for w, v in zip(WEIGHTS, values)) / h
            if halvings:
                before, apart = apart, np.abs(fine - coarse)
                rounding = 1e-11 * np.max(np.abs(values), axis=0) / (2 * h)
                error = 2 * np.maximum(apart, before) + 1e-8 * np.abs(fine) + rounding
                better = ~(error >= bound)
                best, bound = np.where(better, fine, best), np.where(better, error, bound)
                if not np.any(bound > AGREE * np.abs(best)):
                    break
        coarse = fine
    return best, bound


def _compare(failures, place, what, points, got, want, tolerance):
    """One message per field: the first point at which the two differ."""
    got, want, tolerance = (
        np.broadcast_to(v, points[next(iter(points))].shape) for v in (got, want, tolerance)
    )
    with np.errstate(all="ignore"):
        bad = np.flatnonzero(
            ~(np.abs(got - want) <= tolerance) & ~(got == want) & ~(np.isnan(got) & np.isnan(want))
        )
    if bad.size:
        at = ", ".join(
            f"{n} = {float(v.reshape(-1)[bad[0]]):.9g}" if np.ndim(v) else f"{n} = {v:g}"
            for n, v in points.items()
        )
        failures.append(
            f"{place} {what}, at {at}: {got.reshape(-1)[bad[0]]:.12g}, expected {want.reshape(-1)[bad[0]]:.12g}"
        )


# ---- activations ---------------------------------------------------------------------------------


def _activation_graph(act):
    graph = Graph()
    env = {s: graph.var(s) for s in act.scalars}
    x = graph.var("x")
    return graph, act.build(graph, x, env), act.build_bwd(graph, x, graph.var("dy"), env)


def _activation(act, failures):
    graph, y, dx = _activation_graph(act)
    place = f"{act.file}: [activation.{act.name}]"
    field_bwd = "dexpr" if act.dexpr else "expr (its derivative)"
    edges = 0
    for scalars in _scalar_sets(act.scalars):
        constants = {
            float(graph.nodes[i].value)
            for i in graph.reachable([y, dx])
            if graph.nodes[i].op == "const"
        }
        x = _grid(np.random.default_rng(7), sorted(constants | set(scalars.values())))
        points = {"x": x} | scalars
        value, back = evaluate(
            graph, [y, dx], {"x": x, "dy": np.full_like(x, DY), **scalars}, np, sp
        )
        (slope,) = evaluate(graph, [dx], {"x": x, "dy": np.ones_like(x), **scalars}, np, sp)
        try:
            ref = elements_reference.act_value(act, x, scalars) + 0 * x
        except Exception as e:  # the reference is a text of the user's
            raise Trouble(f"{place} ref: cannot be evaluated: {e}") from None
        _compare(
            failures, place, "expr against ref", points, value, ref, 1e-9 * np.abs(ref) + 1e-13
        )
        near = [{"x": x + s * _step(x), "dy": 1.0, **scalars} for s in (0.0, *STENCIL)]
        smooth = np.broadcast_to(_smooth(graph, [y, dx], near), x.shape)
        if not smooth.any():
            raise Trouble(
                f"{place} expr: has a kink near every point, so that its derivative cannot be checked"
            )
        kept = {n: v[smooth] if np.ndim(v) else v for n, v in points.items()}
        fd, tolerance = _difference(
            lambda at, scalars=scalars: elements_reference.act_value(act, at, scalars), x[smooth]
        )
        _compare(
            failures,
            place,
            f"{field_bwd} with dy = {DY} against finite differences of ref",
            kept,
            np.broadcast_to(back, x.shape)[smooth],
            DY * fd,
            abs(DY) * tolerance,
        )
        try:
            dref = elements_reference.act_derivative(act, x, scalars) + 0 * x
        except Exception as e:
            field, fix = ("dref", "") if act.dref else ("ref", "; give the activation a dref")
            raise Trouble(
                f"{place} {field}: cannot be differentiated or evaluated: {e}{fix}"
            ) from None
        beside = [
            {"x": x + s * 1e-7 * np.maximum(1.0, np.abs(x)), "dy": 1.0, **scalars}
            for s in (0.0, -1.0, 1.0)
        ]
        away = np.broadcast_to(_smooth(graph, [y, dx], beside), x.shape)
        kept = {n: v[away] if np.ndim(v) else v for n, v in points.items()}
        _compare(
            failures,
            place,
            f"{field_bwd} against {'dref' if act.dref else 'the derivative of ref'}",
            kept,
            np.broadcast_to(slope, x.shape)[away],
            dref[away],
            1e-9 * np.abs(dref[away]) + 1e-12,
        )
        if act.dexpr_out and all(scalars[s] >= 0 for s in act.rising):
            _by_result(act, place, points, ref, dref, away, failures)
        edges += _edges(act, graph, {"edges": y, "dedges": dx}, scalars, failures)
    return edges // len(_scalar_sets(act.scalars))


def _by_result(act, place, points, y, dref, away, failures):
    """The derivative by the result, y of points: against dref_out, and away from kinks against the derivative by x. There 1 - y, y rounded, is what
    both are made of: so near are they."""
    graph = Graph()
    names = {n: graph.var(n) for n in points if n != "x"}
    root = act.build_bwd_out(graph, graph.var("y"), graph.var("dy"), names)
    scalars = {n: points[n] for n in names}
    got = evaluate(graph, [root], {"y": y, "dy": np.ones_like(y), **scalars}, np, sp)[0] + 0 * y
    try:
        want = elements_reference.act_derivative_out(act, y, scalars)
    except Exception as e:  # a text of the user's
        raise Trouble(f"{place} dref_out: cannot be evaluated: {e}") from None
    with np.errstate(all="ignore"):
        near = 1e-15 * np.maximum(1.0, np.abs(y)) * max([1.0, *(abs(v) for v in scalars.values())])
    _compare(
        failures,
        place,
        "dexpr_out against dref_out",
        points,
        got,
        want,
        1e-9 * np.abs(want) + 2 * near,
    )
    kept = {n: v[away] if np.ndim(v) else v for n, v in points.items()}
    # Where the result has reached a bound in float64, x is beyond it.
    _compare(
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
                failures.append(
                    f"{act.file}: [activation.{act.name}] {field}: at x = {point}: {got!r}, expected {want!r}"
                )
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


# ---- ops -----------------------------------------------------------------------------------------


def direction(op, bwd):
    family = families.of(op)
    return (family.backward if bwd else family.forward)(op, ("f64",))


def _inlined(op, act):
    """The op's graph with the activation's own expressions: (graph, {output: node}, {operand value: gradient})."""
    if op.types == "pairs":
        graph, _, outputs = families.of(op).graph(op)
        return graph, outputs, {}
    graph, results = Graph(), []
    scalars = {s: graph.var(s) for s in act.scalars}
    for bwd in (False, True) if any(o.grad for o in op.operands) else (False,):
        k = direction(op, bwd)
        roots = substitute(
            k.graph,
            graph,
            k.roots,
            {},
            act=(
                lambda x: act.build(graph, x, scalars),
                lambda x, dy: act.build_bwd(graph, x, dy, scalars),
            ),
        )
        results.append(dict(zip((p for s in k.outputs for p in s.parts), roots)))
    return (
        graph,
        results[0],
        {name[1:]: node for gradients in results[1:] for name, node in gradients.items()},
    )


def _op(op, act, failures):
    {"elements": _map_op, "rows": _row_op, "products": _product_op, "logits": _logits_op}[
        families.of(op).oracle
    ](op, act, failures)


def _logits_op(op, act, failures):
    """Its rows; the layers around them are entries of their own."""
    _row_op(families.of(op).of_rows(op), act, failures)


def _product_op(op, act, failures):
    place = f"{op.file}: [op.{op.pattern}]" + (f" with {act.name}" if op.has_act else "")
    matmul_reference.check(
        op,
        act,
        families.of(op),
        lambda what, *more: _compare(failures, place, what, *more),
        lambda text: Trouble(f"{place} {text}"),
    )


def _map_op(op, act, failures):
    place = f"{op.file}: [op.{op.pattern}]" + (f" with {act.name}" if op.has_act else "")
    graph, outputs, gradients = _inlined(op, act)
    rng = np.random.default_rng(11)
    scalars = op.scalars | act.scalars
    inputs = {}
    for o in op.operands:
        for n in o.values:
            x = rng.standard_normal(POINTS) * rng.choice([0.5, 1.0, 3.0], POINTS)
            inputs[n] = np.abs(x) + 0.25 if o.positive else x
    keep = rng.random(POINTS) < 0.7
    env = {
        **inputs,
        **scalars,
        KEEP: keep,
        KEEP_SCALE: 1.25,
        **{f"d{n}": np.full(POINTS, DY + k) for k, n in enumerate(outputs)},
    }

    def reference(at):
        try:
            return elements_reference.values(op, act, at, scalars, keep, 1.25)
        except Exception as e:  # the reference is a text of the user's
            raise Trouble(f"{place} ref: cannot be evaluated: {e}") from None

    want = reference(inputs)
    for name, value in zip(outputs, evaluate(graph, list(outputs.values()), env, np, sp)):
        _compare(
            failures,
            place,
            f"expr of {name} against its ref",
            inputs,
            value,
            want[name],
            1e-9 * np.abs(want[name]) + 1e-11,
        )
    try:
        duals = (
            elements_reference.reference(op, act, inputs, scalars, keep, 1.25) if gradients else {}
        )
    except Exception as e:
        raise Trouble(
            f"{place} ref: cannot be differentiated: {e}; write it with {elements_reference.known()}"
        ) from None
    for name, node in gradients.items():
        got = np.broadcast_to(evaluate(graph, [node], env, np, sp)[0], (POINTS,))
        x = inputs[name]
        near = [{**env, name: x + s * _step(x)} for s in (0.0, *STENCIL)]
        smooth = np.broadcast_to(_smooth(graph, list(outputs.values()) + [node], near), x.shape)
        smooth = smooth & np.isfinite(
            sum(sum(reference({**inputs, name: e[name]}).values()) for e in near)
        )
        if not smooth.any():
            raise Trouble(
                f"{place} expr: at no point can its gradient for {name} be checked; is `positive = true` missing?"
            )
        fd, tolerance = 0.0, 0.0
        for k, out in enumerate(outputs):
            slope, error = _difference(
                lambda at, out=out, name=name: reference({**inputs, name: at})[out], x
            )
            fd, tolerance = fd + (DY + k) * slope, tolerance + abs(DY + k) * error
        kept = {n: v[smooth] for n, v in inputs.items()}
        _compare(
            failures,
            place,
            f"gradient for {name} against finite differences of ref",
            kept,
            got[smooth],
            fd[smooth],
            tolerance[smooth],
        )
        exact = sum(
            (DY + k) * np.broadcast_to(duals[out].tangents.get(name, 0.0), x.shape)
            for k, out in enumerate(outputs)
        )
        _compare(
            failures,
            place,
            f"gradient for {name} against the derivative of ref",
            kept,
            got[smooth],
            exact[smooth],
            1e-9 * np.abs(exact[smooth]) + 1e-11,
        )


# ---- ops over rows -------------------------------------------------------------------------------

ROWS, COLS = 6, 11
SHAPES = {
    "elem": (ROWS, COLS),
    "row": (COLS,),
    "per_row": (ROWS, 1),
    "channel": (ROWS, 1),
    "shared": (ROWS, COLS),  # of one batch, one head
    "group": (ROWS, COLS),
}  # inner = 1


def _row_op(op, act, failures):
    place = f"{op.file}: [op.{op.pattern}]" + (f" with {act.name}" if op.has_act else "")
    rng = np.random.default_rng(11)
    scalars = op.scalars | act.scalars | query_names(ROWS, ROWS // 2, np)
    kinds = {o.name: families.of(op).in_rows.get(o.kind, o.kind) for o in op.operands}
    inputs = {o.name: rng.standard_normal(SHAPES[kinds[o.name]]) for o in op.operands}
    inputs |= {o.name: np.abs(inputs[o.name]) + 0.25 for o in op.operands if o.positive}
    inputs |= {
        o.name: rng.integers(0, COLS, SHAPES[kinds[o.name]]).astype(np.float64)
        for o in op.operands
        if o.dtype == "I"
    }
    inputs |= {
        o.name: (rng.random(SHAPES[kinds[o.name]]) < 0.7).astype(np.float64)
        for o in op.operands
        if o.dtype == "u8"
    }

    mask = {KEEP: rng.random((ROWS, COLS)) < 0.7, KEEP_SCALE: 1.25} if op.dropout else {}

    def reference(at):
        try:
            return rows_reference.reference(op, act, at, scalars, None, *mask.values())
        except Exception as e:  # the reference is a text of the user's
            raise Trouble(f"{place} ref: cannot be evaluated or differentiated: {e}") from None

    def results(bwd, env):
        kernel = direction(op, bwd)
        graph, roots = passes.inlined(kernel.graph, kernel.roots, act)
        return dict(
            zip(
                (s.name for s in kernel.outputs),
                evaluate(graph, roots, env | scalars | mask | row_names(COLS, np), np, sp),
            )
        )

    tapes, leaves = reference(inputs)
    found = results(False, inputs)
    shapes = {
        n: np.broadcast_shapes(np.shape(t.value), np.shape(found[n]), (ROWS, 1))
        for n, t in tapes.items()
    }
    for name, tape in tapes.items():
        want = np.broadcast_to(tape.value, shapes[name])
        points = {
            n: np.broadcast_to(v[..., : want.shape[-1]], want.shape) for n, v in inputs.items()
        }
        _compare(
            failures,
            place,
            f"expr of {name} against its ref",
            points,
            found[name],
            want,
            1e-9 * np.abs(want) + 1e-11,
        )
    if not any(o.grad for o in op.operands):
        return
    douts = {n: rng.standard_normal(shapes[n]) for n in op.outputs}
    exact = rows_reference.gradients(tapes, leaves, douts)
    got = results(True, inputs | found | {f"d{n}": d for n, d in douts.items()})
    for o in op.operands:
        if not o.grad:
            continue
        want = exact[o.name]
        value = np.broadcast_to(
            got[f"d{o.name}"], SHAPES["elem" if o.kind == "row" else kinds[o.name]]
        )
        value = value.sum(0) if o.kind == "row" else value
        points = {o.name: inputs[o.name]}
        _compare(
            failures,
            place,
            f"gradient for {o.name} against the derivative of ref",
            points,
            value,
            want,
            1e-9 * np.abs(want) + 1e-11,
        )
        # Along a direction, by differences of the reference: what the two derivatives might have in common.
        way, near = rng.standard_normal(inputs[o.name].shape), []
        for step in (1e-5, -1e-5):
            moved, _ = reference(inputs | {o.name: inputs[o.name] + step * way})
            near.append(sum((moved[n].value * d).sum() for n, d in douts.items()))
        slope = np.array([(near[0] - near[1]) / 2e-5])
        _compare(
            failures,
            place,
            f"gradient for {o.name} against finite differences of ref",
            {"step": slope},
            np.array([(value * way).sum()]),
            slope,
            1e-6 * np.abs(slope) + 1e-6 * np.abs(value * way).sum(),
        )
