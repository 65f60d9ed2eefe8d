// SPDX-License-Identifier: Apache-2.0
// kf/core/math.cuh: math primitives of generated device code.
// kfi_<name>_f32 is accurate to a few ulp, kfi_<name>_f64 is CUDA's own. kfi_<name>_lp is float in
// and out, accurate to 1/4 ulp of the f16 or bf16 that the result becomes.
// Fused operations are explicit, so -fmad=false changes nothing. NaN and infinities behave as in
// float64.
#ifndef KF_CORE_MATH_CUH
#define KF_CORE_MATH_CUH

#include "kf/core/config.h"
#include "kf/core/ptx/math.cuh"

#ifdef KFI_DEVICE_PASS

KFI_DEVICE float kfi_abs_f32(float x) { return fabsf(x); }
KFI_DEVICE double kfi_abs_f64(double x) { return fabs(x); }
KFI_DEVICE float kfi_abs_lp(float x) { return fabsf(x); }

KFI_DEVICE double kfi_max_f64(double a, double b) { return a > b || a != a ? a : b; }
KFI_DEVICE double kfi_min_f64(double a, double b) { return a < b || a != a ? a : b; }
KFI_DEVICE float kfi_max_lp(float a, float b) { return kfi_max_f32(a, b); }
KFI_DEVICE float kfi_min_lp(float a, float b) { return kfi_min_f32(a, b); }

KFI_DEVICE float kfi_fma_f32(float a, float b, float c) { return __fmaf_rn(a, b, c); }
KFI_DEVICE double kfi_fma_f64(double a, double b, double c) { return fma(a, b, c); }
KFI_DEVICE float kfi_mul_f32(float a, float b) { return __fmul_rn(a, b); }
KFI_DEVICE double kfi_mul_f64(double a, double b) { return __dmul_rn(a, b); }

KFI_DEVICE float kfi_sqrt_f32(float x) { return __fsqrt_rn(x); }
KFI_DEVICE double kfi_sqrt_f64(double x) { return sqrt(x); }
KFI_DEVICE float kfi_sqrt_lp(float x) { return kfi_sqrt_approx(x); }
KFI_DEVICE float kfi_rsqrt_f32(float x) { return rsqrtf(x); }
KFI_DEVICE double kfi_rsqrt_f64(double x) { return rsqrt(x); }
KFI_DEVICE float kfi_rsqrt_lp(float x) { return rsqrtf(x); }

KFI_DEVICE float kfi_div_f32(float a, float b) { return __fdiv_rn(a, b); }
KFI_DEVICE double kfi_div_f64(double a, double b) { return a / b; }
KFI_DEVICE float kfi_div_lp(float a, float b)
{
    // Scaling by a power of two keeps the reciprocal normal. It is applied to a first: scaling down
    // loses digits of a only if the quotient is subnormal; scaling up overflows only if the
    // quotient does. One correction step: without it a / a may be 1 - 2^-24, on the wrong side of a
    // kink at 1.
    const float m = fabsf(b), c = m > 0x1p64f ? 0x1p-64f : m < 0x1p-64f ? 0x1p64f : 1.0f;
    const float n = a * c, d = b * c, r = kfi_rcp_ftz(d), q = n * r,
                e = __fmaf_rn(__fmaf_rn(-d, q, n), r, q);
    return e == e ? e : q; // q is infinite or NaN itself
}
// Division without the correction step: 3 ulp of float32, for quotients that are only rounded to 2
// bytes.
KFI_DEVICE float kfi_quotient_lp(float a, float b)
{
    const float m = fabsf(b), c = m > 0x1p64f ? 0x1p-64f : m < 0x1p-64f ? 0x1p64f : 1.0f;
    return a * c * kfi_rcp_ftz(b * c);
}
KFI_DEVICE float kfi_rcp_f32(float b) { return kfi_rcp_ftz(b); }
KFI_DEVICE double kfi_rcp_f64(double b) { return 1.0 / b; }
KFI_DEVICE float kfi_rcp_lp(float b) { return kfi_rcp_ftz(b); }

