// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/host.cuh: host-side schedule and launches of the rows family.
#ifndef KF_CORE_ROWS_HOST_CUH
#define KF_CORE_ROWS_HOST_CUH

#include "kf/core/rows/args.cuh"

#ifdef KFI_HOST_PASS
// Limits of a schedule that limit_count rows in registers (RowsCuda.in_registers), packed into 32
// bits: vectors per thread; then, in warps, the maximum block size without a cluster, with a full
// cluster, and on devices without clusters.
struct kfi_row_limits {
    int vectors, threads, most, alone;
};
KF_FN kfi_row_limits kfi_unpack_row_limits(unsigned bits)
{
    const kfi_row_limits found = {(int)(bits >> 24), (int)(bits >> 16 & 255) * 32,
                                  (int)(bits >> 8 & 255) * 32, (int)(bits & 255) * 32};
    return found;
}
// Kernels of one op and dtype tuple: for each entry of `limits`, then for KFI_ROWS_REREAD,
// {aligned, unaligned}. The last entry is that of KFI_ROWS_PERSISTENT, the only one if gradients
// are summed over rows. Then the optional kernels below, in their order.
struct kfi_row {
    kfi_name name;
    kfi_arguments arguments;
    const void *const *kernels;
    const unsigned *limits = nullptr;
    int limit_count = 0;
    int vec = 0, sums = 0, acc_size = 0;
    int fixed = 0, ring = 0; // bytes of shared memory: per block and per thread
    bool per_row = false;    // an output has one value per row
    int layout = KFI_LAYOUT_ROWS;
    // Channel gradients: each plane, or slice of a group's channel, yields a partial sum for the
    // second stage.
    int plane_sums = 0;
    // Gradients per launch of the second stage; nullptr: one launch.
    const unsigned char *runs = nullptr;
    size_t least = 0;    // bytes of workspace that a call must provide even if unused
    bool strips = false; // a kernel for few rows that needs no second stage
    // KFI_ROWS_WARP: three-vector kernels, for aligned rows of a whole warp, and for unaligned rows
    // of at most a warp.
    bool warp_aligned = false, warp_unaligned = false;
    // KFI_ROWS_STAGED: long unaligned rows, staged in shared memory.
    bool staged = false;
};

