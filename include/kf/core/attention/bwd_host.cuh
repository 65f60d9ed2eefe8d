// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_host.cuh: host side of attention's backward (bwd.cuh, bwd_mma.cuh,
// bwd_simt.cuh): tiles and the launches of one call.
#ifndef KF_CORE_ATTENTION_BWD_HOST_CUH
#define KF_CORE_ATTENTION_BWD_HOST_CUH

#include "kf/core/attention/bwd_mma.cuh"
#include "kf/core/attention/bwd_simt.cuh"

#ifdef KFI_HOST_PASS
#include "kf/core/attention/portable_host.cuh"

// A call. args: the kernels' argument, which has `a` and `g`.
struct kfi_attention_bwd_call {
    const kfi_name *name;
    const kfi_attention_plan *p;
    void *args;
    kfi_attention *a;
    kfi_attention_gradients *g;
    cudaStream_t stream;
    int drop; // KFI_NO_DROPOUT, or not
    // Gradients with one number per head, per kfi_score_args::tensors, and of the sink, each or
    // NULL; their kernels.
    void *dheads[KFI_SCORE_TENSORS], *dsink;
    const void *head_kernels[KFI_SCORE_TENSORS], *sink_kernel;
    const void *outside; // NULL without packed gradients of the scores' shape
};
// Kernels of one schedule: of the statistics, of dq, of dk and dv.
struct kfi_attention_bwd_kernels {
    const void *delta, *dq, *dkv;
};

