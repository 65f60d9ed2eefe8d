// SPDX-License-Identifier: Apache-2.0
// kf/core/reduction/host.cuh: argument checks, launch configuration and split of reductions over an
// axis. Included by kf/core/reduction/reduction.cuh when host code is compiled.
#ifndef KF_CORE_REDUCTION_HOST_CUH
#define KF_CORE_REDUCTION_HOST_CUH

#include "kf/core/reduction/args.cuh"

#ifdef KFI_HOST_PASS
struct kfi_reduce_op {
    kfi_name name;
    kfi_arguments arguments;
    const void *const *kernels; // {whole, single}, {flat}
    int passes = 0, vec = 0, acc_size = 0;
    int most = 0, all = 0; // reductions per pass at most, and in all passes
    bool bwd = false;
    bool refuses = false; // an empty axis is an error
    bool again = false;   // several sweeps read the same tensor
    // Maximum vectors per thread if the result does not depend on the order of the axis; otherwise
    // 0.
    int longest = 0;
    bool flat = false; // a separate kernel for contiguous axes of aligned vectors exists
    int ahead = 0;     // vectors per chunk, if several warps may share an axis; otherwise 0
};
#ifndef KFI_REDUCE_LEAST   // the emulation sets less, to reach every kernel with short tensors
#define KFI_REDUCE_LEAST 8 // minimum vectors per thread of a part
// Vectors per thread up to which an axis is not split: the launch that combines the parts would
// take longer than the split saves.
#define KFI_REDUCE_WHOLE 64
#endif
#ifndef KFI_REDUCE_TILE // set only for tuning
// log2 of the threads along inner: so few that all SMs get blocks without a split.
#define KFI_REDUCE_TILE 3
// Vectors per thread: as many as are in flight at a time (ReductionKernel.ahead).
#define KFI_REDUCE_AHEAD 8
#ifndef KFI_REDUCE_EACH
#define KFI_REDUCE_EACH 4 // vectors per thread of a kernel without a reduction
#endif
#define KFI_REDUCE_FULL ((kf_i64)KFI_MAP_SMS * 1024) // threads that fill the device
#define KFI_REDUCE_FEW ((kf_i64)KFI_MAP_SMS * 3)     // minimum resident blocks of the device
// Vectors up to which a cluster is faster than a second launch with more blocks.
#define KFI_REDUCE_CLUSTER_VECTORS ((kf_i64)4 << 20)
#define KFI_REDUCE_FEW_AXES ((kf_i64)KFI_MAP_SMS * 4) // at most one axis per warp scheduler
#endif

