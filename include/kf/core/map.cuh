// SPDX-License-Identifier: Apache-2.0
// kf/core/map.cuh: the schedules of the map family. Device words first, then what the launchers do on the host.
//
// flat   every operand has the result's shape: block b works on unroll * KFI_MAP_THREADS consecutive vectors.
// grid   some operand is broadcast. A block works on a rectangle of rows x columns. Row operands: a thread keeps its
//        columns and walks down the rows, so that it loads its row values once. Channel operands with inner > 1
//        (plane): the rectangle lies in one channel, whose values all threads share.
#ifndef KF_CORE_MAP_CUH
#define KF_CORE_MAP_CUH

#include "kf/core/philox.h"
#include "kf/core/vector.cuh"

#define KFI_MAP_THREADS 256
#define KFI_MAP_BOUNDS __launch_bounds__(KFI_MAP_THREADS)

// n / d and n % d for n < 2^31 by one multiplication (Granlund & Montgomery 1994).
struct kfi_divisor {
    unsigned d, multiplier, shift;
};
KFI_DEVICE unsigned kfi_divide(unsigned n, kfi_divisor d) { return d.d == 1 ? n : __umulhi(n, d.multiplier) >> d.shift; }

struct kfi_grid {
    kf_i64 rows, cols;       // plane: outer and inner
    kf_i64 stride;           // elements from one row to the next
    kf_i64 rows_per_block;
    kf_i64 cols_per_block;   // a multiple of the vector
    int bx, by;              // threads along columns and along rows
    kfi_divisor bx_divisor, tiles, channels;
};

// Where a thread begins.
struct kfi_place {
    kf_i64 row, row_end, col, col_end;
    unsigned channel, tx, ty, part; // part: the row of the partial sums that this block writes
};
template <int vec>
KFI_DEVICE kfi_place kfi_locate(const kfi_grid &g)
{
    kfi_place at;
    at.ty = kfi_divide(threadIdx.x, g.bx_divisor);
    at.tx = threadIdx.x - at.ty * (unsigned)g.bx;
    const unsigned rest = kfi_divide(blockIdx.x, g.tiles), tile = blockIdx.x - rest * g.tiles.d;
    const unsigned block = kfi_divide(rest, g.channels);
    at.channel = rest - block * g.channels.d;
    at.part = block;
    at.row = (kf_i64)block * g.rows_per_block;
    at.row_end = at.row + g.rows_per_block < g.rows ? at.row + g.rows_per_block : g.rows;
    at.row += at.ty;
    at.col = (kf_i64)tile * g.cols_per_block;
    at.col_end = at.col + g.cols_per_block < g.cols ? at.col + g.cols_per_block : g.cols;
    at.col += (kf_i64)at.tx * vec;
    if (at.ty >= (unsigned)g.by) at.row_end = at.row; // threads beyond the rectangle's last whole row of threads
    return at;
}

// How many of `unroll` steps, `step` apart, stay below `end`.
template <int unroll>
KFI_DEVICE int kfi_steps(kf_i64 first, kf_i64 step, kf_i64 end)
{
    if (first + (unroll - 1) * step < end) return unroll;
    int n = 0;
#pragma unroll
    for (int u = 0; u < unroll; ++u) n += first + u * step < end;
    return n;
}

// The steps of a thread's walk over its rectangle; `unroll` of them are taken at once, along the direction in which
// there are many: rows, or columns in a plane.
template <int plane>
struct kfi_walk {
    kf_i64 across, row_step, col_step;
    __device__ kfi_walk(const kfi_grid &g, int vec, int unroll)
        : across((kf_i64)g.bx * vec), row_step(plane ? g.by : g.by * unroll), col_step(plane ? across * unroll : across)
    {
    }
};

template <int size, int vec, int plane>
KFI_DEVICE void kfi_load_row(void *dst, const void *src, const kfi_place &at)
{
    if (plane) {
#pragma unroll
        for (int e = 0; e < vec; ++e) kfi_copy<size>((char *)dst + e * size, (const char *)src + (kf_i64)at.channel * size);
    } else if (at.col < at.col_end) {
        kfi_copy<size * vec>(dst, (const char *)src + at.col * size);
    }
}

