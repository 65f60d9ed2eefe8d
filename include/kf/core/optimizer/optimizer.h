/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/optimizer/optimizer.h: loads and stores of optimizers in C. A part of KFI_PART elements
 * is converted to the arithmetic type in L1, updated by a loop of constant length, and converted
 * back. */
#ifndef KF_CORE_OPTIMIZER_OPTIMIZER_H
#define KF_CORE_OPTIMIZER_OPTIMIZER_H

#include "kf/core/host.h"

#include "kf/core/math.h"
#include "kf/core/optimizer/check.h"
#include "kf/core/optimizer/random.h"
#include "kf/core/optimizer/slots.h"
#include "kf/core/tile.h"

KFI_C_BEGIN

/* Load n elements; the rest of the part becomes 0. */
KFI_HOST void kfi_load_part_f32(const float *from, float *to, int n)
{
    for (int j = n; j < KFI_PART; ++j) to[j] = 0.0f;
    memcpy(to, from, (size_t)n * sizeof *to);
}
KFI_HOST void kfi_load_part_f64(const double *from, double *to, int n)
{
    for (int j = n; j < KFI_PART; ++j) to[j] = 0.0;
    memcpy(to, from, (size_t)n * sizeof *to);
}
KFI_HOST void kfi_load_part_f16(const kf_f16 *from, float *to, int n)
{
    kf_f16 part[KFI_PART];
    if (n == KFI_PART) {
        kfi_widen_f16(from, to, KFI_PART);
        return;
    }
    kfi_zero(part, sizeof part);
    memcpy((void *)part, (const void *)from, (size_t)n * sizeof *part);
    kfi_widen_f16(part, to, KFI_PART);
}
KFI_HOST void kfi_load_part_bf16(const kf_bf16 *from, float *to, int n)
{
    kf_bf16 part[KFI_PART];
    if (n == KFI_PART) {
        kfi_widen_bf16(from, to, KFI_PART);
        return;
    }
    kfi_zero(part, sizeof part);
    memcpy((void *)part, (const void *)from, (size_t)n * sizeof *part);
    kfi_widen_bf16(part, to, KFI_PART);
}

/* Store n elements of a part. */
KFI_HOST void kfi_store_part_f32(const float *from, float *to, int n)
{
    memcpy(to, from, (size_t)n * sizeof *to);
}
KFI_HOST void kfi_store_part_f64(const double *from, double *to, int n)
{
    memcpy(to, from, (size_t)n * sizeof *to);
}
KFI_HOST void kfi_store_part_f16(const float *from, kf_f16 *to, int n)
{
    kf_f16 part[KFI_PART];
    if (n == KFI_PART) {
        kfi_narrow_f16(from, to, KFI_PART);
        return;
    }
    kfi_narrow_f16(from, part, KFI_PART);
    memcpy((void *)to, (const void *)part, (size_t)n * sizeof *part);
}
KFI_HOST void kfi_store_part_bf16(const float *from, kf_bf16 *to, int n)
{
    kf_bf16 part[KFI_PART];
    if (n == KFI_PART) {
        kfi_narrow_bf16(from, to, KFI_PART);
        return;
    }
    kfi_narrow_bf16(from, part, KFI_PART);
    memcpy((void *)to, (const void *)part, (size_t)n * sizeof *part);
}

/* Stores n elements of a part, rounded at random. group: Philox counter of the first element. */
KFI_HOST void kfi_store_part_at_random(const float *from, kf_bf16 *to, int n, const kfi_rng *rng,
                                       kfi_u64 group)
{
    kf_bf16 part[KFI_PART];
    for (int j = 0; j < KFI_PART; j += 8, ++group) {
        kfi_u32 w[4];
        kfi_philox(rng, group, w, w + 1, w + 2, w + 3);
        for (int e = 0; e < 8; ++e) {
            const kfi_u32 word = w[e / 2] >> 16 * (e & 1) & 0xffffu;
            const kfi_u32 bits = kfi_round_at_random(kfi_cpu_bits_f32(from[j + e]), word);
            part[j + e] = kfi_cpu_from_bits_bf16((uint16_t)bits);
        }
    }
    memcpy((void *)to, (const void *)part, (size_t)n * sizeof *part);
}

/* Values of a call and random state, for the loop over a chunk. */
typedef struct {
    const void *values;
    kfi_rng random;
} kfi_random_values;

/* ---- sums over lists: task i adds up chunks i, i + KFI_SUM_SLOTS, ... in order */

typedef struct {
    kfi_list_window window;
    double *partials; /* KFI_SUM_SLOTS per sum */
    void (*add)(const kfi_list_window *w, kf_i64 chunk, double *to);
} kfi_list_sum;