KFI_DEVICE float kfi_exp_f32(float x) { return expf(x); }
KFI_DEVICE double kfi_exp_f64(double x) { return exp(x); }
KFI_DEVICE float kfi_exp_lp(float x)
{
    const float s = kfi_ex2_ftz(x * 0.72134752f); // log2(e) / 2: the square makes subnormals
    return s * s;
}

KFI_DEVICE float kfi_expm1_f32(float x)
{
    // x = n ln 2 + f, expm1(x) = 2^n expm1(f) + 2^n - 1, all halved since n reaches 128.
    const float c = fminf(fmaxf(x, -32.0f), 89.0f);         // constant -1 and inf beyond
    const float m = __fmaf_rn(c, 1.44269504f, 12583038.0f); // 1.5 * 2^23 + 126: exponent of 2^(n-1)
    const float n = m - 12583038.0f;
    const float h = __fmaf_rn(n, -0.693147182f, c);
    const float f = __fmaf_rn(n, 1.90465430e-9f, h); // ln 2 in two parts
    const float s = __uint_as_float(__float_as_uint(m) << 23), g = f * f;
    float p = __fmaf_rn(0.00138704397f, f, 0.00836628862f);
    p = __fmaf_rn(p, f, 0.041667439f);
    p = __fmaf_rn(p, f, 0.166665465f);
    p = __fmaf_rn(__fmaf_rn(p, f, 0.49999997f), g, f);
    const float y = __fmaf_rn(p, s, s - 0.5f) * 2.0f;
    return fabsf(x) > 0x1p-25f ? y : x; // also -0, subnormals and NaN
}
KFI_DEVICE double kfi_expm1_f64(double x) { return expm1(x); }
KFI_DEVICE float kfi_expm1_lp(float x)
{
    const float e = kfi_ex2_ftz(x * 1.44269504f) - 1.0f;
    // both branches are 2e-5 off at the switch
    return fabsf(x) > 0.01f ? e : x * __fmaf_rn(x, 0.5f, 1.0f);
}

KFI_DEVICE float kfi_log_f32(float x) { return logf(x); }
KFI_DEVICE double kfi_log_f64(double x) { return log(x); }
KFI_DEVICE float kfi_log_lp(float x)
{
    const float l =
        // absolute error 2^-22 around 1: the series takes over there, 7e-6 off at its end
        kfi_lg2(x);
    const float f = x - 1.0f, p = f * __fmaf_rn(f, __fmaf_rn(f, 0.333333333f, -0.5f), 1.0f);
    return fabsf(f) > 0.03f ? l * 0.693147182f : p;
}
KFI_DEVICE float kfi_log1p_f32(float x) { return log1pf(x); }
KFI_DEVICE double kfi_log1p_f64(double x) { return log1p(x); }
KFI_DEVICE float kfi_log1p_lp(float x)
{
    const float l = kfi_lg2_ftz(x + 1.0f);
    const float p = x * __fmaf_rn(x, __fmaf_rn(x, 0.333333333f, -0.5f), 1.0f);
    return fabsf(x) > 0.03f ? l * 0.693147182f : p;
}
// log1p01: valid for 0 <= t <= 1 only, as softplus needs.
KFI_DEVICE float kfi_log1p01_f32(float t)
{
    float p = __fmaf_rn(-0.00329053029f, t, 0.0200864226f);
    p = __fmaf_rn(p, t, -0.0574574247f);
    p = __fmaf_rn(p, t, 0.106611371f);
    p = __fmaf_rn(p, t, -0.15344882f);
    p = __fmaf_rn(p, t, 0.196921021f);
    p = __fmaf_rn(p, t, -0.24958019f);
    p = __fmaf_rn(p, t, 0.333304644f);
    p = __fmaf_rn(p, t, -0.499999315f);
    return __fmaf_rn(p, t * t, t);
}
KFI_DEVICE double kfi_log1p01_f64(double t) { return log1p(t); }
KFI_DEVICE float kfi_log1p01_lp(float t)
{
    float p = __fmaf_rn(0.0141462237f, t, -0.0664187074f);
    p = __fmaf_rn(p, t, 0.149245024f);
    p = __fmaf_rn(p, t, -0.235051304f);
    p = __fmaf_rn(p, t, 0.331098199f);
    p = __fmaf_rn(p, t, -0.499870121f);
    return __fmaf_rn(p, t, 0.999998748f) * t;
}