KFI_DEVICE void kfi_rng_begin(kfi_rng &rng)
{
    if (rng.state) {
        rng.seed = rng.state[0];
        rng.offset = rng.state[1];
    }
}
// keep[e] of elements index .. index + vec - 1; index is a multiple of vec, which divides 8.
template <int vec>
KFI_DEVICE void kfi_keep(bool *keep, const kfi_rng &rng, kf_i64 index)
{
    kfi_u32 w[4];
    kfi_philox(rng.seed, rng.offset, (kfi_u64)index >> 3, &w[0], &w[1], &w[2], &w[3]);
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
    for (int e = 0; e < vec; ++e) keep[e] = (e % 2 ? w[e / 2] >> 16 : w[e / 2] & 0xffffu) >= rng.threshold;
}

// Adds up a block's sums and writes them to its row of the partial sums: one value for its channel (plane), or one per
// column. buffer: KFI_MAP_THREADS * vec values of shared memory. The order of the additions depends on the shape alone.
template <int vec, int plane>
KFI_DEVICE void kfi_block_sum(float *partial, const float *sum, float *buffer, const kfi_grid &g, const kfi_place &at)
{
    __syncthreads(); // the buffer may still be read by the sum before
    if (plane) {
        float total = sum[0];
#pragma unroll
        for (int e = 1; e < vec; ++e) total += sum[e];
#pragma unroll
        for (int lane = 16; lane > 0; lane >>= 1) total += __shfl_xor_sync(0xffffffffu, total, lane);
        if (threadIdx.x % 32 == 0) buffer[threadIdx.x / 32] = total;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (unsigned w = 1; w < blockDim.x / 32; ++w) total += buffer[w];
            const unsigned tile = blockIdx.x - kfi_divide(blockIdx.x, g.tiles) * g.tiles.d;
            partial[((kf_i64)at.part * g.tiles.d + tile) * g.channels.d + at.channel] = total;
        }
    } else {
#pragma unroll
        for (int e = 0; e < vec; ++e) buffer[threadIdx.x * vec + e] = sum[e];
        __syncthreads();
        const int width = g.bx * vec;
        const kf_i64 first = at.col - (kf_i64)at.tx * vec;
        for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
            float total = buffer[c];
            for (int y = 1; y < g.by; ++y) total += buffer[y * width + c];
            if (first + c < at.col_end) partial[(kf_i64)at.part * g.cols + first + c] = total;
        }
    }
}
template <int vec, int plane>
KFI_DEVICE void kfi_block_sum(double *partial, const double *sum, double *buffer, const kfi_grid &g, const kfi_place &at)
{
    __syncthreads(); // the buffer may still be read by the sum before
    if (plane) {
        double total = sum[0];
#pragma unroll
        for (int e = 1; e < vec; ++e) total += sum[e];
#pragma unroll
        for (int lane = 16; lane > 0; lane >>= 1) total += __shfl_xor_sync(0xffffffffu, total, lane);
        if (threadIdx.x % 32 == 0) buffer[threadIdx.x / 32] = total;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (unsigned w = 1; w < blockDim.x / 32; ++w) total += buffer[w];
            const unsigned tile = blockIdx.x - kfi_divide(blockIdx.x, g.tiles) * g.tiles.d;
            partial[((kf_i64)at.part * g.tiles.d + tile) * g.channels.d + at.channel] = total;
        }
    } else {
#pragma unroll
        for (int e = 0; e < vec; ++e) buffer[threadIdx.x * vec + e] = sum[e];
        __syncthreads();
        const int width = g.bx * vec;
        const kf_i64 first = at.col - (kf_i64)at.tx * vec;
        for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
            double total = buffer[c];
            for (int y = 1; y < g.by; ++y) total += buffer[y * width + c];
            if (first + c < at.col_end) partial[(kf_i64)at.part * g.cols + first + c] = total;
        }
    }
}

