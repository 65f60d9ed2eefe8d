// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/simt.cuh: attention forward by FMAs, of float and double, and of 2-byte
// elements before sm_80 or of more than 256 dimensions.
//
// A block of 4 warps has 64 query rows (32 where doubles are many) and walks blocks of 32 keys with
// online softmax. Q, K and V pass through shared memory in slices of the head dimension, so that
// any dimension fits 48 KB. A thread has the fragment of mma.sync: rows g and g + 8, of each 8
// keys, and of each 8 columns of the output, two. P passes through the warp's shared memory.
//
// Grid: one block per rows and head, the last rows of a head first. Shared memory:
// kfi_attention_simt_shared_bytes. Callers: kernels of ops (templates), launched by
// portable_host.cuh.
// Accuracy: sums in float or double in the order of the dimension and, from the last block to the
// first, of the keys; exponentials by kfi_exp. Masked values are skipped.
#ifndef KF_CORE_ATTENTION_SIMT_CUH
#define KF_CORE_ATTENTION_SIMT_CUH

#include "kf/core/attention/dropout.cuh"
#include "kf/core/attention/packed.cuh"
#include "kf/core/attention/softmax.cuh"
#include "kf/core/attention/sparse.cuh"
#include "kf/core/math.cuh"
#include "kf/core/ptx/mma.cuh"

#define KFI_ATTENTION_SIMT_KEYS 32
#define KFI_ATTENTION_SIMT_COLS 64 // columns of a slice of V
#define KFI_ATTENTION_SIMT_THREADS 128

// Tiles: the padded dimension of v is 64, 128 or 256; that of q and k is any.
KFI_BOTH constexpr int kfi_attention_simt_dim_v(int tile) { return 64 << tile; }
KFI_BOTH constexpr int kfi_attention_simt_size(int type) { return type == KFI_OF_F64 ? 8 : 4; }
// Rows per thread, and per block.
KFI_BOTH constexpr int kfi_attention_simt_per_thread(int type, int tile)
{
    return type == KFI_OF_F64 && tile > 0 ? 1 : 2;
}
KFI_BOTH constexpr int kfi_attention_simt_rows(int type, int tile)
{
    return 32 * kfi_attention_simt_per_thread(type, tile);
}
// Pitch of a row [elements], of 128 bytes of a dimension or of 32 probabilities: 16 bytes more, so
// that 8 rows begin in different banks.
KFI_BOTH constexpr int kfi_attention_simt_pitch(int type)
{
    return (128 + 16) / kfi_attention_simt_size(type);
}
KFI_BOTH constexpr int kfi_attention_simt_p_pitch(int type)
{
    return KFI_ATTENTION_SIMT_KEYS + 16 / kfi_attention_simt_size(type);
}
KFI_BOTH constexpr int kfi_attention_simt_shared_bytes(int type, int tile)
{
    const int rows = kfi_attention_simt_rows(type, tile);
    return kfi_attention_simt_size(type) *
           ((rows + KFI_ATTENTION_SIMT_KEYS) * kfi_attention_simt_pitch(type) +
            rows * kfi_attention_simt_p_pitch(type) +
            KFI_ATTENTION_SIMT_KEYS * KFI_ATTENTION_SIMT_COLS);
}

#ifdef KFI_DEVICE_PASS

KFI_DEVICE float kfi_attention_fma(float a, float b, float c) { return kfi_fma_f32(a, b, c); }
KFI_DEVICE double kfi_attention_fma(double a, double b, double c) { return kfi_fma_f64(a, b, c); }
KFI_DEVICE float kfi_attention_exp(float x) { return kfi_exp_f32(x); }
KFI_DEVICE double kfi_attention_exp(double x) { return kfi_exp_f64(x); }
KFI_DEVICE float kfi_attention_log(float x) { return kfi_log_f32(x); }
KFI_DEVICE double kfi_attention_log(double x) { return kfi_log_f64(x); }
// The larger of two, ignoring NaN.
KFI_DEVICE float kfi_attention_max(float a, float b) { return fmaxf(a, b); }
KFI_DEVICE double kfi_attention_max(double a, double b) { return fmax(a, b); }

