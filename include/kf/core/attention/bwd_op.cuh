// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_op.cuh: launches of attention's backward: checks, the choice of the
// kernels, and their arguments.
//
// 2-byte elements take wgmma (bwd_hopper.cuh) on sm_90a if the score is a multiple of the product,
// without dropout and without a bound on the first key, rows begin at multiples of 16 bytes, and
// head dimensions are multiples of 8 up to 128; otherwise mma.sync (bwd_mma.cuh) from sm_80 on,
// with up to 256 dimensions. Others take FMAs (bwd_simt.cuh). The workspace has three numbers per
// query and, of each gradient with one number per head, the sums of blocks of queries; or what
// wgmma needs: sums of dq in float besides.
#ifndef KF_CORE_ATTENTION_BWD_OP_CUH
#define KF_CORE_ATTENTION_BWD_OP_CUH

#include "kf/core/attention/bwd_hopper_host.cuh"
#include "kf/core/attention/bwd_host.cuh"
#include "kf/core/attention/op.cuh"

// Kernels that a file compiles (KF_SCHEDULES, KF_HEAD_DIMS): mma.sync, FMAs of more than 64 columns
// and of any in slices.
#if (KF_SCHEDULES & 3) && (KF_HEAD_DIMS & 1)
#define KFI_BWD_MMA_64_ADDRESS KFI_ADDRESS
#define KFI_BWD_MMA_64_STATE_ADDRESS KFI_STATE_ADDRESS
#else
#define KFI_BWD_MMA_64_ADDRESS KFI_NO_ADDRESS
#define KFI_BWD_MMA_64_STATE_ADDRESS KFI_NO_ADDRESS
#endif
#if (KF_SCHEDULES & 3) && (KF_HEAD_DIMS & 2)
#define KFI_BWD_MMA_128_ADDRESS KFI_ADDRESS
#define KFI_BWD_MMA_128_STATE_ADDRESS KFI_STATE_ADDRESS
#else
#define KFI_BWD_MMA_128_ADDRESS KFI_NO_ADDRESS
#define KFI_BWD_MMA_128_STATE_ADDRESS KFI_NO_ADDRESS
#endif
#if (KF_SCHEDULES & 3) && (KF_HEAD_DIMS & 12)
#define KFI_BWD_MMA_256_ADDRESS KFI_ADDRESS
#define KFI_BWD_MMA_256_STATE_ADDRESS KFI_STATE_ADDRESS
#else
#define KFI_BWD_MMA_256_ADDRESS KFI_NO_ADDRESS
#define KFI_BWD_MMA_256_STATE_ADDRESS KFI_NO_ADDRESS
#endif
#if (KF_SCHEDULES & 1) && (KF_HEAD_DIMS & 14)
#define KFI_ANY_WIDE_ADDRESS KFI_ADDRESS
#define KFI_ANY_WIDE_STATE_ADDRESS KFI_STATE_ADDRESS
#else
#define KFI_ANY_WIDE_ADDRESS KFI_NO_ADDRESS
#define KFI_ANY_WIDE_STATE_ADDRESS KFI_NO_ADDRESS
#endif
#define KFI_PRE_SM80_ANY_ADDRESS KFI_PRE_SM80_ADDRESS
#define KFI_PRE_SM80_ANY_STATE_ADDRESS KFI_PRE_SM80_STATE_ADDRESS
// Head dimensions whose kernels by wgmma a file compiles: bits, by the number of a tile.
#if KF_SCHEDULES & 4
#define KFI_BWD_WGMMA_TILES (KF_HEAD_DIMS & 3)
#else
#define KFI_BWD_WGMMA_TILES 0
#endif

#ifdef KFI_HOST_PASS

// Kernels in a launcher's table: statistics for FMAs, then dq, dk and dv of each tile. 2-byte
// elements have in front of them those of each tile of wgmma, then statistics for mma.sync, dq, dk
// and dv of each tile. Behind these come kfk_attention_bwd_outside, of packed sequences with
// gradients of the scores' shape, and the kernels of gradients with one number per head.
enum {
    KFI_ATTENTION_BWD_WGMMAS = 3 * KFI_ATTENTION_BWD_WGMMA_TILES,
    KFI_ATTENTION_BWD_MMA_TILES = 3,
    KFI_ATTENTION_BWD_SIMT_TILES = 2,
    KFI_ATTENTION_BWD_MMAS = 1 + 2 * KFI_ATTENTION_BWD_MMA_TILES,
    KFI_ATTENTION_BWD_SMALL = KFI_ATTENTION_BWD_WGMMAS + KFI_ATTENTION_BWD_MMAS,
    KFI_ATTENTION_BWD_SIMTS = 1 + 2 * KFI_ATTENTION_BWD_SIMT_TILES
};

