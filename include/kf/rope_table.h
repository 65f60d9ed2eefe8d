/* SPDX-License-Identifier: Apache-2.0 */
/* kf/rope_table.h: the tables that rotary embeddings read, and the frequencies of those that
   are computed, made on the host in float64 and rounded once: include it where they are made, and
   link with -lm. docs/families/rope.md is the manual. */
#ifndef KF_ROPE_TABLE_H
#define KF_ROPE_TABLE_H

#include "kf/core/host.h"

#include <math.h>

#include "kf/core/check.h"

KFI_C_BEGIN

/* Scaling of the frequencies, for more positions than a model was trained on. */
typedef enum {
    KF_ROPE_PLAIN,
    /* Divides all frequencies by the factor. */
    KF_ROPE_LINEAR,
    /* Multiplies the base by factor^(dim / (dim - 2)): keeps the highest frequency, divides the
       lowest by the factor. */
    KF_ROPE_NTK,
    /* Divides the frequency of pairs that rotate fewer than `low` times within the original
       positions, keeps those that rotate more than `high` times; in between interpolates by the
       pair's index. */
    KF_ROPE_YARN,
    /* Like KF_ROPE_YARN, but interpolates by the number of rotations. */
    KF_ROPE_LLAMA3
} kf_rope_scheme_t;

/* All fields zero: no scaling. */
typedef struct {
    kf_rope_scheme_t scheme;
    double factor;    /* ratio of the extended to the original number of positions */
    double original;  /* positions that the model was trained on: yarn and llama3 */
    double low, high; /* rotations; 0: 1 and 32 (yarn), 1 and 4 (llama3) */
    /* Factor of cosines and sines; 0: 0.1 log(factor) + 1 (yarn), 1 (other schemes). */
    double magnitude;
} kf_rope_scaling_t;

#define KFI_TURN 6.283185307179586476925 /* 2 pi */

KFI_HOST double kfi_rope_low(const kf_rope_scaling_t *s) { return s->low > 0 ? s->low : 1; }
KFI_HOST double kfi_rope_high(const kf_rope_scaling_t *s)
{
    return s->high > 0 ? s->high : s->scheme == KF_ROPE_YARN ? 32 : 4;
}

/* Returns the (fractional) index of the pair that rotates `turns` times in the original positions.
 */
KFI_HOST double kfi_rope_pair(const kf_rope_scaling_t *s, double pairs, double base, double turns)
{
    return pairs * log(s->original / (turns * KFI_TURN)) / log(base);
}

/* Returns the weight, 0 to 1, of the frequency divided by the factor. */
KFI_HOST double kfi_rope_share(const kf_rope_scaling_t *s, int64_t pair, int64_t pairs, double base,
                               double frequency)
{
    const double low = kfi_rope_low(s), high = kfi_rope_high(s);
    double share = 1;
    if (s->scheme == KF_ROPE_LLAMA3)
        share = (high - s->original * frequency / KFI_TURN) / (high - low);
    if (s->scheme == KF_ROPE_YARN) {
        const double last = 2 * (double)pairs - 1,
                     first = floor(kfi_rope_pair(s, (double)pairs, base, high));
        const double from = first > 0 ? first : 0,
                     behind = ceil(kfi_rope_pair(s, (double)pairs, base, low)),
                     to = behind < last ? behind : last;
        share = ((double)pair - from) / (to > from ? to - from : 0.001);
    }
    return share < 0 ? 0 : share > 1 ? 1 : share;
}

KFI_HOST double kfi_rope_frequency(const kf_rope_scaling_t *s, int64_t pair, int64_t pairs,
                                   double base)
{
    const double dim = 2 * (double)pairs;
    if (s && s->scheme == KF_ROPE_NTK && pairs > 1) base *= pow(s->factor, dim / (dim - 2));
    const double frequency = pow(base, -(double)pair / (double)pairs);
    if (!s || s->scheme == KF_ROPE_PLAIN || s->scheme == KF_ROPE_NTK) return frequency;
    const double share = kfi_rope_share(s, pair, pairs, base, frequency);
    return frequency * (1 - share) + frequency / s->factor * share;
}

