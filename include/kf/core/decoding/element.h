/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/decoding/element.h: rows of elements as rows of float or double, in C. */
#ifndef KF_CORE_DECODING_ELEMENT_H
#define KF_CORE_DECODING_ELEMENT_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/tile.h"

KFI_C_BEGIN

/* An element type. Functions convert `count` elements from and to the type of the arithmetic:
 * float, for f64 double. `load` adds zeros up to whole KFI_SIMDs. */
typedef struct {
    void (*load)(const void *from, void *to, kf_i64 count);
    void (*store)(const void *from, void *to, kf_i64 count);
    int size, unit; /* bytes of an element, and of a number */
} kfi_cpu_decoding_element;

#define KFI_DECODING_SHORT(word, stored)                                                           \
    KFI_HOST void kfi_decoding_load_##word(const void *from, void *to, kf_i64 count)               \
    {                                                                                              \
        const stored *const x = (const stored *)from;                                              \
        float *const y = (float *)to;                                                              \
        const kf_i64 whole = count / KFI_SIMD * KFI_SIMD;                                          \
        stored rest[KFI_SIMD];                                                                     \
        for (kf_i64 i = 0; i < whole; i += KFI_SIMD) kfi_widen_##word(x + i, y + i, KFI_SIMD);     \
        if (whole == count) return;                                                                \
        memset((void *)rest, 0, sizeof rest);                                                      \
        memcpy((void *)rest, x + whole, (size_t)(count - whole) * sizeof *x);                      \
        kfi_widen_##word(rest, y + whole, KFI_SIMD);                                               \
    }                                                                                              \
    KFI_HOST void kfi_decoding_store_##word(const void *from, void *to, kf_i64 count)              \
    {                                                                                              \
        const float *const x = (const float *)from;                                                \
        stored *const y = (stored *)to;                                                            \
        const kf_i64 whole = count / KFI_SIMD * KFI_SIMD;                                          \
        float padded[KFI_SIMD];                                                                    \
        stored rest[KFI_SIMD];                                                                     \
        for (kf_i64 i = 0; i < whole; i += KFI_SIMD) kfi_narrow_##word(x + i, y + i, KFI_SIMD);    \
        if (whole == count) return;                                                                \
        memset(padded, 0, sizeof padded);                                                          \
        memcpy(padded, x + whole, (size_t)(count - whole) * sizeof *x);                            \
        kfi_narrow_##word(padded, rest, KFI_SIMD);                                                 \
        memcpy((void *)(y + whole), (const void *)rest, (size_t)(count - whole) * sizeof *y);      \
    }
#define KFI_DECODING_SAME(word, stored)                                                            \
    KFI_HOST void kfi_decoding_load_##word(const void *from, void *to, kf_i64 count)               \
    {                                                                                              \
        const kf_i64 rest = (KFI_SIMD - count % KFI_SIMD) % KFI_SIMD;                              \
        memcpy(to, from, (size_t)count * sizeof(stored));                                          \
        memset((stored *)to + count, 0, (size_t)rest * sizeof(stored));                            \
    }                                                                                              \
    KFI_HOST void kfi_decoding_store_##word(const void *from, void *to, kf_i64 count)              \
    {                                                                                              \
        memcpy(to, from, (size_t)count * sizeof(stored));                                          \
    }
#define KFI_DECODING_ELEMENT(word, stored, real)                                                   \
    KFI_HOST kfi_cpu_decoding_element kfi_decoding_##word(void)                                    \
    {                                                                                              \
        const kfi_cpu_decoding_element found = {kfi_decoding_load_##word,                          \
                                                kfi_decoding_store_##word, (int)sizeof(stored),    \
                                                (int)sizeof(real)};                                \
        return found;                                                                              \
    }
KFI_DECODING_SHORT(f16, kf_f16)
KFI_DECODING_SHORT(bf16, kf_bf16)
KFI_DECODING_SAME(f32, float)
KFI_DECODING_SAME(f64, double)
KFI_DECODING_ELEMENT(f16, kf_f16, float)
KFI_DECODING_ELEMENT(bf16, kf_bf16, float)
KFI_DECODING_ELEMENT(f32, float, float)
KFI_DECODING_ELEMENT(f64, double, double)
#undef KFI_DECODING_SHORT
#undef KFI_DECODING_SAME
#undef KFI_DECODING_ELEMENT

/* Elements with the zeros that `load` adds. */
KFI_HOST kf_i64 kfi_decoding_padded(kf_i64 count)
{
    return (count + KFI_SIMD - 1) / KFI_SIMD * KFI_SIMD;
}

KFI_C_END

#endif
