// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/group_block_host.cuh: rows that are groups of channels with inner = 1 (group norm
// NHWC), by channel blocks: host-side schedule and launches.
#ifndef KF_CORE_ROWS_GROUP_BLOCK_HOST_CUH
#define KF_CORE_ROWS_GROUP_BLOCK_HOST_CUH

#include "kf/core/rows/channel_block_host.cuh"

#ifdef KFI_HOST_PASS
// Vectors per pixel of a channel block of `segs` groups.
KF_FN kf_i64 kfi_group_width(kf_i64 segs, kf_i64 groups, kf_i64 channels, int vec)
{
    return kfi_ceil((segs < groups ? segs : groups) * channels, vec);
}
// Groups whose channels are whole vectors.
KF_FN kf_i64 kfi_group_unit(kf_i64 channels, int vec)
{
    kf_i64 unit = 1;
    while (channels * unit % vec != 0) unit *= 2;
    return unit;
}
// True if groups are processed by channel blocks instead of as rows (host.cuh). A row is then in
// many short pieces, with the other groups between them. sizes: [outer, length, groups, channels,
// inner], channels of all groups. By the sizes alone.
KF_FN KFI_SMALL bool kfi_group_takes(const kf_i64 *sizes, int vec)
{
    const kf_i64 extents[] = {sizes[0], sizes[1], sizes[3], sizes[4]};
    if (sizes[2] < 2 || sizes[3] < 1 || !kfi_all_fit(extents, 4) ||
        !kfi_divides(sizes[2], sizes[3]))
        return false; // one group is contiguous; the launcher reports wrong sizes
    const kf_i64 channels = sizes[3] / sizes[2];
    return sizes[0] > 0 && sizes[1] > 1 && sizes[4] == 1 &&
           kfi_group_width(kfi_group_unit(channels, vec), sizes[2], channels, vec) <=
               KFI_GROUP_THREADS;
}
// Number of rows (pixels) that a CUDA block of `width` vectors per pixel processes at a time.
KF_FN kf_i64 kfi_group_rows(kf_i64 width) { return KFI_GROUP_THREADS / width; }

// Chooses the groups of a channel block: about 128 bytes of each pixel, or fewer, but at least 32,
// if a cluster holds these only. Returns whether it does.
KF_FN KFI_SMALL bool kfi_group_segs(kf_i64 *segs, const kf_i64 *sizes, int vec, int in_registers,
                                    int clusters)
{
    const kf_i64 length = sizes[1], groups = sizes[2], channels = sizes[3] / groups,
                 unit = kfi_group_unit(channels, vec);
    kf_i64 most = unit;
    while (most < groups && most * channels < 8 * vec &&
           kfi_group_width(2 * most, groups, channels, vec) <= KFI_GROUP_THREADS)
        most *= 2;
    for (*segs = most;; *segs /= 2) {
        const kf_i64 rows = kfi_group_rows(kfi_group_width(*segs, groups, channels, vec));
        if (length <= rows * in_registers * clusters) return true;
        if (*segs == unit || *segs / 2 * channels < 2 * vec) break;
    }
    *segs = most;
    return false;
}
// Partitions a tensor by its shape, but not by the number of batches: a batch has the same bits
// among others.
KF_FN KFI_SMALL kfi_band_plan kfi_make_group_bands(kfi_group_bands *g, const kf_i64 *sizes, int vec,
                                                   int in_registers, int clusters)
{
    const kf_i64 outer = sizes[0], length = sizes[1], groups = sizes[2],
                 channels = sizes[3] / groups;
    kfi_bands *const b = &g->band;
    kfi_band_plan plan = {channels < vec ? KFI_BAND_EACH : KFI_BAND_TWO, 0, false, false};
    kf_i64 segs;
    plan.held = plan.cluster = kfi_group_segs(&segs, sizes, vec, in_registers, clusters);
    if (segs > groups) segs = groups;
    const kf_i64 width = kfi_group_width(segs, groups, channels, vec), most = kfi_group_rows(width),
                 bands = kfi_ceil(groups, segs);
    b->units = length * width;
    b->wide = (int)width;
    if (plan.held)
        kfi_band_spread(b, length, width, most, in_registers, clusters, bands, KFI_GROUP_BLOCKS, 4);
    else
        kfi_band_split(b, plan.form, bands, KFI_GROUP_THREADS);
    b->cols = length * channels;
    b->outer = length;
    b->channels = outer * groups;
    b->inner = channels;
    b->segs = (int)segs;
    b->width = kfi_make_divisor(width);
    b->plane = kfi_make_divisor(channels);
    b->bands = kfi_make_divisor(bands * outer);
    b->stride = kfi_ceil(b->channels, 4) * 4;
    plan.block = (int)kfi_ceil(b->threads, 32) * 32;
    for (b->team = 32; b->team > 1 && b->team * b->segs > plan.block;) b->team /= 2;
    g->bands = kfi_make_divisor(bands);
    g->parts = kfi_make_divisor(b->parts);
    g->groups = groups;
    return plan;
}
// Bytes of partial sums of the channels' gradients.
KF_FN KFI_SMALL size_t kfi_group_sum_bytes(const kfi_group_bands &g, const kf_i64 *sizes, int sums,
                                           int acc_size)
{
    return kfi_plane_workspace(sizes[0] * g.band.parts, sizes[3], 1, sums, acc_size);
}
KF_FN KFI_SMALL size_t kfi_group_needs(const kfi_group_bands &g, bool held, const kf_i64 *sizes,
                                       int sums, int values, int reduced, int acc_size)
{
    return kfi_group_sum_bytes(g, sizes, sums, acc_size) +
           kfi_band_needs(g.band, held, values, reduced, acc_size);
}
// Workspace of an op over groups, whichever schedule a call takes.
KF_FN KFI_SMALL size_t kfi_group_band_workspace(kf_i64 outer, kf_i64 length, kf_i64 groups,
                                                kf_i64 channels, kf_i64 inner, int vec,
                                                int in_registers, int sums, int values, int reduced,
                                                int acc_size)
{
    const kf_i64 sizes[] = {outer, length, groups, channels, inner};
    if (!kfi_group_takes(sizes, vec))
        return sums ? kfi_group_workspace(outer, length, groups, channels, inner, vec, sums,
                                          acc_size)
                    : 0;
    const int all[] = {KFI_BAND_CLUSTERS};
    size_t most = 0;
    for (int clusters : all) {
        kfi_group_bands g;
        const bool held = kfi_make_group_bands(&g, sizes, vec, in_registers, clusters).held;
        const size_t needs = kfi_group_needs(g, held, sizes, sums, values, reduced, acc_size);
        most = needs > most ? needs : most;
    }
    return most;
}
// True if all vectors are contiguous and aligned to 16 bytes.
KF_FN KFI_SMALL bool kfi_group_whole(const kfi_group_bands &g, const kf_i64 *sizes, int vec,
                                     const kfi_operands &operands, const char *fields,
                                     const kfi_pitch *pitches)
{
    bool whole = operands.bits % 16 == 0 && sizes[3] % vec == 0;
    for (int i = 0; i < operands.count; ++i) {
        if (fields[i] == ' ') continue;
        whole = whole && pitches[i].row == g.band.inner &&
                (pitches[i].gap + g.band.inner) % vec == 0 &&
                (sizes[0] == 1 || (g.groups * pitches[i].row + pitches[i].outer) % vec == 0);
    }
    return whole;
}

