// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/portable.cuh: attention forward of 2-byte elements by mma.sync (sm_80 and
// later), for devices, dimensions and layouts that hopper.cuh does not take.
//
// A block of 4 warps has 64 query rows, 16 per warp, and walks the keys from the last block to the
// first with online softmax (softmax.cuh). K and V are double-buffered: cp.async loads the next
// block of each while the tensor cores work on this one. P stays in registers.
//
// Grid: one block per 64 rows and head, the last rows of a head first. Shared memory:
// kfi_attention_mma_shared_bytes, swizzled in chunks of 16 bytes.
// Callers: kernels of ops (templates), launched by portable_host.cuh.
// Accuracy: products in float, P rounded to the element type; the order of sums is fixed by the
// shape. Instances with `whole` need rows at multiples of 16 bytes; others take any rows and
// dimensions, and copy a tensor one element at a time if its own rows or dimension require it.
#ifndef KF_CORE_ATTENTION_PORTABLE_CUH
#define KF_CORE_ATTENTION_PORTABLE_CUH

#include "kf/core/attention/packed.cuh"
#include "kf/core/attention/sparse.cuh"
#include "kf/core/attention/store.cuh"
#include "kf/core/ptx/hopper.cuh"
#include "kf/core/ptx/mma.cuh"

// Tiles, named by instruction and head dimensions of q, k and v. A smaller dimension takes the next
// tile and is padded with zeros.
#define KFI_ATTENTION_MMA_64 0
#define KFI_ATTENTION_MMA_128 1
#define KFI_ATTENTION_MMA_256 2

#define KFI_ATTENTION_MMA_ROWS 64
#define KFI_ATTENTION_MMA_THREADS 128

KFI_BOTH constexpr int kfi_attention_mma_dim(int tile) { return 64 << tile; }
KFI_BOTH constexpr int kfi_attention_mma_keys(int tile) // per block
{
    return tile == KFI_ATTENTION_MMA_256 ? 32 : 64;
}
// Q, and two stages of K and of V.
KFI_BOTH constexpr int kfi_attention_mma_shared_bytes(int tile)
{
    return (KFI_ATTENTION_MMA_ROWS + 4 * kfi_attention_mma_keys(tile)) *
           kfi_attention_mma_dim(tile) * 2;
}

// Rows at multiples of 16 bytes have kernels of their own, except in code for sm_90a: wgmma takes
// them there, and what TMA refuses takes the instances for any rows (KF_SCHEDULES 4 and 1). wgmma
// has no dropout.
#ifndef KFI_MMA_WHOLE
#define KFI_MMA_WHOLE (KFI_MMA && !(KFI_HOPPER && (KF_SCHEDULES & 5) == 5))
#endif

// A tensor core of sm_80 is needed. Without it, or if an instance is left out, the code is empty
// and the launch bound is one warp.
KFI_BOTH constexpr bool kfi_attention_mma_has(int whole, int drop)
{
    return KFI_MMA && (!whole || KFI_MMA_WHOLE || drop >= 0);
}
#ifdef KFI_DEVICE_PASS
#define KFI_ATTENTION_MMA_BOUNDS(whole, drop)                                                      \
    __launch_bounds__(kfi_attention_mma_has(whole, drop) ? KFI_ATTENTION_MMA_THREADS : 32)
#else
#define KFI_ATTENTION_MMA_BOUNDS(whole, drop)
#endif

#if defined(KFI_DEVICE_PASS) && KFI_MMA