// Loads rows x cols elements from a row and a column on, padded with zeros.
template <int rows, int cols, int pitch, class stored, class real>
KFI_DEVICE void kfi_attention_simt_load(real *to, const stored *from, kf_i64 step, int row,
                                        int row_count, int col, int col_count)
{
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < rows * cols; i += KFI_ATTENTION_SIMT_THREADS) {
        const int r = i / cols, c = i % cols;
        const bool in = row + r < row_count && col + c < col_count;
        to[r * pitch + c] = in ? kfi_attention_widen(from[(row + r) * step + col + c]) : real(0);
    }
}

// Adds the products of a slice of `slice` elements of the dimension to the scores.
template <int per_thread, int slice, int pitch, class real>
KFI_DEVICE void kfi_attention_simt_scores(real *s, const real *q, const real *k)
{
    constexpr int per = 16 / sizeof(real);
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 8 * per_thread + lane / 4;
#pragma unroll 2
    for (int d = 0; d < slice; d += per) {
        alignas(16) real a[per_thread][per], b[per];
#pragma unroll
        for (int h = 0; h < per_thread; ++h) kfi_copy<16>(a[h], q + (row + 8 * h) * pitch + d);
#pragma unroll
        for (int j = 0; j < KFI_ATTENTION_SIMT_KEYS / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                kfi_copy<16>(b, k + (8 * j + 2 * (lane % 4) + e) * pitch + d);
#pragma unroll
                for (int h = 0; h < per_thread; ++h)
#pragma unroll
                    for (int i = 0; i < per; ++i)
                        s[4 * j + 2 * h + e] =
                            kfi_attention_fma(a[h][i], b[i], s[4 * j + 2 * h + e]);
            }
    }
}

