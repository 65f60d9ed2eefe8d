/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/reduction/argreduce.h: where an axis has its largest or least element, on the CPU: the first of
   equal ones, and NaN before all numbers.

   Each lane of a strip has its own best, and the strip that it is of; the lanes of a result are
   joined by value and place, parts in their order. */
#ifndef KF_CORE_REDUCTION_ARGREDUCE_H
#define KF_CORE_REDUCTION_ARGREDUCE_H

#include "kf/core/host.h"

#include "kf/core/reduction/reduction.h"

KFI_C_BEGIN

/* For a word (max, min), a type, the type of masks and of strips' numbers: whether b, which is
   further along the axis, takes the place of a; of a unit's lanes the best of each result, with its
   place; what parts leave, the places of all ahead of the values of all; and what comes of them. */
#define KFI_CPU_PLACES(word, f, type, mask, worse)                                                 \
    KFI_INLINE mask kfi_takes_##word##_##f(type a, type b)                                         \
    {                                                                                              \
        return kfi_cpu_eq_##f(a, a) & ~kfi_cpu_##worse##_##f(b, a);                                \
    }                                                                                              \
    KFI_INLINE void kfi_place_unit_##word##_##f(const type *top, const mask *turn, type *found,    \
                                                kf_i64 *place, const kfi_cpu_reduce *m,            \
                                                const kfi_unit *u)                                 \
    {                                                                                              \
        const int lanes = u->strips > 1 ? u->lanes : u->last;                                      \
        for (int c = 0; c < u->width; ++c) {                                                       \
            found[c] = top[c];                                                                     \
            place[c] = u->begin + (kf_i64)turn[c] * m->down;                                       \
            for (int k = 1, j = c + u->width; j < lanes; ++k, j += u->width) {                     \
                const kf_i64 at = u->begin + (kf_i64)turn[j] * m->down + k;                        \
                const int same = top[j] == found[c] || (top[j] != top[j] && found[c] != found[c]); \
                if (same ? at < place[c] : kfi_takes_##word##_##f(found[c], top[j]) != 0) {        \
                    found[c] = top[j];                                                             \
                    place[c] = at;                                                                 \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    KFI_HOST void kfi_place_parts_##word##_##f(void *traverse)                                     \
    {                                                                                              \
        const kfi_cpu_reduce *const m = (const kfi_cpu_reduce *)traverse;                          \
        const kf_i64 *const places = (const kf_i64 *)(const void *)m->partial;                     \
        const type *const values = (const type *)(const void *)(places + m->parts * m->results);   \
        kf_i64 *const place = (kf_i64 *)(void *)m->done;                                           \
        type *const found = (type *)(void *)(place + m->results);                                  \
        for (kf_i64 i = 0; i < m->results; ++i) {                                                  \
            found[i] = values[i];                                                                  \
            place[i] = places[i];                                                                  \
            for (kf_i64 k = i + m->results; k < m->parts * m->results; k += m->results) {          \
                if (kfi_takes_##word##_##f(found[i], values[k]) == 0) {                            \
                    continue;                                                                      \
                }                                                                                  \
                found[i] = values[k];                                                              \
                place[i] = places[k];                                                              \
            }                                                                                      \
        }                                                                                          \
    }
KFI_CPU_PLACES(max, f32, float, uint32_t, le)
KFI_CPU_PLACES(max, f64, double, uint64_t, le)
KFI_CPU_PLACES(min, f32, float, uint32_t, ge)
KFI_CPU_PLACES(min, f64, double, uint64_t, ge)

#define KFI_CPU_PLACES_OF_PARTS(f, type)                                                           \
    KFI_INLINE void kfi_place_keep_##f(const type *found, const kf_i64 *place,                     \
                                       const kfi_cpu_reduce *m, const kfi_unit *u)                 \
    {                                                                                              \
        kf_i64 *const places = (kf_i64 *)(void *)m->partial;                                       \
        type *const values = (type *)(void *)(places + m->parts * m->results);                     \
        memcpy(places + u->part * m->results + u->result, place,                                   \
               (size_t)u->width * sizeof *place);                                                  \
        memcpy(values + u->part * m->results + u->result, found,                                   \
               (size_t)u->width * sizeof *found);                                                  \
    }                                                                                              \
    KFI_INLINE void kfi_place_take_##f(type *found, kf_i64 *place, const kfi_cpu_reduce *m,        \
                                       const kfi_unit *u)                                          \
    {                                                                                              \
        const kf_i64 *const places = (const kf_i64 *)(const void *)m->done;                        \
        memcpy(place, places + u->result, (size_t)u->width * sizeof *place);                       \
        memcpy(found, (const type *)(const void *)(places + m->results) + u->result,               \
               (size_t)u->width * sizeof *found);                                                  \
    }
KFI_CPU_PLACES_OF_PARTS(f32, float)
KFI_CPU_PLACES_OF_PARTS(f64, double)

KFI_C_END

#endif
