// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/channel_block_host.cuh: ops over channels by channel blocks: host-side schedule and
// launches.
#ifndef KF_CORE_ROWS_CHANNEL_BLOCK_HOST_CUH
#define KF_CORE_ROWS_CHANNEL_BLOCK_HOST_CUH

#include "kf/core/rows/host.cuh"
#include "kf/core/rows/channel_block_args.cuh"

#ifdef KFI_HOST_PASS
// Kernels of one op and dtype tuple: per form and {aligned, element by element}: one that holds its
// channel block, one per pass, and, if elements are stored, the last one. Then one per pass that
// adds up the parts. Then, for ops over channels, those whose clusters hold a channel block, for
// the forms TWO and EACH.
struct kfi_band_op {
    kfi_name name;
    kfi_arguments arguments;
    const void *const *kernels;
    int vec = 0, in_registers = 0; // vectors that a thread holds
    // number of passes; maximum number of values per pass; reductions in total
    int passes = 0, values = 0, reduced = 0;
    // kept: values of all passes in shared memory. sets: values per thread and channel that are
    // reduced together.
    int kept = 0, sets = 0;
    int acc_size = 0;
    bool stores = false, per_row = false;
    // Groups: gradients of channels, and those per launch of the second stage; nullptr: one launch.
    int sums = 0;
    const unsigned char *runs = nullptr;
};