// The second stage: the sum over the partial rows, in their order within eight groups, then over the groups.
struct kfi_sums {
    void *partial; // sum k: `parts` rows of `count` values at partial + k * parts * count; NULL: no sums are wanted
    void *out[4];        // NULL is skipped
    kf_i64 parts, count;
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

#ifndef __CUDACC_RTC__
#include "kf/core/check.h"
#include "kf/core/launch.cuh"

KF_FN kfi_divisor kfi_make_divisor(kf_i64 d)
{
    kfi_divisor r = {(unsigned)d, 0, 0};
    if (d > 1) { // ceil(2^(31 + bits) / d) fits 32 bits and is exact for numerators below 2^31
        int bits = 0;
        while (((kf_i64)1 << bits) < d) ++bits;
        r.multiplier = (unsigned)((((kfi_u64)1 << (31 + bits)) + (kfi_u64)d - 1) / (kfi_u64)d);
        r.shift = (unsigned)(bits - 1);
    }
    return r;
}

// What the kernels of one op x dtypes look like; kernels[]: {vector, unroll}, {vector, 1}, {1, 1}, and for channel ops
// the same three for planes.
struct kfi_map {
    kfi_name name;
    const kfi_operand *operands;
    int count;
    const void *const *kernels;
    int vec, unroll;
    int size;     // bytes of the widest element
    int sums;     // outputs reduced to rows or channels
    int acc_size; // bytes of their accumulators
};

KF_FN kf_i64 kfi_ceil(kf_i64 a, kf_i64 b) { return (a + b - 1) / b; }
KF_FN kf_i64 kfi_clamp(kf_i64 v, kf_i64 low, kf_i64 high) { return v > high ? (high < low ? low : high) : v < low ? low : v; }

// Blocks that fill the largest GPU a few times over: below this many, smaller blocks are worth more than long threads.
#define KFI_MAP_FILL 1056

KF_FN kf_result_t kfi_map_flat(const kfi_map &m, kf_i64 n, void **args, cudaStream_t stream)
{
    static const char *const words[] = {"n"};
    const kfi_shape shape = {1, 0, n};
    kf_result_t result = kfi_check_sizes(&m.name, words, &n, 1);
    if (result != KF_SUCCESS || n == 0) return result;
    result = kfi_check_operands(&m.name, m.operands, m.count, &shape);
    if (result != KF_SUCCESS) return result;
    const bool aligned = kfi_is_aligned(m.operands, m.count, 16);
    const kf_i64 wide = (kf_i64)KFI_MAP_THREADS * m.vec * m.unroll;
    const int which = !aligned ? 2 : kfi_ceil(n, wide) >= KFI_MAP_FILL ? 0 : 1;
    const kf_i64 per_block = which == 0 ? wide : which == 1 ? wide / m.unroll : KFI_MAP_THREADS;
    const kf_i64 blocks = kfi_ceil(n, per_block);
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "n is %lld, expected at most %lld for this alignment", (long long)n,
                        (long long)(per_block * 0x7fffffff));
    return kfi_launch(&m.name, m.kernels[which], dim3((unsigned)blocks), KFI_MAP_THREADS, args, stream);
}

// The parts into which a reduced gradient is split: by the shape alone, so that results depend on nothing else and the
// workspace can be asked for ahead of the call.
struct kfi_parts {
    kf_i64 rows, tiles; // per channel
};
KF_FN kfi_parts kfi_split(kf_i64 rows, kf_i64 channels, kf_i64 cols, bool plane, int size)
{
    kfi_parts p = {1, 1};
    if (plane) {
        const kf_i64 wanted = kfi_clamp(kfi_ceil(KFI_MAP_FILL, channels), 1, kfi_ceil(rows * cols, 4096));
        p.rows = kfi_clamp(wanted, 1, rows > 0 ? rows : 1);
        p.tiles = kfi_clamp(wanted / p.rows, 1, kfi_ceil(cols, 4096));
    } else {
        const kf_i64 tiles = kfi_ceil(cols * size, KFI_MAP_THREADS * 16);
        p.rows = kfi_clamp(KFI_MAP_FILL / 2 / (tiles > 0 ? tiles : 1), 1, kfi_ceil(rows, 16));
    }
    return p;
}
KF_FN size_t kfi_map_workspace(kf_i64 rows, kf_i64 channels, kf_i64 cols, int size, int sums, int acc_size)
{
    const bool plane = channels > 0 && cols > 1;
    const kf_i64 count = channels > 0 ? channels : cols;
    if (rows < 0 || channels < 0 || cols < 0 || count == 0) return 0;
    const kfi_parts p = kfi_split(rows, channels, channels > 0 && !plane ? channels : cols, plane, size);
    return (size_t)(p.rows * p.tiles * count) * (size_t)(sums * acc_size);
}

