/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/convert.h: 2-byte types, and conversions between all types, each rounded once. */
#ifndef KF_CORE_CONVERT_H
#define KF_CORE_CONVERT_H

#include "kf/core/host.h"

#include "kf/core/math_bits.h"

KFI_C_BEGIN

/* ---- 2-byte types ---- */

/* Uses memcpy: under nvcc the types are CUDA's classes, without a public member. */
KFI_INLINE uint16_t kfi_cpu_bits_f16(kf_f16 x)
{
    uint16_t u;
    memcpy(&u, (const void *)&x, 2);
    return u;
}
KFI_INLINE uint16_t kfi_cpu_bits_bf16(kf_bf16 x)
{
    uint16_t u;
    memcpy(&u, (const void *)&x, 2);
    return u;
}
KFI_INLINE kf_f16 kfi_cpu_from_bits_f16(uint16_t u)
{
    kf_f16 x;
    memcpy((void *)&x, &u, 2);
    return x;
}
KFI_INLINE kf_bf16 kfi_cpu_from_bits_bf16(uint16_t u)
{
    kf_bf16 x;
    memcpy((void *)&x, &u, 2);
    return x;
}

/* Based on XNNPACK/FP16 (M. Dukhan). The shift puts the exponent at the top of float's range; the
 * product brings it down, maps exponent 31 to inf, and quiets NaN. Subnormals count from 0.5. No
 * float subnormal occurs, so DAZ and FTZ have no effect. */
KFI_INLINE float kfi_cpu_f16_bits_to_f32(uint16_t h)
{
    const uint32_t w = (uint32_t)h << 16, w2 = w + w;
    const float normal = kfi_cpu_from_bits_f32((w2 >> 4) + 0x70000000u) * 0x1p-112f;
    const float subnormal = kfi_cpu_from_bits_f32((w2 >> 17) | 0x3f000000u) - 0.5f;
    const uint32_t m = 0u - (uint32_t)((h & 0x7fffu) < 0x0400u);
    return kfi_cpu_from_bits_f32(
        (w & 0x80000000u) |
        kfi_cpu_select_u32(m, kfi_cpu_bits_f32(subnormal), kfi_cpu_bits_f32(normal)));
}
/* Adding a power of two 13 binades above the value rounds at the last bit of f16, to nearest even.
 */
KFI_INLINE uint16_t kfi_cpu_f32_to_f16_bits(float f)
{
    const uint32_t w = kfi_cpu_bits_f32(f), sign = w & 0x80000000u, a = w ^ sign;
    const int32_t e = (int32_t)(a & 0x7f800000u), least = 0x38800000; /* 2^-14 */
    const uint32_t bias = (uint32_t)(e > least ? e : least) + 0x07800000u;
    const float base =
        (kfi_cpu_from_bits_f32(a) * 0x1p112f) * 0x1p-110f; /* inf from 2^16 on, else 4 |f| */
    const uint32_t b = kfi_cpu_bits_f32(base + kfi_cpu_from_bits_f32(bias));
    const uint32_t finite = ((b >> 13) & 0x7c00u) + (b & 0x0fffu);
    const uint32_t nan = 0u - (uint32_t)((int32_t)a > 0x7f800000);
    return (uint16_t)((sign >> 16) | kfi_cpu_select_u32(nan, 0x7e00u, finite));
}
KFI_INLINE float kfi_cpu_bf16_bits_to_f32(uint16_t h)
{
    return kfi_cpu_from_bits_f32((uint32_t)h << 16);
}
KFI_INLINE uint16_t kfi_cpu_f32_to_bf16_bits(float f)
{
    const uint32_t w = kfi_cpu_bits_f32(f);
    /* Rounding may turn a NaN into an infinity or carry out of it: sets the exponent and the first
     * fraction bit again. */
    return (uint16_t)(((w + 0x7fffu + ((w >> 16) & 1u)) | (kfi_cpu_ne_f32(f, f) & 0x7fc00000u)) >>
                      16);
}
KFI_INLINE float kfi_cpu_load_f16(kf_f16 x) { return kfi_cpu_f16_bits_to_f32(kfi_cpu_bits_f16(x)); }
KFI_INLINE float kfi_cpu_load_bf16(kf_bf16 x)
{
    return kfi_cpu_bf16_bits_to_f32(kfi_cpu_bits_bf16(x));
}

/* ---- casts: one rounding, integers saturate, NaN becomes 0 ---- */

/* 64-bit compares do not vectorise on SSE2: the upper halves decide. */
KFI_INLINE uint32_t kfi_cpu_high_f64(double v) { return (uint32_t)(kfi_cpu_bits_f64(v) >> 32); }
KFI_INLINE uint64_t kfi_cpu_widen_mask(uint32_t m) { return (uint64_t)(int64_t)(int32_t)m; }

/* Rounds to nearest even at p fraction bits; subnormal below 2^emin. Adding 1.5 * 2^(e + 52 - p)
 * rounds at the end of a p-bit fraction. This is the only rounding: the narrowing that follows is
 * exact. e stops at 128, where every value has overflowed. */
