# SPDX-License-Identifier: Apache-2.0
"""Tests kf/rope_table.h: frequencies and tables against NumPy's, with the scalings of published
models; and the arguments it refuses."""

import ctypes
import math
import subprocess

import kflib
import numpy as np
import pytest
import refusals

PLAIN, LINEAR, NTK, YARN, LLAMA3 = range(5)
TEXT = """#include <kf/rope_table.h>
const char *detail(void) { return kf_get_last_error_detail(); }
int frequencies(float *f, int64_t pairs, double base, const kf_rope_scaling_t *s)
{
    return kf_rope_frequencies_f32(f, pairs, base, s);
}
int table_f32(float *c, float *s, int64_t n, int64_t p, double b, const kf_rope_scaling_t *x)
{
    return kf_rope_table_f32(c, s, n, p, b, x);
}
int table_f64(double *c, double *s, int64_t n, int64_t p, double b, const kf_rope_scaling_t *x)
{
    return kf_rope_table_f64(c, s, n, p, b, x);
}
double magnitude(const kf_rope_scaling_t *s) { return kf_rope_magnitude(s); }
"""


class Scaling(ctypes.Structure):
    _fields_ = [
        ("scheme", ctypes.c_int),
        *[(name, ctypes.c_double) for name in ("factor", "original", "low", "high", "magnitude")],
    ]


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rope_table")
    (folder / "own.c").write_text(TEXT)
    command = [
        "gcc",
        "-std=c11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Wconversion",
        "-Werror",
        "-shared",
        "-fPIC",
        "-I",
        str(kflib.ROOT / "include"),
        str(folder / "own.c"),
        "-o",
        str(folder / "own.so"),
        "-lm",
    ]
    subprocess.run(command, check=True)
    found = ctypes.CDLL(str(folder / "own.so"))
    found.detail.restype, found.magnitude.restype = ctypes.c_char_p, ctypes.c_double
    return found


def address(array):
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def frequencies(
    pairs, base, scheme=PLAIN, factor=1.0, original=0.0, low=0.0, high=0.0, magnitude=0.0
):
    """Reference frequencies in float64, from wavelengths and rotations."""
    dim = 2 * pairs
    if scheme == NTK and dim > 2:
        base *= factor ** (dim / (dim - 2))
    found = 1.0 / base ** (np.arange(0, dim, 2) / dim)
    if scheme == LINEAR:
        return found / factor
    if scheme == LLAMA3:
        low, high, wavelength = low or 1.0, high or 4.0, 2 * math.pi / found
        smooth = (original / wavelength - low) / (high - low)
        between = (1 - smooth) * found / factor + smooth * found
        return np.where(
            wavelength < original / high,
            found,
            np.where(wavelength > original / low, found / factor, between),
        )
    if scheme == YARN:
        first, last = (
            dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (high or 32.0, low or 1.0)
        )
        first, last = max(math.floor(first), 0), min(math.ceil(last), dim - 1)
        ramp = np.clip((np.arange(pairs) - first) / ((last - first) or 0.001), 0, 1)
        return found / factor * ramp + found * (1 - ramp)
    return found


CASES = [
    (64, 10000.0, {}),
    (1, 10000.0, {}),
    (64, 500000.0, {"scheme": LLAMA3, "factor": 8.0, "original": 8192.0}),
    (64, 500000.0, {"scheme": LLAMA3, "factor": 32.0, "original": 8192.0, "low": 2.0, "high": 6.0}),
    (64, 10000.0, {"scheme": YARN, "factor": 16.0, "original": 4096.0}),
    (32, 1e6, {"scheme": YARN, "factor": 4.0, "original": 32768.0}),
    (
        5,
        10000.0,
        {
            "scheme": YARN,
            "factor": 2.0,
            "original": 64.0,
            "low": 2.0,
            "high": 9.0,
            "magnitude": 1.25,
        },
    ),
    (64, 10000.0, {"scheme": LINEAR, "factor": 4.0}),
    (40, 10000.0, {"scheme": NTK, "factor": 3.5}),
    (1, 10000.0, {"scheme": NTK, "factor": 2.0}),
]


