/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/math_normal.h: the normal distribution (erf, Phi, phi, gelu), sin and cos. math.h states
 * the accuracy. */
#ifndef KF_CORE_MATH_NORMAL_H
#define KF_CORE_MATH_NORMAL_H

#include "kf/core/host.h"

#include "kf/core/math_exp.h"

KFI_C_BEGIN

/* ---- the normal distribution: erf, Phi, phi, gelu ---- */

/* erf t = -expm1(-t Q(t)) for t >= 0: one polynomial with relative accuracy everywhere, never above
 * 1. erf(4) rounds to 1. */
KFI_INLINE float kfi_cpu_erf_f32(float x)
{
    const float t = kfi_cpu_at_most_f32(kfi_cpu_abs_f32(x), 4.0f), t2 = t * t;
    const float low =
        kfi_cpu_poly4_f32(t, t2, 0x1.20dd76p+0f, 0x1.45f270p-1f, 0x1.a52d80p-4f, -0x1.3d4ce0p-6f);
    const float high = kfi_cpu_poly4_f32(t, t2, 0x1.267334p-12f, 0x1.37ef0ap-10f, -0x1.762b02p-12f,
                                         0x1.379022p-15f);
    return kfi_cpu_with_sign_f32(kfi_cpu_expm1_neg_f32(-t * kfi_cpu_fma_f32(t2 * t2, high, low)),
                                 x);
}
KFI_INLINE float kfi_cpu_erf_lp(float x)
{
    const float t = kfi_cpu_at_most_f32(kfi_cpu_abs_f32(x), 4.0f), t2 = t * t;
    const float q =
        kfi_cpu_poly4_f32(t, t2, 0x1.20db1ep+0f, 0x1.467e36p-1f, 0x1.938e5ap-4f, -0x1.e622a4p-7f);
    return kfi_cpu_with_sign_f32(kfi_cpu_expm1_neg_lp(-t * q), x);
}
KFI_INLINE double kfi_cpu_erf_f64(double x) { return erf(x); }

/* R(a) = Phi(-a) exp(a^2/2) for 0 <= a <= 14.5. (a + 2) R(a) is nearly flat: a polynomial in y = (a
 * - 2)/(a + 2), whose terms cancel less than those of R. Relative error 2^-25. */
KFI_INLINE float kfi_cpu_mills_f32(float a)
{
    const float q = 1.0f / (a + 2.0f), y = (a - 2.0f) * q, y2 = y * y, y4 = y2 * y2;
    const float low =
        kfi_cpu_poly4_f32(y, y2, 0x1.5845dcp-1f, -0x1.535baep-2f, 0x1.d7d500p-6f, 0x1.2ccef6p-5f);
    const float mid = kfi_cpu_poly4_f32(y, y2, -0x1.fa4680p-12f, -0x1.b9f530p-8f, -0x1.ef55bep-10f,
                                        0x1.c806fap-11f);
    const float high =
        kfi_cpu_fma_f32(y2, -0x1.26454cp-14f, kfi_cpu_fma_f32(y, 0x1.52888ep-15f, 0x1.786cf2p-11f));
    return q * kfi_cpu_fma_f32(y4, kfi_cpu_fma_f32(y4, high, mid), low);
}
/* Rational approximation of R for the lp forms; relative error 2^-15. */
KFI_INLINE float kfi_cpu_mills_lp(float a)
{
    const float p =
        kfi_cpu_fma_f32(a, kfi_cpu_fma_f32(a, 0.0628892061f, 0.279130184f), 0.50001256f);
    const float q = kfi_cpu_fma_f32(a, kfi_cpu_fma_f32(a, 0.157472111f, 0.704610926f), 1.35692109f);
    return p / kfi_cpu_fma_f32(a, q, 1.0f);
}
/* 2^64 w exp(-a^2/2) for 0 <= a <= 14.5. Rounding a^2 alone would cost up to 50 ulp: r takes the
 * lost bits. The caller removes the factor when it adds the result to something, because a
 * subnormal product costs some processors 100 cycles. */
KFI_INLINE float kfi_cpu_gauss_up_f32(float w, float a)
{
    const float a2 = a * a, t = kfi_cpu_exp_t(-0.5f * a2, KFI_CPU_ROUND_F32);
    const float r = kfi_cpu_exp_r(-0.5f * a2, t - KFI_CPU_ROUND_F32);
    const float q = kfi_cpu_expm1_poly(kfi_cpu_fma_f32(kfi_cpu_square_rest(a, a2), -0.5f, r));
    return kfi_cpu_exp_scale_up(kfi_cpu_fma_f32(w, q, w), t);
}
KFI_INLINE float kfi_cpu_gauss_f32(float w, float a)
{
    return kfi_cpu_gauss_up_f32(w, a) * 0x1p-64f;
}
KFI_INLINE float kfi_cpu_gauss_up_lp(float w, float a)
{
    const float magic = KFI_CPU_ROUND_F32 + 64, a2 = a * a;
    const float t = kfi_cpu_fma_f32(a2, -0.721347520f /* -1/(2 ln 2) */, magic);
    const float r = kfi_cpu_fma_f32(a2, -0.721347520f, magic - t);
    return w * kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(kfi_cpu_exp2_poly_lp(r)) +
                                     (kfi_cpu_bits_f32(t) << 23));
}
KFI_INLINE float kfi_cpu_gauss_lp(float w, float a) { return kfi_cpu_gauss_up_lp(w, a) * 0x1p-64f; }
#define KFI_CPU_INV_SQRT_2PI 0.398942280401432678
/* From 14.5 on, both tails are below half of the smallest subnormal. */
KFI_INLINE float kfi_cpu_abs_cut_f32(float x)
{
    return kfi_cpu_at_most_f32(kfi_cpu_abs_f32(x), 14.5f);
}

