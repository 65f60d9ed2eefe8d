// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/segments.cuh: rows in segments: column offsets, vectors that span two segments, and
// channel gradients.
#ifndef KF_CORE_ROWS_SEGMENTS_CUH
#define KF_CORE_ROWS_SEGMENTS_CUH

#include "kf/core/rows/access.cuh"
#include "kf/core/rows/reduce.cuh"

#ifdef KFI_DEVICE_PASS
// Offset of a row in segments, and of a column in it.
KFI_DEVICE kf_i64 kfi_segment_row(kf_i64 row, const kfi_pitch &p, const kfi_row_layout &g)
{
    return kfi_plane_row(row, p, g);
}
// Quotient. For rows in registers 2 instructions instead of 12: the 32-bit multiplier is exact for
// numerators below 2^31.
template <int in_registers> KFI_DEVICE kf_i64 kfi_segment_divide(kf_i64 n, const kfi_divisor &d)
{
    if (!in_registers) return kfi_divide(n, d);
    const unsigned word = (unsigned)n, multiplier = (unsigned)(d.multiplier >> 32) + 1;
    return (kf_i64)(((unsigned)((unsigned long long)word * multiplier >> 32) >> d.shift) |
                    (word & (unsigned)d.one));
}
template <int in_registers>
KFI_DEVICE kf_i64 kfi_segment_at(const kfi_groups &g, kf_i64 gap, kf_i64 column)
{
    return g.in.gaps ? column + kfi_segment_divide<in_registers>(column, g.in.segment) * gap
                     : column;
}
// Position that advances column by column without a division: an offset, and the columns left in
// its segment; or a channel of the group, and the columns left of it.
struct kfi_along {
    kf_i64 at;
    int room; // clamped to 2^30, more than a vector
};
KFI_DEVICE int kfi_to_int(kf_i64 n) { return n < 1 << 30 ? (int)n : 1 << 30; }
template <int in_registers>
KFI_DEVICE kfi_along kfi_segment_along(const kfi_groups &g, kf_i64 gap, kf_i64 column)
{
    const kf_i64 segment = kfi_segment_divide<in_registers>(column, g.in.segment);
    return {column + segment * gap, kfi_to_int((segment + 1) * (kf_i64)g.in.segment.d - column)};
}
KFI_DEVICE void kfi_segment_next(const kfi_groups &g, kf_i64 gap, kfi_along *p)
{
    ++p->at;
    if (--p->room == 0) {
        p->at += gap;
        p->room = kfi_to_int((kf_i64)g.in.segment.d);
    }
}
template <int in_registers>
KFI_DEVICE kfi_along kfi_channel_along(const kfi_groups &g, kf_i64 column)
{
    const kf_i64 in_segment =
        g.in.several ? column - kfi_segment_divide<in_registers>(column, g.in.segment) *
                                    (kf_i64)g.in.segment.d
                     : column;
    const kf_i64 channel = kfi_segment_divide<in_registers>(in_segment, g.in.inner),
                 room = (channel + 1) * (kf_i64)g.in.inner.d - in_segment;
    return {channel, in_registers ? (int)room : kfi_to_int(room)};
}
KFI_DEVICE void kfi_channel_next(const kfi_groups &g, kfi_along *p)
{
    if (--p->room == 0) {
        p->at = p->at + 1 == g.in.parts ? 0 : p->at + 1;
        p->room = kfi_to_int((kf_i64)g.in.inner.d);
    }
}
// Counterparts of kfi_row_load and the other functions for rows in segments. src, dst: the row's
// first element. whole: segments consist of whole vectors, each within one or two adjacent
// channels, or (across) with one element per channel.
template <int size, int vec, int whole, int in_registers>
KFI_DEVICE void kfi_segment_load(void *dst, const void *src, kf_i64 gap, kf_i64 column, kf_i64 left,
                                 const kfi_groups &g)
{
    const char (*const row)[size] = (const char (*)[size])src;
    if (whole || !g.in.gaps) {
        kfi_row_load<size, vec, whole>(dst, row + kfi_segment_at<in_registers>(g, gap, column),
                                       left);
    } else {
        const unsigned long long zero = 0;
        kfi_along p = kfi_segment_along<in_registers>(g, gap, column);
#pragma unroll
        for (int e = 0; e < vec; ++e, kfi_segment_next(g, gap, &p))
            kfi_copy<size>((char *)dst + e * size,
                           e < left ? (const char *)(row + p.at) : (const char *)&zero);
    }
}
template <int size, int vec, int whole, int in_registers>
KFI_DEVICE void kfi_segment_store(void *dst, kf_i64 gap, kf_i64 column, const void *src,
                                  kf_i64 left, const kfi_groups &g)
{
    char (*const row)[size] = (char (*)[size])dst;
    if (whole || !g.in.gaps) {
        kfi_row_store<size, vec, whole>(row + kfi_segment_at<in_registers>(g, gap, column), src,
                                        left);
    } else {
        kfi_along p = kfi_segment_along<in_registers>(g, gap, column);
#pragma unroll
        for (int e = 0; e < vec; ++e, kfi_segment_next(g, gap, &p))
            if (e < left) kfi_copy<size>((char *)(row + p.at), (const char *)src + e * size);
    }
}
template <int size, int vec, int in_registers>
KFI_DEVICE void kfi_segment_ahead(char *slot, const void *src, kf_i64 gap, int first, int step,
                                  int space, const kfi_groups &g)
{
#pragma unroll
    for (int s = 0; s < in_registers; ++s)
        kfi_row_ahead<size, vec, 1>(slot + s * (size * vec < 16 ? 16 : size * vec),
                                    (const char (*)[size])src +
                                        kfi_segment_at<in_registers>(g, gap, first + s * step),
                                    0, space - s * step);
}
template <int size, int vec, int whole, int in_registers>
KFI_DEVICE void kfi_segment_load_row(void *dst, bool ringed, const char *slot, const void *src,
                                     kf_i64 gap, int first, int step, int room, const kfi_groups &g)
{
#pragma unroll
    for (int s = 0; s < in_registers; ++s) {
        void *const to = (char *)dst + s * size * vec;
        if (ringed)
            kfi_row_load_slot<size * vec>(to, slot + s * (size * vec < 16 ? 16 : size * vec),
                                          room - s * step);
        else
            kfi_segment_load<size, vec, whole, in_registers>(to, src, gap, first + s * step,
                                                             room - s * step, g);
    }
}
// Coordinates of a thread in its team, and its part of an item.
struct kfi_team {
    int lanes, lane;
    kf_i64 first, count; // first item, and stride
};
struct kfi_item {
    // channel of the thread; with `across`, of the first element of its vector
    kf_i64 slice, channel;
    kf_i64 unit, end; // first unit, and one past the last
    int step,
        // step: unit stride; left: valid elements of a vector (across), or 1 if the channel exists.
        left;
};
KFI_DEVICE kfi_team kfi_row_team(const kfi_row_layout &g, const kfi_row_thread &at)
{
    kfi_team team;
    team.lanes = g.lanes < 32 ? g.lanes : 32;
    team.lane = at.lane & (team.lanes - 1);
    team.first = g.lanes < 32 ? 0 : at.rank * (g.lanes / 32) + at.lane / 32;
    team.count = g.lanes < 32 ? 1 : (g.lanes / 32) << g.cluster_bits;
    return team;
}
template <int vec>
KFI_DEVICE kfi_item kfi_row_item(const kfi_groups &g, const kfi_team &team, kf_i64 item, bool there)
{
    kfi_item of;
    of.slice = kfi_divide(item, g.in.blocks);
    of.channel =
        ((item - of.slice * (kf_i64)g.in.blocks.d) * g.in.wide + (team.lane & (g.in.wide - 1))) *
        (g.in.across ? vec : 1);
    const kf_i64 left = there ? g.in.parts - of.channel : 0;
    of.left = left < 0 ? 0 : left < vec ? (int)left : vec;
    of.step = team.lanes / g.in.wide;
    of.unit = of.slice * KFI_SLICE + team.lane / g.in.wide;
    of.end = of.left == 0                              ? 0
             : (of.slice + 1) * KFI_SLICE < g.in.units ? (of.slice + 1) * KFI_SLICE
                                                       : g.in.units;
    return of;
}
// Returns a unit's first column. Sets its segment and its number of elements.
template <int vec, int in_registers>
KFI_DEVICE kf_i64 kfi_row_unit(const kfi_groups &g, const kfi_item &of, kf_i64 unit,
                               kf_i64 *segment, kf_i64 *left)
{
    *segment = g.in.across ? unit : kfi_segment_divide<in_registers>(unit, g.in.vectors);
    const kf_i64 from = g.in.across ? 0 : (unit - *segment * (kf_i64)g.in.vectors.d) * vec;
    *left = g.in.across ? of.left : (kf_i64)g.in.inner.d - from;
    return *segment * (kf_i64)g.in.segment.d + of.channel * (kf_i64)g.in.inner.d + from;
}
// whole: segments consist of whole vectors.
template <int size, int vec, int whole>
KFI_DEVICE void kfi_row_unit_load(void *dst, const void *src, kf_i64 left, const kfi_groups &g)
{
    if (whole && (g.in.across || g.in.even))
        kfi_row_load<size, vec, 1>(dst, src, left);
    else
        kfi_row_load<size, vec, 0>(dst, src, left);
}
// Reduces a team's sums of its channels and stores them to the partial sums.
#define KFI_ROW_STORE_PARTIAL(type)                                                                \
    template <int vec>                                                                             \
    KFI_DEVICE void kfi_row_store_partial(type *partial, type(&sum)[vec], const kfi_groups &g,     \
                                          const kfi_team &team, const kfi_item &of)                \
    {                                                                                              \
        if (!g.in.across) {                                                                        \
            _Pragma("unroll") for (int e = 1; e < vec; ++e) sum[0] += sum[e];                      \
            _Pragma("unroll 1") for (int by = team.lanes >> 1; by >= g.in.wide; by >>= 1)          \
                sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], by);                                \
            if (team.lane < g.in.wide && of.left > 0) partial[of.channel] = sum[0];                \
            return;                                                                                \
        }                                                                                          \
        _Pragma("unroll 1") for (int by = team.lanes >> 1; by >= g.in.wide; by >>= 1)              \
            _Pragma("unroll") for (int e = 0; e < vec; ++e) sum[e] +=                              \
            __shfl_xor_sync(0xffffffffu, sum[e], by);                                              \
        _Pragma("unroll") for (int e = 0; e < vec; ++e) if (team.lane < g.in.wide && e < of.left)  \
            partial[of.channel + e] = sum[e];                                                      \
    }
KFI_ROW_STORE_PARTIAL(float)
KFI_ROW_STORE_PARTIAL(double)
#endif

#endif