KF_FN KFI_SMALL kf_i64 kfi_band_rounds(kf_i64 bands, kf_i64 units, kf_i64 threads, kf_i64 most)
{
    while (threads * most < units && bands * kfi_ceil(units, threads * most) > 1 << 20)
        most *= 2; // within the limit of a launch
    while (most > 4 && bands * kfi_ceil(units, threads * most) < KFI_BAND_BLOCKS) most /= 2;
    return most;
}
// How channel blocks run.
struct kfi_band_plan {
    int form, block; // threads per CUDA block
    bool held;       // a CUDA block or a cluster holds a channel block; otherwise a launch per pass
    bool cluster;    // a cluster holds it
};
// Spreads a channel block that a cluster holds over its blocks: `length` rows of `width` vectors,
// of which a block has up to `most` at a time. The cluster grows while there are fewer than
// `enough` CUDA blocks and each thread keeps `keep` vectors.
KF_FN KFI_SMALL void kfi_band_spread(kfi_bands *g, kf_i64 length, kf_i64 width, kf_i64 most,
                                     int in_registers, int clusters, kf_i64 bands, kf_i64 enough,
                                     int keep)
{
    kf_i64 cluster = 1;
    while (length > most * in_registers * cluster) cluster *= 2;
    while (2 * cluster <= clusters && bands * cluster < enough &&
           length >= 2 * keep * most * cluster)
        cluster *= 2;
    const kf_i64 own = kfi_ceil(length, cluster); // rows of a CUDA block
    g->rows = (int)kfi_ceil(own, kfi_ceil(own, most));
    g->threads = (int)(g->rows * width);
    g->share = own * width;
    g->parts = cluster;
}
// Chooses the channels of a channel block that a cluster holds: the most, up to `segs`, of which
// clusters fill half of a large GPU; else the fewest, of at least 32 bytes of each row. Returns
// false if no cluster holds one.
KF_FN KFI_SMALL bool kfi_band_cluster_segs(kf_i64 *segs, const kf_i64 *sizes, int vec,
                                           int in_registers, int clusters, kf_i64 step)
{
    const kf_i64 outer = sizes[0], channels = sizes[1], inner = sizes[2];
    kf_i64 found = 0;
    for (kf_i64 most = *segs; clusters > 1; most = kfi_ceil(most, 2 * step) * step) {
        const kf_i64 width = kfi_ceil(most * inner, vec);
        if (outer <= KFI_BAND_THREADS / width * in_registers * clusters) {
            found = most;
            if (2 * kfi_ceil(channels, most) * clusters >= KFI_BAND_BLOCKS) break;
        }
        if (most <= step || width < 4) break;
    }
    if (found) *segs = found;
    return found > 0;
}
// Partitions a channel block that one CUDA block holds: the fewest threads, or more if there are
// few channel blocks.
KF_FN KFI_SMALL void kfi_band_hold(kfi_bands *g, kf_i64 bands, kf_i64 rows, int in_registers)
{
    const kf_i64 spread =
        kfi_clamp((kf_i64)KFI_BAND_BLOCKS * 256 / (bands > 0 ? bands : 1), 1, g->units);
    const kf_i64 least = kfi_ceil(g->units, in_registers),
                 threads = kfi_ceil(least > spread ? least : spread, 32) * 32;
    g->rows = (int)kfi_clamp(kfi_ceil(threads, g->wide), 1, rows);
    g->threads = g->rows * g->wide;
    g->share = g->units;
    g->parts = 1;
}
// Partitions a channel block that several CUDA blocks share, with a launch per pass. Smaller
// blocks than `most` threads: one starts when another one ends.
KF_FN KFI_SMALL void kfi_band_split(kfi_bands *g, int form, kf_i64 bands, kf_i64 most)
{
    most = 2 * g->wide <= most && form != KFI_BAND_EACH ? most / 2 : most;
    g->threads = (int)(most / g->wide * g->wide);
    g->rows = g->threads / g->wide;
    // Limits the number of values that a thread sums per channel, for accuracy.
    g->share =
        g->threads * kfi_band_rounds(bands, g->units, g->threads, form == KFI_BAND_EACH ? 64 : 16);
    if (g->share >= g->units)
        // At least two parts: one part would mean that a block holds it.
        g->share = g->threads * kfi_ceil(g->units, 2 * g->threads);
    g->parts = kfi_ceil(g->units, g->share);
}
// Partitions a tensor, by its shape and the availability of clusters.
KF_FN KFI_SMALL kfi_band_plan kfi_make_bands(kfi_bands *g, const kf_i64 *sizes, int vec,
                                             int in_registers, int clusters)
{
    const kf_i64 outer = sizes[0], channels = sizes[1], inner = sizes[2] > 0 ? sizes[2] : 1;
    kf_i64 unit = 1; // channels that form whole vectors
    while (inner * unit % vec != 0) unit *= 2;
    int form = unit == 1 ? KFI_BAND_ONE : inner < vec ? KFI_BAND_EACH : KFI_BAND_TWO;
    if (form == KFI_BAND_TWO && unit * inner / vec > KFI_BAND_THREADS) form = KFI_BAND_ONE;
    const kf_i64 all = channels > 0 ? channels : 1;
    kf_i64 segs = form == KFI_BAND_ONE   ? 1
                  : form == KFI_BAND_TWO ? unit
                                         : vec * kfi_clamp(8 / inner, 1, 8);
    segs = kfi_clamp(segs, 1, all);
    const kf_i64 most = form == KFI_BAND_EACH ? KFI_BAND_EACH_THREADS : KFI_BAND_THREADS;
    kf_i64 width = kfi_ceil(segs * inner, vec);
    g->cols = outer * sizes[2];
    g->units = g->cols > 0 ? outer * width : 0;
    g->wide = form == KFI_BAND_ONE ? 1 : (int)width;
    kfi_band_plan plan = {form, 0, g->units <= in_registers * (most / g->wide) * g->wide, false};
    const kf_i64 step = form == KFI_BAND_EACH ? vec : unit;
    if (!plan.held && form != KFI_BAND_ONE)
        plan.cluster = kfi_band_cluster_segs(&segs, sizes, vec, in_registers, clusters, step);
    const kf_i64 bands = kfi_ceil(channels, segs);
    if (plan.cluster) {
        plan.held = true;
        width = kfi_ceil(segs * inner, vec);
        g->units = outer * width;
        g->wide = (int)width;
        kfi_band_spread(g, outer, width, KFI_BAND_THREADS / width, in_registers, clusters, bands,
                        KFI_BAND_BLOCKS, 2);
    } else if (plan.held) {
        kfi_band_hold(g, bands, most / g->wide, in_registers);
    } else {
        kfi_band_split(g, form, bands, most);
    }
    g->outer = outer;
    g->channels = channels;
    g->inner = inner;
    g->segs = (int)segs;
    g->width = kfi_make_divisor(width);
    g->plane = kfi_make_divisor(inner);
    g->bands = kfi_make_divisor(bands > 0 ? bands : 1);
    g->stride = kfi_ceil(channels, 4) * 4;
    plan.block = (int)kfi_ceil(g->threads, 32) * 32;
    for (g->team = 32; g->team > 1 && g->team * g->segs > plan.block;) g->team /= 2;
    return plan;
}
KF_FN KFI_SMALL size_t kfi_band_partials(const kfi_bands &g, int values, int acc_size)
{
    return (size_t)kfi_ceil(g.parts * g.channels * values, 4) * 4 * (size_t)acc_size;
}
KF_FN KFI_SMALL size_t kfi_band_needs(const kfi_bands &g, bool held, int values, int reduced,
                                      int acc_size)
{
    return held ? 0
                : kfi_workspace(kfi_band_partials(g, values, acc_size) +
                                (size_t)(g.stride * reduced * acc_size));
}
// Largest size of a cluster. A program that loads kernels by the driver may use several devices,
// for each of which a workspace is to be enough: with or without clusters.
#ifdef KFI_DRIVER
#define KFI_BAND_CLUSTERS 1, KFI_ROW_CLUSTER
#else
#define KFI_BAND_CLUSTERS kfi_row_reach().clusters
#endif
KF_FN KFI_SMALL size_t kfi_band_workspace(kf_i64 outer, kf_i64 channels, kf_i64 inner, int vec,
                                          int in_registers, int values, int reduced, int acc_size)
{
    if (!kfi_fits(outer, channels, inner)) return 0;
    const kf_i64 sizes[] = {outer, channels, inner};
    const int all[] = {KFI_BAND_CLUSTERS};
    size_t most = 0;
    for (int clusters : all) {
        kfi_bands g;
        const bool held = kfi_make_bands(&g, sizes, vec, in_registers, clusters).held;
        const size_t needs = kfi_band_needs(g, held, values, reduced, acc_size);
        most = needs > most ? needs : most;
    }
    return most;
}
// True if all vectors are contiguous and aligned to 16 bytes.
KF_FN KFI_SMALL bool kfi_band_whole(const kfi_bands &g, int form, int vec,
                                    const kfi_operands &operands, const char *fields,
                                    const kfi_pitch *pitches)
{
    bool whole = operands.bits % 16 == 0 &&
                 (form == KFI_BAND_ONE ? g.inner : g.channels * g.inner) % vec == 0;
    for (int i = 0; i < operands.count; ++i) {
        if (fields[i] == ' ') continue;
        if (g.channels > 1)
            whole = whole &&
                    (form == KFI_BAND_ONE ? pitches[i].row % vec == 0 : pitches[i].row == g.inner);
        if (g.outer > 1) whole = whole && (pitches[i].gap + g.inner) % vec == 0;
    }
    return whole;
}