// Limits set by the architectures that the kernels are compiled for.
struct kfi_reach {
    int clusters; // maximum blocks per row: more than one if all are 9.0 or later
    bool narrow;  // a block has at most 99 KiB of shared memory, as in all of 12.x
};
KF_FN kfi_reach kfi_row_reach()
{
    kfi_reach found = {kfi_overlaps() ? KFI_ROW_CLUSTER : 1, false};
#ifdef KFI_ARCHITECTURES
    const int list[] = {KFI_ARCHITECTURES};
    for (int arch : list) found.narrow = found.narrow || arch / 100 == 12;
#endif
    return found;
}
// Reduces the block size to the smaller shared memory: persistent blocks keep rows in up to 208 KiB
// of it (RowsCuda.in_registers).
KF_FN void kfi_row_fit(kfi_row_limits *limit)
{
    limit->most = (int)kfi_clamp(limit->most * 5 / 13 / 32 * 32, 32, limit->most);
    limit->threads = (int)kfi_clamp(limit->threads, 0, limit->most);
}
// Maximum block size of the persistent kernels, for rows of any length.
KF_FN KFI_SMALL int kfi_row_most(const kfi_row &m, const kfi_reach &reach)
{
    kfi_row_limits limit = kfi_unpack_row_limits(m.limits[m.limit_count - 1]);
    if (reach.clusters > 1 && reach.narrow) kfi_row_fit(&limit);
    const int most = (int)kfi_clamp(reach.clusters > 1 ? limit.most : limit.alone, 0, KFI_ROW_CAP);
    return m.sums && most < KFI_ROW_SUM_BLOCK ? KFI_ROW_SUM_BLOCK : most;
}
// Number of rows that persistent blocks process at a time: as many as fit an H200 with 512 threads
// per SM. With sums over rows also limited by shared memory. Clusters of more than two blocks leave
// one SM in eleven idle.
#define KFI_ROW_RINGS 6
KF_FN KFI_SMALL kf_i64 kfi_row_parts(const kfi_row_layout &g, int threads, bool sums)
{
    const kf_i64 blocks = KFI_MAP_SMS * kfi_clamp(512 / threads, 1, sums ? KFI_ROW_RINGS : 4);
    const kf_i64 most = (g.cluster > 2 ? blocks - blocks / 11 : blocks) / g.cluster;
    return kfi_clamp(kfi_ceil(g.rows, g.groups), 1, most > 1 ? most : 1);
}
// Chooses the schedule, from the row length only; the row count only sets the number of blocks.
// Returns an index of `limits`, limit_count if rows are not in registers; kfi_row_kernel has the
// kernel's index.
KF_FN KFI_SMALL int kfi_make_row_layout(kfi_row_layout *g, kf_i64 rows, kf_i64 cols, int vec,
                                        const unsigned *limits, int limit_count, bool sums,
                                        const kfi_reach &reach, int *threads)
{
    const kf_i64 vectors = kfi_ceil(cols, vec);
    const int clusters = reach.clusters;
    g->rows = rows;
    g->cols = cols;
    g->cluster_bits = 0;
    int found = 0;
    kfi_row_limits limit = {};
    for (; found < limit_count; ++found) {
        limit = kfi_unpack_row_limits(limits[found]);
        if (found + 1 == limit_count && clusters > 1 && reach.narrow) kfi_row_fit(&limit);
        const int most = clusters > 1 ? limit.most : limit.alone,
                  blocks = found + 1 < limit_count ? 1 : clusters;
        if (vectors <= (kf_i64)limit.vectors * blocks * kfi_clamp(most, 0, KFI_ROW_CAP)) break;
    }
    kf_i64 lanes = kfi_clamp(512, 1, KFI_ROW_CAP);
    if (found < limit_count) {
        // vectors of a full block
        const kf_i64 full = limit.vectors * kfi_clamp(limit.threads, 1, KFI_ROW_CAP);
        while (found + 1 == limit_count && 1 << g->cluster_bits < clusters &&
               vectors > full << g->cluster_bits)
            ++g->cluster_bits;
        lanes = kfi_ceil(vectors, (kf_i64)limit.vectors << g->cluster_bits);
    }
    g->cluster = 1 << g->cluster_bits;
    g->lanes = (int)kfi_ceil(lanes, 32) * 32;
    if (lanes <= 32)
        for (g->lanes = 1; g->lanes < lanes;) g->lanes *= 2;
    g->share = (int)kfi_ceil(1 << 20, g->lanes);
    const int block = sums ? KFI_ROW_SUM_BLOCK : KFI_ROW_BLOCK;
    g->groups = found < limit_count && g->cluster == 1 && g->lanes <= (sums ? block : 32)
                    ? block / g->lanes
                    : 1;
    *threads = g->lanes * g->groups;
    g->loops = (int)kfi_clamp(kfi_ceil(vectors, g->lanes), 0, 0x7fffffff);
    return found;
}
// Bytes of shared memory for a long row of an odd number of 2-byte elements, with spare vectors at
// both ends. Each row has one block.
// Minimum length in elements, maximum size in bytes. An emulation lowers both.
#ifndef KFI_ROW_LONG
#define KFI_ROW_LONG 16384
#define KFI_ROW_STAGE (208 << 10)
#endif
KF_FN kf_i64 kfi_row_stage(kf_i64 cols) { return kfi_ceil(cols + 8, 8) * 16 + 32; }
KF_FN KFI_SMALL bool kfi_row_stages(kfi_row_layout *g, kf_i64 cols, const kfi_reach &reach,
                                    int *threads)
{
    const kf_i64 bytes = kfi_row_stage(cols);
    if (reach.clusters == 1 || reach.narrow || cols % 8 == 0 || cols < KFI_ROW_LONG ||
        bytes > KFI_ROW_STAGE)
        return false;
    g->lanes = *threads = (int)kfi_clamp(2 * bytes > KFI_ROW_STAGE ? 1024 : 512, 1,
                                         KFI_ROW_CAP); // 1,024 if only one block fits
    g->groups = g->cluster = 1;
    g->share = g->cluster_bits = 0;
    g->loops = (int)kfi_ceil(cols, 8 * g->lanes);
    return true;
}
KF_FN KFI_SMALL size_t kfi_row_workspace(kf_i64 rows, kf_i64 cols, int vec, unsigned limits,
                                         int sums, int acc_size)
{
    if (!kfi_fits(rows, cols, 1)) return 0;
#ifdef KFI_DRIVER // enough for any device: a program may use several
    const kfi_reach all[] = {{1, false}, {KFI_ROW_CLUSTER, false}, {KFI_ROW_CLUSTER, true}};
#else
    const kfi_reach all[] = {kfi_row_reach()};
#endif
    kf_i64 most = 0;
    for (const kfi_reach &reach : all) {
        kfi_row_layout g;
        int threads;
        kfi_make_row_layout(&g, rows, cols, vec, &limits, 1, true, reach, &threads);
        const kf_i64 parts = kfi_row_parts(g, threads, true);
        most = parts > most ? parts : most;
    }
    return kfi_workspace((size_t)(most * kfi_ceil(cols, 4) * 4) * (size_t)(sums * acc_size));
}

