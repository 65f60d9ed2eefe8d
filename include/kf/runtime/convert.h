/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/convert.h: converts arrays between dtypes on the CPU. Each element is rounded once, to
 * nearest even. Conversion to integers truncates and saturates, and NaN becomes 0. */
#ifndef KF_RUNTIME_CONVERT_H
#define KF_RUNTIME_CONVERT_H

#include "kf/runtime/state.h"

#define KFI_RT_RUN 256

/* ---- 2-byte floats as bits */

static float kfi_rt_from_bits(uint32_t bits)
{
    float x;
    return memcpy(&x, &bits, 4), x;
}
static uint32_t kfi_rt_bits(float x)
{
    uint32_t bits;
    return memcpy(&bits, &x, 4), bits;
}
static float kfi_rt_from_bf16(uint16_t h) { return kfi_rt_from_bits((uint32_t)h << 16); }
static float kfi_rt_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return kfi_rt_from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400) return kfi_rt_from_bits(sign | ((rest + (112u << 10)) << 13));
    const float x = (float)rest * 0x1p-24f; /* subnormal: exact */
    return sign ? -x : x;
}
static uint16_t kfi_rt_to_bf16(float x)
{
    const uint32_t b = kfi_rt_bits(x);
    if ((b & 0x7fffffff) > 0x7f800000) return (uint16_t)(b >> 16 | 0x40); /* NaN, quiet */
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
static uint16_t kfi_rt_to_f16(float x)
{
    const uint32_t b = kfi_rt_bits(x), sign = b >> 16 & 0x8000, rest = b & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and above */
    if (rest >= 0x38800000)
        return (uint16_t)(sign | ((rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13));
    if (rest < 0x33000000) return (uint16_t)sign; /* below 2^-25 */
    const uint32_t shift = 126 - (rest >> 23),
                   m = (rest & 0x7fffff) | 0x800000; /* units of 2^-24: m >> shift */
    const uint32_t whole = m >> shift, cut = m & ((1u << shift) - 1), tie = 1u << (shift - 1);
    return (uint16_t)(sign | (whole + (cut > tie || (cut == tie && (whole & 1)))));
}
/* Rounds to odd: truncates, and sets the last bit if anything was cut off. The result then rounds
 * to 8 or 11 bits as the double does. */
static float kfi_rt_odd_f64(double x)
{
    float f = (float)x;
    if (!(x - x == 0) || (double)f == x) return f;
    uint32_t b = kfi_rt_bits(f);
    if ((f < 0 ? -(double)f : (double)f) > (x < 0 ? -x : x))
        --b; /* rounded away from zero: steps back; infinity becomes the largest float */
    return kfi_rt_from_bits(b | 1);
}
static float kfi_rt_odd_i64(int64_t x)
{
    uint64_t m = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    int shift = 0;
    for (; m >= (uint64_t)1 << 24; ++shift) m = m >> 1 | (m & 1);
    float f = (float)m;
    for (; shift > 0; --shift) f *= 2;
    return x < 0 ? -f : f;
}

/* ---- conversion through the widest type of a kind: float for up to 4 bytes, others unchanged */

enum { KFI_RT_AS_FLOAT, KFI_RT_AS_DOUBLE, KFI_RT_AS_INTEGER };
typedef struct {
    int as;
    union {
        float f[KFI_RT_RUN];
        double d[KFI_RT_RUN];
        int64_t i[KFI_RT_RUN];
    } of;
} kfi_rt_wide;

static void kfi_rt_widen(kfi_rt_wide *w, const void *from, int dtype, int n)
{
    w->as = dtype == KF_F64                                          ? KFI_RT_AS_DOUBLE
            : dtype == KF_F32 || dtype == KF_F16 || dtype == KF_BF16 ? KFI_RT_AS_FLOAT
                                                                     : KFI_RT_AS_INTEGER;
#define KFI_RT_EACH(member, type, value)                                                           \
    for (int j = 0; j < n; ++j) {                                                                  \
        type x;                                                                                    \
        memcpy(&x, (const char *)from + (size_t)j * sizeof x, sizeof x);                           \
        w->of.member[j] = value;                                                                   \
    }
    switch (dtype) {
    case KF_F32: KFI_RT_EACH(f, float, x) break;
    case KF_F16: KFI_RT_EACH(f, uint16_t, kfi_rt_from_f16(x)) break;
    case KF_BF16: KFI_RT_EACH(f, uint16_t, kfi_rt_from_bf16(x)) break;
    case KF_F64: KFI_RT_EACH(d, double, x) break;
    case KF_I32: KFI_RT_EACH(i, int32_t, x) break;
    case KF_I64: KFI_RT_EACH(i, int64_t, x) break;
    default: KFI_RT_EACH(i, uint8_t, x)
    }
#undef KFI_RT_EACH
}
static int64_t kfi_rt_whole(double x, int64_t least, int64_t most)
{
    if (x != x) return 0;
    return x >= (double)most    ? most
           : x <= (double)least ? least
                                : (int64_t)x; /* (double)INT64_MAX is 2^63 */
}
static int64_t kfi_rt_within(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}
static float kfi_rt_narrow_float(const kfi_rt_wide *w, int j) /* for 2-byte floats */
{
    return w->as == KFI_RT_AS_FLOAT    ? w->of.f[j]
           : w->as == KFI_RT_AS_DOUBLE ? kfi_rt_odd_f64(w->of.d[j])
                                       : kfi_rt_odd_i64(w->of.i[j]);
}
static void kfi_rt_narrow(const kfi_rt_wide *w, void *to, int dtype, int n)
{
#define KFI_RT_EACH(type, value)                                                                   \
    for (int j = 0; j < n; ++j) {                                                                  \
        const type x = (type)(value);                                                              \
        memcpy((char *)to + (size_t)j * sizeof x, &x, sizeof x);                                   \
    }
#define KFI_RT_NUMBER(j) (w->as == KFI_RT_AS_FLOAT ? (double)w->of.f[j] : w->of.d[j])
#define KFI_RT_WHOLE(j, least, most)                                                               \
    (w->as == KFI_RT_AS_INTEGER ? kfi_rt_within(w->of.i[j], least, most)                           \
                                : kfi_rt_whole(KFI_RT_NUMBER(j), least, most))
    switch (dtype) {
    case KF_F32:
        KFI_RT_EACH(float, w->as == KFI_RT_AS_FLOAT    ? w->of.f[j]
                           : w->as == KFI_RT_AS_DOUBLE ? (float)w->of.d[j]
                                                       : (float)w->of.i[j])
        break;
    case KF_F64:
        KFI_RT_EACH(double, w->as == KFI_RT_AS_INTEGER ? (double)w->of.i[j] : KFI_RT_NUMBER(j))
        break;
    case KF_F16: KFI_RT_EACH(uint16_t, kfi_rt_to_f16(kfi_rt_narrow_float(w, j))) break;
    case KF_BF16: KFI_RT_EACH(uint16_t, kfi_rt_to_bf16(kfi_rt_narrow_float(w, j))) break;
    case KF_I32: KFI_RT_EACH(int32_t, KFI_RT_WHOLE(j, INT32_MIN, INT32_MAX)) break;
    case KF_I64: KFI_RT_EACH(int64_t, KFI_RT_WHOLE(j, INT64_MIN, INT64_MAX)) break;
    default: KFI_RT_EACH(uint8_t, KFI_RT_WHOLE(j, 0, 255))
    }
#undef KFI_RT_EACH
#undef KFI_RT_NUMBER
#undef KFI_RT_WHOLE
}

/* ---- strided elements, to and from contiguous ones */

#define KFI_RT_APART(body)                                                                         \
    for (int64_t j = 0; j < n; ++j) {                                                              \
        const char *const apart = (const char *)strided + j * stride * (int64_t)width;             \
        char *const side = (char *)together + (size_t)j * width;                                   \
        body                                                                                       \
    }
static void kfi_rt_gather(void *together, const void *strided, int64_t stride, size_t width,
                          int64_t n)
{
    if (stride == 1)
        memcpy(together, strided, (size_t)n * width);
    else if (width == 1)
        KFI_RT_APART(memcpy(side, apart, 1);)
    else if (width == 2)
        KFI_RT_APART(memcpy(side, apart, 2);)
    else if (width == 4)
        KFI_RT_APART(memcpy(side, apart, 4);)
    else
        KFI_RT_APART(memcpy(side, apart, 8);)
}
#undef KFI_RT_APART
static void kfi_rt_scatter(void *strided, const void *together, int64_t stride, size_t width,
                           int64_t n)
{
    if (stride == 1) {
        memcpy(strided, together, (size_t)n * width);
        return;
    }
    for (int64_t j = 0; j < n; ++j)
        memcpy((char *)strided + j * stride * (int64_t)width,
               (const char *)together + (size_t)j * width, width);
}

#endif