KFI_HOST kf_result_t kfi_check_rope(const kfi_name *name, int64_t positions, int64_t pairs,
                                    double base, const kf_rope_scaling_t *s)
{
    const kf_i64 sizes[] = {positions, pairs};
    const kf_result_t code = kfi_check_sizes(name, "positions pairs", sizes, 2);
    if (code != KF_SUCCESS) return code;
    if (!(base > 1 && base <= 1e300))
        return kfi_fail(KF_ERROR_INVALID_VALUE, name, "base", "is %g, expected more than 1", base);
    if (!s || s->scheme == KF_ROPE_PLAIN) return KF_SUCCESS;
    if ((unsigned)s->scheme > KF_ROPE_LLAMA3)
        return kfi_fail(KF_ERROR_INVALID_VALUE, name, "scaling->scheme",
                        "is %d, expected one of kf_rope_scheme_t", (int)s->scheme);
    if (!(s->factor >= 1 && s->factor <= 1e300))
        return kfi_fail(KF_ERROR_INVALID_VALUE, name, "scaling->factor",
                        "is %g, expected 1 or more", s->factor);
    if (s->scheme < KF_ROPE_YARN) return KF_SUCCESS;
    if (!(s->original > 0 && s->original <= 1e300))
        return kfi_fail(KF_ERROR_INVALID_VALUE, name, "scaling->original",
                        "is %g, expected how many positions the model was trained on", s->original);
    if (!(kfi_rope_low(s) < kfi_rope_high(s)))
        return kfi_fail(KF_ERROR_INVALID_VALUE, name, "scaling->low",
                        "is %g, expected less than high, %g", kfi_rope_low(s), kfi_rope_high(s));
    return KF_SUCCESS;
}

/* Returns the factor of a table's cosines and sines. Pass it as `scale` to functions that compute
 * the angles. */
KFI_HOST double kf_rope_magnitude(const kf_rope_scaling_t *scaling)
{
    if (!scaling || scaling->scheme == KF_ROPE_PLAIN) return 1;
    if (scaling->magnitude > 0) return scaling->magnitude;
    return scaling->scheme == KF_ROPE_YARN ? 0.1 * log(scaling->factor) + 1 : 1;
}

/* Sets frequency [pairs]: pair i rotates by base^(-i / pairs) per position. scaling: NULL for none.
 */
KFI_HOST kf_result_t kf_rope_frequencies_f32(float *frequency, int64_t pairs, double base,
                                             const kf_rope_scaling_t *scaling)
{
    const kfi_name name = {"kf_rope_frequencies_f32", "none"};
    const kf_result_t code = kfi_check_rope(&name, 1, pairs, base, scaling);
    if (code != KF_SUCCESS || pairs == 0) return code;
    if (!frequency)
        return kfi_fail(KF_ERROR_NULL_POINTER, &name, "frequency",
                        "is NULL, expected a pointer to %lld elements", (long long)pairs);
    for (int64_t i = 0; i < pairs; ++i)
        frequency[i] = (float)kfi_rope_frequency(scaling, i, pairs, base);
    return KF_SUCCESS;
}

/* Fills the tables. size: bytes of an element, float or double. */
KFI_HOST kf_result_t kfi_rope_table(const kfi_name *name, void *cosine, void *sine, int size,
                                    int64_t positions, int64_t pairs, double base,
                                    const kf_rope_scaling_t *scaling)
{
    const kf_result_t code = kfi_check_rope(name, positions, pairs, base, scaling);
    if (code != KF_SUCCESS || positions == 0 || pairs == 0) return code;
    if (!cosine || !sine)
        return kfi_fail(KF_ERROR_NULL_POINTER, name, cosine ? "sine" : "cosine",
                        "is NULL, expected a pointer to %lld elements",
                        (long long)(positions * pairs));
    const double magnitude = kf_rope_magnitude(scaling);
    for (int64_t i = 0; i < pairs; ++i) {
        const double frequency = kfi_rope_frequency(scaling, i, pairs, base);
        for (int64_t at = 0; at < positions; ++at) {
            const double across = cos((double)at * frequency) * magnitude,
                         up = sin((double)at * frequency) * magnitude;
            if (size == (int)sizeof(double)) {
                ((double *)cosine)[at * pairs + i] = across;
                ((double *)sine)[at * pairs + i] = up;
            } else {
                ((float *)cosine)[at * pairs + i] = (float)across;
                ((float *)sine)[at * pairs + i] = (float)up;
            }
        }
    }
    return KF_SUCCESS;
}

/* Sets cosine and sine [positions, pairs] of position * frequency, for rope and its variants. */
KFI_HOST kf_result_t kf_rope_table_f32(float *cosine, float *sine, int64_t positions, int64_t pairs,
                                       double base, const kf_rope_scaling_t *scaling)
{
    const kfi_name name = {"kf_rope_table_f32", "none"};
    return kfi_rope_table(&name, cosine, sine, (int)sizeof *cosine, positions, pairs, base,
                          scaling);
}

/* Like kf_rope_table_f32, for functions of doubles. */
KFI_HOST kf_result_t kf_rope_table_f64(double *cosine, double *sine, int64_t positions,
                                       int64_t pairs, double base, const kf_rope_scaling_t *scaling)
{
    const kfi_name name = {"kf_rope_table_f64", "none"};
    return kfi_rope_table(&name, cosine, sine, (int)sizeof *cosine, positions, pairs, base,
                          scaling);
}

#undef KFI_TURN

KFI_C_END

#endif