KF_FN KFI_SMALL size_t kfi_plane_workspace(kf_i64 outer, kf_i64 channels, kf_i64 inner, int sums,
                                           int acc_size)
{
    return kfi_fits(outer, channels, inner)
               ? kfi_workspace((size_t)(outer * kfi_ceil(channels, 4) * 4) *
                               (size_t)(sums * acc_size))
               : 0;
}

// Partitions channel gradients into slices: one partial sum per channel and slice. The number of
// slices depends on the shape only.
KF_FN KFI_SMALL void kfi_make_segments(kfi_segments *in, const kf_i64 *sizes, int vec)
{
    const kf_i64 length = sizes[1], inner = sizes[4];
    in->parts = sizes[3];
    in->segment = kfi_make_divisor(in->parts * inner);
    in->inner = kfi_make_divisor(inner);
    in->several = length > 1;
    in->across = inner == 1;
    in->even = inner % vec == 0;
    const kf_i64 vectors = in->across ? 1 : kfi_ceil(inner, vec),
                 blocks = in->across ? kfi_ceil(in->parts, vec) : in->parts;
    in->vectors = kfi_make_divisor(vectors);
    in->units = length * vectors;
    in->slices = kfi_ceil(in->units, KFI_SLICE);
    in->items = blocks;
}
KF_FN KFI_SMALL void kfi_make_team(kfi_segments *in, int lanes)
{
    const kf_i64 team = lanes < 32 ? lanes : 32,
                 most = in->across ? in->items : team / kfi_clamp(in->units, 1, team);
    for (in->wide = 1; 2 * in->wide <= kfi_clamp(most, 1, team) && in->wide < in->items;)
        in->wide *= 2;
    const kf_i64 blocks = kfi_ceil(in->items, in->wide);
    in->blocks = kfi_make_divisor(blocks);
    in->items = blocks * in->slices;
}
KF_FN KFI_SMALL size_t kfi_group_workspace(kf_i64 outer, kf_i64 length, kf_i64 groups,
                                           kf_i64 channels, kf_i64 inner, int vec, int sums,
                                           int acc_size)
{
    const kf_i64 sizes[] = {outer, length, channels, inner};
    if (groups < 1 || !kfi_all_fit(sizes, 4) || !kfi_divides(groups, channels)) return 0;
    const kf_i64 segments[] = {outer, length, groups, channels / groups, inner};
    kfi_segments in;
    kfi_make_segments(&in, segments, vec);
    return kfi_plane_workspace(outer * in.slices, channels, 1, sums, acc_size);
}

