// SPDX-License-Identifier: Apache-2.0
// kf/core/map.cuh: the schedules of the map family. Device words first, then what the launchers do on the host.
//
// each   one vector per thread (a few for dropout), whatever is broadcast: the vector's place among the rows or planes is
//        found by one multiplication. Nothing is kept in flight by hand: 2,048 threads an SM, 16 bytes each, are enough.
//        Several vectors per thread lie whole rows (or batches) apart, so that they share their row values.
// sum    some gradient is reduced to a row or to channels. A block works on a rectangle of rows x columns (batches x
//        channels * inner): a thread keeps its columns, walks down the rows, and adds up in registers; partial sums go to
//        the workspace, a second small kernel adds them.
#ifndef KF_CORE_MAP_CUH
#define KF_CORE_MAP_CUH

#include "kf/core/philox.h"
#include "kf/core/vector.cuh"

#ifndef KFI_MAP_THREADS // set by bench/tune.cu alone
#define KFI_MAP_THREADS 256
#endif

// How row values are found. KFI_ROWS: rows hold whole vectors. KFI_PLANES: one value per channel and plane; a vector may
// reach into the next plane. KFI_ODD_ROWS: rows of any length from a vector on.
#define KFI_ROWS 0
#define KFI_PLANES 1
#define KFI_ODD_ROWS 2

// n / d for n < 2^63 by one multiplication (Granlund & Montgomery 1994).
struct kfi_divisor {
    unsigned long long d, multiplier, one; // one: all ones for d = 1, where the multiplier is 0
    unsigned shift;
};
KFI_DEVICE kf_i64 kfi_divide(kf_i64 n, const kfi_divisor &d)
{
    return (kf_i64)((__umul64hi((unsigned long long)n, d.multiplier) >> d.shift) | ((unsigned long long)n & d.one));
}

// The shape of a broadcast: width elements per row (KFI_ROWS: vectors), and channels planes per repetition.
struct kfi_rows {
    kfi_divisor width, channels;
    kf_i64 cols;
};

// The work of a thread: vector u begins at first + u * step, for first < own and below n.
struct kfi_each {
    kf_i64 n, own, step;
    kf_i64 block; // from one block's first element to the next one's
};

// Where the row values of a vector lie.
struct kfi_span {
    kf_i64 row, col;   // of its first element; planes: the channel and the element in its plane
    kf_i64 next;       // planes: the next plane's channel
    int split;         // elements before the row or plane ends
};
template <int vec, int mode>
KFI_DEVICE kfi_span kfi_find(const kfi_rows &g, kf_i64 first)
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
// Row values of a vector: one per element, or (planes) those of its two channels, which kfi_at picks from.
template <int vec, int mode>
struct kfi_width {
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
        for (int e = 0; e < vec; ++e) kfi_copy<size>((char *)dst + e * size, s + (e < at.split ? at.col + e : e - at.split) * size);
    }
}
template <int mode>
KFI_DEVICE float kfi_at(const float *values, int e, const kfi_span &at)
{
    return mode == KFI_PLANES ? (e < at.split ? values[0] : values[1]) : values[e];
}
template <int mode>
KFI_DEVICE double kfi_at(const double *values, int e, const kfi_span &at)
{
    return mode == KFI_PLANES ? (e < at.split ? values[0] : values[1]) : values[e];
}

template <int state>
KFI_DEVICE void kfi_rng_begin(kfi_rng &rng)
{
    if (state) {
        kfi_set_seed(&rng, rng.state[0]);
        rng.offset = rng.state[1];
    }
}
// keep[e]: the word of element index + e. index is a multiple of vec, which divides 8.
template <int vec>
KFI_DEVICE void kfi_keep(kfi_u32 *keep, const kfi_rng &rng, kf_i64 index)
{
    kfi_u32 w[4];
    kfi_philox(&rng, (kfi_u64)index >> 3, &w[0], &w[1], &w[2], &w[3]);
    const unsigned first = (unsigned)index & 7u;
    if (vec < 8) { // which of the four words: by selection, never by a computed index
        if (first & 4u) {
            w[0] = w[2];
            w[1] = w[3];
        }
        if (vec < 4 && (first & 2u)) w[0] = w[1];
        if (vec < 2 && (first & 1u)) w[0] >>= 16;
    }
#pragma unroll
    for (int e = 0; e < vec; ++e) keep[e] = e % 2 ? w[e / 2] >> 16 : w[e / 2] & 0xffffu;
}
// The value if its word is kept, else 0. Opaque to the compiler, which would otherwise branch around the activation of
// every element to save the tenth that is dropped.
KFI_DEVICE float kfi_kept(kfi_u32 word, const kfi_rng &rng, float v)
{
    float r;
    asm("{ .reg .pred p; setp.ge.u32 p, %2, %3; selp.f32 %0, %1, 0f00000000, p; }" : "=f"(r) : "f"(v), "r"(word), "r"(rng.threshold));
    return r;
}
KFI_DEVICE double kfi_kept(kfi_u32 word, const kfi_rng &rng, double v) { return word >= rng.threshold ? v : 0.0; }

