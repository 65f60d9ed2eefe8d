/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/softmax.h: rows of scores in C: online softmax, and what else a row of scores
   or of accumulators needs, for every vector width that core/matmul compiles. */
#ifndef KF_CORE_ATTENTION_SOFTMAX_H
#define KF_CORE_ATTENTION_SOFTMAX_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/attention/plan.h"
#include "kf/core/math.h"
#include "kf/core/philox_tile.h"

#if KFI_ATTENTION_KEYS > KFI_TILE
#error                                                                                             \
    "kf/core/attention/softmax.h: KFI_ATTENTION_KEYS exceeds KFI_TILE, the words of kfi_random_tile"
#endif

KFI_C_BEGIN

/* Functions for one accumulator type and vector width. Rows of scores begin at the first key of a
   block; `need` [first, last) of its keys are computed. */
typedef struct {
    /* x[count] *= scale; whole KFI_SIMDs are readable and writable. */
    void (*multiply)(void *x, double scale, kf_i64 count);
    /* Sets a row's maximum and sum: of no key, or of the sink, a value of the accumulators' type.
     */
    void (*start)(kfi_cpu_attention_room *room, kf_i64 row, const void *sink);
    /* Sets the scores of keys whose bit is 0 to -inf. */
    void (*hide)(void *s, kfi_cpu_attention_keys need, const int32_t *bits);
    /* Turns scores into exp(score - maximum), 0 outside `own` [first, last); sets the row's
       maximum, sum and factor. */
    void (*row)(void *s, kfi_cpu_attention_keys need, kfi_cpu_attention_keys own,
                const kfi_cpu_attention_room *room, kf_i64 row);
    /* Dropout of weights. number: of the element of the block's first key. */
    void (*drop)(void *s, kfi_cpu_attention_keys need, const kfi_rng *rng, kf_i64 number);
    /* out[count] *= the row's factor. */
    void (*rescale)(void *out, const kfi_cpu_attention_room *room, kf_i64 row, kf_i64 count);
    int (*finite)(const void *v, kf_i64 count);
    /* out[count] += *weight * v, or nothing if the weight is 0. */
    void (*add)(void *out, const void *v, const void *weight, kf_i64 count);
    /* out[count] /= the row's sum, 0 if no key is visible; stores the statistics. */
    void (*finish)(void *out, const kfi_cpu_attention_room *room, kf_i64 row, kf_i64 count,
                   const kfi_cpu_attention *m, kf_i64 index);
} kfi_cpu_attention_softmax;

/* The same for the backward (bwd_row.h). */
typedef struct {
    /* *sum += a . b over count elements. */
    void (*dot)(const void *a, const void *b, kf_i64 count, void *sum);
    /* Turns scores into exp(score - most - log_sum), 0 outside `own` [first, last) and for -inf.
       log_sum: NULL stands for 0. */
    void (*weights)(void *s, kfi_cpu_attention_keys need, kfi_cpu_attention_keys own,
                    const void *most, const void *log_sum);
    /* products = weights * (products - *delta), 0 where the weight is 0. */
    void (*differences)(const void *weights, void *products, kfi_cpu_attention_keys need,
                        const void *delta);
    /* to = gradients * derivatives, 0 where the gradient is 0; whole KFI_SIMDs. */
    void (*chain)(void *to, const void *gradients, const void *derivatives, kf_i64 count);
    /* *sum += gradients . derivatives over count elements; nothing where the gradient is 0. */
    void (*total)(const void *gradients, const void *derivatives, kf_i64 count, void *sum);
    void (*zeros)(void *row, kf_i64 begin, kf_i64 end);
} kfi_cpu_attention_bwd_rows;

/* Converts a mask to 0 and 1. */
KFI_HOST void kfi_attention_widen_u8_f32(const void *from, kf_i64 step, void *to, int count)
{
    for (int j = 0; j < count; ++j)
        ((float *)to)[j] = ((const uint8_t *)from)[j * step] != 0 ? 1.0f : 0.0f;
}
KFI_HOST void kfi_attention_widen_u8_f64(const void *from, kf_i64 step, void *to, int count)
{
    for (int j = 0; j < count; ++j)
        ((double *)to)[j] = ((const uint8_t *)from)[j * step] != 0 ? 1.0 : 0.0;
}

