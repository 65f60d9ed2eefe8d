# SPDX-License-Identifier: Apache-2.0
"""Tests f16 and bf16 of the C backend, in each build of numeric.CPU: every value converted to float
and back, and floats rounded to nearest even.

The references are independent of kf: NumPy's float16, and for bf16 a search in the sorted table of
all its values.
"""

import cases
import kflib
import numeric
import numpy as np
import pytest
from conftest import BUILD

FUNCTIONS = {f["cpu_name"]: f for f in kflib.manifest()["functions"] if f["op"] == "cast"}
BUILDS = {name: numeric.BUILDS["cpu"][name] for name in numeric.CPU}
ALL = np.arange(65536, dtype=np.uint32).astype(np.uint16)


@pytest.fixture(scope="module", params=sorted(BUILDS))
def cast(request):
    lib = kflib.build("cpu", list(FUNCTIONS.values()), BUILD / "cpu", BUILDS[request.param])

    def run(name, x, out_type):
        x = np.ascontiguousarray(x)
        out = np.full(x.size + 8, 0x55, np.uint8).repeat(np.dtype(out_type).itemsize).view(out_type)
        assert (
            lib.call(FUNCTIONS[name], {"x": x.ctypes.data, "out": out.ctypes.data, "n": x.size})
            == 0
        ), lib.detail
        assert (out[x.size :].view(np.uint8) == 0x55).all(), "wrote behind the end"
        return out[: x.size]

    return run


def widen(bits, dtype):
    """Converts a 2-byte type to float64, from the definition of its fields."""
    exponent_bits, mantissa_bits = (5, 10) if dtype == "f16" else (8, 7)
    bits = bits.astype(np.int64)
    exponent, mantissa = (
        bits >> mantissa_bits & (1 << exponent_bits) - 1,
        bits & (1 << mantissa_bits) - 1,
    )
    bias = (1 << exponent_bits - 1) - 1
    sign = np.where(bits >> 15, -1.0, 1.0)
    normal = np.ldexp(1.0 + mantissa / (1 << mantissa_bits), exponent - bias)
    subnormal = np.ldexp(mantissa / (1 << mantissa_bits), 1 - bias)
    value = np.where(exponent == 0, subnormal, normal)
    last = exponent == (1 << exponent_bits) - 1
    return sign * np.where(last, np.where(mantissa == 0, np.inf, np.nan), value)


def nearest(x, dtype):
    """Bits of the nearest value, ties to even, by search among all finite ones. NaN gives
    0x7fff."""
    bits = np.arange(0x7C00 if dtype == "f16" else 0x7F80, dtype=np.int64)
    table = widen(bits, dtype)
    # next value after the largest finite one; rounds to infinity
    beyond = 2 * table[-1] - table[-2]
    table = np.append(table, beyond)
    with np.errstate(invalid="ignore"):  # signalling NaN
        a = np.abs(np.asarray(x, np.float64))
        # table[high - 1] < a <= table[high]
        high = np.clip(np.searchsorted(table, a), 1, len(table) - 1)
        low = high - 1
        below, above = a - table[low], table[high] - a
        pick = np.where(below < above, low, np.where(above < below, high, low + (low & 1)))
        pick = np.where(a == 0, 0, np.where(a >= beyond, len(table) - 1, pick))
    return np.where(np.isnan(x), 0x7FFF, pick | np.where(np.signbit(x), 0x8000, 0)).astype(
        np.uint16
    )


def same(got, want, dtype):
    """Equal bits, or both NaN (of any payload)."""
    return (got == want) | (np.isnan(widen(got, dtype)) & np.isnan(widen(want, dtype)))


def check(got, want, x, dtype):
    bad = np.flatnonzero(~same(got, want, dtype))
    assert not bad.size, (
        f"{bad.size} wrong, first: {x[bad[0]]!r} gave {got[bad[0]]:#06x}, expected "
        f"{want[bad[0]]:#06x}"
    )


def test_the_references_agree():
    """The search and NumPy's own conversion are independent and must agree."""
    x = np.concatenate([floats_near("f16"), np.array([np.inf, -np.inf, np.nan], np.float32)])
    with np.errstate(over="ignore"):
        assert same(nearest(x, "f16"), x.astype(np.float16).view(np.uint16), "f16").all()
    assert (
        nearest(np.array([1.0, 1.00390625, 1.01171875, 3.4e38]), "bf16")
        == [0x3F80, 0x3F80, 0x3F82, 0x7F80]
    ).all()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("wide", ["f32", "f64"])
