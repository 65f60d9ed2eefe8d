/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/choose.h: checks and scalars of functions that take the activation as an argument
 * (kf/any). */
#ifndef KF_CORE_CHOOSE_H
#define KF_CORE_CHOOSE_H

#include "kf/core/host.h"

#include <stdint.h>

#include "kf/core/config.h"

/* Number of an activation: KF_ACTIVATION_RELU, ... A user's activation has its own number. */
typedef int32_t kf_activation_t;
/* Tag of the run-time activation: kernels that take the activation as an argument are instantiated
 * with it. */
#define KF_ACT_ANY 0x7fffffff

#ifndef KFI_LAUNCHER_NAMES /* nvcc's device pass needs no more */
#include "kf/core/check.h"
#include "kf/core/limits.h"
#include "kf/core/result.h"

/* Properties of an activation that launchers need. */
typedef struct {
    int id;
    const char *word;
    /* names of its scalars that must not be negative if the gradient is computed from the result
     * (core/check.h), or NULL */
    const char *rising;
    const char *scalar_words; /* names of its scalars, and their bounds (core/check.h) */
    const kfi_bound *bounds;
    int bound_count;
    unsigned char count, reads, by_result,
        /* count: number of scalars; reads: its gradient reads its argument; by_result: its
         * gradient may be computed from the result; ints: it is defined for integers */
        ints;
    double scalars[KFI_MAX_ACT_SCALARS]; /* default values */
} kfi_act_facts;

/* Returns whether a space-separated list contains a word; NULL is the empty list. */
KFI_ONCE int kfi_has_word(const char *words, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = words; at && *at; at = *at ? at + 1 : at) {
        const size_t own = strcspn(at, " ");
        if (own == length && memcmp(at, word, own) == 0) return 1;
        at += own;
    }
    return 0;
}

/* Finds the activation of a call. without: words of the activations that the function excludes;
 * ints: the function computes on integers. */
KFI_ONCE kf_result_t kfi_choose(const kfi_name *name, const kfi_act_facts *all, int count,
                                const char *without, int ints, kf_activation_t id,
                                const kfi_act_facts **chosen)
{
    for (int i = 0; i < count; ++i) {
        if (all[i].id != id || (ints && !all[i].ints) || kfi_has_word(without, all[i].word))
            continue;
        *chosen = &all[i];
        return KF_SUCCESS;
    }
    return kfi_fail(KF_ERROR_UNSUPPORTED, name, "activation",
                    "is %d, expected the number of one that this function has", (int)id);
}

/* Copies the caller's scalars, or the defaults if `given` is NULL, and checks their bounds. */
KFI_ONCE kf_result_t kfi_choose_scalars_f32(const char *pattern, float *to, const kfi_act_facts *of,
                                            const float *given)
{
    const kfi_name name = {pattern, of->word};
    double values[KFI_MAX_ACT_SCALARS] = {0};
    for (int i = 0; i < of->count; ++i) {
        to[i] = given ? given[i] : (float)of->scalars[i];
        values[i] = (double)to[i];
    }
    return kfi_check_scalars(&name, of->scalar_words, of->bounds, of->bound_count, values,
                             sizeof *to);
}
KFI_ONCE kf_result_t kfi_choose_scalars_f64(const char *pattern, double *to,
                                            const kfi_act_facts *of, const double *given)
{
    const kfi_name name = {pattern, of->word};
    for (int i = 0; i < of->count; ++i) to[i] = given ? given[i] : of->scalars[i];
    return kfi_check_scalars(&name, of->scalar_words, of->bounds, of->bound_count, to, sizeof *to);
}
#endif

#endif
