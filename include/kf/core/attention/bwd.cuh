// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd.cuh: arguments of attention's backward, the rows that a block walks,
// and the gradient of one score. bwd_mma.cuh and bwd_simt.cuh have its products.
//
// With p[i][j] = exp(score - row_max - log_sum) and dp = dout . v, the gradient of a score is
// p * (dp - delta), delta[i] = sum of dout * out - dlse. Three launches, without atomics:
//   kfk_attention_delta            delta and the softmax's shift and factor of every query
//   a block per rows of k          dk and dv: walks the queries of all heads of a group
//   a block per rows of q          dq and gradients of the scores' tensors: walks the keys
// The last two compute scores again; sums run in an order that the shape fixes.
// A fragment has a block's own rows in its rows and the walked ones in its columns: it is
// `transposed` where a block owns keys.
#ifndef KF_CORE_ATTENTION_BWD_CUH
#define KF_CORE_ATTENTION_BWD_CUH

#include "kf/core/attention/bwd_dropout.cuh"
#include "kf/core/attention/bwd_heads.cuh"
#include "kf/core/attention/simt.cuh"

#define KFI_ATTENTION_DELTA_ROWS 64
#define KFI_ATTENTION_DELTA_THREADS 128
#define KFI_ATTENTION_OUTSIDE_ROWS 16
#define KFI_ATTENTION_OUTSIDE_THREADS 128

// Arguments besides the forward's. Results and dlse may be NULL. kfi_attention::row_blocks counts
// the blocks of a head in one launch.
struct kfi_attention_gradients {
    const void *dout, *dlse;
    const void *lse, *row_max, *log_sum; // row_max and log_sum, or lse if one of them is NULL
    void *dq, *dk, *dv;
    // Workspace, [batch, heads, queries]: p = exp(unit * at - shift) * factor, with log2_unit and
    // exp2 in the tensor-core kernels. factor is 0 of a query without keys.
    void *shift, *factor, *delta;
    kfi_attention_strides dout_strides, dq_strides, dk_strides, dv_strides;
    kfi_attention_strides query_strides; // all tensors [batch, heads, queries]
    void *dscores[KFI_SCORE_TENSORS];    // per kfi_score_args::tensors; or NULL
    kfi_attention_strides dscore_strides[KFI_SCORE_TENSORS];
    // Workspace: sums over the scores of each block of queries, in the order of the launch, of
    // gradients per head; per kfi_score_args::tensors; or NULL.
    void *sums[KFI_SCORE_TENSORS];
    int kv_heads;
    int slices; // slices of columns, in the kernels of FMAs
};
struct kfi_attention_bwd {
    kfi_attention a;
    kfi_attention_gradients g;
};
struct kfi_attention_bwd_packed {
    kfi_attention_packed p;
    kfi_attention_gradients g;
};

#ifdef KFI_DEVICE_PASS

KFI_DEVICE kf_i64 kfi_attention_query_index(const kfi_attention_gradients &g, int row, int head,
                                            int batch)
{
    const kfi_attention_strides &s = g.query_strides;
    return batch * s.batch + head * s.head + row * s.row;
}
// Factor of the gradients of products: the score is this times the seam's result.
template <class real> KFI_DEVICE real kfi_attention_product_factor(const kfi_attention &a)
{
    if (sizeof(real) == 8) return (real)(a.scales ? a.factor_f64 : a.unit_f64);
    return (real)(a.scales ? a.factor : a.unit);
}

// ---- blocks of rows ----

