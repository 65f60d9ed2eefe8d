// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_mma.cuh: attention's backward of 2-byte elements by mma.sync (sm_80
// and later).
//
// A block of 4 warps has 64 rows of its own, 16 per warp: keys, for dk and dv, or queries, for dq.
// It walks the rows of the other tensors in blocks of 32 or 16, double-buffered by cp.async,
// and computes both products of the scores' gradients, S and dout . V^T, in registers. Those are
// the operands of the products that it accumulates. dk and dv of more than 128 dimensions have a
// block each, which keeps their accumulators in registers.
//
// Grid: blocks of rows x heads (of k, or of q) x batch. Shared memory:
// kfi_attention_bwd_mma_bytes, swizzled as in portable.cuh. Launched by bwd_host.cuh.
// Accuracy: products in float, probabilities and gradients of scores rounded to the element type.
// The order of sums is fixed by the shape: for dk and dv heads of a group, then queries, ascending.
// A row that a hidden value reached is computed again over its visible pairs. Any rows and
// dimensions: a tensor is copied one element at a time if its own rows or dimension require it.
#ifndef KF_CORE_ATTENTION_BWD_MMA_CUH
#define KF_CORE_ATTENTION_BWD_MMA_CUH

#include "kf/core/attention/bwd.cuh"
#include "kf/core/attention/portable.cuh"

// Gradients that a block accumulates: bits.
#define KFI_ATTENTION_FIRST 1  // dk or dq
#define KFI_ATTENTION_SECOND 2 // dv

// Tiles are those of the forward (KFI_ATTENTION_MMA_64 ...). Walked rows per step:
KFI_BOTH constexpr int kfi_attention_bwd_step(int tile)
{
    return tile == KFI_ATTENTION_MMA_256 ? 16 : 32;
}
// Own rows of two tensors, two stages of two others, two stages of statistics, bits of dropout.
KFI_BOTH constexpr int kfi_attention_bwd_mma_bytes(int tile, int drop)
{
    return kfi_attention_kept_bytes(drop) +
           (2 * KFI_ATTENTION_MMA_ROWS + 4 * kfi_attention_bwd_step(tile)) *
               kfi_attention_mma_dim(tile) * 2 +
           2 * 3 * kfi_attention_bwd_step(tile) * 4;
}
// Blocks that share the rows of a block: one each for dk and dv.
KFI_BOTH constexpr int kfi_attention_bwd_mma_parts(int tile, int transposed)
{
    return transposed && tile == KFI_ATTENTION_MMA_256 ? 2 : 1;
}

#if defined(KFI_DEVICE_PASS) && KFI_MMA

// Rows of q and dout, or of k and v, of one head.
struct kfi_attention_side {
    kfi_attention_rows first, second;
};
template <int keys>
KFI_DEVICE kfi_attention_side kfi_attention_side_of(const kfi_attention &a,
                                                    const kfi_attention_gradients &g, int head,
                                                    int batch)
{
    if constexpr (keys) {
        const kfi_attention_side s = {
            kfi_attention_rows_of(a.k, a.k_strides, head, batch, a.keys, a.dim),
            kfi_attention_rows_of(a.v, a.v_strides, head, batch, a.keys, a.dim_v)};
        return s;
    } else {
        const kfi_attention_side s = {
            kfi_attention_rows_of(a.q, a.q_strides, head, batch, a.queries, a.dim),
            kfi_attention_rows_of(g.dout, g.dout_strides, head, batch, a.queries, a.dim_v)};
        return s;
    }
}
// Loads the statistics of `step` queries: [3][step], zeros behind the last query.
template <int step>
KFI_DEVICE void kfi_attention_fetch_statistics(float *to, const kfi_attention &a,
                                               const kfi_attention_gradients &g, int first,
                                               int head, int batch)
{
    for (int i = (int)threadIdx.x; i < 3 * step; i += KFI_ATTENTION_MMA_THREADS) {
        const int n = i / step, row = first + i % step;
        const float *const from = (const float *)(n == 0 ? g.shift : n == 1 ? g.factor : g.delta);
        const bool in = row < a.queries;
        kfi_cp_async<4>(to + i, from + kfi_attention_query_index(g, in ? row : 0, head, batch),
                        in ? 4 : 0);
    }
}

