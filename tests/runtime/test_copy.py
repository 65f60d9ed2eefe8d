# SPDX-License-Identifier: Apache-2.0
"""Copies between tensors: any strides, and every pair of dtypes, rounded once."""

import ctypes
import fractions

import numpy as np
import pytest
from runtime_api import BF16, F16, F32, F64, I32, I64, NUMPY, U8

FLOATS = {F32: (24, -126, 127), F16: (11, -14, 15), BF16: (8, -126, 127), F64: (53, -1022, 1023)}
RANGE = {I32: (-(2**31), 2**31 - 1), I64: (-(2**63), 2**63 - 1), U8: (0, 255)}
TIES = [
    s * (1 + k * 2.0**-p) * 2.0**e
    for s in (1, -1)
    for p in (7, 8, 10, 11, 12, 23, 24)
    for k in (1, 3)
    for e in (-140, -25, -14, 0, 15, 127)
]
NUMBERS = [
    0.0,
    -0.0,
    1.5,
    -2.5,
    254.9,
    255.5,
    256.0,
    65519.0,
    65520.0,
    -65520.0,
    3.3895e38,
    3.39e38,
    2.0**31,
    -(2.0**31),
    2.0**63,
    -(2.0**63),
    1e300,
    -1e300,
    1e-300,
    2.0**-25,
    2.0**-24 * 1.5,
    np.inf,
    -np.inf,
    np.nan,
    *(t * by for t in TIES for by in (1, 1 + 2.0**-50, 1 - 2.0**-50)),
]
WHOLE = [
    0,
    1,
    -1,
    127,
    255,
    256,
    2**24 + 1,
    2**31 - 1,
    -(2**31),
    2**53 + 1,
    2**62 + 2**54 + 1,
    2**62 + 2**54,
    -(2**62) - 2**54 - 1,
    2**63 - 1,
    -(2**63),
    65519,
    65520,
]


def value(bits, dtype):
    """Returns the value of one stored element: an exact fraction, or a nonfinite float."""
    if dtype in RANGE:
        return fractions.Fraction(int(bits))
    x = float(np.uint32(int(bits) << 16).view(np.float32)) if dtype == BF16 else float(bits)
    return fractions.Fraction(x) if np.isfinite(x) else x


def rounded(x, dtype):
    """Returns the value of a dtype nearest to an exact number, ties to even, computed with integers
    only.
    """
    digits, least, most = FLOATS[dtype]
    if x == 0:
        return x
    exponent = 0
    while abs(x) >= fractions.Fraction(2) ** (exponent + 1):
        exponent += 1
    while exponent > least and abs(x) < fractions.Fraction(2) ** exponent:
        exponent -= 1
    unit = fractions.Fraction(2) ** (max(exponent, least) - digits + 1)
    units = round(x / unit)  # fractions round ties to even
    return (
        np.copysign(np.inf, float(x > 0) - 0.5)
        if abs(units * unit) >= fractions.Fraction(2) ** (most + 1)
        else units * unit
    )


def expected(x, dtype):
    if dtype in RANGE:
        least, most = RANGE[dtype]
        if not isinstance(x, fractions.Fraction):
            return 0 if x != x else most if x > 0 else least
        return min(max(int(x), least), most)  # int() truncates
    return rounded(x, dtype) if isinstance(x, fractions.Fraction) else x


def inputs(dtype):
    with np.errstate(over="ignore"):
        if dtype in RANGE:
            least, most = RANGE[dtype]
            return np.array([n for n in WHOLE if least <= n <= most], NUMPY[dtype])
        if dtype == BF16:
            return (np.array(NUMBERS, np.float64).astype(np.float32).view(np.uint32) >> 16).astype(
                np.uint16
            )
        return np.array(NUMBERS, np.float64).astype(NUMPY[dtype])


@pytest.mark.parametrize("to", NUMPY)
@pytest.mark.parametrize("dtype", NUMPY)
def test_every_dtype_to_every_other(api, ctx, dtype, to):
    x = inputs(dtype)
    source, target = api.over(ctx, x, dtype), api.create(ctx, x.shape, to)
    assert api.tensor_copy(target, source, None) == 0, api.detail
    for before, after in zip(x, api.array(target)):
        wanted, got = expected(value(before, dtype), to), value(after, to)
        assert wanted == got or (wanted != wanted and got != got), (
            value(before, dtype),
            wanted,
            got,
        )
        if dtype not in RANGE and to not in RANGE and wanted == 0:
            sign = int(before) >> 15 if dtype == BF16 else int(np.signbit(before))
            assert (int(after) >> 15 if to == BF16 else int(np.signbit(after))) == sign, (
                "the sign of zero"
            )
    api.destroy(("tensor", source), ("tensor", target))


