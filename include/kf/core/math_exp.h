/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/math_exp.h: square roots, exponentials, tanh, sigmoid, logarithms. math.h states the
 * accuracy. */
#ifndef KF_CORE_MATH_EXP_H
#define KF_CORE_MATH_EXP_H

#include "kf/core/host.h"

#include "kf/core/math_bits.h"

KFI_C_BEGIN

/* Square root. sqrtf would stay a call because of errno. Starts from an integer seed (Lomont, "Fast
 * inverse square root", 2003), then Newton steps on 1/sqrt, and one last step with the exact
 * residual x - s*s. */
KFI_INLINE float kfi_cpu_sqrt_scaled(float x, uint32_t tiny)
{ /* keeps y*y*x and the residual normal */
    return kfi_cpu_select_f32(tiny, x * 0x1p100f, x);
}
/* Returns x*x - x2, where x2 is x*x rounded. Without FMA it multiplies 12-bit halves, whose
 * products are exact. */
KFI_INLINE float kfi_cpu_square_rest(float x, float x2)
{
#if defined(__FP_FAST_FMAF) && defined(__GNUC__)
    return __builtin_fmaf(x, x, -x2);
#else
    const float h = kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(x) & 0xfffff000u);
    return (h * h - x2) + (x - h) * (x + h);
#endif
}
KFI_INLINE float kfi_cpu_rsqrt_newton(float v, float y) { return y * (1.5f - (0.5f * v * y) * y); }
KFI_INLINE float kfi_cpu_rsqrt_rough(float v)
{ /* 2^-17 */
    const float y = kfi_cpu_from_bits_f32(0x5f375a86u - (kfi_cpu_bits_f32(v) >> 1));
    return kfi_cpu_rsqrt_newton(v, kfi_cpu_rsqrt_newton(v, y));
}
/* Returns the root if 0 < x < inf, x itself for 0, -0, inf and NaN, and NaN for a negative x. */
KFI_INLINE float kfi_cpu_sqrt_finish(float x, float root, uint32_t tiny)
{
    const uint32_t negative = kfi_cpu_lt_f32(x, 0.0f),
                   regular = kfi_cpu_gt_f32(x, 0.0f) & kfi_cpu_lt_f32(x, INFINITY);
    const uint32_t y = kfi_cpu_bits_f32(root * kfi_cpu_select_f32(tiny, 0x1p-50f, 1.0f));
    return kfi_cpu_from_bits_f32(
        kfi_cpu_select_u32(regular, y, kfi_cpu_bits_f32(x) | (negative & 0x7fc00000u)));
}
#if defined(__NO_MATH_ERRNO__) && defined(__GNUC__)
KFI_INLINE float kfi_cpu_sqrt_f32(float x) { return __builtin_sqrtf(x); }
KFI_INLINE float kfi_cpu_sqrt_lp(float x) { return __builtin_sqrtf(x); }
#else
KFI_INLINE float kfi_cpu_sqrt_f32(float x)
{
    const uint32_t tiny = kfi_cpu_lt_f32(x, 0x1p-100f);
    const float v = kfi_cpu_sqrt_scaled(x, tiny),
                y = kfi_cpu_rsqrt_newton(v, kfi_cpu_rsqrt_rough(v)), s = v * y;
    const float s2 = s * s, residual = (v - s2) - kfi_cpu_square_rest(s, s2);
    return kfi_cpu_sqrt_finish(x, s + 0.5f * y * residual, tiny);
}
KFI_INLINE float kfi_cpu_sqrt_lp(float x)
{
    const uint32_t tiny = kfi_cpu_lt_f32(x, 0x1p-100f);
    const float v = kfi_cpu_sqrt_scaled(x, tiny);
    return kfi_cpu_sqrt_finish(x, v * kfi_cpu_rsqrt_rough(v), tiny);
}
#endif
KFI_INLINE float kfi_cpu_rsqrt_f32(float x) { return 1.0f / kfi_cpu_sqrt_f32(x); }
KFI_INLINE float kfi_cpu_rsqrt_lp(float x) { return 1.0f / kfi_cpu_sqrt_lp(x); }
KFI_INLINE double kfi_cpu_sqrt_f64(double x) { return sqrt(x); }
KFI_INLINE double kfi_cpu_rsqrt_f64(double x) { return 1.0 / sqrt(x); }