// ---- rows that a hidden value reached ----

// Computes a row over its visible pairs, by all lanes of a warp, and stores it. head: of the block.
template <int type, int score, int dim, int transposed, int parts, int drop>
KFI_DEVICE void kfi_attention_bwd_recompute(const kfi_attention &a,
                                            const kfi_attention_gradients &g, int row, int head,
                                            int batch)
{
    const int lane = (int)threadIdx.x % 32, heads = transposed ? a.group : 1;
    const kfi_attention_side own = kfi_attention_side_of<transposed>(a, g, head, batch);
    const kfi_attention_span span = kfi_attention_span_of<transposed>(a, row);
    const kfi_rng rng = kfi_attention_rng<drop>(a);
    float x[dim / 32], y[dim / 32], first[dim / 32], second[dim / 32];
#pragma unroll
    for (int i = 0; i < dim / 32; ++i) {
        const int c = lane + 32 * i;
        first[i] = second[i] = 0;
        x[i] = c < a.dim ? kfi_attention_number<type>(own.first.p + row * own.first.step, c) : 0;
        y[i] =
            c < a.dim_v ? kfi_attention_number<type>(own.second.p + row * own.second.step, c) : 0;
    }
#pragma unroll 1
    for (int n = 0; n < heads; ++n) {
        const int of_q = transposed ? head * a.group + n : head;
        const kfi_attention_side others =
            kfi_attention_side_of<!transposed>(a, g, transposed ? of_q : head / a.group, batch);
#pragma unroll 1
        for (int other = span.first; other <= span.last; ++other) {
            const char *const from = others.first.p + other * others.first.step,
                              *const from2 = others.second.p + other * others.second.step;
            const int query = transposed ? other : row, key = transposed ? row : other;
            const kf_i64 at = kfi_attention_query_index(g, query, of_q, batch);
            float s = kfi_attention_dot<type, dim / 32>(x, from, a.dim),
                  d = kfi_attention_dot<type, dim / 32>(y, from2, a.dim_v),
                  tensors[KFI_SCORE_TENSORS];
            kfi_score_block<score, 8, transposed> block;
            kfi_score_load(kfi_tag<score>(), block, a, query, key, of_q, batch);
            if (score == KFI_SCORE_PLAIN && a.scales) s *= a.factor;
            const bool kept =
                drop < 0 ||
                kfi_attention_keeps(rng, kfi_attention_number(a, query, of_q, batch) + key);
            kfi_attention_bwd_element<score, 1, drop>(
                &s, &d, a, 0, block, ((const float *)g.shift)[at],
                g.factor ? ((const float *)g.factor)[at] : 1.0f, ((const float *)g.delta)[at],
                false, kept, tensors);
            const bool hidden = score != KFI_SCORE_PLAIN && s == 0 && kept;
            const unsigned both = kfi_attention_pack<type>(d, s); // rounded as in the products
            d = kfi_attention_number<type>((const char *)&both, 0);
            s = kfi_attention_number<type>((const char *)&both, 1);
#pragma unroll
            for (int i = 0; i < dim / 32; ++i) {
                const int c = lane + 32 * i;
                if (parts & KFI_ATTENTION_FIRST && !hidden && c < a.dim)
                    first[i] = __fmaf_rn(d, kfi_attention_number<type>(from, c), first[i]);
                if (parts & KFI_ATTENTION_SECOND && kept && !hidden && c < a.dim_v)
                    second[i] = __fmaf_rn(s, kfi_attention_number<type>(from2, c), second[i]);
            }
        }
    }
    void *const to = transposed ? g.dk : g.dq;
    const float factor = kfi_attention_product_factor<float>(a);
#pragma unroll
    for (int i = 0; i < dim / 32; ++i) {
        const int c = lane + 32 * i;
        const unsigned u = kfi_attention_pack<type>(
            first[i] * factor, second[i] * kfi_attention_kept_factor<drop, float>(a));
        if (parts & KFI_ATTENTION_FIRST && to && c < a.dim)
            kfi_copy<2>((char *)kfi_attention_row(to, transposed ? g.dk_strides : g.dq_strides, row,
                                                  head, batch, 2) +
                            2 * c,
                        (const char *)&u);
        if (parts & KFI_ATTENTION_SECOND && g.dv && c < a.dim_v)
            kfi_copy<2>((char *)kfi_attention_row(g.dv, g.dv_strides, row, head, batch, 2) + 2 * c,
                        (const char *)&u + 2);
    }
}
// Returns a ballot of lanes whose row of half h is not finite.
template <int dim, int parts>
KFI_DEVICE unsigned kfi_attention_bwd_bad(const float *first, const float *second, int h, bool in)
{
    float bad = 0;
#pragma unroll
    for (int i = 0; i < dim / 2; ++i) {
        if ((i >> 1 & 1) != h) continue;
        if (parts & KFI_ATTENTION_FIRST) bad = __fmaf_rn(first[i], 0.0f, bad);
        if (parts & KFI_ATTENTION_SECOND) bad = __fmaf_rn(second[i], 0.0f, bad);
    }
    return __ballot_sync(0xffffffffu, in && bad != bad);
}
// Computes rows again: those of the lanes in `bad`. row: of this lane.
template <int type, int score, int dim, int transposed, int parts, int drop>
KFI_DEVICE void kfi_attention_bwd_mend(unsigned bad, const kfi_attention &a,
                                       const kfi_attention_gradients &g, int row,
                                       const kfi_attention_place &at)
{
#pragma unroll 1
    while (bad) {
        const int from = __ffs((int)bad) - 1;
        bad &= ~(0xfu << (from & ~3));
        kfi_attention_bwd_recompute<type, score, dim, transposed, parts, drop>(
            a, g, __shfl_sync(0xffffffffu, row, from), at.head, at.batch);
    }
}

