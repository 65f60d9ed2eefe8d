// SPDX-License-Identifier: Apache-2.0
// kf/core/decoding/simt.cuh: attention to a cache by FMAs: f32, f64, other rows and dimensions, and
// 2-byte elements before sm_80. A second kernel adds the chunks of all kernels.
//
// decode  A block has 8 rows of a unit, a chunk of keys, and 256 columns of V; more columns are
//         further blocks. It walks blocks of 32 keys: slices of 64 dimensions of Q and K, and then
//         of V, are staged in shared memory in the numbers of the arithmetic. A lane has the score
//         of a key, and a thread has a column of four rows.
// fold    A warp adds the chunks of a row, in order, and stores the result.
// Grid: chunks x (tiles of all units), columns / 256; block: 128 threads; static shared memory.
#ifndef KF_CORE_DECODING_SIMT_CUH
#define KF_CORE_DECODING_SIMT_CUH

#include "kf/core/decoding/items.cuh"
#include "kf/core/ptx/mma.cuh"

#define KFI_DECODE_SIMT_THREADS 128
#define KFI_DECODE_SIMT_ROWS 8
#define KFI_DECODE_SIMT_KEYS 32
#define KFI_DECODE_SIMT_SLICE 64
#define KFI_DECODE_SIMT_COLS 256

#ifdef KFI_DEVICE_PASS
template <class real> struct kfi_decode_simt_room {
    real q[KFI_DECODE_SIMT_ROWS][KFI_DECODE_SIMT_SLICE];
    real kv[KFI_DECODE_SIMT_KEYS][KFI_DECODE_SIMT_SLICE + 1]; // keys of a warp have other banks
    real weights[KFI_DECODE_SIMT_ROWS][KFI_DECODE_SIMT_KEYS], factor[KFI_DECODE_SIMT_ROWS];
};
// A block's work: rows [first, first + rows) of a unit over keys [key, last) of `keys`.
struct kfi_decode_simt_work {
    int sequence, kv_head, tile, slot, first, rows, keys, key, last;
};