// Place of block number `block` among blocks of `rows` rows of q, the last rows of a head first, or
// of k, the first ones first: with causal masks those have the most work.
template <int rows, int keys>
KFI_DEVICE kfi_attention_place kfi_attention_bwd_place(const kfi_attention &a, int heads, int block)
{
    const int bh = block / a.row_blocks, batch = bh / heads, own = block - bh * a.row_blocks;
    const kfi_attention_place at = {(keys ? own : a.row_blocks - 1 - own) * rows,
                                    bh - batch * heads, batch, false};
    return at;
}
// The same of packed sequences; sets the arguments of the sequence. Returns whether the block has
// rows.
template <int rows, int keys>
KFI_DEVICE bool kfi_attention_bwd_find(kfi_attention_bwd *own, kfi_attention_place *at,
                                       const kfi_attention_packed &p,
                                       const kfi_attention_gradients &g, int block, int bytes)
{
    const int head = block / p.a.row_blocks;
    kfi_attention_sequence s;
    const int found = kfi_attention_find<rows, keys>(&s, p, block - head * p.a.row_blocks);
    if (found < 0) return false;
    const kfi_attention_place place = {found * rows, head, s.index, s.refused};
    *at = place;
    own->a = kfi_attention_own(p, s, head, bytes);
    own->g = g;
    if (!s.inside || s.refused) own->g.dscores[0] = own->g.dscores[1] = nullptr;
    const kf_i64 skip = (kf_i64)s.query * (bytes == 8 ? 8 : 4);
    const void **const read[] = {&own->g.dlse, &own->g.lse, &own->g.row_max, &own->g.log_sum};
    for (int i = 0; i < 4; ++i)
        if (*read[i]) *read[i] = (const char *)*read[i] + skip;
    void **const kept[] = {&own->g.shift, &own->g.factor, &own->g.delta};
    for (int i = 0; i < 3; ++i) *kept[i] = (char *)*kept[i] + skip;
    own->g.dout = kfi_attention_row(g.dout, g.dout_strides, s.query, 0, 0, bytes);
    if (g.dq) own->g.dq = (void *)kfi_attention_row(g.dq, g.dq_strides, s.query, 0, 0, bytes);
    if (g.dk) own->g.dk = (void *)kfi_attention_row(g.dk, g.dk_strides, s.key, 0, 0, bytes);
    if (g.dv) own->g.dv = (void *)kfi_attention_row(g.dv, g.dv_strides, s.key, 0, 0, bytes);
    return true;
}

// Visible rows of the other tensor; none if last < first.
struct kfi_attention_span {
    int first, last;
};
template <int transposed> KFI_DEVICE int kfi_attention_low(const kfi_attention &a, int row)
{
    if (!transposed) return kfi_max_i32(0, kfi_attention_first_key(a, row));
    return a.range.last_slope ? kfi_max_i32(0, row - a.range.last_add) : 0;
}
template <int transposed> KFI_DEVICE int kfi_attention_high(const kfi_attention &a, int row)
{
    if (!transposed) return kfi_attention_last_key(a, row);
    return kfi_min_i32(a.queries - 1, a.range.first_slope ? row - a.range.first_add : a.queries);
}
// Whether bounds without a slope hide key `row` from all queries.
KFI_DEVICE bool kfi_attention_before(const kfi_attention &a, int row)
{
    return !a.range.first_slope && row < a.range.first_add;
}
KFI_DEVICE bool kfi_attention_behind(const kfi_attention &a, int row)
{
    return !a.range.last_slope && row > a.range.last_add;
}
template <int transposed>
KFI_DEVICE kfi_attention_span kfi_attention_span_of(const kfi_attention &a, int row)
{
    const bool none =
        row >= (transposed ? a.keys : a.queries) ||
        (transposed && (kfi_attention_before(a, row) || kfi_attention_behind(a, row)));
    const kfi_attention_span s = {kfi_attention_low<transposed>(a, row),
                                  none ? -1 : kfi_attention_high<transposed>(a, row)};
    return s;
}
// Blocks of `step` rows that rows [begin, end] of the other tensor need.
template <int step, int transposed>
KFI_DEVICE kfi_attention_blocks kfi_attention_walk(const kfi_attention &a, int begin, int end)
{
    if constexpr (!transposed) {
        return kfi_attention_blocks_of<step>(a, begin, end);
    } else {
        const int low = kfi_attention_low<1>(a, begin), high = kfi_attention_high<1>(a, end);
        const bool none = high < low || begin >= a.keys || kfi_attention_before(a, end) ||
                          kfi_attention_behind(a, begin),
                   some = kfi_attention_before(a, begin) || kfi_attention_behind(a, end);
        kfi_attention_blocks b;
        b.first = low / step;
        b.last = none ? b.first - 1 : high / step;
        b.first_whole = (kfi_attention_low<1>(a, end) + step - 1) / step;
        b.last_whole =
            some ? -1 : (kfi_max_i32(-1, kfi_attention_high<1>(a, begin)) + 1) / step - 1;
        return b;
    }
}

