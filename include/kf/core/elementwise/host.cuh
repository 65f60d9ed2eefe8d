// SPDX-License-Identifier: Apache-2.0
// kf/core/elementwise/host.cuh: argument checks, launch configuration and workspace of elementwise
// kernels. Included by kf/core/elementwise/elementwise.cuh when host code is compiled.
#ifndef KF_CORE_ELEMENTWISE_HOST_CUH
#define KF_CORE_ELEMENTWISE_HOST_CUH

#include "kf/core/elementwise/args.cuh"

#ifdef KFI_HOST_PASS
// The kernels of one op and dtype tuple.
struct kfi_map {
    kfi_name name;
    kfi_arguments arguments;
    const void *const *kernels; // see the callers
    int vec = 0, unroll = 0;
    int size = 0;     // bytes of the widest element
    int threads = 0;  // per block of a sum kernel; an SM holds 1024 / threads blocks
    int sums = 0;     // outputs reduced to rows or channels
    int acc_size = 0; // bytes of an accumulator
    // Outputs per launch of the second stage; nullptr: one launch.
    const unsigned char *runs = nullptr;
};

// Number of blocks that fills the largest GPU several times. With fewer blocks, more threads are
// faster than more vectors per thread.
#ifndef KFI_MAP_FILL
#define KFI_MAP_FILL 1056
#endif

// Launches threads for n elements with the first of kernels[] = {vector, unroll}, {vector, 1}, {1,
// 1} that is possible and fills the GPU. Vector u of a thread begins u * step elements behind its
// first; step 0: consecutive blocks.
KF_FN KFI_SMALL kf_result_t kfi_launch_each(const kfi_map &m, const void *const *kernels, kf_i64 n,
                                            bool vectors, kfi_each *e, kf_i64 step, void **args,
                                            cudaStream_t stream)
{
    const int vec = vectors ? m.vec : 1;
    const bool wide = vectors && m.unroll > 1 &&
                      kfi_ceil(n, (kf_i64)KFI_MAP_THREADS * vec * m.unroll) >= KFI_MAP_FILL;
    const int unroll = wide ? m.unroll : 1;
    const kf_i64 threads =
                     kfi_ceil(wide && step ? step : n, wide && step ? vec : (kf_i64)vec * unroll),
                 blocks = kfi_ceil(threads, KFI_MAP_THREADS);
    e->n = n;
    e->step = wide && step ? step : (kf_i64)KFI_MAP_THREADS * vec;
    e->own = wide && step ? step : n;
    e->block = (kf_i64)KFI_MAP_THREADS * vec * (step ? 1 : unroll);
    if (blocks > 0x7fffffff)
        return kfi_fail(
            KF_ERROR_UNSUPPORTED, &m.name, "launch",
            "of %lld elements needs more blocks than a launch may have at this alignment",
            (long long)n);
    return kfi_launch(&m.name,
                      kernels[wide      ? 0
                              : vectors ? 1
                                        : 2],
                      dim3((unsigned)blocks), KFI_MAP_THREADS, args, stream);
}

