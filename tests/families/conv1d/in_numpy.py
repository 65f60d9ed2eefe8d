# SPDX-License-Identifier: Apache-2.0
"""kf.ops on NumPy arrays: options by name, defaults, errors."""

import inspect

import kernel_fusion as kf
import numpy as np
from kfgen.families.conv1d import reference

OPTIONS = {"stride": 2, "pad_left": 1, "pad_right": 2, "dilation": 2, "groups": 2}
rng = np.random.default_rng(0)
x, weight = (rng.standard_normal(n).astype(np.float32) for n in ((2, 9, 4), (6, 3, 2)))
bias, offsets = rng.standard_normal(6).astype(np.float32), np.array([0, 4, 4, 9])


def wide(*arrays):
    return [a.astype(np.float64) for a in arrays]


def check():
    got = kf.ops.conv1d(x, weight, bias, **OPTIONS)
    want = reference.forward(*wide(x, weight, bias), reference.Options(*OPTIONS.values()))
    assert got.shape == (2, 4, 6) and np.abs(got - want).max() <= 1e-5
    got = kf.ops.conv1d(x, weight, groups=2)  # the others have the struct's defaults
    want = reference.forward(*wide(x, weight), None, reference.Options(groups=2))
    assert got.shape == (2, 7, 6) and np.abs(got - want).max() <= 1e-5
    got = kf.ops.conv1d_varlen(x[0], offsets, weight, bias, pad_left=1, groups=2)
    options = reference.Options(pad_left=1, groups=2, packed=tuple(offsets))
    assert np.abs(got - reference.forward(*wide(x[0], weight, bias), options)).max() <= 1e-5


parameters = inspect.signature(kf.ops.conv1d).parameters
assert {n: p.default for n, p in parameters.items() if n in OPTIONS} == {
    "stride": 1,
    "pad_left": 0,
    "pad_right": 0,
    "dilation": 1,
    "groups": 1,
}
assert "stride: at least 1; default 1" in kf.ops.conv1d.__doc__
check()
for options, error in (
    ({"stride": 0}, "kf.conv1d: stride is 0, expected at least 1"),
    ({"pad_left": -1}, "kf.conv1d: pad_left is -1, expected at least 0"),
    ({"groups": 4}, "kf.conv1d: weight has the shape (6, 3, 2), expected (6, 3, 1)"),
    ({"groups": 2, "dilation": 9}, "kf.conv1d: out has the shape"),
    ({"kernel": 3}, "kf.conv1d("),
):
    try:
        kf.ops.conv1d(x, weight, bias, **options)
    except (TypeError, ValueError) as e:
        assert str(e).startswith(error) or "of at least 0" in str(e), (options, str(e))
    else:
        raise AssertionError(options)
