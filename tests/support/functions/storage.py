# SPDX-License-Identifier: Apache-2.0
"""Stored values and manifest entries, shared by checks.py and row_checks.py."""

import functools
import os
import shlex

import numpy as np
import size_rules
from kfgen.entries import expand
from kfgen.entries.spec import load

EPS = {"f32": 2.0**-23, "f64": 2.0**-52}
TINY = {"f32": 2.0**-149, "f64": 1e-300}  # below this SciPy, the oracle, is inaccurate
MANTISSA = {
    "f16": (10, -14, 65504.0),
    "bf16": (7, -126, 3.3895313892515355e38),
    "f32": (23, -126, 3.4028234663852886e38),
    "f64": (52, -1022, 1.7976931348623157e308),
}
STORAGE = {
    "f32": np.float32,
    "f16": np.uint16,
    "bf16": np.uint16,
    "f64": np.float64,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
}


def ulp(x, dtype):
    """Spacing of dtype at |x|."""
    bits, least, _ = MANTISSA[dtype]
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.abs(x)))
    exponent = np.where(np.isfinite(exponent), exponent, least)
    return np.exp2(np.maximum(exponent, least) - bits)


def to_float(raw, dtype):
    """Converts stored values to float64, exactly."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        if dtype == "f16":
            return raw.view(np.float16).astype(np.float64)
        if dtype == "bf16":
            return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return (raw != 0 if dtype == "u8" else raw).astype(np.float64)


def from_float(x, dtype):
    """Converts float64 to stored values, rounding once to nearest even."""
    with np.errstate(all="ignore"):
        if dtype == "f16":
            return x.astype(np.float16).view(np.uint16)
        if dtype == "bf16":
            y = x.astype(np.float32)
            inexact = y.astype(np.float64) != x
            toward = np.where(
                np.abs(y.astype(np.float64)) > np.abs(x), np.nextafter(y, np.float32(0)), y
            )
            odd = np.where(
                inexact & np.isfinite(x),
                toward.astype(np.float32).view(np.uint32) | 1,
                y.view(np.uint32),
            ).astype(np.uint64)
            rounded = ((odd + 0x7FFF + ((odd >> 16) & 1)) >> 16).astype(np.uint16)
            return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)
        return x.astype(STORAGE[dtype])


def workspace(size):
    """Returns (owner, aligned address) of a workspace, None for no bytes."""
    held = np.zeros(size + 256, np.uint8)
    return held, held.ctypes.data + -held.ctypes.data % 256 if size else None


def shape_of(f, sizes, tensor):
    """Array shape of a function's tensor."""
    values = size_rules.options(f) | dict(zip(f["sizes"], map(int, sizes)))
    return size_rules.shape(tensor, values)


@functools.cache
def spec(files=()):
    return load(files)


@functools.cache
def kernel_of(pattern, dtypes, bwd, files=()):
    return next(
        k for k in expand.kernels(spec(files).ops[pattern]) if k.dtypes == dtypes and k.bwd == bwd
    )


SPECIAL = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        -1.0,
        3.0,
        -3.0,
        6.0,
        -0.751953125,
        20.0,
        -20.0,
        -88.0,
        -91.0,
        5e-39,
        -1e-40,
        2.0**-24,
        65504.0,
        -65504.0,
        3e38,
        -3e38,
        -1.2784645,
        0.5,
        -0.5,
        11.0,
        -13.0,
        -13.3125,
        -13.5,
        16.0,
    ]
)


def draw(rng, shape, dtype, values, positive=False):
    """Draws stored values: normal, wide (all exponents), or special (edge values among normal
    ones).
    """
    n = int(np.prod(shape))
    if dtype in ("i32", "i64"):
        info = np.iinfo(STORAGE[dtype])
        x = rng.integers(-1000, 1000, n, dtype=STORAGE[dtype])
        if values != "normal":
            x[::3] = rng.integers(
                info.min, info.max, len(x[::3]), dtype=STORAGE[dtype], endpoint=True
            )
            x[1::7] = info.min
            x[3::7] = info.max
        return x.reshape(shape)
    if dtype == "u8":
        return rng.integers(0, 2, shape, np.uint8)
    x = rng.standard_normal(n) * rng.choice([0.3, 1.0, 3.0], n)
    if values == "wide":
        _, least, _ = MANTISSA[dtype]
        low, high = max(least - 12, -300), min(-least, 300)
        x = np.where(
            rng.random(n) < 0.5, x, np.exp2(rng.uniform(low, high, n)) * rng.choice([-1.0, 1.0], n)
        )
    if values == "special":
        where = rng.random(n) < 0.5
        x = np.where(where, rng.choice(SPECIAL, n), x)
    if positive:
        x = np.abs(x) + 0.1
    return from_float(x, dtype).reshape(shape)


class Failure(AssertionError):
    """A failed check. The message ends with the command that repeats the test."""

    def __init__(self, message):
        super().__init__(message if REPEAT in message else f"{message}{repeat()}")


REPEAT = "; repeat it with: "


def repeat():
    """Returns the command that repeats the running test, or nothing outside of pytest."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]  # without " (call)"
    level = os.environ.get("KF_LEVEL", "1")
    return f"{REPEAT}KF_LEVEL={level} python -m pytest {shlex.quote(test)}" if test else ""


def first_difference(got, want):
    """Describes the first element of `got` whose bits differ from those of `want`."""
    bits = (np.ascontiguousarray(array).view(f"u{array.itemsize}") for array in (got, want))
    at = np.flatnonzero(np.not_equal(*bits))[0]
    return f"first at {at}: got {got.flat[at]!r}, expected {want.flat[at]!r} (as stored)"


def same(value, want, where):
    bad = np.flatnonzero(value != want)
    if bad.size:
        raise Failure(
            f"{where}: {bad.size} of {value.size} wrong, first at {bad[0]}: got "
            f"{value[bad[0]]:.0f}, expected {want[bad[0]]:.0f}"
        )


def compare(value, want, dtype, compute, k, s, slope, top, alone, where, loose=False):
    with np.errstate(all="ignore"):
        exact = k * (EPS[compute] * s + TINY[compute] * slope)
        if (
            alone and compute == "f32"
        ):  # single activation: k ulp of the result, if that is a normal number
            exact = np.where(np.abs(want) >= 2.0**-126, k * ulp(want, compute), exact)
        tolerance = (
            exact
            if dtype == compute
            else np.maximum(
                ulp(want, dtype), exact + 0.5 * ulp(want, dtype) * (exact > 0.5 * ulp(want, dtype))
            )
        )
        largest = MANTISSA[dtype][2]
        # Infinities are correct if an intermediate exceeds float32's range, or the result its
        # dtype's.
        overflow = (np.abs(want) + tolerance > largest) | (top > MANTISSA[compute][2] / 4)
        good = np.where(np.isnan(want), np.isnan(value), np.abs(value - want) <= tolerance)
        good |= np.isinf(want) & (value == want)
        good |= overflow & ~np.isfinite(value)
        # 0 * inf in a gradient gives 0 (the zero guards a kink), NaN (the zero is a factor) or
        # infinity (the zero is inexact). All three are accepted.
        good |= loose & np.isnan(want) & (~np.isfinite(value) | (value == 0))
        bad = np.flatnonzero(~good)
    if bad.size:
        i = bad[0]
        raise Failure(
            f"{where}: {bad.size} of {value.size} wrong, first at {i}: got {value.flat[i]!r}, "
            f"expected {want.flat[i]!r} "
            f"+- {np.broadcast_to(tolerance, value.shape).flat[i]:.3g}"
        )