// Softmax state of a thread's rows; natural units.
template <class real> struct kfi_attention_simt_state {
    real reference[2], sum[2], rescale[2];
};
// Turns scores into exponentials in place.
template <int per_thread, class real>
KFI_DEVICE void kfi_attention_simt_softmax(real *s, kfi_attention_simt_state<real> *state,
                                           real unit)
{
#pragma unroll
    for (int h = 0; h < per_thread; ++h) {
        real most = kfi_minus_infinity(), sum = 0;
#pragma unroll
        for (int j = 0; j < KFI_ATTENTION_SIMT_KEYS / 4; ++j)
            most = kfi_attention_max(most, s[j / 2 * 4 + 2 * h + j % 2]);
        most = kfi_attention_max(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = kfi_attention_max(most, __shfl_xor_sync(0xffffffffu, most, 2)) * unit;
        const real old = state->reference[h], next = kfi_attention_max(old, most),
                   shift = next == kfi_minus_infinity() ? real(0) : next;
        state->reference[h] = next;
        state->rescale[h] = kfi_attention_exp(old - shift);
#pragma unroll
        for (int j = 0; j < KFI_ATTENTION_SIMT_KEYS / 4; ++j) {
            real *const x = s + j / 2 * 4 + 2 * h + j % 2;
            *x = kfi_attention_exp(kfi_attention_fma(*x, unit, -shift));
            sum += *x;
        }
        state->sum[h] = kfi_attention_fma(state->sum[h], state->rescale[h], sum);
    }
}
// Adds P . V of one slice of V's columns. visible: the keys of the block that each row sees, if
// some are masked. skips: a score or a dropout may mask others.
template <int per_thread, int p_pitch, class real>
KFI_DEVICE void kfi_attention_simt_values(real *o, const real *p, const real *v, bool masked,
                                          const int (*visible)[2], bool skips)
{
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 8 * per_thread + lane / 4;
#pragma unroll 1
    for (int key = 0; key < KFI_ATTENTION_SIMT_KEYS; ++key) {
        alignas(16) real pair[KFI_ATTENTION_SIMT_COLS / 8][2];
#pragma unroll
        for (int j = 0; j < KFI_ATTENTION_SIMT_COLS / 8; ++j)
            kfi_copy<2 * sizeof(real)>(pair[j],
                                       v + key * KFI_ATTENTION_SIMT_COLS + 8 * j + 2 * (lane % 4));
#pragma unroll
        for (int h = 0; h < per_thread; ++h) {
            if (masked && (key < visible[h][0] || key > visible[h][1])) continue;
            const real x = p[(row + 8 * h) * p_pitch + key];
            if (skips && x == 0) continue;
#pragma unroll
            for (int j = 0; j < KFI_ATTENTION_SIMT_COLS / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    o[4 * j + 2 * h + e] = kfi_attention_fma(x, pair[j][e], o[4 * j + 2 * h + e]);
        }
    }
}
// Normalises and stores a thread's rows and their statistics. Results of 2 bytes are multiplied by
// the reciprocal of the sum: exact divisions take more code than the rest of the kernel.
template <int per_thread, int dim_v, int drop, class stored, class real>
KFI_DEVICE void kfi_attention_simt_store(const real *o, const kfi_attention_simt_state<real> &state,
                                         const kfi_attention &a, int row, int head, int batch)
{
    const int col = 2 * ((int)threadIdx.x % 4);
#pragma unroll
    for (int h = 0; h < per_thread; ++h) {
        real sum = state.sum[h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (row + 8 * h >= a.queries) continue;
        const kf_i64 at = kfi_attention_row_index(a, row + 8 * h, head, batch);
        const real none = kfi_minus_infinity(), most = sum == 0 ? none : state.reference[h],
                   log = sum == 0 ? none : kfi_attention_log(sum), inverse = real(1) / sum;
        if (col == 0 && a.lse) ((real *)a.lse)[at] = sum == 0 ? none : most + log;
        if (col == 0 && a.row_max) ((real *)a.row_max)[at] = most;
        if (col == 0 && a.log_sum) ((real *)a.log_sum)[at] = log;
        stored *const out = (stored *)kfi_attention_row(a.out, a.out_strides, row + 8 * h, head,
                                                        batch, sizeof(stored));
#pragma unroll
        for (int i = 0; i < dim_v / 4; ++i) {
            const int c = 8 * (i / 2) + col + i % 2;
            real x = o[i / 2 * 4 + 2 * h + i % 2];
            if constexpr (drop >= 0)
                x *= sizeof(real) == 8 ? real(a.drop.rng.scale_f64) : real(a.drop.rng.scale);
            if (c < a.dim_v)
                kfi_cast(out + c, sum == 0 ? real(0) : sizeof(stored) == 2 ? x * inverse : x / sum);
        }
    }
}

// Rows of a head in global memory. step: elements.
template <class stored> struct kfi_attention_simt_rows_of {
    const stored *p;
    kf_i64 step;
    int count, dim;
};
template <class stored>
KFI_DEVICE kfi_attention_simt_rows_of<stored>
kfi_attention_simt_view(const void *p, const kfi_attention_strides &s, int head, int batch,
                        int count, int dim)
{
    const kfi_attention_simt_rows_of<stored> r = {
        (const stored *)kfi_attention_row(p, s, 0, head, batch, sizeof(stored)), s.row, count, dim};
    return r;
}

// Computes the products of a block's rows from `begin` on with 32 others from `first` on: all
// slices of the dimension.
template <int per_thread, class stored, class real>
KFI_DEVICE void
kfi_attention_simt_block(real *s, real *shared, const kfi_attention_simt_rows_of<stored> &own,
                         int begin, const kfi_attention_simt_rows_of<stored> &others, int first)
{
    constexpr int rows = 32 * per_thread, slice = 128 / sizeof(real), pitch = 144 / sizeof(real);
    real *const of_others = shared + rows * pitch;
#pragma unroll
    for (int i = 0; i < KFI_ATTENTION_SIMT_KEYS / 2; ++i) s[i] = 0;
#pragma unroll 1
    for (int d = 0; d < own.dim; d += slice) {
        __syncthreads();
        kfi_attention_simt_load<rows, slice, pitch>(shared, own.p, own.step, begin, own.count, d,
                                                    own.dim);
        kfi_attention_simt_load<KFI_ATTENTION_SIMT_KEYS, slice, pitch>(
            of_others, others.p, others.step, first, others.count, d, own.dim);
        __syncthreads();
        kfi_attention_simt_scores<per_thread, slice, pitch>(s, shared, of_others);
    }
}

// Returns the key blocks of `rows` rows from `begin` on.
template <int rows>
KFI_DEVICE kfi_attention_blocks kfi_attention_simt_blocks(const kfi_attention &a, int begin)
{
    return kfi_attention_blocks_of<KFI_ATTENTION_SIMT_KEYS>(
        a, begin, kfi_min_i32(begin + rows, a.queries) - 1);
}
// Runs the kernel for one block of rows and a range of keys. Called by all threads.
template <int type, int tile, int score, int drop, class range>
KFI_DEVICE void kfi_attention_simt(const kfi_attention &a, const kfi_attention_place &at,
                                   const range &b)
{
    typedef typename kfi_attention_element<type>::stored stored;
    typedef typename kfi_attention_element<type>::real real;
    constexpr int rows = kfi_attention_simt_rows(type, tile), keys = KFI_ATTENTION_SIMT_KEYS,
                  per_thread = kfi_attention_simt_per_thread(type, tile),
                  dim_v = kfi_attention_simt_dim_v(tile),
                  p_pitch = kfi_attention_simt_p_pitch(type);
    const int batch = at.batch, head = at.head, begin = at.begin, lane = (int)threadIdx.x % 32,
              warp = (int)threadIdx.x / 32, own = warp * 8 * per_thread + lane / 4,
              row = begin + own, col = 2 * (lane % 4);
    real *const shared = (real *)(void *)kfi_dynamic(),
                *const of_p = shared + (rows + keys) * kfi_attention_simt_pitch(type),
                *const of_v = of_p + rows * p_pitch;
    const kfi_attention_simt_rows_of<stored>
        q_rows = kfi_attention_simt_view<stored>(a.q, a.q_strides, head, batch, a.queries, a.dim),
        k_rows =
            kfi_attention_simt_view<stored>(a.k, a.k_strides, head / a.group, batch, a.keys, a.dim),
        v_rows = kfi_attention_simt_view<stored>(a.v, a.v_strides, head / a.group, batch, a.keys,
                                                 a.dim_v);
    const real sink = kfi_score_sink<real>(kfi_tag<score>(), a, head),
               first = at.refused                                 ? real(kfi_attention_nan())
                       : sink != kfi_minus_infinity() && col == 0 ? real(1)
                                                                  : real(0);
    kfi_attention_simt_state<real> state = {{sink, sink}, {first, first}, {1, 1}};
    kfi_score_block<score, keys> loaded;
    real o[dim_v / 2], s[keys / 2];
    const kfi_rng rng = kfi_attention_rng<drop>(a);
    const kf_i64 number = kfi_attention_number(a, row, head, batch);
    const bool skips =
        score != KFI_SCORE_PLAIN || kfi_attention_drops<drop>(a) || kfi_attention_hides(b);
#pragma unroll
    for (int i = 0; i < dim_v / 2; ++i) o[i] = 0;
#pragma unroll 1
    for (int n = b.last; n >= b.first; --n) {
        const int block = kfi_attention_block_at(b, n);
        const bool masked = kfi_attention_is_masked(b, block);
        int visible[2][2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            visible[h][0] = kfi_attention_first_key(a, row + 8 * h) - block * keys;
            visible[h][1] = kfi_attention_last_key(a, row + 8 * h) - block * keys;
        }
        kfi_score_load(kfi_tag<score>(), loaded, a, row, block * keys + col, head, batch);
        kfi_attention_simt_block<per_thread>(s, shared, q_rows, begin, k_rows, block * keys);
        kfi_score_all<score, keys, keys / 2>(s, loaded, a);
        kfi_attention_mask<keys / 2>(s, a, b, n, block, row, block * keys + col);
        kfi_attention_simt_softmax<per_thread>(s, &state,
                                               sizeof(real) == 8 ? (real)a.unit_f64 : a.unit);
        kfi_attention_drop<drop, keys, per_thread>(s, rng, a, number, block * keys);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < keys / 2; ++i)
            if (kfi_score_row(i) < per_thread)
                of_p[(own + 8 * kfi_score_row(i)) * p_pitch + col + kfi_score_key(i)] = s[i];
#pragma unroll
        for (int i = 0; i < dim_v / 2; ++i) o[i] *= state.rescale[i >> 1 & 1];
#pragma unroll
        for (int c = 0; c < dim_v; c += KFI_ATTENTION_SIMT_COLS) {
            __syncthreads();
            kfi_attention_simt_load<keys, KFI_ATTENTION_SIMT_COLS, KFI_ATTENTION_SIMT_COLS>(
                of_v, v_rows.p, v_rows.step, block * keys, a.keys, c, a.dim_v);
            __syncthreads();
            kfi_attention_simt_values<per_thread, p_pitch>(o + c / 2, of_p, of_v, masked, visible,
                                                           skips);
        }
    }
    kfi_attention_simt_store<per_thread, dim_v, drop, stored>(o, state, a, row, head, batch);
}
// The same for packed sequences.
template <int type, int tile, int score, int drop>
KFI_DEVICE void kfi_attention_simt_packed(const kfi_attention_packed &p)
{
    constexpr int rows = kfi_attention_simt_rows(type, tile),
                  bytes = sizeof(typename kfi_attention_element<type>::stored);
    const int head = (int)blockIdx.x / p.a.row_blocks;
    kfi_attention_sequence s;
    const int block = kfi_attention_find<rows>(&s, p, (int)blockIdx.x - head * p.a.row_blocks);
    if (block < 0) return;
    const kfi_attention_place at = {block * rows, head, s.index, s.refused};
    const kfi_attention a = kfi_attention_own(p, s, head, bytes);
    kfi_attention_simt<type, tile, score, drop>(a, at,
                                                kfi_attention_simt_blocks<rows>(a, at.begin));
}
#endif

// From sm_80 on mma.sync takes 2-byte elements (portable.cuh), except those of more than 256
// dimensions of q and k, which the largest tile takes. The other tiles have no code there, and a
// launch bound of one warp.
#ifndef KFI_PRE_SM80
#define KFI_PRE_SM80 (!KFI_MMA)
#endif
KFI_BOTH constexpr bool kfi_attention_simt_has(int type, int tile)
{
    return KFI_PRE_SM80 || type == KFI_OF_F32 || type == KFI_OF_F64 || tile == 2;
}
template <int type, int tile, int score, int drop = KFI_NO_DROPOUT>
KFI_KERNEL void KFI_BOUNDS(kfi_attention_simt_has(type, tile) ? KFI_ATTENTION_SIMT_THREADS : 32,
                           tile == 2 || type == KFI_OF_F64 ? 2 : 3)
    kfk_attention_simt(const __grid_constant__ kfi_attention a)
{
#ifdef KFI_DEVICE_PASS
    if constexpr (kfi_attention_simt_has(type, tile)) {
        kfi_begin();
        constexpr int rows = kfi_attention_simt_rows(type, tile);
        const kfi_attention_place at = kfi_attention_place_of<rows>(a);
        kfi_attention_simt<type, tile, score, drop>(a, at,
                                                    kfi_attention_simt_blocks<rows>(a, at.begin));
    }
#endif
}
template <int type, int tile, int score, int drop = KFI_NO_DROPOUT>
KFI_KERNEL void KFI_BOUNDS(kfi_attention_simt_has(type, tile) ? KFI_ATTENTION_SIMT_THREADS : 32,
                           tile == 2 || type == KFI_OF_F64 ? 2 : 3)
    kfk_attention_simt_packed(const __grid_constant__ kfi_attention_packed p)
{
#ifdef KFI_DEVICE_PASS
    if constexpr (kfi_attention_simt_has(type, tile)) {
        kfi_begin();
        kfi_attention_simt_packed<type, tile, score, drop>(p);
    }
#endif
}
template <int type, int tile, int score, int drop = KFI_NO_DROPOUT>
KFI_KERNEL void KFI_BOUNDS(kfi_attention_simt_has(type, tile) ? KFI_ATTENTION_SIMT_THREADS : 32,
                           tile == 2 || type == KFI_OF_F64 ? 2 : 3)
    kfk_attention_simt_sparse(const __grid_constant__ kfi_attention_sparse s)
{
#ifdef KFI_DEVICE_PASS
    if constexpr (kfi_attention_simt_has(type, tile)) {
        constexpr int rows = kfi_attention_simt_rows(type, tile);
        kfi_begin();
        kfi_attention_place at = kfi_attention_place_of<rows>(s.a);
        const kfi_attention_list b = kfi_attention_list_of<KFI_ATTENTION_SIMT_KEYS>(s, &at, rows);
        kfi_attention_simt<type, tile, score, drop>(s.a, at, b);
    }
#endif
}

#endif
