# SPDX-License-Identifier: Apache-2.0
"""Fits the polynomials of include/kf/core/math.h and prints their coefficients. Needs numpy and
mpmath; run by hand, no build runs it.

A fit is a weighted least-squares fit on Chebyshev nodes, reweighted (Lawson) until it is a minimax
fit of the relative error. Coefficients are rounded to float32 from the lowest power up, and the
others are refitted after each.
"""

import mpmath as mp
import numpy as np

mp.mp.dps = 80


def fit(name, f, lo, hi, degree, weight, fixed=(), nodes=200, rounds=60):
    """Fits sum c[i] x^i to f on [lo, hi]. weight(x) converts its error to the function's relative
    error.
    """
    x = (lo + hi) / 2 + (hi - lo) / 2 * np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    y = np.array([float(f(mp.mpf(v))) for v in x])
    w = np.array([abs(float(weight(mp.mpf(v)))) for v in x])
    done = dict(enumerate(fixed))
    for first in range(len(done), degree + 1):
        basis = np.stack([x**i for i in range(first, degree + 1)], 1)
        rest = y - sum(c * x**i for i, c in done.items())
        scale = np.max(np.abs(basis) * w[:, None], 0)
        lawson, best = np.ones(nodes) / nodes, (np.inf, None)
        for _ in range(rounds):
            s = np.sqrt(lawson) * w
            c = np.linalg.lstsq(basis / scale * s[:, None], rest * s, rcond=None)[0] / scale
            error = np.abs((rest - basis @ c) * w)
            best = min(best, (error.max(), c), key=lambda b: b[0])
            lawson = lawson * (error / error.max() + 1e-12)
            lawson /= lawson.sum()
        done[first] = float(np.float32(best[1][0]))
    error = np.max(np.abs(y - sum(c * x**i for i, c in done.items())) * w)
    print(f"{name}: 2^{np.log2(error):.1f}")
    for c in done.values():  # 6 hex digits are a float32
        mantissa, exponent = c.hex().split("p")
        print(f"  {mantissa.removesuffix('0000000')}p{exponent}f")


# e^r - 1 = r + r^2 P(r). Up to ln(2)/2 relative to e^r - 1; up to ln 2 (n even, exp) relative to
# e^r.
def expm1_rest(r):
    return (mp.expm1(r) - r) / r**2


half, wide = 0.3466 * 1.005, 0.6932 * 1.003
fit("expm1_poly", expm1_rest, -half, half, 4, lambda r: r**2 / mp.expm1(r))
fit("expm1_poly_lp", expm1_rest, -half, half, 2, lambda r: r**2 / mp.expm1(r))
fit("exp_f32", expm1_rest, -wide, wide, 5, lambda r: r**2 / mp.exp(r))


# 2^r, for the lp forms
def exp2(r):
    return mp.mpf(2) ** r


fit("exp2_poly_lp", exp2, -0.502, 0.502, 4, lambda r: 1 / exp2(r))
fit("exp_lp", exp2, -1.003, 1.003, 5, lambda r: 1 / exp2(r))


# log(1 + f) = f - f^2/2 + f^3 P(f)
def log_rest(f):
    return (mp.log1p(f) - f + f * f / 2) / f**3


for name, degree in ("log_sum_f32", 7), ("log_sum_lp", 3):
    fit(name, log_rest, 2**-0.5 - 1, 2**0.5 - 1, degree, lambda f: f**3 / mp.log1p(f), nodes=201)


# log1p(t) = t (1 + t P(t)) on [0, 1]
def log1p_ratio(t):
    return mp.log1p(t) / t


for name, degree in ("log1p01_f32", 9), ("log1p01_lp", 5):
    fit(name, log1p_ratio, 1e-9, 1.0, degree, lambda t: 1 / log1p_ratio(t), fixed=(1.0,))


# erf t = -expm1(-t Q(t)) on [0, 4]
def erf_q(t):
    return -mp.log(mp.erfc(t)) / t


for name, degree in ("erf_f32", 7), ("erf_lp", 3):
    fit(name, erf_q, 1e-6, 4.0, degree, lambda t: t / mp.expm1(t * erf_q(t)))


# R(a) = Phi(-a) exp(a^2/2), in y = (a - k)/(a + k)
def mills(a):
    return mp.erfc(a / mp.sqrt(2)) * mp.exp(a * a / 2) / 2


def mills_flat(y):  # (a + 2) R(a)
    a = 2 * (1 + y) / (1 - y)
    return (a + 2) * mills(a)


# twice the weight near 0, where Phi is just below 1/2 and an ulp is relatively smallest
fit(
    "mills_f32",
    mills_flat,
    -1.0,
    12.5 / 16.5,
    10,
    lambda y: (1 + mp.exp(-20 * (y + 1))) / mills_flat(y),
    nodes=300,
)


def fit_ratio(name, f, hi, over, under, nodes=1500, rounds=600):
    """Fits P / Q to f on [0, hi] with Q(0) = 1, in relative error: a linear problem once the
    previous round's Q divides.
    """
    x = hi / 2 - hi / 2 * np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    y = np.array([float(f(mp.mpf(v))) for v in x])
    lawson, q, best = np.ones(nodes), np.ones(nodes), (np.inf, None)
    for i in range(rounds):
        basis = np.stack(
            [x**k for k in range(over + 1)] + [-y * x**k for k in range(1, under + 1)], 1
        )
        s = np.sqrt(lawson) / (y * q)
        scale = np.max(np.abs(basis * s[:, None]), 0)
        c = np.linalg.lstsq(basis / scale * s[:, None], y * s, rcond=None)[0] / scale
        q = 1 + sum(c[over + k] * x**k for k in range(1, under + 1))
        error = np.abs(sum(c[k] * x**k for k in range(over + 1)) / q / y - 1)
        best = min(best, (error.max(), c), key=lambda b: b[0])
        lawson = lawson * (error / error.max() + 1e-3) ** (1 if i > 10 else 0.3)
        lawson /= lawson.max()
    print(f"{name}: 2^{np.log2(best[0]):.1f}", *(f"{v:.9g}f" for v in best[1]))


fit_ratio("mills_lp", mills, 14.6, 2, 3)
fit_ratio("tanh_lp, in x^2", lambda z: mp.tanh(mp.sqrt(z)) / mp.sqrt(z), 5.6**2, 2, 3)

# sin r = r + r z P(z), cos r = 1 - z/2 + z^2 P(z), z = r^2 <= (pi/4)^2
top = (np.pi / 4) ** 2 * 1.01
fit("sin", lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, 1e-8, top, 2, lambda z: z)
fit("cos", lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, 1e-6, top, 2, lambda z: z * z)


def cut(v, bits):
    mantissa, exponent = mp.frexp(v)
    return mp.ldexp(mp.nint(mantissa * 2**bits), exponent - bits)


print("sincos part: 2^(16 i) 2/pi mod 4, in 29 + 29 + 53 bits")
for i in range(7):
    v = (mp.mpf(2) ** (16 * i) * 2 / mp.pi) % 4
    v -= 4 if v > 2 else 0
    a = cut(v, 29)
    b = cut(v - a, 29)
    print(" ", float(a).hex(), float(b).hex(), float(v - a - b).hex())