/* ---- polynomials ---- */

/* Estrin's scheme, ascending coefficients: shorter dependency chains than Horner's, which limit a
 * loop of 32 vectors. */
KFI_INLINE float kfi_cpu_poly4_f32(float x, float x2, float c0, float c1, float c2, float c3)
{
    return kfi_cpu_fma_f32(x2, kfi_cpu_fma_f32(x, c3, c2), kfi_cpu_fma_f32(x, c1, c0));
}
KFI_INLINE float kfi_cpu_poly6_f32(float x, float x2, float c0, float c1, float c2, float c3,
                                   float c4, float c5)
{
    const float high = kfi_cpu_poly4_f32(x, x2, c2, c3, c4, c5);
    return kfi_cpu_fma_f32(x2, high, kfi_cpu_fma_f32(x, c1, c0));
}

/* ---- exponentials ---- */

/* exp(x) = 2^n e^r with n = round(x / ln 2). Adding 1.5 * 2^23 rounds to an integer and leaves n in
 * the low bits of the sum t: bits(t) << 23 puts n in the exponent field. */
#define KFI_CPU_ROUND_F32 12582912.0f /* 1.5 * 2^23 */
#define KFI_CPU_EVEN_F32 25165824.0f  /* 1.5 * 2^24: n is even, and n / 2 is in the low bits */
KFI_INLINE float kfi_cpu_exp_t(float x, float magic)
{
    return kfi_cpu_fma_f32(x, 1.44269504f /* 1/ln 2 */, magic);
}
/* r = x - n ln 2. The first part of ln 2 has 15 bits, so its product with n is exact. */
KFI_INLINE float kfi_cpu_exp_r(float x, float n)
{
    return kfi_cpu_fma_f32(n, -1.42860677e-6f, kfi_cpu_fma_f32(n, -0.693145752f, x));
}
KFI_INLINE float kfi_cpu_exp_r_lp(float x, float n) { return kfi_cpu_fma_f32(n, -0.693147181f, x); }
/* e^r - 1 for |r| <= ln(2)/2, with relative error 2^-26 (f32) and 2^-15 (lp). */
KFI_INLINE float kfi_cpu_expm1_poly(float r)
{
    const float r2 = r * r,
                p = kfi_cpu_poly4_f32(r, r2, 0x1.fffffep-2f, 0x1.5554b0p-3f, 0x1.5556fcp-5f,
                                      kfi_cpu_fma_f32(r, 0x1.6b9412p-10f, 0x1.12286cp-7f));
    return kfi_cpu_fma_f32(r2, p, r);
}
KFI_INLINE float kfi_cpu_expm1_poly_lp(float r)
{
    const float r2 = r * r, p = kfi_cpu_fma_f32(r, 0x1.570cb8p-3f, 0x1.000236p-1f);
    return kfi_cpu_fma_f32(r2, kfi_cpu_fma_f32(r2, 0x1.54dd38p-5f, p), r);
}
/* 2^n from t, for -126 <= n <= 127. */
KFI_INLINE float kfi_cpu_exp_scale(float t)
{
    return kfi_cpu_from_bits_f32((kfi_cpu_bits_f32(t) << 23) + 0x3f800000u);
}
/* w 2^n for -190 <= n <= 63. The product with 2^(n + 64) is exact, so a subnormal result is rounded
 * once. */
KFI_INLINE float kfi_cpu_exp_scale_up(float w, float t)
{
    return w * kfi_cpu_from_bits_f32((kfi_cpu_bits_f32(t) << 23) + 0x5f800000u);
}
KFI_INLINE float kfi_cpu_exp_scale_down(float w, float t)
{
    return kfi_cpu_exp_scale_up(w, t) * 0x1p-64f;
}

/* Multiplies by 0 if exp(x) underflows: underflowing products made a masked softmax three times as
 * slow. */
