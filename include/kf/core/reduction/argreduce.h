/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/reduction/argreduce.h: argmax and argmin over an axis on the CPU. The result is the index
   of the first of equal elements; NaN precedes all numbers.

   Each lane of a strip keeps its best value and the number of its strip. The lanes of a result are
   combined by value, then by index; parts are combined in order. */
#ifndef KF_CORE_REDUCTION_ARGREDUCE_H
#define KF_CORE_REDUCTION_ARGREDUCE_H

#include "kf/core/host.h"

#include "kf/core/reduction/reduction.h"

KFI_C_BEGIN

/* Functions for an operation (max, min), a type, and the type of masks and strip numbers:
   - replaces: true if b, which is later in the axis, replaces a;
   - unit: combines a unit's lanes to one value and index per result;
   - join_partials: combines the partial results of all parts. These are stored as the indices of
   all parts, then the values of all parts. */
#define KFI_CPU_ARGREDUCE(word, f, type, mask, worse)                                              \
    KFI_INLINE mask kfi_argreduce_replaces_##word##_##f(type a, type b)                            \
    {                                                                                              \
        return kfi_cpu_eq_##f(a, a) & ~kfi_cpu_##worse##_##f(b, a);                                \
    }                                                                                              \
    KFI_INLINE void kfi_argreduce_unit_##word##_##f(const type *top, const mask *strip,            \
                                                    type *found, kf_i64 *index,                    \
                                                    const kfi_cpu_reduce *m, const kfi_unit *u)    \
    {                                                                                              \
        const int lanes = u->strips > 1 ? u->lanes : u->last;                                      \
        for (int c = 0; c < u->width; ++c) {                                                       \
            found[c] = top[c];                                                                     \
            index[c] = u->begin + (kf_i64)strip[c] * m->down;                                      \
            for (int k = 1, j = c + u->width; j < lanes; ++k, j += u->width) {                     \
                const kf_i64 at = u->begin + (kf_i64)strip[j] * m->down + k;                       \
                const int same = top[j] == found[c] || (top[j] != top[j] && found[c] != found[c]); \
                if (same ? at < index[c]                                                           \
                         : kfi_argreduce_replaces_##word##_##f(found[c], top[j]) != 0) {           \
                    found[c] = top[j];                                                             \
                    index[c] = at;                                                                 \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    KFI_HOST void kfi_argreduce_join_partials_##word##_##f(void *traverse)                         \
    {                                                                                              \
        const kfi_cpu_reduce *const m = (const kfi_cpu_reduce *)traverse;                          \
        const kf_i64 *const indices = (const kf_i64 *)(const void *)m->partial;                    \
        const type *const values = (const type *)(const void *)(indices + m->parts * m->results);  \
        kf_i64 *const index = (kf_i64 *)(void *)m->done;                                           \
        type *const found = (type *)(void *)(index + m->results);                                  \
        for (kf_i64 i = 0; i < m->results; ++i) {                                                  \
            found[i] = values[i];                                                                  \
            index[i] = indices[i];                                                                 \
            for (kf_i64 k = i + m->results; k < m->parts * m->results; k += m->results) {          \
                if (kfi_argreduce_replaces_##word##_##f(found[i], values[k]) == 0) {               \
                    continue;                                                                      \
                }                                                                                  \
                found[i] = values[k];                                                              \
                index[i] = indices[k];                                                             \
            }                                                                                      \
        }                                                                                          \
    }
KFI_CPU_ARGREDUCE(max, f32, float, uint32_t, le)
KFI_CPU_ARGREDUCE(max, f64, double, uint64_t, le)
KFI_CPU_ARGREDUCE(min, f32, float, uint32_t, ge)
KFI_CPU_ARGREDUCE(min, f64, double, uint64_t, ge)

#define KFI_CPU_ARGREDUCE_PARTIALS(f, type)                                                        \
    KFI_INLINE void kfi_argreduce_store_partial_##f(const type *found, const kf_i64 *index,        \
                                                    const kfi_cpu_reduce *m, const kfi_unit *u)    \
    {                                                                                              \
        kf_i64 *const indices = (kf_i64 *)(void *)m->partial;                                      \
        type *const values = (type *)(void *)(indices + m->parts * m->results);                    \
        memcpy(indices + u->part * m->results + u->result, index,                                  \
               (size_t)u->width * sizeof *index);                                                  \
        memcpy(values + u->part * m->results + u->result, found,                                   \
               (size_t)u->width * sizeof *found);                                                  \
    }                                                                                              \
    KFI_INLINE void kfi_argreduce_load_result_##f(type *found, kf_i64 *index,                      \
                                                  const kfi_cpu_reduce *m, const kfi_unit *u)      \
    {                                                                                              \
        const kf_i64 *const indices = (const kf_i64 *)(const void *)m->done;                       \
        memcpy(index, indices + u->result, (size_t)u->width * sizeof *index);                      \
        memcpy(found, (const type *)(const void *)(indices + m->results) + u->result,              \
               (size_t)u->width * sizeof *found);                                                  \
    }
KFI_CPU_ARGREDUCE_PARTIALS(f32, float)
KFI_CPU_ARGREDUCE_PARTIALS(f64, double)

KFI_C_END

#endif
