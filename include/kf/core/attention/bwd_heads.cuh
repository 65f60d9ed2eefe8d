// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_heads.cuh: attention's backward: gradients of operands with one number per
// head, and of the sink.
//
// Blocks of queries (bwd_mma.cuh, bwd_simt.cuh) store the sum over their scores, and
// kfk_attention_bwd_head adds these sums. The sink's gradient needs the statistics of the queries
// alone: dsink = sum of exp(sink - lse) * (dlse - dout . out), in kfk_attention_bwd_sink.
// Grid: heads. Block: KFI_ATTENTION_HEADS_THREADS. Shared memory: static. Launched by bwd_host.cuh.
// Accuracy: sums in float, or double for f64. A thread adds every 512th number, then the block adds
// its threads: the order follows from the sizes and from the kernel of the queries.
#ifndef KF_CORE_ATTENTION_BWD_HEADS_CUH
#define KF_CORE_ATTENTION_BWD_HEADS_CUH

#include "kf/core/attention/simt.cuh"

#define KFI_ATTENTION_HEADS_THREADS 512

// Arguments of kfk_attention_bwd_head. sums: [batch, heads, blocks].
struct kfi_attention_head_sums {
    const void *sums;
    void *to;
    int batch, heads, blocks;
};
// Arguments of kfk_attention_bwd_sink. lse, row_max, log_sum, dlse: [batch, heads, queries], delta:
// [batch, heads, pitch].
struct kfi_attention_sink_sums {
    const void *sink, *lse, *row_max, *log_sum, *dlse, *delta;
    void *to;
    int batch, heads, queries, pitch;
};

#ifdef KFI_DEVICE_PASS

// Returns the sum over the threads of a block, to all of them: warps by shuffles, then the warps in
// ascending order.
template <class real> KFI_DEVICE real kfi_attention_sum_block(real sum)
{
    __shared__ real parts[KFI_ATTENTION_HEADS_THREADS / 32];
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    __syncthreads(); // threads may still read the parts of the sum before
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll 1
    for (int warp = 0; warp < (int)blockDim.x / 32; ++warp) sum += parts[warp];
    return sum;
}
// Stores the sums of a block as number `block`. Called by all threads.
template <int score, class real, class gradients>
KFI_DEVICE void kfi_attention_store_sums(const real *sums, const gradients &g, int block,
                                         bool refused)
{
#pragma unroll
    for (int n = 0; n < KFI_SCORE_TENSORS; ++n) {
        if (!(kfi_score_sums(kfi_tag<score>()) >> n & 1) || !g.sums[n]) continue;
        const real sum = kfi_attention_sum_block(sums[n]);
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
// Returns the sum of value(b, i) over [batch, count]. Called by all threads.
template <class real, class value_of>
KFI_DEVICE real kfi_attention_sum_head(int batch, int count, const value_of &value)
{
    const int threads = KFI_ATTENTION_HEADS_THREADS, own = (int)threadIdx.x;
    real sum = 0;
    if (count > 0) {
        const int more = threads / count, step = threads % count;
        int i = own % count;
#pragma unroll 1
        for (int b = own / count; b < batch; b += more) {
            sum += value(b, i);
            i += step;
            if (i >= count) i -= count, ++b;
        }
    }
    return kfi_attention_sum_block(sum);
}
#endif

// Types of elements: the call's, and the gradient's (`of`).
template <int type, int of>
KFI_KERNEL void KFI_BOUNDS(KFI_ATTENTION_HEADS_THREADS)
    kfk_attention_bwd_head(const __grid_constant__ kfi_attention_head_sums w)
{
#ifdef KFI_DEVICE_PASS
    typedef typename kfi_attention_element<type>::real real;
    typedef typename kfi_attention_element<of>::stored stored;
    kfi_begin();
    const int head = (int)blockIdx.x;
    const real *const sums = (const real *)w.sums;
    const real sum = kfi_attention_sum_head<real>(w.batch, w.blocks, [&](int b, int i) {
        return sums[((kf_i64)b * w.heads + head) * w.blocks + i];
    });
    if (threadIdx.x == 0) kfi_cast((stored *)w.to + head, sum);
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
    const bool two = w.row_max && w.log_sum;
    const real sink = kfi_attention_widen(((const stored *)w.sink)[head]);
    const real *const most = (const real *)(two ? w.row_max : w.lse),
                      *const log = (const real *)(two ? w.log_sum : nullptr),
                      *const delta = (const real *)w.delta, *const dlse = (const real *)w.dlse;
    // A sink of -inf is none, of queries that see no key as well.
    const int batch = sink == kfi_minus_infinity() ? 0 : w.batch;
    const real sum = kfi_attention_sum_head<real>(batch, w.queries, [&](int b, int i) {
        const kf_i64 all = (kf_i64)b * w.heads + head, at = all * w.queries + i;
        const real x = sink - most[at] - (log ? log[at] : real(0)), p = kfi_attention_exp(x);
        real d = delta[all * w.pitch + i];
        // A query that sees no key has no result, whatever dout holds.
        if (x >= 0 && d - d != 0) d = dlse ? -dlse[at] : real(0);
        return p == 0 ? real(0) : -p * d;
    });
    if (threadIdx.x == 0) kfi_cast((stored *)w.to + head, sum);
#endif
}

#endif