KF_FN kf_result_t kfi_map_flat(const kfi_map &m, kf_i64 n, kfi_each *e, void **args,
                               cudaStream_t stream)
{
    const kfi_shape shape = {1, 0, n, 0, nullptr};
    kf_result_t result = kfi_check_sizes(&m.name, "n", &n, 1);
    if (result != KF_SUCCESS || n == 0) return result;
    kfi_operands operands;
    result = kfi_check_operands(&m.name, &m.arguments, &shape, nullptr, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    return kfi_launch_each(m, m.kernels, n, operands.bits % 16 == 0, e, 0, args, stream);
}

KF_FN KFI_SMALL kf_result_t kfi_check_grid(const kfi_map &m, kf_i64 rows, kf_i64 channels,
                                           kf_i64 cols, bool is_channel)
{
    const kf_i64 sizes[] = {rows, is_channel ? channels : cols, cols};
    return kfi_check_sizes(&m.name, is_channel ? "outer channels inner" : "rows cols", sizes,
                           is_channel ? 3 : 2);
}

// Runs rows x cols, or outer x channels x inner (channels > 0). kernels[]: three for rows of whole
// vectors, three for rows of any length (not for halves, whose rows are strided), three for planes
// (channel ops). g, e: kernel arguments to fill in.
KF_FN kf_result_t kfi_map_rows(const kfi_map &m, kf_i64 rows, kf_i64 channels, kf_i64 cols,
                               bool is_channel, bool halves, kfi_rows *g, kfi_each *e, void **args,
                               cudaStream_t stream)
{
    kf_result_t result = kfi_check_grid(m, rows, channels, cols, is_channel);
    if (result != KF_SUCCESS) return result;
    const kfi_shape shape = {rows, channels, cols, 0, nullptr};
    const kf_i64 n = rows * cols * (is_channel ? channels : 1);
    if (n == 0) return KF_SUCCESS;
    kfi_operands operands;
    result = kfi_check_operands(&m.name, &m.arguments, &shape, nullptr, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const bool plane = is_channel && cols > 1;
    if (is_channel && !plane) cols = channels; // NHWC: channels are columns
    const bool aligned = operands.bits % 16 == 0, whole = cols % m.vec == 0;
    const bool vectors = aligned && cols >= m.vec && (whole || !halves);
    g->cols = cols;
    g->width = kfi_make_divisor(plane || !vectors || !whole ? cols : cols / m.vec);
    g->channels = kfi_make_divisor(is_channel ? channels : 1);
    // A thread's vectors are a whole number of periods apart that keeps them aligned.
    const kf_i64 period = plane ? channels * cols : cols;
    kf_i64 unit = 1;
    while (period * unit % m.vec != 0) unit *= 2;
    const kf_i64 step = kfi_ceil(kfi_ceil(rows, m.unroll), unit) * unit * period;
    return kfi_launch_each(m,
                           m.kernels + (plane               ? 6
                                        : vectors && !whole ? 3
                                                            : 0),
                           n, vectors, e, step, args, stream);
}

// Grid of a sum kernel: tiles of bx vectors of columns, `parts` blocks along the rows of a slab. It
// depends on the shape alone, so that results do too and the workspace is known before the call.
// period: columns of a row, or all channels' planes of a batch.
// One wave of blocks (1,024 threads per SM) works on one slab of rows. There are several slabs if
// each thread then still has KFI_MAP_STEPS rows. Slabs keep blocks together in memory but cost the
// start and end of each block. Blocks of 512 threads overlap these and get up to four slabs; larger
// blocks get two or one.
struct kfi_split {
    kf_i64 parts; // per slab
    kf_i64 slabs;
    int bx;
};
#define KFI_MAP_STEPS 16
KF_FN KFI_SMALL kfi_split kfi_make_split(kf_i64 rows, kf_i64 period, int size, int threads)
{
    const short shares[] = {1,  2,  3,  4,  6,  8,  11,  12,  16,
                            22, 32, 33, 44, 66, 88, 132, 264, 528}; // (nearly) divide 264
    const kf_i64 vectors = kfi_ceil(period * size, 16), blocks = KFI_MAP_SMS * (1024 / threads);
    kfi_split best = {1, 1, (int)kfi_clamp(vectors, 1, KFI_MAP_THREADS)};
    kf_i64 best_score = -1;
    for (int i = 0; i < 18; ++i) {
        kf_i64 bx = kfi_ceil(vectors, shares[i]);
        // Whole lines of 128 bytes; wide tiles: whole warps.
        if (bx > 8) bx = bx > 64 ? kfi_ceil(bx, 32) * 32 : kfi_ceil(bx, 8) * 8;
        if (bx > threads) continue;
        const kf_i64 tiles = kfi_ceil(vectors > 0 ? vectors : 1, bx > 0 ? bx : 1),
                     waves = kfi_ceil(tiles, blocks);
        const kf_i64 parts = waves > 1 ? 1 : blocks / tiles;
        // Narrower tiles have short accesses and, for planes, too many partial sums.
        if (best_score >= 0 && bx < 64) break;
        const kf_i64 lanes =
            kfi_clamp(threads / (bx > 0 ? bx : 1) * parts, 1, rows > 0 ? rows : 1) * vectors;
        const kf_i64 busy = 1000 * lanes / (threads * blocks * waves);
        // 128 of 132 SMs are enough; partial sums cost.
        const kf_i64 score = 10 * (busy > 960 ? 960 : busy) - 10000 * parts / (rows + 1);
        if (score <= best_score) continue;
        best_score = score;
        best.bx = bx > 0 ? (int)bx : 1;
        best.parts = parts;
    }
    best.parts = kfi_clamp(best.parts, 1, kfi_ceil(rows, 8));
    const kf_i64 slabs = threads > 768 ? 1 : threads > 512 ? 2 : 4;
    best.slabs = kfi_clamp(rows / (best.parts * (threads / best.bx) * KFI_MAP_STEPS), 1, slabs);
    return best;
}
KF_FN kf_i64 kfi_slots(kf_i64 tile_cols, kf_i64 inner) { return tile_cols / inner + 2; }
// Partial sums of one part: one per column, padded to whole vectors; planes: one per tile and
// channel that it may overlap.
KF_FN kf_i64 kfi_partials(kf_i64 period, kf_i64 inner, bool plane, kf_i64 tile_cols)
{
    return plane ? kfi_ceil(period, tile_cols) * kfi_slots(tile_cols, inner)
                 : kfi_ceil(period, 4) * 4;
}
KF_FN KFI_SMALL size_t kfi_map_workspace(kf_i64 rows, kf_i64 channels, kf_i64 cols, bool is_channel,
                                         int size, int threads, int sums, int acc_size)
{
    if (!kfi_fits(rows, cols, is_channel ? channels : 1)) return 0;
    const bool plane = is_channel && cols > 1;
    const kf_i64 period = plane ? channels * cols : is_channel ? channels : cols;
    const kfi_split split = kfi_make_split(rows, period, size, threads);
    // Partial sums per part, with tiles of vectors and with tiles of single elements.
    const kf_i64 aligned = kfi_partials(period, cols, plane, (kf_i64)split.bx * 16 / size);
    const kf_i64 single = kfi_partials(period, cols, plane, kfi_clamp(period, 1, KFI_MAP_THREADS));
    return kfi_workspace(
        (size_t)(split.parts * split.slabs * (aligned > single ? aligned : single)) *
        (size_t)(sums * acc_size));
}

// Launches gradients of few rows without a second stage: a block reduces all rows of its columns.
// The assignment of rows to threads depends on their number alone, not on the columns of a thread.
#define KFI_MAP_FEW_BYTES (64 << 10) // maximum bytes of a row: one wave of blocks, 64 bytes each
KF_FN KFI_SMALL kf_result_t kfi_map_few(const kfi_map &m, kfi_grid *g, int vec, void **args,
                                        cudaStream_t stream)
{
    int bits = 0;
    while (bits < KFI_MAP_FEW_BITS && 1 << bits < g->rows) ++bits;
    const int warps = (int)kfi_ceil(g->rows, (kf_i64)1 << bits);
    g->few = 1 + bits;
    g->bx = 32 >> bits;
    g->by = warps << bits;
    g->tiles = (unsigned)kfi_ceil(g->cols, (kf_i64)g->bx * vec);
    return kfi_launch(&m.name, m.kernels[vec == 1], dim3(g->tiles), (unsigned)(32 * warps), args,
                      stream);
}

// Runs an op with reduced gradients. kernels[]: {vector, rows}, {1, rows}, {vector, planes}, {1,
// planes}; sum_kernels: second stage for rows and (channel ops) for planes.
KF_FN kf_result_t kfi_map_sum(const kfi_map &m, kf_i64 rows, kf_i64 channels, kf_i64 cols,
                              bool is_channel, kfi_grid *g, void **args, kfi_sums *s,
                              const void *const *sum_kernels, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    kf_result_t result = kfi_check_grid(m, rows, channels, cols, is_channel);
    if (result != KF_SUCCESS) return result;
    const kfi_shape shape = {rows, channels, cols, 0, nullptr};
    s->count = is_channel ? channels : cols;
    if (s->count == 0) return KF_SUCCESS;
    kfi_operands operands;
    result = kfi_check_operands(&m.name, &m.arguments, &shape, nullptr, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const bool wanted = kfi_sums_wanted(s, m.runs, m.sums);
    const size_t needed =
        kfi_map_workspace(rows, channels, cols, is_channel, m.size, m.threads, m.sums, m.acc_size);
    result =
        kfi_check_workspace(&m.name, &m.arguments, &operands, workspace, workspace_bytes, needed);
    if (result != KF_SUCCESS) return result;

    const bool plane = is_channel && cols > 1;
    const kf_i64 period = plane ? channels * cols : is_channel ? channels : cols;
    if (cols == 0) rows = 0;
    const bool few = wanted && !plane && !m.runs && rows > 0 && rows <= KFI_MAP_FEW &&
                     period * m.size <= KFI_MAP_FEW_BYTES;
    const bool vectors =
        operands.bits % 16 == 0 && period % m.vec == 0 && (!plane || cols >= m.vec) &&
        !(few && rows * period <= 16 * KFI_MAP_FILL); // at most one warp per scheduler
    const int vec = vectors ? m.vec : 1;
    const kfi_split split = kfi_make_split(rows, period, m.size, m.threads);
    const kf_i64 parts = split.parts * split.slabs;
    g->rows = rows;
    g->slab = kfi_ceil(rows, split.slabs);
    g->cols = period;
    g->parts = (unsigned)split.parts;
    g->bx = vectors ? split.bx : (int)kfi_clamp(period, 1, KFI_MAP_THREADS);
    g->by = m.threads / g->bx;
    const kf_i64 tile_cols = (kf_i64)g->bx * vec, tiles = kfi_ceil(period, tile_cols);
    g->tiles = (unsigned)tiles;
    g->r.cols = cols;
    g->r.width = kfi_make_divisor(plane ? cols : 1);
    g->r.channels = kfi_make_divisor(plane ? channels : 1);
    g->slots = plane ? kfi_slots(tile_cols, cols) : 0;
    g->few = 0;
    if (few) return kfi_map_few(m, g, vec, args, stream);
    s->parts = parts;
    s->stride = kfi_ceil(s->count, 4) * 4;
    s->inner = cols;
    s->tile_cols = tile_cols;
    s->tiles = tiles;
    s->slots = g->slots;
    s->partial = wanted ? workspace : nullptr;
    // The second stage of planes has one block per channel.
    if (parts * tiles > 0x7fffffff || (plane && wanted && channels > 0x7fffffff))
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld x %lld elements needs more blocks than a launch may have",
                        (long long)rows, (long long)period);
    const unsigned threads = (unsigned)kfi_ceil((kf_i64)g->bx * g->by, 32) * 32;
    result = kfi_launch(&m.name, m.kernels[(plane ? 2 : 0) + !vectors],
                        dim3((unsigned)(parts * tiles)), threads, args, stream);
    if (result != KF_SUCCESS || !wanted) return result;
    return kfi_launch_sums(&m.name, s, m.runs, m.sums,
                           parts * (plane ? s->tiles * s->slots : s->stride) * m.acc_size,
                           sum_kernels + plane, is_channel ? 2 : 1,
                           plane ? channels : kfi_ceil(s->count, 4 * KFI_SUM_LANES),
                           plane ? KFI_MAP_THREADS : KFI_SUM_LANES * KFI_SUM_GROUPS, stream);
}

#endif

#endif