// True if channels are processed as rows in registers (host.cuh) instead of by channel blocks.
// They are then read once, in one launch. This is faster for planes of whole vectors, small
// tensors, and very short channels.
KF_FN KFI_SMALL bool kfi_band_as_rows(const kfi_row &m, const kf_i64 *sizes, int in_registers)
{
    if (!kfi_all_fit(sizes, 3)) return false; // the launcher reports it
    const kf_i64 channels = sizes[1], inner = sizes[2], cols = sizes[0] * inner;
    const bool whole = inner % m.vec == 0, few_elements = channels * cols <= KFI_BAND_SMALL;
    // So many channels that CUDA blocks of a channel block have little work.
    const bool narrow = cols <= 128 && inner > 1 && inner < m.vec;
    if (channels < KFI_BAND_CHANNELS || !(whole || few_elements || narrow)) return false;
    const kfi_reach reach = kfi_row_reach();
    kfi_bands bands;
    // A cluster also reads NHWC once, in one launch, by whole vectors.
    if (inner == 1 && sizes[0] >= KFI_BAND_LONG &&
        kfi_make_bands(&bands, sizes, m.vec, in_registers, reach.clusters).cluster)
        return false;
    kfi_row_layout g;
    int threads;
    return kfi_make_row_layout(&g, channels, cols, m.vec, m.limits, m.limit_count, false, reach,
                               &threads) < m.limit_count;
}

