# SPDX-License-Identifier: Apache-2.0
"""argmax and argmin over NumPy arrays."""

import numpy as np


def test_places(kf):
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    x[:, 1] = x[:, 2]  # the first of equal values
    for dim in (-1, 0, 1):
        value, index = kf.ops.argmax(x, dim=dim)
        assert (
            index.dtype == np.int64
            and np.array_equal(index, x.argmax(dim))
            and np.array_equal(value, x.max(dim))
        )
    assert kf.ops.argmax(x, dim=None)[1] == x.argmax()
