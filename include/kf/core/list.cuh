// SPDX-License-Identifier: Apache-2.0
// kf/core/list.cuh: launches a kernel over lists of tensors. The pointers travel in the launch
// parameters: nothing is copied to the device before, nothing stays alive after, and CUDA graphs
// capture the call.
//
// A launch has a table of up to `tensors` tensors and one CTA per chunk of KFI_MAX_CHUNK elements,
// which finds its tensor by binary search in the table. Longer lists take several launches. Tensors
// without elements are left out.
#ifndef KF_CORE_LIST_CUH
#define KF_CORE_LIST_CUH

#include "kf/core/kernel.cuh"

// A table has KF_LIST_BYTES bytes, out of 32,764 bytes of parameters (4,096 before CUDA 12.1 and
// sm_70); the rest is for the kernel's scalars. A short list uses a small table, whose launch
// copies less.
#define KFI_LIST_SMALL_BYTES 3584
#ifndef KFI_LIST_BLOCKS
#define KFI_LIST_BLOCKS (1 << 30) // CTAs of a launch
#endif

// Tensors of a table: 8 bytes per pointer, 8 for the length, 4 for the first chunk.
enum { KFI_LIST_SMALL, KFI_LIST_LARGE };
KFI_BOTH constexpr int kfi_list_room(int lists, int size)
{
    return ((size == KFI_LIST_SMALL ? KFI_LIST_SMALL_BYTES : KF_LIST_BYTES) - 16) /
           (8 * lists + 12);
}

// A launch's part of the lists. first: index of each tensor's first chunk in the launch. skipped:
// chunks of the first tensor that earlier launches have. number: index of the first tensor among
// those with elements.
template <int lists, int size> struct kfi_list_table {
    enum { tensors = kfi_list_room(lists, size) };
    const void *data[lists][tensors];
    kf_i64 length[tensors];
    kf_i64 skipped;
    int first[tensors];
    int count, number;
};

#ifdef KFI_DEVICE_PASS
// A CTA's chunk: elements [from, from + n) of a tensor.
struct kfi_list_part {
    int tensor, n;
    kf_i64 from;
};

// Finds a chunk of the launch, or the one of the CTA.
template <int lists, int size>
KFI_DEVICE kfi_list_part kfi_list_find(const kfi_list_table<lists, size> &table, int chunk)
{
    int low = 0, high = table.count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (table.first[middle] <= chunk)
            low = middle;
        else
            high = middle - 1;
    }
    kfi_list_part part;
    part.tensor = low;
    part.from = (chunk - table.first[low] + (low ? 0 : table.skipped)) * (kf_i64)KFI_MAX_CHUNK;
    const kf_i64 left = table.length[low] - part.from;
    part.n = (int)(left < KFI_MAX_CHUNK ? left : KFI_MAX_CHUNK);
    return part;
}

// Returns the first element of the chunk in one of the lists; nullptr if the list is NULL.
template <int lists, int size>
KFI_DEVICE kfi_list_part kfi_list_find(const kfi_list_table<lists, size> &table)
{
    return kfi_list_find(table, (int)blockIdx.x);
}

template <class T, int lists, int size>
KFI_DEVICE T *kfi_list_at(const kfi_list_table<lists, size> &table, int list,
                          const kfi_list_part &part)
{
    T *const data = (T *)table.data[list][part.tensor];
    return data ? data + part.from : data;
}
#endif

#ifdef KFI_HOST_PASS
#include "kf/core/list.h"

// Position in the lists: a tensor, the chunks of it that have been launched, and the number of
// tensors with elements before it.
struct kfi_list_cursor {
    kf_i64 tensor, skipped;
    int number;
};

// Fills a table from the cursor on, advances the cursor and returns the chunks of the table.
template <int lists, int size>
static KFI_SMALL int kfi_list_fill(const kfi_lists &l, kfi_list_cursor *at,
                                   kfi_list_table<lists, size> *table)
{
    int chunks = 0;
    table->count = 0;
    table->skipped = at->skipped;
    table->number = at->number;
    while (at->tensor < l.count && table->count < kfi_list_room(lists, size) &&
           chunks < KFI_LIST_BLOCKS) {
        const kf_i64 length = l.lengths[at->tensor],
                     left = kfi_ceil(length, KFI_MAX_CHUNK) - at->skipped;
        if (length > 0) {
            const int i = table->count++;
            for (int list = 0; list < lists; ++list)
                table->data[list][i] = l.data[list] ? l.data[list][at->tensor] : nullptr;
            table->length[i] = length;
            table->first[i] = chunks;
        }
        if (left > KFI_LIST_BLOCKS - chunks) {
            at->skipped += KFI_LIST_BLOCKS - chunks;
            return KFI_LIST_BLOCKS;
        }
        chunks += (int)left;
        at->skipped = 0;
        at->number += length > 0;
        ++at->tensor;
    }
    return chunks;
}

template <int lists, int size>
static KFI_SMALL kf_result_t kfi_list_launches(const kfi_name *name, const kfi_lists &l,
                                               const void *kernel, unsigned threads, void **args,
                                               cudaStream_t stream)
{
    kfi_list_table<lists, size> table;
    static_assert(sizeof table <= KF_LIST_BYTES, "a table exceeds its launch's parameters");
    kfi_list_cursor at = {0, 0, 0};
    args[0] = &table;
    for (;;) {
        const int chunks = kfi_list_fill(l, &at, &table);
        if (!chunks) return KF_SUCCESS;
        const kf_result_t result =
            kfi_launch(name, kernel, dim3((unsigned)chunks), threads, args, stream);
        if (result != KF_SUCCESS) return result;
    }
}

// Launches a kernel over all chunks of checked lists, on `threads` threads per CTA.
// kernels: the instances for a small and a large table. args: the kernel's arguments; the first one
// is the table's.
template <int lists>
static KFI_SMALL kf_result_t kfi_launch_lists(const kfi_name *name, const kfi_lists &l,
                                              const void *const *kernels, unsigned threads,
                                              void **args, cudaStream_t stream)
{
    return l.count <= kfi_list_room(lists, KFI_LIST_SMALL)
               ? kfi_list_launches<lists, KFI_LIST_SMALL>(name, l, kernels[0], threads, args,
                                                          stream)
               : kfi_list_launches<lists, KFI_LIST_LARGE>(name, l, kernels[1], threads, args,
                                                          stream);
}
#endif

#endif