// Offset [bytes] of a chunk of 8 elements. The 8 rows of an ldmatrix have different banks.
template <int dim> KFI_DEVICE int kfi_attention_chunk(int row, int chunk)
{
    return 16 * (row * (dim / 8) + (chunk ^ (row & 7)));
}
// Rows of a head in global memory.
struct kfi_attention_rows {
    const char *p;
    kf_i64 step; // bytes
    int count, dim;
    bool whole; // chunks of 8 elements are at multiples of 16 bytes, and complete
};
KFI_DEVICE kfi_attention_rows kfi_attention_rows_of(const void *p, const kfi_attention_strides &s,
                                                    int head, int batch, int count, int dim)
{
    const char *const first = kfi_attention_row(p, s, 0, head, batch, 2);
    const kfi_attention_rows r = {first, s.row * 2, count, dim,
                                  ((kf_i64)(size_t)first | s.row * 2 | dim * 2) % 16 == 0};
    return r;
}
// Copies the first `count` of 8 elements, and zeros for the others. The loads are independent.
KFI_DEVICE void kfi_attention_copy_part(char *to, const char *from, int count)
{
    alignas(16) unsigned short v[8] = {};
    if (count > 0) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const unsigned short x = ((const unsigned short *)from)[kfi_min_i32(e, count - 1)];
            v[e] = e < count ? x : (unsigned short)0;
        }
    }
    kfi_copy<16>(to, v);
}
// Loads `rows` rows from `first` on, padded with zeros. whole: from.whole is true.
template <int rows, int dim, int whole>
KFI_DEVICE void kfi_attention_fetch(char *to, const kfi_attention_rows &from, int first)
{
    constexpr int chunks = dim / 8;
#pragma unroll(dim > 128 || !whole ? 1 : 2)
    for (int i = 0; i < rows * chunks; i += KFI_ATTENTION_MMA_THREADS) {
        const int row = (i + (int)threadIdx.x) / chunks, chunk = (i + (int)threadIdx.x) % chunks;
        const bool in = first + row < from.count && 8 * chunk < from.dim;
        const char *const p = in ? from.p + (first + row) * from.step + 16 * chunk : from.p;
        char *const at = to + kfi_attention_chunk<dim>(row, chunk);
        if (whole || from.whole)
            kfi_cp_async<16>(at, p, in ? 16 : 0);
        else
            kfi_attention_copy_part(at, p, in ? from.dim - 8 * chunk : 0);
    }
}
// Loads the block of a step of K or V to its stage if `needed`, and commits.
template <int keys, int dim, int whole>
KFI_DEVICE void kfi_attention_fetch_block(char *stages, const kfi_attention_rows &from, int step,
                                          int block, bool needed)
{
    if (needed)
        kfi_attention_fetch<keys, dim, whole>(stages + step % 2 * (keys * dim * 2), from,
                                              block * keys);
    kfi_fetch_commit();
}
// Loads a warp's fragment of 16 rows of Q for 16 dimensions from 16 k on.
template <int dim> KFI_DEVICE void kfi_attention_fragment_q(unsigned *q, const char *shared, int k)
{
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane % 16;
    kfi_ldmatrix<0>(q, shared + kfi_attention_chunk<dim>(row, 2 * k + lane / 16));
}
// Computes S = Q . K^T. q: the fragments; in shared memory if in_registers is 0. steps: of 16
// dimensions, which are unrolled.
template <int type, int dim, int keys, int in_registers, int steps = dim / 16>
KFI_DEVICE void kfi_attention_mma_scores(float *s, const unsigned *q, const char *shared_q,
                                         const char *k_stage)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < keys / 2; ++i) s[i] = 0;
#pragma unroll(steps)
    for (int k = 0; k < dim / 16; ++k) {
        unsigned own[4];
        if constexpr (!in_registers) kfi_attention_fragment_q<dim>(own, shared_q, k);
        const unsigned *const a = in_registers ? q + 4 * k : own;
#pragma unroll
        for (int j = 0; j < keys / 16; ++j) {
            unsigned b[4];
            kfi_ldmatrix<0>(b, k_stage + kfi_attention_chunk<dim>(j * 16 + lane % 8 + lane / 16 * 8,
                                                                  2 * k + lane / 8 % 2));
            kfi_mma<type>(s + 8 * j, a, b);
            kfi_mma<type>(s + 8 * j + 4, a, b + 2);
        }
    }
}
// Computes O += P . V.
template <int type, int dim, int keys>
KFI_DEVICE void kfi_attention_mma_values(float *o, const unsigned *p, const char *v_stage)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < keys / 16; ++k)
#pragma unroll
        for (int j = 0; j < dim / 16; ++j) {
            unsigned b[4];
            kfi_ldmatrix<1>(b, v_stage +
                                   kfi_attention_chunk<dim>(k * 16 + lane % 16, 2 * j + lane / 16));
            kfi_mma<type>(o + 8 * j, p + 4 * k, b);
            kfi_mma<type>(o + 8 * j + 4, p + 4 * k, b + 2);
        }
}