KFI_INLINE float kfi_cpu_exp_or_0(float x, float s)
{
    return kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(s) & ~kfi_cpu_lt_f32(x, -104.0f));
}
/* exp for both signs of x needs 2^-150 to 2^128: n is even, r twice as wide, and two products with
 * 2^(n/2) follow. */
KFI_INLINE float kfi_cpu_exp_f32(float x)
{
    const float c =
        kfi_cpu_at_most_f32(kfi_cpu_at_least_f32(x, -104.0f), 89.0f); /* 0 and inf beyond */
    const float t = kfi_cpu_exp_t(c, KFI_CPU_EVEN_F32),
                s = kfi_cpu_exp_or_0(x, kfi_cpu_exp_scale(t));
    const float r = kfi_cpu_exp_r(c, t - KFI_CPU_EVEN_F32), r2 = r * r;
    const float p = kfi_cpu_poly6_f32(r, r2, 0x1.00000cp-1f, 0x1.555510p-3f, 0x1.5549d4p-5f,
                                      0x1.1127cap-7f, 0x1.71c7cap-10f, 0x1.9b80a0p-13f);
    return (1.0f + kfi_cpu_fma_f32(r2, p, r)) * s * s;
}
/* The lp forms work in powers of 2: u = x / ln 2, n = round(u), 2^(u - n). The rounding constant
 * includes the exponent's bias, so bits(t) << 23 is a power of 2. Horner's scheme: instruction
 * count matters, chains overlap. */
KFI_INLINE float kfi_cpu_exp2_poly_lp(float r)
{ /* 2^r for |r| <= 1/2; 2^-18 */
    const float p =
        kfi_cpu_fma_f32(r, kfi_cpu_fma_f32(r, 0x1.3987d8p-7f, 0x1.ca1af0p-5f), 0x1.ec0740p-3f);
    return kfi_cpu_fma_f32(r, kfi_cpu_fma_f32(r, p, 0x1.62e0d0p-1f), 0x1.ffffe6p-1f);
}
KFI_INLINE float kfi_cpu_exp2_scale_lp(float t)
{
    return kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(t) << 23);
}
KFI_INLINE float kfi_cpu_exp_lp(float x)
{
    const float magic = KFI_CPU_EVEN_F32 + 2 * 127, c = kfi_cpu_clamp_lp(x, -104.0f, 89.0f);
    const float t = kfi_cpu_exp_t(c, magic), s = kfi_cpu_exp_or_0(x, kfi_cpu_exp2_scale_lp(t));
    const float r = kfi_cpu_fma_f32(c, 1.44269504f, magic - t); /* |r| <= 1 */
    float p = kfi_cpu_fma_f32(r, 0x1.57986ap-10f, 0x1.429a36p-7f);
    p = kfi_cpu_fma_f32(r, kfi_cpu_fma_f32(r, p, 0x1.c714fep-5f), 0x1.ebd15ap-3f);
    p = kfi_cpu_fma_f32(r, kfi_cpu_fma_f32(r, p, 0x1.62e272p-1f), 0x1.000044p+0f);
    return kfi_cpu_keep_nan_lp(p * s * s, x);
}
KFI_INLINE double kfi_cpu_exp_f64(double x) { return exp(x); }

/* exp for x <= 0. */
KFI_INLINE float kfi_cpu_exp_neg_f32(float x)
{
    const float c = kfi_cpu_at_least_f32(x, -104.0f), t = kfi_cpu_exp_t(c, KFI_CPU_ROUND_F32);
    return kfi_cpu_exp_scale_down(
        1.0f + kfi_cpu_expm1_poly(kfi_cpu_exp_r(c, t - KFI_CPU_ROUND_F32)), t);
}

