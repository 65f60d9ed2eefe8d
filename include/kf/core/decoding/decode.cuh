// SPDX-License-Identifier: Apache-2.0
// kf/core/decoding/decode.cuh: launches of attention to a cache: checks, the choice of a kernel,
// and its arguments.
//
// 2-byte elements take mma.sync (mma.cuh) from sm_80 on if rows begin at multiples of 16 bytes and
// dimensions are multiples of 8 up to 128. Others take FMAs (simt.cuh). A second launch adds the
// chunks of tiles that several blocks had.
#ifndef KF_CORE_DECODING_DECODE_CUH
#define KF_CORE_DECODING_DECODE_CUH

#include "kf/core/decoding/mma.cuh"
#include "kf/core/decoding/simt.cuh"

#ifdef KFI_HOST_PASS
#include "kf/core/decoding/check.h"

#ifndef KFI_DECODE_BLOCKS
#define KFI_DECODE_BLOCKS 264 // the persistent kernel's, at most: two per SM of an H200
#endif

// Kernels in a launcher's table: of 2-byte elements, MMA for dimensions 64 and 128 with 8 and 16
// rows, FMAs, and the sums of chunks after both; of others the last two.
enum { KFI_DECODE_OF_MMA = 0, KFI_DECODE_OF_SIMT = 4, KFI_DECODE_OF_WHOLE, KFI_DECODE_OF_FOLD };

struct kfi_decode_op {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides strides;
    const void *const *kernels;
    int type = 0; // KFI_OF_BF16, ...
};