// Runs the kernel for one block of rows and a range of keys. Called by all threads.
template <int type, int tile, int score, int whole, int drop, class range>
KFI_DEVICE void kfi_attention_mma(const kfi_attention &a, const kfi_attention_place &at,
                                  const range &b)
{
    constexpr int dim = kfi_attention_mma_dim(tile), keys = kfi_attention_mma_keys(tile),
                  bytes = keys * dim * 2, in_registers = dim <= 128;
    constexpr kfi_tag<score> tag;
    const int batch = at.batch, head = at.head, begin = at.begin, lane = (int)threadIdx.x % 32,
              row = begin + (int)threadIdx.x / 32 * 16 + lane / 4, col = 2 * (lane % 4);
    char *const of_q = kfi_dynamic(), *const of_k = of_q + KFI_ATTENTION_MMA_ROWS * dim * 2,
                *const of_v = of_k + 2 * bytes;
    const kfi_attention_rows q_rows = kfi_attention_rows_of(a.q, a.q_strides, head, batch,
                                                            a.queries, a.dim),
                             k_rows = kfi_attention_rows_of(a.k, a.k_strides, head / a.group, batch,
                                                            a.keys, a.dim),
                             v_rows = kfi_attention_rows_of(a.v, a.v_strides, head / a.group, batch,
                                                            a.keys, a.dim_v);
    float o[dim / 2], s[keys / 2];
    unsigned p[keys / 4], q[in_registers ? dim / 4 : 1];
    kfi_softmax state = kfi_softmax_init<score>(a, head, at.refused);
    kfi_score_block<score, keys> loaded;
    const kfi_rng rng = kfi_attention_rng<drop>(a);
    const kf_i64 number = kfi_attention_number(a, row, head, batch);
#pragma unroll
    for (int i = 0; i < dim / 2; ++i) o[i] = 0;
    const bool some = b.last >= b.first;
    if (some) kfi_attention_fetch<KFI_ATTENTION_MMA_ROWS, dim, whole>(of_q, q_rows, begin);
    const int last = kfi_attention_block_at(b, b.last);
    kfi_attention_fetch_block<keys, dim, whole>(of_k, k_rows, b.last, last, some);
    kfi_attention_fetch_block<keys, dim, whole>(of_v, v_rows, b.last, last, some);
#pragma unroll 1
    for (int n = b.last; n >= b.first; --n) {
        const int block = kfi_attention_block_at(b, n), next = kfi_attention_block_at(b, n - 1);
        kfi_fetch_wait<1>(); // this block of K
        __syncthreads();     // for all threads; the next one's stage may be overwritten
        kfi_attention_fetch_block<keys, dim, whole>(of_k, k_rows, n - 1, next, n > b.first);
        if constexpr (in_registers) {
            if (n == b.last) {
#pragma unroll
                for (int k = 0; k < dim / 16; ++k)
                    kfi_attention_fragment_q<dim>(q + 4 * k, of_q, k);
            }
        }
        kfi_score_load(tag, loaded, a, row, block * keys + col, head, batch);
        kfi_attention_mma_scores<type, dim, keys, in_registers>(s, q, of_q, of_k + n % 2 * bytes);
        kfi_score_all<score, keys, keys / 2>(s, loaded, a);
        kfi_attention_mask<keys / 2>(s, a, b, n, block, row, block * keys + col);
        if (kfi_softmax_block<score, keys>(s, &state, a.log2_unit))
            kfi_attention_rescale<dim>(o, state);
        kfi_attention_drop<drop, keys, 2>(s, rng, a, number, block * keys);
        kfi_attention_convert<type, keys>(p, s);
        kfi_fetch_wait<1>(); // this block of V
        __syncthreads();     // for all threads, too
        kfi_attention_fetch_block<keys, dim, whole>(of_v, v_rows, n - 1, next, n > b.first);
        kfi_attention_mma_values<type, dim, keys>(o, p, of_v + n % 2 * bytes);
    }
    const kfi_attention_row_state r = {
        row, head, batch, b.first * keys, kfi_min_i32(a.keys, (b.last + 1) * keys), 0, 0};
    kfi_attention_store<type, score, dim, dim, whole, drop>(
        o, state, a, b, r, some && kfi_attention_partial<keys>(a, b, begin, a.keys));
}
// Returns the key blocks of rows from `begin` on.
template <int tile>
KFI_DEVICE kfi_attention_blocks kfi_attention_mma_blocks(const kfi_attention &a, int begin)
{
    return kfi_attention_blocks_of<kfi_attention_mma_keys(tile)>(
        a, begin, kfi_min_i32(begin + KFI_ATTENTION_MMA_ROWS, a.queries) - 1);
}
// The same for packed sequences.
template <int type, int tile, int score, int whole, int drop>
KFI_DEVICE void kfi_attention_mma_packed(const kfi_attention_packed &p)
{
    const int head = (int)blockIdx.x / p.a.row_blocks;
    kfi_attention_sequence s;
    const int block =
        kfi_attention_find<KFI_ATTENTION_MMA_ROWS>(&s, p, (int)blockIdx.x - head * p.a.row_blocks);
    if (block < 0) return;
    const kfi_attention_place at = {block * KFI_ATTENTION_MMA_ROWS, head, s.index, s.refused};
    const kfi_attention a = kfi_attention_own(p, s, head, 2);
    kfi_attention_mma<type, tile, score, whole, drop>(a, at,
                                                      kfi_attention_mma_blocks<tile>(a, at.begin));
}
#endif