@pytest.mark.parametrize("seed", range(4))
def test_any_strides(api, ctx, seed):
    """Permuted, stepped and broadcast copies equal NumPy's; elements in between do not change."""
    rng = np.random.default_rng(seed)
    for _ in range(150):
        shape = tuple(
            int(n)
            for n in rng.choice(
                [1, 2, 3, 5, 300], rng.integers(0, 4), p=[0.2, 0.25, 0.25, 0.25, 0.05]
            )
        )
        both = []
        for k in range(2):
            own = tuple(1 if k and rng.random() < 0.2 else n for n in shape)
            own = own[rng.integers(len(own) + 1) :] if k and rng.random() < 0.2 else own
            room = np.asarray(rng.integers(-100, 100, tuple(n * 2 + 1 for n in own)), np.int32)
            order = [int(d) for d in rng.permutation(len(own))]
            steps = zip(own, rng.integers(0, 2, len(own)), rng.integers(1, 3, len(own)))
            inside = room[(*(slice(int(b), int(b) + n * s, s) for n, b, s in steps), ...)]
            backwards = (
                inside.transpose(order).copy().transpose(np.argsort(order))
                if rng.random() < 0.3
                else inside
            )
            both.append((room, backwards))
        (room, target), (_, source) = both
        x, y = api.over(ctx, source, I32), api.over(ctx, target, I32)
        outside = room.copy()
        wanted = target.copy()
        wanted[...] = source
        assert api.tensor_copy(y, x, None) == 0, api.detail
        assert np.array_equal(target, wanted)
        if np.shares_memory(room, target):
            expected_room = outside
            view = np.lib.stride_tricks.as_strided(
                expected_room.ravel()[(target.ctypes.data - room.ctypes.data) // 4 :],
                target.shape,
                target.strides,
            )
            view[...] = source
            assert np.array_equal(room, expected_room)
        api.destroy(("tensor", x), ("tensor", y))


def test_what_may_not_be_copied(api, ctx):
    x, y = np.zeros((4, 6), np.float32), np.zeros((4, 5), np.float32)
    a, b = api.over(ctx, x, F32), api.over(ctx, y, F32)
    assert api.fails(
        api.tensor_copy(b, a, None), "ERROR_SHAPE", "kf_tensor_copy: from is [4, 6]", "[4, 5]"
    )
    shape = (ctypes.c_int64 * 3)(3, 4, 6)
    repeated = api.tensor_broadcast_to(a, shape, 3)
    assert api.fails(
        api.tensor_copy(repeated, a, None), "ERROR_OVERLAP", "to is [3, 4, 6]", "[0, 6, 1]"
    )
    left, right = api.tensor_slice(a, 1, 0, 4, 1), api.tensor_slice(a, 1, 2, 6, 1)
    assert api.fails(api.tensor_copy(left, right, None), "ERROR_OVERLAP", "overlaps from")
    assert api.tensor_copy(left, left, None) == 0
    other = api.context()
    stream = api.stream_create(other, None)
    assert api.fails(api.tensor_copy(a, a, stream), "ERROR_DEVICE", "stream is of another context")
    foreign = api.create(other, (4, 6))
    assert api.tensor_copy(a, foreign, None) == 0, (
        "memory of another context of the CPU is the CPU's"
    )
    api.destroy(
        ("stream", stream),
        ("context", other),
        *(("tensor", t) for t in (a, b, repeated, left, right, foreign)),
    )


def test_nothing_to_copy(api, ctx):
    a, b = api.create(ctx, (0, 4), U8), api.create(ctx, (0, 4), F64)
    assert api.tensor_data(a) is None and api.tensor_copy(b, a, None) == 0
    scalar, row = api.create(ctx, (), I64), api.create(ctx, (5,), F32)
    api.array(scalar)[...] = 7
    assert api.tensor_copy(row, scalar, None) == 0 and (api.array(row) == 7).all()
    api.destroy(*(("tensor", t) for t in (a, b, scalar, row)))
