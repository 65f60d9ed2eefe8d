// SPDX-License-Identifier: Apache-2.0
// kf/core/decoding/mma.cuh: attention to a cache by mma.sync, for 2-byte elements from sm_80 on.
//
// tile     8 or 16 rows of a unit, dimensions up to 64 or 128, padded with zeros. More rows are
//          further tiles, whose keys meet in L2.
// load     Each warp has every fourth slice of 16 keys (32 for 64 dimensions), and stages of its
//          own: K and V slices of 4 KB by cp.async, XOR-swizzled, and no barrier but __syncwarp. K
//          is loaded again right after Q . K^T, V after P . V. Loads run on over chunks and items
//          while results are merged. With pages of whole slices one load of the table gives a warp
//          its next 32 slices; otherwise a lane has the page of a key.
// softmax  Online per warp; a row's reference is raised only if a score exceeds it by 2^8.
// values   A weight of 0 times NaN is NaN. In slices that a mask cuts, NaN and infinities of V are
//          added to the rows that see them, one by one, and are 0 in the product.
// merge    The warps' sums of a chunk are added in order in shared memory, then chunks in order
//          (kfi_decode_fold). A block that has all chunks of a tile folds them in registers and
//          stores the result; otherwise sums go to the workspace, and fold.cuh folds them.
// Grid: persistent, at most KFI_DECODE_BLOCKS; block: 4 warps; 81 to 113 KiB of shared memory.
// Requires rows of q, k, v and out at multiples of 16 bytes, and dimensions that are multiples of
// 8. Bits do not depend on grid, batch and pages.
#ifndef KF_CORE_DECODING_MMA_CUH
#define KF_CORE_DECODING_MMA_CUH

#include "kf/core/decoding/stream.cuh"

#if defined(KFI_DEVICE_PASS) && KFI_MMA
// ---- computation