/* expm1 = 2^n q + (2^n - 1), at half size so that n = 128 fits; the sign of x makes -0 from -0. */
KFI_INLINE float kfi_cpu_expm1_f32(float x)
{
    const float c = kfi_cpu_at_most_f32(kfi_cpu_at_least_f32(x, -18.0f), 89.0f);
    const float t = kfi_cpu_exp_t(c, KFI_CPU_ROUND_F32),
                r = kfi_cpu_exp_r(c, t - KFI_CPU_ROUND_F32);
    const float s = kfi_cpu_from_bits_f32((kfi_cpu_bits_f32(t) << 23) + 0x3f000000u);
    const float y = kfi_cpu_fma_f32(s, kfi_cpu_expm1_poly(r), s - 0.5f);
    return kfi_cpu_with_sign_f32(y + y, x);
}
KFI_INLINE float kfi_cpu_expm1_lp(float x)
{
    const float c = kfi_cpu_at_most_f32(kfi_cpu_at_least_f32(x, -18.0f), 89.0f);
    const float t = kfi_cpu_exp_t(c, KFI_CPU_ROUND_F32),
                r = kfi_cpu_exp_r_lp(c, t - KFI_CPU_ROUND_F32);
    const float s = kfi_cpu_from_bits_f32((kfi_cpu_bits_f32(t) << 23) + 0x3f000000u);
    const float y = kfi_cpu_fma_f32(s, kfi_cpu_expm1_poly_lp(r), s - 0.5f);
    return kfi_cpu_with_sign_f32(y + y, x);
}
KFI_INLINE double kfi_cpu_expm1_f64(double x) { return expm1(x); }
/* expm1 for -80 <= x <= 0. */
KFI_INLINE float kfi_cpu_expm1_neg_f32(float x)
{
    const float t = kfi_cpu_exp_t(x, KFI_CPU_ROUND_F32), s = kfi_cpu_exp_scale(t);
    return kfi_cpu_fma_f32(s, kfi_cpu_expm1_poly(kfi_cpu_exp_r(x, t - KFI_CPU_ROUND_F32)),
                           s - 1.0f);
}
KFI_INLINE float kfi_cpu_expm1_neg_lp(float x)
{
    const float t = kfi_cpu_exp_t(x, KFI_CPU_ROUND_F32), s = kfi_cpu_exp_scale(t);
    return kfi_cpu_fma_f32(s, kfi_cpu_expm1_poly_lp(kfi_cpu_exp_r_lp(x, t - KFI_CPU_ROUND_F32)),
                           s - 1.0f);
}

/* tanh |x| = -m / (2 + m) with m = expm1(-2|x|). */
KFI_INLINE float kfi_cpu_tanh_f32(float x)
{
    const float m = kfi_cpu_expm1_neg_f32(kfi_cpu_at_least_f32(-2.0f * kfi_cpu_abs_f32(x), -20.0f));
    return kfi_cpu_with_sign_f32(m / (2.0f + m), x);
}
/* x P(x^2) / Q(x^2); relative error 2^-17, and 2^-15 beyond 5.6, where it is constant. */
KFI_INLINE float kfi_cpu_tanh_lp(float x)
{
    const float c = kfi_cpu_clamp_lp(x, -5.6f, 5.6f), z = c * c;
    const float p =
        kfi_cpu_fma_f32(z, kfi_cpu_fma_f32(z, 0.00156370921f, 0.115569424f), 0.9999954f);
    const float q =
        kfi_cpu_fma_f32(z, kfi_cpu_fma_f32(z, 5.94682653e-05f, 0.0178943088f), 0.448869571f);
    return kfi_cpu_keep_nan_lp(c * p / kfi_cpu_fma_f32(z, q, 1.0f), x);
}
KFI_INLINE double kfi_cpu_tanh_f64(double x) { return tanh(x); }

/* With e = exp(-|x|): 1 / (1 + e), or e / (1 + e) for x < 0. Nothing overflows, and the left tail
 * keeps its digits. */
KFI_INLINE float kfi_cpu_sigmoid_f32(float x)
{
    const float e = kfi_cpu_exp_neg_f32(-kfi_cpu_abs_f32(x));
    return kfi_cpu_select_f32(kfi_cpu_lt_f32(x, 0.0f), e, 1.0f) / (1.0f + e);
}
/* 2^-24 / (2^-24 + 2^-24 exp(-x)). The scale lets the left tail reach the last subnormal before exp
 * is infinite; there the clamp acts (n = 152), and the quotient is 0. The caller handles NaN: in
 * silu the other factor has it. */