// Sets the values before the totals in shared memory. Returns its bytes.
KF_FN KFI_SMALL unsigned kfi_band_shared(const kfi_band_op &m, kfi_bands *g,
                                         const kfi_band_plan &plan)
{
    const int slots = plan.form == KFI_BAND_TWO ? 2 : m.vec,
              sets = m.sums && m.sets * slots < m.vec ? m.vec : m.sets * slots;
    g->room = plan.form == KFI_BAND_ONE ? 96 : plan.block * sets;
    const int kept = plan.cluster ? m.kept * (1 + (int)g->parts) : m.kept; // and of the cluster
    return (unsigned)((g->room + kept * g->segs) * m.acc_size);
}
// Launches the passes of channel blocks that several CUDA blocks share, and the results. own: the
// kernels of the form, of which the first holds its channel block. totals: those that add up parts.
KF_FN KFI_SMALL kf_result_t kfi_band_launch_passes(const kfi_band_op &m, const kfi_bands &g,
                                                   const void *const *own,
                                                   const void *const *totals, unsigned blocks,
                                                   unsigned block, unsigned shared, void **args,
                                                   cudaStream_t stream)
{
    const unsigned rows = (unsigned)kfi_ceil(g.channels, KFI_BAND_TOTALS / 32);
    for (int p = 0; p < m.passes; ++p) {
        kf_result_t result =
            kfi_launch(&m.name, own[1 + p], dim3(blocks), block, args, stream, true, shared);
        if (result == KF_SUCCESS)
            result = kfi_launch(&m.name, totals[p], dim3(rows), KFI_BAND_TOTALS, args, stream);
        if (result != KF_SUCCESS) return result;
    }
    if (!m.stores) return KF_SUCCESS;
    return kfi_launch(&m.name, own[1 + m.passes], dim3(blocks), block, args, stream, true, shared);
}

// Runs an op over channels. Sets `g` and the pitches, which are kernel arguments.
KF_FN KFI_APART kf_result_t kfi_band_run(const kfi_band_op &m, const kf_i64 *sizes,
                                         const kfi_strides &strides, kfi_pitch *pitches,
                                         kfi_bands *g, void **args, void *workspace,
                                         size_t workspace_bytes, cudaStream_t stream)
{
    kfi_shape shape = {0, 0, 0, 0, nullptr};
    kf_i64 segments[5] = {0, 0, 0, 0, 0};
    kf_result_t result = kfi_check_layout(&m.name, KFI_LAYOUT_CHANNELS, sizes, &shape, segments);
    if (result != KF_SUCCESS) return result;
    kfi_operands operands;
    const kfi_levels levels = kfi_make_levels(KFI_LAYOUT_CHANNELS, sizes);
    result = kfi_check_strides(&m.name, &m.arguments, &strides, &levels, &operands);
    if (result != KF_SUCCESS) return result;
    if (sizes[1] == 0 || (sizes[0] * sizes[2] == 0 && !m.per_row)) return KF_SUCCESS;
    result = kfi_check_operands(&m.name, &m.arguments, &shape, &levels, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const kfi_band_plan plan =
        kfi_make_bands(g, sizes, m.vec, m.in_registers, kfi_row_reach().clusters);
    result = kfi_check_workspace(&m.name, &m.arguments, &operands, workspace, workspace_bytes,
                                 kfi_band_needs(*g, plan.held, m.values, m.reduced, m.acc_size));
    if (result != KF_SUCCESS) return result;
    for (int i = 0; i < operands.count; ++i)
        pitches[i] = kfi_make_pitch(KFI_LAYOUT_CHANNELS, &levels, operands.of[i].apart);
    const bool whole = kfi_band_whole(*g, plan.form, m.vec, operands, strides.fields, pitches);
    const kf_i64 blocks = kfi_ceil(g->channels, g->segs) * g->parts;
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld x %lld elements needs more blocks than a launch may have",
                        (long long)g->channels, (long long)g->cols);
    g->partial = workspace;
    g->totals =
        plan.held ? nullptr : (char *)workspace + kfi_band_partials(*g, m.values, m.acc_size);
    const unsigned shared = kfi_band_shared(m, g, plan);
    const int of_each = 1 + m.passes + m.stores, unaligned = !whole;
    const void *const *const own = m.kernels + (2 * plan.form + unaligned) * of_each,
                             *const *const totals = m.kernels + 6 * of_each;
    if (plan.cluster)
        return kfi_launch(&m.name, totals[m.passes + 2 * (plan.form - KFI_BAND_TWO) + unaligned],
                          dim3((unsigned)blocks), (unsigned)plan.block, args, stream, true, shared,
                          (unsigned)g->parts);
    if (plan.held)
        return kfi_launch(&m.name, own[0], dim3((unsigned)blocks), (unsigned)plan.block, args,
                          stream, true, shared);
    return kfi_band_launch_passes(m, *g, own, totals, (unsigned)blocks, (unsigned)plan.block,
                                  shared, args, stream);
}
#endif

#endif
