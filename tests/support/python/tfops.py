# SPDX-License-Identifier: Apache-2.0
"""Calls of one op with TensorFlow's and with PyTorch's tensors, whose results and gradients have
the same bits.
"""

import ml_dtypes
import numpy as np
import tensorflow as tf
import torch
import torchops
from torchops import case, ids


def array(t):
    """Copies a tensor of PyTorch."""
    t = t.detach()
    if t.dtype == torch.bfloat16:
        return t.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16)
    return t.numpy().copy()


def one_of_each_family():
    """Selects a function per family, with and without a dropout."""
    found = {(f["family"], f["dropout"]): f for f in torchops.of_each_op(torchops.FUNCTIONAL)[::-1]}
    return list(found.values())


def equal(got, want, what):
    """Compares bits, NaN included."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype and got.shape == want.shape, what
    assert got.tobytes() == want.tobytes(), (what, got, want)


def _of_torch(kf, c):
    """Returns (results, gradients of the first float ones, incoming gradients)."""
    results = torchops.results(c.call(kf))
    floats = [r for r in results if r.requires_grad]
    rng = torch.Generator().manual_seed(1)
    ups = [torch.randn(r.shape, dtype=torch.float64, generator=rng).to(r.dtype) for r in floats]
    grads = torch.autograd.grad(floats, [c.tensors[n] for n in c.wanted], ups) if floats else []
    return results, grads, ups


def same_bits(kf, kf_tf, f, dtype, eager):
    """Compares results and gradients of an op, and the inferred shapes of a graph."""
    c = case(f, dtype)
    arrays = {name: array(t) for name, t in c.tensors.items()}
    results, grads, ups = _of_torch(kf, c)
    updated = {t.place_of for t in c.op.forward.outputs if t.place_of}
    variables = {name: tf.Variable(arrays.pop(name)) for name in updated if name in arrays}
    function = getattr(kf_tf, ids(f))

    def call(given):
        found = function(**given, **variables, **c.kwargs)
        return list(found) if isinstance(found, tuple) else [found]

    def step(given, incoming):
        with tf.GradientTape() as tape:
            tape.watch([given[name] for name in c.wanted])
            found = call(given)
        if not c.wanted:
            return found, []
        floats = [found[i] for i, r in enumerate(results) if r.requires_grad]
        return found, tape.gradient(floats, [given[name] for name in c.wanted], incoming)

    given = {name: tf.constant(a) for name, a in arrays.items()}
    incoming = [tf.constant(array(up)) for up in ups]
    if eager:
        found, gradients = step(given, incoming)
    else:
        specs = [tf.TensorSpec([None] * x.shape.rank, x.dtype) for x in given.values()]
        traced = tf.function(lambda xs, up: step(dict(zip(given, xs)), up))
        whole = tf.function(lambda *xs: call(dict(zip(given, xs))))
        _check_shapes(whole, given, specs, results)
        found, gradients = traced.get_concrete_function(
            specs, [tf.TensorSpec(None, x.dtype) for x in incoming]
        )([*given.values()], incoming)
    for i, (got, want) in enumerate(zip(found, results, strict=True)):
        equal(got, array(want), f"{ids(f)} {dtype}, result {i}")
    for name, got, want in zip(c.wanted, gradients, grads, strict=True):
        equal(got, array(want), f"{ids(f)} {dtype}, d{name}")
    for name, variable in variables.items():
        equal(variable, array(c.tensors[name]), f"{ids(f)} {dtype}, {name}")


def _check_shapes(call, given, specs, results):
    """Checks shapes of a graph: all dimensions of known shapes, the rank of unknown ones."""
    static = call.get_concrete_function(*given.values()).structured_outputs
    for got, want in zip(static, results, strict=True):
        assert got.shape.as_list() == list(want.shape)
    for got, want in zip(call.get_concrete_function(*specs).structured_outputs, results):
        assert got.shape.rank == want.dim()