// Rounds a pair of weights.
template <int type> KFI_DEVICE unsigned kfi_decode_pack(const float *e)
{
    unsigned word;
    if (type == KFI_OF_BF16)
        kfi_pack_bf16<2>((kf_bf16 *)(void *)&word, e);
    else
        kfi_pack_f16<2>((kf_f16 *)(void *)&word, e);
    return word;
}
// Returns element `half` of a pair.
template <int type> KFI_DEVICE float kfi_decode_half(unsigned pair, int half)
{
    const unsigned short bits = (unsigned short)(pair >> 16 * half);
    return kfi_decoding_widen(
        *(const typename kfi_decoding_element<type>::stored *)(const void *)&bits);
}
// A warp's sums over its slices of a chunk: thread (g, i) of lane 4 g + i has rows g and g + 8.
template <class t> struct kfi_decode_state {
    float o[t::dim / 2], maximum[2], total[2];
};
// Loads a warp's fragments of Q.
template <class t>
KFI_DEVICE void kfi_decode_load_q(const kfi_decode &a, const kfi_decode_work &x, int lane,
                                  unsigned *q)
{
    const int rows = kfi_min_i32(t::rows, a.rows - x.tile * t::rows);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
        const int r = u * 8 + lane / 4, col = 2 * (lane % 4);
        const bool in = u < t::halves && r < rows;
        const char *const from =
            (const char *)a.q + 2 * (in ? kfi_decode_offset(a, a.q_strides, x.sequence, x.kv_head,
                                                            x.tile * t::rows + r) +
                                              col
                                        : 0);
#pragma unroll
        for (int k = 0; k < t::dim / 16; ++k)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int d = 16 * k + 8 * h;
                q[4 * k + 2 * h + u] =
                    in && d < a.dim ? *(const unsigned *)(const void *)(from + 2 * d) : 0;
            }
    }
}
template <int type, class t>
KFI_DEVICE void kfi_decode_scores(float *s, const unsigned *q, const char *stage, int lane)
{
    const char *const row = stage + (lane % 8 + lane / 16 * 8) * t::row_bytes;
    const int swizzle = ((lane / 8 % 2) ^ (lane % 8)) << 4;
#pragma unroll
    for (int i = 0; i < t::keys / 2; ++i) s[i] = 0;
#pragma unroll
    for (int k = 0; k < t::dim / 16; ++k)
#pragma unroll
        for (int n = 0; n < t::keys / 16; ++n) {
            unsigned b[4];
            kfi_ldmatrix<0>(b, row + n * 16 * t::row_bytes + (swizzle ^ (k << 5)));
            kfi_mma<type>(s + 8 * n, q + 4 * k, b);
            kfi_mma<type>(s + 8 * n + 4, q + 4 * k, b + 2);
        }
}
template <int type, class t>
KFI_DEVICE void kfi_decode_values(float *o, const unsigned *p, const char *stage, int lane)
{
    const char *const row = stage + lane % 16 * t::row_bytes;
    const int swizzle = ((lane / 16) ^ (lane % 8)) << 4;
#pragma unroll
    for (int k = 0; k < t::keys / 16; ++k)
#pragma unroll
        for (int i = 0; i < t::dim / 16; ++i) {
            unsigned b[4];
            kfi_ldmatrix<1>(b, row + k * 16 * t::row_bytes + (swizzle ^ (i << 5)));
            kfi_mma<type>(o + 8 * i, p + 4 * k, b);
            kfi_mma<type>(o + 8 * i + 4, p + 4 * k, b + 2);
        }
}
// Returns a mask of the halves of a word that are NaN or infinite elements.
template <int type> KFI_DEVICE unsigned kfi_decode_odd(unsigned word)
{
    const unsigned high = type == KFI_OF_BF16 ? 0x7f800000u : 0x7c000000u, low = high >> 16;
    return ((word & high) == high ? 0xffff0000u : 0) | ((word & low) == low ? 0xffffu : 0);
}
// Adds NaN and infinities of a slice of V to the sums of rows that see their keys, whose score is
// not -infinity.
template <int type, class t>
KFI_DEVICE void kfi_decode_add_odd(float *o, const float *s, const unsigned *p, const char *stage,
                                   int lane)
{
    const float none = kfi_decode_minus_infinity();
#pragma unroll
    for (int j = 0; j < t::keys / 4; ++j) { // keys 8 (j / 2) + 2 w and the next, row 8 (j % 2)
        if (j % 2 >= t::halves) continue;
        const int seen = (s[2 * j] != none) + 2 * (s[2 * j + 1] != none);
#pragma unroll 1
        for (int e = 0; e < 8; ++e) {
            const int from = (lane & ~3) + e / 2, key = 8 * (j / 2) + e;
            const unsigned pair = __shfl_sync(KFI_ALL_LANES, p[j], from);
            const bool sees = __shfl_sync(KFI_ALL_LANES, seen, from) >> e % 2 & 1;
            const float weight = kfi_decode_half<type>(pair, e % 2);
            const char *const row = stage + key * t::row_bytes + lane % 4 * 4;
#pragma unroll
            for (int i = 0; i < t::dim / 8; ++i) {
                const unsigned word = *(const unsigned *)(const void *)(row + ((i ^ (e & 7)) << 4)),
                               odd = sees ? kfi_decode_odd<type>(word) : 0;
                float *const to = o + 4 * i + 2 * (j % 2);
                if (odd & 1) to[0] += weight * kfi_decode_half<type>(word, 0);
                if (odd >> 16) to[1] += weight * kfi_decode_half<type>(word, 1);
            }
        }
    }
}
// Moves NaN and infinities of a slice of V to the sums of rows that see them; 0 takes their place.
template <int type, class t>
KFI_DEVICE void kfi_decode_move_odd(float *o, const float *s, const unsigned *p, char *stage,
                                    int lane)
{
    constexpr int count = KFI_DECODE_SLICE_BYTES / 16 / 32;
    unsigned found = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const uint4 v = ((const uint4 *)(const void *)stage)[i * 32 + lane];
        found |= kfi_decode_odd<type>(v.x) | kfi_decode_odd<type>(v.y) | kfi_decode_odd<type>(v.z) |
                 kfi_decode_odd<type>(v.w);
    }
    if (!__any_sync(KFI_ALL_LANES, found != 0)) return;
    kfi_decode_add_odd<type, t>(o, s, p, stage, lane);
    __syncwarp(); // all lanes have read the slice
