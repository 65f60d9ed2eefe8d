/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/choose.h: what functions whose activation is an argument (kf/any) do with its number and
 * its scalars. */
#ifndef KF_CORE_CHOOSE_H
#define KF_CORE_CHOOSE_H

#include "kf/core/host.h"

#include <stdint.h>

#include "kf/core/limits.h"
#include "kf/core/result.h"

/* An activation by its number: KF_ACTIVATION_RELU, ..., users' own are numbers of their own. */
typedef int32_t kf_activation_t;
/* The number of none: kernels whose activation is an argument are instantiated with it. */
#define KF_ACT_ANY 0x7fffffff

/* What launchers ask of an activation. */
typedef struct {
    int id;
    const char *word;
    const char *rising; /* its scalars that must not be negative where the gradient is by the result
                           (core/check.h), or NULL */
    unsigned char count, reads, by_result,
        ints; /* scalars; whether its gradient reads its argument; may be by the result; is of
                 integers too */
    double scalars[KFI_MAX_ACT_SCALARS]; /* their defaults */
} kfi_act_facts;

/* Whether a list like "none relu" has a word; NULL has none. */
KFI_ONCE int kfi_lists(const char *words, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = words; at && *at; at = *at ? at + 1 : at) {
        const size_t own = strcspn(at, " ");
        if (own == length && memcmp(at, word, own) == 0) return 1;
        at += own;
    }
    return 0;
}

/* The activation of a call. without: the words of those that the function does not have; ints: it
 * is of integers. */
KFI_ONCE kf_result_t kfi_choose(const kfi_name *name, const kfi_act_facts *all, int count,
                                const char *without, int ints, kf_activation_t id,
                                const kfi_act_facts **chosen)
{
    for (int i = 0; i < count; ++i) {
        if (all[i].id != id || (ints && !all[i].ints) || kfi_lists(without, all[i].word)) continue;
        *chosen = &all[i];
        return KF_SUCCESS;
    }
    return kfi_fail(KF_ERROR_UNSUPPORTED, name, "activation",
                    "is %d, expected the number of one that this function has", (int)id);
}

/* Its scalars as the caller gave them, NULL: their defaults. */
KFI_ONCE void kfi_choose_scalars_f32(float *to, const kfi_act_facts *of, const float *given)
{
    for (int i = 0; i < of->count; ++i) to[i] = given ? given[i] : (float)of->scalars[i];
}
KFI_ONCE void kfi_choose_scalars_f64(double *to, const kfi_act_facts *of, const double *given)
{
    for (int i = 0; i < of->count; ++i) to[i] = given ? given[i] : of->scalars[i];
}

#endif
