/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/math.h: the scalar words of the C backend, kfi_cpu_<word>_<f32|f64|lp>.
 *
 *   _f32   float, a few ulp over the whole range
 *   _lp    float in and out, for a result that is then rounded to f16 or bf16: relative error 2^-13, and 2^-135
 *          absolute where it is subnormal
 *   _f64   libm, scalar
 *
 * All but _f64 is written so that a constant-trip loop over it vectorises with any flags, SSE2 at -O2 included: no
 * branches, no libm (errno), no float ?: (control flow unless -fno-trapping-math) but selects by integer masks. What
 * stays scalar on plain SSE2 is integer compares and products of 64 bits. The bounds hold with and without FMA, and where
 * sums are added up in the order written. Coefficients: gen/fit/fit_words_c.py. */
#ifndef KF_CORE_MATH_H
#define KF_CORE_MATH_H

#include "kf/core/host.h"

#include "kf/core/config.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kf/core/dtype.h"

/* Flags under which the words below would give wrong numbers. */
#if !defined(__ASSOCIATIVE_MATH__) && defined(__GNUC__) && __GNUC__ < 12 && !defined(__clang__) && !defined(KF_ALLOW_FAST_MATH)
#if defined(__GCC_IEC_559) && __GCC_IEC_559 == 0 /* all that an older gcc says of it */
#define KFI_ANY_ORDER 1
#endif
#elif defined(__ASSOCIATIVE_MATH__) && !defined(__clang__)
#define KFI_ANY_ORDER 1
#endif
#if (defined(__FAST_MATH__) || defined(_M_FP_FAST) || __FINITE_MATH_ONLY__ + 0 > 0) && !defined(KF_ALLOW_FAST_MATH)
#error "kf: -ffast-math (or its -ffinite-math-only) breaks NaN, infinities and the rounding that kf's math relies on; compile without it (-O3 -fno-math-errno -fno-trapping-math gains as much), or with -ffast-math -fno-associative-math and KF_ALLOW_FAST_MATH defined"
#elif defined(KFI_ANY_ORDER)
#error "kf: sums in any order, as of -fassociative-math, -funsafe-math-optimizations, -ffast-math and -Ofast, remove the rounding that kf's math relies on; compile without, or add -fno-associative-math"
#elif defined(__FLT_EVAL_METHOD__)
#if __FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2 || (__FLT_EVAL_METHOD__ < 0 && !defined(__clang__))
#error "kf: float arithmetic with more digits than a float, as of x87, does not round where kf's math relies on it; compile with -msse2 -mfpmath=sse"
#endif
#endif

KFI_C_BEGIN

/* ---- bits, masks, selects -------------------------------------------------------------------------------------- */

