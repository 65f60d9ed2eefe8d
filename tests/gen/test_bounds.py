# SPDX-License-Identifier: Apache-2.0
"""Error bounds of float32 results (kfgen/families/reference.py)."""

import numpy as np
from kfgen.entries import spec as specs
from kfgen.entries.expand import kernels
from kfgen.families import reference as elements_reference
from kfgen.families.matmul import reference as matmul_reference
from kfgen.families.rows import reference as rows_reference

EPS, TINY = 2.0**-24, 2.0**-150


def bound(pattern, activation, **values):
    loaded = specs.load()
    kernel = next(k for k in kernels(loaded.ops[pattern], ("f32",)) if not k.bwd)
    return elements_reference.Bound(kernel, loaded.activations[activation]).evaluate(
        values, EPS, TINY
    )[0]


def test_the_larger_of_two_rounded_values():
    """relu6(alpha a + beta b), where the two products cancel but for their roundings, may come out
    on either side of 0: the bound has room for that. Away from there it has what it had: none below
    0 and beyond 6.
    """
    a, b = np.array([1.0, 1.0, 1.0, 7.0]), np.array([-1.0 - 2.0**-25, -1.5, 2.0, 7.0])
    s, slope, _ = bound("axpby_{act}", "relu6", a=a, b=b, alpha=1.0, beta=1.0)
    assert s[0] >= 2 and slope[0] >= 3
    assert s[1] == 0 and slope[1] == 2 and s[3] == 6 and slope[3] == 1
    assert 6 < s[2] < 20  # the result, its max, the sum and the products, a few units each


def test_a_product_that_underflows():
    """1e-40 / sqrt(1e12) is 0 in float32, so 3e38 times that and a bias of 1e-8 is the bias."""
    values = {"x": 3e38, "running_mean": 0.0, "running_var": 1e12, "weight": -1e-40, "bias": 1e-8}
    s, slope, _ = bound(
        "batch_norm_{act}", "relu6", eps=0.0, **{name: np.array([v]) for name, v in values.items()}
    )
    assert s[0] * EPS + slope[0] * TINY > 1e-8


def test_inputs_that_are_compared_have_no_rounding():
    x = np.array([-1e-30, 0.0])
    s, _, _ = bound("{act}", "relu6", x=x)
    assert (s == 0).all()


def test_the_larger_of_two_values_of_a_row():
    """The same for ops over rows: relu6 of what a norm gives."""
    loaded = specs.load()
    kernel = next(k for k in kernels(loaded.ops["rms_norm_{act}"], ("f32",)) if not k.bwd)
    bound = rows_reference.Bound(kernel, loaded.activations["relu6"])
    x = np.array([[1.0, -1.0, 6.0 / np.sqrt(2.0), 1e-3]])
    (value, error), *_ = bound.evaluate(
        {"x": x, "weight": np.full((1, 4), 1e-30), "eps": 0.0}, 4, EPS, 2.0**-140, 3.4e38
    )[0]
    assert (value[0, [0, 2, 3]] > 0).all() and (error[0, [0, 2, 3]] > 0).all()
    assert value[0, 1] == 0 and error[0, 1] == 0
    (value, error), *_ = bound.evaluate(
        {"x": x, "weight": np.full((1, 4), 2.0**-149), "eps": 0.0}, 4, EPS, 2.0**-140, 3.4e38
    )[0]
    assert value[0, 1] == 0 and error[0, 1] > 0  # smaller than what a subnormal number rounds by


def aligned_sum(a, b, least, bits):
    """Sums like a tensor core: truncates terms to a number of bits below the largest exponent,
    which is that of the factors as stored.
    """

    def stored(x):
        return np.maximum(np.floor(np.log2(np.abs(x))), least)

    unit = 2.0 ** ((stored(a) + stored(b)).max() - bits)
    return (np.trunc(a * b / unit) * unit).sum()


def test_a_subnormal_factor_takes_bits_from_the_other_terms():
    """A float32 sum of two f16 products, one of them 2^-24 times 30,000: only the bound for tensor
    cores covers their result.
    """
    a, b = np.array([-2.08129883e-02, 3.0e4]), np.array([-2.14599609e-01, 2.0**-24])
    eps = 2.0**-23

    def limit(least):
        rounding = matmul_reference.Rounding(eps, 2.0**-149, 8e37, least=least)
        numbers = [
            matmul_reference.Number(v, np.zeros_like(v), np.zeros(v.shape, bool))
            for v in (a[None], b[:, None])
        ]
        return 2 * (
            matmul_reference.Product._times(*numbers, rounding).error.item() + eps * abs(a @ b)
        )  # 2: a gradient's factor

    off = abs(aligned_sum(a, b, -14, 25) - a @ b)
    assert limit(0.0) < off < limit(2.0**-14)
    normal = abs(aligned_sum(a, b, -100, 25) - a @ b)
    assert 0 < normal < limit(0.0)
