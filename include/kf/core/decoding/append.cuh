// SPDX-License-Identifier: Apache-2.0
// kf/core/decoding/append.cuh: stores new keys and values in caches.
//
// A warp has a head of a new row: it copies vectors of 16 bytes, or elements, and rotates pairs of
// the key, one per lane at a time. Rows without memory are left out.
// Grid: ceil(new rows x heads / 4); block: 4 warps.
#ifndef KF_CORE_DECODING_APPEND_CUH
#define KF_CORE_DECODING_APPEND_CUH

#include "kf/core/decoding/elements.cuh"
#include "kf/core/decoding/plan.h"
#include "kf/core/paged.h"

#define KFI_APPEND_THREADS 128

struct kfi_append {
    const void *cosine, *sine;  // [positions, pairs]; NULL: 1, and 0
    const int *places, *counts; // places: rows of the tables, or NULL
    kfi_pages pages;
    kf_i64 rows; // new rows of all sequences, times heads
    kfi_divisor heads, per_sequence;
    kf_i64 positions, pairs, dim, dim_v;
    kfi_decoding_strides k_strides, v_strides, k_cache_strides, v_cache_strides;
};

#ifdef KFI_DEVICE_PASS
template <class stored, int vec>
KFI_DEVICE void kfi_append_copy(const stored *from, stored *to, kf_i64 begin, kf_i64 count,
                                int lane)
{
    for (kf_i64 i = begin + lane * vec; i < count; i += 32 * vec)
        kfi_copy<vec *(int)sizeof(stored)>(to + i, from + i);
}
// Rotates the pairs of a head. beside: pairs are elements 2i and 2i + 1, else i and i + pairs.
template <class stored, class real, int beside>
KFI_DEVICE void kfi_append_rotate(const stored *from, stored *to, const kfi_append &a, kf_i64 place,
                                  int lane)
{
    const bool inside = place >= 0 && place < a.positions;
    for (kf_i64 i = lane; i < a.pairs; i += 32) {
        const kf_i64 at = place * a.pairs + i, first = beside ? 2 * i : i,
                     second = beside ? 2 * i + 1 : i + a.pairs;
        const real nan = kfi_not_a_number(real(0)),
                   c = !a.cosine ? real(1)
                       : inside  ? ((const real *)a.cosine)[at]
                                 : nan,
                   s = !a.sine  ? real(0)
                       : inside ? ((const real *)a.sine)[at]
                                : nan,
                   x = kfi_decoding_widen(from[first]), y = kfi_decoding_widen(from[second]);
        kfi_cast(to + first, x * c - y * s);
        kfi_cast(to + second, y * c + x * s);
    }
}
template <class stored, class real, int beside, int vec>
KFI_DEVICE void kfi_append_head(const stored *k, const stored *v, stored *k_cache, stored *v_cache,
                                const kfi_append &a)
{
    const kf_i64 item = ((kf_i64)blockIdx.x * KFI_APPEND_THREADS + threadIdx.x) / 32;
    const int lane = (int)threadIdx.x % 32;
    if (item >= a.rows) return;
    const kf_i64 new_row = kfi_divide(item, a.heads), head = item - new_row * (kf_i64)a.heads.d,
                 sequence = kfi_divide(new_row, a.per_sequence),
                 i = new_row - sequence * (kf_i64)a.per_sequence.d, row = a.counts[sequence] + i,
                 at = kfi_page_row(&a.pages, sequence, row);
    if (at < 0) return;
    const kf_i64 block = at / a.pages.rows, slot = at - block * a.pages.rows,
                 place = a.places ? a.places[new_row] : row;
    k += sequence * a.k_strides.batch + i * a.k_strides.row + head * a.k_strides.head;
    v += sequence * a.v_strides.batch + i * a.v_strides.row + head * a.v_strides.head;
    k_cache += block * a.k_cache_strides.batch + slot * a.k_cache_strides.row +
               head * a.k_cache_strides.head;
    v_cache += block * a.v_cache_strides.batch + slot * a.v_cache_strides.row +
               head * a.v_cache_strides.head;
    kfi_append_copy<stored, vec>(v, v_cache, 0, a.dim_v, lane);
    if (a.dim == 0 || (!a.cosine && !a.sine)) {
        kfi_append_copy<stored, vec>(k, k_cache, 0, a.dim, lane);
        return;
    }
    kfi_append_copy<stored, 1>(k, k_cache, 2 * a.pairs, a.dim, lane);
    kfi_append_rotate<stored, real, beside>(k, k_cache, a, place, lane);
}
#endif

