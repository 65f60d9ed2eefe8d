// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/op.cuh: launches of attention: checks, the choice of a kernel, and its
// arguments.
//
// 2-byte elements take wgmma (hopper.cuh) on sm_90a if rows begin at multiples of 16 bytes and head
// dimensions are multiples of 8; otherwise mma.sync (portable.cuh) from sm_80 on. Before sm_80, and
// with more than 256 dimensions of q and k, they take FMAs (simt.cuh), as other elements do.
#ifndef KF_CORE_ATTENTION_OP_CUH
#define KF_CORE_ATTENTION_OP_CUH

#include "kf/core/attention/hopper_host.cuh"
#include "kf/core/attention/portable_host.cuh"

// Kernels that a file compiles (KF_SCHEDULES, KF_HEAD_DIMS).
#define KFI_NO_ADDRESS(...) nullptr
#if KF_HEAD_DIMS & 1
#define KFI_WGMMA_64_ADDRESS KFI_HOPPER_ADDRESS
#else
#define KFI_WGMMA_64_ADDRESS KFI_NO_ADDRESS
#endif
#if KF_HEAD_DIMS & 2
#define KFI_WGMMA_128_ADDRESS KFI_HOPPER_ADDRESS
#else
#define KFI_WGMMA_128_ADDRESS KFI_NO_ADDRESS
#endif
#if KF_HEAD_DIMS & 4
#define KFI_WGMMA_192_128_ADDRESS KFI_HOPPER_ADDRESS
#else
#define KFI_WGMMA_192_128_ADDRESS KFI_NO_ADDRESS
#endif
#if KF_HEAD_DIMS & 8
#define KFI_WGMMA_256_ADDRESS KFI_HOPPER_ADDRESS
#else
#define KFI_WGMMA_256_ADDRESS KFI_NO_ADDRESS
#endif
#if (KF_SCHEDULES & 2) && (KF_HEAD_DIMS & 1)
#define KFI_MMA_64_ADDRESS KFI_ADDRESS
#define KFI_MMA_64_STATE_ADDRESS KFI_STATE_ADDRESS
#else
#define KFI_MMA_64_ADDRESS KFI_NO_ADDRESS
#define KFI_MMA_64_STATE_ADDRESS KFI_NO_ADDRESS
#endif
#if (KF_SCHEDULES & 2) && (KF_HEAD_DIMS & 2)
#define KFI_MMA_128_ADDRESS KFI_ADDRESS
#define KFI_MMA_128_STATE_ADDRESS KFI_STATE_ADDRESS
#else
#define KFI_MMA_128_ADDRESS KFI_NO_ADDRESS
#define KFI_MMA_128_STATE_ADDRESS KFI_NO_ADDRESS
#endif
#if (KF_SCHEDULES & 2) && (KF_HEAD_DIMS & 12)
#define KFI_MMA_256_ADDRESS KFI_ADDRESS
#define KFI_MMA_256_STATE_ADDRESS KFI_STATE_ADDRESS
#else
#define KFI_MMA_256_ADDRESS KFI_NO_ADDRESS
#define KFI_MMA_256_STATE_ADDRESS KFI_NO_ADDRESS
#endif
#if (KF_SCHEDULES & 1) && (KF_HEAD_DIMS & 1)
#define KFI_ANY_64_ADDRESS KFI_ADDRESS
#define KFI_ANY_64_STATE_ADDRESS KFI_STATE_ADDRESS
#define KFI_PRE_SM80_64_ADDRESS KFI_PRE_SM80_ADDRESS
#define KFI_PRE_SM80_64_STATE_ADDRESS KFI_PRE_SM80_STATE_ADDRESS
#else
#define KFI_ANY_64_ADDRESS KFI_NO_ADDRESS
#define KFI_ANY_64_STATE_ADDRESS KFI_NO_ADDRESS
#define KFI_PRE_SM80_64_ADDRESS KFI_NO_ADDRESS
#define KFI_PRE_SM80_64_STATE_ADDRESS KFI_NO_ADDRESS
#endif
#if (KF_SCHEDULES & 1) && (KF_HEAD_DIMS & 6)
#define KFI_ANY_128_ADDRESS KFI_ADDRESS
#define KFI_ANY_128_STATE_ADDRESS KFI_STATE_ADDRESS
#define KFI_PRE_SM80_128_ADDRESS KFI_PRE_SM80_ADDRESS
#define KFI_PRE_SM80_128_STATE_ADDRESS KFI_PRE_SM80_STATE_ADDRESS
#else
#define KFI_ANY_128_ADDRESS KFI_NO_ADDRESS
#define KFI_ANY_128_STATE_ADDRESS KFI_NO_ADDRESS
#define KFI_PRE_SM80_128_ADDRESS KFI_NO_ADDRESS
#define KFI_PRE_SM80_128_STATE_ADDRESS KFI_NO_ADDRESS
#endif
#if (KF_SCHEDULES & 1) && (KF_HEAD_DIMS & 12)
#define KFI_ANY_256_ADDRESS KFI_ADDRESS
#define KFI_ANY_256_STATE_ADDRESS KFI_STATE_ADDRESS
#else
#define KFI_ANY_256_ADDRESS KFI_NO_ADDRESS
#define KFI_ANY_256_STATE_ADDRESS KFI_NO_ADDRESS
#endif

