// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_heads.cuh: attention's backward: gradients of operands with a number per
// head, and of the sink.
//
// Blocks of queries (bwd_mma.cuh, bwd_simt.cuh) store the sum over their scores; a block per head
// then sums those over batches and blocks of queries. The sink's gradient follows from the
// statistics of the queries alone: dsink = sum of exp(sink - lse) * (dlse - dout . out).
// Grid: heads. Block: KFI_ATTENTION_HEADS_THREADS. Launched by bwd_host.cuh.
// Accuracy: float, or double for f64. Sums have an order that the sizes and the kernel of the
// queries fix: per thread every 128th number, then a tree.
#ifndef KF_CORE_ATTENTION_BWD_HEADS_CUH
#define KF_CORE_ATTENTION_BWD_HEADS_CUH

#include "kf/core/attention/simt.cuh"

#define KFI_ATTENTION_HEADS_THREADS 128

// Arguments of kfk_attention_bwd_head. sums: [batch, heads, blocks].
struct kfi_attention_head_sums {
    const void *sums;
    void *to;
    int batch, heads, blocks;
};
// Arguments of kfk_attention_bwd_sink. lse, row_max, log_sum, delta: [batch, heads, queries].
struct kfi_attention_sink_sums {
    const void *sink, *lse, *row_max, *log_sum, *delta;
    void *to;
    int batch, heads, queries;
};

#ifdef KFI_DEVICE_PASS

// Stores the sums of a block as number `block`. Called by all threads.
template <int score, class real, class gradients>
KFI_DEVICE void kfi_attention_store_sums(const real *sums, const gradients &g, int block,
                                         bool refused)
{
#pragma unroll
    for (int n = 0; n < KFI_SCORE_TENSORS; ++n) {
        if (!(kfi_score_sums(kfi_tag<score>()) >> n & 1) || !g.sums[n]) continue;
        const real sum = kfi_reduce_block<KFI_REDUCE_SUM>(sums[n]);
        if (threadIdx.x == 0)
            ((real *)g.sums[n])[block] = refused ? real(kfi_attention_nan()) : sum;
    }
}
// The same for a block without rows.
template <int score, class real, class gradients>
KFI_DEVICE void kfi_attention_no_sums(const gradients &g, int block)
{
#pragma unroll
    for (int n = 0; n < KFI_SCORE_TENSORS; ++n)
        if (kfi_score_sums(kfi_tag<score>()) >> n & 1 && g.sums[n] && threadIdx.x == 0)
            ((real *)g.sums[n])[block] = 0;
}
#endif

// type: of the call's elements; of: of the gradient's.
template <int type, int of>
KFI_KERNEL void KFI_BOUNDS(KFI_ATTENTION_HEADS_THREADS)
    kfk_attention_bwd_head(const __grid_constant__ kfi_attention_head_sums w)
{
#ifdef KFI_DEVICE_PASS
    typedef typename kfi_attention_element<type>::real real;
    kfi_begin();
    const int head = (int)blockIdx.x;
    const kf_i64 count = (kf_i64)w.batch * w.blocks;
    real sum = 0;
#pragma unroll 1
    for (kf_i64 i = threadIdx.x; i < count; i += KFI_ATTENTION_HEADS_THREADS)
        sum += ((const real *)w.sums)[(i / w.blocks * w.heads + head) * w.blocks + i % w.blocks];
    sum = kfi_reduce_block<KFI_REDUCE_SUM>(sum);
    if (threadIdx.x == 0) kfi_cast((typename kfi_attention_element<of>::stored *)w.to + head, sum);
#endif
}
template <int type, int of>
KFI_KERNEL void KFI_BOUNDS(KFI_ATTENTION_HEADS_THREADS)
    kfk_attention_bwd_sink(const __grid_constant__ kfi_attention_sink_sums w)
{
#ifdef KFI_DEVICE_PASS
    typedef typename kfi_attention_element<type>::real real;
    typedef typename kfi_attention_element<of>::stored stored;
    kfi_begin();
    const int head = (int)blockIdx.x;
    const kf_i64 count = (kf_i64)w.batch * w.queries;
    const real sink = kfi_attention_widen(((const stored *)w.sink)[head]);
    const bool none = sink == kfi_minus_infinity(), two = w.row_max && w.log_sum;
    real sum = 0;
#pragma unroll 1
    for (kf_i64 i = threadIdx.x; i < count; i += KFI_ATTENTION_HEADS_THREADS) {
        const kf_i64 at = (i / w.queries * w.heads + head) * w.queries + i % w.queries;
        const real most = ((const real *)(two ? w.row_max : w.lse))[at],
                   log = two ? ((const real *)w.log_sum)[at] : real(0),
                   p = kfi_attention_exp(sink - most - log);
        if (!none && p != 0) sum -= p * ((const real *)w.delta)[at];
    }
    sum = kfi_reduce_block<KFI_REDUCE_SUM>(sum);
    if (threadIdx.x == 0) kfi_cast((stored *)w.to + head, sum);
#endif
}

#endif