struct kfi_grid {
    kf_i64 rows, cols; // planes: batches, and channels * inner
    unsigned tiles;    // of the columns
    unsigned parts;    // of the rows
    int bx, by;        // threads along columns and along rows
    kfi_rows r;
    kf_i64 slots;      // planes: channels that a tile may touch
};

// What a thread of a sum kernel works on: one vector of columns, and every (parts * by)-th row from `row` on. The blocks
// march down the tensor together, so that DRAM sees them read one region, not one each.
struct kfi_place {
    kf_i64 row, row_end, col, col_begin;
    unsigned tile, part;
};
template <int vec>
KFI_DEVICE kfi_place kfi_locate(const kfi_grid &g)
{
    kfi_place at;
    const unsigned ty = threadIdx.x / (unsigned)g.bx;
    at.part = blockIdx.x / g.tiles;
    at.tile = blockIdx.x - at.part * g.tiles;
    at.row = (kf_i64)at.part * g.by + ty;
    at.row_end = g.rows;
    at.col_begin = (kf_i64)at.tile * g.bx * vec;
    at.col = at.col_begin + (threadIdx.x - ty * (unsigned)g.bx) * vec;
    if (ty >= (unsigned)g.by || at.col >= g.cols) at.row_end = at.row; // nothing to do
    return at;
}

// Adds up a block's sums and writes them to the partial sums: one per column, or (planes) one per channel that the tile
// touches. buffer: KFI_MAP_THREADS * max(vec, 2) values of shared memory. The order of the additions depends on the shape
// alone.
KFI_DEVICE kf_i64 kfi_ceil_device(kf_i64 a, int b) { return (a + b - 1) / b; }
template <int vec, int mode>
KFI_DEVICE void kfi_block_sum(float *partial, const float *sum, float *buffer, const kfi_grid &g, const kfi_place &at, const kfi_span &span)
{
    __syncthreads(); // the buffer may still be read by the sum before
    if (mode != KFI_PLANES) {
#pragma unroll
        for (int e = 0; e < vec; ++e) buffer[threadIdx.x * vec + e] = sum[e];
        __syncthreads();
        const int width = g.bx * vec;
        for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
            float total = buffer[c];
            for (int y = 1; y < g.by; ++y) total += buffer[y * width + c];
            if (at.col_begin + c < g.cols) partial[at.part * g.cols + at.col_begin + c] = total;
        }
        return;
    }
    float own[2] = {0, 0}; // of the vector's two channels
#pragma unroll
    for (int e = 0; e < vec; ++e) own[e >= span.split] += sum[e];
    buffer[2 * threadIdx.x] = own[0];
    buffer[2 * threadIdx.x + 1] = own[1];
    __syncthreads();
    // A warp per channel of the tile: its lanes go over the threads whose vectors touch it.
    const kf_i64 inner = (kf_i64)g.r.width.d, first_plane = kfi_divide(at.col_begin, g.r.width);
    const unsigned lane = threadIdx.x % 32;
    for (kf_i64 slot = threadIdx.x / 32; slot < g.slots; slot += blockDim.x / 32) {
        const kf_i64 begin = (first_plane + slot) * inner - at.col_begin, end = begin + inner; // in the tile's columns
        const int from = begin > 0 ? (int)(begin / vec) : 0;
        const int to = (int)(kfi_ceil_device(end < (kf_i64)g.bx * vec ? end : (kf_i64)g.bx * vec, vec));
        float total = 0;
        if (begin < (kf_i64)g.bx * vec)
            for (int y = 0; y < g.by; ++y)
                for (int x = from + (int)lane; x < to; x += 32) total += buffer[2 * (y * g.bx + x) + ((kf_i64)x * vec < begin)];
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) total += __shfl_xor_sync(0xffffffffu, total, step);
        if (lane == 0) partial[((kf_i64)at.part * g.tiles + at.tile) * g.slots + slot] = total;
    }
}
template <int vec, int mode>
KFI_DEVICE void kfi_block_sum(double *partial, const double *sum, double *buffer, const kfi_grid &g, const kfi_place &at, const kfi_span &span)
{
    __syncthreads(); // the buffer may still be read by the sum before
    if (mode != KFI_PLANES) {
#pragma unroll
        for (int e = 0; e < vec; ++e) buffer[threadIdx.x * vec + e] = sum[e];
        __syncthreads();
        const int width = g.bx * vec;
        for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
            double total = buffer[c];
            for (int y = 1; y < g.by; ++y) total += buffer[y * width + c];
            if (at.col_begin + c < g.cols) partial[at.part * g.cols + at.col_begin + c] = total;
        }
        return;
    }
    double own[2] = {0, 0}; // of the vector's two channels
