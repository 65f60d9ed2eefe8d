// SPDX-License-Identifier: Apache-2.0
// kf/core/row.cuh: the schedule of the row family: norms, softmax, losses, reductions over the last axis.
//
// Some threads have a row: a power of two up to a warp, or whole warps. They hold it in registers, as vectors of 16 bytes
// that lie `lanes` vectors apart, so that it is read once; a row that is too long for that is read again in each pass, where
// the L2 cache has it. What a pass reduces is added up in a thread, then across the threads by shuffles, then (whole warps)
// through shared memory. Which thread has which element depends on the row's length alone: not on how many rows there are,
// nor on alignment, which only decides how wide an access is. So a row's bits depend on nothing else either.
//
// Where a gradient is reduced over the rows, blocks stay and walk down the tensor; each adds up in registers, and the map
// family's second stage adds up the blocks' partial sums.
#ifndef KF_CORE_ROW_CUH
#define KF_CORE_ROW_CUH

#include "kf/core/map.cuh"
#include "kf/core/math.cuh"

// How rows are shared out among threads.
struct kfi_line {
    kf_i64 rows, cols;
    int lanes;  // threads of a row
    int shift;  // log2(lanes) up to a warp; 31 for whole warps
    int groups; // rows of a block at a time
    int loops;  // vectors of a thread where they are not held
};

#define KFI_SUM 0
#define KFI_MAX 1
#define KFI_MIN 2
#define KFI_LINE_MOST 1024 // threads of a row, of which none has more
#ifndef KFI_LINE_BLOCK // set for tuning alone
#define KFI_LINE_BLOCK 128     // threads of a block that has several rows
#define KFI_LINE_SUM_BLOCK 256 // where gradients are added up
#endif
#ifndef KFI_LINE_CAP        // fewer where an emulation is to reach every kernel by short rows
#define KFI_LINE_CAP KFI_LINE_MOST
#endif

#ifdef KFI_DEVICE_PASS
KFI_DEVICE float kfi_join(kfi_tag<KFI_SUM>, float a, float b) { return a + b; }
KFI_DEVICE float kfi_join(kfi_tag<KFI_MAX>, float a, float b) { return kfi_max_f32(a, b); }
KFI_DEVICE float kfi_join(kfi_tag<KFI_MIN>, float a, float b) { return kfi_min_f32(a, b); }
KFI_DEVICE double kfi_join(kfi_tag<KFI_SUM>, double a, double b) { return a + b; }
KFI_DEVICE double kfi_join(kfi_tag<KFI_MAX>, double a, double b) { return kfi_max_f64(a, b); }
KFI_DEVICE double kfi_join(kfi_tag<KFI_MIN>, double a, double b) { return kfi_min_f64(a, b); }
// Of no terms.
KFI_DEVICE float kfi_nothing(kfi_tag<KFI_SUM>) { return 0.0f; }
KFI_DEVICE float kfi_nothing(kfi_tag<KFI_MAX>) { return __int_as_float((int)0xff800000); }
KFI_DEVICE float kfi_nothing(kfi_tag<KFI_MIN>) { return __int_as_float(0x7f800000); }

