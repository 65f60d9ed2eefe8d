// SPDX-License-Identifier: Apache-2.0
// kf/core/optimizer/optimizer.cuh: a step of an optimizer over lists of tensors in CUDA;
// templates/optimizer/kernel.cuh.j2 is the kernel.
//
// Grid: one block per KFI_MAX_CHUNK elements of a tensor (core/list.cuh), block: 256 threads. A
// thread updates vectors of 16 bytes of the widest list; of tensors that are not aligned to 16
// bytes, element by element. Values that depend on numbers in device memory are computed by the
// block's first thread, in float64, and shared.
#ifndef KF_CORE_OPTIMIZER_OPTIMIZER_CUH
#define KF_CORE_OPTIMIZER_OPTIMIZER_CUH

#include "kf/core/list.cuh"
#include "kf/core/math.cuh"
#include "kf/core/optimizer/once.h"
#include "kf/core/optimizer/random.h"
#include "kf/core/optimizer/slots.h"
#ifdef KFI_HOST_PASS
#include "kf/core/optimizer/check.h"
#endif
#ifndef KFI_SUM_SLOTS
#define KFI_SUM_SLOTS 512 // blocks of a sum over lists
#endif

#define KFI_OPTIMIZER_THREADS 256
#define KFI_OPTIMIZER_BLOCKS 4 // blocks that an SM holds: at most 64 registers per thread

#ifdef KFI_DEVICE_PASS
// Rounds a vector at random. group: Philox counter of the vector's first element. upper: the vector
// is the upper half of the counter's 8 elements.
template <int vec>
KFI_DEVICE void kfi_pack_at_random(kf_bf16 *d, const float *s, const kfi_rng &rng, kfi_u64 group,
                                   bool upper)
{
    static_assert(vec == 4 || vec == 8, "a vector has half of a counter's words, or all");
    kfi_u32 w[4];
    kfi_philox(&rng, group, &w[0], &w[1], &w[2], &w[3]);
#pragma unroll
    for (int e = 0; e < vec; ++e) {
        const kfi_u32 both = vec == 4 && upper ? w[(2 + e / 2) % 4] : w[e / 2];
        const kfi_u32 word = e & 1 ? both >> 16 : both & 0xffffu;
        ((unsigned short *)d)[e] = (unsigned short)kfi_round_at_random(__float_as_uint(s[e]), word);
    }
}
#endif

#ifdef KFI_DEVICE_PASS
// Returns the sum over the block's threads to all of them, in a fixed order.
KFI_DEVICE double kfi_sum_of_block(double *shared, double value)
{
    const int thread = (int)threadIdx.x;
    __syncthreads();
    shared[thread] = value;
    for (int half = KFI_OPTIMIZER_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) shared[thread] += shared[thread + half];
    }
    __syncthreads();
    return shared[0];
}
#endif

#ifdef KFI_DEVICE_PASS
// A CTA's slot of a tensor. part: its first chunk. end: index behind its last element. first,
// count: the slots of the tensor among those of the launch.
struct kfi_list_slot {
    kfi_list_part part;
    kf_i64 end;
    int first, count;
};

KFI_DEVICE void kfi_list_clip(const kfi_list_slot &slot, kfi_list_part *part)
{
    const kf_i64 left = slot.end - part->from;
    part->n = left <= 0 ? 0 : (int)(left < KFI_MAX_CHUNK ? left : KFI_MAX_CHUNK);
}
// Finds the slot of the CTA in a table whose `first` counts slots instead of chunks.
template <int lists, int size>
KFI_DEVICE kfi_list_slot kfi_list_find_slot(const kfi_list_table<lists, size> &table)
{
    kfi_list_slot slot;
    slot.part = kfi_list_find(table);
    slot.first = table.first[slot.part.tensor];
    const kf_i64 length = table.length[slot.part.tensor], one = kfi_slot_length(length);
    slot.count = kfi_slots_of(length);
    slot.part.from = ((int)blockIdx.x - slot.first) * one;
    slot.end = slot.part.from + one < length ? slot.part.from + one : length;
    kfi_list_clip(slot, &slot.part);
    return slot;
}
// Returns the chunk of the slot after `part`; it has no elements behind the last one.
KFI_DEVICE kfi_list_part kfi_list_next(const kfi_list_slot &slot, kfi_list_part part)
{
    part.from += KFI_MAX_CHUNK;
    kfi_list_clip(slot, &part);
    return part;
}
#endif