KF_FN unsigned kfi_reduce_tiles(kf_i64 vectors, int x)
{
    const kf_i64 tiles = kfi_ceil(vectors, (kf_i64)1 << x);
    return tiles > 0x7fffffff ? 0x7fffffff : (unsigned)tiles;
}
// Returns ceil(log2(n)), at most `most`.
KF_FN int kfi_log_up(kf_i64 n, int most)
{
    int log = 0;
    while (log < most && ((kf_i64)1 << log) < n) ++log;
    return log;
}
// Chooses threads and parts from axis and inner alone. passes: number of reduction passes. again: a
// later pass or the stores read what an earlier pass has read.
KF_FN KFI_SMALL void kfi_reduce_plan(kfi_reduce *g, kf_i64 outer, kf_i64 axis, kf_i64 inner,
                                     int vec, bool again, int passes)
{
    const int all = kfi_log_up(KFI_REDUCE_THREADS, 10);
    kf_i64 parts = 1, unit = vec;
    g->outer = outer;
    g->axis = g->count = axis;
    g->inner = inner;
    g->results = outer * inner;
    g->flat = inner == 1;
    g->tiles = 1;
    g->cluster = g->index_32 = 0;
    g->stage = KFI_REDUCE_ALL;
    if (passes == 0) {
        const kf_i64 vectors = kfi_ceil(inner == 1 ? axis : inner, vec);
        g->x = kfi_log_up(inner == 1 ? kfi_ceil(vectors, KFI_REDUCE_EACH) : vectors, all);
        g->y = inner == 1 ? 0 : kfi_log_up(kfi_ceil(axis, KFI_REDUCE_EACH), all - g->x);
        if (inner > 1) g->tiles = kfi_reduce_tiles(vectors, g->x);
        unit = inner == 1 ? (kf_i64)vec << g->x : (kf_i64)1 << g->y;
        parts = kfi_ceil(axis, unit * KFI_REDUCE_EACH);
    } else if (g->flat) {
        // One warp if it suffices, or if the L1 cache holds what is read again. Otherwise threads
        // keep their vectors in registers.
        const kf_i64 vectors = kfi_ceil(axis, vec);
        g->x = kfi_log_up(kfi_ceil(vectors, KFI_REDUCE_AHEAD),
                          vectors > (again ? 512 : 1024) ? all : 5);
        g->y = 0;
        if (vectors > KFI_REDUCE_THREADS * KFI_REDUCE_WHOLE)
            parts =
                kfi_clamp(vectors / (KFI_REDUCE_THREADS * KFI_REDUCE_LEAST), 1, 16 * KFI_MAP_SMS);
        unit = (kf_i64)KFI_REDUCE_THREADS * vec;
    } else {
        const kf_i64 vectors = kfi_ceil(inner, vec);
        g->x = kfi_log_up(vectors, KFI_REDUCE_TILE);
        g->y = kfi_log_up(kfi_ceil(axis, KFI_REDUCE_AHEAD), all - g->x);
        const kf_i64 tiles = g->tiles = kfi_reduce_tiles(vectors, g->x);
        unit = (kf_i64)1 << g->y;
        if (axis > unit * KFI_REDUCE_WHOLE)
            parts = kfi_clamp(axis / (unit * KFI_REDUCE_LEAST), 1,
                              kfi_ceil(8 * KFI_MAP_SMS, tiles < 1 ? 1 : tiles));
    }
    g->length = kfi_ceil(kfi_ceil(axis, parts), unit) * unit;
    g->parts = g->length > 0 ? (unsigned)kfi_ceil(axis, g->length) : 1;
    if (g->parts == 1) g->length = axis;
}
// Argmax, argmin: uses fewer threads per axis if the axes fill the device, which makes the
// combination of threads cheaper.
KF_FN KFI_SMALL void kfi_reduce_use_fewer_threads(kfi_reduce *g, int vec, int longest)
{
    const kf_i64 vectors = kfi_ceil(g->axis, vec);
    while (g->flat && g->parts == 1 && g->x > 5 && vectors <= (kf_i64)longest << (g->x - 1) &&
           g->outer >= KFI_REDUCE_FULL >> (g->x - 1))
        --g->x;
    if (!longest || g->parts == 1) return;
    // No more parts than resident blocks: each part ends with a combination.
    const kf_i64 of_part = kfi_ceil(g->outer, KFI_REDUCE_THREADS >> (g->x + g->y)) * g->tiles,
                 unit = g->flat ? (kf_i64)KFI_REDUCE_THREADS * vec : (kf_i64)1 << g->y;
    const kf_i64 parts = kfi_clamp(KFI_REDUCE_FEW / of_part, 2, g->parts);
    g->length = kfi_ceil(kfi_ceil(g->axis, parts), unit) * unit;
    g->parts = (unsigned)kfi_ceil(g->axis, g->length);
}
// Few axes of one warp each: uses one warp per chunk of an axis. Chunks are added in the order of
// one warp, so the bits are the same.
KF_FN KFI_SMALL void kfi_reduce_use_more_warps(kfi_reduce *g, int vec, int ahead)
{
    if (!ahead || !g->flat || g->parts > 1 || g->x != 5 || g->axis % vec != 0 ||
        g->outer > KFI_REDUCE_FEW_AXES)
        return;
    const kf_i64 chunks = kfi_ceil(g->axis, 32 * vec * ahead);
    if (chunks << 5 <= KFI_REDUCE_THREADS) g->y = kfi_log_up(chunks, 5);
}
// Columns of a long axis: uses one launch with clusters if these fill the device. Depends on axis
// and inner alone.
KF_FN KFI_SMALL void kfi_reduce_use_cluster(kfi_reduce *g, int vec)
{
    const kf_i64 vectors = kfi_ceil(g->inner, vec);
    if (g->flat || g->parts == 1 || !kfi_overlaps() ||
        g->axis > KFI_REDUCE_CLUSTER_VECTORS / vectors)
        return;
    const int x = kfi_log_up(
        vectors, kfi_ceil(vectors, 1 << KFI_REDUCE_TILE) << KFI_REDUCE_CLUSTER < 2 * KFI_MAP_SMS
                     ? KFI_REDUCE_TILE - 1
                     : KFI_REDUCE_TILE);
    const kf_i64 tiles = kfi_reduce_tiles(vectors, x);
    int bits = KFI_REDUCE_CLUSTER;
    while (bits > 0 && tiles << bits > 3 * KFI_MAP_SMS) --bits;
    if (bits == 0 || tiles << bits < KFI_MAP_SMS / 2) return;
    g->x = x;
    g->y = kfi_log_up(KFI_REDUCE_THREADS, 10) - x;
    g->tiles = (unsigned)tiles;
    g->cluster = bits;
    g->parts = 1u << bits;
    g->length = kfi_ceil(kfi_ceil(g->axis, g->parts), (kf_i64)1 << g->y) << g->y;
}
KF_FN KFI_SMALL size_t kfi_reduce_workspace(kf_i64 outer, kf_i64 axis, kf_i64 inner, int vec,
                                            bool again, int most, int all, int acc_size)
{
    if (!kfi_fits(outer, axis, inner)) return 0;
    kfi_reduce g;
    kfi_reduce_plan(&g, outer, axis, inner, vec, again, 1);
    return g.parts > 1 ? kfi_workspace((size_t)g.results * ((size_t)most * g.parts + (size_t)all) *
                                       (size_t)acc_size)
                       : 0;
}
KF_FN KFI_SMALL kf_result_t kfi_reduce_launch(const kfi_reduce_op &m, const kfi_reduce &g,
                                              bool whole, void **args, cudaStream_t stream)
{
    // Threads of a block that share a result.
    const int own = 1 << (g.x + g.y > 5 ? g.x + g.y : 5);
    int threads = g.flat || g.stage < 0 || !(g.stage & 1) ? KFI_REDUCE_THREADS : own;
    // Few axes: one block each, to use more SMs. (The argmax kernel has a fixed block size.)
    while (!m.longest && g.stage < 0 && threads > own &&
           kfi_ceil(g.outer, threads >> (g.x + g.y)) * g.parts * g.tiles <= KFI_MAP_SMS)
        threads /= 2;
    const double blocks = (double)kfi_ceil(g.outer, threads >> (g.x + g.y)) * g.parts * g.tiles;
    if (blocks > 2147483647.0)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld x %lld results needs more blocks than a launch may have",
                        (long long)g.outer, (long long)g.inner);
    const int values = m.longest || !m.passes
                           ? 0
                           : (g.flat ? threads : threads * m.vec) +
                                 (g.cluster > 0 ? m.vec << (g.x + g.cluster) : 0);
    return kfi_launch(&m.name,
                      m.kernels[!whole             ? 1
                                : m.flat && g.flat ? 2
                                                   : 0],
                      dim3((unsigned)blocks), (unsigned)threads, args, stream, true,
                      (unsigned)(values * m.acc_size), 1u << g.cluster);
}

