// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_hopper.cuh: attention's backward of 2-byte elements by wgmma (sm_90a):
// dk and dv, and sums of dq.
//
// Persistent, warp-specialised kernel. Two consumer warpgroups have 64 keys of an item each
// (bwd_hopper_work.cuh) and walk the queries: S^T = K . Q^T and dP^T = V . dout^T from shared
// memory; P^T and dS^T stay in registers, the operands A of dV += P^T . dout and dK += dS^T . Q.
// dS^T goes to shared memory by stmatrix, and each warpgroup computes half of dQ from it one step
// later, so that the two need no barrier between them. The producer warpgroup loads Q and dout by
// TMA, in two stages; two of its warps send dQ, in float and the accumulators' order, to memory:
// the first block of keys stores, the others add by cp.reduce in an order that sizes fix.
//
// Grid: one CTA per SM at most. Shared memory: kfi_attention_bwd_layout_of. Launched by
// bwd_hopper_host.cuh between the kernels of bwd_hopper_rows.cuh, where rows of q, k, v, dout, dk
// and dv begin at multiples of 16 bytes.
// Accuracy: products in float, P and dS rounded to the element type. The order of sums is fixed by
// the shape: for dk and dv blocks of queries, then heads of the group; for dq blocks of keys.
// Elements of hidden pairs meet a probability of 0. Those that are not finite reach rows all the
// same; rows of dK and dV are reported to bwd_hopper_rows.cuh, which mends them.
#ifndef KF_CORE_ATTENTION_BWD_HOPPER_CUH
#define KF_CORE_ATTENTION_BWD_HOPPER_CUH

#include "kf/core/attention/bwd_hopper_load.cuh"
#include "kf/core/attention/softmax.cuh"

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

struct kfi_attention_bwd_consumer {
    unsigned base;
    int group;
    unsigned dscore; // address of the thread's gradients of scores
    int n, used;     // steps, and items with steps, of the CTA before
    bool pending;    // dk and dv of the item before leave from the buffers of dQ
};
KFI_DEVICE int kfi_attention_bwd_lane() { return (int)threadIdx.x % 32; }
KFI_DEVICE int kfi_attention_bwd_thread() { return (int)threadIdx.x % 128; }
template <int tile>
KFI_DEVICE kfi_attention_bwd_consumer kfi_attention_bwd_consumer_init(unsigned base, int group)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    const int lane = kfi_attention_bwd_lane(),
              row = group * 64 + kfi_attention_bwd_thread() / 32 * 16 + lane % 16;
    kfi_attention_bwd_consumer w;
    w.base = base;
    w.group = group;
    // Chunk 2 k + lane / 16 of 16 bytes of the row is at this address ^ 32 k.
    w.dscore = base + (unsigned)(at.dscore + row * 128 + (((lane / 16) ^ (lane & 7)) << 4));
    w.n = w.used = 0;
    w.pending = false;
    return w;
}
KFI_DEVICE void kfi_attention_bwd_arrive(unsigned bar)
{
    if (kfi_attention_bwd_lane() == 0) kfi_mbar_arrive(bar);
}
// Waits for the warpgroup's 128 threads. Constants keep the kernel at three barriers.
KFI_DEVICE void kfi_attention_bwd_sync(int group)
{
    if (group)
        kfi_named_sync<128>(2);
    else
        kfi_named_sync<128>(1);
}
template <int n, class T> KFI_DEVICE void kfi_attention_bwd_opaque(T *x)
{
#pragma unroll
    for (int i = 0; i < n; ++i) kfi_wgmma_opaque(x[i]);
}

// Issues 64 x n scores = A . B^T. Slabs of 64 columns are `a_slab` and `b_slab` bytes apart.
template <int type, int dim, int n>
KFI_DEVICE void kfi_attention_bwd_scores(float *d, unsigned long long a, int a_slab,
                                         unsigned long long b, int b_slab)
{
    kfi_wgmma_first<n, type>(d, a, b);
#pragma unroll
    for (int k = 1; k < dim / 16; ++k)
        kfi_wgmma<n, type>(d, a + (k / 4 * a_slab + k % 4 * 32) / 16,
                           b + (k / 4 * b_slab + k % 4 * 32) / 16, 1);
    kfi_wgmma_commit();
}
// Issues D += A . B for A of 64 x n in registers.
template <int type, int dim, int n>
KFI_DEVICE void kfi_attention_bwd_sum(float *d, const unsigned *a, unsigned long long b)
{
#pragma unroll
    for (int k = 0; k < n / 16; ++k)
        kfi_wgmma_registers<dim, type, 1>(d, a + 4 * k, b + k * 128, 1);
}
// Issues 64 queries x 64 columns of dQ = dS . K, over 128 keys.
template <int type>
KFI_DEVICE void kfi_attention_bwd_issue_dq(float *d, unsigned long long dscore,
                                           unsigned long long k)
{
    kfi_wgmma_first<64, type, 1, 1>(d, dscore, k);
#pragma unroll
    for (int i = 1; i < 8; ++i) kfi_wgmma<64, type, 1, 1>(d, dscore + i * 128, k + i * 128, 1);
    kfi_wgmma_commit();
}