KFI_DEVICE float kfi_tanh_f32(float x) { return tanhf(x); }
KFI_DEVICE double kfi_tanh_f64(double x) { return tanh(x); }
KFI_DEVICE float kfi_tanh_lp(float x)
{
    const float e = kfi_ex2_ftz(x * 2.88539008f); // 2 log2(e)
    const float t = __fmaf_rn(kfi_rcp_ftz(e + 1.0f), -2.0f, 1.0f);
    return fabsf(x) > 0.01f ? t : x; // t is 3e-7 off, tanh(x) = x - x^3 / 3
}

KFI_DEVICE float kfi_sigmoid_f32(float x)
{
    // Computes exp(-x) as CUDA's expf does: a saturated product bounds the exponent n (here
    // -102..150), and ex2 takes the rest. The factor 2^-24 on both sides keeps the reciprocal
    // normal; the last product may be subnormal.
    const float c = kfi_max_f32(x, -105.0f); // the result is 0 below, and d stays finite
    // -log2(e) / 252 and 102 / 252; 1.5 * 2^23 + 1, which leaves n + 103, the exponent of 2^(n-24)
    const float j = __saturatef(__fmaf_rn(c, -0.00572498032f, 0.404761905f));
    const float m = __fmaf_rn(j, 252.0f, 12582913.0f);
    const float h = __fmaf_rn(c, -1.44269502f, 12583015.0f - m); // log2(e) in two parts
    const float f = __fmaf_rn(c, -1.92596299e-8f, h);
    const float d = __fmaf_rn(kfi_ex2_ftz(f), __uint_as_float(__float_as_uint(m) << 23), 0x1p-24f);
    const float r = kfi_rcp_ftz(d);
    return 0x1p-24f * __fmaf_rn(__fmaf_rn(-d, r, 1.0f), r, r);
}
KFI_DEVICE double kfi_sigmoid_f64(double x)
{
    const double e = exp(-fabs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}
KFI_DEVICE float kfi_sigmoid_lp(float x)
{
    // Scaled by 2^-24 so that x * sigmoid(x) is accurate down to the smallest bf16, where sigmoid
    // itself is already smaller.
    const float e = kfi_ex2_ftz(__fmaf_rn(x, -1.44269504f, -24.0f));
    return 0x1p-24f * kfi_rcp_ftz(e + 0x1p-24f);
}

KFI_DEVICE float kfi_erf_f32(float x) { return erff(x); }
KFI_DEVICE double kfi_erf_f64(double x) { return erf(x); }
KFI_DEVICE float kfi_erf_lp(float x)
{
    const float a = fabsf(x);
    float p = __fmaf_rn(-0.00299608195f, a, 0.0297972728f); // erf(a) = 1 - 2^(a p(a))
    p = __fmaf_rn(p, a, -0.148937061f);
    p = __fmaf_rn(p, a, -0.918376386f);
    p = __fmaf_rn(p, a, -1.62790823f);
    const float y = copysignf(1.0f - kfi_ex2_ftz(p * a), x);
    return a > 0.01f ? y : x * 1.12837917f; // 2 / sqrt(pi)
}

// The normal distribution: Phi(-a) = exp(-a*a/2) P(t), t = 1 / (a + shift), Phi(x) = 1 - Phi(-x).
// The exponential is scaled by 2^24 (f32) or 2^12 (lp) and P is scaled back, so that no factor is
// subnormal. Polynomials of this file: gen/fit/fit_words.py.
KFI_DEVICE float kfi_tail_f32(float x) { return fminf(fabsf(x), 14.3f); } // Phi(-14.3) < 2^-150
// Computes 2^24 exp(-x*x/2) = result * s, with a = kfi_tail_f32(x). The rounding error of a*a goes
// into ex2 alone.
KFI_DEVICE float kfi_gauss_f32(float x, float a, float *s)
{
    const float h = a * a, l = __fmaf_rn(x, x, -h);
    const float m = __fmaf_rn(h, -0.721347511f, 12583063.0f); // log2(e) / 2; 1.5 * 2^23 + 127 + 24
    float f = __fmaf_rn(h, -0.721347511f, 12583063.0f - m);
    f = __fmaf_rn(h, -9.62981516e-9f, f); // the low part of log2(e) / 2
    f = __fmaf_rn(l, -0.721347511f, f);
    *s = __uint_as_float(__float_as_uint(m) << 23);
    return kfi_ex2_ftz(f);
}
KFI_DEVICE float kfi_mills_f32(float a)
{
    // P amplifies errors in t: one Newton step, against the exact a + 3.
    const float r = kfi_rcp_ftz(a + 3.0f);
    const float t = __fmaf_rn(__fmaf_rn(-r, a, __fmaf_rn(r, -3.0f, 1.0f)), r, r);
    float p = __fmaf_rn(0x1p-24f * -536.791809f, t, 0x1p-24f * 998.539124f);
    p = __fmaf_rn(p, t, 0x1p-24f * -699.664062f);
    p = __fmaf_rn(p, t, 0x1p-24f * 202.505005f);
    p = __fmaf_rn(p, t, 0x1p-24f * -23.6448574f);
    p = __fmaf_rn(p, t, 0x1p-24f * 11.410058f);
    p = __fmaf_rn(p, t, 0x1p-24f * 2.86348271f);
    p = __fmaf_rn(p, t, 0x1p-24f * 1.21284139f);
    p = __fmaf_rn(p, t, 0x1p-24f * 0.398496628f);
    return __fmaf_rn(p, t, 0x1p-24f * 5.37821597e-06f);
}
KFI_DEVICE float kfi_normpdf_f32(float x)
{
    float s;
    const float e = kfi_gauss_f32(x, kfi_tail_f32(x), &s);
    return e * (0x1p-24f * 0.398942280f) * s; // 1 / sqrt(2 pi)
}
KFI_DEVICE float kfi_normcdf_f32(float x)
{
    float s;
    const float a = kfi_tail_f32(x), w = kfi_gauss_f32(x, a, &s) * kfi_mills_f32(a);
    return x > 0.0f ? __fmaf_rn(-w, s, 1.0f) : w * s;
}
KFI_DEVICE float kfi_gelu_f32(float x)
{
    float s;
    const float a = kfi_tail_f32(x), w = kfi_gauss_f32(x, a, &s) * kfi_mills_f32(a);
    // Multiplies a * s first: with s last a tiny x would lose digits, with a last the tail would. 0
    // * -inf is NaN.
    return __fmaf_rn(x, x >= 0.0f ? 1.0f : 0.0f, -(a * s * w));
}
KFI_DEVICE float kfi_gelu_bwd_f32(float x)
{
    // gelu'(-a) = Phi(-a) - a phi(a), gelu'(a) = 1 - gelu'(-a); NaN at both infinities by 0 * inf.
    float s;
    const float a = fabsf(x), e = kfi_gauss_f32(x, kfi_tail_f32(x), &s);
    const float w = e * __fmaf_rn(a, 0x1p-24f * -0.398942280f, kfi_mills_f32(a));
    return x > 0.0f ? __fmaf_rn(-w, s, 1.0f) : w * s;
}

KFI_DEVICE double kfi_normpdf_f64(double x) { return 0.39894228040143268 * exp(-0.5 * x * x); }
KFI_DEVICE double kfi_normcdf_f64(double x) { return normcdf(x); }
KFI_DEVICE double kfi_gelu_f64(double x) { return x * normcdf(x); }
KFI_DEVICE double kfi_gelu_bwd_f64(double x) { return fma(x, kfi_normpdf_f64(x), normcdf(x)); }

KFI_DEVICE float kfi_gauss_lp(float x)
{
    return kfi_ex2_ftz(__fmaf_rn(x * x, -0.721347520f, 24.0f));
}
KFI_DEVICE float kfi_normpdf_lp(float x) { return kfi_gauss_lp(x) * (0x1p-24f * 0.398942280f); }
KFI_DEVICE float kfi_normcdf_lp(float x)
{
    const float t = kfi_rcp_ftz(fabsf(x) + 3.6f);
    float p = __fmaf_rn(0x1p-24f * -245.043091f, t, 0x1p-24f * 260.499664f);
    p = __fmaf_rn(p, t, 0x1p-24f * -51.4968834f);
    p = __fmaf_rn(p, t, 0x1p-24f * 15.3526068f);
    p = __fmaf_rn(p, t, 0x1p-24f * 0.47372064f);
    p = __fmaf_rn(p, t, 0x1p-24f * 0.44509685f);
    p = __fmaf_rn(p, t, 0x1p-24f * -0.000898588449f);
    const float q = kfi_gauss_lp(x) * p;
    return x > 0.0f ? 1.0f - q : q;
}
KFI_DEVICE float kfi_gelu_lp(float x)
{
    const float t = kfi_rcp_ftz(fabsf(x) + 2.15f), e = kfi_gauss_lp(x);
    float p = __fmaf_rn(0x1p-24f * -2.68968225f, t, 0x1p-24f * 2.98751497f);
    p = __fmaf_rn(p, t, 0x1p-24f * 0.608818293f);
    p = __fmaf_rn(p, t, 0x1p-24f * 0.417121261f);
    p = __fmaf_rn(p, t, 0x1p-24f * -0.000479834183f);
    // Phi = (x >= 0) - sign(x) e p, correct at both zeros: -0 takes 1 + 1/2.
    const float u = __int_as_float((~__float_as_int(x) & (int)0x80000000) | __float_as_int(e));
    return x * __fmaf_rn(u, p, x >= 0.0f ? 1.0f : 0.0f);
}
KFI_DEVICE float kfi_gelu_bwd_lp(float x)
{
    // a = |x| sqrt(log2(e) / 2): one product serves both the square and a phi(a)
    const float m = x * 0.849321800f, a = fabsf(m), t = kfi_rcp_ftz(a + 2.7f);
    const float e = kfi_ex2_ftz(__fmaf_rn(-m, m, 24.0f));
    float p = __fmaf_rn(0x1p-24f * -19.2354641f, t, 0x1p-24f * 28.6725121f);
    p = __fmaf_rn(p, t, 0x1p-24f * -6.51358652f);
    p = __fmaf_rn(p, t, 0x1p-24f * 2.58391881f);
    p = __fmaf_rn(p, t, 0x1p-24f * 0.173615873f);
    p = __fmaf_rn(p, t, 0x1p-24f * 0.0067066662f);
    // 0.4697... = 1 / sqrt(2 pi) / 0.8493...; the rest as in f32
    const float g = e * __fmaf_rn(a, 0x1p-24f * -0.469718639f, p);
    return x > 0.0f ? 1.0f - g : g;
}

KFI_DEVICE float kfi_sin_f32(float x) { return sinf(x); }
KFI_DEVICE double kfi_sin_f64(double x) { return sin(x); }
KFI_DEVICE float kfi_sin_lp(float x) { return sinf(x); }
KFI_DEVICE float kfi_cos_f32(float x) { return cosf(x); }
KFI_DEVICE double kfi_cos_f64(double x) { return cos(x); }
KFI_DEVICE float kfi_cos_lp(float x) { return cosf(x); }
#endif

#endif // KF_CORE_MATH_CUH
