// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_simt.cuh: attention's backward by FMAs, of float and double, and of 2-byte
// elements before sm_80 or of dimensions and layouts that bwd_mma.cuh does not take.
//
// A block of 4 warps has 64 or 32 rows of its own, keys for dk and dv, or queries for dq, and walks
// the others in blocks of 32. Rows pass through shared memory in slices of the dimension, as in
// simt.cuh, whose fragments and products these are. A block accumulates 64 or 128 columns of the
// gradients: any dimension fits, and each further slice of columns computes the scores again.
//
// Grid: slices of columns x blocks of rows x heads (of k, or of q) x batch. Shared memory:
// kfi_attention_bwd_simt_bytes. Launched by bwd_host.cuh.
// Accuracy: sums in float or double, in an order that the shape fixes: for dk and dv heads of a
// group, then queries, ascending. Hidden pairs are skipped.
#ifndef KF_CORE_ATTENTION_BWD_SIMT_CUH
#define KF_CORE_ATTENTION_BWD_SIMT_CUH

#include "kf/core/attention/bwd.cuh"

// Tiles: columns that a block accumulates.
KFI_BOTH constexpr int kfi_attention_bwd_simt_cols(int tile) { return 64 << tile; }
// The forward's shared memory, statistics of 32 queries, bits of dropout.
KFI_BOTH constexpr int kfi_attention_bwd_simt_bytes(int type, int tile, int drop)
{
    return kfi_attention_kept_bytes(drop) + kfi_attention_simt_shared_bytes(type, tile) +
           3 * KFI_ATTENTION_SIMT_KEYS * kfi_attention_simt_size(type);
}

#ifdef KFI_DEVICE_PASS

// Loads the statistics of 32 queries: [3][32], zeros behind the last query.
template <class real>
KFI_DEVICE void kfi_attention_bwd_simt_statistics(real *to, const kfi_attention &a,
                                                  const kfi_attention_gradients &g, int first,
                                                  int head, int batch)
{
    const int n = (int)threadIdx.x / 32, row = first + (int)threadIdx.x % 32;
    if (n >= 3) return;
    const real *const from = (const real *)(n == 0 ? g.shift : n == 1 ? g.factor : g.delta);
    to[threadIdx.x] =
        row < a.queries ? from[kfi_attention_query_index(g, row, head, batch)] : real(0);
}
// Adds the products of a fragment with rows of `from`, from row `first` and column `col` on.
// visible: the rows that each row of the fragment sees, if some are hidden. skips: values of factor
// 0 are not added.
template <int per_thread, int cols, int p_pitch, class stored, class real>
KFI_DEVICE void
kfi_attention_bwd_simt_add(real *sums, const real *fragment, real *of_p, real *of_values,
                           const kfi_attention_simt_rows_of<stored> &from, int first, int col,
                           bool masked, const int (*visible)[2], bool skips)
{
    constexpr int keys = KFI_ATTENTION_SIMT_KEYS, slice = KFI_ATTENTION_SIMT_COLS;
    const int lane = (int)threadIdx.x % 32, own = (int)threadIdx.x / 32 * 8 * per_thread + lane / 4;
    __syncwarp(); // the rows of the fragment before have been read
#pragma unroll
    for (int i = 0; i < keys / 2; ++i)
        if (kfi_score_row(i) < per_thread)
            of_p[(own + 8 * kfi_score_row(i)) * p_pitch + 2 * (lane % 4) + kfi_score_key(i)] =
                fragment[i];
#pragma unroll
    for (int c = 0; c < cols; c += slice) {
        __syncthreads();
        kfi_attention_simt_load<keys, slice, slice>(of_values, from.p, from.step, first, from.count,
                                                    col + c, from.dim);
        __syncthreads();
        kfi_attention_simt_values<per_thread, p_pitch>(sums + c / 2, of_p, of_values, masked,
                                                       visible, skips);
    }
}
// Stores a thread's rows, columns from `col` on.
template <int per_thread, int cols, class stored, class real>
KFI_DEVICE void kfi_attention_bwd_simt_store(void *to, const kfi_attention_strides &strides,
                                             const real *sums, real factor, int row, int rows,
                                             int col, int dim, const kfi_attention_place &at)
{
    if (!to) return;
#pragma unroll
    for (int h = 0; h < per_thread; ++h) {
        if (row + 8 * h >= rows) continue;
        stored *const own = (stored *)kfi_attention_row(to, strides, row + 8 * h, at.head, at.batch,
                                                        sizeof(stored));
#pragma unroll
        for (int i = 0; i < cols / 4; ++i) {
            const int c = col + 8 * (i / 2) + 2 * ((int)threadIdx.x % 4) + i % 2;
            if (c < dim) kfi_cast(own + c, sums[i / 2 * 4 + 2 * h + i % 2] * factor);
        }
    }
}

