/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/math_bits.h: checks of the compiler flags that math.h relies on; bits, masks, selects,
 * arithmetic. */
#ifndef KF_CORE_MATH_BITS_H
#define KF_CORE_MATH_BITS_H

#include "kf/core/host.h"

#include "kf/core/config.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kf/core/dtype.h"

/* Refuses flags under which the functions below return wrong numbers. */
#if !defined(__ASSOCIATIVE_MATH__) && defined(__GNUC__) && __GNUC__ < 12 && !defined(__clang__) && \
    !defined(KF_ALLOW_FAST_MATH)
#if defined(__GCC_IEC_559) && __GCC_IEC_559 == 0 /* the only sign of it in an older gcc */
#define KFI_ANY_ORDER 1
#endif
#elif defined(__ASSOCIATIVE_MATH__) && !defined(__clang__)
#define KFI_ANY_ORDER 1
#endif
#if (defined(__FAST_MATH__) || defined(_M_FP_FAST) || __FINITE_MATH_ONLY__ + 0 > 0) &&             \
    !defined(KF_ALLOW_FAST_MATH)
#error "kf: -ffast-math (or its -ffinite-math-only) breaks NaN, infinities and \
the rounding that kf's math relies on; compile without it (-O3 -fno-math-errno \
-fno-trapping-math gains as much), or with -ffast-math -fno-associative-math \
and KF_ALLOW_FAST_MATH defined"
#elif defined(KFI_ANY_ORDER)
#error                                                                                             \
    "kf: sums in any order, as of -fassociative-math, -funsafe-math-optimizations, -ffast-math and \
-Ofast, remove the rounding that kf's math relies on; compile without, or add -fno-associative-math"
#elif defined(__FLT_EVAL_METHOD__)
#if __FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2 ||                                        \
    (__FLT_EVAL_METHOD__ < 0 && !defined(__clang__))
#error "kf: float arithmetic with more digits than a float, as of x87, does not round \
where kf's math relies on it; compile with -msse2 -mfpmath=sse"
#endif
#endif

KFI_C_BEGIN

/* ---- bits, masks, selects ---- */

KFI_INLINE uint32_t kfi_cpu_bits_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
KFI_INLINE uint64_t kfi_cpu_bits_f64(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}
KFI_INLINE float kfi_cpu_from_bits_f32(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
KFI_INLINE double kfi_cpu_from_bits_f64(uint64_t u)
{
    double x;
    memcpy(&x, &u, 8);
    return x;
}

/* Comparisons return 0 or all ones. Both compilers turn minus a truth value into a vector compare.
 * For 64 bits gcc does so from SSE4.2 on; on plain SSE2 the truth value goes through 32 bits. */
#if defined(__SSE2__) && !defined(__SSE4_2__)
#define KFI_CPU_MASK64(c) ((uint64_t)(int64_t)-(int32_t)(c))
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

KFI_INLINE uint32_t kfi_cpu_select_u32(uint32_t m, uint32_t a, uint32_t b)
{
    return (a & m) | (b & ~m);
}
KFI_INLINE uint64_t kfi_cpu_select_u64(uint64_t m, uint64_t a, uint64_t b)
{
    return (a & m) | (b & ~m);
}
KFI_INLINE float kfi_cpu_select_f32(uint32_t m, float a, float b)
{
    return kfi_cpu_from_bits_f32(kfi_cpu_select_u32(m, kfi_cpu_bits_f32(a), kfi_cpu_bits_f32(b)));
}
KFI_INLINE double kfi_cpu_select_f64(uint64_t m, double a, double b)
{
    return kfi_cpu_from_bits_f64(kfi_cpu_select_u64(m, kfi_cpu_bits_f64(a), kfi_cpu_bits_f64(b)));
}
KFI_INLINE int32_t kfi_cpu_select_i32(uint32_t m, int32_t a, int32_t b)
{
    return (int32_t)kfi_cpu_select_u32(m, (uint32_t)a, (uint32_t)b);
}
KFI_INLINE int64_t kfi_cpu_select_i64(uint64_t m, int64_t a, int64_t b)
{
    return (int64_t)kfi_cpu_select_u64(m, (uint64_t)a, (uint64_t)b);
}

/* ---- arithmetic ---- */

/* Integers wrap: computed as unsigned, where overflow is defined. */
KFI_INLINE int32_t kfi_cpu_add_i32(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a + (uint32_t)b);
}
KFI_INLINE int32_t kfi_cpu_sub_i32(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a - (uint32_t)b);
}
KFI_INLINE int32_t kfi_cpu_mul_i32(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a * (uint32_t)b);
}
KFI_INLINE int64_t kfi_cpu_add_i64(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}
KFI_INLINE int64_t kfi_cpu_sub_i64(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a - (uint64_t)b);
}
KFI_INLINE int64_t kfi_cpu_mul_i64(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}
KFI_INLINE int32_t kfi_cpu_max_i32(int32_t a, int32_t b) { return a > b ? a : b; }
KFI_INLINE int32_t kfi_cpu_min_i32(int32_t a, int32_t b) { return a < b ? a : b; }
KFI_INLINE int64_t kfi_cpu_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
KFI_INLINE int64_t kfi_cpu_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* Fuses multiply and add only if the processor has the instruction: a library call would be slow.
 */