// beside: pairs are elements 2i and 2i + 1; vec: elements of a copy.
template <int type, int beside, int vec>
KFI_KERNEL void KFI_BOUNDS(KFI_APPEND_THREADS)
    kfk_append(const void *k, const void *v, void *k_cache, void *v_cache,
               const __grid_constant__ kfi_append a)
{
#ifdef KFI_DEVICE_PASS
    typedef typename kfi_decoding_element<type>::stored stored;
    kfi_begin();
    kfi_append_head<stored, typename kfi_decoding_element<type>::real, beside, vec>(
        (const stored *)k, (const stored *)v, (stored *)k_cache, (stored *)v_cache, a);
#endif
}

#ifdef KFI_HOST_PASS
#include "kf/core/decoding/check.h"

struct kfi_append_op {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides strides;
    const void *const *kernels; // vectors of 16 bytes, elements
    int size = 0;
};
// Checks a call and launches its kernel. args: k, v, k_cache, v_cache and a.
KF_FN kf_result_t kfi_append_run(const kfi_append_op &op, const kfi_shape_values &v, kfi_append *a,
                                 void **args, cudaStream_t stream)
{
    kfi_operands operands;
    kfi_decoding_strides steps[KFI_MAX_TENSORS];
    const kfi_decoding_sizes p = kfi_decoding_sizes_of(v.value);
    kf_result_t result = kfi_decoding_check_append(&op.name, &p);
    if (result == KF_SUCCESS)
        result = kfi_decoding_check(&op.name, &op.arguments, &op.strides, "nw.....kv", v.elements,
                                    &p, steps, &operands);
    const kf_i64 rows = p.batch * p.queries, blocks = kfi_ceil(rows * p.kv_heads, 4);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    result = kfi_decoding_check_angles(&op.name, &op.arguments, 2);
    if (result == KF_SUCCESS) result = kfi_decoding_check_blocks(&op.name, &op.arguments, &p, 5);
    if (result != KF_SUCCESS || !blocks) return result;
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &op.name, "launch",
                        "of %lld x %lld x %lld rows needs more blocks than a launch may have",
                        (long long)p.batch, (long long)p.queries, (long long)p.kv_heads);
    const void *const *const t = op.arguments.tensors;
    a->cosine = t[2], a->sine = t[3], a->places = (const int *)t[4], a->counts = (const int *)t[6];
    a->pages.table = (const int *)t[5];
    a->pages.sequences = p.batch, a->pages.pages = p.pages;
    a->pages.rows = p.page_size, a->pages.blocks = p.blocks;
    a->rows = rows * p.kv_heads;
    a->heads = kfi_make_divisor(p.kv_heads), a->per_sequence = kfi_make_divisor(p.queries);
    a->positions = p.positions, a->pairs = p.pairs, a->dim = p.dim, a->dim_v = p.dim_v;
    a->k_strides = steps[0], a->v_strides = steps[1];
    a->k_cache_strides = steps[7], a->v_cache_strides = steps[8];
    const uintptr_t bits = (uintptr_t)t[0] | (uintptr_t)t[1] | (uintptr_t)t[7] | (uintptr_t)t[8];
    const bool vectors = bits % 16 == 0 && (operands.steps | p.dim | p.dim_v) % (16 / op.size) == 0;
    return kfi_launch(&op.name, op.kernels[!vectors], dim3((unsigned)blocks), KFI_APPEND_THREADS,
                      args, stream);
}
#endif

#endif