// Runs the kernel for one block of rows and one slice of columns. Called by all threads.
// transposed: the rows are keys.
template <int type, int tile, int score, int transposed, int drop>
KFI_DEVICE void kfi_attention_bwd_simt(const kfi_attention &a, const kfi_attention_gradients &g,
                                       const kfi_attention_place &at, int slice)
{
    typedef typename kfi_attention_element<type>::stored stored;
    typedef typename kfi_attention_element<type>::real real;
    constexpr int rows = kfi_attention_simt_rows(type, tile), keys = KFI_ATTENTION_SIMT_KEYS,
                  per_thread = kfi_attention_simt_per_thread(type, tile),
                  cols = kfi_attention_bwd_simt_cols(tile),
                  p_pitch = kfi_attention_simt_p_pitch(type);
    const int lane = (int)threadIdx.x % 32,
              row = at.begin + (int)threadIdx.x / 32 * 8 * per_thread + lane / 4,
              col = 2 * (lane % 4), heads = transposed ? a.group : 1,
              count = transposed ? a.keys : a.queries;
    real *const shared = (real *)(void *)kfi_dynamic(),
                *const of_p = shared + (rows + keys) * kfi_attention_simt_pitch(type),
                *const of_values = of_p + rows * p_pitch,
                *const statistics = of_values + keys * KFI_ATTENTION_SIMT_COLS;
    const kfi_attention_blocks b =
        kfi_attention_walk<keys, transposed>(a, at.begin, kfi_min_i32(at.begin + rows, count) - 1);
    const kfi_attention_own_rows<real> own =
        kfi_attention_own_rows_of<transposed, real>(a, g, row, at.head, at.batch);
    real sums[KFI_SCORE_TENSORS] = {}, first[cols / 2], second[transposed ? cols / 2 : 1],
         s[keys / 2], d[keys / 2];
#pragma unroll
    for (int i = 0; i < cols / 2; ++i) {
        first[i] = 0;
        if constexpr (transposed) second[i] = 0;
    }
    const kfi_rng rng = kfi_attention_rng<drop>(a);
    const bool skips = score != KFI_SCORE_PLAIN || kfi_attention_drops<drop>(a);
    kfi_attention_kept kept = {(unsigned char *)(statistics + 3 * keys), 0, 0};
    const int first_head = transposed ? at.head * a.group : at.head;
#pragma unroll 1
    for (int head = first_head; head < first_head + heads; ++head) {
        const int of_k = transposed ? at.head : head / a.group;
        const kfi_attention_simt_rows_of<stored>
            q = kfi_attention_simt_view<stored>(a.q, a.q_strides, head, at.batch, a.queries, a.dim),
            dout = kfi_attention_simt_view<stored>(g.dout, g.dout_strides, head, at.batch,
                                                   a.queries, a.dim_v),
            k = kfi_attention_simt_view<stored>(a.k, a.k_strides, of_k, at.batch, a.keys, a.dim),
            v = kfi_attention_simt_view<stored>(a.v, a.v_strides, of_k, at.batch, a.keys, a.dim_v);
#pragma unroll 1
        for (int n = b.first; n <= b.last; ++n) {
            const bool masked = n > b.last_whole || n < b.first_whole;
            const int start = n * keys;
            int visible[2][2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const kfi_attention_span span = kfi_attention_span_of<transposed>(a, row + 8 * h);
                visible[h][0] = span.first - start;
                visible[h][1] = span.last - start;
            }
            const kfi_attention_at place = {row, start, head, at.batch};
            kfi_score_block<score, keys, transposed> loaded;
            kfi_score_load(kfi_tag<score>(), loaded, a, transposed ? start + col : row,
                           transposed ? row : start + col, head, at.batch);
            __syncthreads(); // the statistics and bits before have been read
            kfi_attention_draw_tile<drop, transposed ? keys : rows, transposed ? rows : keys>(
                &kept, rng, a, transposed ? start : at.begin, transposed ? at.begin : start, head,
                at.batch);
            if constexpr (transposed)
                kfi_attention_bwd_simt_statistics(statistics, a, g, start, head, at.batch);
            kfi_attention_simt_block<per_thread>(d, shared, transposed ? v : dout, at.begin,
                                                 transposed ? dout : v, start);
            kfi_attention_simt_block<per_thread>(s, shared, transposed ? k : q, at.begin,
                                                 transposed ? q : k, start);
            if (a.dim + a.dim_v == 0) __syncthreads(); // the statistics and bits
            kfi_attention_bwd_fragment<score, 0, drop, keys, transposed, per_thread>(
                s, d, a, g, loaded, own, kept, statistics, start, masked, place, slice == 0, sums);
            if constexpr (transposed)
                kfi_attention_bwd_simt_add<per_thread, cols, p_pitch>(
                    second, s, of_p, of_values, dout, start, slice * cols, masked, visible, skips);
            kfi_attention_bwd_simt_add<per_thread, cols, p_pitch>(
                first, d, of_p, of_values, transposed ? q : k, start, slice * cols, masked, visible,
                skips);
        }
    }
    if constexpr (kfi_score_gradients(kfi_tag<score>()) && !transposed) {
        if (slice == 0) kfi_attention_clear_scores<score, keys, real>(a, g, b, rows, at);
    }
    if constexpr (kfi_score_sums(kfi_tag<score>()) && !transposed) {
        if (slice == 0)
            kfi_attention_store_sums<score>(sums, g, (int)blockIdx.x / g.slices, at.refused);
    }
    const real scaled = kfi_attention_kept_factor<drop, real>(a);
    const real one = at.refused ? real(kfi_attention_nan()) : real(1);
    kfi_attention_bwd_simt_store<per_thread, cols, stored>(
        transposed ? g.dk : g.dq, transposed ? g.dk_strides : g.dq_strides, first,
        one * kfi_attention_product_factor<real>(a), row, count, slice * cols, a.dim, at);
    if constexpr (transposed)
        kfi_attention_bwd_simt_store<per_thread, cols, stored>(
            g.dv, g.dv_strides, second, one * scaled, row, count, slice * cols, a.dim_v, at);
}
#endif