#ifdef KFI_HOST_PASS
#include "kf/core/attention/check.h"

// Kernels of 2-byte elements in a launcher's table: WGMMA_64 to WGMMA_256, MMA_64 to MMA_256 for
// rows at multiples of 16 bytes, the same for any rows, FMAs, the ticket. Other elements have FMAs
// only.
enum {
    KFI_ATTENTION_OF_WGMMA = 0,
    KFI_ATTENTION_OF_MMA = 4,
    KFI_ATTENTION_OF_ANY_MMA = 7,
    KFI_ATTENTION_OF_SIMT = 10,
    KFI_ATTENTION_OF_TICKET = 13
};

struct kfi_attention_op {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides strides;
    const char *shapes; // KFI_ATTENTION_Q, ... per tensor
    const void *const *kernels;
    int type = 0;       // KFI_OF_BF16, ...
    bool drops = false; // whether it has dropout
};

// The ticket.
KF_FN KFI_SMALL size_t kfi_attention_workspace(const void *shape)
{
    if (!shape) return 0;
    const kfi_attention_plan p = kfi_attention_plan_of((const int64_t *)shape);
    return kfi_attention_fits(&p) ? KFI_WORKSPACE_ALIGNED : 0;
}
KF_FN KFI_SMALL size_t kfi_attention_packed_workspace(const void *shape)
{
    if (!shape) return 0;
    const kfi_attention_plan p = kfi_attention_packed_plan_of((const int64_t *)shape);
    return kfi_attention_fits(&p) ? KFI_WORKSPACE_ALIGNED : 0;
}