KFI_INLINE double kfi_cpu_round_f64(double v, int32_t p, int32_t emin)
{
    const int32_t e = (int32_t)(kfi_cpu_high_f64(v) & 0x7ff00000u), low = (1023 + emin) << 20,
                  high = (1023 + 128) << 20;
    const int32_t c = kfi_cpu_min_i32(kfi_cpu_max_i32(e, low), high) + ((52 - p) << 20) + 0x80000;
    const double magic = kfi_cpu_from_bits_f64((uint64_t)(uint32_t)c << 32);
    const double r = (v + magic) - magic;
    return kfi_cpu_from_bits_f64(kfi_cpu_bits_f64(r) |
                                 (kfi_cpu_bits_f64(v) & ~(UINT64_MAX >> 1))); /* -0 */
}
/* Round int32 to float and int64 to double, to odd: exact up to 2^24 and 2^53. Beyond, the low bits
 * become one sticky bit. A second rounding to fewer bits then gives the result of a single
 * rounding. */
KFI_INLINE float kfi_cpu_odd_i32_f32(int32_t v)
{
    const uint32_t u = (uint32_t)v, low = u & 0xffu;
    const uint32_t big = 0u - (uint32_t)(((u + 0x1000000u) >> 25) != 0u);
    return (float)(int32_t)kfi_cpu_select_u32(big, (u ^ low) | ((low + 0xffu) >> 8 << 7), u);
}
/* Joins two halves, because neither SSE2 nor AVX2 converts int64: builds 2^52 + low and 2^84 + 2^63
 * + high 2^32 as bits. */
KFI_INLINE double kfi_cpu_join_f64(uint32_t high, uint32_t low)
{
    const double l = kfi_cpu_from_bits_f64((uint64_t)low | 0x4330000000000000u);
    const double h = kfi_cpu_from_bits_f64((uint64_t)(high ^ 0x80000000u) | 0x4530000000000000u);
    return (h - (0x1p84 + 0x1p63 + 0x1p52)) + l;
}
KFI_INLINE double kfi_cpu_odd_i64_f64(int64_t v)
{
    const uint32_t high = (uint32_t)((uint64_t)v >> 32), low = (uint32_t)(uint64_t)v,
                   lost = low & 0xfffu;
    const uint32_t big = 0u - (uint32_t)(((high + 0x200000u) >> 22) != 0u);
    return kfi_cpu_join_f64(
        high, kfi_cpu_select_u32(big, (low ^ lost) | ((lost + 0xfffu) >> 12 << 11), low));
}

KFI_INLINE float kfi_cpu_cast_f32_f32(float v) { return v; }
KFI_INLINE double kfi_cpu_cast_f32_f64(float v) { return (double)v; }
KFI_INLINE kf_f16 kfi_cpu_cast_f32_f16(float v)
{
    return kfi_cpu_from_bits_f16(kfi_cpu_f32_to_f16_bits(v));
}
KFI_INLINE kf_bf16 kfi_cpu_cast_f32_bf16(float v)
{
    return kfi_cpu_from_bits_bf16(kfi_cpu_f32_to_bf16_bits(v));
}
KFI_INLINE int32_t kfi_cpu_cast_f32_i32(float v)
{
    const uint32_t high = kfi_cpu_ge_f32(v, 0x1p31f), in = kfi_cpu_ge_f32(v, -0x1p31f) & ~high;
    const uint32_t low = kfi_cpu_lt_f32(v, -0x1p31f);
    const uint32_t i = (uint32_t)(int32_t)kfi_cpu_from_bits_f32(kfi_cpu_bits_f32(v) &
                                                                in); /* 0 if v is out of range */
    return (int32_t)(i | (high & 0x7fffffffu) | (low & 0x80000000u));
}

/* Conditions: 1 where the value is not 0. */
KFI_INLINE uint8_t kfi_cpu_cast_f32_u8(float v)
{
    return (uint8_t)(kfi_cpu_ne_f32(v, 0.0f) & 1u);
}
KFI_INLINE uint8_t kfi_cpu_cast_f64_u8(double v)
{
    return (uint8_t)(kfi_cpu_ne_f64(v, 0.0) & 1u);
}
KFI_INLINE uint8_t kfi_cpu_cast_i32_u8(int32_t v) { return (uint8_t)(kfi_cpu_ne_i32(v, 0) & 1u); }
KFI_INLINE uint8_t kfi_cpu_cast_i64_u8(int64_t v) { return (uint8_t)(kfi_cpu_ne_i64(v, 0) & 1u); }