// ---- the kernel ----

// Stores a warp's rows. mend: hidden values may have reached them; such rows are stored twice, when
// their accumulators need no registers any more.
template <int type, int score, int dim, int transposed, int parts, int drop>
KFI_DEVICE void kfi_attention_bwd_store(const float *first, const float *second,
                                        const kfi_attention &a, const kfi_attention_gradients &g,
                                        int row, const kfi_attention_place &at, bool mend)
{
    const float one = at.refused ? kfi_attention_nan() : 1.0f,
                factor = one * kfi_attention_product_factor<float>(a);
    const int col = 16 * ((int)threadIdx.x % 4), // bytes
        count = transposed ? a.keys : a.queries;
    void *const to = transposed ? g.dk : g.dq;
    const kfi_attention_rows of_first =
                                 kfi_attention_rows_of(to, transposed ? g.dk_strides : g.dq_strides,
                                                       at.head, at.batch, count, a.dim),
                             of_second = kfi_attention_rows_of(g.dv, g.dv_strides, at.head,
                                                               at.batch, count, a.dim_v);
    unsigned bad[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int own = row + 8 * h;
        const bool in = own < count;
        bad[h] = kfi_attention_bwd_bad<dim, parts>(first, second, h, in && mend);
        if constexpr (parts & KFI_ATTENTION_FIRST)
            kfi_attention_store_half<type, dim, 0>((char *)of_first.p + own * of_first.step + col,
                                                   first, h, factor, in && to, a.dim,
                                                   of_first.whole);
        if constexpr (parts & KFI_ATTENTION_SECOND)
            kfi_attention_store_half<type, dim, 0>((char *)of_second.p + own * of_second.step + col,
                                                   second, h,
                                                   one * kfi_attention_kept_factor<drop, float>(a),
                                                   in && g.dv, a.dim_v, of_second.whole);
    }
    __syncwarp();
#pragma unroll 1
    for (int h = 0; h < 2; ++h)
        kfi_attention_bwd_mend<type, score, dim, transposed, parts, drop>(h ? bad[1] : bad[0], a, g,
                                                                          row + 8 * h, at);
}