// Turns products into probabilities. Pairs that the mask hides have 0, whatever their product is.
template <int tile>
KFI_DEVICE void kfi_attention_bwd_exponentials(float *p, const char *shift, bool masked, int step,
                                               const kfi_attention_bwd_item &x,
                                               const kfi_attention_bwd_consumer &w,
                                               const kfi_attention_bwd_tiles &a)
{
    constexpr int queries = kfi_attention_bwd_queries(tile);
#pragma unroll
    for (int j = 0; j < queries / 8; ++j) {
        float2 of;
        kfi_copy<8>(&of, shift + 32 * j);
        p[4 * j] = kfi_ex2_ftz(__fmaf_rn(p[4 * j], a.log2_scale, -of.x));
        p[4 * j + 1] = kfi_ex2_ftz(__fmaf_rn(p[4 * j + 1], a.log2_scale, -of.y));
        p[4 * j + 2] = kfi_ex2_ftz(__fmaf_rn(p[4 * j + 2], a.log2_scale, -of.x));
        p[4 * j + 3] = kfi_ex2_ftz(__fmaf_rn(p[4 * j + 3], a.log2_scale, -of.y));
    }
    if (!masked) return;
    const int block = a.ascending ? x.first + step / a.group : a.query_blocks - 1 - step / a.group,
              own = x.key + w.group * 64 + kfi_attention_bwd_thread() / 32 * 16 +
                    kfi_attention_bwd_lane() / 4,
              end = a.end - own,
              last = a.slope ? block * queries + a.add + 2 * (kfi_attention_bwd_lane() % 4) - own
                             : 0x3fffffff;
#pragma unroll
    for (int i = 0; i < queries / 2; ++i) {
        const int row = 8 * kfi_score_row(i);
        if (row >= end || row > last + kfi_score_key(i)) p[i] = 0;
    }
}
// Turns dout . v into gradients of scores, and packs both.
template <int type, int tile>
KFI_DEVICE void kfi_attention_bwd_gradients(unsigned *p_packed, unsigned *d_packed, const float *p,
                                            const float *d, const char *delta)
{
    constexpr int queries = kfi_attention_bwd_queries(tile);
#pragma unroll
    for (int j = 0; j < queries / 8; ++j) {
        float2 of;
        kfi_copy<8>(&of, delta + 32 * j);
        d_packed[2 * j] = kfi_attention_pack<type>(p[4 * j] * (d[4 * j] - of.x),
                                                   p[4 * j + 1] * (d[4 * j + 1] - of.y));
        d_packed[2 * j + 1] = kfi_attention_pack<type>(p[4 * j + 2] * (d[4 * j + 2] - of.x),
                                                       p[4 * j + 3] * (d[4 * j + 3] - of.y));
        p_packed[2 * j] = kfi_attention_pack<type>(p[4 * j], p[4 * j + 1]);
        p_packed[2 * j + 1] = kfi_attention_pack<type>(p[4 * j + 2], p[4 * j + 3]);
    }
}
// Stores gradients of scores to stage `s`, keys in rows.
template <int tile>
KFI_DEVICE void kfi_attention_bwd_store_scores(const unsigned *d,
                                               const kfi_attention_bwd_consumer &w, int s)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    const unsigned to = w.dscore + (unsigned)(s * at.of_scores);
