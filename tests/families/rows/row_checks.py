# SPDX-License-Identifier: Apache-2.0
"""Inputs and expected results of functions over rows or over an axis (storage.py does the rest)."""

import functools
import math

import cases
import numpy as np
import scipy.special as sp
import storage
from kfgen import families
from kfgen.families.rows import reference as rows_reference
from kfgen.language import passes
from kfgen.language.emit import evaluate
from kfgen.language.primitives import KEEP, KEEP_SCALE, QUERY, query_names, row_names


def extent(call):
    """(rows, cols)."""
    if call.f["family"] == "reduction":
        return call.sizes[0] * call.sizes[2], call.sizes[1]
    if cases.groups(call.f):
        outer, length, groups, channels, inner = segments(call)
        return outer * groups, length * channels * inner
    if cases.channels(call.f):
        return call.sizes[1], call.sizes[0] * call.sizes[2]
    return math.prod(call.sizes[:-1]), call.sizes[-1]  # rows, planes, queries


def segments(call):
    """(outer, length, groups, channels per group, inner) of rows that are groups."""
    outer, length, groups, channels, inner = call.sizes
    return outer, length, groups, channels // max(groups, 1), inner


def draw(rng, call, a, values):
    """Draws like storage.draw, but unusual values only for one row of three, and normal ones for
    the two below it. Values that leak into other rows, or are summed with them, are then noticed.
    """
    if a["kind"] == "shared":
        return mask(rng, storage.shape_of(call.f, call.sizes, a), a["dtype"])
    rows, cols = extent(call)
    shape = {
        "elem": (rows, cols),
        "row": (cols,),
        "channel": call.sizes[1:2],
        "group": call.sizes[3:4],
    }.get(a["kind"], (rows,))
    if a["var"] == "I":  # labels, some ignored, some out of range
        far = 2**40 if a["dtype"] == "i64" else 2**30
        found = np.where(rng.random(shape) < 0.2, -100, rng.integers(0, max(cols, 1), shape))
        return np.where(
            rng.random(shape) < 0.1, rng.choice([-1, cols, far, -far], shape), found
        ).astype(storage.STORAGE[a["dtype"]])
    array = storage.draw(rng, shape, a["dtype"], "normal", a["positive"])
    # Near 1, so that the product stays in range.
    if a["kind"] == "elem" and any("prod(" in text for text in call.kernel.op.outputs.values()):
        sizes = np.exp2(rng.standard_normal(shape) * min(1.0, 60.0 / max(cols, 1))) * rng.choice(
            [-1.0, 1.0], shape
        )
        array = storage.from_float(
            np.where(rng.random(shape) < 0.2 / max(cols, 1), 0.0, sizes), a["dtype"]
        )
    if a["kind"] == "elem" and values != "normal":
        array[::3] = storage.draw(rng, array[::3].shape, a["dtype"], values, a["positive"])
    return of_rows(call, array, a)


def mask(rng, shape, dtype):
    """A mask over keys, as numbers to add or as conditions: some keys, none for one query of five,
    all for another one.
    """
    seen = (rng.random(shape) < 0.7) & (rng.random((*shape[:-1], 1)) < 0.8) | (
        rng.random((*shape[:-1], 1)) < 0.2
    )
    if dtype == "u8":  # any number but 0 is true
        return np.where(seen, rng.integers(1, 256, shape), 0).astype(np.uint8)
    return storage.from_float(np.where(seen, rng.standard_normal(shape), -np.inf), dtype)


def of_rows(call, array, tensor):
    """Reshapes [rows, cols] to the tensor's shape."""
    kind = tensor["kind"]
    if cases.channels(call.f) and kind == "elem":
        outer, channels, inner = call.sizes
        return np.ascontiguousarray(array.reshape(channels, outer, inner).swapaxes(0, 1))
    if cases.groups(call.f) and kind == "elem":
        outer, length, groups, channels, inner = segments(call)
        array = np.ascontiguousarray(
            array.reshape(outer, groups, length, channels, inner).swapaxes(1, 2)
        )
        return array.reshape(outer, length, groups * channels, inner)
    if call.f["family"] != "reduction":
        return array.reshape(storage.shape_of(call.f, call.sizes, tensor))
    outer, axis, inner = call.sizes
    return (
        np.ascontiguousarray(array.reshape(outer, inner, axis).swapaxes(1, 2))
        if kind == "elem"
        else array.reshape(outer, inner)
    )