def test_all_values_widen_exactly(cast, dtype, wide):
    got = cast(f"kf_cpu_cast_{dtype}_{wide}", ALL, np.float32 if wide == "f32" else np.float64)
    want = widen(ALL, dtype)
    assert ((got == want) | (np.isnan(got) & np.isnan(want))).all()
    assert (np.signbit(got) == (ALL >> 15).astype(bool))[~np.isnan(want)].all()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("wide", ["f32", "f64"])
def test_all_values_round_trip(cast, dtype, wide):
    """A value of the type rounds to itself; NaN stays NaN."""
    middle = cast(f"kf_cpu_cast_{dtype}_{wide}", ALL, np.float32 if wide == "f32" else np.float64)
    back = cast(f"kf_cpu_cast_{wide}_{dtype}", middle, np.uint16)
    nan = np.isnan(widen(ALL, dtype))
    assert nan.sum() == (2046 if dtype == "f16" else 254)
    assert (back == ALL)[~nan].all()
    assert np.isnan(widen(back, dtype))[nan].all()


def floats_near(dtype):
    """Floats at, just below and just above every midpoint of neighbours, and at the ends of the
    range."""
    values = widen(ALL[: 0x7C00 if dtype == "f16" else 0x7F80].astype(np.uint16), dtype)
    beyond = 2 * values[-1] - values[-2]
    half = (values + np.append(values[1:], beyond)) / 2
    with np.errstate(over="ignore"):
        x = half.astype(np.float32)
        x = x[x.astype(np.float64) == half]  # float has half of bf16's smallest subnormals
    zero, most = np.float32(0), np.float32(np.inf)
    near = [
        x,
        np.nextafter(x, zero),
        np.nextafter(x, most),
        values.astype(np.float32),
        np.nextafter(values.astype(np.float32), most),
    ]
    near += [
        np.array(
            [
                65504,
                65519.996,
                65520,
                65536,
                3.3895314e38,
                3.3961775e38,
                3.4028235e38,
                2.0**-24,
                2.0**-25,
                2.0**-26,
                1e-45,
            ],
            np.float32,
        )
    ]
    x = np.concatenate(near)
    return np.concatenate([x, -x])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_float_rounds_to_nearest_even(cast, dtype):
    x = floats_near(dtype)
    check(cast(f"kf_cpu_cast_f32_{dtype}", x, np.uint16), nearest(x, dtype), x, dtype)
    if dtype == "f16":
        with np.errstate(over="ignore"):
            check(
                cast("kf_cpu_cast_f32_f16", x, np.uint16),
                x.astype(np.float16).view(np.uint16),
                x,
                dtype,
            )


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_random_floats(cast, dtype):
    """Random bits cover all exponents and mantissas."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2**32, 1 << (20 if cases.LEVEL == 1 else 24), dtype=np.uint32).view(
        np.float32
    )
    check(cast(f"kf_cpu_cast_f32_{dtype}", x, np.uint16), nearest(x, dtype), x, dtype)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_doubles_round_once(cast, dtype):
    """A double closer to a midpoint than a float can express must round once; conversion through
    float would round twice."""
    x = floats_near(dtype).astype(np.float64)
    x = x[np.isfinite(x)]
    x = np.concatenate(
        [
            x,
            np.nextafter(x, 0),
            np.nextafter(x, np.inf),
            x * (1 + 2.0**-40),
            x * (1 - 2.0**-40),
            [5e-324, -1e-310, 1e300, -1e300],
        ]
    )
    check(cast(f"kf_cpu_cast_f64_{dtype}", x, np.uint16), nearest(x, dtype), x, dtype)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("wide", ["f32", "f64"])
def test_not_a_number_and_infinity(cast, dtype, wide):
    """NaN stays NaN with any payload. One whose payload is only in the truncated bits must not
    become infinity."""
    if wide == "f32":
        x = np.array(
            [
                0x7F800001,
                0x7F80FFFF,
                0x7FFFFFFF,
                0x7FC00000,
                0xFF800001,
                0xFFFFFFFF,
                0x7F801000,
                0x7F800000,
                0xFF800000,
            ],
            np.uint32,
        ).view(np.float32)
    else:
        x = np.array(
            [
                0x7FF0000000000001,
                0x7FFFFFFFFFFFFFFF,
                0xFFF0000000000001,
                0xFFF8000000000000,
                0x7FF00000FFFFFFFF,
                0x7FF8000000000000,
                0x7FF0000020000000,
                0x7FF0000000000000,
                0xFFF0000000000000,
            ],
            np.uint64,
        ).view(np.float64)
    got = cast(f"kf_cpu_cast_{wide}_{dtype}", x, np.uint16)
    assert np.isnan(widen(got[:7], dtype)).all(), [hex(v) for v in got]
    infinity = 0x7C00 if dtype == "f16" else 0x7F80
    assert list(got[7:]) == [infinity, infinity | 0x8000]