KFI_HOST void kfi_sum_slot(void *context, kf_i64 slot)
{
    const kfi_list_sum *const s = (const kfi_list_sum *)context;
    for (kf_i64 chunk = slot; chunk < s->window.first[s->window.count]; chunk += KFI_SUM_SLOTS)
        s->add(&s->window, chunk, s->partials + slot);
}
/* Returns the sum of the first n terms of a part, in 8 interleaved sums. */
KFI_HOST double kfi_sum_of_part(const double *terms, int n)
{
    double sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int j = 0; j < n; ++j) sums[j & 7] += terms[j];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}
/* Adds up lists with `total` elements. sums: their number, at most; found: receives them. */
KFI_HOST void kfi_sum_lists(const kfi_lists *l, kf_i64 total, double *partials, int sums,
                            double *found, void (*add)(const kfi_list_window *, kf_i64, double *))
{
    kfi_list_sum s = {{l, NULL, 0, {0}, 0, 0}, partials, add};
    for (int i = 0; i < sums * KFI_SUM_SLOTS; ++i) partials[i] = 0.0;
    while (kfi_list_advance(&s.window))
        kfi_parallel(KFI_SUM_SLOTS, kfi_sum_slot, &s, total >= KF_OMP_MIN);
    for (int i = 0; i < sums; ++i) {
        found[i] = 0.0;
        for (int slot = 0; slot < KFI_SUM_SLOTS; ++slot)
            found[i] += partials[i * KFI_SUM_SLOTS + slot];
    }
}

/* ---- two passes over slots: sums over each tensor, then updates that read them */

/* Whole tensors with up to KFI_TENSOR_SLOTS_ALL slots; window.first counts slots. values: those of
 * the call. numbers: float64 numbers that values of tensors read. */
typedef struct {
    kfi_list_window window;
    double *partials; /* KFI_TENSOR_SLOTS_ALL per sum */
    const void *values;
    const double *numbers;
} kfi_tensor_slots;

/* A slot: its first chunk, and the index behind its last element. first, count: the slots of its
 * tensor. */
typedef struct {
    kfi_list_chunk chunk;
    kf_i64 end, first, count;
} kfi_tensor_slot;

KFI_HOST void kfi_slot_clip(kfi_tensor_slot *s)
{
    const kf_i64 left = s->end - s->chunk.from;
    s->chunk.n = left < KFI_MAX_CHUNK ? left : KFI_MAX_CHUNK;
}
KFI_HOST kfi_tensor_slot kfi_slot_of(const kfi_tensor_slots *of, kf_i64 slot)
{
    const kfi_list_window *const w = &of->window;
    const int i = kfi_list_search(w->first, w->count, slot);
    const kf_i64 length = w->lists->lengths[w->from + i], one = kfi_slot_length(length);
    kfi_tensor_slot s;
    s.first = w->first[i];
    s.count = w->first[i + 1] - s.first;
    s.chunk.tensor = w->from + i;
    s.chunk.from = (slot - s.first) * one;
    s.end = s.chunk.from + one < length ? s.chunk.from + one : length;
    kfi_slot_clip(&s);
    return s;
}
/* Moves to the slot's next chunk, which has no elements behind the last one. */
KFI_HOST void kfi_slot_advance(kfi_tensor_slot *s)
{
    s->chunk.from += KFI_MAX_CHUNK;
    kfi_slot_clip(s);
}
/* Returns the sum over a tensor. partials: those of one sum. */
KFI_HOST double kfi_sum_of_tensor(const double *partials, const kfi_tensor_slot *s)
{
    double sum = 0.0;
    for (kf_i64 i = s->first; i < s->first + s->count; ++i) sum += partials[i];
    return sum;
}
/* Moves the window to the next tensors; false if there are none. */
KFI_HOST int kfi_slots_next(kfi_tensor_slots *s)
{
    kfi_list_window *const w = &s->window;
    w->from += w->count;
    for (w->count = 0; w->count < KFI_LIST_WINDOW && w->from + w->count < w->lists->count;
         ++w->count) {
        const int own = kfi_slots_of(w->lists->lengths[w->from + w->count]);
        if (w->first[w->count] + own > KFI_TENSOR_SLOTS_ALL) break;
        w->first[w->count + 1] = w->first[w->count] + own;
    }
    return w->count > 0;
}
/* Calls first(s, slot), then last(s, slot), for the slots of all tensors, on all threads. total:
 * the sum of the lengths. */
KFI_HOST void kfi_each_slot(kfi_tensor_slots *s, kf_i64 total, void (*first)(void *, kf_i64),
                            void (*last)(void *, kf_i64))
{
    while (kfi_slots_next(s)) {
        kfi_parallel(s->window.first[s->window.count], first, s, total >= KF_OMP_MIN);
        kfi_parallel(s->window.first[s->window.count], last, s, total >= KF_OMP_MIN);
    }
}

KFI_C_END

#endif
