# SPDX-License-Identifier: Apache-2.0
"""Calls of kf_fused_multi_head_attention_bwd after their forward, and the expected gradients. Used
by tests/runtime."""

import multi_head
import numpy as np
from multi_head import GRADIENT_BOUNDS, close, exact, stored

SHARED = {  # masks of numbers, by the axes along which they broadcast
    "batch": lambda s: (1, s.heads, s.queries, s.keys),
    "heads": lambda s: (s.batch, 1, s.queries, s.keys),
    "queries": lambda s: (s.batch, s.heads, 1, s.keys),
    "batch and queries": lambda s: (s.heads, 1, s.keys),
    "heads and queries": lambda s: (s.batch, 1, 1, s.keys),
    "all but keys": lambda s: (s.keys,),
}


class Call:
    """A forward with `saved`, the arguments of its backward, and the expected gradients."""

    def __init__(self, heads, ctx, s, dtype, rng, mask, only=None, bias=True, **numbers):
        x = multi_head.inputs(rng, s)
        x = {n: x[n] for n in only or x}
        self.heads, self.ctx, self.s, self.dtype, self.formula = heads, ctx, s, dtype, numbers
        self.numbers = numbers | {"heads": s.heads, "kv_heads": s.kv_heads}
        self.arrays = stored(x | multi_head.weights(rng, s, bias) | mask, dtype)
        shape = s.batch, s.queries, s.out_embed
        self.dout = stored({"dout": rng.standard_normal(shape)}, dtype)["dout"]
        given = exact(self.arrays, dtype)
        dout = exact({"dout": self.dout}, dtype)["dout"]
        self.wanted = multi_head.expected_gradients(given, s, dout, **numbers)
        self.arrays |= stored({"out": np.full(shape, np.nan)}, dtype)
        self.forward()

    def forward(self):
        self.arrays["saved"] = self.heads.memory(self.ctx, self.arrays, self.dtype, **self.numbers)
        code = self.heads.attend(self.ctx, self.arrays, self.dtype, **self.numbers)
        assert code == 0, self.heads.detail

    def empty(self, names=None):
        """Arrays for gradients, full of NaN."""
        names = self.wanted if names is None else names
        return stored({n: np.full(self.wanted[n].shape, np.nan) for n in names}, self.dtype)

    def backward(self, found=None, dout=None, arrays=None, beta=0.0, stream=None):
        """Computes gradients, all unless arrays for some are given; returns these arrays."""
        found = self.empty() if found is None else found
        fields = {"dout": self.dout if dout is None else dout} | found
        arrays = arrays or self.arrays
        code = self.heads.gradients(
            self.ctx, arrays, fields, self.dtype, stream, beta, **self.numbers
        )
        assert code == 0, self.heads.detail
        return found

    def compare(self, found):
        for n, x in exact(found, self.dtype).items():
            close(x, self.wanted[n], self.dtype, GRADIENT_BOUNDS)