#ifdef KFI_HOST_PASS
template <int lists, int size>
static KFI_SMALL kf_result_t kfi_sum_launches(const kfi_name *name, const kfi_lists &l,
                                              const void *kernel, double *partials,
                                              cudaStream_t stream)
{
    kfi_list_table<lists, size> table;
    kfi_list_cursor at = {0, 0, 0};
    for (bool first = true;; first = false) {
        int chunks = kfi_list_fill(l, &at, &table);
        if (!chunks) return KF_SUCCESS;
        void *args[] = {&table, &partials, &chunks, &first};
        const kf_result_t result = kfi_launch(name, kernel, dim3(KFI_SUM_SLOTS),
                                              KFI_OPTIMIZER_THREADS, args, stream, false);
        if (result != KF_SUCCESS) return result;
    }
}

// Adds up checked lists, then updates the numbers. kernels: the instances for a small and a large
// table, then the one that adds up the blocks' sums, whose arguments are `args`.
template <int lists>
static KFI_SMALL kf_result_t kfi_launch_sums(const kfi_name *name, const kfi_lists &l,
                                             const void *const *kernels, double *partials,
                                             void **args, cudaStream_t stream)
{
    const kf_result_t result =
        l.count <= kfi_list_room(lists, KFI_LIST_SMALL)
            ? kfi_sum_launches<lists, KFI_LIST_SMALL>(name, l, kernels[0], partials, stream)
            : kfi_sum_launches<lists, KFI_LIST_LARGE>(name, l, kernels[1], partials, stream);
    if (result != KF_SUCCESS) return result;
    return kfi_launch(name, kernels[2], dim3(1), KFI_OPTIMIZER_THREADS, args, stream);
}

// Fills a table from tensor *at on with whole tensors, advances *at and returns the slots.
template <int lists, int size>
static KFI_SMALL int kfi_slots_fill(const kfi_lists &l, kf_i64 *at,
                                    kfi_list_table<lists, size> *table)
{
    int slots = 0;
    table->count = table->number = 0;
    table->skipped = 0;
    for (; *at < l.count && table->count < kfi_list_room(lists, size); ++*at) {
        const int own = kfi_slots_of(l.lengths[*at]);
        if (slots + own > KFI_TENSOR_SLOTS_ALL) break;
        if (own == 0) continue;
        const int i = table->count++;
        for (int list = 0; list < lists; ++list)
            table->data[list][i] = l.data[list] ? l.data[list][*at] : nullptr;
        table->length[i] = l.lengths[*at];
        table->first[i] = slots;
        slots += own;
    }
    return slots;
}

template <int lists, int size>
static KFI_SMALL kf_result_t kfi_pass_launches(const kfi_name *name, const kfi_lists &l,
                                               const void *const *kernels, void **args,
                                               cudaStream_t stream)
{
    kfi_list_table<lists, size> table;
    static_assert(sizeof table <= KF_LIST_BYTES, "a table exceeds its launch's parameters");
    kf_i64 at = 0;
    args[0] = &table;
    for (;;) {
        const int slots = kfi_slots_fill(l, &at, &table);
        if (!slots) return KF_SUCCESS;
        for (int pass = 0; pass < 2; ++pass) {
            const kf_result_t result =
                kfi_launch(name, kernels[2 * pass + size], dim3((unsigned)slots),
                           KFI_OPTIMIZER_THREADS, args, stream);
            if (result != KF_SUCCESS) return result;
        }
    }
}

// Launches both passes over checked lists, table by table. kernels: the instances of the first pass
// for a small and a large table, then those of the second one. args: the kernels' arguments; the
// first one is the table's.
template <int lists>
static KFI_SMALL kf_result_t kfi_launch_passes(const kfi_name *name, const kfi_lists &l,
                                               const void *const *kernels, void **args,
                                               cudaStream_t stream)
{
    return l.count <= kfi_list_room(lists, KFI_LIST_SMALL)
               ? kfi_pass_launches<lists, KFI_LIST_SMALL>(name, l, kernels, args, stream)
               : kfi_pass_launches<lists, KFI_LIST_LARGE>(name, l, kernels, args, stream);
}
#endif

#endif