#pragma unroll
    for (int e = 0; e < vec; ++e) own[e >= span.split] += sum[e];
    buffer[2 * threadIdx.x] = own[0];
    buffer[2 * threadIdx.x + 1] = own[1];
    __syncthreads();
    // A warp per channel of the tile: its lanes go over the threads whose vectors touch it.
    const kf_i64 inner = (kf_i64)g.r.width.d, first_plane = kfi_divide(at.col_begin, g.r.width);
    const unsigned lane = threadIdx.x % 32;
    for (kf_i64 slot = threadIdx.x / 32; slot < g.slots; slot += blockDim.x / 32) {
        const kf_i64 begin = (first_plane + slot) * inner - at.col_begin, end = begin + inner; // in the tile's columns
        const int from = begin > 0 ? (int)(begin / vec) : 0;
        const int to = (int)(kfi_ceil_device(end < (kf_i64)g.bx * vec ? end : (kf_i64)g.bx * vec, vec));
        double total = 0;
        if (begin < (kf_i64)g.bx * vec)
            for (int y = 0; y < g.by; ++y)
                for (int x = from + (int)lane; x < to; x += 32) total += buffer[2 * (y * g.bx + x) + ((kf_i64)x * vec < begin)];
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) total += __shfl_xor_sync(0xffffffffu, total, step);
        if (lane == 0) partial[((kf_i64)at.part * g.tiles + at.tile) * g.slots + slot] = total;
    }
}

// The second stage: the sum over the partial rows, in their order within eight groups, then over the groups.
struct kfi_sums {
    void *partial; // sum k: `parts` rows of `count` values at partial + k * parts * count; NULL: no sums are wanted
    void *out[4];        // NULL is skipped
    kf_i64 parts, count;
    kf_i64 inner, tile_cols, tiles, slots; // planes: partial is [sum][part][tile][slot]
};
#define KFI_SUM_LANES 32
#define KFI_SUM_GROUPS 8
// acc, dtype: codes of kf_dtype_t
KFI_DEVICE void kfi_store_sum(kfi_tag<KF_F32>, void *out, kf_i64 i, double v) { ((float *)out)[i] = (float)v; }
KFI_DEVICE void kfi_store_sum(kfi_tag<KF_F64>, void *out, kf_i64 i, double v) { ((double *)out)[i] = v; }
KFI_DEVICE void kfi_store_sum(kfi_tag<KF_F16>, void *out, kf_i64 i, double v) { kfi_cast((kf_f16 *)out + i, (float)v); }
KFI_DEVICE void kfi_store_sum(kfi_tag<KF_BF16>, void *out, kf_i64 i, double v) { kfi_cast((kf_bf16 *)out + i, (float)v); }
KFI_DEVICE float kfi_load_sum(kfi_tag<KF_F32>, const void *p, kf_i64 i) { return ((const float *)p)[i]; }
KFI_DEVICE double kfi_load_sum(kfi_tag<KF_F64>, const void *p, kf_i64 i) { return ((const double *)p)[i]; }
template <int acc, int dtype>
KFI_KERNEL void __launch_bounds__(KFI_SUM_LANES * KFI_SUM_GROUPS) kfk_sum_partials(kfi_sums s)
{
    __shared__ double buffer[KFI_SUM_GROUPS][KFI_SUM_LANES];
    const unsigned lane = threadIdx.x % KFI_SUM_LANES, group = threadIdx.x / KFI_SUM_LANES;
    const kf_i64 i = (kf_i64)blockIdx.x * KFI_SUM_LANES + lane;
    const kf_i64 begin = blockIdx.y * s.parts;
    double total = 0.0; // few additions: float64 costs nothing here
    if (i < s.count)
        for (kf_i64 k = group; k < s.parts; k += KFI_SUM_GROUPS) total += (double)kfi_load_sum(kfi_tag<acc>(), s.partial, (begin + k) * s.count + i);
    buffer[group][lane] = total;
    __syncthreads();
    if (group != 0 || i >= s.count || !s.out[blockIdx.y]) return;
    for (int k = 1; k < KFI_SUM_GROUPS; ++k) total += buffer[k][lane];
    kfi_store_sum(kfi_tag<dtype>(), s.out[blockIdx.y], i, total);
}

