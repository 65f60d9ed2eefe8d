# SPDX-License-Identifier: Apache-2.0
"""Notes of `kfgen check` on entries of users that are correct in float64 but not in float32.

For large or small operands, values may overflow, be NaN or lose their digits; gradients may
overflow or be NaN. Gradients may lose digits for good reasons, as softmax's do for nearly one-hot
rows. These are notes, not errors: a formula may be meant for a range.
"""

import numpy as np

from kfgen import families
from kfgen.families import reference as elements_reference
from kfgen.language.expr import Graph

SCALES = (1e4, -1e4, 1e-4, -1e-4)
# Error, relative to the largest value of a result, from which digits count as lost: single values
# may be small because unrelated terms cancel.
LOST = 1e-3
LEAST = 1e-30  # errors below this never count


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
    env = {"x": x} | {s: np.float32(v) for s, v in act.scalars.items()}
    return elements_reference.evaluated(graph, {"y": root}, env, single=True)["y"]


def _draws(reference, rng):
    """Yields (description, inputs): each operand alone at each scale with the others near 1, then
    all operands together.
    """
    operands = reference.op.operands
    own = [o for o in operands if o.dtype not in ("I", "u8") and not reference.is_number(o)]
    for scaled in [[o] for o in own] + ([own] if len(own) > 1 else []):
        for scale in SCALES:
            inputs = {
                n: _drawn(reference, o, rng, scale if o in scaled else None)
                for o in operands
                for n in o.values
            }
            names = " and ".join(n for o in scaled for n in o.values)
            yield f"{names} {'is' if len(scaled) == 1 else 'are'} about {scale:g}", inputs


def _drawn(reference, operand, rng, scale):
    """Values of an operand about `scale`, or, if None, near 1 and -1; a number has its own."""
    if reference.is_number(operand):
        return reference.inputs(rng)[operand.name]
    shape = reference.shape(operand)
    if operand.dtype == "I":
        return rng.integers(0, reference.indices, shape).astype(np.float64)
    if operand.dtype == "u8":
        return (rng.random(shape) < 0.7).astype(np.float64)
    x = rng.uniform(0.5, 1.5, shape) * (rng.choice([-1.0, 1.0], shape) if scale is None else scale)
    return np.float32(np.abs(x) if operand.positive else x).astype(np.float64)


def _op(op, act):
    reference = families.of(op).reference(op, act)
    if op.types.converts or act not in op.activations or not reference.single:
        return []
    place, rng, seen = f"{op.file}: [op.{op.pattern}]", np.random.default_rng(3), {}
    for at, inputs in _draws(reference, rng):
        mask = reference.mask(rng)
        with np.errstate(all="ignore"):
            want = reference.values(inputs, mask)
            values = reference.results(False, inputs | mask, single=True)
            _first([(n, _judge(place, n, at, values[n], want[n])) for n in want], seen)
            if reference.differentiable:
                _gradients(reference, place, at, inputs | mask, rng, seen)
    return list(seen.values())


def _gradients(reference, place, at, env, rng, seen):
    """Adds the notes on gradients, which may lose digits."""
    env = env | reference.results(False, env)
    env |= {
        f"d{n}": np.float32(rng.standard_normal(np.shape(env[n]))).astype(np.float64)
        for n in reference.op.outputs
    }
    found, sure = (reference.results(True, env, single) for single in (True, False))
    notes = [
        (n, _judge(place, f"gradient {n}", at, found[n], sure[n], digits=False)) for n in found
    ]
    _first(notes, seen)
