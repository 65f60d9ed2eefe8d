# SPDX-License-Identifier: Apache-2.0
"""Compares every entry with its own reference in float64: values, edges, and derivatives with
finite differences.

The references are separate NumPy expressions, so an error in an expression, in a closed gradient or
in a gradient rule shows as a difference.
"""

import numpy as np
import scipy.special as sp

from kfgen import check_activations, families
from kfgen.differences import DY, POINTS, STENCIL, Trouble, compare, difference, smooth, step_at
from kfgen.entries.expand import counted
from kfgen.families import reference as elements_reference
from kfgen.families.matmul import reference as matmul_reference
from kfgen.families.rows import reference as rows_reference
from kfgen.language import passes
from kfgen.language.emit import evaluate
from kfgen.language.expr import Graph
from kfgen.language.gradient import substitute
from kfgen.language.primitives import KEEP, KEEP_SCALE, query_names, row_names


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


def direction(op, bwd):
    family = families.of(op)
    return (family.backward if bwd else family.forward)(op, ("f64",))


def _inlined(op, act):
    """Inlines the activation: returns (graph, {output: node}, {operand value: gradient})."""
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
    """Checks the op over rows; the layers around it are entries of their own."""
    _row_op(families.of(op).of_rows(op), act, failures)


def _place(op, act):
    return f"{op.file}: [op.{op.pattern}]" + (f" with {act.name}" if op.has_act else "")


def _product_op(op, act, failures):
    place = _place(op, act)
    matmul_reference.check(
        op,
        act,
        families.of(op),
        lambda what, *more: compare(failures, place, what, *more),
        lambda text: Trouble(f"{place} {text}"),
    )


def _map_op(op, act, failures):
    place = _place(op, act)
    graph, outputs, gradients = _inlined(op, act)
    rng = np.random.default_rng(11)
    scalars = op.scalars | act.scalars
    inputs = {}
    for o in op.operands:
        for n in o.values:
            x = rng.standard_normal(POINTS) * rng.choice([0.5, 1.0, 3.0], POINTS)
            inputs[n] = np.abs(x) + 0.25 if o.positive else x
    keep = rng.random(POINTS) < 0.7
    douts = {f"d{n}": np.full(POINTS, DY + k) for k, n in enumerate(outputs)}
    env = {**inputs, **scalars, KEEP: keep, KEEP_SCALE: 1.25, **douts}

    def reference(at):
        try:
            return elements_reference.values(op, act, at, scalars, keep, 1.25)
        except Exception as e:  # the reference is text of a user
            raise Trouble(f"{place} ref: cannot be evaluated: {e}") from None

    want = reference(inputs)
    for name, value in zip(outputs, evaluate(graph, list(outputs.values()), env, np, sp)):
        what, tolerance = f"expr of {name} against its ref", 1e-9 * np.abs(want[name]) + 1e-11
        compare(failures, place, what, inputs, value, want[name], tolerance)
    if not gradients:
        return
    try:
        duals = elements_reference.reference(op, act, inputs, scalars, keep, 1.25)
    except Exception as e:
        known = elements_reference.known()
        raise Trouble(
            f"{place} ref: cannot be differentiated: {e}; write it with {known}"
        ) from None
    for name, node in gradients.items():
        tangents = [
            np.broadcast_to(duals[out].tangents.get(name, 0.0), (POINTS,)) for out in outputs
        ]
        checked = (graph, outputs, name, node)
        _map_gradient(place, checked, inputs, env, reference, tangents, failures)


def _map_gradient(place, checked, inputs, env, reference, tangents, failures):
    """Compares a gradient with finite differences and with the exact derivative of ref."""
    graph, outputs, name, node = checked
    got = np.broadcast_to(evaluate(graph, [node], env, np, sp)[0], (POINTS,))
    x = inputs[name]
    near = [{**env, name: x + s * step_at(x)} for s in (0.0, *STENCIL)]
    is_smooth = np.broadcast_to(smooth(graph, [*outputs.values(), node], near), x.shape)
    is_smooth = is_smooth & np.isfinite(
        sum(sum(reference({**inputs, name: e[name]}).values()) for e in near)
    )
    if not is_smooth.any():
        problem = f"at no point can its gradient for {name} be checked"
        raise Trouble(f"{place} expr: {problem}; is `positive = true` missing?")
    fd, tolerance = 0.0, 0.0
    for k, out in enumerate(outputs):
        slope, error = difference(lambda at, out=out: reference({**inputs, name: at})[out], x)
        fd, tolerance = fd + (DY + k) * slope, tolerance + abs(DY + k) * error
    kept = {n: v[is_smooth] for n, v in inputs.items()}
    exact = sum((DY + k) * tangent for k, tangent in enumerate(tangents))
    for against, want, bound in (
        ("finite differences", fd, tolerance),
        ("the derivative", exact, 1e-9 * np.abs(exact) + 1e-11),
    ):
        what = f"gradient for {name} against {against} of ref"
        found = got[is_smooth], want[is_smooth], bound[is_smooth]
        compare(failures, place, what, kept, *found)