// Launches `parts` blocks per `rows` rows of a head of q, or of k.
KF_FN kf_result_t kfi_attention_bwd_launch(const kfi_attention_bwd_call &c, const void *kernel,
                                           bool keys, int rows, int parts, int shared,
                                           unsigned threads)
{
    const kfi_attention_plan &p = *c.p;
    const kf_i64 count = keys ? p.keys : p.queries, heads = keys ? p.kv_heads : p.heads,
                 blocks = p.packed ? count / rows + p.batch + 2 : kfi_ceil(count, rows),
                 batch = p.packed ? 1 : p.batch;
    void *args[] = {c.args};
    if (blocks * heads * batch == 0) return KF_SUCCESS;
    c.a->row_blocks = (int)blocks;
    return kfi_launch(c.name, kernel, dim3((unsigned)(blocks * heads * batch * parts)), threads,
                      args, c.stream, true, (unsigned)shared);
}
KF_FN kf_result_t kfi_attention_bwd_launch_delta(const kfi_attention_bwd_call &c,
                                                 const void *kernel)
{
    return kfi_attention_bwd_launch(c, kernel, false, KFI_ATTENTION_DELTA_ROWS, 1, 0,
                                    KFI_ATTENTION_DELTA_THREADS);
}
// Launches the kernel of what lies outside of packed sequences, with at most 2^20 blocks.
KF_FN kf_result_t kfi_attention_bwd_launch_outside(const kfi_attention_bwd_call &c)
{
    const kf_i64 chunks = kfi_ceil(c.p->max_query, KFI_ATTENTION_OUTSIDE_ROWS),
                 blocks = kfi_clamp(chunks, 0, 1 << 20) * c.p->heads * c.p->batch;
    void *args[] = {c.args};
    if (!c.outside || blocks == 0 || c.p->max_key == 0) return KF_SUCCESS;
    return kfi_launch(c.name, c.outside, dim3((unsigned)kfi_clamp(blocks, 1, 1 << 20)),
                      KFI_ATTENTION_OUTSIDE_THREADS, args, c.stream, true, 0);
}
// Launches the kernel of blocks of queries, and kernels that add its sums per head. Gradients that
// nobody wants have no launch.
KF_FN kf_result_t kfi_attention_bwd_launch_queries(const kfi_attention_bwd_call &c,
                                                   const void *kernel, int rows, int parts,
                                                   int shared, unsigned threads)
{
    const kfi_attention_gradients &g = *c.g;
    const kfi_attention_plan &p = *c.p;
    const bool heads = c.dheads[0] || c.dheads[1];
    kf_result_t result = KF_SUCCESS;
    c.a->row_blocks = 0;
    if (g.dq || g.dscores[0] || g.dscores[1] || heads)
        result = kfi_attention_bwd_launch(c, kernel, false, rows, parts, shared, threads);
    for (int n = 0; n < KFI_SCORE_TENSORS && heads && p.heads > 0; ++n) {
        kfi_attention_head_sums sums = {g.sums[n], c.dheads[n], p.packed ? 1 : (int)p.batch,
                                        (int)p.heads, c.a->row_blocks};
        void *args[] = {&sums};
        if (result == KF_SUCCESS && c.dheads[n])
            result = kfi_launch(c.name, c.head_kernels[n], dim3((unsigned)p.heads),
                                KFI_ATTENTION_HEADS_THREADS, args, c.stream, true, 0);
    }
    return result;
}
// Launches the kernel of the sink's gradient. delta: [batch, heads, pitch], set by launches before.
KF_FN kf_result_t kfi_attention_bwd_launch_sink(const kfi_attention_bwd_call &c, const void *delta,
                                                int pitch)
{
    const kfi_attention_gradients &g = *c.g;
    const kfi_attention_plan &p = *c.p;
    const int batch = p.packed ? 1 : (int)p.batch;
    kfi_attention_sink_sums sums = {c.a->score.sink, g.lse,          g.row_max, g.log_sum,
                                    g.dlse,          delta,          c.dsink,   batch,
                                    (int)p.heads,    (int)p.queries, pitch};
    void *args[] = {&sums};
    if (!c.dsink || p.heads == 0) return KF_SUCCESS;
    return kfi_launch(c.name, c.sink_kernel, dim3((unsigned)p.heads), KFI_ATTENTION_HEADS_THREADS,
                      args, c.stream, true, 0);
}
// Launches the kernels of a call by mma.sync. Gradients that nobody wants have no launch.
KF_FN kf_result_t kfi_attention_bwd_launch_mma(const kfi_attention_bwd_call &c,
                                               const kfi_attention_bwd_kernels &k, int tile)
{
    kf_result_t result = kfi_attention_bwd_launch_delta(c, k.delta);
    const int shared = kfi_attention_bwd_mma_bytes(tile, c.drop);
    const kfi_attention_gradients &g = *c.g;
    if (result == KF_SUCCESS)
        result = kfi_attention_bwd_launch_queries(c, k.dq, KFI_ATTENTION_MMA_ROWS, 1, shared,
                                                  KFI_ATTENTION_MMA_THREADS);
    if (result == KF_SUCCESS && (g.dk || g.dv))
        result = kfi_attention_bwd_launch(c, k.dkv, true, KFI_ATTENTION_MMA_ROWS,
                                          kfi_attention_bwd_mma_parts(tile, 1), shared,
                                          KFI_ATTENTION_MMA_THREADS);
    return result;
}
// The same by FMAs.
KF_FN kf_result_t kfi_attention_bwd_launch_simt(const kfi_attention_bwd_call &c,
                                                const kfi_attention_bwd_kernels &k, int type,
                                                int tile)
{
    kf_result_t result = kfi_attention_bwd_launch_delta(c, k.delta);
    const int shared = kfi_attention_bwd_simt_bytes(type, tile, c.drop),
              rows = kfi_attention_simt_rows(type, tile), cols = kfi_attention_bwd_simt_cols(tile);
    const kf_i64 most = c.p->dim > c.p->dim_v ? c.p->dim : c.p->dim_v;
    kfi_attention_gradients &g = *c.g;
    g.slices = c.p->dim > 0 ? (int)kfi_ceil(c.p->dim, cols) : 1;
    if (result == KF_SUCCESS)
        result = kfi_attention_bwd_launch_queries(c, k.dq, rows, g.slices, shared,
                                                  KFI_ATTENTION_SIMT_THREADS);
    g.slices = most > 0 ? (int)kfi_ceil(most, cols) : 1;
    if (result == KF_SUCCESS && (g.dk || g.dv))
        result = kfi_attention_bwd_launch(c, k.dkv, true, rows, g.slices, shared,
                                          KFI_ATTENTION_SIMT_THREADS);
    return result;
}
// Returns the preferred tile of FMAs: the smallest one without further slices, or the largest.
KF_FN int kfi_attention_bwd_pick_simt(kf_i64 dim, kf_i64 dim_v)
{
    return dim <= 64 && dim_v <= 64 ? 0 : 1;
}
#endif

#endif