template <int type, int tile, int score, int whole, int drop = KFI_NO_DROPOUT>
KFI_KERNEL void KFI_ATTENTION_MMA_BOUNDS(whole, drop)
    kfk_attention_mma(const __grid_constant__ kfi_attention a)
{
#if defined(KFI_DEVICE_PASS) && KFI_MMA
    if constexpr (kfi_attention_mma_has(whole, drop)) {
        kfi_begin();
        const kfi_attention_place at = kfi_attention_place_of<KFI_ATTENTION_MMA_ROWS>(a);
        kfi_attention_mma<type, tile, score, whole, drop>(
            a, at, kfi_attention_mma_blocks<tile>(a, at.begin));
    }
#endif
}
template <int type, int tile, int score, int whole, int drop = KFI_NO_DROPOUT>
KFI_KERNEL void KFI_ATTENTION_MMA_BOUNDS(whole, drop)
    kfk_attention_mma_packed(const __grid_constant__ kfi_attention_packed p)
{
#if defined(KFI_DEVICE_PASS) && KFI_MMA
    if constexpr (kfi_attention_mma_has(whole, drop)) {
        kfi_begin();
        kfi_attention_mma_packed<type, tile, score, whole, drop>(p);
    }
#endif
}
// Lists of key blocks have kernels for rows at multiples of 16 bytes in code for sm_90a, too.
template <int type, int tile, int score, int whole, int drop = KFI_NO_DROPOUT>
KFI_KERNEL void KFI_ATTENTION_MMA_BOUNDS(0, drop)
    kfk_attention_mma_sparse(const __grid_constant__ kfi_attention_sparse s)
{
#if defined(KFI_DEVICE_PASS) && KFI_MMA
    kfi_begin();
    kfi_attention_place at = kfi_attention_place_of<KFI_ATTENTION_MMA_ROWS>(s.a);
    const kfi_attention_list b =
        kfi_attention_list_of<kfi_attention_mma_keys(tile)>(s, &at, KFI_ATTENTION_MMA_ROWS);
    kfi_attention_mma<type, tile, score, whole, drop>(s.a, at, b);
#endif
}

#endif