KFI_INLINE float kfi_cpu_normpdf_f32(float x)
{
    return kfi_cpu_gauss_f32((float)KFI_CPU_INV_SQRT_2PI, kfi_cpu_abs_cut_f32(x));
}
KFI_INLINE float kfi_cpu_normpdf_lp(float x)
{
    return kfi_cpu_gauss_lp((float)KFI_CPU_INV_SQRT_2PI, kfi_cpu_abs_cut_f32(x));
}
KFI_INLINE double kfi_cpu_normpdf_f64(double x) { return KFI_CPU_INV_SQRT_2PI * exp(-0.5 * x * x); }

KFI_INLINE float kfi_cpu_normcdf_f32(float x)
{
    const float a = kfi_cpu_abs_cut_f32(x), tail = kfi_cpu_gauss_f32(kfi_cpu_mills_f32(a), a);
    return kfi_cpu_select_f32(kfi_cpu_lt_f32(x, 0.0f), tail, 1.0f - tail);
}
KFI_INLINE float kfi_cpu_normcdf_lp(float x)
{
    const float a = kfi_cpu_abs_cut_f32(x), tail = kfi_cpu_gauss_lp(kfi_cpu_mills_lp(a), a);
    return kfi_cpu_select_f32(kfi_cpu_lt_f32(x, 0.0f), tail, 1.0f - tail);
}
KFI_INLINE double kfi_cpu_normcdf_f64(double x)
{
    return 0.5 * erfc(-x * 0.707106781186547524 /* sqrt(1/2) */);
}

/* x Phi(x) = max(x, 0) - |x| Phi(-|x|). For negative x, x * 0 keeps -0 and makes NaN from -inf. */
KFI_INLINE float kfi_cpu_gelu_f32(float x)
{
    const float a = kfi_cpu_abs_cut_f32(x),
                tail = kfi_cpu_gauss_up_f32(a * kfi_cpu_mills_f32(a), a);
    return kfi_cpu_fma_f32(tail, -0x1p-64f,
                           kfi_cpu_select_f32(kfi_cpu_lt_f32(x, 0.0f), x * 0.0f, x));
}
KFI_INLINE float kfi_cpu_gelu_lp(float x)
{
    const float a = kfi_cpu_clamp_lp(kfi_cpu_abs_f32(x), -1.0f, 14.5f),
                tail = kfi_cpu_gauss_up_lp(a * kfi_cpu_mills_lp(a), a);
    return kfi_cpu_fma_f32(tail, -0x1p-64f,
                           kfi_cpu_select_f32(kfi_cpu_lt_f32(x, 0.0f), x * 0.0f, x));
}
KFI_INLINE double kfi_cpu_gelu_f64(double x) { return x * kfi_cpu_normcdf_f64(x); }

/* Phi(x) + x phi(x) = T or 1 - T with T = (R(a) - a/sqrt(2 pi)) exp(-a^2/2). x * 0 makes NaN from
 * both infinities, as PyTorch does. The lp form saves only on a^2: R and exp cancel near -0.7518,
 * where the result is zero. */
KFI_INLINE float kfi_cpu_either_tail(float x, float up)
{ /* up: 2^64 T */
    const uint32_t below = kfi_cpu_lt_f32(x, 0.0f);
    return kfi_cpu_fma_f32(up, kfi_cpu_select_f32(below, 0x1p-64f, -0x1p-64f),
                           kfi_cpu_select_f32(below, 0.0f, 1.0f)) +
           x * 0.0f;
}
KFI_INLINE float kfi_cpu_gelu_bwd_f32(float x)
{
    const float a = kfi_cpu_abs_cut_f32(x);
    const float w = kfi_cpu_fma_f32(a, -(float)KFI_CPU_INV_SQRT_2PI, kfi_cpu_mills_f32(a));
    return kfi_cpu_either_tail(x, kfi_cpu_gauss_up_f32(w, a));
}
KFI_INLINE float kfi_cpu_gelu_bwd_lp(float x)
{
    const float a = kfi_cpu_abs_cut_f32(x), e = -0.5f * a * a,
                t = kfi_cpu_exp_t(e, KFI_CPU_ROUND_F32);
    const float w = kfi_cpu_fma_f32(a, -(float)KFI_CPU_INV_SQRT_2PI, kfi_cpu_mills_f32(a));
    const float q = kfi_cpu_expm1_poly(kfi_cpu_exp_r_lp(e, t - KFI_CPU_ROUND_F32));
    return kfi_cpu_either_tail(x, kfi_cpu_exp_scale_up(kfi_cpu_fma_f32(w, q, w), t));
}
KFI_INLINE double kfi_cpu_gelu_bwd_f64(double x)
{
    return kfi_cpu_normcdf_f64(x) + x * kfi_cpu_normpdf_f64(x);
}

