# SPDX-License-Identifier: Apache-2.0
"""Finite differences and comparisons of `kfgen check`."""

import numpy as np
import scipy.special as sp

from kfgen.families.reference import POINTS
from kfgen.language.emit import evaluate
from kfgen.language.primitives import COMPARISONS

DY = -1.75  # incoming gradient; not 1, so that a dexpr without it is found
STENCIL = np.array([-2.0, -1.0, 1.0, 2.0])
WEIGHTS = np.array([1.0, -8.0, 8.0, -1.0]) / 12
HALVINGS = 14  # maximum number of halvings of a finite difference's step
AGREE = 1e-3  # relative difference of two steps from which they count as fine enough


class Trouble(Exception):
    """Error for an entry that cannot be checked."""


def grid(rng, around):
    """Returns points where activations vary, far points, and points near `around`, at kinks."""
    close = [
        c for v in around if abs(v) < 60 for c in (v, -v, v * 1.0002 + 1e-5, v * 0.9998 - 1e-5)
    ]
    tiny = np.exp2(rng.uniform(-20, 0, 8)) * np.tile([1.0, -1.0], 4)
    return np.concatenate(
        [close, rng.uniform(-9, 9, POINTS), rng.uniform(-60, 60, POINTS // 4), tiny]
    )


def scalar_sets(entry):
    """Returns the entry's test values and a second set of values."""
    return [dict(entry), {k: v * 1.5 for k, v in entry.items()}] if entry else [{}]


def step_at(x):
    return 2e-3 * np.maximum(1.0, np.abs(x) / 16)


def smooth(graph, roots, envs):
    """True where no comparison, |.|, max or min changes sides between the evaluations in envs: no
    kink lies between them.
    """
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


def difference(f, x):
    """Returns (df/dx by central differences of fourth order, error bound) at each x. The step is
    halved until three steps agree: cos(a / b) passes whole periods within a step of b near 0, where
    two steps may agree by chance.
    """
    best, bound, coarse, change = 0.0, np.inf, None, 0.0
    for halvings in range(HALVINGS):
        h = step_at(x) / 2**halvings
        values = [f(x + s * h) for s in STENCIL]
        with np.errstate(all="ignore"):
            fine = sum(w * v for w, v in zip(WEIGHTS, values)) / h
            if halvings:
                before, change = change, np.abs(fine - coarse)
                rounding = 1e-11 * np.max(np.abs(values), axis=0) / (2 * h)
                error = 2 * np.maximum(change, before) + 1e-8 * np.abs(fine) + rounding
                better = ~(error >= bound)
                best, bound = np.where(better, fine, best), np.where(better, error, bound)
                if not np.any(bound > AGREE * np.abs(best)):
                    break
        coarse = fine
    return best, bound


def compare(failures, place, what, points, got, want, tolerance):
    """Adds a message for the first point at which got and want differ."""
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
        found, expected = (v.reshape(-1)[bad[0]] for v in (got, want))
        failures.append(f"{place} {what}, at {at}: {found:.12g}, expected {expected:.12g}")
