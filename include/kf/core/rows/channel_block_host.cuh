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
// adds up the parts.
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
};

KF_FN KFI_SMALL kf_i64 kfi_band_rounds(kf_i64 bands, kf_i64 units, kf_i64 threads, kf_i64 most)
{
    while (threads * most < units && bands * kfi_ceil(units, threads * most) > 1 << 20)
        most *= 2; // within the limit of a launch
    while (most > 4 && bands * kfi_ceil(units, threads * most) < KFI_BAND_BLOCKS) most /= 2;
    return most;
}
// Partitions a tensor, by its shape only. Returns the form.
KF_FN KFI_SMALL int kfi_make_bands(kfi_bands *g, const kf_i64 *sizes, int vec, int in_registers,
                                   int *block)
{
    const kf_i64 outer = sizes[0], channels = sizes[1], inner = sizes[2] > 0 ? sizes[2] : 1;
    g->cols = outer * sizes[2];
    g->outer = outer;
    g->channels = channels;
    g->inner = inner;
    int unit = 1; // channels that form whole vectors
    while (inner * unit % vec != 0) unit *= 2;
    int form = unit == 1 ? KFI_BAND_ONE : inner < vec ? KFI_BAND_EACH : KFI_BAND_TWO;
    if (form == KFI_BAND_TWO && unit * inner / vec > KFI_BAND_THREADS) form = KFI_BAND_ONE;
    kf_i64 segs = form == KFI_BAND_ONE   ? 1
                  : form == KFI_BAND_TWO ? unit
                                         : vec * kfi_clamp(8 / inner, 1, 8);
    segs = kfi_clamp(segs, 1, channels > 0 ? channels : 1);
    const kf_i64 width = kfi_ceil(segs * inner, vec), bands = kfi_ceil(channels, segs);
    g->segs = (int)segs;
    g->units = g->cols > 0 ? outer * width : 0;
    g->wide = form == KFI_BAND_ONE ? 1 : (int)width;
    kf_i64 most = form == KFI_BAND_EACH ? KFI_BAND_EACH_THREADS : KFI_BAND_THREADS;
    kf_i64 rows = most / g->wide;
    g->share = g->units;
    if (g->units <= in_registers * rows * g->wide) {
        // The fewest threads that hold the channel block, or more if there are few channel blocks.
        const kf_i64 spread =
            kfi_clamp((kf_i64)KFI_BAND_BLOCKS * 256 / (bands > 0 ? bands : 1), 1, g->units);
        const kf_i64 least = kfi_ceil(g->units, in_registers),
                     threads = kfi_ceil(least > spread ? least : spread, 32) * 32;
        rows = kfi_clamp(kfi_ceil(threads, g->wide), 1, rows);
        g->threads = (int)(rows * g->wide);
    } else {
        // One launch per pass. Smaller blocks: one starts when another one ends.
        most = 2 * g->wide <= most && form != KFI_BAND_EACH ? most / 2 : most;
        g->threads = (int)(most / g->wide * g->wide);
        // Limits the number of values that a thread sums per channel, for accuracy.
        g->share = g->threads *
                   kfi_band_rounds(bands, g->units, g->threads, form == KFI_BAND_EACH ? 64 : 16);
        if (g->share >= g->units)
            // At least two parts: one part would mean that a block holds it.
            g->share = g->threads * kfi_ceil(g->units, 2 * g->threads);
    }
    g->rows = g->threads / g->wide;
    g->parts = g->units > 0 ? kfi_ceil(g->units, g->share) : 1;
    g->width = kfi_make_divisor(width);
    g->plane = kfi_make_divisor(inner);
    g->bands = kfi_make_divisor(bands > 0 ? bands : 1);
    g->stride = kfi_ceil(channels, 4) * 4;
    *block = (int)kfi_ceil(g->threads, 32) * 32;
    for (g->team = 32; g->team > 1 && g->team * g->segs > *block;) g->team /= 2;
    return form;
}
KF_FN KFI_SMALL size_t kfi_band_partials(const kfi_bands &g, int values, int acc_size)
{
    return (size_t)kfi_ceil(g.parts * g.channels * values, 4) * 4 * (size_t)acc_size;
}
KF_FN KFI_SMALL size_t kfi_band_needs(const kfi_bands &g, int values, int reduced, int acc_size)
{
    return g.parts == 1 ? 0
                        : kfi_workspace(kfi_band_partials(g, values, acc_size) +
                                        (size_t)(g.stride * reduced * acc_size));
}
KF_FN KFI_SMALL size_t kfi_band_workspace(kf_i64 outer, kf_i64 channels, kf_i64 inner, int vec,
                                          int in_registers, int values, int reduced, int acc_size)
{
    if (!kfi_fits(outer, channels, inner)) return 0;
    const kf_i64 sizes[] = {outer, channels, inner};
    kfi_bands g;
    int block;
    kfi_make_bands(&g, sizes, vec, in_registers, &block);
    return kfi_band_needs(g, values, reduced, acc_size);
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
KF_FN KFI_SMALL bool kfi_band_as_rows(const kfi_row &m, const kf_i64 *sizes)
{
    if (!kfi_all_fit(sizes, 3)) return false; // the launcher reports it
    const kf_i64 channels = sizes[1], inner = sizes[2], cols = sizes[0] * inner;
    const bool whole = inner % m.vec == 0, few_elements = channels * cols <= KFI_BAND_SMALL;
    // So many channels that CUDA blocks of a channel block have little work.
    const bool narrow = cols <= 128 && inner > 1 && inner < m.vec;
    if (channels < KFI_BAND_CHANNELS || !(whole || few_elements || narrow)) return false;
    kfi_row_layout g;
    int threads;
    return kfi_make_row_layout(&g, channels, cols, m.vec, m.limits, m.limit_count, false,
                               kfi_row_reach(), &threads) < m.limit_count;
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
    int block;
    const int form = kfi_make_bands(g, sizes, m.vec, m.in_registers, &block);
    result = kfi_check_workspace(&m.name, &m.arguments, &operands, workspace, workspace_bytes,
                                 kfi_band_needs(*g, m.values, m.reduced, m.acc_size));
    if (result != KF_SUCCESS) return result;
    for (int i = 0; i < operands.count; ++i)
        pitches[i] = kfi_make_pitch(KFI_LAYOUT_CHANNELS, &levels, operands.of[i].apart);
    const bool whole = kfi_band_whole(*g, form, m.vec, operands, strides.fields, pitches);
    const kf_i64 blocks = kfi_ceil(g->channels, g->segs) * g->parts;
    if (blocks > 0x7fffffff)
        return kfi_fail(KF_ERROR_UNSUPPORTED, &m.name, "launch",
                        "of %lld x %lld elements needs more blocks than a launch may have",
                        (long long)g->channels, (long long)g->cols);
    g->room = form == KFI_BAND_ONE ? 96 : block * m.sets * (form == KFI_BAND_TWO ? 2 : m.vec);
    g->partial = workspace;
    g->totals =
        g->parts > 1 ? (char *)workspace + kfi_band_partials(*g, m.values, m.acc_size) : nullptr;
    const unsigned shared = (unsigned)((g->room + m.kept * g->segs) * m.acc_size);
    const int of_each = 1 + m.passes + m.stores;
    const void *const *const own = m.kernels + (2 * form + !whole) * of_each, *const *const totals =
                                                                                  m.kernels +
                                                                                  6 * of_each;
    if (g->parts == 1)
        return kfi_launch(&m.name, own[0], dim3((unsigned)blocks), (unsigned)block, args, stream,
                          true, shared);
    for (int p = 0; p < m.passes && result == KF_SUCCESS; ++p) {
        result = kfi_launch(&m.name, own[1 + p], dim3((unsigned)blocks), (unsigned)block, args,
                            stream, true, shared);
        if (result != KF_SUCCESS) return result;
        result = kfi_launch(&m.name, totals[p],
                            dim3((unsigned)kfi_ceil(g->channels, KFI_BAND_TOTALS / 32)),
                            KFI_BAND_TOTALS, args, stream);
    }
    if (result != KF_SUCCESS || !m.stores) return result;
    return kfi_launch(&m.name, own[1 + m.passes], dim3((unsigned)blocks), (unsigned)block, args,
                      stream, true, shared);
}
#endif

#endif