// The same for planes: a block per channel, over the tiles that touch it.
template <int acc, int dtype>
KFI_KERNEL void __launch_bounds__(KFI_MAP_THREADS) kfk_sum_planes(kfi_sums s)
{
    __shared__ double buffer[KFI_MAP_THREADS / 32];
    const kf_i64 channel = blockIdx.x, begin = channel * s.inner, tile = begin / s.tile_cols;
    const kf_i64 tiles = (begin + s.inner - 1) / s.tile_cols - tile + 1;
    double total = 0.0;
    for (kf_i64 k = threadIdx.x; k < s.parts * tiles; k += KFI_MAP_THREADS) {
        const kf_i64 part = k / tiles, t = tile + k - part * tiles;
        total += (double)kfi_load_sum(kfi_tag<acc>(), s.partial, ((blockIdx.y * s.parts + part) * s.tiles + t) * s.slots + channel - t * s.tile_cols / s.inner);
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) total += __shfl_xor_sync(0xffffffffu, total, step);
    if (threadIdx.x % 32 == 0) buffer[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x != 0 || !s.out[blockIdx.y]) return;
    for (int k = 1; k < KFI_MAP_THREADS / 32; ++k) total += buffer[k];
    kfi_store_sum(kfi_tag<dtype>(), s.out[blockIdx.y], channel, total);
}

#ifndef __CUDACC_RTC__
#include "kf/core/check.h"
#include "kf/core/launch.cuh"

KF_FN kfi_divisor kfi_make_divisor(kf_i64 d)
{
    kfi_divisor r = {(kfi_u64)d, 0, ~(kfi_u64)0, 0};
    if (d > 1) { // ceil(2^(63 + bits) / d): below 2^64, exact for numerators below 2^63
        int bits = 0;
        while (((kfi_u64)1 << bits) < (kfi_u64)d) ++bits;
        const unsigned __int128 top = (unsigned __int128)1 << (63 + bits);
        r.multiplier = (kfi_u64)((top + (kfi_u64)d - 1) / (kfi_u64)d);
        r.shift = (unsigned)(bits - 1);
        r.one = 0;
    }
    return r;
}

// What the kernels of one op x dtypes look like.
struct kfi_map {
    kfi_name name;
    const kfi_operand *operands;
    int count;
    const void *const *kernels; // see the callers
    int vec, unroll;
    int size;     // bytes of the widest element
    int blocks;   // of a sum kernel that an SM holds
    int sums;     // outputs reduced to rows or channels
    int acc_size; // bytes of their accumulators
};

KF_FN kf_i64 kfi_ceil(kf_i64 a, kf_i64 b) { return (a + b - 1) / b; }
KF_FN kf_i64 kfi_clamp(kf_i64 v, kf_i64 low, kf_i64 high) { return v > high ? (high < low ? low : high) : v < low ? low : v; }

// Blocks that fill the largest GPU a few times over: below this many, smaller blocks are worth more than long threads.
#ifndef KFI_MAP_FILL
#define KFI_MAP_FILL 1056
#endif

// Threads for `n` elements: of kernels[] {vector, unroll}, {vector, 1} and {1, 1} the first that is possible and fills the
// GPU. Vector u of a thread lies u * step elements behind its first; step 0: consecutive.
KF_FN kf_result_t kfi_launch_each(const kfi_map &m, const void *const *kernels, kf_i64 n, bool vectors, kfi_each *e, kf_i64 step, void **args,
                                  cudaStream_t stream)
{
    const int vec = vectors ? m.vec : 1;
    const bool wide = vectors && m.unroll > 1 && kfi_ceil(n, (kf_i64)KFI_MAP_THREADS * vec * m.unroll) >= KFI_MAP_FILL;
    const int unroll = wide ? m.unroll : 1;
    const kf_i64 threads = kfi_ceil(wide && step ? step : n, wide && step ? vec : (kf_i64)vec * unroll), blocks = kfi_ceil(threads, KFI_MAP_THREADS);
    e->n = n;
    e->step = wide && step ? step : (kf_i64)KFI_MAP_THREADS * vec;
    e->own = wide && step ? step : n;
    e->block = (kf_i64)KFI_MAP_THREADS * vec * (step ? 1 : unroll);
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "%lld elements need more blocks than a launch may have at this alignment", (long long)n);
    return kfi_launch(&m.name, kernels[wide ? 0 : vectors ? 1 : 2], dim3((unsigned)blocks), KFI_MAP_THREADS, args, stream);
}