KF_FN KFI_SMALL size_t kfi_attention_bwd_plane(const kfi_attention_plan &p, kf_i64 bytes)
{
    const kf_i64 rows = (p.packed ? 1 : p.batch) * p.heads * p.queries;
    return (size_t)(kfi_ceil(rows * bytes, KFI_WORKSPACE_ALIGNED) * KFI_WORKSPACE_ALIGNED);
}
// Bytes of the sums of blocks of queries, which have at least 32 rows, of one gradient.
KF_FN KFI_SMALL size_t kfi_attention_bwd_partial(const kfi_attention_plan &p, kf_i64 bytes)
{
    const kf_i64 blocks =
        p.packed ? p.queries / 32 + p.batch + 2 : kfi_ceil(p.queries, 32) * p.batch;
    return kfi_attention_bwd_aligned(blocks * p.heads * bytes);
}
// Bytes that a call needs. bytes: size of a sum. wgmma: whether it has kernels by wgmma. sums:
// gradients of the score's operands with one number per head.
KF_FN KFI_SMALL size_t kfi_attention_bwd_bytes(const kfi_attention_plan &p, int bytes, bool wgmma,
                                               int sums)
{
    const size_t statistics =
        3 * kfi_attention_bwd_plane(p, bytes) + (size_t)sums * kfi_attention_bwd_partial(p, bytes);
    const int tile = kfi_attention_bwd_pick_tile(p.dim, p.dim_v);
    if (!wgmma || tile < 0 || !(KFI_BWD_WGMMA_TILES >> tile & 1)) return statistics;
    const size_t most = kfi_attention_bwd_hopper_bytes(p);
    return most > statistics ? most : statistics;
}
KF_FN KFI_SMALL size_t kfi_attention_bwd_workspace(const void *shape, int bytes, bool wgmma,
                                                   int sums)
{
    if (!shape) return 0;
    const kfi_attention_plan p = kfi_attention_plan_of((const int64_t *)shape);
    return kfi_attention_fits(&p) ? kfi_attention_bwd_bytes(p, bytes, wgmma, sums) : 0;
}
KF_FN KFI_SMALL size_t kfi_attention_bwd_packed_workspace(const void *shape, int bytes, bool wgmma,
                                                          int sums)
{
    if (!shape) return 0;
    const kfi_attention_plan p = kfi_attention_packed_plan_of((const int64_t *)shape);
    return kfi_attention_fits(&p) ? kfi_attention_bwd_bytes(p, bytes, wgmma, sums) : 0;
}