// Loads a slice of the rows of Q; zeros beyond rows and dimensions.
template <int type>
KFI_DEVICE void kfi_decode_simt_q(
    const kfi_decode &a, const kfi_decode_simt_work &x, int d,
    typename kfi_decoding_element<type>::real (&to)[KFI_DECODE_SIMT_ROWS][KFI_DECODE_SIMT_SLICE])
{
    typedef typename kfi_decoding_element<type>::stored stored;
    const int col = (int)threadIdx.x % KFI_DECODE_SIMT_SLICE;
    for (int r = (int)threadIdx.x / KFI_DECODE_SIMT_SLICE; r < KFI_DECODE_SIMT_ROWS;
         r += KFI_DECODE_SIMT_THREADS / KFI_DECODE_SIMT_SLICE) {
        const bool in = r < x.rows && d + col < a.dim;
        to[r][col] = in ? kfi_decoding_widen(
                              ((const stored *)a.q)[kfi_decode_offset(a, a.q_strides, x.sequence,
                                                                      x.kv_head, x.first + r) +
                                                    d + col])
                        : 0;
    }
}
// Loads columns [d, d + 64) of keys from `key` on: zeros beyond the columns, NaN for rows without
// memory, zeros behind the last key.
template <int type>
KFI_DEVICE void
kfi_decode_simt_load(const kfi_decode &a, const kfi_decode_simt_work &x, const void *p,
                     const kfi_decoding_strides &strides, int key, int d, int dim,
                     kfi_decode_simt_room<typename kfi_decoding_element<type>::real> *room)
{
    typedef typename kfi_decoding_element<type>::stored stored;
    typedef typename kfi_decoding_element<type>::real real;
    const int col = (int)threadIdx.x % KFI_DECODE_SIMT_SLICE;
    for (int i = (int)threadIdx.x / KFI_DECODE_SIMT_SLICE; i < KFI_DECODE_SIMT_KEYS;
         i += KFI_DECODE_SIMT_THREADS / KFI_DECODE_SIMT_SLICE) {
        const int row = key + i;
        real v = 0;
        if (row < x.last) {
            const int page = a.table ? kfi_decode_page(a, row) : 0,
                      block = kfi_decode_block(a, x.sequence, page),
                      slot = row - page * a.page_size;
            if (block < 0)
                v = kfi_not_a_number(real(0));
            else if (d + col < dim)
                v = kfi_decoding_widen(
                    ((const stored *)p)[block * strides.batch + slot * strides.row +
                                        x.kv_head * strides.head + d + col]);
        }
        room->kv[i][col] = v;
    }
}
// Scores of rows 2 * warp and the next for the lane's key.
template <int type>
KFI_DEVICE void
kfi_decode_simt_scores(const kfi_decode &a, const kfi_decode_simt_work &x, int key,
                       typename kfi_decoding_element<type>::real (&s)[2],
                       kfi_decode_simt_room<typename kfi_decoding_element<type>::real> *room)
{
    typedef typename kfi_decoding_element<type>::real real;
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 2;
    const bool lost =
        key + lane < x.last &&
        kfi_decode_block(a, x.sequence, a.table ? kfi_decode_page(a, key + lane) : 0) < 0;
    s[0] = s[1] = 0;
    __syncthreads(); // all threads have read the last weights
    for (int d = 0; d < a.dim; d += KFI_DECODE_SIMT_SLICE) {
        __syncthreads();
        kfi_decode_simt_q<type>(a, x, d, room->q);
        kfi_decode_simt_load<type>(a, x, a.k, a.k_strides, key, d, a.dim, room);
        __syncthreads();
#pragma unroll 8
        for (int i = 0; i < KFI_DECODE_SIMT_SLICE; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                s[h] = kfi_decode_fma(room->q[row + h][i], room->kv[lane][i], s[h]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int own = (x.first + row + h) / a.group + x.keys - a.queries, at = key + lane;
        const bool seen = row + h < x.rows && at < x.last && at >= own - a.left &&
                          at <= kfi_min_i32(own + a.right, x.keys - 1);
        s[h] *= type <= KFI_OF_F16 ? (real)a.log2_unit : (real)a.scale;
        if (lost) s[h] = kfi_not_a_number(real(0));
        if (!seen) s[h] = kfi_decode_minus_infinity();
    }
}
// Turns scores into weights in shared memory; rescales the warp's two rows' sums.
template <int type, class real>
KFI_DEVICE void kfi_decode_simt_softmax(const real (&s)[2], real (&maximum)[2], real (&total)[2],
                                        kfi_decode_simt_room<real> *room)
{
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 2;
    const real none = kfi_decode_minus_infinity();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        real y = s[h] > maximum[h] ? s[h] : maximum[h];
#pragma unroll
        for (int o = 16; o; o /= 2) {
            const real other = __shfl_xor_sync(KFI_ALL_LANES, y, o);
            y = other > y ? other : y;
        }
        const real shift = y == none ? real(0) : y,
                   factor = kfi_decode_power<type>(maximum[h] - shift),
                   weight = kfi_decode_power<type>(s[h] - shift);
        real sum = weight;
#pragma unroll
        for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(KFI_ALL_LANES, sum, o);
        maximum[h] = y;
        total[h] = total[h] * factor + sum;
        room->weights[row + h][lane] = weight;
        if (lane == 0) room->factor[row + h] = factor;
    }
}
// Adds the values of a block of keys, times their weights: a column of four rows per slice.
template <int type>
KFI_DEVICE void
kfi_decode_simt_values(const kfi_decode &a, const kfi_decode_simt_work &x, int key, int begin,
                       typename kfi_decoding_element<type>::real *o,
                       kfi_decode_simt_room<typename kfi_decoding_element<type>::real> *room)
{
    typedef typename kfi_decoding_element<type>::real real;
    const int col = (int)threadIdx.x % KFI_DECODE_SIMT_SLICE,
              row = (int)threadIdx.x / KFI_DECODE_SIMT_SLICE * 4;
#pragma unroll
    for (int c = 0; c < KFI_DECODE_SIMT_COLS / KFI_DECODE_SIMT_SLICE; ++c) {
        const int d = begin + c * KFI_DECODE_SIMT_SLICE;
        __syncthreads();
        if (d < a.dim_v) kfi_decode_simt_load<type>(a, x, a.v, a.v_strides, key, d, a.dim_v, room);
        __syncthreads();
        if (d >= a.dim_v) continue;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            real sum = o[4 * c + r] * room->factor[row + r];
#pragma unroll 4
            for (int i = 0; i < KFI_DECODE_SIMT_KEYS; ++i) {
                const real w = room->weights[row + r][i];
                if (w != 0)
                    sum = kfi_decode_fma(w, room->kv[i][col], sum); // not NaN of hidden keys
            }
            o[4 * c + r] = sum;
        }
    }
}
template <int type>
KFI_DEVICE void kfi_decode_simt(const kfi_decode &a, const kfi_decode_simt_work &x, int begin)
{
    typedef typename kfi_decoding_element<type>::real real;
    __shared__ kfi_decode_simt_room<real> room;
    const int thread = (int)threadIdx.x, row = thread / KFI_DECODE_SIMT_SLICE * 4;
    real s[2],
        o[KFI_DECODE_SIMT_COLS / KFI_DECODE_SIMT_SLICE * 4] = {},
                                                         maximum[2] = {kfi_decode_minus_infinity(),
                                                                       kfi_decode_minus_infinity()},
                                                         total[2] = {};
#pragma unroll 1
    for (int key = x.key; key < x.last; key += KFI_DECODE_SIMT_KEYS) {
        kfi_decode_simt_scores<type>(a, x, key, s, &room);
        kfi_decode_simt_softmax<type>(s, maximum, total, &room);
        kfi_decode_simt_values<type>(a, x, key, begin, o, &room);
    }
    const kf_i64 at = kfi_decode_slot(a, x.sequence, x.kv_head, x.tile, x.slot);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int own = thread / 32 * 2 + h;
        if (begin || thread % 32 || own >= x.rows) continue;
        ((real *)a.maxima)[at + own] = maximum[h];
        ((real *)a.totals)[at + own] = total[h];
    }