#pragma unroll 1
    for (int i = 0; i < 4 * count; ++i) {
        unsigned *const word = (unsigned *)(void *)stage + i * 32 + lane;
        *word &= ~kfi_decode_odd<type>(*word);
    }
    __syncwarp();
}
// Hides the keys from `key` on that a row does not see: score i is of key key + 8 (i / 4) + i % 2,
// row 8 (i / 2 % 2).
template <class t>
KFI_DEVICE void kfi_decode_mask(float *s, const kfi_decode &a, int tile, int keys, int key,
                                int lane)
{
    const float none = kfi_decode_minus_infinity();
#pragma unroll
    for (int u = 0; u < t::halves; ++u) {
        const int own = (tile * t::rows + u * 8 + lane / 4) / a.group + keys - a.queries,
                  last = kfi_min_i32(own + a.right, keys - 1), first = own - a.left;
#pragma unroll
        for (int i = 0; i < t::keys / 2; ++i) {
            if ((i >> 1 & 1) != u) continue;
            const int at = key + 8 * (i / 4) + i % 2 + 2 * (lane % 4);
            if (at > last || at < first) s[i] = none;
        }
    }
}
// Turns scores into weights p, and raises a row's reference if a score exceeds it by 2^8.
template <int type, class t>
KFI_DEVICE void kfi_decode_softmax(kfi_decode_state<t> *state, float *s, unsigned *p)
{
    const float none = kfi_decode_minus_infinity();
    float most[2];
    bool grows = false;
#pragma unroll
    for (int u = 0; u < t::halves; ++u) {
        most[u] = none;
#pragma unroll
        for (int i = 0; i < t::keys / 2; ++i)
            if ((i >> 1 & 1) == u) most[u] = fmaxf(most[u], s[i]);
        grows |= most[u] > state->maximum[u] + 8.0f;
    }
    if (__any_sync(KFI_ALL_LANES, grows)) {
#pragma unroll
        for (int u = 0; u < t::halves; ++u) {
            float y = most[u];
            y = fmaxf(y, __shfl_xor_sync(KFI_ALL_LANES, y, 1));
            y = fmaxf(y, __shfl_xor_sync(KFI_ALL_LANES, y, 2));
            if (!(y > state->maximum[u] + 8.0f)) y = state->maximum[u];
            const float factor = y == none ? 1.0f : kfi_ex2_ftz(state->maximum[u] - y);
            state->maximum[u] = y;
            state->total[u] *= factor;
#pragma unroll
            for (int i = 0; i < t::dim / 2; ++i)
                if ((i >> 1 & 1) == u) state->o[i] *= factor;
        }
    }
#pragma unroll
    for (int i = 0; i < t::keys / 4; ++i) {
        const int u = i % 2; // score 2 i, whose row this is
        p[i] = 0;
        if (u >= t::halves) continue;
        const float shift = state->maximum[u] == none ? 0.0f : state->maximum[u];
        const float e[2] = {kfi_ex2_ftz(s[2 * i] - shift), kfi_ex2_ftz(s[2 * i + 1] - shift)};
        state->total[u] += e[0] + e[1];
        p[i] = kfi_decode_pack<type>(e);
    }
}

// ---- results