/* Integers in the order of the numbers, and back: a maximum of integers is one instruction. */
KFI_INLINE int32_t kfi_cpu_attention_order_f32(float x)
{
    const int32_t u = (int32_t)kfi_cpu_bits_f32(x);
    return u ^ ((u >> 31) & INT32_MAX);
}
KFI_INLINE float kfi_cpu_attention_ordered_f32(int32_t u)
{
    return kfi_cpu_from_bits_f32((uint32_t)(u ^ ((u >> 31) & INT32_MAX)));
}
KFI_INLINE int64_t kfi_cpu_attention_order_f64(double x)
{
    const int64_t u = (int64_t)kfi_cpu_bits_f64(x);
    return u ^ ((u >> 63) & INT64_MAX);
}
KFI_INLINE double kfi_cpu_attention_ordered_f64(int64_t u)
{
    return kfi_cpu_from_bits_f64((uint64_t)(u ^ ((u >> 63) & INT64_MAX)));
}

/* exp for x <= 0. Below -88 the exponent's field is 0, and so is the power: a sum of at least 1
   does not notice what is smaller than normal numbers. */
KFI_INLINE float kfi_cpu_attention_exp_f32(float x)
{
    const float c = kfi_cpu_at_least_f32(x, -88.0f), t = kfi_cpu_exp_t(c, KFI_CPU_ROUND_F32),
                power = kfi_cpu_exp_scale(t);
    return kfi_cpu_fma_f32(kfi_cpu_expm1_poly(kfi_cpu_exp_r(c, t - KFI_CPU_ROUND_F32)), power,
                           power);
}
KFI_INLINE double kfi_cpu_attention_exp_f64(double x) { return exp(x); }

#if KFI_GEMM_WIDTHS & 1
#define KFI_ATTENTION_BYTES 0
#include "kf/core/attention/softmax_width.h"
#endif
#if KFI_GEMM_WIDTHS & 2
#define KFI_ATTENTION_BYTES 16
#include "kf/core/attention/softmax_width.h"
#endif
#if KFI_GEMM_WIDTHS & 4
#define KFI_ATTENTION_BYTES 32
#include "kf/core/attention/softmax_width.h"
#endif
#if KFI_GEMM_WIDTHS & 8
#define KFI_ATTENTION_BYTES 64
#include "kf/core/attention/softmax_width.h"
#endif

/* The functions that go with a tile: a function that chooses the table `word` by its width. */
#if KFI_GEMM_WIDTHS & 8
#define KFI_ATTENTION_OF_64(word)                                                                  \
    if (bytes == 64) KFI_ATTENTION_OF(word, 64);
#else
#define KFI_ATTENTION_OF_64(word)
#endif
#if KFI_GEMM_WIDTHS & 4
#define KFI_ATTENTION_OF_32(word)                                                                  \
    if (bytes == 32) KFI_ATTENTION_OF(word, 32);
#else
#define KFI_ATTENTION_OF_32(word)
#endif
#if KFI_GEMM_WIDTHS & 2
#define KFI_ATTENTION_OF_16(word)                                                                  \
    if (bytes == 16) KFI_ATTENTION_OF(word, 16);
#else
#define KFI_ATTENTION_OF_16(word)
#endif
#if KFI_GEMM_WIDTHS & 1
#define KFI_ATTENTION_OF_0(word) KFI_ATTENTION_OF(word, 0);
#else
#define KFI_ATTENTION_OF_0(word) return NULL; /* not reached: a tile has one of these widths */
#endif
#define KFI_ATTENTION_OF(word, bytes)                                                              \
    return v->unit == 8 ? kfi_cpu_attention_##word##_f64_##bytes()                                 \
                        : kfi_cpu_attention_##word##_f32_##bytes()
#define KFI_ATTENTION_CHOOSE(word)                                                                 \
    KFI_HOST const kfi_cpu_attention_##word *kfi_cpu_attention_##word##_of(                        \
        const kfi_cpu_gemm_lanes *v)                                                               \
    {                                                                                              \
        const int bytes = v->lanes == 1 ? 0 : v->lanes * v->unit;                                  \
        (void)bytes;                                                                               \
        KFI_ATTENTION_OF_64(word)                                                                  \
        KFI_ATTENTION_OF_32(word)                                                                  \
        KFI_ATTENTION_OF_16(word)                                                                  \
        KFI_ATTENTION_OF_0(word)                                                                   \
    }
KFI_ATTENTION_CHOOSE(softmax)
KFI_ATTENTION_CHOOSE(bwd_rows)
#undef KFI_ATTENTION_CHOOSE
#undef KFI_ATTENTION_OF
#undef KFI_ATTENTION_OF_0
#undef KFI_ATTENTION_OF_16
#undef KFI_ATTENTION_OF_32
#undef KFI_ATTENTION_OF_64

KFI_C_END

#endif