# ---- ops over rows -------------------------------------------------------------------------------

ROWS, COLS = 6, 11
SHAPES = {
    "elem": (ROWS, COLS),
    "row": (COLS,),
    "per_row": (ROWS, 1),
    "channel": (ROWS, 1),
    "shared": (ROWS, COLS),  # one batch, one head
    "group": (ROWS, COLS),
}  # inner = 1


def _row_inputs(op, kinds, rng):
    inputs = {o.name: rng.standard_normal(SHAPES[kinds[o.name]]) for o in op.operands}
    inputs |= {o.name: np.abs(inputs[o.name]) + 0.25 for o in op.operands if o.positive}
    inputs |= {
        o.name: rng.integers(0, COLS, SHAPES[kinds[o.name]]).astype(np.float64)
        for o in op.operands
        if o.dtype == "I"
    }
    return inputs | {
        o.name: (rng.random(SHAPES[kinds[o.name]]) < 0.7).astype(np.float64)
        for o in op.operands
        if o.dtype == "u8"
    }


def _row_op(op, act, failures):
    place = _place(op, act)
    rng = np.random.default_rng(11)
    scalars = op.scalars | act.scalars | query_names(ROWS, ROWS // 2, np)
    kinds = {o.name: families.of(op).in_rows.get(o.kind, o.kind) for o in op.operands}
    inputs = _row_inputs(op, kinds, rng)
    mask = {KEEP: rng.random((ROWS, COLS)) < 0.7, KEEP_SCALE: 1.25} if op.dropout else {}

    def reference(at):
        try:
            return rows_reference.reference(op, act, at, scalars, None, *mask.values())
        except Exception as e:  # the reference is text of a user
            raise Trouble(f"{place} ref: cannot be evaluated or differentiated: {e}") from None

    def results(bwd, env):
        kernel = direction(op, bwd)
        graph, roots = passes.inlined(kernel.graph, kernel.roots, act)
        env = env | scalars | mask | row_names(COLS, np)
        return dict(zip((s.name for s in kernel.outputs), evaluate(graph, roots, env, np, sp)))

    tapes, leaves = reference(inputs)
    found = results(False, inputs)
    shapes = {
        n: np.broadcast_shapes(np.shape(t.value), np.shape(found[n]), (ROWS, 1))
        for n, t in tapes.items()
    }
    for name, tape in tapes.items():
        want = np.broadcast_to(tape.value, shapes[name])
        cols = want.shape[-1]
        points = {n: np.broadcast_to(v[..., :cols], want.shape) for n, v in inputs.items()}
        what, tolerance = f"expr of {name} against its ref", 1e-9 * np.abs(want) + 1e-11
        compare(failures, place, what, points, found[name], want, tolerance)
    if not any(o.grad for o in op.operands):
        return
    douts = {n: rng.standard_normal(shapes[n]) for n in op.outputs}
    exact = rows_reference.gradients(tapes, leaves, douts)
    got = results(True, inputs | found | {f"d{n}": d for n, d in douts.items()})
    for o in op.operands:
        if not o.grad:
            continue
        shape = SHAPES["elem" if o.kind == "row" else kinds[o.name]]
        value = np.broadcast_to(got[f"d{o.name}"], shape)
        value = value.sum(0) if o.kind == "row" else value
        _row_gradient(place, o.name, value, exact[o.name], inputs, douts, reference, rng, failures)


def _row_gradient(place, name, value, want, inputs, douts, reference, rng, failures):
    """Compares a gradient with the exact derivative of ref, and with a directional difference,
    since both derivatives might share an error.
    """
    what = f"gradient for {name} against the derivative of ref"
    tolerance = 1e-9 * np.abs(want) + 1e-11
    compare(failures, place, what, {name: inputs[name]}, value, want, tolerance)
    direction_, near = rng.standard_normal(inputs[name].shape), []
    for step in (1e-5, -1e-5):
        moved, _ = reference(inputs | {name: inputs[name] + step * direction_})
        near.append(sum((moved[n].value * d).sum() for n, d in douts.items()))
    slope = np.array([(near[0] - near[1]) / 2e-5])
    what = f"gradient for {name} against finite differences of ref"
    along = np.array([(value * direction_).sum()])
    bound = 1e-6 * np.abs(slope) + 1e-6 * np.abs(value * direction_).sum()
    compare(failures, place, what, {"step": slope}, along, slope, bound)