// ---- a score ----

// Statistics of a thread's queries, in its rows of a fragment that is not transposed.
template <class real> struct kfi_attention_own_rows {
    real shift[2], factor[2], delta[2];
};
template <int transposed, class real>
KFI_DEVICE kfi_attention_own_rows<real> kfi_attention_own_rows_of(const kfi_attention &a,
                                                                  const kfi_attention_gradients &g,
                                                                  int row, int head, int batch)
{
    kfi_attention_own_rows<real> own = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        if constexpr (!transposed) {
            const bool in = row + 8 * h < a.queries;
            const kf_i64 i = kfi_attention_query_index(g, in ? row + 8 * h : 0, head, batch);
            own.shift[h] = in ? ((const real *)g.shift)[i] : real(0);
            own.factor[h] = in ? ((const real *)g.factor)[i] : real(0);
            own.delta[h] = in ? ((const real *)g.delta)[i] : real(0);
        }
    }
    return own;
}
// Position of a thread's first element.
struct kfi_attention_at {
    int row, key, head, batch;
};
// exp(x * unit - shift), by exp2 in the tensor-core kernels.
template <int fast, class real> KFI_DEVICE real kfi_attention_weight(real x, real unit, real shift)
{
    if constexpr (fast)
        return kfi_ex2_ftz(__fmaf_rn(x, unit, -shift));
    else
        return kfi_attention_exp(kfi_attention_fma(x, unit, -shift));
}
template <int fast, class real> KFI_DEVICE real kfi_attention_unit(const kfi_attention &a)
{
    return fast ? (real)a.log2_unit : sizeof(real) == 8 ? (real)a.unit_f64 : (real)a.unit;
}
// Replaces a product and dout . v by the probability and the product's gradient. The latter lacks
// kfi_attention_product_factor, the former dropout's factor. hidden: the query does not see the
// key. kept: dropout keeps the weight. tensors: gradients of the score's tensors.
template <int score, int fast, int drop, int step, int transposed, class real>
KFI_DEVICE void kfi_attention_bwd_element(real *s, real *d, const kfi_attention &a, int i,
                                          const kfi_score_block<score, step, transposed> &loaded,
                                          real shift, real factor, real delta, bool hidden,
                                          bool kept, real *tensors)
{
    const real dot = *s;
    real x = dot;
    if constexpr (score != KFI_SCORE_PLAIN) {
        x = kfi_score_at(kfi_tag<score>(), a, loaded, dot, i);
        hidden |= x == kfi_minus_infinity();
    }
    real p = kfi_attention_weight<fast>(x, kfi_attention_unit<fast, real>(a), shift) * factor;
    p = hidden ? real(0) : p;
    hidden = p == 0; // whatever dout . v is
    if constexpr (drop >= 0) *d = kept ? *d * kfi_attention_kept_factor<drop, real>(a) : real(0);
    *s = drop < 0 || kept ? p : real(0);
    *d = hidden ? real(0) : p * (*d - delta);
    if constexpr (score != KFI_SCORE_PLAIN) {
        const real product = kfi_score_bwd(kfi_tag<score>(), a, loaded, dot, i, *d, tensors);
        *d = hidden ? real(0) : product;
#pragma unroll
        for (int n = 0; n < KFI_SCORE_TENSORS; ++n) tensors[n] = hidden ? real(0) : tensors[n];
    }
}
// Stores gradients of the scores' tensors: a thread's two neighbouring keys.
template <int score, class real>
KFI_DEVICE void kfi_attention_store_scores(const real (*pair)[KFI_SCORE_TENSORS],
                                           const kfi_attention &a, const kfi_attention_gradients &g,
                                           int row, int key, int head, int batch)
{
#pragma unroll
    for (int n = 0; n < KFI_SCORE_TENSORS; ++n) {
        if (!g.dscores[n] || row >= a.queries) continue;
        const kfi_attention_strides &s = g.dscore_strides[n];
        const kf_i64 at = batch * s.batch + head * s.head + row * s.row;
#pragma unroll
        for (int e = 0; e < 2; ++e)
            if (key + e < a.keys)
                kfi_score_store(kfi_tag<score>(), g.dscores[n], n, at + key + e, pair[e][n]);
    }
}
// The same for a fragment of `step` columns. stats: of a transposed one, [3][step] in shared
// memory. masked: some pairs are hidden. per_thread: rows of a thread. kept: the tile's bits of
// dropout. stores: whether gradients of the scores' tensors are stored. sums: of gradients per
// head.
template <int score, int fast, int drop, int step, int transposed, int per_thread, class real>
KFI_DEVICE void kfi_attention_bwd_fragment(real *s, real *d, const kfi_attention &a,
                                           const kfi_attention_gradients &g,
                                           const kfi_score_block<score, step, transposed> &loaded,
                                           const kfi_attention_own_rows<real> &own,
                                           const kfi_attention_kept &kept, const real *stats,
                                           int first, bool masked, const kfi_attention_at &at,
                                           bool stores, real *sums)
{
    const int lane = (int)threadIdx.x % 32, col = 2 * (lane % 4),
              local = (int)threadIdx.x / 32 * 8 * per_thread + lane / 4;
    kfi_attention_span spans[2] = {{0, 0x7fffffff}, {0, 0x7fffffff}};
    if (masked) {
#pragma unroll
        for (int h = 0; h < per_thread; ++h)
            spans[h] = kfi_attention_span_of<transposed>(a, at.row + 8 * h);
    }
    if constexpr (score == KFI_SCORE_PLAIN)
        kfi_score_all<score, step, step / 2>(s, kfi_score_block<score, step>(), a);
#pragma unroll
    for (int j = 0; j < step / 8; ++j) {
        alignas(16) real of[3][2];
        if constexpr (transposed) {
#pragma unroll
            for (int n = 0; n < 3; ++n)
                kfi_copy<2 * sizeof(real)>(of[n], stats + n * step + 8 * j + col);
        }
#pragma unroll
        for (int h = 0; h < per_thread; ++h) {
            const kfi_attention_span span = spans[h];
            real tensors[2][KFI_SCORE_TENSORS] = {};
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int i = 4 * j + 2 * h + e, c = first + 8 * j + col + e;
                const bool hidden = c < span.first || c > span.last;
                if constexpr (transposed)
                    kfi_attention_bwd_element<score, fast, drop>(
                        s + i, d + i, a, i, loaded, of[0][e], of[1][e], of[2][e], hidden,
                        kfi_attention_is_kept<drop>(kept, 8 * j + col + e, local + 8 * h),
                        tensors[e]);
                else
                    kfi_attention_bwd_element<score, fast, drop>(
                        s + i, d + i, a, i, loaded, own.shift[h], own.factor[h], own.delta[h],
                        hidden, kfi_attention_is_kept<drop>(kept, local + 8 * h, 8 * j + col + e),
                        tensors[e]);
            }
            if constexpr (kfi_score_sums(kfi_tag<score>()) && !transposed) {
#pragma unroll
                for (int n = 0; n < KFI_SCORE_TENSORS; ++n)
                    if (kfi_score_sums(kfi_tag<score>()) >> n & 1 && own.factor[h] != 0)
                        sums[n] += tensors[0][n] + tensors[1][n];
            }
            if constexpr (kfi_score_gradients(kfi_tag<score>()) && !transposed) {
                if (stores)
                    kfi_attention_store_scores<score>(tensors, a, g, at.row + 8 * h,
                                                      first + 8 * j + col, at.head, at.batch);
            }
        }
    }
}
// Stores `value` as the gradients of the scores' tensors in columns [begin, end) of a row.
template <int score, class real>
KFI_DEVICE void kfi_attention_fill_scores(const kfi_attention_gradients &g, int row, int begin,
                                          int end, int head, int batch, real value)
{
#pragma unroll
    for (int n = 0; n < KFI_SCORE_TENSORS; ++n) {
        if (!g.dscores[n]) continue;
        const kfi_attention_strides &s = g.dscore_strides[n];
        const kf_i64 at = batch * s.batch + head * s.head + row * s.row;
#pragma unroll 1
        for (int c = begin + (int)threadIdx.x; c < end; c += (int)blockDim.x)
            kfi_score_store(kfi_tag<score>(), g.dscores[n], n, at + c, value);
    }
}
// Stores zeros where `rows` rows from at.begin on walk no keys: in front of block b.first and
// behind block b.last.
template <int score, int step, class real>
KFI_DEVICE void kfi_attention_clear_scores(const kfi_attention &a, const kfi_attention_gradients &g,
                                           const kfi_attention_blocks &b, int rows,
                                           const kfi_attention_place &at)
{
    const bool none = b.last < b.first;
    const int first = none ? 0 : b.first * step, end = none ? 0 : (b.last + 1) * step;
#pragma unroll 1
    for (int row = at.begin; row < kfi_min_i32(at.begin + rows, a.queries); ++row) {
        kfi_attention_fill_scores<score>(g, row, 0, first, at.head, at.batch, real(0));
        kfi_attention_fill_scores<score>(g, row, end, a.keys, at.head, at.batch, real(0));
    }
}
// Stores zeros outside of the queries and keys of packed sequences, and NaN in all of those that
// are refused. A block has 16 rows of a head.
template <int type, int score>
KFI_DEVICE void kfi_attention_outside(const kfi_attention_packed &p,
                                      const kfi_attention_gradients &g)
{
    typedef typename kfi_attention_element<type>::real real;
    const int chunks = (p.max_query + KFI_ATTENTION_OUTSIDE_ROWS - 1) / KFI_ATTENTION_OUTSIDE_ROWS;
#pragma unroll 1
    for (kf_i64 n = blockIdx.x; n < (kf_i64)chunks * p.a.heads * p.batch; n += gridDim.x) {
        const int begin = (int)(n % chunks) * KFI_ATTENTION_OUTSIDE_ROWS,
                  head = (int)(n / chunks % p.a.heads), i = (int)(n / chunks / p.a.heads),
                  queries = kfi_attention_start<0>(p, i + 2) - kfi_attention_start<0>(p, i + 1),
                  keys = kfi_attention_start<1>(p, i + 2) - kfi_attention_start<1>(p, i + 1);
        const bool refused = queries > p.max_query || keys > p.max_key;
#pragma unroll 1
        for (int row = begin; row < kfi_min_i32(begin + KFI_ATTENTION_OUTSIDE_ROWS, p.max_query);
             ++row)
            kfi_attention_fill_scores<score>(
                g, row, refused || row >= queries ? 0 : kfi_max_i32(0, keys), p.max_key, head, i,
                refused ? real(kfi_attention_nan()) : real(0));
    }
}