def columns(call, array, kind):
    """Reshapes a tensor to [rows, cols]."""
    if call.f["family"] == "reduction" and kind == "elem":
        # NumPy sums pairwise along a contiguous axis only.
        return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(extent(call))
    if cases.channels(call.f) and kind == "elem":
        return np.ascontiguousarray(array.reshape(call.sizes).swapaxes(0, 1)).reshape(extent(call))
    if cases.groups(call.f) and kind in ("elem", "group"):
        outer, length, groups, channels, inner = segments(call)
        if kind == "elem":
            return np.ascontiguousarray(
                array.reshape(outer, length, groups, channels, inner).swapaxes(1, 2)
            ).reshape(extent(call))
        return np.broadcast_to(
            array.reshape(groups, channels)[:, None, :, None],
            (outer, groups, length, channels, inner),
        ).reshape(extent(call))
    if kind == "shared":
        return np.broadcast_to(array[:, None], call.sizes).reshape(extent(call))
    if kind == "channel":
        return np.tile(array, call.sizes[0]).reshape(-1, 1)
    return array if kind == "row" else array.reshape(extent(call) if kind == "elem" else (-1, 1))


def by_channel(call, array):
    """Reshapes rows that are groups to [outer * length * inner, groups * channels]."""
    outer, length, groups, channels, inner = segments(call)
    return (
        array.reshape(outer, groups, length, channels, inner)
        .transpose(0, 2, 4, 1, 3)
        .reshape(outer * length * inner, groups * channels)
    )


def key(call):
    return call.f["op"], tuple(call.f["dtypes"]), call.f["bwd"], call.f["activation"], call.files


@functools.cache
def _forward(pattern, dtypes, bwd, activation, files):
    """The forward's values that the backward reads: (graph, {name: node})."""
    kernel, act = (
        storage.kernel_of(pattern, dtypes, bwd, files),
        storage.spec(files).activations[activation],
    )
    graph, env, outs = families.of(kernel.op).graph(kernel.op)
    nodes = {**{n: env[n] for n in kernel.op.saved}, **outs}
    graph, roots = passes.inlined(graph, list(nodes.values()), act)
    return graph, dict(zip(nodes, roots))


def environment(call, data):
    env = dict(call.scalars) | {
        s: v for s, v in call.kernel.op.scalars.items() if s not in call.scalars
    }
    for s in call.kernel.inputs:
        if s.absent is not None and s.name in call.drop:
            env[s.name] = np.full(
                extent(call)[1] if s.kind in ("row", "group") else 1, float(s.absent)
            )
        else:
            env[s.name] = columns(call, storage.to_float(data[s.name], s.dtype.word), s.kind)
    env |= query_names(extent(call)[0], call.sizes[2], np) if call.f["form"] == "heads" else {}
    return env | dict(zip((KEEP, KEEP_SCALE), call.mask()))


def fill(call):
    """Computes the backward's inputs that come from the forward, from the drawn data."""
    made = [
        s
        for s in call.kernel.inputs
        if s.name in call.kernel.op.saved
        or (s.name in call.kernel.op.outputs and s.reads != "never")
    ]
    rows_, cols = extent(call)
    if not call.kernel.bwd or not made or not cols:
        return
    graph, nodes = _forward(*key(call))
    env = environment(call, call.data) | row_names(cols, np)
    found = evaluate(graph, [nodes[s.name] for s in made], env, np, sp)
    for s, value in zip(made, found):
        value = of_rows(
            call,
            np.broadcast_to(value, (rows_, cols if s.kind == "elem" else 1)),
            call.tensors[s.name],
        )
        call.data[s.name] = np.ascontiguousarray(storage.from_float(value, s.dtype.word))


@functools.cache
def _bound(pattern, dtypes, bwd, activation, files):
    kernel = storage.kernel_of(pattern, dtypes, bwd, files)
    act = storage.spec(files).activations[activation]
    return kernel.family.reference(kernel.op, act).bound(kernel)