// Rows that a unit's tiles have at most in the workspace.
KF_FN kf_i64 kfi_decode_padded_rows(kf_i64 rows)
{
    return rows <= 8 ? rows : (rows + 15) / 16 * 16;
}
// Bytes of the parts of the workspace; returns their sum, at most 2^62. unit: bytes of a number.
KF_FN KFI_SMALL size_t kfi_decode_parts(const kfi_decoding_sizes &p, int unit, size_t *bytes)
{
    const kf_i64 rows = p.kv_heads ? p.heads / p.kv_heads * p.queries : 0;
    const int slots = kfi_decode_slots(kfi_decoding_rows(&p, p.pages > 1),
                                       kfi_decode_bound(p.queries), p.kv_heads);
    const double each = (double)p.batch * (double)p.kv_heads * (double)slots *
                        (double)kfi_decode_padded_rows(rows),
                 pitch = (double)((p.dim_v + 3) / 4 * 4);
    if (each * (pitch + 2) > 5.7e17) return (size_t)1 << 62;
    bytes[0] = KFI_WORKSPACE_ALIGNED;
    bytes[1] = bytes[2] = kfi_workspace((size_t)each * (size_t)unit);
    bytes[3] = kfi_workspace((size_t)(each * pitch) * (size_t)unit);
    return bytes[0] + bytes[1] + bytes[2] + bytes[3];
}
KF_FN KFI_SMALL size_t kfi_decode_workspace(const void *shape, int unit)
{
    size_t bytes[4];
    if (!shape) return 0;
    const kfi_decoding_sizes p = kfi_decoding_sizes_of((const int64_t *)shape);
    return kfi_decoding_fits(&p) ? kfi_decode_parts(p, unit, bytes) : 0;
}
// Sets a reciprocal: row / page_size for rows below 2^31 (kfi_decode_page).
KF_FN KFI_SMALL void kfi_decode_reciprocal(kfi_decode *a, kf_i64 page_size)
{
    unsigned shift = 0;
    while (((kf_i64)1 << shift) < page_size) ++shift;
    a->page_size = (int)page_size;
    a->page_shift = shift ? shift - 1 : 0;
    a->page_multiplier = shift ? (unsigned)((((unsigned long long)1 << (31 + shift)) +
                                             (unsigned long long)page_size - 1) /
                                            (unsigned long long)page_size)
                               : 0;
}
// Returns whether rows of q, k, v and out begin at multiples of 16 bytes.
KF_FN KFI_SMALL bool kfi_decode_aligned(const kfi_decode &a, const kfi_decoding_sizes &p)
{
    const void *const tensors[] = {a.q, a.k, a.v, a.out};
    const kfi_decoding_strides *const strides[] = {&a.q_strides, &a.k_strides, &a.v_strides,
                                                   &a.out_strides};
    kf_i64 steps = p.dim | p.dim_v;
    uintptr_t bits = 0;
    for (int i = 0; i < 4; ++i) {
        const bool cache = i == 1 || i == 2;
        bits |= (uintptr_t)tensors[i];
        if ((cache ? p.blocks : p.batch) > 1) steps |= strides[i]->batch;
        if ((cache ? p.page_size : p.queries) > 1) steps |= strides[i]->row;
        if ((cache ? p.kv_heads : p.heads) > 1) steps |= strides[i]->head;
    }
    return bits % 16 == 0 && steps % 8 == 0;
}
// Returns the kernel of mma.sync of 2-byte elements, or -1.
KF_FN KFI_SMALL int kfi_decode_pick(const kfi_decode_op &op, const kfi_decode &a,
                                    const kfi_decoding_sizes &p)
{
    const kf_i64 most = p.dim > p.dim_v ? p.dim : p.dim_v;
    if (op.type > KFI_OF_F16 || p.dim == 0 || p.dim_v == 0 || most > 128) return -1;
    const int kernel = KFI_DECODE_OF_MMA + 2 * (most > 64) + (a.rows > 8);
    if (!kfi_decode_aligned(a, p) || kfi_most_threads(op.kernels[kernel]) < KFI_DECODE_THREADS)
        return -1;
    return kernel;
}
// Refuses sizes that the kernels' 32-bit indices or a grid cannot hold.
KF_FN KFI_SMALL kf_result_t kfi_decode_limits(const kfi_decode_op &op, const kfi_decoding_sizes &p,
                                              int slots)
{
    const kf_i64 most = KFI_DECODE_KEYS_MOST, rows = p.heads / p.kv_heads * p.queries;
    const double blocks = (double)p.batch * (double)p.kv_heads * (double)slots * (double)rows;
    if (p.page_size > most || p.pages > most || p.blocks > most || p.dim > most || p.dim_v > most)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &op.name, "page_size",
                        "is %lld, with %lld pages and %lld blocks, expected fewer than 2^30 of "
                        "each, and of each dimension",
                        (long long)p.page_size, (long long)p.pages, (long long)p.blocks);
    if (blocks > 2147483647.0 || p.batch > most || p.heads > most || p.queries > most)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &op.name, "launch",
                        "of %lld x %lld x %lld rows needs more blocks than a launch may have",
                        (long long)p.batch, (long long)p.heads, (long long)p.queries);
    return KF_SUCCESS;
}
KF_FN KFI_SMALL void kfi_decode_fill(kfi_decode *a, const kfi_decoding_sizes &p,
                                     const void *const *t, const kfi_decoding_strides *steps)
{
    const void *const *const tensors = t;
    a->q = tensors[0], a->k = tensors[1], a->v = tensors[2];
    a->table = (const int *)tensors[3], a->counts = (const int *)tensors[4];
    a->out = const_cast<void *>(tensors[5]), a->lse = const_cast<void *>(tensors[6]);
    a->q_strides = steps[0], a->k_strides = steps[1], a->v_strides = steps[2];
    a->out_strides = steps[5];
    a->batch = (int)p.batch, a->kv_heads = (int)p.kv_heads, a->queries = (int)p.queries;
    a->group = (int)(p.heads / p.kv_heads), a->rows = a->group * a->queries;
    a->keys = kfi_decoding_rows(&p, a->table != nullptr);
    a->pages = (int)p.pages, a->blocks = (int)p.blocks;
    a->dim = (int)p.dim, a->dim_v = (int)p.dim_v, a->sum_pitch = (a->dim_v + 3) / 4 * 4;
    a->most = kfi_decode_most(p.kv_heads);
    a->slots = kfi_decode_slots(a->keys, a->queries, p.kv_heads);
    a->log2_unit = (float)(a->scale * 1.4426950408889634);
    kfi_decode_reciprocal(a, p.page_size > 0 ? p.page_size : 1);
}
// Launches the persistent kernel. Its blocks find their items in order.
KF_FN KFI_SMALL kf_result_t kfi_decode_launch_mma(const kfi_decode_op &op, kfi_decode *a,
                                                  int kernel, cudaStream_t stream)
{
    const void *const of = op.kernels[kernel];
    const int rows = kernel % 2 ? 16 : 8, dim = kernel - KFI_DECODE_OF_MMA < 2 ? 64 : 128,
              stages = kfi_most_threads(of) == KFI_DECODE_THREADS + 32 ? 2 : 3;
    const kf_i64 items = (kf_i64)a->batch * a->kv_heads * a->tiles * a->slots;
    void *args[] = {a};
    return kfi_launch(
        &op.name, of, dim3((unsigned)(items < KFI_DECODE_BLOCKS ? items : KFI_DECODE_BLOCKS)),
        KFI_DECODE_THREADS, args, stream, false, (unsigned)kfi_decode_shared(dim, rows, stages));
}
KF_FN KFI_SMALL kf_result_t kfi_decode_launch_simt(const kfi_decode_op &op, kfi_decode *a,
                                                   const void *kernel, cudaStream_t stream)
{
    const kf_i64 blocks = (kf_i64)a->batch * a->kv_heads * a->tiles * a->slots,
                 columns = a->dim_v ? kfi_ceil(a->dim_v, KFI_DECODE_SIMT_COLS) : 1;
    void *args[] = {a};
    if (columns > 65535)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &op.name, "dim_v",
                        "is %d, expected at most 2^24 - 256", a->dim_v);
    return kfi_launch(&op.name, kernel, dim3((unsigned)blocks, (unsigned)columns),
                      KFI_DECODE_SIMT_THREADS, args, stream);
}
// Checks a call and launches its kernels. `a` has left, right and scale.
KF_FN kf_result_t kfi_decode_run(const kfi_decode_op &op, const kfi_shape_values &v, kfi_decode *a,
                                 void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    kfi_operands operands;
    kfi_decoding_strides steps[KFI_MAX_TENSORS];
    size_t bytes[4];
    const kfi_decoding_sizes p = kfi_decoding_sizes_of(v.value);
    kf_result_t result = kfi_decoding_check_sizes(&op.name, &p, 1);
    if (result == KF_SUCCESS)
        result = kfi_decoding_check(&op.name, &op.arguments, &op.strides, "qkv..o.", v.elements, &p,
                                    steps, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const bool small = op.type <= KFI_OF_F16;
    result = kfi_decoding_check_blocks(&op.name, &op.arguments, &p, 3);
    if (result == KF_SUCCESS)
        result = kfi_check_workspace(&op.name, &op.arguments, &operands, workspace, workspace_bytes,
                                     kfi_decode_parts(p, op.type == KFI_OF_F64 ? 8 : 4, bytes));
    if (result == KF_SUCCESS)
        result = kfi_decode_limits(op, p,
                                   kfi_decode_slots(kfi_decoding_rows(&p, p.pages > 1),
                                                    kfi_decode_bound(p.queries), p.kv_heads));
    if (result != KF_SUCCESS) return result;
    kfi_decode_fill(a, p, op.arguments.tensors, steps);
    a->goal = (int *)workspace;
    a->maxima = (char *)workspace + bytes[0];
    a->totals = (char *)a->maxima + bytes[1];
    a->sums = (char *)a->totals + bytes[2];
    const int kernel = small ? kfi_decode_pick(op, *a, p) : -1,
              most = kernel >= 0 && a->rows > 8 ? 16 : 8;
    a->tile_rows = a->rows < most ? a->rows : most;
    a->tiles = (a->rows + most - 1) / most;
    const void *const *const rest = op.kernels + (small ? KFI_DECODE_OF_SIMT : 0);
    result = kernel >= 0 ? kfi_decode_launch_mma(op, a, kernel, stream)
                         : kfi_decode_launch_simt(op, a, rest[0], stream);
    if (result != KF_SUCCESS) return result;
    void *args[] = {a};
    const kf_i64 rows = (kf_i64)a->batch * a->kv_heads * a->rows;
    return kfi_launch(&op.name, small ? rest[kernel >= 0 ? 1 : 2] : rest[1],
                      dim3((unsigned)kfi_ceil(rows, KFI_DECODE_SIMT_THREADS / 32)),
                      KFI_DECODE_SIMT_THREADS, args, stream);
}
#endif

#endif
