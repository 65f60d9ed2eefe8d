// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_hopper_rows.cuh: the kernels around attention's backward by wgmma
// (bwd_hopper.cuh).
//
// kfk_attention_bwd_prepare computes each query's shift, log2(e) (row_max + log_sum), and delta,
// sum of dout * out - dlse, and zeroes the tickets. Grid: 64 queries x heads x batch.
// kfk_attention_bwd_finish turns sums of dq into rows. Grid: blocks of queries x heads x batch, and
// with a mask a block more for each key head and batch. It computes rows of dq, dk and dv again
// that are not finite, over visible pairs: bwd_hopper.cuh multiplies elements of hidden pairs by a
// probability of 0, which keeps out finite ones only.
// Both take heads from the last one on: what the kernel before or behind them needs first, or wrote
// last, is in L2. Shared memory: static. Launched by bwd_hopper_host.cuh.
#ifndef KF_CORE_ATTENTION_BWD_HOPPER_ROWS_CUH
#define KF_CORE_ATTENTION_BWD_HOPPER_ROWS_CUH

#include "kf/core/attention/bwd_hopper_tile.cuh"
#include "kf/core/attention/bwd_mma.cuh"

#define KFI_ATTENTION_BWD_ROW_THREADS 256
#define KFI_ATTENTION_BWD_PREPARED 64 // queries of a block