// Sets the gradients of a call; takes the statistics that kfi_attention_tensors has set. of: number
// of the score's tensor that each gradient of such a tensor belongs to. kernels: those behind the
// tiles.
KF_FN KFI_SMALL void kfi_attention_bwd_tensors(kfi_attention_bwd_call *call,
                                               const kfi_attention_op &op,
                                               const kfi_attention_strides *steps, const int *of,
                                               const void *const *kernels)
{
    const kfi_attention_plan &p = *call->p;
    kfi_attention *const a = call->a;
    kfi_attention_gradients *const g = call->g;
    if (p.packed && strchr(op.shapes, KFI_ATTENTION_DSCORES)) call->outside = *kernels++;
    for (int i = 0; op.shapes[i]; ++i) {
        const void *const from = op.arguments.tensors[i];
        void *const to = const_cast<void *>(from);
        switch (op.shapes[i]) {
        case KFI_ATTENTION_DOUT: g->dout = from, g->dout_strides = steps[i]; break;
        case KFI_ATTENTION_DLSE: g->dlse = from; break;
        case KFI_ATTENTION_DQ: g->dq = to, g->dq_strides = steps[i]; break;
        case KFI_ATTENTION_DK: g->dk = to, g->dk_strides = steps[i]; break;
        case KFI_ATTENTION_DV: g->dv = to, g->dv_strides = steps[i]; break;
        case KFI_ATTENTION_DSCORES:
            g->dscores[*of] = to, g->dscore_strides[*of] = steps[i];
            ++of;
            break;
        case KFI_ATTENTION_DHEADS:
            call->dheads[*of] = to, call->head_kernels[*of] = *kernels++;
            ++of;
            break;
        case KFI_ATTENTION_DSINK: call->dsink = to, call->sink_kernel = *kernels++; break;
        default: break;
        }
    }
    g->lse = a->lse, g->row_max = a->row_max, g->log_sum = a->log_sum;
    a->lse = a->row_max = a->log_sum = nullptr;
    g->query_strides = {p.packed ? 0 : p.heads * p.queries, 1, p.queries};
    g->kv_heads = (int)p.kv_heads;
}
KF_FN KFI_SMALL void kfi_attention_bwd_room(const kfi_attention_bwd_call &c, void *workspace,
                                            int bytes)
{
    const size_t plane = kfi_attention_bwd_plane(*c.p, bytes),
                 partial = kfi_attention_bwd_partial(*c.p, bytes);
    kfi_attention_gradients *const g = c.g;
    char *sums = (char *)workspace + 3 * plane;
    for (int n = 0; n < KFI_SCORE_TENSORS; ++n) {
        if (!c.dheads[n]) continue;
        g->sums[n] = sums;
        sums += partial;
    }
    g->delta = workspace;
    g->shift = (char *)workspace + plane;
    g->factor = (char *)workspace + 2 * plane;
}
// Launches the kernels by wgmma. Returns false if sizes, the mask, alignments or the device's code
// do not allow it.
KF_FN KFI_SMALL bool kfi_attention_bwd_run_wgmma(const kfi_attention_op &op,
                                                 const kfi_attention_bwd_call &c, void *workspace,
                                                 kf_result_t *result)
{
    const int tile = kfi_attention_bwd_pick_tile(c.p->dim, c.p->dim_v);
    if (tile < 0 || c.p->packed || !kfi_attention_bwd_hopper_sees(*c.a)) return false;
    const void *const *const k = op.kernels + 3 * tile;
    kfi_attention_bwd_rows rows = {};
    kfi_tensor_map maps[KFI_ATTENTION_BWD_MAPS];
    if (!k[1] || !kfi_attention_bwd_whole(*c.a, *c.g, *c.p) ||
        !kfi_has_wgmma(k[1], KFI_ATTENTION_BWD_THREADS) ||
        !kfi_attention_bwd_encode(maps, *c.a, *c.g, op.type, tile, *c.p))
        return false;
    kfi_attention_bwd_fill_rows(&rows, c, workspace, tile);
    *result =
        kfi_attention_bwd_launch_hopper(c, {k[0], k[1], k[2]}, tile, &rows, maps, KFI_MAP_SMS);
    if (*result == KF_SUCCESS)
        *result = kfi_attention_bwd_launch_sink(c, rows.w.g.delta, rows.t.padded);
    return true;
}
// Launches the kernels by mma.sync. Returns false if sizes or the device's code do not allow it.
KF_FN KFI_SMALL bool kfi_attention_bwd_run_mma(const kfi_attention_op &op,
                                               const kfi_attention_bwd_call &c, kf_result_t *result)
{
    const void *const *const mma = op.kernels + KFI_ATTENTION_BWD_WGMMAS;
    const void *of_queries[KFI_ATTENTION_BWD_MMA_TILES];
    for (int i = 0; i < KFI_ATTENTION_BWD_MMA_TILES; ++i) of_queries[i] = mma[1 + 2 * i];
    const int tile = kfi_attention_pick_mma(of_queries, c.p->dim, c.p->dim_v);
    if (tile < 0 || kfi_most_threads(of_queries[tile]) < KFI_ATTENTION_MMA_THREADS) return false;
    const kfi_attention_bwd_kernels kernels = {mma[0], of_queries[tile], mma[2 + 2 * tile]};
    *result = kfi_attention_bwd_launch_mma(c, kernels, tile);
    return true;
}
// Launches the kernels by FMAs. Without the preferred tile another one takes more slices.
KF_FN KFI_SMALL kf_result_t kfi_attention_bwd_run_simt(const kfi_attention_op &op,
                                                       const kfi_attention_bwd_call &c, bool small)
{
    const void *const *const simt = op.kernels + (small ? KFI_ATTENTION_BWD_SMALL : 0);
    const int first = kfi_attention_bwd_pick_simt(c.p->dim, c.p->dim_v);
    int found = -1;
    for (int n = 0; n < KFI_ATTENTION_BWD_SIMT_TILES; ++n) {
        const int tile = (first + n) % KFI_ATTENTION_BWD_SIMT_TILES;
        const void *const dq = simt[1 + 2 * tile];
        if (!dq) continue;
        const int most = small ? kfi_most_threads(dq) : KFI_ATTENTION_SIMT_THREADS;
        if (most >= KFI_ATTENTION_SIMT_THREADS) {
            found = tile;
            break;
        }
        if (most == 0) found = tile; // not loaded: its launch reports the cause
    }
    if (found < 0) return kfi_attention_left_out(&op.name);
    const kfi_attention_bwd_kernels kernels = {simt[0], simt[1 + 2 * found], simt[2 + 2 * found]};
    return kfi_attention_bwd_launch_simt(c, kernels, op.type, found);
}
// Refuses sizes that the kernels' 32-bit indices or a grid cannot hold.
KF_FN KFI_SMALL kf_result_t kfi_attention_bwd_limits(const kfi_attention_op &op,
                                                     const kfi_attention_plan &p)
{
    const kf_i64 parts = kfi_ceil(p.dim > p.dim_v ? p.dim : p.dim_v, 64) + 1;
    kf_result_t result = kfi_attention_limits(op, p);
    if (result == KF_SUCCESS) result = kfi_attention_limit_blocks(op, p, p.queries, p.heads, parts);
    if (result == KF_SUCCESS) result = kfi_attention_limit_blocks(op, p, p.keys, p.kv_heads, parts);
    return result;
}
// Runs a call. args: the kernels' argument, which has `a` with the score's arguments, and `g`.
KF_FN kf_result_t kfi_attention_bwd_run_all(const kfi_attention_op &op, const kfi_shape_values &v,
                                            const kfi_attention_plan &p, void *args,
                                            kfi_attention *a, kfi_attention_gradients *g,
                                            const int *of, void *workspace, size_t workspace_bytes,
                                            cudaStream_t stream)
{
    const bool small = op.type == KFI_OF_BF16 || op.type == KFI_OF_F16;
    const bool wgmma = small && (op.kernels[1] || op.kernels[4]); // any tile
    const int real = op.type == KFI_OF_F64 ? 8 : 4;
    const int tiles = KFI_ATTENTION_BWD_SIMTS + (small ? (int)KFI_ATTENTION_BWD_SMALL : 0);
    int sums = 0;
    for (const char *s = op.shapes; *s; ++s) sums += *s == KFI_ATTENTION_DHEADS;
    kfi_operands operands;
    kfi_attention_strides steps[KFI_MAX_TENSORS];
    kf_result_t result = kfi_attention_check(&op.name, &op.arguments, &op.strides, op.shapes, &v,
                                             &p, steps, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    result = kfi_check_workspace(&op.name, &op.arguments, &operands, workspace, workspace_bytes,
                                 kfi_attention_bwd_bytes(p, real, wgmma, sums));
    if (result == KF_SUCCESS) result = kfi_attention_bwd_limits(op, p);
    if (result == KF_SUCCESS && op.drops)
        result = kfi_attention_numbers(&op.name, &p, &a->drop.numbers, &a->drop.number0);
    if (result != KF_SUCCESS) return result;
    kfi_attention_sizes(a, p);
    kfi_attention_tensors(a, op, steps);
    kfi_attention_bwd_call call = {};
    call.name = &op.name, call.p = &p, call.args = args, call.a = a, call.g = g;
    call.stream = stream;
    call.drop = op.drops ? 0 : KFI_NO_DROPOUT; // both kinds of seeds take as much memory
    kfi_attention_bwd_tensors(&call, op, steps, of, op.kernels + tiles);
    if (small && kfi_attention_bwd_run_wgmma(op, call, workspace, &result)) return result;
    kfi_attention_bwd_room(call, workspace, real);
    if (g->dscores[0] || g->dscores[1]) result = kfi_attention_bwd_launch_outside(call);
    if (result != KF_SUCCESS) return result;
    if (!small || !kfi_attention_bwd_run_mma(op, call, &result))
        result = kfi_attention_bwd_run_simt(op, call, small);
    return result == KF_SUCCESS ? kfi_attention_bwd_launch_sink(call, g->delta, (int)p.queries)
                                : result;
}
KF_FN kf_result_t kfi_attention_bwd_run(const kfi_attention_op &op, const kfi_shape_values &v,
                                        const kfi_attention_plan &p, kfi_attention_bwd *b,
                                        const int *of, void *workspace, size_t workspace_bytes,
                                        cudaStream_t stream)
{
    return kfi_attention_bwd_run_all(op, v, p, b, &b->a, &b->g, of, workspace, workspace_bytes,
                                     stream);
}
// The same for packed sequences.
KF_FN kf_result_t kfi_attention_bwd_run_packed(const kfi_attention_op &op,
                                               const kfi_shape_values &v,
                                               const kfi_attention_plan &p,
                                               kfi_attention_bwd_packed *b, const int *of,
                                               void *workspace, size_t workspace_bytes,
                                               cudaStream_t stream)
{
    kfi_attention_sequences(&b->p, op, p);
    return kfi_attention_bwd_run_all(op, v, p, b, &b->p.a, &b->g, of, workspace, workspace_bytes,
                                     stream);
}
#endif

#endif
