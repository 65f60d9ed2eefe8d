// SPDX-License-Identifier: Apache-2.0
// kf/core/elementwise/device.cuh: device functions of elementwise kernels: addressing of
// broadcasts, random words of dropout, reductions of gradients over rows and planes. Included by
// kf/core/elementwise/elementwise.cuh when device code is compiled.
#ifndef KF_CORE_ELEMENTWISE_DEVICE_CUH
#define KF_CORE_ELEMENTWISE_DEVICE_CUH

#include "kf/core/elementwise/args.cuh"

#ifdef KFI_DEVICE_PASS

// Position of a vector in its row or plane.
struct kfi_span {
    kf_i64 row, col; // first element; planes: the channel and the element in its plane
    kf_i64 next;     // planes: channel of the next plane
    int split;       // elements before the end of the row or plane
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
// Number of row values of a vector: one per element; planes: two channels, among which kfi_at
// selects.
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
// Loads one row value per element in every mode, for threads that reuse them over many rows.
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

// Work of a thread of a sum kernel: one vector of columns and every (parts * by)-th row of a slab
// from `row` on. The blocks of a slab advance through it together, so that DRAM serves one region
// instead of one per block. Blocks of the next slab start as these end, so that fast blocks do not
// run far ahead.
struct kfi_sum_position {
    kf_i64 row, col, col_begin;
    int rows; // rows per thread, 0 if it has no work; memory cannot hold 2^31 of them
    unsigned tile, part;
};
template <int vec> KFI_DEVICE kfi_sum_position kfi_locate(const kfi_grid &g)
{
    kfi_sum_position at;
    if (g.few) { // avoids divisions before the first load
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
                 stride = (kf_i64)g.parts * g.by;
    at.col_begin = (kf_i64)at.tile * g.bx * vec;
    at.col = at.col_begin + (threadIdx.x - ty * (unsigned)g.bx) * vec;
    at.rows = ty >= (unsigned)g.by || at.col >= g.cols || at.row >= end
                  ? 0
                  : (int)((end - at.row - 1) / stride) + 1;
    return at;
}

KFI_DEVICE kf_i64 kfi_ceil_device(kf_i64 a, int b) { return (a + b - 1) / b; }
// Returns the index at which this thread writes a padding zero to the partial sums, or -1. The
// second stage reads whole vectors, so the columns behind the last one must be initialised.
KFI_DEVICE kf_i64 kfi_padding(const kfi_grid &g, const kfi_sum_position &at)
{
    const kf_i64 width = kfi_ceil4(g.cols), col = g.cols + threadIdx.x;
    return at.tile + 1 == g.tiles && col < width ? at.part * width + col : -1;
}
// Reduces a block's sums and stores the partial sums: one per column, or (planes) one per channel
// that the tile overlaps. buffer: max(vec, 2) values of shared memory per thread. The order of
// additions depends on the shape alone.
template <int vec, int mode, class real>
KFI_DEVICE void kfi_block_sum(real *partial, const real *sum, real *buffer, const kfi_grid &g,
                              const kfi_sum_position &at, const kfi_span &span)
{
    __syncthreads(); // the previous sum may still read the buffer
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
    real own[2] = {0, 0}; // the vector's two channels
#pragma unroll
    for (int e = 0; e < vec; ++e) own[e >= span.split] += sum[e];
    buffer[2 * threadIdx.x] = own[0];
    buffer[2 * threadIdx.x + 1] = own[1];
    __syncthreads();
    // One warp per channel of the tile: its lanes read the threads whose vectors overlap it.
    const kf_i64 inner = (kf_i64)g.r.width.d, first_plane = kfi_divide(at.col_begin, g.r.width);
    const unsigned lane = threadIdx.x % 32;
    for (kf_i64 slot = threadIdx.x / 32; slot < g.slots; slot += blockDim.x / 32) {
        const kf_i64 begin = (first_plane + slot) * inner - at.col_begin,
                     end = begin + inner; // relative to the tile's first column
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

// Reduces few rows, one row per thread, and stores the sums. Threads of a warp combine pairwise and
// halve their columns at each step; then warps are added in order. buffer: shared memory, one value
// per warp and column. The order of additions depends on the number of rows alone. The sign of a
// sum of two NaNs may depend on the operand order, so one canonical NaN is stored.
template <int dtype, int vec, class real>
KFI_DEVICE void kfi_few_sum(void *out, real (&sum)[vec], real *buffer, const kfi_grid &g)
{
    const int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32, bits = g.few - 1,
              width = g.bx * vec, warps = g.by >> bits;
    const kf_i64 first = (kf_i64)blockIdx.x * width;
    // First column of this thread in the block, and their number.
    int own = (lane & (g.bx - 1)) * vec, left = vec;
    bool writes = true;
    if (!out) return;
#pragma unroll
    for (int j = 0; j < KFI_MAP_FEW_BITS; ++j) {
        const int half = vec >> (j + 1), by = g.bx << j;
        const bool upper = lane & by;
        if (j >= bits) break;
        if (half == 0) { // both threads hold the same column
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
    __syncthreads(); // the previous sum may still read the buffer
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