// An argument of both kernels. g.shift and g.delta are those of `t`, and g.factor is NULL.
struct kfi_attention_bwd_rows {
    kfi_attention_bwd w;
    kfi_attention_bwd_tiles t;
    int columns; // blocks of a head in the grid
    bool hides;  // whether the mask hides any pair
};

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// Stores the statistics of a query, of which `sum` is that of dout * out.
KFI_DEVICE void kfi_attention_bwd_store_query(const kfi_attention_bwd_rows &r, int row, int heads,
                                              float sum)
{
    const kfi_attention_gradients &g = r.w.g;
    const kf_i64 to = (kf_i64)heads * r.t.padded + row, i = (kf_i64)heads * r.t.queries + row;
    const float log2e = 1.4426950408889634f;
    float shift = -kfi_minus_infinity();
    if (row < r.t.queries) {
        const bool two = g.row_max && g.log_sum;
        const float most = ((const float *)(two ? g.row_max : g.lse))[i],
                    log = two ? ((const float *)g.log_sum)[i] : 0.0f;
        // The reference of the forward, times the same unit: errors of both cancel.
        if (most != kfi_minus_infinity())
            shift = (r.w.a.unit > 0 ? most / r.w.a.unit * r.w.a.log2_unit : 0.0f) + log * log2e;
        if (g.dlse) sum -= ((const float *)g.dlse)[i];
    }
    r.t.shift[to] = shift;
    r.t.delta[to] = sum;
}
template <int type, int tile>
KFI_DEVICE void kfi_attention_bwd_prepare(const kfi_attention_bwd_rows &r)
{
    typedef typename kfi_attention_element<type>::stored stored;
    constexpr int lanes = kfi_attention_bwd_dim(tile) / 8, // a row's
        step = KFI_ATTENTION_BWD_ROW_THREADS / lanes, passes = KFI_ATTENTION_BWD_PREPARED / step,
                  queries = kfi_attention_bwd_queries(tile);
    const kfi_attention &a = r.w.a;
    const kfi_attention_gradients &g = r.w.g;
    const int columns = r.columns, all = (int)blockIdx.x / columns,
              m = (int)blockIdx.x - all * columns, heads = r.t.pairs * r.t.group - 1 - all,
              batch = heads / a.heads, head = heads - batch * a.heads,
              c = (int)threadIdx.x % lanes * 8,
              first = m * KFI_ATTENTION_BWD_PREPARED + (int)threadIdx.x / lanes;
    alignas(16) stored x[passes][8], y[passes][8];
#pragma unroll
    for (int n = 0; n < passes; ++n) {
        const int row = first + n * step;
#pragma unroll
        for (int e = 0; e < 8; ++e) x[n][e] = y[n][e] = stored{};
        if (row < a.queries && c < a.dim_v) {
            kfi_copy<16>(
                x[n],
                (const stored *)kfi_attention_row(g.dout, g.dout_strides, row, head, batch, 2) + c);
            kfi_copy<16>(
                y[n],
                (const stored *)kfi_attention_row(a.out, a.out_strides, row, head, batch, 2) + c);
        }
    }
#pragma unroll
    for (int n = 0; n < passes; ++n) {
        float sum = 0;
#pragma unroll
        for (int e = 0; e < 8; ++e)
            sum = __fmaf_rn(kfi_attention_widen(x[n][e]), kfi_attention_widen(y[n][e]), sum);
#pragma unroll
        for (int i = lanes / 2; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
        if (c == 0) kfi_attention_bwd_store_query(r, first + n * step, heads, sum);
    }
    if (threadIdx.x != 0) return;
    const int block = m * KFI_ATTENTION_BWD_PREPARED / queries;
    if (block < r.t.query_blocks) r.t.added[(kf_i64)heads * r.t.query_blocks + block] = 0;
    if (blockIdx.x == 0) *r.t.next = 0;
}

// Whether an element of the eight is infinite or NaN.
template <int type> KFI_DEVICE bool kfi_attention_bwd_bad_chunk(const unsigned *v)
{
    constexpr unsigned exponent = type == KFI_OF_BF16 ? 0x7f80u : 0x7c00u;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        bad |= (v[i] & exponent) == exponent || (v[i] >> 16 & exponent) == exponent;
    return bad;
}
// Stores the rows of a block of queries. rows: [queries, dim / 2 + 4] in shared memory. bad: counts
// chunks of a row that are not finite.
template <int type, int tile>
KFI_DEVICE void kfi_attention_bwd_store_rows(const unsigned *rows, int *bad,
                                             const kfi_attention_bwd_rows &r, int block, int heads)
{
    constexpr int dim = kfi_attention_bwd_dim(tile), queries = kfi_attention_bwd_queries(tile),
                  pitch = dim / 2 + 4, lanes = dim / 8, threads = KFI_ATTENTION_BWD_ROW_THREADS;
    const kfi_attention &a = r.w.a;
    const int batch = heads / a.heads, head = heads - batch * a.heads;
#pragma unroll
    for (int i = 0; i < queries * lanes / threads; ++i) {
        const int n = i * threads + (int)threadIdx.x, row = n / lanes, c = n % lanes,
                  query = block * queries + row;
        if (query >= a.queries || 8 * c >= a.dim) continue;
        alignas(16) unsigned v[4];
        kfi_copy<16>(v, rows + row * pitch + 4 * c);
        if (r.hides && kfi_attention_bwd_bad_chunk<type>(v)) atomicAdd(bad + row, 1);
        kfi_copy<16>((char *)kfi_attention_row(r.w.g.dq, r.w.g.dq_strides, query, head, batch, 2) +
                         16 * c,
                     v);
    }
}
// Computes a block of queries' rows of dq.
template <int type, int tile>
KFI_DEVICE void kfi_attention_bwd_finish_rows(const kfi_attention_bwd_rows &r, int block, int heads)
{
    constexpr int dim = kfi_attention_bwd_dim(tile), queries = kfi_attention_bwd_queries(tile),
                  pitch = dim / 2 + 4, threads = KFI_ATTENTION_BWD_ROW_THREADS,
                  count = queries * dim / 4 / threads;
    alignas(16) __shared__ unsigned rows[queries * pitch];
    __shared__ int bad[queries];
    const kfi_attention &a = r.w.a;
    const int batch = heads / a.heads, head = heads - batch * a.heads;
    const bool any =
        r.t.end > 0 && (!r.t.slope || (kf_i64)block * queries + queries - 1 + r.t.add >= 0);
    const float *const from =
        r.t.sums + ((kf_i64)heads * r.t.query_blocks + block) * (queries * dim);
    alignas(16) float v[count][4];
#pragma unroll
    for (int i = 0; i < count; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) v[i][e] = 0;
        if (any) kfi_copy<16>(v[i], from + 4 * (i * threads + (int)threadIdx.x));
    }
    if (threadIdx.x < queries) bad[threadIdx.x] = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        // Four numbers of thread n % 128 of a warpgroup: two rows, two columns of j-th eight.
        const int n = i * threads + (int)threadIdx.x, half = n / 1024, j = n % 1024 / 128,
                  lane = n % 32, row = n % 128 / 32 * 16 + lane / 4 + (dim == 64 ? half * 64 : 0),
                  c = j * 4 + lane % 4 + (dim == 128 ? half * 32 : 0);
        rows[row * pitch + c] = kfi_attention_pack<type>(v[i][0] * r.t.scale, v[i][1] * r.t.scale);
        rows[(row + 8) * pitch + c] =
            kfi_attention_pack<type>(v[i][2] * r.t.scale, v[i][3] * r.t.scale);
    }
    __syncthreads();
    kfi_attention_bwd_store_rows<type, tile>(rows, bad, r, block, heads);
    if (!r.hides) return;
    __syncthreads();