@pytest.mark.parametrize("pairs, base, more", CASES, ids=str)
def test_tables(lib, pairs, base, more):
    scaling = Scaling(**more)
    want = frequencies(pairs, base, **more)
    given = np.full(pairs, np.nan, np.float32)
    assert (
        lib.frequencies(
            address(given), ctypes.c_int64(pairs), ctypes.c_double(base), ctypes.byref(scaling)
        )
        == 0
    ), lib.detail()
    assert np.abs(given / want - 1).max() < 1e-7
    magnitude = more.get("magnitude") or (
        0.1 * math.log(more["factor"]) + 1 if more.get("scheme") == YARN else 1
    )
    assert lib.magnitude(ctypes.byref(scaling)) == pytest.approx(magnitude, rel=1e-15)
    angle = np.arange(3000)[:, None] * want
    for word, dtype, bound in (("f32", np.float32, 6.1e-8), ("f64", np.float64, 1e-11)):
        cosine, sine = np.full(angle.shape, np.nan, dtype), np.full(angle.shape, np.nan, dtype)
        made = getattr(lib, f"table_{word}")(
            address(cosine),
            address(sine),
            ctypes.c_int64(3000),
            ctypes.c_int64(pairs),
            ctypes.c_double(base),
            ctypes.byref(scaling),
        )
        assert made == 0, lib.detail()
        for got, function in ((cosine, np.cos), (sine, np.sin)):
            assert np.abs(got - function(angle) * magnitude).max() <= bound * magnitude


def test_far_positions_are_as_right_as_near_ones(lib):
    """A float32 product of position and frequency has an error of 0.06 rad there."""
    cosine, sine = np.empty((2**20, 1)), np.empty((2**20, 1))
    assert (
        lib.table_f64(
            address(cosine),
            address(sine),
            ctypes.c_int64(2**20),
            ctypes.c_int64(1),
            ctypes.c_double(2.0),
            None,
        )
        == 0
    )
    at = np.arange(2**20)[-1000:]
    assert (
        np.abs(cosine[-1000:, 0] - np.cos(at)).max() < 1e-12
        and np.abs(sine[-1000:, 0] - np.sin(at)).max() < 1e-12
    )


REFUSED = [
    ({"positions": -1}, refusals.INVALID_SIZE, "positions is -1"),
    ({"pairs": -3}, refusals.INVALID_SIZE, "pairs is -3"),
    ({"base": 1.0}, refusals.INVALID_VALUE, "base is 1"),
    ({"base": math.nan}, refusals.INVALID_VALUE, "base is "),
    ({"cosine": None}, refusals.NULL_POINTER, "cosine is NULL"),
    ({"sine": None}, refusals.NULL_POINTER, "sine is NULL"),
    ({"scaling": Scaling(9, 2.0)}, refusals.INVALID_VALUE, "scaling->scheme is 9"),
    ({"scaling": Scaling(LINEAR, 0.5)}, refusals.INVALID_VALUE, "scaling->factor is 0.5"),
    ({"scaling": Scaling(YARN, 2.0)}, refusals.INVALID_VALUE, "scaling->original is 0"),
    (
        {"scaling": Scaling(LLAMA3, 2.0, 64.0, 5.0, 4.0)},
        refusals.INVALID_VALUE,
        "scaling->low is 5",
    ),
]


@pytest.mark.parametrize("given, code, text", REFUSED, ids=lambda x: str(x)[:40])
def test_what_is_refused(lib, given, code, text):
    table = np.full(12, 7, np.float32)
    call = {
        "cosine": table,
        "sine": table.copy(),
        "positions": 4,
        "pairs": 3,
        "base": 10000.0,
        "scaling": Scaling(),
    } | given
    got = lib.table_f32(
        address(call["cosine"]),
        address(call["sine"]),
        ctypes.c_int64(call["positions"]),
        ctypes.c_int64(call["pairs"]),
        ctypes.c_double(call["base"]),
        ctypes.byref(call["scaling"]),
    )
    assert got == code and f"kf_rope_table_f32: {text}" in lib.detail().decode(), lib.detail()
    assert (table == 7).all()


def test_nothing_to_make(lib):
    assert (
        lib.table_f32(
            None, None, ctypes.c_int64(0), ctypes.c_int64(3), ctypes.c_double(10000.0), None
        )
        == 0
    )
    assert lib.frequencies(None, ctypes.c_int64(0), ctypes.c_double(10000.0), None) == 0