// The lanes of this thread's warp that have its row.
KFI_DEVICE unsigned kfi_line_mask(const kfi_line &g)
{
    return g.shift >= 5 ? 0xffffffffu : ((1u << g.lanes) - 1u) << (threadIdx.x & 31u & ~(unsigned)(g.lanes - 1));
}
template <int word>
KFI_DEVICE float kfi_line_warp(float v, const kfi_line &g, unsigned mask)
{
    for (int step = (g.lanes < 32 ? g.lanes : 32) >> 1; step > 0; step >>= 1) v = kfi_join(kfi_tag<word>(), v, __shfl_xor_sync(mask, v, step));
    return v;
}
template <int word>
KFI_DEVICE double kfi_line_warp(double v, const kfi_line &g, unsigned mask)
{
    for (int step = (g.lanes < 32 ? g.lanes : 32) >> 1; step > 0; step >>= 1) v = kfi_join(kfi_tag<word>(), v, __shfl_xor_sync(mask, v, step));
    return v;
}
// Of a row that has several warps: what they left in shared memory, added up by each of them.
template <int word>
KFI_DEVICE float kfi_line_block(const float *slot, const kfi_line &g)
{
    const int lane = (int)threadIdx.x % 32;
    float v = lane < g.lanes / 32 ? slot[lane] : kfi_nothing(kfi_tag<word>());
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) v = kfi_join(kfi_tag<word>(), v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}
template <int word>
KFI_DEVICE double kfi_line_block(const double *slot, const kfi_line &g)
{
    const int lane = (int)threadIdx.x % 32;
    double v = lane < g.lanes / 32 ? slot[lane] : (double)kfi_nothing(kfi_tag<word>());
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) v = kfi_join(kfi_tag<word>(), v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

// A vector of a row, of which `left` elements are in it; the others are zero. whole: rows hold whole vectors, aligned to 16.
template <int size, int vec, int whole>
KFI_DEVICE void kfi_line_load(void *dst, const void *src, kf_i64 left)
{
    if (whole) {
        constexpr int step = size * vec < 16 ? size * vec : 16;
#pragma unroll
        for (int i = 0; i < size * vec; i += step) {
            alignas(16) unsigned v[4] = {0, 0, 0, 0};
            if (left > 0) kfi_copy<step>(v, (const char *)src + i);
            kfi_copy<step>((char *)dst + i, v);
        }
    } else {
        const unsigned long long zero = 0;
#pragma unroll
        for (int e = 0; e < vec; ++e) kfi_copy<size>((char *)dst + e * size, e < left ? (const char *)src + e * size : (const char *)&zero);
    }
}
template <int size, int vec, int whole>
KFI_DEVICE void kfi_line_store(void *dst, const void *src, kf_i64 left)
{
    if (whole) {
        if (left > 0) kfi_store<size * vec>(dst, src);
    } else {
#pragma unroll
        for (int e = 0; e < vec; ++e)
            if (e < left) kfi_copy<size>((char *)dst + e * size, (const char *)src + e * size);
    }
}

// A vector on its way through shared memory, and from there into registers.
KFI_DEVICE void kfi_line_fetch(char *slot, const void *src, int left)
{
    if (left > 0) kfi_fetch<16>(slot, src);
}
KFI_DEVICE void kfi_line_take(void *dst, const char *slot, int left)
{
    const uint4 zero = {0, 0, 0, 0};
    *(uint4 *)dst = left > 0 ? *(const uint4 *)slot : zero;
}

// Hides from the compiler that these 2-byte values were converted before: it would keep the floats, twice the registers.
template <int count>
KFI_DEVICE void kfi_line_forget(void *values)
{
#ifdef KFI_PTX
    unsigned *const words = (unsigned *)values;
#pragma unroll
    for (int i = 0; i < count / 2; ++i) asm volatile("" : "+r"(words[i]));
#else
    (void)values;
#endif
}

// The block's partial sums of one gradient: the thread's columns, added up over the block's groups. partial: this block's.
// buffer: a vector for each thread.
template <int held, int vec>
KFI_DEVICE void kfi_line_sums(float *partial, float (&sum)[held][vec], float *buffer, const kfi_line &g, int group, int lane)
{
    const int width = g.lanes * vec, padded = (int)kfi_ceil4(g.cols);
    for (int s = 0; s < held; ++s) { // by selection: a computed index would put the sums into local memory
        float own[vec] = {};
#pragma unroll
        for (int u = 0; u < held; ++u)
#pragma unroll
            for (int e = 0; e < vec; ++e) own[e] = u == s ? sum[u][e] : own[e];
        __syncthreads();
        if (group < g.groups)
#pragma unroll
            for (int e = 0; e < vec; ++e) buffer[group * width + lane * vec + e] = own[e];
        __syncthreads();
        for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
            float total = buffer[c];
            for (int y = 1; y < g.groups; ++y) total += buffer[y * width + c];
            if (s * width + c < padded) partial[s * width + c] = total;
        }
    }
}
template <int held, int vec>
KFI_DEVICE void kfi_line_sums(double *partial, double (&sum)[held][vec], double *buffer, const kfi_line &g, int group, int lane)
{
    const int width = g.lanes * vec, padded = (int)kfi_ceil4(g.cols);
    for (int s = 0; s < held; ++s) {
        double own[vec] = {};
#pragma unroll
        for (int u = 0; u < held; ++u)
#pragma unroll
            for (int e = 0; e < vec; ++e) own[e] = u == s ? sum[u][e] : own[e];
        __syncthreads();
        if (group < g.groups)
#pragma unroll
            for (int e = 0; e < vec; ++e) buffer[group * width + lane * vec + e] = own[e];
        __syncthreads();
        for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
            double total = buffer[c];
            for (int y = 1; y < g.groups; ++y) total += buffer[y * width + c];
            if (s * width + c < padded) partial[s * width + c] = total;
        }
    }
}
#endif

// Of a row that is held: so many vectors a thread, and at most so many threads.
struct kfi_held {
    int vectors, threads;
};

#ifdef KFI_HOST_PASS
// The kernels of one op x dtypes: for each entry of `held` (where gradients are added up there is one), and then for rows that
// are not held, {whole, single}.
struct kfi_row {
    kfi_name name;
    kfi_arguments arguments;
    const void *const *kernels;
    const kfi_held *held;
    int holds;
    int vec, sums, acc_size;
    bool per_row; // some result is one per row
};