// From sm_80 on 2-byte elements take mma.sync, except those of more than 256 dimensions, which the
// largest tile takes. The other tile has no code there, and a launch bound of one warp.
KFI_BOTH constexpr bool kfi_attention_bwd_simt_has(int type, int tile)
{
    return KFI_PRE_SM80 || type == KFI_OF_F32 || type == KFI_OF_F64 || tile == 1;
}
template <int type, int tile, int score, int transposed, int drop = KFI_NO_DROPOUT>
KFI_KERNEL void KFI_BOUNDS(kfi_attention_bwd_simt_has(type, tile) ? KFI_ATTENTION_SIMT_THREADS : 32,
                           2) kfk_attention_bwd_simt(const __grid_constant__ kfi_attention_bwd w)
{
#ifdef KFI_DEVICE_PASS
    if constexpr (kfi_attention_bwd_simt_has(type, tile)) {
        kfi_begin();
        kfi_attention_bwd_simt<type, tile, score, transposed, drop>(
            w.a, w.g,
            kfi_attention_bwd_place<kfi_attention_simt_rows(type, tile), transposed>(
                w.a, transposed ? w.g.kv_heads : w.a.heads, (int)blockIdx.x / w.g.slices),
            (int)blockIdx.x % w.g.slices);
    }
#endif
}
template <int type, int tile, int score, int transposed, int drop = KFI_NO_DROPOUT>
KFI_KERNEL void KFI_BOUNDS(kfi_attention_bwd_simt_has(type, tile) ? KFI_ATTENTION_SIMT_THREADS : 32,
                           2)
    kfk_attention_bwd_simt_packed(const __grid_constant__ kfi_attention_bwd_packed w)
{
#ifdef KFI_DEVICE_PASS
    if constexpr (kfi_attention_bwd_simt_has(type, tile)) {
        kfi_begin();
        kfi_attention_bwd own;
        kfi_attention_place at;
        if (kfi_attention_bwd_find<kfi_attention_simt_rows(type, tile), transposed>(
                &own, &at, w.p, w.g, (int)blockIdx.x / w.g.slices,
                sizeof(typename kfi_attention_element<type>::stored)))
            kfi_attention_bwd_simt<type, tile, score, transposed, drop>(
                own.a, own.g, at, (int)blockIdx.x % w.g.slices);
        else if (!transposed && (int)blockIdx.x % w.g.slices == 0)
            kfi_attention_no_sums<score, typename kfi_attention_element<type>::real>(
                w.g, (int)blockIdx.x / w.g.slices);
    }
#endif
}

#endif