KF_FN kf_result_t kfi_map_flat(const kfi_map &m, kf_i64 n, kfi_each *e, void **args, cudaStream_t stream)
{
    static const char *const words[] = {"n"};
    const kfi_shape shape = {1, 0, n};
    kf_result_t result = kfi_check_sizes(&m.name, words, &n, 1);
    if (result != KF_SUCCESS || n == 0) return result;
    result = kfi_check_operands(&m.name, m.operands, m.count, &shape);
    if (result != KF_SUCCESS) return result;
    return kfi_launch_each(m, m.kernels, n, kfi_is_aligned(m.operands, m.count, 16), e, 0, args, stream);
}

// Rows x cols, or outer x channels x inner (channels > 0). kernels[]: three for whole vectors in a row, three for rows of
// any length (not for halves: their rows are apart), three for planes (channel ops). g, e: kernel arguments to fill in.
KF_FN kf_result_t kfi_map_rows(const kfi_map &m, kf_i64 rows, kf_i64 channels, kf_i64 cols, bool is_channel, bool halves, kfi_rows *g,
                               kfi_each *e, void **args, cudaStream_t stream)
{
    const kfi_shape shape = {rows, channels, cols};
    const kf_i64 n = rows * cols * (is_channel ? channels : 1);
    if (n == 0) return KF_SUCCESS;
    const kf_result_t result = kfi_check_operands(&m.name, m.operands, m.count, &shape);
    if (result != KF_SUCCESS) return result;
    const bool plane = is_channel && cols > 1;
    if (is_channel && !plane) cols = channels; // NHWC: the channels are the columns
    const bool aligned = kfi_is_aligned(m.operands, m.count, 16), whole = cols % m.vec == 0;
    const bool vectors = aligned && cols >= m.vec && (whole || !halves);
    g->cols = cols;
    g->width = kfi_make_divisor(plane || !vectors || !whole ? cols : cols / m.vec);
    g->channels = kfi_make_divisor(is_channel ? channels : 1);
    // The vectors of a thread lie whole periods apart, as many as keep them aligned.
    const kf_i64 period = plane ? channels * cols : cols;
    kf_i64 unit = 1;
    while (period * unit % m.vec != 0) unit *= 2;
    const kf_i64 step = kfi_ceil(kfi_ceil(rows, m.unroll), unit) * unit * period;
    return kfi_launch_each(m, m.kernels + (plane ? 6 : vectors && !whole ? 3 : 0), n, vectors, e, step, args, stream);
}

// The parts into which a reduced gradient is split: by the shape alone, so that results depend on nothing else and the
// workspace can be asked for ahead of the call. period: columns of a row, all channels' planes of a batch; blocks: that
// one SM holds. One wave of blocks on the largest GPU, or, where the tiles alone are more than that, several.
KF_FN kf_i64 kfi_split(kf_i64 rows, kf_i64 period, int size, int blocks)
{
    const kf_i64 tiles = kfi_ceil(period * size, KFI_MAP_THREADS * 16), wave = KFI_MAP_FILL / 8 * blocks;
    return kfi_clamp((tiles > wave ? 4 * wave : wave) / (tiles > 0 ? tiles : 1), 1, kfi_ceil(rows, 8));
}
KF_FN kf_i64 kfi_slots(kf_i64 tile_cols, kf_i64 inner) { return tile_cols / inner + 2; }
KF_FN size_t kfi_map_workspace(kf_i64 rows, kf_i64 channels, kf_i64 cols, bool is_channel, int size, int blocks, int sums, int acc_size)
{
    if (!kfi_fits(rows, cols, is_channel ? channels : 1)) return 0;
    const bool plane = is_channel && cols > 1;
    const kf_i64 period = plane ? channels * cols : is_channel ? channels : cols;
    kf_i64 values = period;
    if (plane) { // enough for the narrow tiles of unaligned tensors
        const kf_i64 tile = period < KFI_MAP_THREADS ? (period > 0 ? period : 1) : KFI_MAP_THREADS;
        values = kfi_ceil(period, tile) * kfi_slots(tile, cols) + 2 * period / tile;
    }
    return (size_t)(kfi_split(rows, period, size, blocks) * values) * (size_t)(sums * acc_size);
}