// Blocks that walk down the rows, where gradients are added up: as many as an H200 has room for, 512 threads an SM, and shared
// memory for KFI_LINE_RINGS of them.
#define KFI_LINE_RINGS 6
KF_FN KFI_SMALL kf_i64 kfi_line_parts(const kfi_line &g, int threads)
{
    return kfi_clamp(kfi_ceil(g.rows, g.groups), 1, KFI_MAP_SMS * kfi_clamp(512 / threads, 1, KFI_LINE_RINGS));
}
// The schedule, by a row's length alone but for the number of blocks. Returns which kernel: an index of kfi_row's table.
KF_FN KFI_SMALL int kfi_make_line(kfi_line *g, kf_i64 rows, kf_i64 cols, int vec, const kfi_held *held, int holds, bool sums, int *threads)
{
    const kf_i64 vectors = kfi_ceil(cols, vec);
    int found = 0;
    while (found < holds && vectors > held[found].vectors * kfi_clamp(held[found].threads, 1, KFI_LINE_CAP)) ++found;
    const kf_i64 lanes = found == holds ? kfi_clamp(sums ? 512 : KFI_LINE_MOST, 1, KFI_LINE_CAP) : kfi_ceil(vectors, held[found].vectors);
    g->rows = rows;
    g->cols = cols;
    g->shift = 31;
    g->lanes = (int)kfi_ceil(lanes, 32) * 32;
    if (lanes <= 32)
        for (g->shift = 0; (1 << g->shift) < lanes;) ++g->shift;
    if (lanes <= 32) g->lanes = 1 << g->shift;
    const int block = sums ? KFI_LINE_SUM_BLOCK : KFI_LINE_BLOCK;
    g->groups = g->lanes <= 32 ? block / g->lanes : 1;
    *threads = g->lanes <= 32 ? block : g->lanes;
    g->loops = (int)kfi_clamp(kfi_ceil(vectors, g->lanes), 0, 0x7fffffff);
    return found;
}
KF_FN KFI_SMALL size_t kfi_row_workspace(kf_i64 rows, kf_i64 cols, int vec, kfi_held held, int sums, int acc_size)
{
    if (!kfi_fits(rows, cols, 1)) return 0;
    kfi_line g;
    int threads;
    kfi_make_line(&g, rows, cols, vec, &held, 1, true, &threads);
    return (size_t)(kfi_line_parts(g, threads) * kfi_ceil(cols, 4) * 4) * (size_t)(sums * acc_size);
}

KF_FN kf_result_t kfi_row_run(const kfi_row &m, kf_i64 rows, kf_i64 cols, kfi_line *g, void **args, kfi_sums *s, const void *const *sum_kernels,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const kf_i64 sizes[] = {rows, cols};
    kf_result_t result = kfi_check_sizes(&m.name, "rows cols", sizes, 2);
    if (result != KF_SUCCESS) return result;
    const kfi_shape shape = {rows, 0, cols};
    if (m.sums ? cols == 0 && !m.per_row : rows == 0 || (cols == 0 && !m.per_row)) return KF_SUCCESS;
    kfi_operands operands;
    result = kfi_check_operands(&m.name, &m.arguments, &shape, &operands);
    if (result != KF_SUCCESS) return result;
    bool wanted = false; // sums that nobody wants need no workspace
    for (int k = 0; k < m.sums; ++k) wanted = wanted || s->out[k];
    const size_t needed = wanted ? kfi_row_workspace(rows, cols, m.vec, *m.held, m.sums, m.acc_size) : 0;
    result = kfi_check_workspace(&m.name, &m.arguments, &operands, workspace, workspace_bytes, needed);
    if (result != KF_SUCCESS) return result;
    int threads;
    const int found = kfi_make_line(g, rows, cols, m.vec, m.held, m.holds, m.sums > 0, &threads);
    const bool whole = operands.bits % 16 == 0 && cols % m.vec == 0;
    const kf_i64 blocks = m.sums ? kfi_line_parts(*g, threads) : kfi_ceil(rows, g->groups);
    if (blocks > 0x7fffffff || g->loops == 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch", "of %lld x %lld elements needs more blocks than a launch may have", (long long)rows,
                        (long long)cols);
    if (m.sums) {
        s->partial = wanted ? workspace : nullptr;
        s->parts = blocks;
        s->count = cols;
        s->stride = kfi_ceil(cols, 4) * 4;
    }
    result = kfi_launch(&m.name, m.kernels[2 * found + !whole], dim3((unsigned)blocks), (unsigned)threads, args, stream);
    if (result != KF_SUCCESS || !wanted) return result;
    void *sum_args[] = {s};
    const dim3 sum_blocks((unsigned)kfi_ceil(s->count, 4 * KFI_SUM_LANES), (unsigned)m.sums);
    return kfi_launch(&m.name, sum_kernels[0], sum_blocks, KFI_SUM_LANES * KFI_SUM_GROUPS, sum_args, stream);
}
#elif !defined(__CUDACC_RTC__)
KF_FN size_t kfi_row_workspace(kf_i64, kf_i64, int, kfi_held, int, int) { return 0; }
#endif

#endif