// Offset of 8 columns in a row of the merge buffer: neighbouring rows have other banks.
template <class t> KFI_DEVICE int kfi_decode_swizzle(int columns, int row)
{
    return 8 * (t::cols >= 64 ? columns ^ (row & 7) : columns ^ (row >> 1 & 1));
}
// Stores a warp's sums of columns [pass * cols, ...) to the merge buffer.
template <class t>
KFI_DEVICE void kfi_decode_put(const kfi_decode_state<t> &state, int rows, int pass, int warp,
                               int lane)
{
#pragma unroll
    for (int u = 0; u < t::halves; ++u) {
        const int r = u * 8 + lane / 4;
        float *const to = kfi_decode_sums<t>() + (warp * t::rows + r) * t::cols + lane % 4 * 2;
        if (r >= rows) continue;
#pragma unroll
        for (int i = 0; i < t::cols / 8; ++i) {
            const int from = 4 * (pass * (t::cols / 8) + i) + 2 * u;
            *(float2 *)(void *)(to + kfi_decode_swizzle<t>(i, r)) =
                make_float2(state.o[from], state.o[from + 1]);
        }
    }
}
// Adds the warps' sums of a row's 4 columns, in order.
template <int type, class t>
KFI_DEVICE void kfi_decode_get(int row, int col, kfi_decode_sum<float, 4> *sum)
{
    const float none = kfi_decode_minus_infinity();
    float factor[KFI_DECODE_WARPS];
    kfi_decode_clear(sum);
#pragma unroll
    for (int i = 0; i < KFI_DECODE_WARPS; ++i)
        sum->maximum = fmaxf(sum->maximum, kfi_decode_references<t>()[i * t::rows + row].x);
    const float shift = sum->maximum == none ? 0.0f : sum->maximum;
#pragma unroll
    for (int i = 0; i < KFI_DECODE_WARPS; ++i) {
        const float2 reference = kfi_decode_references<t>()[i * t::rows + row];
        alignas(16) float v[4];
        factor[i] = kfi_ex2_ftz(reference.x - shift);
        sum->total = __fmaf_rn(factor[i], reference.y, sum->total);
        kfi_copy<16>(v, kfi_decode_sums<t>() + (i * t::rows + row) * t::cols +
                            kfi_decode_swizzle<t>(col / 8, row) + col % 8);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum->value[e] = __fmaf_rn(factor[i], v[e], sum->value[e]);
    }
}
// Merges the warps' sums of chunk `chunk` of an item. Whole tiles are folded in `z` and stored
// behind the last chunk; other chunks go to the workspace. Called by all threads.
template <int type, class t>
KFI_DEVICE void kfi_decode_merge(const kfi_decode &a, kfi_decode_state<t> &state, int item,
                                 int chunk, kfi_decode_sum<float, 4> (&z)[t::passes][t::each])
{
    unsigned thread = threadIdx.x;
    kfi_opaque(thread); // addresses that follow from it would stay in registers
    const int warp = (int)thread / 32, lane = (int)thread % 32;
    const kfi_decode_work x = kfi_decode_read<t>(warp, item);
    const int rows = kfi_min_i32(t::rows, a.rows - x.tile * t::rows), first = x.tile * t::rows;
    const bool all = x.begin == 0 && x.end == x.chunks;
#pragma unroll
    for (int u = 0; u < t::halves; ++u) {
        float y = state.total[u];
        y += __shfl_xor_sync(KFI_ALL_LANES, y, 1);
        y += __shfl_xor_sync(KFI_ALL_LANES, y, 2);
        if (lane % 4 == 0)
            kfi_decode_references<t>()[warp * t::rows + u * 8 + lane / 4] =
                make_float2(state.maximum[u], y);
    }
#pragma unroll
    for (int pass = 0; pass < t::passes; ++pass) {
        kfi_decode_put<t>(state, rows, pass, warp, lane);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < t::each; ++k) {
            const int e = (int)thread + k * KFI_DECODE_THREADS, row = e / (t::cols / 4),
                      own = e % (t::cols / 4) * 4, col = pass * t::cols + own;
            if (row >= rows || col >= a.dim_v) continue;
            kfi_decode_sum<float, 4> sum;
            kfi_decode_get<type, t>(row, own, &sum);
            if (all) {
                kfi_decode_fold<type>(&z[pass][k], sum.value, sum.maximum, sum.total);
                if (chunk == x.chunks - 1)
                    kfi_decode_store<type>(a, x.sequence, x.kv_head, first + row, col, z[pass][k]);
                continue;
            }
            const kf_i64 at = kfi_decode_slot(a, x.sequence, x.kv_head, x.tile, chunk) + row;
            kfi_copy<16>((float *)a.sums + at * a.sum_pitch + col, sum.value);
            if (col) continue;
            ((float *)a.maxima)[at] = sum.maximum;
            ((float *)a.totals)[at] = sum.total;
        }
        __syncthreads();
    }
}

// ---- the kernel