// Runs a reduction. args: the kernel's arguments, which include g and the pitches.
KF_FN kf_result_t kfi_reduce_run(const kfi_reduce_op &m, kf_i64 outer, kf_i64 axis, kf_i64 inner,
                                 const kfi_strides &strides, kfi_pitch *pitches, kfi_reduce *g,
                                 void **args, void *workspace, size_t workspace_bytes,
                                 cudaStream_t stream)
{
    const kf_i64 sizes[] = {outer, axis, inner};
    kf_result_t result = kfi_check_sizes(&m.name, "outer axis inner", sizes, 3);
    kfi_operands operands;
    const kfi_levels levels = kfi_make_axis(outer, axis, inner);
    if (result == KF_SUCCESS)
        result = kfi_check_axis(&m.name, &m.arguments, &strides, &levels, inner == 1, &operands);
    if (result != KF_SUCCESS || outer == 0 || inner == 0 || (axis == 0 && m.bwd)) return result;
    if (axis == 0 && m.refuses)
        return kfi_fail(KF_ERROR_INVALID_SIZE, &m.name, "axis",
                        "is 0, expected 1 or more: the result has no value of no elements");
    const kfi_shape shape = {outer * inner, 0, axis, 0, nullptr};
    result = kfi_check_operands(&m.name, &m.arguments, &shape, &levels, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    kfi_reduce_plan(g, outer, axis, inner, m.vec, m.again, m.passes);
    kfi_reduce_use_fewer_threads(g, m.vec, m.longest);
    const kfi_reduce plan = *g;
    const size_t needed = m.passes ? kfi_reduce_workspace(outer, axis, inner, m.vec, m.again,
                                                          m.most, m.all, m.acc_size)
                                   : 0;
    result =
        kfi_check_workspace(&m.name, &m.arguments, &operands, workspace, workspace_bytes, needed);
    if (result != KF_SUCCESS) return result;
    for (int i = 0; i < operands.count; ++i) pitches[i] = operands.of[i].at;
    const bool whole = operands.bits % 16 == 0 && operands.steps % m.vec == 0;
    if (m.passes && m.ahead) {
        kfi_reduce_use_more_warps(g, m.vec, m.ahead);
        kfi_reduce_use_cluster(g, m.vec);
    }
    if (g->parts == 1 || g->cluster > 0) {
        const kf_i64 most = 1 << 29;
        g->index_32 = m.ahead && (g->flat ? axis % m.vec == 0 && outer < most : outer == 1) &&
                      axis < most && inner < most;
        return kfi_reduce_launch(m, *g, whole, args, stream);
    }
    g->partial = workspace;
    g->done = needed ? (char *)workspace +
                           (size_t)plan.results * (size_t)m.most * plan.parts * (size_t)m.acc_size
                     : nullptr;
    for (int pass = 0; needed && pass < m.passes; ++pass) {
        g->stage = 2 * pass;
        result = kfi_reduce_launch(m, *g, whole, args, stream);
        if (result != KF_SUCCESS) return result;
        // The order of combination depends on the number of parts, not on the number of results.
        const kfi_reduce own = *g;
        g->outer = 1;
        g->axis = g->length = plan.parts;
        g->inner = plan.results;
        g->flat = 0;
        g->y = kfi_log_up(kfi_ceil(plan.parts, 4), kfi_log_up(KFI_REDUCE_THREADS, 10));
        g->x = (int)kfi_clamp(kfi_log_up(KFI_REDUCE_THREADS, 10) - g->y, 0, 5);
        g->tiles = (unsigned)kfi_ceil(kfi_ceil(plan.results, m.vec), (kf_i64)1 << g->x);
        g->parts = 1;
        g->stage = 2 * pass + 1;
        for (int i = 0; i < operands.count; ++i)
            pitches[i].row = plan.results; // partial results are contiguous, outer = 1
        result = kfi_reduce_launch(m, *g, false, args, stream);
        *g = own;
        for (int i = 0; i < operands.count; ++i) pitches[i] = operands.of[i].at;
        if (result != KF_SUCCESS) return result;
    }
    if (needed && !m.bwd) return KF_SUCCESS; // the last combination has stored the results
    g->stage = needed ? 2 * m.passes : KFI_REDUCE_ALL;
    return kfi_reduce_launch(m, *g, whole, args, stream);
}
#endif

#endif
