#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every polynomial of include/kf/core/math.cuh, refitted: prints coefficients and errors.

Each fit is a weighted minimax, a linear programme over Chebyshev nodes whose error is in units of
the tolerance given; coefficients print highest power first, as Horner reads them, rounded to f32.
Needs numpy and scipy; takes seconds. Nothing in the build runs it.
"""
import numpy as np
from scipy.optimize import linprog
from scipy.special import erfcx, erfc

cheb = np.polynomial.chebyshev


def nodes(lo, hi, n=600):
    return (lo + hi) / 2 - (hi - lo) / 2 * np.cos(np.pi * (np.arange(n) + 0.5) / n)


def minimax(x, f, tol, degree):
    """Power coefficients, lowest first, of the p that minimises max |p(x) - f| / tol."""
    mid, half = (x[0] + x[-1]) / 2, (x[-1] - x[0]) / 2
    basis = cheb.chebvander((x - mid) / half, degree)
    weighted = basis / tol[:, None]
    c = np.linalg.lstsq(weighted, f / tol, rcond=None)[0]
    for _ in range(2):  # the residual is rescaled to 1: the solver's own tolerance is 1e-7
        rest = (f - basis @ c) / tol
        size, scale = np.abs(rest).max(), np.abs(weighted).max()
        a, one = weighted / scale, -np.ones((len(x), 1))
        step = linprog(np.r_[np.zeros(degree + 1), 1], method="highs",
                       A_ub=np.block([[a, one], [-a, one]]), b_ub=np.r_[rest, -rest] / size,
                       bounds=[(None, None)] * (degree + 1) + [(0, None)])
        c = c + step.x[:-1] * size / scale
    p = np.polynomial.Chebyshev(c, domain=[x[0], x[-1]]).convert(kind=np.polynomial.Polynomial)
    return p.coef, np.abs((f - basis @ c) / tol).max()


def show(word, coef, err, unit):
    print(f"{word}: {err:.3g} {unit}" + ("" if err <= 0 else f" (log2 {np.log2(err):.2f})"))
    for c in coef[::-1]:
        print(f"    {np.float32(c):.9g}f")


def tail(word, degree, shift, limit, tolerance, scale=1.0):
    """q(a) = Phi(-a) = exp(-a*a/2) * P(t), t = 1 / (scale*a + shift); tolerance(q, a) of exp * P."""
    t = nodes(1 / (scale * limit + shift), 1 / shift)
    a = (1 / t - shift) / scale
    mills, gauss = erfcx(a / np.sqrt(2)) / 2, np.exp(-a * a / 2)
    coef, err = minimax(t, mills, tolerance(gauss * mills, gauss, a) / gauss, degree)
    if word:
        show(f"{word}, shift {shift:g}", coef, err, "of the tolerance")
    return err


def best(degree, shifts, limit, tolerance, scale=1.0):
    return min(shifts, key=lambda s: tail("", degree, s, limit, tolerance, scale))


def two_byte(y):
    """A quarter ulp: f16 (2^-13, 1.5e-8 at the bottom), under that bf16 (2^-11, 2^-135)."""
    f16 = np.maximum(2.0**-13 * y, 1.5e-8)
    return np.maximum(np.minimum(f16, np.where(y > 6e-5, 1, 2.0**-11 * y)), 2.0**-135)


ROOT = np.sqrt(np.log2(np.e) / 2)  # exp(-a*a/2) = 2^-(ROOT*a)^2


def main():
    # |x| at which bf16 results vanish: 13.3; f32: 14.3.
    tail("kfi_mills_f32", 9, 3.0, 14.4, lambda q, g, a: q)

    def tol(q, g, a):  # gelu(-a) = -a*q; a relative bound where it is normal
        return np.where(a < 1, 2.0**-13 * q, two_byte(a * q) / np.maximum(a, 1))
    tail("kfi_gelu_lp", 4, best(4, np.arange(1.6, 3.2, 0.05), 13.4, tol), 13.4, tol)

    def tol(q, g, a):  # absolute 1e-7, then a quarter ulp
        return np.minimum(1e-7, two_byte(q))
    tail("kfi_normcdf_lp", 6, best(6, np.arange(2.4, 4.4, 0.1), 13.4, tol), 13.4, tol)

    def tol(q, g, a):  # gelu'(-a) = q - a*phi, which has a zero: the bound is absolute there
        return np.where(a < 3, 1e-7, np.minimum(1e-7, two_byte(np.abs(q - a * g / np.sqrt(2 * np.pi)))))
    tail("kfi_gelu_bwd_lp", 6, best(6, np.arange(2.0, 4.0, 0.1), 13.4, tol, ROOT), 13.4, tol, ROOT)

    x = nodes(-0.3472, 0.3472)  # ln(2) / 2 and a little
    series = 0.5 + x / 6 + x * x / 24 + x**3 / 120
    f = np.where(np.abs(x) < 1e-3, series, (np.expm1(x) - x) / x**2)
    show("kfi_expm1_f32, (expm1(x) - x) / x^2", *minimax(x, f, np.abs(np.expm1(x) / x**2), 4), "relative")

    x = nodes(-0.0625, 0.0625)
    show("kfi_expm1_lp, expm1(x) / x", *minimax(x, np.expm1(x) / x, np.expm1(x) / x, 2), "relative")
    x = nodes(0, 0.0625**2)
    f = np.tanh(np.sqrt(x)) / np.sqrt(x)
    show("kfi_tanh_lp, tanh(x) / x in x^2", *minimax(x, f, f, 1), "relative")

    t = nodes(0, 1)
    f = np.log1p(t)
    show("kfi_log1p01_f32, (log1p(t) - t) / t^2", *minimax(t, (f - t) / t**2, f / t**2, 8), "relative")
    show("kfi_log1p01_lp, log1p(t) / t", *minimax(t, f / t, f / t, 6), "relative")

    # erf(a) = 1 - 2^(a * R(a)); tolerance 2^-15 relative, at most 2e-7 absolute; smaller |x| below
    a = nodes(1e-3, 3.9)
    g = erfc(a)
    f = np.log2(g) / a
    for n in (5, 6, 7):
        show("kfi_erf_lp", *minimax(a, f, np.minimum(3e-7, 2.**-15 * (1 - g)) / np.maximum(g, 1e-7) / a / np.log(2), n), "of the tolerance")


if __name__ == "__main__":
    main()