// Columns that a block of threads takes, as vectors: the widest of at least 16 that leave the fewest threads idle.
KF_FN int kfi_block_width(kf_i64 vectors)
{
    int best = 0, best_used = 0;
    for (kf_i64 tiles = kfi_ceil(vectors, KFI_MAP_THREADS); tiles < 64; ++tiles) {
        const int bx = (int)kfi_ceil(vectors, tiles);
        if (best && bx < 16) break;
        const int used = (int)(1000 * vectors / (tiles * bx)) * (bx * (KFI_MAP_THREADS / bx)) / KFI_MAP_THREADS;
        if (used > best_used + 30) {
            best = bx;
            best_used = used;
        }
    }
    return best ? best : KFI_MAP_THREADS;
}

// The same where gradients are reduced. kernels[]: {vector, rows}, {1, rows}, {vector, planes}, {1, planes}; sum_kernels:
// what adds up the partial sums, of rows and of planes.
KF_FN kf_result_t kfi_map_sum(const kfi_map &m, kf_i64 rows, kf_i64 channels, kf_i64 cols, bool is_channel, kfi_grid *g, void **args,
                              kfi_sums *s, const void *const *sum_kernels, void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const kfi_shape shape = {rows, channels, cols};
    s->count = is_channel ? channels : cols;
    if (s->count == 0) return KF_SUCCESS;
    kf_result_t result = kfi_check_operands(&m.name, m.operands, m.count, &shape);
    if (result != KF_SUCCESS) return result;
    bool wanted = false; // sums that nobody wants need no workspace
    for (int k = 0; k < m.sums; ++k) wanted = wanted || s->out[k];
    const size_t needed = wanted ? kfi_map_workspace(rows, channels, cols, is_channel, m.size, m.blocks, m.sums, m.acc_size) : 0;
    result = kfi_check_workspace(&m.name, workspace, workspace_bytes, needed);
    if (result != KF_SUCCESS) return result;

    const bool plane = is_channel && cols > 1;
    const kf_i64 period = plane ? channels * cols : is_channel ? channels : cols;
    if (cols == 0) rows = 0;
    const bool vectors = kfi_is_aligned(m.operands, m.count, 16) && period % m.vec == 0 && (!plane || cols >= m.vec);
    const int vec = vectors ? m.vec : 1;
    const kf_i64 parts = kfi_split(rows, period, m.size, m.blocks);
    g->rows = rows;
    g->cols = period;
    g->parts = (unsigned)parts;
    g->bx = plane ? (int)kfi_clamp(kfi_ceil(period, vec), 1, KFI_MAP_THREADS) : kfi_block_width(kfi_ceil(period, vec));
    g->by = KFI_MAP_THREADS / g->bx;
    const kf_i64 tile_cols = (kf_i64)g->bx * vec, tiles = kfi_ceil(period, tile_cols);
    g->tiles = (unsigned)tiles;
    g->r.cols = cols;
    g->r.width = kfi_make_divisor(plane ? cols : 1);
    g->r.channels = kfi_make_divisor(plane ? channels : 1);
    g->slots = plane ? kfi_slots(tile_cols, cols) : 0;
    s->parts = parts;
    s->inner = cols;
    s->tile_cols = tile_cols;
    s->tiles = tiles;
    s->slots = g->slots;
    s->partial = wanted ? workspace : nullptr;
    if (parts * tiles > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "%lld x %lld elements need more blocks than a launch may have", (long long)rows,
                        (long long)period);
    const unsigned threads = (unsigned)kfi_ceil((kf_i64)g->bx * g->by, 32) * 32;
    result = kfi_launch(&m.name, m.kernels[(plane ? 2 : 0) + !vectors], dim3((unsigned)(parts * tiles)), threads, args, stream);
    if (result != KF_SUCCESS || !wanted) return result;
    void *sum_args[] = {s};
    const dim3 blocks((unsigned)(plane ? channels : kfi_ceil(s->count, KFI_SUM_LANES)), (unsigned)m.sums);
    return kfi_launch(&m.name, sum_kernels[plane], blocks, plane ? KFI_MAP_THREADS : KFI_SUM_LANES * KFI_SUM_GROUPS, sum_args, stream);
}
#endif

#endif