def from_nan(bound, env, cols):
    """Per result, where it is NaN because an input is: it is NaN with the other inputs small, and
    not without the NaN. This holds in every range.
    """
    small = {
        n: np.clip(v, -8.0, 8.0) if np.ndim(v) and n != QUERY else v for n, v in env.items()
    } | row_names(cols, np)
    plain = {n: np.nan_to_num(v, nan=1.0) for n, v in small.items()}
    found = [evaluate(bound.graph, bound.roots, e, np, sp) for e in (small, plain)]
    return [np.isnan(a) & ~np.isnan(b) for a, b in zip(*found)]


def check(call, got, weights=None):
    kernel, (count, cols) = call.kernel, extent(call)
    compute = "f64" if kernel.dtype.compute == "f64" else "f32"
    eps, tiny, largest = storage.EPS[compute], storage.TINY[compute], storage.MANTISSA[compute][2]
    env, bound = environment(call, call.data), _bound(*key(call))
    stored = {
        n: columns(call, storage.to_float(got[n], kernel.dtype.word), "elem")
        for n in passes.stored(kernel.graph).values()
    }
    env |= stored
    found, beyond = bound.evaluate(env, cols, eps, tiny, largest / 4)
    finite = np.ones((count, 1), bool)
    for s in kernel.inputs:
        if s.kind == "elem":
            finite &= np.isfinite(env[s.name]).all(-1, keepdims=True)
    k = call.f["tolerance"]["factor"]
    wants = {}
    if not kernel.bwd:
        tapes, _ = rows_reference.reference(
            kernel.op,
            call.act,
            {s.name: env[s.name] for s in kernel.operands},
            {n: v for n, v in env.items() if np.ndim(v) == 0 or n == QUERY} | call.scalars,
            stored,
            *call.mask(),
        )
        wants = {n: t.value for n, t in tapes.items()}
    for s, (value, error), nan in zip(kernel.outputs, found, from_nan(bound, env, cols)):
        if s.name in call.drop:
            continue
        shape = (count, cols if s.kind in ("elem", "row", "group") else 1)
        want = np.broadcast_to(wants.get(s.name, value), shape)
        error = np.broadcast_to(error, shape) + (
            eps * np.abs(np.nan_to_num(want, posinf=0.0, neginf=0.0))
        )
        own = storage.to_float(got[s.name], s.dtype.word)
        if s.var == "I":  # exact for all values
            storage.same(own.reshape(-1), want.reshape(-1), f"{call.where}: {s.name}")
            continue
        sure = np.isnan(want) & nan
        # Rows that overflowed float32 have no other expectation. Infinities in gradients: see
        # storage.compare.
        skip = np.broadcast_to(beyond[:, None], shape) & ~sure
        loose = np.broadcast_to(~finite & kernel.bwd, shape) & ~sure
        if s.kind == "channel":  # reshapes to the planes of a batch
            want, error, sure, skip, loose = (
                v.reshape(call.sizes[:2]) for v in (want, error, sure, skip, loose)
            )
        # Reshapes to the groups of a batch, with a channel's elements in one column.
        if s.kind == "group":
            want, error, sure, skip, loose = (
                by_channel(call, v) for v in (want, error, sure, skip, loose)
            )
        # A column has an element of every row: a NaN makes the sum NaN, an unknown one makes it
        # unknown.
        if s.role == "sum":
            skip = (skip | (loose & np.isnan(want))).any(0) & ~sure.any(0)
            loose = False
            # Weights of a batch.
            times = (
                np.ones(len(want))
                if weights is None
                else np.repeat(weights, len(want) // len(weights))
            )
            with np.errstate(all="ignore"):
                terms = np.abs(np.nan_to_num(want, posinf=0.0, neginf=0.0)).T @ times
                want, error = want.T @ times, error.T @ times + eps * np.sqrt(times.sum()) * terms
        own = own.reshape(-1) if s.role == "sum" else columns(call, own, s.kind)
        # The error in `found` is the whole bound: compare's scale expresses it in units of eps,
        # with slope one for results stored as subnormals. Its `top` excuses intermediates that
        # overflowed: 0, because those are skipped.
        with np.errstate(over="ignore"):
            scale = error / eps
        storage.compare(
            own,
            np.where(skip, own, want),
            s.dtype.word,
            compute,
            k,
            scale,
            np.ones_like(scale),
            np.zeros_like(scale),
            False,
            f"{call.where}: {s.name}",
            loose,
        )