KFI_INLINE float kfi_cpu_fma_f32(float a, float b, float c)
{
#if defined(__FP_FAST_FMAF) && defined(__GNUC__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* NaN in either operand gives NaN: (b != b) selects b, and disappears if b is constant; a
 * comparison with NaN in a is false and selects a. */
KFI_INLINE float kfi_cpu_max_f32(float a, float b)
{
    return kfi_cpu_select_f32(kfi_cpu_le_f32(a, b) | kfi_cpu_ne_f32(b, b), b, a);
}
KFI_INLINE float kfi_cpu_min_f32(float a, float b)
{
    return kfi_cpu_select_f32(kfi_cpu_ge_f32(a, b) | kfi_cpu_ne_f32(b, b), b, a);
}
KFI_INLINE double kfi_cpu_max_f64(double a, double b)
{
    return kfi_cpu_select_f64(kfi_cpu_ne_f64(a, a), a,
                              kfi_cpu_select_f64(kfi_cpu_gt_f64(a, b), a, b));
}
KFI_INLINE double kfi_cpu_min_f64(double a, double b)
{
    return kfi_cpu_select_f64(kfi_cpu_ne_f64(a, a), a,
                              kfi_cpu_select_f64(kfi_cpu_lt_f64(a, b), a, b));
}
KFI_INLINE float kfi_cpu_abs_f32(float x)
{
    return kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(x) & 0x7fffffffu);
}
KFI_INLINE double kfi_cpu_abs_f64(double x)
{
    return kfi_cpu_from_bits_f64(kfi_cpu_bits_f64(x) & (UINT64_MAX >> 1));
}
KFI_INLINE float kfi_cpu_div_f32(float a, float b) { return a / b; }
KFI_INLINE double kfi_cpu_div_f64(double a, double b) { return a / b; }
KFI_INLINE float kfi_cpu_rcp_f32(float b) { return 1.0f / b; }
KFI_INLINE double kfi_cpu_rcp_f64(double b) { return 1.0 / b; }

/* Clamps that pass NaN through. */
KFI_INLINE float kfi_cpu_at_least_f32(float x, float lo)
{
    return kfi_cpu_select_f32(kfi_cpu_lt_f32(x, lo), lo, x);
}
KFI_INLINE float kfi_cpu_at_most_f32(float x, float hi)
{
    return kfi_cpu_select_f32(kfi_cpu_gt_f32(x, hi), hi, x);
}
/* Clamps x to lo < 0 and hi > 0 by its bits: two instructions instead of eight for float selects.
 * As int, positive floats are ordered and above all negative ones; as unsigned, negative floats are
 * ordered and above. NaN ends as lo or hi; kfi_cpu_keep_nan_lp restores it. Plain SSE2 has no
 * integer minimum. */
#if defined(__SSE2__) && !defined(__SSE4_1__)
KFI_INLINE float kfi_cpu_clamp_lp(float x, float lo, float hi)
{
    return kfi_cpu_at_most_f32(kfi_cpu_at_least_f32(x, lo), hi);
}
KFI_INLINE float kfi_cpu_keep_nan_lp(float y, float x) { return (void)x, y; }
#else
KFI_INLINE float kfi_cpu_clamp_lp(float x, float lo, float hi)
{
    const uint32_t u =
        (uint32_t)kfi_cpu_min_i32((int32_t)kfi_cpu_bits_f32(x), (int32_t)kfi_cpu_bits_f32(hi));
    return kfi_cpu_from_bits_f32(u < kfi_cpu_bits_f32(lo) ? u : kfi_cpu_bits_f32(lo));
}
KFI_INLINE float kfi_cpu_keep_nan_lp(float y, float x)
{
    return kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(y) | (kfi_cpu_ne_f32(x, x) & 0x7fc00000u));
}
#endif
/* Returns |m| with the sign of s. */
KFI_INLINE float kfi_cpu_with_sign_f32(float m, float s)
{
    return kfi_cpu_from_bits_f32((kfi_cpu_bits_f32(m) & 0x7fffffffu) |
                                 (kfi_cpu_bits_f32(s) & 0x80000000u));
}

KFI_C_END

#endif
