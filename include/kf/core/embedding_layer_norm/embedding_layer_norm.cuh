// SPDX-License-Identifier: Apache-2.0
// kf/core/embedding_layer_norm/embedding_layer_norm.cuh: embeddings of several tables, added up and
// normalised: CUDA schedules and launches.
//
// Rows kernel: 1 to 8 warps share a row. They hold it in registers if it fits, otherwise each pass
// gathers the row again with the whole block. Blocks of KFI_GATHER_THREADS threads take groups of
// rows grid-stride. Backward: the grid size depends only on the shape. A thread has the same
// columns of all its rows, so it sums the gradients of weights in registers, or in the block's row
// of the workspace. The rows' gradients are stored in the workspace.
//
// Runs kernel: the indices of each table are sorted (index_sort.cuh), and the rows of one index (a
// run) are cut every KFI_RUN places, so that a frequent token is shared by many threads. This
// kernel sums the parts of runs on both sides of each cut.
//
// Sum kernel: sums each row of a table, directly for a run without a cut, otherwise from the parts.
// The order of sums is fixed, so results are deterministic.
#ifndef KF_CORE_EMBEDDING_LAYER_NORM_EMBEDDING_LAYER_NORM_CUH
#define KF_CORE_EMBEDDING_LAYER_NORM_EMBEDDING_LAYER_NORM_CUH

#include "kf/core/index_sort.cuh"
#include "kf/core/sums.cuh"

#define KFI_GATHER_THREADS 256
#define KFI_GATHER_WARPS (KFI_GATHER_THREADS / 32)
#ifndef KFI_GATHER_FULL // overridden by an emulation, to have several iterations with few rows
// Blocks of a forward with a warp per row: as many as fit the device at a time.
#define KFI_GATHER_FULL(fewer) ((kf_i64)KFI_MAP_SMS * ((fewer) ? 4 : 3))
#endif
#define KFI_RUN 64 // rows
#define KFI_RUN_AHEAD 4
#define KFI_RUN_THREADS 128

struct kfi_gathering {
    kf_i64 rows, cols, extent[3]; // extent: rows of each table
    kf_i64 units;                 // vectors per row
    unsigned across;              // threads per row
    void *row_grads;              // rows' gradients, [plane][row][col]; NULL: not wanted
    void *partial;                // [sum][part][stride]; NULL: no weight's gradient is wanted
    kf_i64 parts, stride;
};

struct kfi_gathered_sums {
    const void *row_grads; // [row][col]
    void *out;             // gradient of the table
    // [2][cut][col]: sums of a run from a cut to the next one, and before the next one
    void *parts;
    const void *numbers;
    const kf_i64 *begin, *ids; // begin: NULL if there are no rows
    kf_i64 rows, cols, below, cuts;
    kfi_divisor tiles; // per row
    kf_i64 items;
    unsigned across, per_block;
    double beta;
};