KFI_INLINE uint32_t kfi_cpu_bits_f32(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
KFI_INLINE uint64_t kfi_cpu_bits_f64(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
KFI_INLINE float kfi_cpu_from_bits_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
KFI_INLINE double kfi_cpu_from_bits_f64(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

/* Comparisons give 0 or all ones; minus a truth value is what both compilers turn into a vector compare. In 64 bits gcc
 * does so from SSE4.2 on; for plain SSE2 the truth value makes a detour through 32 bits. */
#if defined(__SSE2__) && !defined(__SSE4_2__)
#define KFI_CPU_MASK64(c) ((uint64_t)(int64_t) - (int32_t)(c))
#else
#define KFI_CPU_MASK64(c) (0u - (uint64_t)(c))
#endif
KFI_INLINE uint32_t kfi_cpu_lt_f32(float a, float b) { return 0u - (uint32_t)(a < b); }
KFI_INLINE uint32_t kfi_cpu_le_f32(float a, float b) { return 0u - (uint32_t)(a <= b); }
KFI_INLINE uint32_t kfi_cpu_gt_f32(float a, float b) { return 0u - (uint32_t)(a > b); }
KFI_INLINE uint32_t kfi_cpu_ge_f32(float a, float b) { return 0u - (uint32_t)(a >= b); }
KFI_INLINE uint32_t kfi_cpu_eq_f32(float a, float b) { return 0u - (uint32_t)(a == b); }
KFI_INLINE uint32_t kfi_cpu_ne_f32(float a, float b) { return 0u - (uint32_t)(a != b); }
KFI_INLINE uint64_t kfi_cpu_lt_f64(double a, double b) { return KFI_CPU_MASK64(a < b); }
KFI_INLINE uint64_t kfi_cpu_le_f64(double a, double b) { return KFI_CPU_MASK64(a <= b); }
KFI_INLINE uint64_t kfi_cpu_gt_f64(double a, double b) { return KFI_CPU_MASK64(a > b); }
KFI_INLINE uint64_t kfi_cpu_ge_f64(double a, double b) { return KFI_CPU_MASK64(a >= b); }
KFI_INLINE uint64_t kfi_cpu_eq_f64(double a, double b) { return KFI_CPU_MASK64(a == b); }
KFI_INLINE uint64_t kfi_cpu_ne_f64(double a, double b) { return KFI_CPU_MASK64(a != b); }
KFI_INLINE uint32_t kfi_cpu_lt_i32(int32_t a, int32_t b) { return 0u - (uint32_t)(a < b); }
KFI_INLINE uint32_t kfi_cpu_le_i32(int32_t a, int32_t b) { return 0u - (uint32_t)(a <= b); }
KFI_INLINE uint32_t kfi_cpu_gt_i32(int32_t a, int32_t b) { return 0u - (uint32_t)(a > b); }
KFI_INLINE uint32_t kfi_cpu_ge_i32(int32_t a, int32_t b) { return 0u - (uint32_t)(a >= b); }
KFI_INLINE uint32_t kfi_cpu_eq_i32(int32_t a, int32_t b) { return 0u - (uint32_t)(a == b); }
KFI_INLINE uint32_t kfi_cpu_ne_i32(int32_t a, int32_t b) { return 0u - (uint32_t)(a != b); }
KFI_INLINE uint64_t kfi_cpu_lt_i64(int64_t a, int64_t b) { return KFI_CPU_MASK64(a < b); }
KFI_INLINE uint64_t kfi_cpu_le_i64(int64_t a, int64_t b) { return KFI_CPU_MASK64(a <= b); }
KFI_INLINE uint64_t kfi_cpu_gt_i64(int64_t a, int64_t b) { return KFI_CPU_MASK64(a > b); }
KFI_INLINE uint64_t kfi_cpu_ge_i64(int64_t a, int64_t b) { return KFI_CPU_MASK64(a >= b); }
KFI_INLINE uint64_t kfi_cpu_eq_i64(int64_t a, int64_t b) { return KFI_CPU_MASK64(a == b); }
KFI_INLINE uint64_t kfi_cpu_ne_i64(int64_t a, int64_t b) { return KFI_CPU_MASK64(a != b); }

KFI_INLINE uint32_t kfi_cpu_select_u32(uint32_t m, uint32_t a, uint32_t b) { return (a & m) | (b & ~m); }
KFI_INLINE uint64_t kfi_cpu_select_u64(uint64_t m, uint64_t a, uint64_t b) { return (a & m) | (b & ~m); }
KFI_INLINE float kfi_cpu_select_f32(uint32_t m, float a, float b) {
  return kfi_cpu_from_bits_f32(kfi_cpu_select_u32(m, kfi_cpu_bits_f32(a), kfi_cpu_bits_f32(b)));
}
KFI_INLINE double kfi_cpu_select_f64(uint64_t m, double a, double b) {
  return kfi_cpu_from_bits_f64(kfi_cpu_select_u64(m, kfi_cpu_bits_f64(a), kfi_cpu_bits_f64(b)));
}
KFI_INLINE int32_t kfi_cpu_select_i32(uint32_t m, int32_t a, int32_t b) {
  return (int32_t)kfi_cpu_select_u32(m, (uint32_t)a, (uint32_t)b);
}
KFI_INLINE int64_t kfi_cpu_select_i64(uint64_t m, int64_t a, int64_t b) {
  return (int64_t)kfi_cpu_select_u64(m, (uint64_t)a, (uint64_t)b);
}

/* ---- arithmetic ------------------------------------------------------------------------------------------------ */

/* Integers wrap: through unsigned, where that is defined. */
KFI_INLINE int32_t kfi_cpu_add_i32(int32_t a, int32_t b) { return (int32_t)((uint32_t)a + (uint32_t)b); }
KFI_INLINE int32_t kfi_cpu_sub_i32(int32_t a, int32_t b) { return (int32_t)((uint32_t)a - (uint32_t)b); }
KFI_INLINE int32_t kfi_cpu_mul_i32(int32_t a, int32_t b) { return (int32_t)((uint32_t)a * (uint32_t)b); }
KFI_INLINE int64_t kfi_cpu_add_i64(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
KFI_INLINE int64_t kfi_cpu_sub_i64(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
KFI_INLINE int64_t kfi_cpu_mul_i64(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
KFI_INLINE int32_t kfi_cpu_max_i32(int32_t a, int32_t b) { return a > b ? a : b; }
KFI_INLINE int32_t kfi_cpu_min_i32(int32_t a, int32_t b) { return a < b ? a : b; }
KFI_INLINE int64_t kfi_cpu_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
KFI_INLINE int64_t kfi_cpu_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* A fused multiply-add only where it is an instruction: elsewhere it would be a library call. */
KFI_INLINE float kfi_cpu_fma_f32(float a, float b, float c) {
#if defined(__FP_FAST_FMAF) && defined(__GNUC__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/* NaN in either operand gives NaN: (b != b) takes b, and is nothing where b is a constant; a comparison with a NaN a is
 * false and takes a. */
KFI_INLINE float kfi_cpu_max_f32(float a, float b) {
  return kfi_cpu_select_f32(kfi_cpu_le_f32(a, b) | kfi_cpu_ne_f32(b, b), b, a);
}
KFI_INLINE float kfi_cpu_min_f32(float a, float b) {
  return kfi_cpu_select_f32(kfi_cpu_ge_f32(a, b) | kfi_cpu_ne_f32(b, b), b, a);
}
KFI_INLINE double kfi_cpu_max_f64(double a, double b) {
  return kfi_cpu_select_f64(kfi_cpu_ne_f64(a, a), a, kfi_cpu_select_f64(kfi_cpu_gt_f64(a, b), a, b));
}
KFI_INLINE double kfi_cpu_min_f64(double a, double b) {
  return kfi_cpu_select_f64(kfi_cpu_ne_f64(a, a), a, kfi_cpu_select_f64(kfi_cpu_lt_f64(a, b), a, b));
}
KFI_INLINE float kfi_cpu_abs_f32(float x) { return kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(x) & 0x7fffffffu); }
KFI_INLINE double kfi_cpu_abs_f64(double x) { return kfi_cpu_from_bits_f64(kfi_cpu_bits_f64(x) & (UINT64_MAX >> 1)); }
KFI_INLINE float kfi_cpu_div_f32(float a, float b) { return a / b; }
KFI_INLINE double kfi_cpu_div_f64(double a, double b) { return a / b; }
KFI_INLINE float kfi_cpu_rcp_f32(float b) { return 1.0f / b; }
KFI_INLINE double kfi_cpu_rcp_f64(double b) { return 1.0 / b; }

/* Clamps that let NaN through. */
KFI_INLINE float kfi_cpu_at_least_f32(float x, float lo) { return kfi_cpu_select_f32(kfi_cpu_lt_f32(x, lo), lo, x); }
KFI_INLINE float kfi_cpu_at_most_f32(float x, float hi) { return kfi_cpu_select_f32(kfi_cpu_gt_f32(x, hi), hi, x); }
/* x between lo < 0 and hi > 0 by its bits: two instructions, where float selects are eight. As int, positive floats are in
 * order and negative ones below them; as unsigned, negative ones are in order and above. NaN ends as lo or hi, and
 * kfi_cpu_keep_nan_lp puts it back. Plain SSE2 has no integer minimum. */
#if defined(__SSE2__) && !defined(__SSE4_1__)
KFI_INLINE float kfi_cpu_clamp_lp(float x, float lo, float hi) {
  return kfi_cpu_at_most_f32(kfi_cpu_at_least_f32(x, lo), hi);
}
KFI_INLINE float kfi_cpu_keep_nan_lp(float y, float x) { return (void)x, y; }
#else
KFI_INLINE float kfi_cpu_clamp_lp(float x, float lo, float hi) {
  const uint32_t u = (uint32_t)kfi_cpu_min_i32((int32_t)kfi_cpu_bits_f32(x), (int32_t)kfi_cpu_bits_f32(hi));
  return kfi_cpu_from_bits_f32(u < kfi_cpu_bits_f32(lo) ? u : kfi_cpu_bits_f32(lo));
}
KFI_INLINE float kfi_cpu_keep_nan_lp(float y, float x) {
  return kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(y) | (kfi_cpu_ne_f32(x, x) & 0x7fc00000u));
}
#endif
/* |m| with the sign of s. */
KFI_INLINE float kfi_cpu_with_sign_f32(float m, float s) {
  return kfi_cpu_from_bits_f32((kfi_cpu_bits_f32(m) & 0x7fffffffu) | (kfi_cpu_bits_f32(s) & 0x80000000u));
}

/* Square root. sqrtf stays a call because of errno: an integer seed (Lomont, "Fast inverse square root", 2003), Newton
 * steps on 1/sqrt, and one last step with the exact residual x - s*s. */
KFI_INLINE float kfi_cpu_sqrt_scaled(float x, uint32_t tiny) { /* so that neither y*y*x nor the residual is subnormal */
  return kfi_cpu_select_f32(tiny, x * 0x1p100f, x);
}
/* x*x - x2, where x2 is x*x rounded. Without FMA from halves of 12 bits, whose products are exact. */
KFI_INLINE float kfi_cpu_square_rest(float x, float x2) {
#if defined(__FP_FAST_FMAF) && defined(__GNUC__)
  return __builtin_fmaf(x, x, -x2);
#else
  const float h = kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(x) & 0xfffff000u);
  return (h * h - x2) + (x - h) * (x + h);
#endif
}
KFI_INLINE float kfi_cpu_rsqrt_newton(float v, float y) { return y * (1.5f - (0.5f * v * y) * y); }
KFI_INLINE float kfi_cpu_rsqrt_rough(float v) { /* 2^-17 */
  const float y = kfi_cpu_from_bits_f32(0x5f375a86u - (kfi_cpu_bits_f32(v) >> 1));
  return kfi_cpu_rsqrt_newton(v, kfi_cpu_rsqrt_newton(v, y));
}
/* The root where 0 < x < inf, otherwise x itself (0, -0, inf, NaN), or NaN for a negative x. */
KFI_INLINE float kfi_cpu_sqrt_finish(float x, float root, uint32_t tiny) {
  const uint32_t negative = kfi_cpu_lt_f32(x, 0.0f), regular = kfi_cpu_gt_f32(x, 0.0f) & kfi_cpu_lt_f32(x, INFINITY);
  const uint32_t y = kfi_cpu_bits_f32(root * kfi_cpu_select_f32(tiny, 0x1p-50f, 1.0f));
  return kfi_cpu_from_bits_f32(kfi_cpu_select_u32(regular, y, kfi_cpu_bits_f32(x) | (negative & 0x7fc00000u)));
}
#if defined(__NO_MATH_ERRNO__) && defined(__GNUC__)
KFI_INLINE float kfi_cpu_sqrt_f32(float x) { return __builtin_sqrtf(x); }
KFI_INLINE float kfi_cpu_sqrt_lp(float x) { return __builtin_sqrtf(x); }
#else
KFI_INLINE float kfi_cpu_sqrt_f32(float x) {
  const uint32_t tiny = kfi_cpu_lt_f32(x, 0x1p-100f);
  const float v = kfi_cpu_sqrt_scaled(x, tiny), y = kfi_cpu_rsqrt_newton(v, kfi_cpu_rsqrt_rough(v)), s = v * y;
  const float s2 = s * s, residual = (v - s2) - kfi_cpu_square_rest(s, s2);
  return kfi_cpu_sqrt_finish(x, s + 0.5f * y * residual, tiny);
}
KFI_INLINE float kfi_cpu_sqrt_lp(float x) {
  const uint32_t tiny = kfi_cpu_lt_f32(x, 0x1p-100f);
  const float v = kfi_cpu_sqrt_scaled(x, tiny);
  return kfi_cpu_sqrt_finish(x, v * kfi_cpu_rsqrt_rough(v), tiny);
}
#endif
KFI_INLINE float kfi_cpu_rsqrt_f32(float x) { return 1.0f / kfi_cpu_sqrt_f32(x); }
KFI_INLINE float kfi_cpu_rsqrt_lp(float x) { return 1.0f / kfi_cpu_sqrt_lp(x); }
KFI_INLINE double kfi_cpu_sqrt_f64(double x) { return sqrt(x); }
KFI_INLINE double kfi_cpu_rsqrt_f64(double x) { return 1.0 / sqrt(x); }

/* ---- polynomials ----------------------------------------------------------------------------------------------- */

/* Estrin's order, ascending coefficients: shorter chains than Horner's, which is what limits a loop of 32 vectors. */
KFI_INLINE float kfi_cpu_poly4_f32(float x, float x2, float c0, float c1, float c2, float c3) {
  return kfi_cpu_fma_f32(x2, kfi_cpu_fma_f32(x, c3, c2), kfi_cpu_fma_f32(x, c1, c0));
}
KFI_INLINE float kfi_cpu_poly6_f32(float x, float x2, float c0, float c1, float c2, float c3, float c4, float c5) {
  const float high = kfi_cpu_poly4_f32(x, x2, c2, c3, c4, c5);
  return kfi_cpu_fma_f32(x2, high, kfi_cpu_fma_f32(x, c1, c0));
}

/* ---- exponentials ---------------------------------------------------------------------------------------------- */

/* exp(x) = 2^n e^r with n = round(x / ln 2). Adding 1.5 * 2^23 rounds to an integer and leaves n in the low bits of the
 * sum t: bits(t) << 23 is n in the exponent field. */
#define KFI_CPU_ROUND_F32 12582912.0f /* 1.5 * 2^23 */
#define KFI_CPU_EVEN_F32 25165824.0f  /* 1.5 * 2^24: n is even, and n / 2 is in the low bits */
KFI_INLINE float kfi_cpu_exp_t(float x, float magic) { return kfi_cpu_fma_f32(x, 1.44269504f /* 1/ln 2 */, magic); }
/* r = x - n ln 2; the first part of ln 2 has 15 bits, so that n times it is exact. */
KFI_INLINE float kfi_cpu_exp_r(float x, float n) {
  return kfi_cpu_fma_f32(n, -1.42860677e-6f, kfi_cpu_fma_f32(n, -0.693145752f, x));
}
KFI_INLINE float kfi_cpu_exp_r_lp(float x, float n) { return kfi_cpu_fma_f32(n, -0.693147181f, x); }
/* e^r - 1 for |r| <= ln(2)/2; relative error 2^-26, and 2^-15. */
KFI_INLINE float kfi_cpu_expm1_poly(float r) {
  const float r2 = r * r, p = kfi_cpu_poly4_f32(r, r2, 0x1.fffffep-2f, 0x1.5554b0p-3f, 0x1.5556fcp-5f,
                                                kfi_cpu_fma_f32(r, 0x1.6b9412p-10f, 0x1.12286cp-7f));
  return kfi_cpu_fma_f32(r2, p, r);
}
KFI_INLINE float kfi_cpu_expm1_poly_lp(float r) {
  const float r2 = r * r, p = kfi_cpu_fma_f32(r, 0x1.570cb8p-3f, 0x1.000236p-1f);
  return kfi_cpu_fma_f32(r2, kfi_cpu_fma_f32(r2, 0x1.54dd38p-5f, p), r);
}
/* 2^n from t, for -126 <= n <= 127. */
KFI_INLINE float kfi_cpu_exp_scale(float t) {
  return kfi_cpu_from_bits_f32((kfi_cpu_bits_f32(t) << 23) + 0x3f800000u);
}
/* w 2^n for -190 <= n <= 63: the product with 2^(n + 64) is exact, so a subnormal result is rounded once. */
KFI_INLINE float kfi_cpu_exp_scale_up(float w, float t) { return w * kfi_cpu_from_bits_f32((kfi_cpu_bits_f32(t) << 23) + 0x5f800000u); }
KFI_INLINE float kfi_cpu_exp_scale_down(float w, float t) { return kfi_cpu_exp_scale_up(w, t) * 0x1p-64f; }

/* Where exp(x) is 0 by itself, by a factor of 0: products that underflow made a masked softmax take three times as long. */
KFI_INLINE float kfi_cpu_exp_or_0(float x, float s) { return kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(s) & ~kfi_cpu_lt_f32(x, -104.0f)); }
/* Any sign of x needs 2^-150 to 2^128: n even, r twice as wide, and two products with 2^(n/2). */
KFI_INLINE float kfi_cpu_exp_f32(float x) {
  const float c = kfi_cpu_at_most_f32(kfi_cpu_at_least_f32(x, -104.0f), 89.0f); /* 0 and inf beyond */
  const float t = kfi_cpu_exp_t(c, KFI_CPU_EVEN_F32), s = kfi_cpu_exp_or_0(x, kfi_cpu_exp_scale(t));
  const float r = kfi_cpu_exp_r(c, t - KFI_CPU_EVEN_F32), r2 = r * r;
  const float p = kfi_cpu_poly6_f32(r, r2, 0x1.00000cp-1f, 0x1.555510p-3f, 0x1.5549d4p-5f, 0x1.1127cap-7f,
                                    0x1.71c7cap-10f, 0x1.9b80a0p-13f);
  return (1.0f + kfi_cpu_fma_f32(r2, p, r)) * s * s;
}
/* The lp forms in powers of 2: u = x / ln 2, n = round(u), 2^(u - n). The exponent's bias is part of the rounding constant,
 * so that bits(t) << 23 is a power of 2 already. Horner's order: instructions count, chains overlap. */
KFI_INLINE float kfi_cpu_exp2_poly_lp(float r) { /* 2^r for |r| <= 1/2; 2^-18 */
  const float p = kfi_cpu_fma_f32(r, kfi_cpu_fma_f32(r, 0x1.3987d8p-7f, 0x1.ca1af0p-5f), 0x1.ec0740p-3f);
  return kfi_cpu_fma_f32(r, kfi_cpu_fma_f32(r, p, 0x1.62e0d0p-1f), 0x1.ffffe6p-1f);
}
KFI_INLINE float kfi_cpu_exp2_scale_lp(float t) { return kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(t) << 23); }
KFI_INLINE float kfi_cpu_exp_lp(float x) {
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
KFI_INLINE float kfi_cpu_exp_neg_f32(float x) {
  const float c = kfi_cpu_at_least_f32(x, -104.0f), t = kfi_cpu_exp_t(c, KFI_CPU_ROUND_F32);
  return kfi_cpu_exp_scale_down(1.0f + kfi_cpu_expm1_poly(kfi_cpu_exp_r(c, t - KFI_CPU_ROUND_F32)), t);
}

/* expm1 = 2^n q + (2^n - 1), at half size so that n = 128 fits; the sign of x makes -0 of -0. */
KFI_INLINE float kfi_cpu_expm1_f32(float x) {
  const float c = kfi_cpu_at_most_f32(kfi_cpu_at_least_f32(x, -18.0f), 89.0f);
  const float t = kfi_cpu_exp_t(c, KFI_CPU_ROUND_F32), r = kfi_cpu_exp_r(c, t - KFI_CPU_ROUND_F32);
  const float s = kfi_cpu_from_bits_f32((kfi_cpu_bits_f32(t) << 23) + 0x3f000000u);
  const float y = kfi_cpu_fma_f32(s, kfi_cpu_expm1_poly(r), s - 0.5f);
  return kfi_cpu_with_sign_f32(y + y, x);
}
KFI_INLINE float kfi_cpu_expm1_lp(float x) {
  const float c = kfi_cpu_at_most_f32(kfi_cpu_at_least_f32(x, -18.0f), 89.0f);
  const float t = kfi_cpu_exp_t(c, KFI_CPU_ROUND_F32), r = kfi_cpu_exp_r_lp(c, t - KFI_CPU_ROUND_F32);
  const float s = kfi_cpu_from_bits_f32((kfi_cpu_bits_f32(t) << 23) + 0x3f000000u);
  const float y = kfi_cpu_fma_f32(s, kfi_cpu_expm1_poly_lp(r), s - 0.5f);
  return kfi_cpu_with_sign_f32(y + y, x);
}
KFI_INLINE double kfi_cpu_expm1_f64(double x) { return expm1(x); }
/* expm1 for -80 <= x <= 0. */
KFI_INLINE float kfi_cpu_expm1_neg_f32(float x) {
  const float t = kfi_cpu_exp_t(x, KFI_CPU_ROUND_F32), s = kfi_cpu_exp_scale(t);
  return kfi_cpu_fma_f32(s, kfi_cpu_expm1_poly(kfi_cpu_exp_r(x, t - KFI_CPU_ROUND_F32)), s - 1.0f);
}
KFI_INLINE float kfi_cpu_expm1_neg_lp(float x) {
  const float t = kfi_cpu_exp_t(x, KFI_CPU_ROUND_F32), s = kfi_cpu_exp_scale(t);
  return kfi_cpu_fma_f32(s, kfi_cpu_expm1_poly_lp(kfi_cpu_exp_r_lp(x, t - KFI_CPU_ROUND_F32)), s - 1.0f);
}

/* tanh |x| = -m / (2 + m) with m = expm1(-2|x|). */
KFI_INLINE float kfi_cpu_tanh_f32(float x) {
  const float m = kfi_cpu_expm1_neg_f32(kfi_cpu_at_least_f32(-2.0f * kfi_cpu_abs_f32(x), -20.0f));
  return kfi_cpu_with_sign_f32(m / (2.0f + m), x);
}
/* x P(x^2) / Q(x^2); relative error 2^-17, and 2^-15 beyond 5.6, where it is constant. */
KFI_INLINE float kfi_cpu_tanh_lp(float x) {
  const float c = kfi_cpu_clamp_lp(x, -5.6f, 5.6f), z = c * c;
  const float p = kfi_cpu_fma_f32(z, kfi_cpu_fma_f32(z, 0.00156370921f, 0.115569424f), 0.9999954f);
  const float q = kfi_cpu_fma_f32(z, kfi_cpu_fma_f32(z, 5.94682653e-05f, 0.0178943088f), 0.448869571f);
  return kfi_cpu_keep_nan_lp(c * p / kfi_cpu_fma_f32(z, q, 1.0f), x);
}
KFI_INLINE double kfi_cpu_tanh_f64(double x) { return tanh(x); }

/* With e = exp(-|x|): 1 / (1 + e), or e / (1 + e) where x < 0; nothing overflows and the left tail keeps its digits. */
KFI_INLINE float kfi_cpu_sigmoid_f32(float x) {
  const float e = kfi_cpu_exp_neg_f32(-kfi_cpu_abs_f32(x));
  return kfi_cpu_select_f32(kfi_cpu_lt_f32(x, 0.0f), e, 1.0f) / (1.0f + e);
}
/* 2^-24 / (2^-24 + 2^-24 exp(-x)): scaled so that the left tail reaches the last subnormal before exp is infinite, which
 * is where the clamp on that side is (n = 152), and the quotient 0. NaN is left to the caller: in silu the other
 * factor has it. */
KFI_INLINE float kfi_cpu_sigmoid_of_number(float x) {
  const float magic = KFI_CPU_ROUND_F32 + (127 - 24), c = kfi_cpu_clamp_lp(x, -105.36f, 64.0f);
  const float t = kfi_cpu_fma_f32(c, -1.44269504f, magic), r = kfi_cpu_fma_f32(c, -1.44269504f, magic - t);
  const float d = kfi_cpu_fma_f32(kfi_cpu_exp2_scale_lp(t), kfi_cpu_exp2_poly_lp(r), 0x1p-24f);
  return 0x1p-24f / d;
}
KFI_INLINE float kfi_cpu_sigmoid_lp(float x) { return kfi_cpu_keep_nan_lp(kfi_cpu_sigmoid_of_number(x), x); }
KFI_INLINE float kfi_cpu_silu_lp(float x) { return x * kfi_cpu_sigmoid_of_number(x); }
KFI_INLINE double kfi_cpu_sigmoid_f64(double x) {
  const double e = exp(-fabs(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

/* ---- logarithms ------------------------------------------------------------------------------------------------ */

/* v > 0, normal: v = 2^k m with m in [sqrt(1/2), sqrt(2)). */
KFI_INLINE float kfi_cpu_log_k(float v) {
  return (float)((int32_t)(kfi_cpu_bits_f32(v) - 0x3f3504f3u /* sqrt(1/2) */) >> 23);
}
KFI_INLINE float kfi_cpu_log_m(float v) {
  return kfi_cpu_from_bits_f32(((kfi_cpu_bits_f32(v) - 0x3f3504f3u) & 0x7fffffu) + 0x3f3504f3u);
}
/* k ln 2 + log(1 + f), f = m - 1: log(1 + f) = f - f^2/2 + f^3 P(f). */
KFI_INLINE float kfi_cpu_log_sum_f32(float f, float k) {
  const float f2 = f * f;
  const float low = kfi_cpu_poly4_f32(f, f2, 0x1.555554p-2f, -0x1.000226p-2f, 0x1.99a01ap-3f, -0x1.547288p-3f);
  const float high = kfi_cpu_poly4_f32(f, f2, 0x1.22d966p-3f, -0x1.0d8296p-3f, 0x1.055d44p-3f, -0x1.38c426p-4f);
  const float y = kfi_cpu_fma_f32(k, 1.42860677e-6f, f2 * f * kfi_cpu_fma_f32(f2 * f2, high, low));
  return kfi_cpu_fma_f32(k, 0.693145752f, f + kfi_cpu_fma_f32(f2, -0.5f, y));
}
KFI_INLINE float kfi_cpu_log_sum_lp(float f, float k) {
  const float f2 = f * f;
  const float p = kfi_cpu_poly4_f32(f, f2, 0x1.54d7dep-2f, -0x1.028246p-2f, 0x1.bdfb44p-3f, -0x1.2ad972p-3f);
  return kfi_cpu_fma_f32(k, 0.693147181f, f + f2 * kfi_cpu_fma_f32(f, p, -0.5f));
}
/* y where 0 < u < inf; else x, or NaN for u < 0, or -inf for u == 0 (or-ing bits makes NaN or -inf of any x <= 0). */
KFI_INLINE float kfi_cpu_log_edges(float y, float x, float u) {
  const uint32_t regular = kfi_cpu_gt_f32(u, 0.0f) & kfi_cpu_lt_f32(u, INFINITY);
  const uint32_t other = kfi_cpu_bits_f32(x) | (kfi_cpu_lt_f32(u, 0.0f) & 0x7fc00000u) |
                         (kfi_cpu_eq_f32(u, 0.0f) & 0xff800000u);
  return kfi_cpu_from_bits_f32(kfi_cpu_select_u32(regular, kfi_cpu_bits_f32(y), other));
}
KFI_INLINE float kfi_cpu_log_f32(float x) {
  const uint32_t tiny = kfi_cpu_lt_f32(x, 0x1p-126f);
  const float v = kfi_cpu_select_f32(tiny, x * 0x1p25f, x);
  const float k = kfi_cpu_log_k(v) - kfi_cpu_select_f32(tiny, 25.0f, 0.0f);
  return kfi_cpu_log_edges(kfi_cpu_log_sum_f32(kfi_cpu_log_m(v) - 1.0f, k), x, x);
}
KFI_INLINE float kfi_cpu_log_lp(float x) {
  const uint32_t tiny = kfi_cpu_lt_f32(x, 0x1p-126f);
  const float v = kfi_cpu_select_f32(tiny, x * 0x1p25f, x);
  const float k = kfi_cpu_log_k(v) - kfi_cpu_select_f32(tiny, 25.0f, 0.0f);
  return kfi_cpu_log_edges(kfi_cpu_log_sum_lp(kfi_cpu_log_m(v) - 1.0f, k), x, x);
}
KFI_INLINE double kfi_cpu_log_f64(double x) { return log(x); }

/* u = 1 + x loses low bits c (two-sum): they go back into f, scaled like u. By 2^(1-k) c/2 and not 2^-k c, since k may
 * be 128. */
KFI_INLINE float kfi_cpu_log1p_f(float x, float u, float k) {
  const float b = u - 1.0f, c = (1.0f - (u - b)) + (x - b);
  const float scale = kfi_cpu_from_bits_f32(0x40000000u - ((uint32_t)(int32_t)k << 23));
  return kfi_cpu_fma_f32(0.5f * c, scale, kfi_cpu_log_m(u) - 1.0f);
}
KFI_INLINE float kfi_cpu_log1p_edges(float y, float x, float u) {
  const uint32_t tiny = kfi_cpu_lt_f32(kfi_cpu_abs_f32(x), 0x1p-25f); /* x itself, and its sign if it is zero */
  return kfi_cpu_select_f32(tiny, x, kfi_cpu_log_edges(y, x, u));
}
KFI_INLINE float kfi_cpu_log1p_f32(float x) {
  const float u = 1.0f + x, k = kfi_cpu_log_k(u);
  return kfi_cpu_log1p_edges(kfi_cpu_log_sum_f32(kfi_cpu_log1p_f(x, u, k), k), x, u);
}
KFI_INLINE float kfi_cpu_log1p_lp(float x) {
  const float u = 1.0f + x, k = kfi_cpu_log_k(u);
  return kfi_cpu_log1p_edges(kfi_cpu_log_sum_lp(kfi_cpu_log1p_f(x, u, k), k), x, u);
}
KFI_INLINE double kfi_cpu_log1p_f64(double x) { return log1p(x); }

/* log1p for 0 <= t <= 1, as in softplus: no range reduction, t + t^2 P(t). */
KFI_INLINE float kfi_cpu_log1p01_f32(float t) {
  const float t2 = t * t, t4 = t2 * t2;
  const float low = kfi_cpu_poly4_f32(t, t2, -0x1.ffffd2p-2f, 0x1.554dd4p-2f, -0x1.ff249ep-3f, 0x1.935118p-3f);
  const float mid = kfi_cpu_poly4_f32(t, t2, -0x1.3a59d2p-3f, 0x1.b50d28p-4f, -0x1.d790bcp-5f, 0x1.4a2c12p-6f);
  return kfi_cpu_fma_f32(t2, kfi_cpu_fma_f32(t4, kfi_cpu_fma_f32(t4, -0x1.b174fep-9f, mid), low), t);
}
KFI_INLINE float kfi_cpu_log1p01_lp(float t) {
  const float t2 = t * t, c = kfi_cpu_fma_f32(t, -0x1.953e64p-6f, 0x1.a84fa8p-4f);
  return kfi_cpu_fma_f32(t2, kfi_cpu_poly4_f32(t, t2, -0x1.ff8744p-2f, 0x1.4e0e20p-2f, -0x1.b30080p-3f, c), t);
}
KFI_INLINE double kfi_cpu_log1p01_f64(double t) { return log1p(t); }

/* ---- the normal distribution: erf, Phi, phi, gelu -------------------------------------------------------------- */

/* erf t = -expm1(-t Q(t)) for t >= 0: one polynomial, relative accuracy everywhere, never above 1. erf(4) rounds
 * to 1. */
KFI_INLINE float kfi_cpu_erf_f32(float x) {
  const float t = kfi_cpu_at_most_f32(kfi_cpu_abs_f32(x), 4.0f), t2 = t * t;
  const float low = kfi_cpu_poly4_f32(t, t2, 0x1.20dd76p+0f, 0x1.45f270p-1f, 0x1.a52d80p-4f, -0x1.3d4ce0p-6f);
  const float high = kfi_cpu_poly4_f32(t, t2, 0x1.267334p-12f, 0x1.37ef0ap-10f, -0x1.762b02p-12f, 0x1.379022p-15f);
  return kfi_cpu_with_sign_f32(kfi_cpu_expm1_neg_f32(-t * kfi_cpu_fma_f32(t2 * t2, high, low)), x);
}
KFI_INLINE float kfi_cpu_erf_lp(float x) {
  const float t = kfi_cpu_at_most_f32(kfi_cpu_abs_f32(x), 4.0f), t2 = t * t;
  const float q = kfi_cpu_poly4_f32(t, t2, 0x1.20db1ep+0f, 0x1.467e36p-1f, 0x1.938e5ap-4f, -0x1.e622a4p-7f);
  return kfi_cpu_with_sign_f32(kfi_cpu_expm1_neg_lp(-t * q), x);
}
KFI_INLINE double kfi_cpu_erf_f64(double x) { return erf(x); }

/* R(a) = Phi(-a) exp(a^2/2) for 0 <= a <= 14.5. (a + 2) R(a) is nearly flat, and a polynomial in y = (a - 2)/(a + 2):
 * its terms cancel less than those of R itself. Relative error 2^-25. */
KFI_INLINE float kfi_cpu_mills_f32(float a) {
  const float q = 1.0f / (a + 2.0f), y = (a - 2.0f) * q, y2 = y * y, y4 = y2 * y2;
  const float low = kfi_cpu_poly4_f32(y, y2, 0x1.5845dcp-1f, -0x1.535baep-2f, 0x1.d7d500p-6f, 0x1.2ccef6p-5f);
  const float mid = kfi_cpu_poly4_f32(y, y2, -0x1.fa4680p-12f, -0x1.b9f530p-8f, -0x1.ef55bep-10f, 0x1.c806fap-11f);
  const float high = kfi_cpu_fma_f32(y2, -0x1.26454cp-14f, kfi_cpu_fma_f32(y, 0x1.52888ep-15f, 0x1.786cf2p-11f));
  return q * kfi_cpu_fma_f32(y4, kfi_cpu_fma_f32(y4, high, mid), low);
}
/* a ratio for the lp forms; relative error 2^-15 */
KFI_INLINE float kfi_cpu_mills_lp(float a) {
  const float p = kfi_cpu_fma_f32(a, kfi_cpu_fma_f32(a, 0.0628892061f, 0.279130184f), 0.50001256f);
  const float q = kfi_cpu_fma_f32(a, kfi_cpu_fma_f32(a, 0.157472111f, 0.704610926f), 1.35692109f);
  return p / kfi_cpu_fma_f32(a, q, 1.0f);
}
/* 2^64 w exp(-a^2/2) for 0 <= a <= 14.5. Rounding a^2 alone would cost up to 50 ulp: its lost bits join r. The factor is
 * taken back where the result is added to something: a subnormal product by itself costs some processors 100 cycles. */
KFI_INLINE float kfi_cpu_gauss_up_f32(float w, float a) {
  const float a2 = a * a, t = kfi_cpu_exp_t(-0.5f * a2, KFI_CPU_ROUND_F32);
  const float r = kfi_cpu_exp_r(-0.5f * a2, t - KFI_CPU_ROUND_F32);
  const float q = kfi_cpu_expm1_poly(kfi_cpu_fma_f32(kfi_cpu_square_rest(a, a2), -0.5f, r));
  return kfi_cpu_exp_scale_up(kfi_cpu_fma_f32(w, q, w), t);
}
KFI_INLINE float kfi_cpu_gauss_f32(float w, float a) { return kfi_cpu_gauss_up_f32(w, a) * 0x1p-64f; }
KFI_INLINE float kfi_cpu_gauss_up_lp(float w, float a) {
  const float magic = KFI_CPU_ROUND_F32 + 64, a2 = a * a;
  const float t = kfi_cpu_fma_f32(a2, -0.721347520f /* -1/(2 ln 2) */, magic);
  const float r = kfi_cpu_fma_f32(a2, -0.721347520f, magic - t);
  return w * kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(kfi_cpu_exp2_poly_lp(r)) + (kfi_cpu_bits_f32(t) << 23));
}
KFI_INLINE float kfi_cpu_gauss_lp(float w, float a) { return kfi_cpu_gauss_up_lp(w, a) * 0x1p-64f; }
#define KFI_CPU_INV_SQRT_2PI 0.398942280401432678
/* From 14.5 on, both tails are below half of the smallest subnormal. */
KFI_INLINE float kfi_cpu_abs_cut_f32(float x) { return kfi_cpu_at_most_f32(kfi_cpu_abs_f32(x), 14.5f); }

KFI_INLINE float kfi_cpu_normpdf_f32(float x) {
  return kfi_cpu_gauss_f32((float)KFI_CPU_INV_SQRT_2PI, kfi_cpu_abs_cut_f32(x));
}
KFI_INLINE float kfi_cpu_normpdf_lp(float x) {
  return kfi_cpu_gauss_lp((float)KFI_CPU_INV_SQRT_2PI, kfi_cpu_abs_cut_f32(x));
}
KFI_INLINE double kfi_cpu_normpdf_f64(double x) { return KFI_CPU_INV_SQRT_2PI * exp(-0.5 * x * x); }

KFI_INLINE float kfi_cpu_normcdf_f32(float x) {
  const float a = kfi_cpu_abs_cut_f32(x), tail = kfi_cpu_gauss_f32(kfi_cpu_mills_f32(a), a);
  return kfi_cpu_select_f32(kfi_cpu_lt_f32(x, 0.0f), tail, 1.0f - tail);
}
KFI_INLINE float kfi_cpu_normcdf_lp(float x) {
  const float a = kfi_cpu_abs_cut_f32(x), tail = kfi_cpu_gauss_lp(kfi_cpu_mills_lp(a), a);
  return kfi_cpu_select_f32(kfi_cpu_lt_f32(x, 0.0f), tail, 1.0f - tail);
}
KFI_INLINE double kfi_cpu_normcdf_f64(double x) { return 0.5 * erfc(-x * 0.707106781186547524 /* sqrt(1/2) */); }

/* x Phi(x) = max(x, 0) - |x| Phi(-|x|). x * 0 for negative x keeps -0 and makes NaN of -inf. */
KFI_INLINE float kfi_cpu_gelu_f32(float x) {
  const float a = kfi_cpu_abs_cut_f32(x), tail = kfi_cpu_gauss_up_f32(a * kfi_cpu_mills_f32(a), a);
  return kfi_cpu_fma_f32(tail, -0x1p-64f, kfi_cpu_select_f32(kfi_cpu_lt_f32(x, 0.0f), x * 0.0f, x));
}
KFI_INLINE float kfi_cpu_gelu_lp(float x) {
  const float a = kfi_cpu_clamp_lp(kfi_cpu_abs_f32(x), -1.0f, 14.5f), tail = kfi_cpu_gauss_up_lp(a * kfi_cpu_mills_lp(a), a);
  return kfi_cpu_fma_f32(tail, -0x1p-64f, kfi_cpu_select_f32(kfi_cpu_lt_f32(x, 0.0f), x * 0.0f, x));
}
KFI_INLINE double kfi_cpu_gelu_f64(double x) { return x * kfi_cpu_normcdf_f64(x); }

/* Phi(x) + x phi(x) = T or 1 - T with T = (R(a) - a/sqrt(2 pi)) exp(-a^2/2). x * 0 makes NaN of both infinities, as
 * PyTorch does. The lp form saves only on a^2: R and exp cancel near -0.7518, where the result is zero. */
KFI_INLINE float kfi_cpu_either_tail(float x, float up) { /* up: 2^64 T */
  const uint32_t below = kfi_cpu_lt_f32(x, 0.0f);
  return kfi_cpu_fma_f32(up, kfi_cpu_select_f32(below, 0x1p-64f, -0x1p-64f), kfi_cpu_select_f32(below, 0.0f, 1.0f)) + x * 0.0f;
}
KFI_INLINE float kfi_cpu_gelu_bwd_f32(float x) {
  const float a = kfi_cpu_abs_cut_f32(x);
  const float w = kfi_cpu_fma_f32(a, -(float)KFI_CPU_INV_SQRT_2PI, kfi_cpu_mills_f32(a));
  return kfi_cpu_either_tail(x, kfi_cpu_gauss_up_f32(w, a));
}
KFI_INLINE float kfi_cpu_gelu_bwd_lp(float x) {
  const float a = kfi_cpu_abs_cut_f32(x), e = -0.5f * a * a, t = kfi_cpu_exp_t(e, KFI_CPU_ROUND_F32);
  const float w = kfi_cpu_fma_f32(a, -(float)KFI_CPU_INV_SQRT_2PI, kfi_cpu_mills_f32(a));
  const float q = kfi_cpu_expm1_poly(kfi_cpu_exp_r_lp(e, t - KFI_CPU_ROUND_F32));
  return kfi_cpu_either_tail(x, kfi_cpu_exp_scale_up(kfi_cpu_fma_f32(w, q, w), t));
}
KFI_INLINE double kfi_cpu_gelu_bwd_f64(double x) { return kfi_cpu_normcdf_f64(x) + x * kfi_cpu_normpdf_f64(x); }

/* ---- sin, cos -------------------------------------------------------------------------------------------------- */

/* Reduction after Payne and Hanek, for all of float's range: a = m 2^(16 i) and a 2/pi mod 4 = m (2^(16 i) 2/pi mod 4),
 * the bracket from a table in parts of 29, 29 and 53 bits. m has 24 bits, so the first two products are exact and can
 * each be split into integer and fraction. quarter = 1 turns sin into cos. */
#define KFI_CPU_ROUND_F64 6755399441055744.0 /* 1.5 * 2^52, as KFI_CPU_ROUND_F32 */
KFI_INLINE float kfi_cpu_sincos_f32(float a, uint32_t quarter) {
  static const double part[3][8] = {
      {0x1.45f306ep-1, 0x1.836e4e4p+0, -0x1.b1bbeadp+0, 0x1.529fc27p-4, 0x1.fc2757dp+0, -0x1.505c159p-1,
       0x1.f534ddcp+0},
      {-0x1.b1bbeadp-32, 0x1.054a7f1p-30, -0x1.80f62a1p-30, 0x1.5f47d4dp-34, 0x1.f534ddcp-32, -0x1.911f925p-31,
       0x1.b6c52b3p-33},
      {-0x1.80f62a0b82b2dp-62, -0x1.8a82e0acb223fp-60, 0x1.1f534ddc0db63p-60, 0x1.bb81b6c52b328p-65,
       0x1.b6c52b3278872p-65, 0x1.4acc9e21c8210p-63, 0x1.3c439041fe516p-64}};
  const int32_t e = (int32_t)(kfi_cpu_bits_f32(a) >> 23) - 150; /* a = integer 2^e; inf and NaN: row 6, end as NaN */
  const int64_t i = (e > 0 ? e : 0) >> 4; /* as wide as a double, otherwise the look-up stays scalar */
  const double m = (double)(a * kfi_cpu_from_bits_f32(0x3f800000u - ((uint32_t)i << 27)));
  const double p0 = m * part[0][i], t0 = p0 + KFI_CPU_ROUND_F64, f0 = p0 - (t0 - KFI_CPU_ROUND_F64);
  const double p1 = m * part[1][i], t1 = p1 + KFI_CPU_ROUND_F64, f1 = p1 - (t1 - KFI_CPU_ROUND_F64);
  const double f = f0 + f1, t = f + KFI_CPU_ROUND_F64;
  const uint32_t n = (uint32_t)(kfi_cpu_bits_f64(t0) + kfi_cpu_bits_f64(t1) + kfi_cpu_bits_f64(t)) + quarter;
  const float r = (float)(((f - (t - KFI_CPU_ROUND_F64)) + m * part[2][i]) * 1.57079632679489662 /* pi/2 */);
  const float z = r * r;
  float s = kfi_cpu_fma_f32(z, -0x1.994e34p-13f, 0x1.11076ep-7f);
  s = kfi_cpu_fma_f32(z * r, kfi_cpu_fma_f32(z, s, -0x1.555546p-3f), r);
  float c = kfi_cpu_fma_f32(z, 0x1.99e0ecp-16f, -0x1.6c0c1ap-10f);
  c = kfi_cpu_fma_f32(z * z, kfi_cpu_fma_f32(z, c, 0x1.55554ap-5f), kfi_cpu_fma_f32(z, -0.5f, 1.0f));
  const uint32_t y = kfi_cpu_select_u32(0u - (n & 1u), kfi_cpu_bits_f32(c), kfi_cpu_bits_f32(s));
  return kfi_cpu_from_bits_f32(y ^ ((n & 2u) << 30));
}
KFI_INLINE float kfi_cpu_sin_f32(float x) { /* odd, -0 included */
  const float y = kfi_cpu_sincos_f32(kfi_cpu_abs_f32(x), 0);
  return kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(y) ^ (kfi_cpu_bits_f32(x) & 0x80000000u));
}
KFI_INLINE float kfi_cpu_cos_f32(float x) { return kfi_cpu_sincos_f32(kfi_cpu_abs_f32(x), 1); }
KFI_INLINE float kfi_cpu_sin_lp(float x) { return kfi_cpu_sin_f32(x); }
KFI_INLINE float kfi_cpu_cos_lp(float x) { return kfi_cpu_cos_f32(x); }
KFI_INLINE double kfi_cpu_sin_f64(double x) { return sin(x); }
KFI_INLINE double kfi_cpu_cos_f64(double x) { return cos(x); }

/* Words for which nothing is cheaper. */
KFI_INLINE float kfi_cpu_div_lp(float a, float b) { return a / b; }
KFI_INLINE float kfi_cpu_rcp_lp(float b) { return 1.0f / b; }
KFI_INLINE float kfi_cpu_max_lp(float a, float b) { return kfi_cpu_max_f32(a, b); }
KFI_INLINE float kfi_cpu_min_lp(float a, float b) { return kfi_cpu_min_f32(a, b); }
KFI_INLINE float kfi_cpu_abs_lp(float x) { return kfi_cpu_abs_f32(x); }

/* ---- 2-byte types ---------------------------------------------------------------------------------------------- */

/* memcpy and not a member: under nvcc the types are CUDA's classes. */
KFI_INLINE uint16_t kfi_cpu_bits_f16(kf_f16 x) { uint16_t u; memcpy(&u, (const void *)&x, 2); return u; }
KFI_INLINE uint16_t kfi_cpu_bits_bf16(kf_bf16 x) { uint16_t u; memcpy(&u, (const void *)&x, 2); return u; }
KFI_INLINE kf_f16 kfi_cpu_from_bits_f16(uint16_t u) { kf_f16 x; memcpy((void *)&x, &u, 2); return x; }
KFI_INLINE kf_bf16 kfi_cpu_from_bits_bf16(uint16_t u) { kf_bf16 x; memcpy((void *)&x, &u, 2); return x; }

/* After XNNPACK/FP16 (M. Dukhan): the exponent goes to the top of float's range, a product brings it down, which also
 * makes inf of 31 and quiets NaN; subnormals count from 0.5. No float subnormal occurs: DAZ and FTZ change nothing. */
KFI_INLINE float kfi_cpu_f16_bits_to_f32(uint16_t h) {
  const uint32_t w = (uint32_t)h << 16, w2 = w + w;
  const float normal = kfi_cpu_from_bits_f32((w2 >> 4) + 0x70000000u) * 0x1p-112f;
  const float subnormal = kfi_cpu_from_bits_f32((w2 >> 17) | 0x3f000000u) - 0.5f;
  const uint32_t m = 0u - (uint32_t)((h & 0x7fffu) < 0x0400u);
  return kfi_cpu_from_bits_f32((w & 0x80000000u) |
                               kfi_cpu_select_u32(m, kfi_cpu_bits_f32(subnormal), kfi_cpu_bits_f32(normal)));
}
/* The float addition of a power of two 13 binades up rounds at f16's last bit, to nearest even. */
KFI_INLINE uint16_t kfi_cpu_f32_to_f16_bits(float f) {
  const uint32_t w = kfi_cpu_bits_f32(f), sign = w & 0x80000000u, a = w ^ sign;
  const int32_t e = (int32_t)(a & 0x7f800000u), least = 0x38800000; /* 2^-14 */
  const uint32_t bias = (uint32_t)(e > least ? e : least) + 0x07800000u;
  const float base = (kfi_cpu_from_bits_f32(a) * 0x1p112f) * 0x1p-110f; /* inf from 2^16 on, else 4 |f| */
  const uint32_t b = kfi_cpu_bits_f32(base + kfi_cpu_from_bits_f32(bias));
  const uint32_t finite = ((b >> 13) & 0x7c00u) + (b & 0x0fffu);
  const uint32_t nan = 0u - (uint32_t)((int32_t)a > 0x7f800000);
  return (uint16_t)((sign >> 16) | kfi_cpu_select_u32(nan, 0x7e00u, finite));
}
KFI_INLINE float kfi_cpu_bf16_bits_to_f32(uint16_t h) { return kfi_cpu_from_bits_f32((uint32_t)h << 16); }
KFI_INLINE uint16_t kfi_cpu_f32_to_bf16_bits(float f) {
  const uint32_t w = kfi_cpu_bits_f32(f);
  /* Rounding may make an infinity of a NaN, or carry out of it: its exponent and first bit are set again. */
  return (uint16_t)(((w + 0x7fffu + ((w >> 16) & 1u)) | (kfi_cpu_ne_f32(f, f) & 0x7fc00000u)) >> 16);
}
KFI_INLINE float kfi_cpu_load_f16(kf_f16 x) { return kfi_cpu_f16_bits_to_f32(kfi_cpu_bits_f16(x)); }
KFI_INLINE float kfi_cpu_load_bf16(kf_bf16 x) { return kfi_cpu_bf16_bits_to_f32(kfi_cpu_bits_bf16(x)); }

/* ---- casts: one rounding, integers saturate, NaN -> 0 ------------------------------------------------------------ */

/* 64-bit values are judged by their upper halves: 64-bit compares do not vectorise on SSE2. */
KFI_INLINE uint32_t kfi_cpu_high_f64(double v) { return (uint32_t)(kfi_cpu_bits_f64(v) >> 32); }
KFI_INLINE uint64_t kfi_cpu_widen_mask(uint32_t m) { return (uint64_t)(int64_t)(int32_t)m; }

/* Nearest-even to p fraction bits, as subnormal below 2^emin: adding 1.5 * 2^(e + 52 - p) rounds where a p-bit fraction
 * ends. One rounding from the double; whatever is narrowed next is exact. e stops at 128, where all have overflowed. */
KFI_INLINE double kfi_cpu_round_f64(double v, int32_t p, int32_t emin) {
  const int32_t e = (int32_t)(kfi_cpu_high_f64(v) & 0x7ff00000u), low = (1023 + emin) << 20, high = (1023 + 128) << 20;
  const int32_t c = kfi_cpu_min_i32(kfi_cpu_max_i32(e, low), high) + ((52 - p) << 20) + 0x80000;
  const double magic = kfi_cpu_from_bits_f64((uint64_t)(uint32_t)c << 32);
  const double r = (v + magic) - magic;
  return kfi_cpu_from_bits_f64(kfi_cpu_bits_f64(r) | (kfi_cpu_bits_f64(v) & ~(UINT64_MAX >> 1))); /* -0 */
}
/* int32 to float and int64 to double rounded to odd: exact up to 2^24 and 2^53; beyond, the low bits become one sticky
 * bit. A later rounding to fewer bits is then as if there had been only that one. */
KFI_INLINE float kfi_cpu_odd_i32_f32(int32_t v) {
  const uint32_t u = (uint32_t)v, low = u & 0xffu;
  const uint32_t big = 0u - (uint32_t)(((u + 0x1000000u) >> 25) != 0u);
  return (float)(int32_t)kfi_cpu_select_u32(big, (u ^ low) | ((low + 0xffu) >> 8 << 7), u);
}
/* From halves, since neither SSE2 nor AVX2 converts: 2^52 + low and 2^84 + 2^63 + high 2^32 are built as bits. */
KFI_INLINE double kfi_cpu_join_f64(uint32_t high, uint32_t low) {
  const double l = kfi_cpu_from_bits_f64((uint64_t)low | 0x4330000000000000u);
  const double h = kfi_cpu_from_bits_f64((uint64_t)(high ^ 0x80000000u) | 0x4530000000000000u);
  return (h - (0x1p84 + 0x1p63 + 0x1p52)) + l;
}
KFI_INLINE double kfi_cpu_odd_i64_f64(int64_t v) {
  const uint32_t high = (uint32_t)((uint64_t)v >> 32), low = (uint32_t)(uint64_t)v, lost = low & 0xfffu;
  const uint32_t big = 0u - (uint32_t)(((high + 0x200000u) >> 22) != 0u);
  return kfi_cpu_join_f64(high, kfi_cpu_select_u32(big, (low ^ lost) | ((lost + 0xfffu) >> 12 << 11), low));
}

KFI_INLINE float kfi_cpu_cast_f32_f32(float v) { return v; }
KFI_INLINE double kfi_cpu_cast_f32_f64(float v) { return (double)v; }
KFI_INLINE kf_f16 kfi_cpu_cast_f32_f16(float v) { return kfi_cpu_from_bits_f16(kfi_cpu_f32_to_f16_bits(v)); }
KFI_INLINE kf_bf16 kfi_cpu_cast_f32_bf16(float v) { return kfi_cpu_from_bits_bf16(kfi_cpu_f32_to_bf16_bits(v)); }
KFI_INLINE int32_t kfi_cpu_cast_f32_i32(float v) {
  const uint32_t high = kfi_cpu_ge_f32(v, 0x1p31f), in = kfi_cpu_ge_f32(v, -0x1p31f) & ~high;
  const uint32_t low = kfi_cpu_lt_f32(v, -0x1p31f);
  const uint32_t i = (uint32_t)(int32_t)kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(v) & in); /* 0 where it would not fit */
  return (int32_t)(i | (high & 0x7fffffffu) | (low & 0x80000000u));
}

KFI_INLINE double kfi_cpu_cast_f64_f64(double v) { return v; }
KFI_INLINE float kfi_cpu_cast_f64_f32(double v) { return (float)v; }
KFI_INLINE kf_f16 kfi_cpu_cast_f64_f16(double v) {
  return kfi_cpu_cast_f32_f16((float)kfi_cpu_round_f64(v, 10, -14));
}
KFI_INLINE kf_bf16 kfi_cpu_cast_f64_bf16(double v) {
  return kfi_cpu_from_bits_bf16((uint16_t)(kfi_cpu_bits_f32((float)kfi_cpu_round_f64(v, 7, -126)) >> 16));
}
/* All ones where |v| >= 2^k and v is not NaN. */
KFI_INLINE uint32_t kfi_cpu_beyond_f64(double v, int32_t k) {
  const uint32_t high = kfi_cpu_high_f64(v) & 0x7fffffffu, low = (uint32_t)kfi_cpu_bits_f64(v);
  const uint32_t sticky = high | ((low | (0u - low)) >> 31); /* a NaN may have all its bits in the lower half */
  return (0u - (uint32_t)((int32_t)high >= ((1023 + k) << 20))) & (0u - (uint32_t)((int32_t)sticky <= 0x7ff00000));
}
/* v where it fits, otherwise 0, so that the conversion below is defined. */
KFI_INLINE double kfi_cpu_within_f64(double v, int32_t k) {
  const uint32_t in = 0u - (uint32_t)((int32_t)(kfi_cpu_high_f64(v) & 0x7fffffffu) < ((1023 + k) << 20));
  return kfi_cpu_from_bits_f64(kfi_cpu_bits_f64(v) & kfi_cpu_widen_mask(in));
}
KFI_INLINE int32_t kfi_cpu_cast_f64_i32(double v) {
  const uint32_t limit = 0x7fffffffu + (kfi_cpu_high_f64(v) >> 31);
  return (int32_t)((uint32_t)(int32_t)kfi_cpu_within_f64(v, 31) | (kfi_cpu_beyond_f64(v, 31) & limit));
}
KFI_INLINE int64_t kfi_cpu_cast_f64_i64(double v) {
  const uint64_t limit = (UINT64_MAX >> 1) + (kfi_cpu_bits_f64(v) >> 63);
  const double c = kfi_cpu_within_f64(v, 63);
#if defined(__AVX512DQ__)
  const uint64_t i = (uint64_t)(int64_t)c;
#else /* no conversion instruction: three digits of base 2^32, 2^16, 1, all truncated and all of the sign of v */
  const int32_t d2 = (int32_t)(c * 0x1p-32);
  const double c1 = c - (double)d2 * 0x1p32;
  const int32_t d1 = (int32_t)(c1 * 0x1p-16);
  const int32_t d0 = (int32_t)(c1 - (double)d1 * 0x1p16);
  const uint64_t i = ((uint64_t)(int64_t)d2 << 32) + ((uint64_t)(int64_t)d1 << 16) + (uint64_t)(int64_t)d0;
#endif
  return (int64_t)(i | (kfi_cpu_widen_mask(kfi_cpu_beyond_f64(v, 63)) & limit));
}
KFI_INLINE int64_t kfi_cpu_cast_f32_i64(float v) { return kfi_cpu_cast_f64_i64((double)v); }

KFI_INLINE int32_t kfi_cpu_cast_i32_i32(int32_t v) { return v; }
KFI_INLINE int64_t kfi_cpu_cast_i32_i64(int32_t v) { return v; }
KFI_INLINE float kfi_cpu_cast_i32_f32(int32_t v) { return (float)v; }
KFI_INLINE double kfi_cpu_cast_i32_f64(int32_t v) { return (double)v; }
KFI_INLINE kf_f16 kfi_cpu_cast_i32_f16(int32_t v) { return kfi_cpu_cast_f32_f16(kfi_cpu_odd_i32_f32(v)); }
KFI_INLINE kf_bf16 kfi_cpu_cast_i32_bf16(int32_t v) { return kfi_cpu_cast_f32_bf16(kfi_cpu_odd_i32_f32(v)); }

KFI_INLINE int64_t kfi_cpu_cast_i64_i64(int64_t v) { return v; }
KFI_INLINE int32_t kfi_cpu_cast_i64_i32(int64_t v) {
  const uint32_t high = (uint32_t)((uint64_t)v >> 32), low = (uint32_t)(uint64_t)v;
  const uint32_t fits = 0u - (uint32_t)(high == 0u - (low >> 31));
  return (int32_t)kfi_cpu_select_u32(fits, low, 0x7fffffffu + (high >> 31));
}
KFI_INLINE double kfi_cpu_cast_i64_f64(int64_t v) {
  return kfi_cpu_join_f64((uint32_t)((uint64_t)v >> 32), (uint32_t)(uint64_t)v);
}
KFI_INLINE float kfi_cpu_cast_i64_f32(int64_t v) { return (float)kfi_cpu_odd_i64_f64(v); }
KFI_INLINE kf_f16 kfi_cpu_cast_i64_f16(int64_t v) { return kfi_cpu_cast_f64_f16(kfi_cpu_odd_i64_f64(v)); }
KFI_INLINE kf_bf16 kfi_cpu_cast_i64_bf16(int64_t v) { return kfi_cpu_cast_f64_bf16(kfi_cpu_odd_i64_f64(v)); }

KFI_C_END

#endif
