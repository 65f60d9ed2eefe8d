# SPDX-License-Identifier: Apache-2.0
"""Oracle of the example family in NumPy: each tap is a matrix product of the rows of x that it
reads. It shares nothing with the kernels, which compute an element at a time.
"""

import dataclasses

import numpy as np
from kfgen.families.reference import Reference


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a shape struct. packed: bounds of each sequence, or None."""

    stride: int = 1
    pad_left: int = 0
    pad_right: int = 0
    dilation: int = 1
    groups: int = 1
    packed: tuple | None = None

    def sequences(self, x):
        """[(sequence of x, its rows in the result)]; rows in no sequence are in neither."""
        if self.packed is None:
            return [(i, None) for i in range(len(x))]
        return [(slice(a, b), slice(a, b)) for a, b in zip(self.packed, self.packed[1:]) if a < b]


def taps(o, length, kernel):
    """Yields (tap, rows of the result, rows of x) of one sequence."""
    right = o.dilation * (kernel - 1) - o.pad_left if o.packed is not None else o.pad_right
    count = (length + o.pad_left + right - o.dilation * (kernel - 1) - 1) // o.stride + 1
    for t in range(kernel):
        rows = np.arange(max(count, 0))
        at = rows * o.stride - o.pad_left + t * o.dilation
        keep = (at >= 0) & (at < length)
        yield t, rows[keep], at[keep]


def _groups(o, x, weight):
    """Yields (channels of x, filters) of each group."""
    per, each = x.shape[-1] // o.groups, weight.shape[0] // o.groups
    for g in range(o.groups):
        yield slice(g * per, (g + 1) * per), slice(g * each, (g + 1) * each)


def _shape(o, x, weight):
    filters, kernel, _ = weight.shape
    if o.packed is not None:
        return len(x), filters
    room = x.shape[1] + o.pad_left + o.pad_right - o.dilation * (kernel - 1) - 1
    return len(x), room // o.stride + 1, filters


def forward(x, weight, bias, o):
    """The result; NaN in rows of no sequence."""
    out = np.full(_shape(o, x, weight), 0.0 if o.packed is None else np.nan)
    for i, rows in o.sequences(x):
        own = out[i] if rows is None else out[rows]
        own[:] = 0 if bias is None else bias
        for t, to, at in taps(o, len(x[i]), weight.shape[1]):
            for c, f in _groups(o, x, weight):
                own[to, f] += x[i][at, c] @ weight[f, t].T
    return out


def backward(x, weight, dout, o):
    """(dx, dweight, dbias)."""
    dx, dweight = np.zeros(x.shape), np.zeros(weight.shape)
    for i, _ in o.sequences(x):
        for t, to, at in taps(o, len(x[i]), weight.shape[1]):
            for c, f in _groups(o, x, weight):
                dx[i][at, c] += dout[i][to, f] @ weight[f, t]
                dweight[f, t] += dout[i][to, f].T @ x[i][at, c]
    return dx, dweight, dout.reshape(-1, dout.shape[-1]).sum(0)


class Conv1dReference(Reference):
    """For `kfgen check`: the kernel's summands, added here over taps, against `forward` and
    `backward`."""

    pointwise = single = False
    ROWS, CHANNELS, FILTERS, KERNEL = 7, 4, 6, 3

    def __init__(self, family, op, act):
        super().__init__(family, op, act)
        by = {o.kind: o.name for o in op.operands}
        self.x, self.weight, self.bias = (by[kind] for kind in ("image", "filter", "bias"))
        self.offset = by.get("offsets")
        self.packed = self.offset is not None
        self.options = (
            Options(1, 2, 0, 2, 2, (0, 3, 3, 7)) if self.packed else Options(2, 1, 2, 2, 2)
        )
        rows = () if self.packed else (2,)
        self.shapes = {
            self.x: (*rows, self.ROWS, self.CHANNELS),
            self.weight: (self.FILTERS, self.KERNEL, self.CHANNELS // 2),
            self.bias: (self.FILTERS,),
        }
        zeros = [np.zeros(self.shapes[n]) for n in (self.x, self.weight)]
        self.result = self.elements = _shape(self.options, *zeros)

    def inputs(self, rng):
        return {n: rng.standard_normal(shape) for n, shape in self.shapes.items()}

    def points(self, inputs, want):
        return {"index": np.arange(want.size).reshape(want.shape)}

    def values(self, inputs, mask):
        given = (inputs[n] for n in (self.x, self.weight, self.bias))
        return {"out": forward(*given, self.options)}

    def gradients(self, inputs, douts, mask):
        found = backward(inputs[self.x], inputs[self.weight], douts["out"], self.options)
        return dict(zip((self.x, self.weight, self.bias), found))

    def results(self, bwd, env, single=False, by=False):
        """The kernel's own expressions of one product, and of one element of bias."""
        x, weight, o = env[self.x], env[self.weight], self.options
        dout = env.get("dout", np.zeros(self.result))
        sums = {n: np.zeros(shape) for n, shape in self.shapes.items()}
        out = np.zeros(self.result) + env[self.bias]
        for i, _ in o.sequences(x):
            for t, to, at in taps(o, len(x[i]), self.KERNEL):
                for c, f in _groups(o, x, weight):
                    one = {
                        self.x: x[i][at][:, None, c],
                        self.weight: weight[None, f, t],
                        self.bias: 0.0,
                        "dout": dout[i][to][:, f, None],
                    }
                    terms = super().results(bwd, one)
                    if not bwd:
                        out[i][to, f] += terms["out"].sum(2)
                        continue
                    sums[self.x][i][at, c] += terms[f"d{self.x}"].sum(1)
                    sums[self.weight][f, t] += terms[f"d{self.weight}"].sum(0)
        if not bwd:
            return {"out": out}
        bias = super().results(bwd, {self.x: 0.0, self.weight: 0.0, self.bias: 0.0, "dout": dout})
        sums[self.bias] = bias[f"d{self.bias}"].reshape(-1, self.FILTERS).sum(0)
        return {f"d{n}": v for n, v in sums.items()}
