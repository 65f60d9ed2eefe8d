/* SPDX-License-Identifier: Apache-2.0 */
/* kf/rope_table.h: the tables that rotary embeddings read, and the frequencies of those that
   are computed, made on the host in float64 and rounded once: include it where they are made, and
   link with -lm. docs/families/pairs.md is the manual. */
#ifndef KF_ROPE_TABLE_H
#define KF_ROPE_TABLE_H

#include "kf/core/host.h"

#include <math.h>

#include "kf/core/check.h"

KFI_C_BEGIN

/* How frequencies are changed for more positions than a model was trained on. */
typedef enum {
    KF_ROPE_PLAIN,
    KF_ROPE_LINEAR, /* all of them divided by the factor */
    KF_ROPE_NTK,    /* the base times factor^(dim / (dim - 2)): the highest stays, the lowest is
                       divided by the factor */
    KF_ROPE_YARN, /* divided where a pair turns less than `low` times within the original positions,
                     not where it does more than `high` times */
    KF_ROPE_LLAMA3 /* the same, between the two by turns and not by the pair's number */
} kf_rope_scheme_t;

/* All zero: none. */
typedef struct {
    kf_rope_scheme_t scheme;
    double factor;    /* how many times as many positions */
    double original;  /* positions that the model was trained on: yarn and llama3 */
    double low, high; /* turns; 0: 1 and 32 (yarn), 1 and 4 (llama3) */
    double magnitude; /* of cosines and sines; 0: 0.1 log(factor) + 1 (yarn), 1 (the others) */
} kf_rope_scaling_t;

#define KFI_TURN 6.283185307179586476925 /* 2 pi */

KFI_HOST double kfi_rope_low(const kf_rope_scaling_t *s) { return s->low > 0 ? s->low : 1; }
KFI_HOST double kfi_rope_high(const kf_rope_scaling_t *s)
{
    return s->high > 0 ? s->high : s->scheme == KF_ROPE_YARN ? 32 : 4;
}

/* The pair, of `pairs`, that turns so many times within the original positions: no whole number. */
KFI_HOST double kfi_rope_pair(const kf_rope_scaling_t *s, double pairs, double base, double turns)
{
    return pairs * log(s->original / (turns * KFI_TURN)) / log(base);
}

/* How much of a frequency is divided by the factor: 0 to 1. */
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

/* What a table's cosines and sines are multiplied with: the argument `scale` of functions that
 * compute them. */
KFI_HOST double kf_rope_magnitude(const kf_rope_scaling_t *scaling)
{
    if (!scaling || scaling->scheme == KF_ROPE_PLAIN) return 1;
    if (scaling->magnitude > 0) return scaling->magnitude;
    return scaling->scheme == KF_ROPE_YARN ? 0.1 * log(scaling->factor) + 1 : 1;
}

/* frequency [pairs]: pair i turns by base^(-i / pairs) a position. scaling: NULL for none. */
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

/* size: of an element of the tables, floats or doubles. */
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

/* cosine, sine [positions, pairs], of position * frequency: what rope and its other forms read. */
KFI_HOST kf_result_t kf_rope_table_f32(float *cosine, float *sine, int64_t positions, int64_t pairs,
                                       double base, const kf_rope_scaling_t *scaling)
{
    const kfi_name name = {"kf_rope_table_f32", "none"};
    return kfi_rope_table(&name, cosine, sine, (int)sizeof *cosine, positions, pairs, base,
                          scaling);
}

/* The same for functions of doubles. */
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
