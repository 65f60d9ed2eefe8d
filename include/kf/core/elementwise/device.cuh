// SPDX-License-Identifier: Apache-2.0
// kf/core/elementwise/device.cuh: the device words of the map family. Part of kf/core/elementwise/elementwise.cuh where device
// code is compiled.
#ifndef KF_CORE_ELEMENTWISE_DEVICE_CUH
#define KF_CORE_ELEMENTWISE_DEVICE_CUH

#include "kf/core/elementwise/args.cuh"

#ifdef KFI_DEVICE_PASS

// Where the row values of a vector lie.
struct kfi_span {
    kf_i64 row, col; // of its first element; planes: the channel and the element in its plane
    kf_i64 next;     // planes: the next plane's channel
    int split;       // elements before the row or plane ends
};
template <int vec, int mode> KFI_DEVICE kfi_span kfi_find(const kfi_rows &g, kf_i64 first)
{
    kfi_span at;
    const kf_i64 unit = mode == KFI_ROWS ? first / vec : first;
    at.row = kfi_divide(unit, g.width);
    at.col = unit - at.row * (kf_i64)g.width.d;
    at.split = vec;
    at.next = 0;
    if (mode == KFI_ROWS) {
        at.col *= vec;
    } else {
        const kf_i64 room = (kf_i64)g.width.d - at.col;
        if (room < vec) at.split = (int)room;
        if (mode == KFI_PLANES) {
            at.row -= kfi_divide(at.row, g.channels) * (kf_i64)g.channels.d;
            at.next = at.row + 1 < (kf_i64)g.channels.d ? at.row + 1 : 0;
        }
    }
    return at;
}
// Row values of a vector: one per element, or (planes) those of its two channels, which kfi_at
// picks from.
template <int vec, int mode> struct kfi_width {
    static constexpr int value = mode == KFI_PLANES ? 2 : vec;
};
template <int size, int vec, int mode>
KFI_DEVICE void kfi_load_values(void *dst, const void *src, const kfi_span &at)
{
    const char *s = (const char *)src;
    if (mode == KFI_ROWS) {
        kfi_copy<size * vec>(dst, s + at.col * size);
    } else if (mode == KFI_PLANES) {
        kfi_copy<size>(dst, s + at.row * size);
        kfi_copy<size>((char *)dst + size, s + at.next * size);
    } else {
#pragma unroll
        for (int e = 0; e < vec; ++e)
            kfi_copy<size>((char *)dst + e * size,
                           s + (e < at.split ? at.col + e : e - at.split) * size);
    }
}
// One for each element, whatever the mode: for threads that keep them for many rows.
template <int size, int vec, int mode>
KFI_DEVICE void kfi_spread_values(void *dst, const void *src, const kfi_span &at)
{
    if (mode != KFI_PLANES) {
        kfi_load_values<size, vec, mode>(dst, src, at);
    } else {
#pragma unroll
        for (int e = 0; e < vec; ++e)
            kfi_copy<size>((char *)dst + e * size,
                           (const char *)src + (e < at.split ? at.row : at.next) * size);
    }
}
template <int mode, class real>
KFI_DEVICE real kfi_at(const real *values, int e, const kfi_span &at)
{
    return mode == KFI_PLANES ? (e < at.split ? values[0] : values[1]) : values[e];
}

// What a thread of a sum kernel works on: one vector of columns, and every (parts * by)-th row of a
// slab from `row` on. The blocks of a slab march down it together, so that DRAM sees them read one
// region, not one each; those of the next slab take their place as they end, so that fast ones do
// not run far ahead.
struct kfi_place {
    kf_i64 row, col, col_begin;
    int rows; // of this thread, 0 where it has nothing to do: memory ends long before 2^31 of them
    unsigned tile, part;
};
template <int vec> KFI_DEVICE kfi_place kfi_locate(const kfi_grid &g)
{
    kfi_place at;
    if (g.few) { // no divisions before the first load
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        at.part = 0;
        at.tile = blockIdx.x;
        at.row = (warp << (g.few - 1)) + (lane >> (6 - g.few));
        at.col_begin = (kf_i64)at.tile * g.bx * vec;
        at.col = at.col_begin + (lane & (g.bx - 1)) * vec;
        at.rows = at.row < g.rows && at.col < g.cols;
        return at;
    }
    const unsigned ty = threadIdx.x / (unsigned)g.bx;
    at.part = blockIdx.x / g.tiles;
    at.tile = blockIdx.x - at.part * g.tiles;
    const unsigned slab = at.part / g.parts;
    at.row = slab * g.slab + (kf_i64)(at.part - slab * g.parts) * g.by + ty;
    const kf_i64 end = (slab + 1) * g.slab < g.rows ? (slab + 1) * g.slab : g.rows,
                 apart = (kf_i64)g.parts * g.by;
    at.col_begin = (kf_i64)at.tile * g.bx * vec;
    at.col = at.col_begin + (threadIdx.x - ty * (unsigned)g.bx) * vec;
    at.rows = ty >= (unsigned)g.by || at.col >= g.cols || at.row >= end
                  ? 0
                  : (int)((end - at.row - 1) / apart) + 1;
    return at;
}