#ifdef KFI_DEVICE_PASS
// Sums over the threads of a row, returned to all of them: over each warp by shuffles, then
// over the warps in their order. Called by all threads of the block.
template <int n, class R> KFI_DEVICE void kfi_gather_reduce(R *v, R *room, unsigned across)
{
#pragma unroll
    for (int i = 0; i < n; ++i)
#pragma unroll
        for (int by = 16; by > 0; by /= 2) v[i] += __shfl_xor_sync(0xffffffffu, v[i], by);
    if (across == 32) return;
    const unsigned warp = threadIdx.x / 32, warps = across / 32, first = warp / warps * warps;
    __syncthreads(); // the sums of the pass before have been read
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < n; ++i) room[warp * n + i] = v[i];
    __syncthreads();
    for (int i = 0; i < n; ++i) {
        v[i] = room[first * n + i];
        for (unsigned w = 1; w < warps; ++w) v[i] += room[(first + w) * n + i];
    }
}
// Adds rows of [row][cols] at places `begin` to `end` - 1 of ids, in this order. ids NULL:
// places are row indices.
template <int vec, class R>
KFI_DEVICE void kfi_gather_add(R *sum, const R *from, const kf_i64 *ids, kf_i64 begin, kf_i64 end,
                               kf_i64 cols)
{
    for (kf_i64 i = begin; i < end; i += KFI_RUN_AHEAD) {
        alignas(16) R v[KFI_RUN_AHEAD][vec];
#pragma unroll
        for (int u = 0; u < KFI_RUN_AHEAD; ++u)
            if (i + u < end)
                kfi_copy<(int)sizeof v[0]>(v[u], from + (ids ? ids[i + u] : i + u) * cols);
#pragma unroll
        for (int u = 0; u < KFI_RUN_AHEAD; ++u)
#pragma unroll
            for (int e = 0; e < vec; ++e)
                if (i + u < end) sum[e] += v[u][e];
    }
}
// Coordinates of a thread in an item: one of `rows` rows or cuts, and the first column of a
// vector. Returns whether it has any.
template <int vec>
KFI_DEVICE bool kfi_gathered_mine(const kfi_gathered_sums &s, kf_i64 item, kf_i64 rows, kf_i64 *row,
                                  kf_i64 *col)
{
    const unsigned local = threadIdx.x / s.across, lane = threadIdx.x - local * s.across;
    const kf_i64 group = kfi_divide(item, s.tiles);
    *row = group * s.per_block + local;
    *col = ((item - group * (kf_i64)s.tiles.d) * s.across + lane) * vec;
    return local < s.per_block && *row < rows && *col < s.cols;
}
// Type that counts the vectors of a row: rows in registers have few.
template <int held> struct kfi_gather_unit {
    typedef int type;
};
template <> struct kfi_gather_unit<0> {
    typedef kf_i64 type;
};
template <int acc> struct kfi_gather_type {
    typedef float type;
};
template <> struct kfi_gather_type<KF_F64> {
    typedef double type;
};
KFI_DEVICE void kfi_gather_store(kfi_tag<KF_F32>, void *p, kf_i64 i, float v, float beta)
{
    ((float *)p)[i] = beta != 0 ? v + beta * ((float *)p)[i] : v;
}
KFI_DEVICE void kfi_gather_store(kfi_tag<KF_F64>, void *p, kf_i64 i, double v, double beta)
{
    ((double *)p)[i] = beta != 0 ? v + beta * ((double *)p)[i] : v;
}
#define KFI_GATHER_STORE(dtype, type, word)                                                        \
    KFI_DEVICE void kfi_gather_store(kfi_tag<dtype>, void *p, kf_i64 i, float v, float beta)       \
    {                                                                                              \
        float old[1] = {0};                                                                        \
        /* Reads the old value only if it is used. */                                              \
        if (beta != 0) kfi_unpack_##word<1>(old, (type *)p + i);                                   \
        kfi_cast((type *)p + i, beta != 0 ? v + beta * old[0] : v);                                \
    }
KFI_GATHER_STORE(KF_F16, kf_f16, f16)
KFI_GATHER_STORE(KF_BF16, kf_bf16, bf16)
#undef KFI_GATHER_STORE
#endif

#ifndef KFI_DRIVER
// Sums of a run on both sides of each cut; one thread per vector of columns.
template <int acc, int number, int vec>
KFI_KERNEL void KFI_BOUNDS(KFI_RUN_THREADS) kfk_gathered_runs(kfi_gathered_sums s)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    typedef typename kfi_gather_type<acc>::type type;
    for (kf_i64 item = blockIdx.x; item < s.items; item += gridDim.x) {
        kf_i64 cut, col;
        if (!kfi_gathered_mine<vec>(s, item, s.cuts, &cut, &col)) continue;
        const kf_i64 first = cut * KFI_RUN,
                     behind = first + KFI_RUN < s.rows ? first + KFI_RUN : s.rows;
        const type *const from = (const type *)s.row_grads + col;
#pragma unroll
        for (int side = 0; side < 2; ++side) { // the index at the first place, and at the last one
            const kf_i64 v =
                kfi_number(kfi_tag<number>(), s.numbers, s.ids[side ? behind - 1 : first]);
            if (v < 0 || v >= s.below) continue;
            const kf_i64 begin = s.begin[v], end = s.begin[v + 1];
            if (begin == end || (side ? begin < first || end <= behind : begin >= first))
                continue; // padding, or not cut on this side
            type sum[vec] = {};
            kfi_gather_add<vec>(sum, from, s.ids, begin > first ? begin : first,
                                end < behind ? end : behind, s.cols);
            kfi_copy<(int)sizeof sum>((type *)s.parts + (side * s.cuts + cut) * s.cols + col, sum);
        }
    }