KFI_INLINE float kfi_cpu_sigmoid_of_number(float x)
{
    const float magic = KFI_CPU_ROUND_F32 + (127 - 24), c = kfi_cpu_clamp_lp(x, -105.36f, 64.0f);
    const float t = kfi_cpu_fma_f32(c, -1.44269504f, magic),
                r = kfi_cpu_fma_f32(c, -1.44269504f, magic - t);
    const float d = kfi_cpu_fma_f32(kfi_cpu_exp2_scale_lp(t), kfi_cpu_exp2_poly_lp(r), 0x1p-24f);
    return 0x1p-24f / d;
}
KFI_INLINE float kfi_cpu_sigmoid_lp(float x)
{
    return kfi_cpu_keep_nan_lp(kfi_cpu_sigmoid_of_number(x), x);
}
KFI_INLINE float kfi_cpu_silu_lp(float x) { return x * kfi_cpu_sigmoid_of_number(x); }
KFI_INLINE double kfi_cpu_sigmoid_f64(double x)
{
    const double e = exp(-fabs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

/* ---- logarithms ---- */

/* v > 0, normal: v = 2^k m with m in [sqrt(1/2), sqrt(2)). */
KFI_INLINE float kfi_cpu_log_k(float v)
{
    return (float)((int32_t)(kfi_cpu_bits_f32(v) - 0x3f3504f3u /* sqrt(1/2) */) >> 23);
}
KFI_INLINE float kfi_cpu_log_m(float v)
{
    return kfi_cpu_from_bits_f32(((kfi_cpu_bits_f32(v) - 0x3f3504f3u) & 0x7fffffu) + 0x3f3504f3u);
}
/* k ln 2 + log(1 + f), f = m - 1: log(1 + f) = f - f^2/2 + f^3 P(f). */
KFI_INLINE float kfi_cpu_log_sum_f32(float f, float k)
{
    const float f2 = f * f;
    const float low =
        kfi_cpu_poly4_f32(f, f2, 0x1.555554p-2f, -0x1.000226p-2f, 0x1.99a01ap-3f, -0x1.547288p-3f);
    const float high =
        kfi_cpu_poly4_f32(f, f2, 0x1.22d966p-3f, -0x1.0d8296p-3f, 0x1.055d44p-3f, -0x1.38c426p-4f);
    const float y =
        kfi_cpu_fma_f32(k, 1.42860677e-6f, f2 * f * kfi_cpu_fma_f32(f2 * f2, high, low));
    return kfi_cpu_fma_f32(k, 0.693145752f, f + kfi_cpu_fma_f32(f2, -0.5f, y));
}
KFI_INLINE float kfi_cpu_log_sum_lp(float f, float k)
{
    const float f2 = f * f;
    const float p =
        kfi_cpu_poly4_f32(f, f2, 0x1.54d7dep-2f, -0x1.028246p-2f, 0x1.bdfb44p-3f, -0x1.2ad972p-3f);
    return kfi_cpu_fma_f32(k, 0.693147181f, f + f2 * kfi_cpu_fma_f32(f, p, -0.5f));
}
/* Returns y for 0 < u < inf, NaN for u < 0, -inf for u == 0, otherwise x (or-ing bits makes NaN or
 * -inf from any x <= 0). */
KFI_INLINE float kfi_cpu_log_edges(float y, float x, float u)
{
    const uint32_t regular = kfi_cpu_gt_f32(u, 0.0f) & kfi_cpu_lt_f32(u, INFINITY);
    const uint32_t other = kfi_cpu_bits_f32(x) | (kfi_cpu_lt_f32(u, 0.0f) & 0x7fc00000u) |
                           (kfi_cpu_eq_f32(u, 0.0f) & 0xff800000u);
    return kfi_cpu_from_bits_f32(kfi_cpu_select_u32(regular, kfi_cpu_bits_f32(y), other));
}
KFI_INLINE float kfi_cpu_log_f32(float x)
{
    const uint32_t tiny = kfi_cpu_lt_f32(x, 0x1p-126f);
    const float v = kfi_cpu_select_f32(tiny, x * 0x1p25f, x);
    const float k = kfi_cpu_log_k(v) - kfi_cpu_select_f32(tiny, 25.0f, 0.0f);
    return kfi_cpu_log_edges(kfi_cpu_log_sum_f32(kfi_cpu_log_m(v) - 1.0f, k), x, x);
}
KFI_INLINE float kfi_cpu_log_lp(float x)
{
    const uint32_t tiny = kfi_cpu_lt_f32(x, 0x1p-126f);
    const float v = kfi_cpu_select_f32(tiny, x * 0x1p25f, x);
    const float k = kfi_cpu_log_k(v) - kfi_cpu_select_f32(tiny, 25.0f, 0.0f);
    return kfi_cpu_log_edges(kfi_cpu_log_sum_lp(kfi_cpu_log_m(v) - 1.0f, k), x, x);
}
KFI_INLINE double kfi_cpu_log_f64(double x) { return log(x); }

/* u = 1 + x loses low bits c (two-sum), which go back into f, scaled like u. The scale is 2^(1-k)
 * c/2, not 2^-k c, because k may be 128. */
KFI_INLINE float kfi_cpu_log1p_f(float x, float u, float k)
{
    const float b = u - 1.0f, c = (1.0f - (u - b)) + (x - b);
    const float scale = kfi_cpu_from_bits_f32(0x40000000u - ((uint32_t)(int32_t)k << 23));
    return kfi_cpu_fma_f32(0.5f * c, scale, kfi_cpu_log_m(u) - 1.0f);
}
KFI_INLINE float kfi_cpu_log1p_edges(float y, float x, float u)
{
    const uint32_t tiny =
        kfi_cpu_lt_f32(kfi_cpu_abs_f32(x), 0x1p-25f); /* x itself, with its sign if it is zero */
    return kfi_cpu_select_f32(tiny, x, kfi_cpu_log_edges(y, x, u));
}
KFI_INLINE float kfi_cpu_log1p_f32(float x)
{
    const float u = 1.0f + x, k = kfi_cpu_log_k(u);
    return kfi_cpu_log1p_edges(kfi_cpu_log_sum_f32(kfi_cpu_log1p_f(x, u, k), k), x, u);
}
KFI_INLINE float kfi_cpu_log1p_lp(float x)
{
    const float u = 1.0f + x, k = kfi_cpu_log_k(u);
    return kfi_cpu_log1p_edges(kfi_cpu_log_sum_lp(kfi_cpu_log1p_f(x, u, k), k), x, u);
}
KFI_INLINE double kfi_cpu_log1p_f64(double x) { return log1p(x); }

/* log1p for 0 <= t <= 1, as softplus needs: t + t^2 P(t), without range reduction. */
KFI_INLINE float kfi_cpu_log1p01_f32(float t)
{
    const float t2 = t * t, t4 = t2 * t2;
    const float low =
        kfi_cpu_poly4_f32(t, t2, -0x1.ffffd2p-2f, 0x1.554dd4p-2f, -0x1.ff249ep-3f, 0x1.935118p-3f);
    const float mid =
        kfi_cpu_poly4_f32(t, t2, -0x1.3a59d2p-3f, 0x1.b50d28p-4f, -0x1.d790bcp-5f, 0x1.4a2c12p-6f);
    return kfi_cpu_fma_f32(t2, kfi_cpu_fma_f32(t4, kfi_cpu_fma_f32(t4, -0x1.b174fep-9f, mid), low),
                           t);
}
KFI_INLINE float kfi_cpu_log1p01_lp(float t)
{
    const float t2 = t * t, c = kfi_cpu_fma_f32(t, -0x1.953e64p-6f, 0x1.a84fa8p-4f);
    return kfi_cpu_fma_f32(
        t2, kfi_cpu_poly4_f32(t, t2, -0x1.ff8744p-2f, 0x1.4e0e20p-2f, -0x1.b30080p-3f, c), t);
}
KFI_INLINE double kfi_cpu_log1p01_f64(double t) { return log1p(t); }

KFI_C_END

#endif
