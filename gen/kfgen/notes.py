# SPDX-License-Identifier: Apache-2.0
"""Notes of `kfgen check` on entries of users that are correct in float64 but not in float32.

For large or small operands, values may overflow, be NaN or lose their digits; gradients may
overflow or be NaN. Gradients may lose digits for good reasons, as softmax's do for nearly one-hot
rows. These are notes, not errors: a formula may be meant for a range.
"""

import numpy as np
import scipy.special as sp

from kfgen import families
from kfgen.check import COLS, ROWS, SHAPES, direction
from kfgen.families import reference as elements_reference
from kfgen.families.rows import reference as rows_reference
from kfgen.language import passes
from kfgen.language.emit import evaluate
from kfgen.language.expr import Graph
from kfgen.language.gradient import substitute
from kfgen.language.primitives import KEEP, KEEP_SCALE, query_names, row_names

SCALES = (1e4, -1e4, 1e-4, -1e-4)
# Error, relative to the largest value of a result, from which digits count as lost: single values
# may be small because unrelated terms cancel.
LOST = 1e-3
LEAST = 1e-30  # errors below this never count


class _Single:
    """NumPy whose float64 is float32, for evaluate()."""

    float64 = np.float32

    def __getattr__(self, name):
        return getattr(np, name)


def run(selection):
    """Returns notes on the entries of users; tests run kf's own in float32."""
    none = next(a for a in selection.activations if a.name == "none")
    found = [_activation(a) for a in selection.activations if not a.builtin] + [
        _op(op, none) for op in selection.ops if not op.builtin
    ]
    return [note for notes in found for note in notes]


def _judge(place, what, at, got, want, digits=True):
    """Returns at most one note, on the first bad value. digits: reports lost digits, too."""
    got, want = (np.asarray(v, np.float64) for v in np.broadcast_arrays(got, want))
    with np.errstate(all="ignore"):
        over = np.isinf(got) & ~(np.abs(want) > np.finfo(np.float32).max)
        largest = np.max(np.abs(want), initial=0.0, where=np.isfinite(want))
        lost = digits & np.isfinite(got) & (np.abs(got - want) > LOST * largest + LEAST)
        bad = np.flatnonzero(np.isnan(got) | over | lost)
    if not bad.size:
        return []
    i = bad[0]
    how = "is NaN" if np.isnan(got.flat[i]) else "overflows" if over.flat[i] else "loses its digits"
    both = f"{got.flat[i]:.6g}, in float64 {want.flat[i]:.6g}"
    return [f"{place} {what} {how} in float32 where {at}: {both}"]


def _first(notes, seen):
    """Adds the notes on results that have none yet."""
    for what, note in notes:
        if note and what not in seen:
            seen[what] = note[0]


def _activation(act):
    seen = {}
    for scale in SCALES:
        x = np.float32(scale * np.linspace(0.5, 1.5, 9))
        with np.errstate(all="ignore"):
            want = elements_reference.act_value(act, x.astype(np.float64), act.scalars)
        _first(
            [
                (
                    "expr",
                    _judge(
                        f"{act.file}: [activation.{act.name}]",
                        "expr",
                        f"x is about {scale:g}",
                        _act(act, x),
                        want,
                    ),
                )
            ],
            seen,
        )
    return list(seen.values())


def _act(act, x):
    graph = Graph()
    root = act.build(graph, graph.var("x"), {s: graph.var(s) for s in act.scalars})
    return evaluate(
        graph, [root], {"x": x} | {s: np.float32(v) for s, v in act.scalars.items()}, _Single(), sp
    )[0]


def _results(op, act, bwd, env, single):
    """Returns {name: value} of the results of a direction, in float32 or float64."""
    kernel = direction(op, bwd)
    if families.of(op).oracle == "rows":
        graph, roots = passes.inlined(kernel.graph, kernel.roots, act)
    else:
        graph = Graph()
        inlined = (lambda x: act.build(graph, x, {}), lambda x, dy: act.build_bwd(graph, x, dy, {}))
        roots = substitute(kernel.graph, graph, kernel.roots, {}, act=inlined)
    env = {
        n: np.asarray(v, np.float32) if single and np.asarray(v).dtype == np.float64 else v
        for n, v in env.items()
    }
    names = [part for s in kernel.outputs for part in s.parts]
    return dict(zip(names, evaluate(graph, roots, env, _Single() if single else np, sp)))


def _draws(op, rng, rows):
    """Yields (description, inputs): each operand alone at each scale with the others near 1, then
    all operands together.
    """
    own = [o for o in op.operands if o.dtype not in ("I", "u8")]
    for scaled in [[o] for o in own] + ([own] if len(own) > 1 else []):
        for scale in SCALES:
            inputs = {}
            for o in op.operands:
                for n in o.values:
                    shape = (
                        SHAPES[families.of(op).in_rows.get(o.kind, o.kind)]
                        if rows
                        else (ROWS * COLS,)
                    )
                    x = rng.uniform(0.5, 1.5, shape) * (
                        scale if o in scaled else rng.choice([-1.0, 1.0], shape)
                    )
                    x = np.abs(x) if o.positive else x
                    x = (
                        rng.integers(0, COLS, shape)
                        if o.dtype == "I"
                        else rng.random(shape) < 0.7
                        if o.dtype == "u8"
                        else np.float32(x)
                    )
                    inputs[n] = np.asarray(x, np.float64)
            names = " and ".join(n for o in scaled for n in o.values)
            yield f"{names} {'is' if len(scaled) == 1 else 'are'} about {scale:g}", inputs


def _op(op, act):
    if op.types == "pairs" or act not in op.activations or families.of(op).oracle == "products":
        return []
    if families.of(op).oracle == "logits":  # checks its op over rows
        op = families.of(op).of_rows(op)
    place, rows, rng, seen = (
        f"{op.file}: [op.{op.pattern}]",
        families.of(op).oracle == "rows",
        np.random.default_rng(3),
        {},
    )
    names = row_names(COLS, np) | query_names(ROWS, ROWS // 2, np) if rows else {}
    for at, inputs in _draws(op, rng, rows):
        keep = rng.random((ROWS, COLS) if rows else ROWS * COLS) < 0.7
        env = inputs | op.scalars | names | {KEEP: keep, KEEP_SCALE: 1.25}
        with np.errstate(all="ignore"):
            if rows:
                tapes, _ = rows_reference.reference(
                    op, act, inputs, op.scalars | query_names(ROWS, ROWS // 2, np), None, keep, 1.25
                )
                want = {n: t.value for n, t in tapes.items()}
            else:
                want = elements_reference.values(op, act, inputs, op.scalars, keep, 1.25)
            values = _results(op, act, False, env, True)
            _first([(n, _judge(place, n, at, values[n], want[n])) for n in op.outputs], seen)
            if any(o.grad for o in op.operands):
                before = env | _results(op, act, False, env, False)
                before |= {
                    f"d{n}": np.float32(rng.standard_normal(np.shape(before[n]))).astype(np.float64)
                    for n in op.outputs
                }
                found, sure = (_results(op, act, True, before, single) for single in (True, False))
                _first(
                    [
                        (n, _judge(place, f"gradient {n}", at, found[n], sure[n], digits=False))
                        for n in found
                    ],
                    seen,
                )
    return list(seen.values())