#endif
}
template <int acc, int dtype, int vec>
KFI_KERNEL void KFI_BOUNDS(KFI_RUN_THREADS) kfk_gathered_sum(kfi_gathered_sums s)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    typedef typename kfi_gather_type<acc>::type type;
    for (kf_i64 item = blockIdx.x; item < s.items; item += gridDim.x) {
        kf_i64 row, col;
        if (!kfi_gathered_mine<vec>(s, item, s.below, &row, &col)) continue;
        const kf_i64 begin = s.begin ? s.begin[row] : 0, end = s.begin ? s.begin[row + 1] : 0;
        const kf_i64 cut = begin / KFI_RUN, last = (end - 1) / KFI_RUN;
        type sum[vec] = {};
        if (end <= begin || cut == last) {
            kfi_gather_add<vec>(sum, (const type *)s.row_grads + col, s.ids, begin, end, s.cols);
        } else {
            const type *const parts = (const type *)s.parts + col;
            kfi_gather_add<vec>(sum, parts, nullptr, s.cuts + cut, s.cuts + cut + 1, s.cols);
            kfi_gather_add<vec>(sum, parts, nullptr, cut + 1, last + 1, s.cols);
        }
#pragma unroll
        for (int e = 0; e < vec; ++e)
            kfi_gather_store(kfi_tag<dtype>(), s.out, row * s.cols + col + e, sum[e], (type)s.beta);
    }
#endif
}
#endif

#ifdef KFI_HOST_PASS
#include "kf/core/embedding_layer_norm/gather_check.h"