KFI_INLINE double kfi_cpu_cast_f64_f64(double v) { return v; }
KFI_INLINE float kfi_cpu_cast_f64_f32(double v) { return (float)v; }
KFI_INLINE kf_f16 kfi_cpu_cast_f64_f16(double v)
{
    return kfi_cpu_cast_f32_f16((float)kfi_cpu_round_f64(v, 10, -14));
}
KFI_INLINE kf_bf16 kfi_cpu_cast_f64_bf16(double v)
{
    return kfi_cpu_from_bits_bf16(
        (uint16_t)(kfi_cpu_bits_f32((float)kfi_cpu_round_f64(v, 7, -126)) >> 16));
}
/* All ones if |v| >= 2^k and v is not NaN. */
KFI_INLINE uint32_t kfi_cpu_beyond_f64(double v, int32_t k)
{
    const uint32_t high = kfi_cpu_high_f64(v) & 0x7fffffffu, low = (uint32_t)kfi_cpu_bits_f64(v);
    const uint32_t sticky =
        /* a NaN may have all its fraction bits in the lower half */
        high | ((low | (0u - low)) >> 31);
    return (0u - (uint32_t)((int32_t)high >= ((1023 + k) << 20))) &
           (0u - (uint32_t)((int32_t)sticky <= 0x7ff00000));
}
/* Returns v if it fits in k bits, otherwise 0, so that the conversion that follows is defined. */
KFI_INLINE double kfi_cpu_within_f64(double v, int32_t k)
{
    const uint32_t in =
        0u - (uint32_t)((int32_t)(kfi_cpu_high_f64(v) & 0x7fffffffu) < ((1023 + k) << 20));
    return kfi_cpu_from_bits_f64(kfi_cpu_bits_f64(v) & kfi_cpu_widen_mask(in));
}
KFI_INLINE int32_t kfi_cpu_cast_f64_i32(double v)
{
    const uint32_t limit = 0x7fffffffu + (kfi_cpu_high_f64(v) >> 31);
    return (int32_t)((uint32_t)(int32_t)kfi_cpu_within_f64(v, 31) |
                     (kfi_cpu_beyond_f64(v, 31) & limit));
}
KFI_INLINE int64_t kfi_cpu_cast_f64_i64(double v)
{
    const uint64_t limit = (UINT64_MAX >> 1) + (kfi_cpu_bits_f64(v) >> 63);
    const double c = kfi_cpu_within_f64(v, 63);
#if defined(__AVX512DQ__)
    const uint64_t i = (uint64_t)(int64_t)c;
#else /* no conversion instruction: three digits of base 2^32, 2^16, 1, all truncated and all of   \
         the sign of v */
    const int32_t d2 = (int32_t)(c * 0x1p-32);
    const double c1 = c - (double)d2 * 0x1p32;
    const int32_t d1 = (int32_t)(c1 * 0x1p-16);
    const int32_t d0 = (int32_t)(c1 - (double)d1 * 0x1p16);
    const uint64_t i =
        ((uint64_t)(int64_t)d2 << 32) + ((uint64_t)(int64_t)d1 << 16) + (uint64_t)(int64_t)d0;
#endif
    return (int64_t)(i | (kfi_cpu_widen_mask(kfi_cpu_beyond_f64(v, 63)) & limit));
}
KFI_INLINE int64_t kfi_cpu_cast_f32_i64(float v) { return kfi_cpu_cast_f64_i64((double)v); }

KFI_INLINE int32_t kfi_cpu_cast_i32_i32(int32_t v) { return v; }
KFI_INLINE int64_t kfi_cpu_cast_i32_i64(int32_t v) { return v; }
KFI_INLINE float kfi_cpu_cast_i32_f32(int32_t v) { return (float)v; }
KFI_INLINE double kfi_cpu_cast_i32_f64(int32_t v) { return (double)v; }
KFI_INLINE kf_f16 kfi_cpu_cast_i32_f16(int32_t v)
{
    return kfi_cpu_cast_f32_f16(kfi_cpu_odd_i32_f32(v));
}
KFI_INLINE kf_bf16 kfi_cpu_cast_i32_bf16(int32_t v)
{
    return kfi_cpu_cast_f32_bf16(kfi_cpu_odd_i32_f32(v));
}

KFI_INLINE int64_t kfi_cpu_cast_i64_i64(int64_t v) { return v; }
KFI_INLINE int32_t kfi_cpu_cast_i64_i32(int64_t v)
{
    const uint32_t high = (uint32_t)((uint64_t)v >> 32), low = (uint32_t)(uint64_t)v;
    const uint32_t fits = 0u - (uint32_t)(high == 0u - (low >> 31));
    return (int32_t)kfi_cpu_select_u32(fits, low, 0x7fffffffu + (high >> 31));
}
KFI_INLINE double kfi_cpu_cast_i64_f64(int64_t v)
{
    return kfi_cpu_join_f64((uint32_t)((uint64_t)v >> 32), (uint32_t)(uint64_t)v);
}
KFI_INLINE float kfi_cpu_cast_i64_f32(int64_t v) { return (float)kfi_cpu_odd_i64_f64(v); }
KFI_INLINE kf_f16 kfi_cpu_cast_i64_f16(int64_t v)
{
    return kfi_cpu_cast_f64_f16(kfi_cpu_odd_i64_f64(v));
}
KFI_INLINE kf_bf16 kfi_cpu_cast_i64_bf16(int64_t v)
{
    return kfi_cpu_cast_f64_bf16(kfi_cpu_odd_i64_f64(v));
}

KFI_C_END

#endif
