#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the polynomials of include/kf/core/math.cuh; prints coefficients and errors.

A fit is a weighted minimax: a linear programme over Chebyshev nodes. Coefficients are rounded to
float from the lowest power up, and the others are refitted after each; the printed errors are those
of the float polynomial. The highest power comes first, as in Horner's scheme.
Needs numpy and scipy and takes seconds; run by hand, no build runs it.
"""

import numpy as np
from scipy.optimize import linprog
from scipy.special import erfc, erfcx


def nodes(lo, hi, n=500):
    return (lo + hi) / 2 - (hi - lo) / 2 * np.cos(np.pi * (np.arange(n) + 0.5) / n)


def minimax(x, f, tol, degree):
    """Minimises max |p(x) - f| / tol; returns (float coefficients, lowest first, the maximum)."""
    mid, half = (x[0] + x[-1]) / 2, (x[-1] - x[0]) / 2
    # Start from a well-conditioned fit.
    basis = np.polynomial.chebyshev.chebvander((x - mid) / half, degree)
    c = np.linalg.lstsq(basis / tol[:, None], f / tol, rcond=None)[0]
    c = (
        np.polynomial.Chebyshev(c, domain=[mid - half, mid + half])
        .convert(kind=np.polynomial.Polynomial, domain=[-1, 1], window=[-1, 1])
        .coef
    )
    powers = x[:, None] ** np.arange(degree + 1) / tol[:, None]
    for fixed in range(degree + 1):
        # The residual is scaled to 1: the solver's accuracy is 1e-7.
        for _ in range(3 if fixed == 0 else 1):
            rest = f / tol - powers @ c
            size, free = np.abs(rest).max(), powers[:, fixed:]
            scale, minus = np.abs(free).max(0), -np.ones((len(x), 1))
            a = free / scale
            step = linprog(
                np.r_[np.zeros(a.shape[1]), 1],
                method="highs",
                A_ub=np.block([[a, minus], [-a, minus]]),
                b_ub=np.r_[rest, -rest] / size,
                bounds=[(None, None)] * a.shape[1] + [(0, None)],
            )
            if step.x is not None:
                c[fixed:] += step.x[:-1] * size / scale
        c[fixed] = np.float32(c[fixed])
    return c, np.abs(f / tol - powers @ c).max()


def show(word, coef, err, unit="relative"):
    print(f"{word}: {err:.3g} {unit} (log2 {np.log2(err):.2f})")
    print("    " + ", ".join(f"{np.float32(c):.9g}f" for c in coef[::-1]))


def tail(word, degree, shift, limit, tolerance, scale=1.0):
    """Phi(-a) = exp(-a*a/2) P(t), t = 1 / (scale*a + shift), a <= limit; tolerance(Phi, exp, a)."""
    t = nodes(1 / (scale * limit + shift), 1 / shift)
    a = (1 / t - shift) / scale
    mills, gauss = erfcx(a / np.sqrt(2)) / 2, np.exp(-a * a / 2)
    coef, err = minimax(t, mills, tolerance(gauss * mills, gauss, a) / gauss, degree)
    show(f"{word}, shift {shift:g}", coef, err, "of the tolerance")


def two_byte(y):
    """Tolerance: a quarter ulp of f16 where it is normal (2^-13), below that the bounds of f16
    (1.5e-8) and bf16 (2^-11, 2^-135).
    """
    small = np.clip(2.0**-11 * y, 2.0**-135, np.maximum(1.5e-8, 2.0**-13 * y))
    return np.where(y > 6e-5, 2.0**-13 * y, small)


def main():
    # Limits: gelu vanishes in float below -14.3, in bf16 below -13.3. A scan found the best shifts.
    tail("kfi_mills_f32", 9, 3.0, 14.4, lambda q, g, a: q)
    tail(
        "kfi_gelu_lp",
        4,
        2.15,
        13.4,
        lambda q, g, a: np.where(a < 1, 2.0**-13 * q, two_byte(a * q) / np.maximum(a, 1)),
    )
    tail("kfi_normcdf_lp", 6, 3.6, 13.4, lambda q, g, a: np.minimum(1e-7, two_byte(q)))
    # gelu'(-a) = Phi(-a) - a phi(a) has a zero, so the bound is absolute. a is scaled:
    # (scale*a)^2 = a*a/2 log2(e).
    phi = 1 / np.sqrt(2 * np.pi)
    tail(
        "kfi_gelu_bwd_lp",
        5,
        2.7,
        13.4,
        lambda q, g, a: np.where(a < 3, 1e-7, np.minimum(1e-7, two_byte(np.abs(q - a * g * phi)))),
        np.sqrt(np.log2(np.e) / 2),
    )

    x = nodes(-0.3472, 0.3472)  # ln(2) / 2 and a little
    f = np.where(np.abs(x) < 1e-3, 0.5 + x / 6 + x * x / 24, (np.expm1(x) - x) / x**2)
    show("kfi_expm1_f32, (expm1(x) - x) / x^2", *minimax(x, f, np.abs(np.expm1(x) / x**2), 4))

    t = nodes(0, 1)
    f = np.log1p(t)
    show("kfi_log1p01_f32, (log1p(t) - t) / t^2", *minimax(t, (f - t) / t**2, f / t**2, 8))
    show("kfi_log1p01_lp, log1p(t) / t", *minimax(t, f / t, f / t, 6))

    a = nodes(0.01, 3.2)  # f16 is 1 from 2.9 on
    f, g = np.log2(erfc(a)) / a, erfc(a)
    show("kfi_erf_lp, log2(1 - erf(a)) / a", *minimax(a, f, (1 - g) / (g * a * np.log(2)), 4))


if __name__ == "__main__":
    main()