struct kfi_gather_op {
    kfi_name name;
    kfi_arguments arguments;
    const char
        *elements; // sizes of the tensors, one code each (core/embedding_layer_norm/gather_check.h)
    // Rows: {vector, held, a warp}, {vector, held}, {vector, 0}, {1, 0}; forward: {vector,
    // held - 1, a warp}, backward: count, scan, scatter, bounds; runs: {vector}, {1}; sum:
    // {vector}, {1}.
    const void *const *kernels;
    int vec = 0, held = 0; // held: vectors per thread in registers
    int acc_size = 0, planes = 0, sums = 0;
};
// Backward: parameters of each table's gradient.
struct kfi_gather_tables {
    const void *numbers[KFI_GATHERED];
    void *out[KFI_GATHERED]; // NULL: not wanted
    kf_i64 skipped[KFI_GATHERED];
    int plane[KFI_GATHERED];
    double beta;
};
// Number of blocks that sum the gradients of weights: by the amount of work, at most two per
// SM.
KF_FN KFI_SMALL kf_i64 kfi_gathering_parts(kf_i64 rows, kf_i64 cols)
{
    return kfi_clamp(rows * cols / 8192, 1, KFI_MAP_SMS * 2);
}
KF_FN KFI_SMALL kf_i64 kfi_gathering_stride(kf_i64 cols) { return kfi_ceil(cols, 4) * 4; }
// Bytes of each part of the workspace: the rows' gradients, the sums at cuts, the sums of
// weights, the sort.
KF_FN KFI_SMALL void kfi_gathering_layout(size_t *bytes, const kf_i64 *sizes, int planes, int sums,
                                          int acc_size)
{
    const kf_i64 rows = sizes[0], cols = sizes[1];
    kf_i64 most = 0;
    for (int i = 0; i < KFI_GATHERED; ++i) most = sizes[2 + i] > most ? sizes[2 + i] : most;
    bytes[0] = kfi_workspace((size_t)(planes * rows * cols * acc_size));
    bytes[1] = kfi_workspace((size_t)(2 * kfi_ceil(rows, KFI_RUN) * cols * acc_size));
    bytes[2] = kfi_workspace(
        (size_t)(sums * kfi_gathering_parts(rows, cols) * kfi_gathering_stride(cols) * acc_size));
    bytes[3] = kfi_sort_workspace(rows, most);
}
KF_FN KFI_SMALL size_t kfi_gathering_workspace(kf_i64 rows, kf_i64 cols, kf_i64 vocab,
                                               kf_i64 positions, kf_i64 types, int planes, int sums,
                                               int acc_size)
{
    const kf_i64 sizes[] = {rows, cols, vocab, positions, types};
    for (int i = 0; i < 5; ++i)
        if (!kfi_fits(sizes[i], cols, 1)) return 0; // the launcher reports it
    if (cols == 0) return 0;
    size_t bytes[4];
    kfi_gathering_layout(bytes, sizes, planes, sums, acc_size);
    return bytes[0] + bytes[1] + bytes[2] + bytes[3];
}
// Launches the rows kernel.
KF_FN kf_result_t kfi_gathering_rows(const kfi_gather_op &m, const kfi_operands &operands, bool bwd,
                                     kfi_gathering *g, void **args, cudaStream_t stream)
{
    const bool vectors = operands.bits % 16 == 0 && g->cols % m.vec == 0;
    g->units = vectors ? g->cols / m.vec : g->cols;
    unsigned warps = 1;
    while (warps < KFI_GATHER_WARPS && g->units > (kf_i64)warps * 32 * m.held) warps *= 2;
    const bool held = vectors && g->units <= (kf_i64)warps * 32 * m.held;
    g->across = held ? warps * 32 : KFI_GATHER_THREADS;
    const bool fewer = !bwd && held && g->units <= 32 * (m.held - 1);
    const kf_i64 groups = kfi_ceil(g->rows, KFI_GATHER_THREADS / g->across),
                 full = held && warps == 1 ? KFI_GATHER_FULL(fewer) : groups;
    // Blocks of a forward that take several groups prefetch the indices one iteration ahead.
    const kf_i64 blocks = bwd ? g->parts : groups < full ? groups : full;
    if (groups > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld rows needs more blocks than a launch may have",
                        (long long)g->rows);
    return kfi_launch(&m.name,
                      m.kernels[fewer     ? 4
                                : held    ? warps > 1
                                : vectors ? 2
                                          : 3],
                      dim3((unsigned)blocks), KFI_GATHER_THREADS, args, stream);
}
KF_FN kf_result_t kfi_gathering_run(const kfi_gather_op &m, const kf_i64 *sizes, kfi_gathering *g,
                                    void **args, cudaStream_t stream)
{
    kfi_operands operands;
    const kf_result_t result =
        kfi_check_gathering(&m.name, &m.arguments, m.elements, sizes, 0, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    g->rows = sizes[0];
    g->cols = sizes[1];
    for (int i = 0; i < KFI_GATHERED; ++i) g->extent[i] = sizes[2 + i];
    return kfi_gathering_rows(m, operands, false, g, args, stream);
}
// Sums the gradient of one table from the rows' gradients.
KF_FN kf_result_t kfi_gathering_table(const kfi_gather_op &m, const kfi_gather_tables &t, int i,
                                      const kf_i64 *sizes, bool vectors, char *row_grads,
                                      char *parts, void *sort, cudaStream_t stream)
{
    const kf_i64 rows = sizes[0], cols = sizes[1];
    kf_result_t result = KF_SUCCESS;
    kfi_gathered_sums s = {row_grads + t.plane[i] * rows * cols * m.acc_size,
                           t.out[i],
                           parts,
                           t.numbers[i],
                           nullptr,
                           nullptr,
                           rows,
                           cols,
                           sizes[2 + i],
                           kfi_ceil(rows, KFI_RUN),
                           kfi_make_divisor(1),
                           0,
                           0,
                           0,
                           t.beta};
    if (s.below == 0) return result;
    if (rows > 0) {
        kfi_sort sorted = {t.numbers[i], rows,    s.below, t.skipped[i],
                           nullptr,      nullptr, nullptr, nullptr,
                           nullptr,      0,       0,       0};
        result = kfi_sort_run(&m.name, m.kernels + 4, &sorted, sort, stream);
        s.begin = sorted.begin;
        s.ids = sorted.to;
    }
    const kf_i64 units = vectors ? cols / (16 / m.acc_size) : cols;
    s.across = (unsigned)kfi_clamp(units, 1, KFI_RUN_THREADS);
    s.per_block = KFI_RUN_THREADS / s.across;
    const kf_i64 tiles = kfi_ceil(units, s.across);
    s.tiles = kfi_make_divisor(tiles);
    void *args[] = {&s};
    for (int stage = rows > 0 ? 0 : 1; result == KF_SUCCESS && stage < 2; ++stage) {
        s.items = tiles * kfi_ceil(stage ? s.below : s.cuts, s.per_block);
        const kf_i64 blocks = kfi_clamp(s.items, 1, (kf_i64)KFI_MAP_SMS * (2048 / KFI_RUN_THREADS));
        result = kfi_launch(&m.name, m.kernels[8 + 2 * stage + !vectors], dim3((unsigned)blocks),
                            KFI_RUN_THREADS, args, stream, false);
    }
    return result;
}
KF_FN kf_result_t kfi_gathering_sum_run(const kfi_gather_op &m, const kf_i64 *sizes,
                                        const kfi_gather_tables &t, kfi_gathering *g, void **args,
                                        kfi_sums *s, const void *const *sum_kernels,
                                        void *workspace, size_t workspace_bytes,
                                        cudaStream_t stream)
{
    kfi_operands operands;
    kf_result_t result =
        kfi_check_gathering(&m.name, &m.arguments, m.elements, sizes, 1, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    result = kfi_check_workspace(&m.name, &m.arguments, &operands, workspace, workspace_bytes,
                                 kfi_gathering_workspace(sizes[0], sizes[1], sizes[2], sizes[3],
                                                         sizes[4], m.planes, m.sums, m.acc_size));
    bool tables = false;
    for (int i = 0; result == KF_SUCCESS && i < KFI_GATHERED; ++i) {
        tables = tables || t.out[i];
        result = kfi_sort_fits(&m.name, sizes[0], sizes[2 + i]);
    }
    if (result != KF_SUCCESS) return result;
    size_t bytes[4];
    kfi_gathering_layout(bytes, sizes, m.planes, m.sums, m.acc_size);
    char *const row_grads = (char *)workspace, *const parts = row_grads + bytes[0],
                *const partial = parts + bytes[1];
    const bool wanted = kfi_sums_wanted(s, nullptr, m.sums),
               vectors = operands.bits % 16 == 0 && sizes[1] % m.vec == 0;
    g->rows = sizes[0];
    g->cols = sizes[1];
    for (int i = 0; i < KFI_GATHERED; ++i) g->extent[i] = sizes[2 + i];
    g->row_grads = tables ? row_grads : nullptr;
    g->partial = wanted ? partial : nullptr;
    g->parts = kfi_gathering_parts(g->rows, g->cols);
    g->stride = kfi_gathering_stride(g->cols);
    result = kfi_gathering_rows(m, operands, true, g, args, stream);
    if (result == KF_SUCCESS && wanted) {
        s->partial = partial;
        s->parts = g->parts;
        s->count = g->cols;
        s->stride = g->stride;
        result = kfi_launch_sums(&m.name, s, nullptr, m.sums, g->parts * g->stride * m.acc_size,
                                 sum_kernels, 1, kfi_ceil(g->cols, 4 * KFI_SUM_LANES),
                                 KFI_SUM_LANES * KFI_SUM_GROUPS, stream);
    }
    for (int i = 0; result == KF_SUCCESS && i < KFI_GATHERED; ++i)
        if (t.out[i])
            result = kfi_gathering_table(m, t, i, sizes, vectors, row_grads, parts,
                                         partial + bytes[2], stream);
    return result;
}
#endif

#endif