// Runs an op over groups by channel blocks (kfi_group_takes). Sets `g` and the pitches, which are
// kernel arguments.
KF_FN KFI_APART kf_result_t kfi_group_run(const kfi_band_op &m, const kf_i64 *sizes,
                                          const kfi_strides &strides, kfi_pitch *pitches,
                                          kfi_group_bands *g, void **args, kfi_sums *s,
                                          const void *const *sum_kernels, void *workspace,
                                          size_t workspace_bytes, cudaStream_t stream)
{
    kfi_shape shape = {0, 0, 0, 0, nullptr};
    kf_i64 segments[5];
    kf_result_t result = kfi_check_layout(&m.name, KFI_LAYOUT_GROUPS, sizes, &shape, segments);
    if (result != KF_SUCCESS) return result;
    kfi_operands operands;
    const kfi_levels levels = kfi_make_levels(KFI_LAYOUT_GROUPS, sizes);
    result = kfi_check_strides(&m.name, &m.arguments, &strides, &levels, &operands);
    if (result != KF_SUCCESS) return result;
    result = kfi_check_operands(&m.name, &m.arguments, &shape, &levels, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const kfi_band_plan plan =
        kfi_make_group_bands(g, sizes, m.vec, m.in_registers, kfi_row_reach().clusters);
    kfi_bands *const b = &g->band;
    result = kfi_check_workspace(
        &m.name, &m.arguments, &operands, workspace, workspace_bytes,
        kfi_group_needs(*g, plan.held, sizes, m.sums, m.values, m.reduced, m.acc_size));
    if (result != KF_SUCCESS) return result;
    for (int i = 0; i < operands.count; ++i)
        pitches[i] = kfi_make_pitch(KFI_LAYOUT_GROUPS, &levels, operands.of[i].apart);
    const kf_i64 blocks = (kf_i64)b->bands.d * b->parts;
    if (blocks > 0x7fffffff || kfi_ceil(b->channels, KFI_BAND_TOTALS / 32) > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld x %lld elements needs more blocks than a launch may have",
                        (long long)b->channels, (long long)b->cols);
    const bool wanted = m.sums > 0 && kfi_sums_wanted(s, m.runs, m.sums);
    if (m.sums) {
        s->partial = wanted ? workspace : nullptr;
        s->parts = sizes[0] * b->parts;
        s->count = sizes[3];
        s->stride = kfi_ceil(s->count, 4) * 4;
    }
    b->partial = (char *)workspace + kfi_group_sum_bytes(*g, sizes, m.sums, m.acc_size);
    b->totals = (char *)b->partial + kfi_band_partials(*b, m.values, m.acc_size);
    const unsigned shared = kfi_band_shared(m, b, plan);
    const bool whole = kfi_group_whole(*g, sizes, m.vec, operands, strides.fields, pitches);
    const int of_each = 1 + m.passes + m.stores;
    const void *const *const own = m.kernels + (2 * (plan.form - KFI_BAND_TWO) + !whole) * of_each;
    if (plan.held)
        result = kfi_launch(&m.name, own[0], dim3((unsigned)blocks), (unsigned)plan.block, args,
                            stream, true, shared, (unsigned)b->parts);
    else
        result = kfi_band_launch_passes(m, *b, own, m.kernels + 4 * of_each, (unsigned)blocks,
                                        (unsigned)plan.block, shared, args, stream);
    if (result != KF_SUCCESS || !wanted) return result;
    return kfi_launch_sums(&m.name, s, m.runs, m.sums, s->parts * s->stride * m.acc_size,
                           sum_kernels, 1, kfi_ceil(s->count, 4 * KFI_SUM_LANES),
                           KFI_SUM_LANES * KFI_SUM_GROUPS, stream);
}
#endif

#endif