// rows x cols, or outer x channels x inner (channels > 0). grid: the argument of the kernel that this fills in;
// partial: likewise. sums: where the reduced gradients go, and the kernel that adds up their partial rows.
KF_FN kf_result_t kfi_map_grid(const kfi_map &m, kf_i64 rows, kf_i64 channels, kf_i64 cols, kfi_grid *g, void **args, kfi_sums *s,
                               const void *sum_kernel, void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const kf_i64 size_of_sum = channels > 0 ? channels : cols;
    const kfi_shape shape = {rows, channels, cols};
    const kf_i64 elements = rows * cols * (channels > 0 ? channels : 1);
    if (m.sums ? size_of_sum == 0 : elements == 0) return KF_SUCCESS;
    kf_result_t result = kfi_check_operands(&m.name, m.operands, m.count, &shape);
    if (result != KF_SUCCESS) return result;
    bool wanted = false; // sums that nobody wants need no workspace
    for (int k = 0; k < m.sums; ++k) wanted = wanted || s->out[k];
    const size_t needed = wanted ? kfi_map_workspace(rows, channels, cols, m.size, m.sums, m.acc_size) : 0;
    result = kfi_check_workspace(&m.name, workspace, workspace_bytes, needed);
    if (result != KF_SUCCESS) return result;

    const bool plane = channels > 0 && cols > 1;
    if (channels > 0 && !plane) { // NHWC: the channels are the columns
        if (cols == 0) rows = 0;
        cols = channels;
    }
    const bool aligned = cols % m.vec == 0 && kfi_is_aligned(m.operands, m.count, 16);
    const int vec = aligned ? m.vec : 1;
    int unroll = aligned ? m.unroll : 1;
    const kf_i64 vectors = kfi_ceil(cols, vec), tiles = kfi_ceil(vectors, KFI_MAP_THREADS);
    g->rows = rows;
    g->cols = cols;
    g->stride = plane ? channels * cols : cols;
    g->bx = (int)kfi_ceil(vectors, tiles > 0 ? tiles : 1);
    if (g->bx < 1) g->bx = 1;
    if (plane && g->bx > 64) g->bx = (int)kfi_clamp(kfi_ceil(vectors, unroll), 64, KFI_MAP_THREADS);
    g->by = KFI_MAP_THREADS / g->bx;
    if (m.sums) {
        const kfi_parts p = kfi_split(rows, channels, cols, plane, m.size);
        g->rows_per_block = kfi_ceil(rows, p.rows);
        g->cols_per_block = plane ? kfi_ceil(kfi_ceil(cols, p.tiles), m.vec) * m.vec : (kf_i64)g->bx * vec;
        g->tiles = kfi_make_divisor(plane ? p.tiles : kfi_ceil(cols, g->cols_per_block));
        s->parts = p.rows * p.tiles;
        s->count = size_of_sum;
        s->partial = wanted ? workspace : nullptr;
    } else {
        kf_i64 rows_per_step = (kf_i64)g->by * (plane ? 1 : unroll), cols_per_step = (kf_i64)g->bx * vec * (plane ? unroll : 1);
        const kf_i64 blocks = kfi_ceil(rows, rows_per_step) * kfi_ceil(cols, cols_per_step) * (plane ? channels : 1);
        if (blocks < KFI_MAP_FILL && unroll > 1) {
            unroll = 1;
            rows_per_step = g->by;
            cols_per_step = (kf_i64)g->bx * vec;
        }
        g->cols_per_block = cols_per_step;
        g->tiles = kfi_make_divisor(kfi_ceil(cols, cols_per_step));
        const kf_i64 others = (kf_i64)g->tiles.d * (plane ? channels : 1);
        const kf_i64 steps = kfi_ceil(kfi_ceil(rows, rows_per_step) * others, 0x7fffffff); // 1 but for the largest tensors
        g->rows_per_block = rows_per_step * steps;
    }
    g->channels = kfi_make_divisor(plane ? channels : 1);
    g->bx_divisor = kfi_make_divisor(g->bx);
    const kf_i64 row_blocks = m.sums ? s->parts / (plane ? (kf_i64)g->tiles.d : 1) : kfi_ceil(rows, g->rows_per_block);
    const kf_i64 blocks = row_blocks * g->tiles.d * g->channels.d;
    if (blocks > 0x7fffffff || cols / vec / KFI_MAP_THREADS > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "%lld x %lld elements need more blocks than a launch may have", (long long)rows,
                        (long long)cols);
    const int which = (plane ? 3 : 0) + (!aligned ? 2 : unroll > 1 ? 0 : 1);
    const unsigned threads = (unsigned)kfi_ceil((kf_i64)g->bx * g->by, 32) * 32;
    result = kfi_launch(&m.name, m.kernels[which], dim3((unsigned)blocks), threads, args, stream);
    if (result != KF_SUCCESS || !wanted) return result;
    void *sum_args[] = {s};
    return kfi_launch(&m.name, sum_kernel, dim3((unsigned)kfi_ceil(s->count, KFI_SUM_LANES), (unsigned)m.sums),
                      KFI_SUM_LANES * KFI_SUM_GROUPS, sum_args, stream);
}
#endif

#endif
