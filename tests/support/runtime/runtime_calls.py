# SPDX-License-Identifier: Apache-2.0
"""Compares calls of functions on tensors with their launchers: same numbers, and the same bits for
all strides. Used by tests/runtime."""

import cases
import checks
import numpy as np
import runtime_ops
import storage
from kfgen.interfaces import runtime

# Ops tested on the CPU at level 1: some of each layout.
OPS = [
    "{act}",
    "add",
    "axpby",
    "cast",
    "mse",
    "prelu_bias",
    "act_dropout",
    "act_glu",
    "bias",
    "bias_dropout_add",
    "layer_norm",
    "softmax",
    "cross_entropy",
    "sum",
    "amax",
    "instance_norm",
    "batch_norm",
    "batch_norm_train",
    "group_norm",
    "scale_mask_softmax",
    "linear",
    "linear_act_glu",
    "act_linear",
    "matmul_tn",
    *cases.listed("ON_TENSORS"),
]
MADE = runtime_ops.choose(
    OPS if cases.LEVEL == 1 else None,
    ["f32", "bf16", "i64"] if cases.LEVEL == 1 else None,
    None if cases.LEVEL > 2 else ["none", "gelu", "leaky_relu"],
)
FUNCTION_OF = {(f.op, f.bwd): f for f in runtime.functions(MADE)}
FUNCTIONS = [f for f in MADE["functions"] if runtime.takes_tensors(f)]


def of(op, dtype="f32", activation="none", bwd=False):
    return next(
        f
        for f in FUNCTIONS
        if (f["op"], f["dtypes"][0], f["activation"], f["bwd"]) == (op, dtype, activation, bwd)
    )


class Call:
    """A function's tensors, drawn as in the launchers' tests, and the launcher's results for
    them."""

    def __init__(self, launchers, f, ops, ctx, drop=()):
        self.f, self.ops, self.ctx = f, ops, ctx
        self.layout = checks.Layout(launchers, f, runtime_ops.sizes(f))
        self.arrays = {
            name: np.array(self.layout.data[name]).reshape(runtime_ops.shape(f, a))
            for name, a in self.tensors()
        }
        _held, workspace = storage.workspace(self.layout.workspace)
        given = self.layout.given(0) | {
            n: None if a["unread"] or n in drop else self.arrays[n].ctypes.data
            for n, a in self.tensors()
        }
        given |= {"workspace": workspace}
        assert launchers.call(f, given) == 0, launchers.detail
        self.wanted = {n: self.arrays[n].copy() for n, a in self.tensors() if a["role"] != "in"}
        for n in self.wanted:
            self.arrays[n][...] = self.layout.data[n].reshape(self.arrays[n].shape)

    def tensors(self):
        return self.layout.tensors.items()

    def run(self, arrays=None, absent=(), via="function"):
        """Makes the call; returns (error code, outputs). arrays: replacements by name, with other
        strides. via: one of runtime_ops.ENTRY_POINTS."""
        arrays = {n: np.array(v) for n, v in self.arrays.items()} | (arrays or {})
        handles = {
            n: None
            if n in absent
            else self.ops.over(self.ctx, arrays[n], runtime_ops.DTYPES[a["dtype"]])
            for n, a in self.tensors()
        }
        groups = runtime_ops.extents(self.f).get("groups", (None,))[0]
        code = self.ops.call(
            self.ctx,
            self.f,
            handles,
            self.ops.ids[self.f["activation"]],
            self.layout.scalars,
            self.layout.philox,
            self.layout.p,
            runtime_ops.dim(self.f),
            groups,
            via=via,
        )
        self.ops.destroy(*(("tensor", h) for h in handles.values() if h))
        return code, {n: arrays[n] for n in self.wanted}

    def same(self, arrays=None, absent=(), via="function"):
        code, found = self.run(arrays, absent, via)
        assert code == 0, (self.f["name"], self.ops.detail)
        for name, array in found.items():
            if name not in absent:
                assert np.ascontiguousarray(array).tobytes() == self.wanted[name].tobytes(), (
                    self.f["name"],
                    name,
                )


def strided(array, rng):
    """Returns a strided copy of the array: permuted dimensions, and gaps between its elements."""
    order = [int(d) for d in rng.permutation(array.ndim)]
    room = np.zeros([2 * n + 1 for n in np.array(array.shape)[order]], array.dtype)
    view = room[(*(slice(int(rng.integers(2)), None, 2) for _ in order), ...)][
        (*(slice(0, n) for n in np.array(array.shape)[order]), ...)
    ]
    view = view.transpose(np.argsort(order))
    view[...] = array
    return view