// Computes a warp's slices of a chunk, keys [first, last), of `keys` that the sequence has.
template <int type, class t>
KFI_DEVICE void kfi_decode_chunk_of(const kfi_decode &a, kfi_decode_stream *s,
                                    kfi_decode_state<t> *state, const unsigned *q, int *stage,
                                    int item, int first, int last, int lane)
{
    const int warp = __shfl_sync(KFI_ALL_LANES, (int)threadIdx.x / 32, 0),
              count = ((last - first + t::keys - 1) / t::keys - warp + KFI_DECODE_WARPS - 1) /
                      KFI_DECODE_WARPS;
    const kfi_decode_work w = kfi_decode_read<t>(warp, item);
    // Slices in between need no mask.
    const int from = w.keys - 1 - a.left, to = kfi_min_i32(last, w.keys - a.queries + a.right + 1);
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
        const int key = first + (n * KFI_DECODE_WARPS + warp) * t::keys;
        char *const own = kfi_decode_stage(warp, *stage);
        float scores[t::keys / 2];
        unsigned p[t::keys / 4];
        kfi_fetch_wait<2 * t::stages - 1>();
        __syncwarp();
        kfi_decode_scores<type, t>(scores, q, own, lane);
        __syncwarp(); // all lanes have read this slice of K
        const bool more = kfi_decode_prepare<t>(a, s, item, warp, lane);
        if (more) kfi_decode_load_k<t>(a, s);
        kfi_fetch_commit();
#pragma unroll
        for (int i = 0; i < t::keys / 2; ++i) scores[i] *= a.log2_unit;
        const bool masked = key < from || key + t::keys > to;
        if (masked) {
            const kfi_decode_work x = kfi_decode_read<t>(warp, item);
            kfi_decode_mask<t>(scores, a, x.tile, x.keys, key, lane);
        }
        kfi_decode_softmax<type, t>(state, scores, p);
        kfi_fetch_wait<2 * t::stages - 1>();
        __syncwarp();
        if (masked)
            kfi_decode_move_odd<type, t>(state->o, scores, p, own + KFI_DECODE_SLICE_BYTES, lane);
        kfi_decode_values<type, t>(state->o, p, own + KFI_DECODE_SLICE_BYTES, lane);
        __syncwarp();
        if (more) kfi_decode_load_v<t>(a, s, warp, lane);
        kfi_fetch_commit();
        --s->ahead;
        *stage = *stage + 1 == t::stages ? 0 : *stage + 1;
    }
}
template <int type, class t> KFI_DEVICE void kfi_decode_mma(const kfi_decode &a)
{
    const int lane = (int)threadIdx.x % 32,
              warp = __shfl_sync(KFI_ALL_LANES, (int)threadIdx.x / 32, 0);
    kfi_decode_stream s = {{-32, 0, 0, 0}, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, false, false};
    s.goal = kfi_decode_goal(a, lane);
    s.whole = !a.table || a.page_size % t::keys == 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.goal = s.goal;
    int stage = 0;
    for (int item = 0;; ++item) {
        kfi_decode_refill<t>(a, &s, item, warp, lane);
        if (s.item < item) break;
        const kfi_decode_work x = kfi_decode_read<t>(warp, item);
        const kfi_decode_range r = kfi_decode_range_in(a, x.keys);
        unsigned q[t::dim / 4];
        kfi_decode_load_q<t>(a, x, lane, q);
        kfi_decode_sum<float, 4> z[t::passes][t::each];
#pragma unroll
        for (int i = 0; i < t::passes * t::each; ++i)
            kfi_decode_clear(&z[i / t::each][i % t::each]);
#pragma unroll 1
        for (int chunk = x.begin; chunk < x.end; ++chunk) {
            kfi_decode_state<t> state;
#pragma unroll
            for (int i = 0; i < t::dim / 2; ++i) state.o[i] = 0;
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                state.maximum[u] = kfi_decode_minus_infinity();
                state.total[u] = 0;
            }
            const int first = (r.begin + chunk) * r.chunk;
            kfi_decode_chunk_of<type, t>(a, &s, &state, q, &stage, item, first,
                                         kfi_min_i32(r.end, first + r.chunk), lane);
            kfi_decode_merge<type, t>(a, state, item, chunk, z);
        }
    }
}
#endif

template <int type, int dim, int rows>
KFI_KERNEL void KFI_BOUNDS(KFI_MMA ? KFI_DECODE_BOUND : 32, 2)
    kfk_decode_mma(const __grid_constant__ kfi_decode a)
{
#if defined(KFI_DEVICE_PASS) && KFI_MMA
    kfi_begin();
    kfi_decode_mma<type, kfi_decode_tile<dim, rows>>(a);
#endif
}

#endif