#pragma unroll
    for (int i = 0; i < KFI_DECODE_SIMT_COLS / KFI_DECODE_SIMT_SLICE * 4; ++i) {
        const int col = begin + i / 4 * KFI_DECODE_SIMT_SLICE + thread % KFI_DECODE_SIMT_SLICE;
        if (row + i % 4 < x.rows && col < a.dim_v)
            ((real *)a.sums)[(at + row + i % 4) * a.sum_pitch + col] = o[i];
    }
}
// Adds the chunks of a row: a column per lane.
template <int type> KFI_DEVICE void kfi_decode_fold_row(const kfi_decode &a, int whole)
{
    typedef typename kfi_decoding_element<type>::real real;
    const kf_i64 row = (kf_i64)blockIdx.x * (KFI_DECODE_SIMT_THREADS / 32) + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32, r = (int)(row % a.rows), per = a.kv_heads * a.rows,
              sequence = (int)(row / per), kv_head = (int)(row % per / a.rows);
    if (sequence >= a.batch) return;
    const kfi_decode_range range = kfi_decode_range_in(a, kfi_decode_keys(a, sequence));
    if (whole && kfi_decode_run(range, *a.goal) >= range.count) return; // its block stored it
    for (int col = lane; col == lane || col < a.dim_v; col += 32) {
        kfi_decode_sum<real, 1> sum;
        kfi_decode_clear(&sum);
#pragma unroll 4
        for (int slot = 0; slot < range.count; ++slot) {
            const kf_i64 at =
                kfi_decode_slot(a, sequence, kv_head, r / a.tile_rows, slot) + r % a.tile_rows;
            const real v = col < a.dim_v ? ((const real *)a.sums)[at * a.sum_pitch + col] : 0;
            kfi_decode_fold<type>(&sum, &v, ((const real *)a.maxima)[at],
                                  ((const real *)a.totals)[at]);
        }
        if (col < a.dim_v || col == 0) kfi_decode_store<type>(a, sequence, kv_head, r, col, sum);
    }
}
#endif

template <int type>
KFI_KERNEL void KFI_BOUNDS(KFI_DECODE_SIMT_THREADS)
    kfk_decode_simt(const __grid_constant__ kfi_decode a)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    const int slot = (int)blockIdx.x % a.slots, unit = (int)blockIdx.x / a.slots,
              tile = unit % a.tiles, pair = unit / a.tiles;
    kfi_decode_simt_work x = {
        pair / a.kv_heads, pair % a.kv_heads, tile, slot, tile * a.tile_rows, 0, 0, 0, 0};
    const int keys = kfi_decode_keys(a, x.sequence);
    const kfi_decode_range r = kfi_decode_range_in(a, keys);
    if (slot >= r.count) return;
    x.rows = kfi_min_i32(a.tile_rows, a.rows - x.first);
    x.keys = kfi_max_i32(keys, 0);
    x.key = (r.begin + slot) * r.chunk;
    x.last = kfi_min_i32(r.end, x.key + r.chunk);
    // Blocks of keys in front of the first one that a query sees contribute nothing.
    if (r.first > x.key) x.key += (r.first - x.key) / KFI_DECODE_SIMT_KEYS * KFI_DECODE_SIMT_KEYS;
    kfi_decode_simt<type>(a, x, (int)blockIdx.y * KFI_DECODE_SIMT_COLS);
#endif
}
// whole: 1 if blocks of kfk_decode_mma have stored tiles whose chunks they all had.
template <int type, int whole>
KFI_KERNEL void KFI_BOUNDS(KFI_DECODE_SIMT_THREADS)
    kfk_decode_fold(const __grid_constant__ kfi_decode a)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    kfi_decode_fold_row<type>(a, whole);
#endif
}

#endif