// True if an output overlaps an input.
KF_FN KFI_SMALL bool kfi_row_in_place(const kfi_operands &all)
{
    for (int i = 0; i < all.count; ++i)
        for (int j = 0; j < all.count; ++j)
            if ((all.of[i].flags & KFI_OUT) && !(all.of[j].flags & KFI_OUT) && all.of[i].ptr &&
                all.of[i].ptr == all.of[j].ptr)
                return true;
    return false;
}
// The schedule of a kernel. found: index of the limits that kfi_make_row_layout has chosen.
KF_FN KFI_SMALL kfi_rows_schedule kfi_row_schedule(const kfi_row &m, const kfi_row_layout &g,
                                                   int found, bool staged, bool aligned)
{
    if (staged) return KFI_ROWS_STAGED;
    if (found == m.limit_count) return KFI_ROWS_REREAD;
    if (m.sums || found + 1 == m.limit_count) return KFI_ROWS_PERSISTENT;
    const bool three = !found && g.lanes <= 32 && g.cols <= 3 * g.lanes * m.vec;
    const bool warp = aligned ? m.warp_aligned && g.lanes == 32 : m.warp_unaligned;
    return three && warp ? KFI_ROWS_WARP : KFI_ROWS_REGISTERS;
}
// The index of a schedule's kernel in kfi_row's table.
KF_FN KFI_SMALL int kfi_row_kernel(const kfi_row &m, kfi_rows_schedule schedule, int found,
                                   bool aligned)
{
    const int optional = 2 * m.limit_count + 2;
    if (schedule == KFI_ROWS_STAGED) return optional + m.warp_aligned + m.warp_unaligned;
    if (schedule == KFI_ROWS_WARP) return optional + (!aligned && m.warp_aligned);
    return 2 * found + !aligned;
}
// Launches the kernel for few rows (m.strips), whose last blocks sum strips of columns.
KF_FN KFI_SMALL kf_result_t kfi_row_run_strips(const kfi_row &m, const kfi_row_layout &g,
                                               int threads, void **args, kfi_sums *s,
                                               cudaStream_t stream)
{
    const int columns = KFI_ROW_STRIP * m.vec, sums = m.sums + m.plane_sums,
              buffer = sums * KFI_SUM_GROUPS * (columns + 1) * (int)sizeof(double);
    s->partial = nullptr;
    s->parts = g.rows;
    return kfi_launch(&m.name, m.kernels[2 * m.limit_count + 2],
                      dim3((unsigned)(g.rows + kfi_ceil(g.cols, columns))), (unsigned)threads, args,
                      stream, true, (unsigned)(buffer > m.fixed ? buffer : m.fixed), 1);
}
// A call: its sizes and operands.
struct kfi_row_call {
    kfi_shape shape;
    kfi_levels levels;
    kfi_operands operands;
    kf_i64 segments[5];
    kf_i64 rows;
    kf_i64 summed; // channel gradients per tensor of planes or groups
    int sums;      // gradients that are summed over rows, planes or groups
    bool nothing;  // no element and no value per row
    bool groups;   // rows are in segments (groups or channels)
};
// Checks sizes and strides, and describes the call.
KF_FN KFI_SMALL kf_result_t kfi_row_describe(const kfi_row &m, const kf_i64 *sizes,
                                             const kfi_strides &strides, kfi_row_call *c)
{
    c->shape = {0, 0, 0, 0, nullptr};
    for (kf_i64 &size : c->segments) size = 0;
    kf_result_t result = kfi_check_layout(&m.name, m.layout, sizes, &c->shape, c->segments);
    if (result != KF_SUCCESS) return result;
    c->levels = kfi_make_levels(m.layout, sizes);
    result = kfi_check_strides(&m.name, &m.arguments, &strides, &c->levels, &c->operands);
    if (result != KF_SUCCESS) return result;
    const kf_i64 channels = c->shape.channels;
    c->rows = m.layout == KFI_LAYOUT_ROWS ? c->shape.rows : c->shape.rows * channels;
    c->nothing = c->rows == 0 || (c->shape.cols == 0 && !m.per_row);
    c->groups = m.layout >= KFI_LAYOUT_GROUPS;
    c->summed = c->groups ? channels * c->shape.parts : channels;
    c->sums = m.sums + m.plane_sums;
    return KF_SUCCESS;
}
// True if no output has an element. Sums over no rows are zeros.
KF_FN KFI_SMALL bool kfi_row_is_empty(const kfi_row &m, const kfi_row_call &c)
{
    if (m.plane_sums) return c.summed == 0;
    return m.sums ? c.shape.cols == 0 && !m.per_row : c.nothing;
}
// Bytes of workspace that the call requires. leaves: partial sums per channel.
KF_FN KFI_SMALL size_t kfi_row_needed(const kfi_row &m, const kfi_row_call &c, kf_i64 leaves)
{
    if (!c.sums) return m.least;
    if (m.plane_sums) return kfi_plane_workspace(leaves, c.summed, 1, c.sums, m.acc_size);
    return kfi_row_workspace(c.rows, c.shape.cols, m.vec, *m.limits, c.sums, m.acc_size);
}
// Sets the pitches of all operands, and whether a tensor's segments have gaps.
KF_FN KFI_SMALL void kfi_row_set_pitches(const kfi_row &m, const kfi_row_call &c,
                                         const kfi_strides &strides, kfi_pitch *pitches,
                                         kfi_segments *in)
{
    if (in) in->gaps = 0;
    for (int i = 0; i < c.operands.count; ++i) {
        pitches[i] = kfi_make_pitch(m.layout, &c.levels, c.operands.of[i].apart);
        if (in && strides.fields[i] != ' ') in->gaps |= pitches[i].gap != 0;
    }
}
// How a call runs, beside its layout.
struct kfi_row_plan {
    int found; // index of the limits; limit_count: rows are not in registers
    int threads;
    bool staged; // rows are staged in shared memory
    bool whole;  // all vectors are aligned and within one row
    bool persistent;
    kfi_rows_schedule schedule;
    kf_i64 parts; // groups of rows, one per block or cluster at a time
};
// Chooses the layout and the schedule. in: segments of rows in groups, or nullptr.
KF_FN KFI_SMALL kfi_row_plan kfi_make_row_plan(const kfi_row &m, const kfi_row_call &c,
                                               const kfi_reach &reach, kfi_row_layout *g,
                                               kfi_segments *in)
{
    kfi_row_plan plan;
    const kf_i64 cols = c.shape.cols;
    plan.found = kfi_make_row_layout(g, c.rows, cols, m.vec, m.limits, m.limit_count, m.sums > 0,
                                     reach, &plan.threads);
    plan.staged = m.staged && kfi_row_stages(g, cols, reach, &plan.threads);
    if (plan.staged) plan.found = m.limit_count;
    // A vector may span more than two channels.
    const bool narrow = in && c.segments[4] > 1 && c.segments[4] < m.vec;
    plan.whole = c.operands.bits % 16 == 0 && c.operands.steps % m.vec == 0 &&
                 (in ? (kf_i64)in->segment.d : cols) % m.vec == 0 && !narrow;
    if (in) kfi_make_team(in, g->lanes);
    plan.schedule = kfi_row_schedule(m, *g, plan.found, plan.staged, plan.whole);
    plan.persistent = m.sums || plan.schedule == KFI_ROWS_PERSISTENT;
    plan.parts =
        plan.persistent ? kfi_row_parts(*g, plan.threads, m.sums > 0) : kfi_ceil(c.rows, g->groups);
    return plan;
}
// True for few rows of one block each: sums over rows take place in the same launch, with the same
// bits as in two launches. Not in place: blocks of columns read the inputs concurrently with blocks
// of rows.
KF_FN KFI_SMALL bool kfi_row_takes_strips(const kfi_row &m, const kfi_row_call &c,
                                          const kfi_row_layout &g, const kfi_row_plan &plan)
{
    return m.strips && !plan.found && plan.whole && g.cluster == 1 && c.rows > 0 &&
           c.rows <= KFI_SUM_GROUPS && g.groups == 1 &&
           kfi_row_parts(g, plan.threads, true) == c.rows && !kfi_row_in_place(c.operands);
}
// Launches the kernel of the rows.
KF_FN KFI_SMALL kf_result_t kfi_row_launch(const kfi_row &m, const kfi_row_layout &g,
                                           const kfi_row_plan &plan, const kfi_reach &reach,
                                           void **args, cudaStream_t stream)
{
    const int ring = plan.found + 1 == m.limit_count ? m.ring : 0;
    const kf_i64 shared = plan.staged ? kfi_row_stage(g.cols) : ring * plan.threads,
                 most = plan.staged ? KFI_ROW_STAGE : ring * kfi_row_most(m, reach);
    return kfi_launch(&m.name, m.kernels[kfi_row_kernel(m, plan.schedule, plan.found, plan.whole)],
                      dim3((unsigned)(plan.parts * g.cluster)), (unsigned)plan.threads, args,
                      stream, !plan.persistent, (unsigned)(m.fixed + shared), (unsigned)g.cluster,
                      (unsigned)(m.fixed + most));
}
// Runs an op over rows. Sets `g` and the pitches, which are kernel arguments.
KF_FN KFI_APART kf_result_t kfi_row_run(const kfi_row &m, const kf_i64 *sizes,
                                        const kfi_strides &strides, kfi_pitch *pitches,
                                        kfi_row_layout *g, void **args, kfi_sums *s,
                                        const void *const *sum_kernels, void *workspace,
                                        size_t workspace_bytes, cudaStream_t stream)
{
    kfi_row_call c;
    kf_result_t result = kfi_row_describe(m, sizes, strides, &c);
    if (result != KF_SUCCESS || kfi_row_is_empty(m, c)) return result;
    result = kfi_check_operands(&m.name, &m.arguments, &c.shape, &c.levels, &c.operands);
    if (result != KF_SUCCESS || !c.operands.wanted) return result;
    const bool wanted = kfi_sums_wanted(s, m.runs, c.sums);
    kfi_segments *const in = c.groups ? &((kfi_groups *)g)->in : nullptr;
    if (in) kfi_make_segments(in, c.segments, m.vec);
    const kf_i64 leaves = in ? c.shape.rows * in->slices : c.shape.rows; // per channel
    result = kfi_check_workspace(&m.name, &m.arguments, &c.operands, workspace, workspace_bytes,
                                 kfi_row_needed(m, c, leaves));
    if (result != KF_SUCCESS) return result;
    kfi_row_set_pitches(m, c, strides, pitches, in);
    const kfi_reach reach = kfi_row_reach();
    const kfi_row_plan plan = kfi_make_row_plan(m, c, reach, g, in);
    if (plan.parts * g->cluster > 0x7fffffff || g->loops == 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld x %lld elements needs more blocks than a launch may have",
                        (long long)c.rows, (long long)c.shape.cols);
    if (wanted && kfi_row_takes_strips(m, c, *g, plan))
        return kfi_row_run_strips(m, *g, plan.threads, args, s, stream);
    if (c.sums) {
        s->partial = wanted ? workspace : nullptr;
        s->parts = !m.plane_sums ? plan.parts : c.nothing ? 0 : leaves;
        s->count = m.plane_sums ? c.summed : c.shape.cols;
        s->stride = kfi_ceil(s->count, 4) * 4;
    }
    if (m.layout != KFI_LAYOUT_ROWS) g->channels = kfi_make_divisor(c.shape.channels);
    if (m.layout == KFI_LAYOUT_HEADS) g->queries = kfi_make_divisor(sizes[2]);
    if (!c.nothing || m.sums) result = kfi_row_launch(m, *g, plan, reach, args, stream);
    // A plane of one batch has stored its channel's gradient itself.
    if (result != KF_SUCCESS || !wanted || (m.plane_sums && !in && s->parts == 1 && !m.runs))
        return result;
    return kfi_launch_sums(&m.name, s, m.runs, c.sums, s->parts * s->stride * m.acc_size,
                           sum_kernels, 1, kfi_ceil(s->count, 4 * KFI_SUM_LANES),
                           KFI_SUM_LANES * KFI_SUM_GROUPS, stream);
}
#endif

#endif