KFI_DEVICE kf_i64 kfi_ceil_device(kf_i64 a, int b) { return (a + b - 1) / b; }
// The second stage reads whole vectors of partial sums: those behind the last column are written
// too, so that nobody reads memory that nobody wrote. Where this thread writes such a zero; -1:
// nowhere.
KFI_DEVICE kf_i64 kfi_padding(const kfi_grid &g, const kfi_place &at)
{
    const kf_i64 width = kfi_ceil4(g.cols), col = g.cols + threadIdx.x;
    return at.tile + 1 == g.tiles && col < width ? at.part * width + col : -1;
}
// Adds up a block's sums and writes them to the partial sums: one per column, or (planes) one per
// channel that the tile touches. buffer: max(vec, 2) values of shared memory a thread. The order of
// the additions depends on the shape alone.
template <int vec, int mode, class real>
KFI_DEVICE void kfi_block_sum(real *partial, const real *sum, real *buffer, const kfi_grid &g,
                              const kfi_place &at, const kfi_span &span)
{
    __syncthreads(); // the buffer may still be read by the sum before
    if (mode != KFI_PLANES) {
#pragma unroll
        for (int e = 0; e < vec; ++e) buffer[threadIdx.x * vec + e] = sum[e];
        __syncthreads();
        const int width = g.bx * vec;
        for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
            real total = buffer[c];
            for (int y = 1; y < g.by; ++y) total += buffer[y * width + c];
            if (at.col_begin + c < g.cols)
                partial[at.part * kfi_ceil4(g.cols) + at.col_begin + c] = total;
        }
        const kf_i64 padding = kfi_padding(g, at);
        if (padding >= 0) partial[padding] = 0;
        return;
    }
    real own[2] = {0, 0}; // of the vector's two channels
#pragma unroll
    for (int e = 0; e < vec; ++e) own[e >= span.split] += sum[e];
    buffer[2 * threadIdx.x] = own[0];
    buffer[2 * threadIdx.x + 1] = own[1];
    __syncthreads();
    // A warp per channel of the tile: its lanes go over the threads whose vectors touch it.
    const kf_i64 inner = (kf_i64)g.r.width.d, first_plane = kfi_divide(at.col_begin, g.r.width);
    const unsigned lane = threadIdx.x % 32;
    for (kf_i64 slot = threadIdx.x / 32; slot < g.slots; slot += blockDim.x / 32) {
        const kf_i64 begin = (first_plane + slot) * inner - at.col_begin,
                     end = begin + inner; // in the tile's columns
        const int from = begin > 0 ? (int)(begin / vec) : 0;
        const int to =
            (int)(kfi_ceil_device(end < (kf_i64)g.bx * vec ? end : (kf_i64)g.bx * vec, vec));
        real total = 0;
        if (begin < (kf_i64)g.bx * vec)
            for (int y = 0; y < g.by; ++y)
                for (int x = from + (int)lane; x < to; x += 32)
                    total += buffer[2 * (y * g.bx + x) + ((kf_i64)x * vec < begin)];
#pragma unroll
        for (int step = 16; step > 0; step >>= 1)
            total += __shfl_xor_sync(0xffffffffu, total, step);
        if (lane == 0) partial[((kf_i64)at.part * g.tiles + at.tile) * g.slots + slot] = total;
    }
}

// Of few rows, of which each thread has one: added up by the threads of a warp two by two, which
// share out their columns as they go, then warp by warp, and stored. buffer: of shared memory, a
// value for each warp and column. The order depends on the number of rows alone, but for who adds
// two NaNs, of which a processor may keep the first one's sign: one and the same NaN is stored.
template <int dtype, int vec, class real>
KFI_DEVICE void kfi_few_sum(void *out, real (&sum)[vec], real *buffer, const kfi_grid &g)
{
    const int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32, bits = g.few - 1,
              width = g.bx * vec, warps = g.by >> bits;
    const kf_i64 first = (kf_i64)blockIdx.x * width;
    int own = (lane & (g.bx - 1)) * vec,
        left = vec; // its first column of the block's, and how many
    bool writes = true;
    if (!out) return;
#pragma unroll
    for (int j = 0; j < KFI_MAP_FEW_BITS; ++j) {
        const int half = vec >> (j + 1), by = g.bx << j;
        const bool upper = lane & by;
        if (j >= bits) break;
        if (half == 0) { // they have the same column
            sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], by);
            writes &= !upper;
            continue;
        }
#pragma unroll
        for (int e = 0; e < half; ++e) {
            const real given = upper ? sum[e] : sum[e + half],
                       kept = upper ? sum[e + half] : sum[e];
            sum[e] = kept + __shfl_xor_sync(0xffffffffu, given, by);
        }
        if (upper) own += half;
        left = half;
    }
    __syncthreads(); // the buffer may still be read by the sum before
#pragma unroll
    for (int e = 0; e < vec; ++e)
        if (writes && e < left) buffer[warp * width + own + e] = sum[e];
    __syncthreads();
    for (int c = thread; c < width; c += (int)blockDim.x) {
        real total = buffer[c];
#pragma unroll
        for (int w = 1; w < KFI_MAP_FEW >> KFI_MAP_FEW_BITS; ++w)
            if (w < warps) total += buffer[w * width + c];
        if (total != total) total = __uint_as_float(0x7fffffffu);
        if (first + c < g.cols) kfi_store_sum(kfi_tag<dtype>(), out, first + c, total);
    }
}

#endif

#endif