// ---- statistics ----

// Loads the first `count` of 8 elements, and zeros for the others.
template <class stored>
KFI_DEVICE void kfi_attention_load_eight(stored *to, const stored *from, int count)
{
    if (count >= 8 && (size_t)from % 16 == 0) {
#pragma unroll
        for (int i = 0; i < 8; i += 16 / sizeof(stored)) kfi_copy<16>(to + i, from + i);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] = i < count ? from[i] : stored{};
    }
}
// Computes the statistics of a block's rows, 16 lanes per row. fast: for tensor cores.
template <int type, int fast>
KFI_DEVICE void kfi_attention_delta(const kfi_attention &a, const kfi_attention_gradients &g,
                                    const kfi_attention_place &at)
{
    typedef typename kfi_attention_element<type>::stored stored;
    typedef typename kfi_attention_element<type>::real real;
    const int lane = (int)threadIdx.x % 16;
#pragma unroll 2
    for (int r = 0; r < KFI_ATTENTION_DELTA_ROWS; r += KFI_ATTENTION_DELTA_THREADS / 16) {
        const int row = at.begin + r + (int)threadIdx.x / 16;
        const bool in = row < a.queries;
        const stored *const dout = (const stored *)kfi_attention_row(
                                g.dout, g.dout_strides, row, at.head, at.batch, sizeof(stored)),
                            *const out = (const stored *)kfi_attention_row(
                                a.out, a.out_strides, row, at.head, at.batch, sizeof(stored));
        real sum = 0;
#pragma unroll 1
        for (int c = 8 * lane; in && c < a.dim_v; c += 128) {
            alignas(16) stored x[8], y[8];
            kfi_attention_load_eight(x, dout + c, a.dim_v - c);
            kfi_attention_load_eight(y, out + c, a.dim_v - c);
#pragma unroll
            for (int e = 0; e < 8; ++e)
                sum = kfi_attention_fma(kfi_attention_widen(x[e]), kfi_attention_widen(y[e]), sum);
        }
#pragma unroll
        for (int step = 8; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (!in || lane > 0) continue;
        const kf_i64 i = kfi_attention_query_index(g, row, at.head, at.batch);
        const bool two = g.row_max && g.log_sum;
        const real most = ((const real *)(two ? g.row_max : g.lse))[i],
                   log = two ? ((const real *)g.log_sum)[i] : real(0);
        const bool none = most == kfi_minus_infinity();
        real shift = none ? real(0) : most;
        // The reference of the forward, times the same unit: errors of both cancel.
        if constexpr (fast) shift = a.unit > 0 ? shift / a.unit * a.log2_unit : real(0);
        ((real *)g.shift)[i] = shift;
        ((real *)g.factor)[i] = none ? real(0) : kfi_attention_exp(-log);
        ((real *)g.delta)[i] = g.dlse ? sum - ((const real *)g.dlse)[i] : sum;
    }
}
#endif

template <int type, int fast>
KFI_KERNEL void KFI_BOUNDS(KFI_ATTENTION_DELTA_THREADS)
    kfk_attention_delta(const __grid_constant__ kfi_attention_bwd w)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    kfi_attention_delta<type, fast>(
        w.a, w.g,
        kfi_attention_bwd_place<KFI_ATTENTION_DELTA_ROWS, 0>(w.a, w.a.heads, (int)blockIdx.x));
#endif
}
template <int type, int fast>
KFI_KERNEL void KFI_BOUNDS(KFI_ATTENTION_DELTA_THREADS)
    kfk_attention_delta_packed(const __grid_constant__ kfi_attention_bwd_packed w)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    kfi_attention_bwd own;
    kfi_attention_place at;
    if (kfi_attention_bwd_find<KFI_ATTENTION_DELTA_ROWS, 0>(
            &own, &at, w.p, w.g, (int)blockIdx.x,
            sizeof(typename kfi_attention_element<type>::stored)))
        kfi_attention_delta<type, fast>(own.a, own.g, at);
#endif
}

template <int type, int score>
KFI_KERNEL void KFI_BOUNDS(KFI_ATTENTION_OUTSIDE_THREADS)
    kfk_attention_bwd_outside(const __grid_constant__ kfi_attention_bwd_packed w)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    kfi_attention_outside<type, score>(w.p, w.g);
#endif
}

#endif