// Returns whether pairs of elements of tensor i from an even key on are aligned to their bytes.
KF_FN KFI_SMALL bool kfi_attention_paired(const kfi_arguments &arguments, int i,
                                          const kfi_attention_strides &s)
{
    const unsigned bytes = (unsigned)(arguments.codes[KFI_CODE_LENGTH * i + KFI_CODE_SIZE] - '0');
    return (uintptr_t)arguments.tensors[i] % (2 * bytes) == 0 &&
           (s.batch | s.head | s.row) % 2 == 0;
}
// Sets the tensors of a call. Score tensors have the order of the arguments.
KF_FN KFI_SMALL void kfi_attention_tensors(kfi_attention *a, const kfi_attention_op &op,
                                           const kfi_attention_strides *steps)
{
    int scores = 0;
    for (int i = 0; op.shapes[i]; ++i) {
        const void *const p = op.arguments.tensors[i];
        void *const to = const_cast<void *>(p);
        switch (op.shapes[i]) {
        case KFI_ATTENTION_Q: a->q = p, a->q_strides = steps[i]; break;
        case KFI_ATTENTION_K: a->k = p, a->k_strides = steps[i]; break;
        case KFI_ATTENTION_V: a->v = p, a->v_strides = steps[i]; break;
        case KFI_ATTENTION_OUT: a->out = to, a->out_strides = steps[i]; break;
        case KFI_ATTENTION_LSE: a->lse = to; break;
        case KFI_ATTENTION_ROW_MAX: a->row_max = to; break;
        case KFI_ATTENTION_LOG_SUM: a->log_sum = to; break;
        case KFI_ATTENTION_SINK: a->score.sink = p; break;
        case KFI_ATTENTION_SCORES:
        case KFI_ATTENTION_HEADS:
            a->score.tensors[scores] = p, a->score.strides[scores] = steps[i];
            a->score.paired[scores++] = kfi_attention_paired(op.arguments, i, steps[i]);
            break;
        default: break; // bounds of packed sequences, lists of blocks, gradients
        }
    }
}
// Sets the bounds of packed sequences.
KF_FN KFI_SMALL void kfi_attention_sequences(kfi_attention_packed *packed,
                                             const kfi_attention_op &op,
                                             const kfi_attention_plan &p)
{
    for (int i = 0; op.shapes[i]; ++i) {
        const void *const offsets = op.arguments.tensors[i];
        if (op.shapes[i] == KFI_ATTENTION_OF_QUERIES) {
            packed->query_offsets = offsets;
            packed->wide = op.arguments.codes[KFI_CODE_LENGTH * i + KFI_CODE_SIZE] == '8';
        }
        if (op.shapes[i] == KFI_ATTENTION_OF_KEYS) packed->key_offsets = offsets;
    }
    packed->batch = (int)p.batch;
    const bool scores = strchr(op.shapes, KFI_ATTENTION_SCORES) != nullptr;
    packed->max_query = scores ? (int)kfi_clamp(p.max_query, 0, INT32_MAX) : INT32_MAX;
    packed->max_key = scores ? (int)kfi_clamp(p.max_key, 0, INT32_MAX) : INT32_MAX;
    packed->first = p.first;
    packed->last = p.last;
}
// Sets the lists of blocks of keys. Their bounds are 32-bit numbers.
KF_FN KFI_SMALL void kfi_attention_lists(kfi_attention_sparse *s, const kfi_attention_op &op,
                                         const kfi_attention_plan &p,
                                         const kfi_attention_strides *steps)
{
    for (int i = 0; op.shapes[i]; ++i) {
        const int *const tensor = (const int *)op.arguments.tensors[i];
        switch (op.shapes[i]) {
        case KFI_ATTENTION_LISTS: s->offsets = tensor, s->offset_strides = steps[i]; break;
        case KFI_ATTENTION_LISTED: s->entries = tensor; break;
        case KFI_ATTENTION_MASKS: s->masks = tensor; break;
        default: break;
        }
    }
    s->block = (int)p.block;
    s->listed = (int)kfi_clamp(p.listed, 0, INT32_MAX);
    s->mask_count = (int)kfi_clamp(p.masks, 0, INT32_MAX);
}
KF_FN KFI_SMALL void kfi_attention_sizes(kfi_attention *a, const kfi_attention_plan &p)
{
    a->queries = (int)p.queries, a->keys = (int)p.keys, a->heads = (int)p.heads;
    a->group = p.kv_heads ? (int)(p.heads / p.kv_heads) : 1;
    a->dim = (int)p.dim, a->dim_v = (int)p.dim_v;
    a->range = {p.first.slope, (int)p.first.add, p.last.slope, (int)p.last.add};
    a->score.query_base = (int)p.query_base, a->score.key_base = (int)p.key_base;
    a->score.head_base = (int)p.head_base;
    a->score.queries_total = (int)p.queries_total, a->score.keys_total = (int)p.keys_total;
}
// Returns whether rows of q, k, v and out begin at multiples of 16 bytes.
KF_FN KFI_SMALL bool kfi_attention_whole(const kfi_attention &a, const kfi_attention_plan &p,
                                         int bytes)
{
    const void *const tensors[] = {a.q, a.k, a.v, a.out};
    const kfi_attention_strides *const strides[] = {&a.q_strides, &a.k_strides, &a.v_strides,
                                                    &a.out_strides};
    kf_i64 steps = 0;
    uintptr_t bits = 0;
    for (int i = 0; i < 4; ++i) {
        const bool keys = i == 1 || i == 2;
        bits |= (uintptr_t)tensors[i];
        if (p.batch > 1) steps |= strides[i]->batch; // 0 of packed sequences
        if ((keys ? p.keys : p.queries) > 1) steps |= strides[i]->row;
        if ((keys ? p.kv_heads : p.heads) > 1) steps |= strides[i]->head;
    }
    return bits % 16 == 0 && steps * bytes % 16 == 0;
}
#define KFI_ATTENTION_MOST (0x7fffffff - 4096)
// Refuses more blocks than a grid can hold: `parts` per 32 rows, the fewest that a block has.
KF_FN KFI_SMALL kf_result_t kfi_attention_limit_blocks(const kfi_attention_op &op,
                                                       const kfi_attention_plan &p, kf_i64 rows,
                                                       kf_i64 heads, kf_i64 parts)
{
    const kf_i64 blocks = p.packed ? rows / 32 + p.batch + 2 : kfi_ceil(rows, 32),
                 batch = p.packed ? 1 : p.batch;
    if (heads == 0 || batch == 0 || blocks <= KFI_ATTENTION_MOST / parts / heads / batch)
        return KF_SUCCESS;
    return kfi_fail(KF_ERROR_UNSUPPORTED, &op.name, "launch",
                    "of %lld x %lld x %lld rows needs more blocks than a launch may have",
                    (long long)p.batch, (long long)heads, (long long)rows);
}
// Refuses sizes that the kernels' 32-bit indices or a grid cannot hold.
KF_FN KFI_SMALL kf_result_t kfi_attention_limits(const kfi_attention_op &op,
                                                 const kfi_attention_plan &p)
{
    const kf_i64 most = KFI_ATTENTION_MOST;
    if (p.dim_v > 256)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &op.name, "dim_v", "is %lld, expected at most 256",
                        (long long)p.dim_v);
    if (p.queries + p.keys > most || p.dim > most || p.queries_total > most ||
        p.keys_total > most || p.heads_total > most || (p.packed && p.batch > most))
        return kfi_fail(KF_ERROR_UNSUPPORTED, &op.name, "queries",
                        "is %lld of %lld, with %lld keys of %lld, expected fewer than 2^31 - 4096 "
                        "in all",
                        (long long)p.queries, (long long)p.queries_total, (long long)p.keys,
                        (long long)p.keys_total);
    return kfi_attention_limit_blocks(op, p, p.queries, p.heads, 1);
}
KF_FN KFI_SMALL kf_result_t kfi_attention_left_out(const kfi_name *name)
{
    return kfi_fail(KF_ERROR_UNSUPPORTED, name, "launch",
                    "has no kernel for these sizes and alignments: KF_SCHEDULES or KF_HEAD_DIMS "
                    "leaves it out");
}
// Launches a tensor-core kernel of 2-byte elements. Returns false if sizes or the device's code do
// not allow it.
KF_FN KFI_SMALL bool kfi_attention_run_tensor_cores(const kfi_attention_op &op, kfi_attention *a,
                                                    const kfi_attention_plan &p,
                                                    cudaStream_t stream, kf_result_t *result)
{
    const bool whole =
        p.dim % 8 == 0 && p.dim_v % 8 == 0 && p.dim > 0 && kfi_attention_whole(*a, p, 2);
    const void *const *const wgmma = op.kernels + KFI_ATTENTION_OF_WGMMA;
    int tile = whole ? kfi_attention_pick_tile(wgmma, p.dim, p.dim_v) : -1;
    kfi_tensor_map maps[3];
    if (tile >= 0 && kfi_has_wgmma(wgmma[tile], kfi_attention_threads(tile)) &&
        kfi_attention_encode(maps, *a, op.type, tile, p)) {
        *result = kfi_attention_launch(&op.name, wgmma[tile], op.kernels[KFI_ATTENTION_OF_TICKET],
                                       a, maps, tile, p, KFI_MAP_SMS, stream);
        return true;
    }
    for (int any = !whole; any < 2; ++any) {
        const void *const *const mma =
            op.kernels + (any ? KFI_ATTENTION_OF_ANY_MMA : KFI_ATTENTION_OF_MMA);
        tile = kfi_attention_pick_mma(mma, p.dim, p.dim_v);
        if (tile < 0 || kfi_most_threads(mma[tile]) < KFI_ATTENTION_MMA_THREADS) continue;
        *result = kfi_attention_launch_mma(&op.name, mma[tile], a, tile, p, stream);
        return true;
    }
    return false;
}
// Runs a call. `a` has the score's arguments, and begins those of `lists`.
KF_FN kf_result_t kfi_attention_run(const kfi_attention_op &op, const kfi_shape_values &v,
                                    const kfi_attention_plan &p, kfi_attention *a, void *workspace,
                                    size_t workspace_bytes, cudaStream_t stream,
                                    kfi_attention_sparse *lists = nullptr)
{
    kfi_operands operands;
    kfi_attention_strides steps[KFI_MAX_TENSORS];
    kf_result_t result = kfi_attention_check(&op.name, &op.arguments, &op.strides, op.shapes, &v,
                                             &p, steps, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    result = kfi_check_workspace(&op.name, &op.arguments, &operands, workspace, workspace_bytes,
                                 KFI_WORKSPACE_ALIGNED);
    if (result == KF_SUCCESS) result = kfi_attention_limits(op, p);
    if (result != KF_SUCCESS) return result;
    if (op.drops) result = kfi_attention_numbers(&op.name, &p, &a->drop.numbers, &a->drop.number0);
    if (result != KF_SUCCESS) return result;
    kfi_attention_sizes(a, p);
    kfi_attention_tensors(a, op, steps);
    if (lists) kfi_attention_lists(lists, op, p, steps);
    a->ticket = (int *)workspace;
    const bool small = op.type == KFI_OF_BF16 || op.type == KFI_OF_F16;
    if (small && kfi_attention_run_tensor_cores(op, a, p, stream, &result)) return result;
    const void *const *const simt = op.kernels + (small ? KFI_ATTENTION_OF_SIMT : 0);
    const int tile = small ? kfi_attention_pick_small_simt(simt, p.dim_v)
                           : kfi_attention_pick_simt(simt, p.dim_v, 0);
    if (tile < 0) return kfi_attention_left_out(&op.name);
    return kfi_attention_launch_simt(&op.name, simt[tile], a, op.type, tile, p, stream);
}
// The same for packed sequences.
KF_FN kf_result_t kfi_attention_run_packed(const kfi_attention_op &op, const kfi_shape_values &v,
                                           const kfi_attention_plan &p,
                                           kfi_attention_packed *packed, void *workspace,
                                           size_t workspace_bytes, cudaStream_t stream)
{
    kfi_attention_sequences(packed, op, p);
    return kfi_attention_run(op, v, p, &packed->a, workspace, workspace_bytes, stream);
}
// The same for lists of blocks of keys.
KF_FN kf_result_t kfi_attention_run_sparse(const kfi_attention_op &op, const kfi_shape_values &v,
                                           const kfi_attention_plan &p, kfi_attention_sparse *lists,
                                           void *workspace, size_t workspace_bytes,
                                           cudaStream_t stream)
{
    return kfi_attention_run(op, v, p, &lists->a, workspace, workspace_bytes, stream, lists);
}
#endif

#endif