/* ---- sin, cos ---- */

/* Payne-Hanek reduction, for the whole range of float: a = m 2^(16 i), and a 2/pi mod 4 = m (2^(16
 * i) 2/pi mod 4). A table holds the bracket in parts of 29, 29 and 53 bits. m has 24 bits, so the
 * first two products are exact, and each splits into integer and fraction. quarter = 1 turns sin
 * into cos. */
#define KFI_CPU_ROUND_F64 6755399441055744.0 /* 1.5 * 2^52, as KFI_CPU_ROUND_F32 */
KFI_INLINE float kfi_cpu_sincos_f32(float a, uint32_t quarter)
{
    static const double part[3][8] = {
        {0x1.45f306ep-1, 0x1.836e4e4p+0, -0x1.b1bbeadp+0, 0x1.529fc27p-4, 0x1.fc2757dp+0,
         -0x1.505c159p-1, 0x1.f534ddcp+0},
        {-0x1.b1bbeadp-32, 0x1.054a7f1p-30, -0x1.80f62a1p-30, 0x1.5f47d4dp-34, 0x1.f534ddcp-32,
         -0x1.911f925p-31, 0x1.b6c52b3p-33},
        {-0x1.80f62a0b82b2dp-62, -0x1.8a82e0acb223fp-60, 0x1.1f534ddc0db63p-60,
         0x1.bb81b6c52b328p-65, 0x1.b6c52b3278872p-65, 0x1.4acc9e21c8210p-63,
         0x1.3c439041fe516p-64}};
    const int32_t e = (int32_t)(kfi_cpu_bits_f32(a) >> 23) -
                      150; /* a = integer 2^e; inf and NaN use row 6 and end as NaN */
    const int64_t i = (e > 0 ? e : 0) >>
                      4; /* has the width of a double: otherwise the table look-up stays scalar */
    const double m = (double)(a * kfi_cpu_from_bits_f32(0x3f800000u - ((uint32_t)i << 27)));
    const double p0 = m * part[0][i], t0 = p0 + KFI_CPU_ROUND_F64,
                 f0 = p0 - (t0 - KFI_CPU_ROUND_F64);
    const double p1 = m * part[1][i], t1 = p1 + KFI_CPU_ROUND_F64,
                 f1 = p1 - (t1 - KFI_CPU_ROUND_F64);
    const double f = f0 + f1, t = f + KFI_CPU_ROUND_F64;
    const uint32_t n =
        (uint32_t)(kfi_cpu_bits_f64(t0) + kfi_cpu_bits_f64(t1) + kfi_cpu_bits_f64(t)) + quarter;
    const float r =
        (float)(((f - (t - KFI_CPU_ROUND_F64)) + m * part[2][i]) * 1.57079632679489662 /* pi/2 */);
    const float z = r * r;
    float s = kfi_cpu_fma_f32(z, -0x1.994e34p-13f, 0x1.11076ep-7f);
    s = kfi_cpu_fma_f32(z * r, kfi_cpu_fma_f32(z, s, -0x1.555546p-3f), r);
    float c = kfi_cpu_fma_f32(z, 0x1.99e0ecp-16f, -0x1.6c0c1ap-10f);
    c = kfi_cpu_fma_f32(z * z, kfi_cpu_fma_f32(z, c, 0x1.55554ap-5f),
                        kfi_cpu_fma_f32(z, -0.5f, 1.0f));
    const uint32_t y = kfi_cpu_select_u32(0u - (n & 1u), kfi_cpu_bits_f32(c), kfi_cpu_bits_f32(s));
    return kfi_cpu_from_bits_f32(y ^ ((n & 2u) << 30));
}
KFI_INLINE float kfi_cpu_sin_f32(float x)
{ /* odd, -0 included */
    const float y = kfi_cpu_sincos_f32(kfi_cpu_abs_f32(x), 0);
    return kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(y) ^ (kfi_cpu_bits_f32(x) & 0x80000000u));
}
KFI_INLINE float kfi_cpu_cos_f32(float x) { return kfi_cpu_sincos_f32(kfi_cpu_abs_f32(x), 1); }
KFI_INLINE float kfi_cpu_sin_lp(float x) { return kfi_cpu_sin_f32(x); }
KFI_INLINE float kfi_cpu_cos_lp(float x) { return kfi_cpu_cos_f32(x); }
KFI_INLINE double kfi_cpu_sin_f64(double x) { return sin(x); }
KFI_INLINE double kfi_cpu_cos_f64(double x) { return cos(x); }

KFI_C_END

#endif