#pragma unroll
    for (int k = 0; k < kfi_attention_bwd_queries(tile) / 16; ++k)
        kfi_stmatrix<0>((to + (k >> 2) * 16384) ^ ((k & 3) << 5), d + 4 * k);
    kfi_async_fence();
    __syncwarp();
    kfi_attention_bwd_arrive(kfi_attention_bwd_bar_at<tile>(w.base, KFI_BWD_DSCORE_FULL + s));
}
// Waits until dk and dv of the item before have been read.
KFI_DEVICE void kfi_attention_bwd_drain(kfi_attention_bwd_consumer *w)
{
    if (w->pending) {
        if (kfi_attention_bwd_thread() == 0) kfi_bulk_wait_read<0>();
        kfi_attention_bwd_sync(w->group);
    }
    w->pending = false;
}
// Passes the dQ of step number `i` of an item, the CTA's number `n`, on to the sender.
template <int tile>
KFI_DEVICE void kfi_attention_bwd_store_dq(char *memory, const float *dq,
                                           kfi_attention_bwd_consumer *w, int i, int n)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    const int s = n & 1;
    kfi_attention_bwd_arrive(kfi_attention_bwd_bar_at<tile>(w->base, KFI_BWD_DSCORE_EMPTY + s));
    if (i == 0) kfi_attention_bwd_drain(w);
    // The end of an item waits for both buffers.
    if (i >= 2)
        kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(w->base, KFI_BWD_DQ_EMPTY + s),
                      (n >> 1 & 1) ^ 1);
    char *const to =
        memory + at.dq + s * at.of_dq + w->group * 16384 + kfi_attention_bwd_thread() * 16;
#pragma unroll
    for (int j = 0; j < 8; ++j) kfi_copy<16>(to + j * 2048, dq + 4 * j);
    kfi_async_fence();
    __syncwarp();
    kfi_attention_bwd_arrive(kfi_attention_bwd_bar_at<tile>(w->base, KFI_BWD_DQ_FULL + s));
}
// The descriptor of gradients of scores, stage `s`, for this warpgroup's half of dQ.
template <int tile>
KFI_DEVICE unsigned kfi_attention_bwd_dscore_at(const kfi_attention_bwd_consumer &w, int s)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    return w.base + (unsigned)(at.dscore + s * at.of_scores +
                               (tile == KFI_ATTENTION_WGMMA_64 ? w.group * 16384 : 0));
}
template <int tile>
KFI_DEVICE unsigned long long kfi_attention_bwd_transposed_k(const kfi_attention_bwd_consumer &w)
{
    return kfi_wgmma_descriptor(
        w.base + (unsigned)(tile == KFI_ATTENTION_WGMMA_64 ? 0 : w.group * 16384), 0, 1024);
}

// Descriptors of Q and dout of a stage.
template <int tile> KFI_DEVICE unsigned long long kfi_attention_bwd_q(unsigned base, int s)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    return kfi_wgmma_descriptor(base + at.q + s * at.of_queries,
                                kfi_attention_bwd_queries(tile) * 128, 1024);
}
template <int tile> KFI_DEVICE unsigned long long kfi_attention_bwd_dout(unsigned base, int s)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    return kfi_wgmma_descriptor(base + at.dout + s * at.of_queries,
                                kfi_attention_bwd_queries(tile) * 128, 1024);
}

