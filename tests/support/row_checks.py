# SPDX-License-Identifier: Apache-2.0
"""The numbers of functions over rows: what their tensors hold, and what they should give (checks.py does the rest)."""

import functools

import checks
import numpy as np
import scipy.special as sp
from kfgen import row_oracle, rows
from kfgen.emit import evaluate
from kfgen.expr import COUNT
from kfgen.spec import op_graph


def draw(rng, shape, a, values):
    """As checks.draw, but of three rows one has normal values alone, whatever the others have."""
    array = checks.draw(rng, shape, a["dtype"], "normal", a["positive"])
    if a["kind"] == "elem" and values != "normal":
        array[::3] = checks.draw(rng, array[::3].shape, a["dtype"], values, a["positive"])
    return array


def columns(array, kind):
    """As [rows, cols]."""
    return array[:, None] if kind == "per_row" else array


def key(call):
    return call.f["op"], tuple(call.f["dtypes"]), call.f["bwd"], call.f["activation"], call.files


@functools.cache
def _forward(pattern, dtypes, bwd, activation, files):
    """What the forward makes that the backward reads: (graph, {name: node})."""
    kernel, act = checks.kernel_of(pattern, dtypes, bwd, files), checks.spec(files).activations[activation]
    graph, env, outs = op_graph(kernel.op)
    nodes = {**{n: env[n] for n in kernel.op.saved}, **outs}

    def scalars(g):
        return {s: g.var(s) for s in act.scalars}

    graph, roots = rows.copy(graph, list(nodes.values()), {}, act=(lambda g, x: act.build(g, x, scalars(g)), None))
    return graph, dict(zip(nodes, roots))


def environment(call, data):
    env = dict(call.scalars) | {s: v for s, v in call.kernel.op.scalars.items() if s not in call.scalars}
    for s in call.kernel.inputs:
        absent = s.absent is not None and s.name in call.drop
        env[s.name] = np.float64(s.absent) if absent else columns(checks.to_float(data[s.name], s.dtype.word), s.kind)
    return env


def fill(call):
    """The backward's inputs that the forward makes, of the data that was drawn."""
    made = [s for s in call.kernel.inputs if s.name in call.kernel.op.saved or s.name in call.kernel.op.outputs]
    if not call.kernel.bwd or not made or not call.sizes[1]:
        return
    graph, nodes = _forward(*key(call))
    env = environment(call, call.data) | {COUNT: np.float64(call.sizes[1])}
    found = evaluate(graph, [nodes[s.name] for s in made], env, np, sp)
    for s, value in zip(made, found):
        shape = call.data[s.name].shape
        value = np.broadcast_to(value, (call.sizes[0], 1 if s.kind == "per_row" else call.sizes[1])).reshape(shape)
        call.data[s.name] = np.ascontiguousarray(checks.from_float(value, s.dtype.word))


@functools.cache
def _bound(pattern, dtypes, bwd, activation, files):
    return row_oracle.Bound(checks.kernel_of(pattern, dtypes, bwd, files), checks.spec(files).activations[activation])


def check(call, got, weights=None):
    kernel, (count, cols) = call.kernel, call.sizes
    compute = "f64" if kernel.dtype.compute == "f64" else "f32"
    eps, tiny, largest = checks.EPS[compute], checks.TINY[compute], checks.MANTISSA[compute][2]
    env = environment(call, call.data)
    found, beyond = _bound(*key(call)).evaluate(env, cols, eps, tiny, largest / 4)
    beyond = np.broadcast_to(beyond, (count,))
    values = [v for s in kernel.inputs for v in [env[s.name]] if s.kind == "elem"]
    finite = np.ones(count, bool)
    for v in values:
        finite &= np.isfinite(v).all(-1)
    k = max(call.act.ulp[compute], 2.0)
    wants = {}
    if not kernel.bwd:
        tapes, _ = row_oracle.reference(kernel.op, call.act, {s.name: env[s.name] for s in kernel.operands}, {
            n: v for n, v in env.items() if np.ndim(v) == 0} | call.scalars)
        wants = {n: t.value for n, t in tapes.items()}
    for s, (value, error) in zip(kernel.outputs, found):
        if s.name in call.drop:
            continue
        shape = (count, 1 if s.kind == "per_row" else cols)
        want = np.broadcast_to(wants.get(s.name, value), shape)
        error = np.broadcast_to(error, shape) + (eps * np.abs(np.nan_to_num(want, posinf=0.0, neginf=0.0)))
        own = checks.to_float(got[s.name], s.dtype.word)
        skip = np.broadcast_to(beyond[:, None], shape)
        if s.role == "sum":
            if (skip.any() or not finite.all()) and count:
                continue  # a column has an element of every row
            times = np.ones(count) if weights is None else weights
            terms = np.abs(np.nan_to_num(want)).T @ times
            want, error = want.T @ times, error.T @ times + eps * np.sqrt(times.sum()) * terms
            skip = np.zeros(want.shape, bool)
        own = own.reshape(want.shape)
        checks.compare(own, np.where(skip, own, want), s.dtype.word, compute, k, error / eps, np.ones_like(error), np.zeros_like(error), False,
                       f"{call.where}: {s.name}", loose=kernel.bwd and not finite.all())