// Runs the kernel for one block of rows. Called by all threads. transposed: the rows are keys.
template <int type, int tile, int score, int transposed, int parts, int drop>
KFI_DEVICE void kfi_attention_bwd_mma(const kfi_attention &a, const kfi_attention_gradients &g,
                                      const kfi_attention_place &at)
{
    constexpr int dim = kfi_attention_mma_dim(tile), step = kfi_attention_bwd_step(tile),
                  rows = KFI_ATTENTION_MMA_ROWS, bytes = step * dim * 2;
    const int lane = (int)threadIdx.x % 32, own_row = (int)threadIdx.x / 32 * 16 + lane / 4,
              row = at.begin + own_row, col = 2 * (lane % 4), heads = transposed ? a.group : 1,
              count = transposed ? a.keys : a.queries;
    char *const own_first = kfi_dynamic(), *const own_second = own_first + rows * dim * 2,
                *const stages = own_second + rows * dim * 2;
    float *const statistics = (float *)(void *)(stages + 4 * bytes);
    const kfi_attention_blocks b =
        kfi_attention_walk<step, transposed>(a, at.begin, kfi_min_i32(at.begin + rows, count) - 1);
    const int steps = b.last < b.first ? 0 : heads * (b.last - b.first + 1);
    const kfi_attention_own_rows<float> own =
        kfi_attention_own_rows_of<transposed, float>(a, g, row, at.head, at.batch);
    float sums[KFI_SCORE_TENSORS] = {}, first[parts & KFI_ATTENTION_FIRST ? dim / 2 : 1],
          second[parts & KFI_ATTENTION_SECOND ? dim / 2 : 1], s[step / 2], d[step / 2];
    unsigned p[step / 4];
#pragma unroll
    for (int i = 0; i < dim / 2; ++i) {
        if constexpr (parts & KFI_ATTENTION_FIRST) first[i] = 0;
        if constexpr (parts & KFI_ATTENTION_SECOND) second[i] = 0;
    }
    const auto fetch = [&](int stage, int block, int head) {
        char *const to = stages + stage * 2 * bytes;
        const kfi_attention_side from =
            kfi_attention_side_of<!transposed>(a, g, transposed ? head : head / a.group, at.batch);
        kfi_attention_fetch<step, dim, 0>(to, from.first, block * step);
        kfi_attention_fetch<step, dim, 0>(to + bytes, from.second, block * step);
        if constexpr (transposed)
            kfi_attention_fetch_statistics<step>(statistics + stage * 3 * step, a, g, block * step,
                                                 head, at.batch);
    };
    int head = transposed ? at.head * a.group : at.head, block = b.first;
    bool partial = score != KFI_SCORE_PLAIN || kfi_attention_drops<drop>(a);
    const kfi_rng rng = kfi_attention_rng<drop>(a);
    kfi_attention_kept kept = {(unsigned char *)(statistics + 6 * step), 0, 0};
    if (steps > 0) {
        const kfi_attention_side from = kfi_attention_side_of<transposed>(a, g, at.head, at.batch);
        kfi_attention_fetch<rows, dim, 0>(own_first, from.first, at.begin);
        kfi_attention_fetch<rows, dim, 0>(own_second, from.second, at.begin);
        fetch(0, block, head);
    }
    kfi_fetch_commit();
#pragma unroll 1
    for (int n = 0; n < steps; ++n) {
        const char *const of_first = stages + n % 2 * 2 * bytes, *const of_second =
                                                                     of_first + bytes;
        const int next = block == b.last ? b.first : block + 1,
                  next_head = block == b.last ? head + 1 : head;
        kfi_fetch_wait<0>(); // this stage
        __syncthreads();     // for all threads; the other stage may be overwritten
        if (n + 1 < steps) fetch((n + 1) % 2, next, next_head);
        kfi_fetch_commit();
        kfi_attention_draw_tile<drop, transposed ? step : rows, transposed ? rows : step>(
            &kept, rng, a, transposed ? block * step : at.begin,
            transposed ? at.begin : block * step, head, at.batch);
        if constexpr (drop >= 0) __syncthreads(); // for the bits
        const kfi_attention_at place = {row, block * step, head, at.batch};
        kfi_score_block<score, step, transposed> loaded;
        kfi_score_load(kfi_tag<score>(), loaded, a, transposed ? block * step + col : row,
                       transposed ? row : block * step + col, head, at.batch);
        kfi_attention_mma_scores<type, dim, step, 0, 4>(s, nullptr, own_first, of_first);
        if constexpr (parts & KFI_ATTENTION_FIRST) {
            kfi_attention_mma_scores<type, dim, step, 0, 4>(d, nullptr, own_second, of_second);
        } else {
#pragma unroll
            for (int i = 0; i < step / 2; ++i) d[i] = 0;
        }
        const bool masked = block > b.last_whole || block < b.first_whole;
        partial |= masked;
        kfi_attention_bwd_fragment<score, 1, drop, step, transposed, 2>(
            s, d, a, g, loaded, own, kept, statistics + n % 2 * 3 * step, block * step, masked,
            place, true, sums);
        if constexpr (parts & KFI_ATTENTION_SECOND) {
            kfi_attention_convert<type, step>(p, s);
            kfi_attention_mma_values<type, dim, step>(second, p, of_second);
        }
        if constexpr (parts & KFI_ATTENTION_FIRST) {
            kfi_attention_convert<type, step>(p, d);
            kfi_attention_mma_values<type, dim, step>(first, p, of_first);
        }
        block = next, head = next_head;
    }
    if constexpr (kfi_score_gradients(kfi_tag<score>()) && !transposed)
        kfi_attention_clear_scores<score, step, float>(a, g, b, rows, at);
    if constexpr (kfi_score_sums(kfi_tag<score>()) && !transposed)
        kfi_attention_store_sums<score>(sums, g, (int)blockIdx.x, at.refused);
    kfi_attention_bwd_store<type, score, dim, transposed, parts, drop>(first, second, a, g, row, at,
                                                                       partial);
}
// The same for the part of a block number.
template <int type, int tile, int score, int transposed, int drop>
KFI_DEVICE void kfi_attention_bwd_mma_part(const kfi_attention &a, const kfi_attention_gradients &g,
                                           const kfi_attention_place &at, int part)
{
    if constexpr (kfi_attention_bwd_mma_parts(tile, transposed) == 2) {
        if (part)
            kfi_attention_bwd_mma<type, tile, score, 1, KFI_ATTENTION_SECOND, drop>(a, g, at);
        else
            kfi_attention_bwd_mma<type, tile, score, 1, KFI_ATTENTION_FIRST, drop>(a, g, at);
    } else {
        kfi_attention_bwd_mma<
            type, tile, score, transposed,
            transposed ? KFI_ATTENTION_FIRST | KFI_ATTENTION_SECOND : KFI_ATTENTION_FIRST, drop>(
            a, g, at);
    }
}
#endif