// Computes probabilities and gradients of scores of step `i` of an item, packed as operands A.
template <int type, int tile>
KFI_DEVICE void kfi_attention_bwd_step_scores(unsigned *p_packed, unsigned *d_packed, char *memory,
                                              const kfi_attention_bwd_consumer &w,
                                              const kfi_attention_bwd_item &x, int i, bool masked,
                                              const kfi_attention_bwd_tiles &a)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    constexpr int dim = kfi_attention_bwd_dim(tile), queries = kfi_attention_bwd_queries(tile),
                  key_slab = KFI_ATTENTION_BWD_ITEM_KEYS * 128, query_slab = queries * 128;
    const unsigned base = w.base;
    const int s = w.n & 1, phase = w.n >> 1 & 1;
    float p[queries / 2], d[queries / 2];
    const unsigned long long k = kfi_wgmma_descriptor(base + at.k + w.group * 8192, 0, 1024),
                             v = kfi_wgmma_descriptor(base + at.v + w.group * 8192, 0, 1024);
    kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_Q_FULL + s), phase);
    if (i == 0) kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_K_FULL), w.used & 1);
    kfi_wgmma_fence();
    kfi_attention_bwd_scores<type, dim, queries>(p, k, key_slab, kfi_attention_bwd_q<tile>(base, s),
                                                 query_slab);
    if (i == 0) kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_V_FULL), w.used & 1);
    kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_DOUT_FULL + s), phase);
    kfi_wgmma_fence();
    kfi_attention_bwd_scores<type, dim, queries>(d, v, key_slab,
                                                 kfi_attention_bwd_dout<tile>(base, s), query_slab);
    kfi_wgmma_wait<1>();
    kfi_attention_bwd_opaque<queries / 2>(p);
    const char *const shift =
        memory + at.shift + s * queries * 4 + kfi_attention_bwd_lane() % 4 * 8;
    kfi_attention_bwd_exponentials<tile>(p, shift, masked, i, x, w, a);
    kfi_attention_bwd_opaque<queries / 2>(p);
    kfi_wgmma_wait<0>();
    kfi_attention_bwd_opaque<queries / 2>(d);
    if (i == x.steps - 1)
        kfi_attention_bwd_arrive(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_V_EMPTY));
    kfi_attention_bwd_gradients<type, tile>(p_packed, d_packed, p, d,
                                            shift + (at.delta - at.shift));
}
// One step: products of a block of queries, and dQ of the step before. i: number in the item.
template <int type, int tile>
KFI_DEVICE void kfi_attention_bwd_step_of(float *dk, float *dv, char *memory,
                                          kfi_attention_bwd_consumer *w,
                                          const kfi_attention_bwd_item &x, int i, int masked_steps,
                                          const kfi_attention_bwd_tiles &a)
{
    constexpr int dim = kfi_attention_bwd_dim(tile), queries = kfi_attention_bwd_queries(tile);
    const unsigned base = w->base;
    const int s = w->n & 1, phase = w->n >> 1 & 1;
    const bool masked = a.ascending ? i < masked_steps : i >= x.steps - masked_steps;
    float dq[32];
    unsigned p[queries / 4], d[queries / 4];
    kfi_attention_bwd_step_scores<type, tile>(p, d, memory, *w, x, i, masked, a);
    kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_DSCORE_EMPTY + s), phase ^ 1);
    kfi_attention_bwd_store_scores<tile>(d, *w, s);
    // The other warpgroup's gradients of the step before.
    if (i > 0)
        kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_DSCORE_FULL + (s ^ 1)),
                      (w->n - 1) >> 1 & 1);
    kfi_attention_bwd_opaque<queries / 4>(p);
    kfi_attention_bwd_opaque<queries / 4>(d);
    kfi_wgmma_fence();
    // A condition would serialise wgmma: step 0 multiplies K by itself, and drops the product.
    const unsigned before = i > 0 ? kfi_attention_bwd_dscore_at<tile>(*w, s ^ 1) : base;
    kfi_attention_bwd_issue_dq<type>(dq, kfi_wgmma_descriptor(before, 0, 1024),
                                     kfi_attention_bwd_transposed_k<tile>(*w));
    kfi_attention_bwd_sum<type, dim, queries>(dv, p, kfi_attention_bwd_dout<tile>(base, s));
    kfi_attention_bwd_sum<type, dim, queries>(dk, d, kfi_attention_bwd_q<tile>(base, s));
    kfi_wgmma_commit();
    kfi_wgmma_wait<0>();
    kfi_attention_bwd_opaque<32>(dq);
    kfi_attention_bwd_arrive(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_Q_EMPTY + s));
    kfi_attention_bwd_arrive(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_DOUT_EMPTY + s));
    if (i > 0) kfi_attention_bwd_store_dq<tile>(memory, dq, w, i - 1, w->n - 1);
}
// The last step's dQ. Then nothing reads K and the buffers of dQ.
template <int type, int tile>
KFI_DEVICE void kfi_attention_bwd_last_dq(char *memory, kfi_attention_bwd_consumer *w, int steps)
{
    const int n = w->n - 1, s = n & 1;
    float dq[32];
    kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(w->base, KFI_BWD_DSCORE_FULL + s), n >> 1 & 1);
    kfi_wgmma_fence();
    kfi_attention_bwd_issue_dq<type>(
        dq, kfi_wgmma_descriptor(kfi_attention_bwd_dscore_at<tile>(*w, s), 0, 1024),
        kfi_attention_bwd_transposed_k<tile>(*w));
    kfi_wgmma_wait<0>();
    kfi_attention_bwd_opaque<32>(dq);
    kfi_attention_bwd_arrive(kfi_attention_bwd_bar_at<tile>(w->base, KFI_BWD_K_EMPTY));
    kfi_attention_bwd_store_dq<tile>(memory, dq, w, steps - 1, n);
    for (int i = 0; i < 2 && i < steps; ++i) {
        const int last = n - i;
        kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(w->base, KFI_BWD_DQ_EMPTY + (last & 1)),
                      last >> 1 & 1);
    }
    ++w->used;
}
// Stores 64 x dim sums to a tile in shared memory, in slabs of 64 columns.
template <int type, int dim>
KFI_DEVICE void kfi_attention_bwd_stage(unsigned to, const float *sums, float factor, int thread)
{
    const int lane = thread % 32;
    const unsigned row = to + (unsigned)((thread / 32 * 16 + lane % 16) * 128);
#pragma unroll
    for (int j = 0; j < dim / 16; ++j) {
        const unsigned chunk = (unsigned)((2 * (j & 3) + lane / 16) ^ (lane & 7));
        unsigned v[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
            v[e] = kfi_attention_pack<type>(sums[8 * j + 2 * e] * factor,
                                            sums[8 * j + 2 * e + 1] * factor);
        kfi_stmatrix<0>(row + (unsigned)(j >> 2) * 8192 + chunk * 16, v);
    }
}
// Returns whether an element of the warp's sums is not finite.
template <int n> KFI_DEVICE bool kfi_attention_bwd_infinite(const float *dk, const float *dv)
{
    float bad = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) bad = __fmaf_rn(dk[i], 0.0f, __fmaf_rn(dv[i], 0.0f, bad));
    return __any_sync(0xffffffffu, bad != bad);
}
// Stores dk and dv of an item, by way of the warpgroup's halves of the buffers of dQ.
template <int type, int tile>
KFI_DEVICE void
kfi_attention_bwd_store_keys(const float *dk, const float *dv, const kfi_attention_bwd_maps &m,
                             kfi_attention_bwd_consumer *w, const kfi_attention_bwd_item &x,
                             bool masked, const kfi_attention_bwd_tiles &a)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    constexpr int dim = kfi_attention_bwd_dim(tile);
    const unsigned to = w->base + (unsigned)(at.dq + w->group * 16384);
    const bool bad = masked && kfi_attention_bwd_infinite<dim / 2>(dk, dv);
    kfi_attention_bwd_drain(w);
    kfi_attention_bwd_stage<type, dim>(to, dv, 1.0f, kfi_attention_bwd_thread());
    kfi_attention_bwd_stage<type, dim>(to + at.of_dq, dk, a.scale, kfi_attention_bwd_thread());
    if (kfi_attention_bwd_lane() == 0)
        a.reached[((kf_i64)(x.batch * a.kv_heads + x.kv_head) * a.key_blocks + x.block) * 8 +
                  w->group * 4 + kfi_attention_bwd_thread() / 32] = bad;
    kfi_async_fence();
    kfi_attention_bwd_sync(w->group);
    const int row = x.key + w->group * 64;
    if (kfi_attention_bwd_thread() == 0 && row < a.keys) {
#pragma unroll
        for (int c = 0; c < dim / 64; ++c) {
            if (a.stores_dv) kfi_tma_store4(to + c * 8192, m.dv, c * 64, row, x.kv_head, x.batch);
            if (a.stores_dk)
                kfi_tma_store4(to + at.of_dq + c * 8192, m.dk, c * 64, row, x.kv_head, x.batch);
        }
        kfi_bulk_commit();
    }
    w->pending = true;
}
template <int type, int tile>
KFI_DEVICE void kfi_attention_bwd_consume(unsigned base, char *memory, const volatile int *items,
                                          const kfi_attention_bwd_maps &m,
                                          const kfi_attention_bwd_tiles &a, int group)
{
    constexpr int dim = kfi_attention_bwd_dim(tile);
    kfi_attention_bwd_cursor cursor = {};
    kfi_attention_bwd_consumer w = kfi_attention_bwd_consumer_init<tile>(base, group);
    for (int round = 0;; ++round) {
        const int number =
            __shfl_sync(0xffffffffu, kfi_attention_bwd_receive<tile>(base, items, round), 0);
        if (kfi_attention_bwd_lane() == 0) kfi_attention_bwd_pass_on<tile>(base, round);
        if (number < 0) break;
        const kfi_attention_bwd_item x = kfi_attention_bwd_item_at<tile>(&cursor, number, a);
        float dk[dim / 2], dv[dim / 2];
#pragma unroll
        for (int i = 0; i < dim / 2; ++i) dk[i] = dv[i] = 0;
        const int masked = kfi_attention_bwd_masked<tile>(x, a);
        for (int i = 0; i < x.steps; ++i, ++w.n)
            kfi_attention_bwd_step_of<type, tile>(dk, dv, memory, &w, x, i, masked, a);
        kfi_wgmma_wait<0>();
        if (x.steps > 0) kfi_attention_bwd_last_dq<type, tile>(memory, &w, x.steps);
        kfi_attention_bwd_opaque<dim / 2>(dv);
        kfi_attention_bwd_opaque<dim / 2>(dk);
        kfi_attention_bwd_store_keys<type, tile>(dk, dv, m, &w, x, masked > 0, a);
    }
    if (kfi_attention_bwd_thread() == 0) kfi_bulk_wait<0>();
}