#pragma unroll 1
    for (int row = (int)threadIdx.x / 32; row < queries; row += threads / 32)
        if (bad[row])
            kfi_attention_bwd_recompute<type, KFI_SCORE_PLAIN, dim, 0, KFI_ATTENTION_FIRST,
                                        KFI_NO_DROPOUT>(a, r.w.g, block * queries + row, head,
                                                        batch);
}
// Computes rows of dk and dv again that bwd_hopper.cuh has reported.
template <int type, int tile>
KFI_DEVICE void kfi_attention_bwd_mend_keys(const kfi_attention_bwd_rows &r, int pair)
{
    constexpr int dim = kfi_attention_bwd_dim(tile), warps = KFI_ATTENTION_BWD_ROW_THREADS / 32;
    const int batch = pair / r.t.kv_heads, head = pair - batch * r.t.kv_heads;
    const unsigned char *const reached = r.t.reached + (kf_i64)pair * r.t.key_blocks * 8;
#pragma unroll 1
    for (int n = (int)threadIdx.x / 32; n < r.t.key_blocks * 8; n += warps) {
        if (!reached[n]) continue;
#pragma unroll 1
        for (int row = 16 * n; row < kfi_min_i32(16 * n + 16, r.w.a.keys); ++row)
            kfi_attention_bwd_recompute<type, KFI_SCORE_PLAIN, dim, 1,
                                        KFI_ATTENTION_FIRST | KFI_ATTENTION_SECOND, KFI_NO_DROPOUT>(
                r.w.a, r.w.g, row, head, batch);
    }
}
template <int type, int tile>
KFI_DEVICE void kfi_attention_bwd_finish(const kfi_attention_bwd_rows &r)
{
    const int all = (int)blockIdx.x / r.columns, block = (int)blockIdx.x - all * r.columns,
              heads = r.t.pairs * r.t.group - 1 - all;
    if (block < r.t.query_blocks && r.w.g.dq)
        kfi_attention_bwd_finish_rows<type, tile>(r, block, heads);
    else if (block == r.columns - 1 && heads < r.t.pairs)
        kfi_attention_bwd_mend_keys<type, tile>(r, heads);
}
#endif

#ifdef KFI_DEVICE_PASS
#define KFI_ATTENTION_BWD_ROW_BOUNDS                                                               \
    __launch_bounds__(KFI_HOPPER ? KFI_ATTENTION_BWD_ROW_THREADS : 32, 4)
#else
#define KFI_ATTENTION_BWD_ROW_BOUNDS
#endif
template <int type, int tile>
KFI_KERNEL void KFI_ATTENTION_BWD_ROW_BOUNDS
kfk_attention_bwd_prepare(const __grid_constant__ kfi_attention_bwd_rows r)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    kfi_begin();
    kfi_attention_bwd_prepare<type, tile>(r);
#endif
}
template <int type, int tile>
KFI_KERNEL void KFI_ATTENTION_BWD_ROW_BOUNDS
kfk_attention_bwd_finish(const __grid_constant__ kfi_attention_bwd_rows r)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    kfi_begin();
    kfi_attention_bwd_finish<type, tile>(r);
#endif
}

#endif