template <int type, int tile, int score, int transposed, int drop = KFI_NO_DROPOUT>
KFI_KERNEL void KFI_ATTENTION_MMA_BOUNDS(0, 0)
    kfk_attention_bwd_mma(const __grid_constant__ kfi_attention_bwd w)
{
#if defined(KFI_DEVICE_PASS) && KFI_MMA
    constexpr int parts = kfi_attention_bwd_mma_parts(tile, transposed);
    kfi_begin();
    kfi_attention_bwd_mma_part<type, tile, score, transposed, drop>(
        w.a, w.g,
        kfi_attention_bwd_place<KFI_ATTENTION_MMA_ROWS, transposed>(
            w.a, transposed ? w.g.kv_heads : w.a.heads, (int)blockIdx.x / parts),
        (int)blockIdx.x % parts);
#endif
}
template <int type, int tile, int score, int transposed, int drop = KFI_NO_DROPOUT>
KFI_KERNEL void KFI_ATTENTION_MMA_BOUNDS(0, 0)
    kfk_attention_bwd_mma_packed(const __grid_constant__ kfi_attention_bwd_packed w)
{
#if defined(KFI_DEVICE_PASS) && KFI_MMA
    constexpr int parts = kfi_attention_bwd_mma_parts(tile, transposed);
    kfi_begin();
    kfi_attention_bwd own;
    kfi_attention_place at;
    if (kfi_attention_bwd_find<KFI_ATTENTION_MMA_ROWS, transposed>(&own, &at, w.p, w.g,
                                                                   (int)blockIdx.x / parts, 2))
        kfi_attention_bwd_mma_part<type, tile, score, transposed, drop>(own.a, own.g, at,
                                                                        (int)blockIdx.x % parts);
    else if constexpr (!transposed)
        kfi_attention_no_sums<score, float>(w.g, (int)blockIdx.x);
#endif
}

#endif