// Initialises the mbarriers. Called by one thread.
template <int tile> KFI_DEVICE void kfi_attention_bwd_init(unsigned base)
{
    constexpr int warps = 8; // consumers'
    const auto init = [&](int number, int count) {
        kfi_mbar_init(kfi_attention_bwd_bar_at<tile>(base, number), count);
    };
    init(KFI_BWD_K_FULL, 1);
    init(KFI_BWD_V_FULL, 1);
    init(KFI_BWD_K_EMPTY, warps);
    init(KFI_BWD_V_EMPTY, warps);
    for (int s = 0; s < 2; ++s) {
        init(KFI_BWD_Q_FULL + s, 1);
        init(KFI_BWD_DOUT_FULL + s, 1);
        init(KFI_BWD_Q_EMPTY + s, warps);
        init(KFI_BWD_DOUT_EMPTY + s, warps);
        init(KFI_BWD_DSCORE_FULL + s, warps);
        init(KFI_BWD_DSCORE_EMPTY + s, warps);
        init(KFI_BWD_DQ_FULL + s, warps);
        init(KFI_BWD_DQ_EMPTY + s, 1);
        init(KFI_BWD_ITEM_FULL + s, 1);
        init(KFI_BWD_ITEM_EMPTY + s, warps + 2);
    }
    kfi_mbar_fence_init();
}
// Runs the kernel. Called by all threads.
template <int type, int tile>
KFI_DEVICE void kfi_attention_bwd_hopper(const kfi_attention_bwd_maps &m,
                                         const kfi_attention_bwd_tiles &a)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    char *const memory = kfi_dynamic_1024();
    const unsigned base = kfi_shared_address(memory);
    volatile int *const items = (volatile int *)(memory + at.items);
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0),
              warp = (int)threadIdx.x / 32;
    if (threadIdx.x == 0) kfi_attention_bwd_init<tile>(base);
    __syncthreads();
    if (group == 0) {
        kfi_setmaxnreg_dec<24>();
        if (threadIdx.x % 32 != 0) return;
        if (warp == 0) kfi_attention_bwd_produce<tile>(base, items, m, a);
        if (warp == 1 || warp == 2) kfi_attention_bwd_send<tile>(base, items, a, warp - 1);
    } else {
        kfi_setmaxnreg_inc<240>();
        kfi_attention_bwd_consume<type, tile>(base, memory, items, m, a, group - 1);
    }
}
#endif

#ifdef KFI_DEVICE_PASS
#define KFI_ATTENTION_BWD_BOUNDS __launch_bounds__(KFI_HOPPER ? KFI_ATTENTION_BWD_THREADS : 32, 1)
#else
#define KFI_ATTENTION_BWD_BOUNDS
#endif
template <int type, int tile>
KFI_KERNEL void KFI_ATTENTION_BWD_BOUNDS kfk_attention_bwd_hopper(
    const __grid_constant__ kfi_tensor_map q, const __grid_constant__ kfi_tensor_map k,
    const __grid_constant__ kfi_tensor_map v, const __grid_constant__ kfi_tensor_map dout,
    const __grid_constant__ kfi_tensor_map dk, const __grid_constant__ kfi_tensor_map dv,
    const __grid_constant__ kfi_attention_bwd_tiles a)
{
#if defined(KFI_DEVICE_PASS) && KFI_HOPPER
    kfi_begin();
    const kfi_attention_bwd_maps maps = {&q, &k, &v, &dout, &dk, &dv};
    kfi_attention_bwd_hopper<type, tile>(maps, a);
#endif
}

#endif
