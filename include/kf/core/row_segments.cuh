// SPDX-License-Identifier: Apache-2.0
// kf/core/row_segments.cuh: rows in segments: where a column is, vectors that reach from one segment into the next, and gradients for
// channels.
#ifndef KF_CORE_ROW_SEGMENTS_CUH
#define KF_CORE_ROW_SEGMENTS_CUH

#include "kf/core/row_access.cuh"
#include "kf/core/row_reduce.cuh"

#ifdef KFI_DEVICE_PASS
// Rows in pieces, and where in one a column is.
KFI_DEVICE kf_i64 kfi_piece_row(kf_i64 row, const kfi_pitch &p, const kfi_line &g) { return kfi_plane_row(row, p, g); }
// What is held is short: 2 instructions, not 12. (Such a multiplier is exact for numerators below 2^31.)
template <int held> KFI_DEVICE kf_i64 kfi_piece_divide(kf_i64 n, const kfi_divisor &d)
{
    if (!held) return kfi_divide(n, d);
    const unsigned word = (unsigned)n, multiplier = (unsigned)(d.multiplier >> 32) + 1;
    return (kf_i64)(((unsigned)((unsigned long long)word * multiplier >> 32) >> d.shift) | (word & (unsigned)d.one));
}
template <int held> KFI_DEVICE kf_i64 kfi_piece_at(const kfi_groups &g, kf_i64 gap, kf_i64 column)
{
    return g.in.gaps ? column + kfi_piece_divide<held>(column, g.in.piece) * gap : column;
}
// From one column to the next without a division: where it is and how many from there on are in the piece; or the channel of the group
// and how many are of it.
struct kfi_along {
    kf_i64 at;
    int room; // at most 2^30, more than a vector
};
KFI_DEVICE int kfi_to_int(kf_i64 n) { return n < 1 << 30 ? (int)n : 1 << 30; }
template <int held> KFI_DEVICE kfi_along kfi_piece_along(const kfi_groups &g, kf_i64 gap, kf_i64 column)
{
    const kf_i64 piece = kfi_piece_divide<held>(column, g.in.piece);
    return {column + piece * gap, kfi_to_int((piece + 1) * (kf_i64)g.in.piece.d - column)};
}
KFI_DEVICE void kfi_piece_next(const kfi_groups &g, kf_i64 gap, kfi_along *p)
{
    ++p->at;
    if (--p->room == 0) {
        p->at += gap;
        p->room = kfi_to_int((kf_i64)g.in.piece.d);
    }
}
template <int held> KFI_DEVICE kfi_along kfi_channel_along(const kfi_groups &g, kf_i64 column)
{
    const kf_i64 in_piece = g.in.several ? column - kfi_piece_divide<held>(column, g.in.piece) * (kf_i64)g.in.piece.d : column;
    const kf_i64 channel = kfi_piece_divide<held>(in_piece, g.in.inner), room = (channel + 1) * (kf_i64)g.in.inner.d - in_piece;
    return {channel, held ? (int)room : kfi_to_int(room)};
}
KFI_DEVICE void kfi_channel_next(const kfi_groups &g, kfi_along *p)
{
    if (--p->room == 0) {
        p->at = p->at + 1 == g.in.parts ? 0 : p->at + 1;
        p->room = kfi_to_int((kf_i64)g.in.inner.d);
    }
}
// As kfi_line_load and the others; src, dst: the row's first element. whole: pieces hold whole vectors, of one channel and the next one, or
// (across) of one each.
template <int size, int vec, int whole, int held>
KFI_DEVICE void kfi_piece_load(void *dst, const void *src, kf_i64 gap, kf_i64 column, kf_i64 left, const kfi_groups &g)
{
    const char (*const row)[size] = (const char (*)[size])src;
    if (whole || !g.in.gaps) {
        kfi_line_load<size, vec, whole>(dst, row + kfi_piece_at<held>(g, gap, column), left);
    } else {
        const unsigned long long zero = 0;
        kfi_along p = kfi_piece_along<held>(g, gap, column);
#pragma unroll
        for (int e = 0; e < vec; ++e, kfi_piece_next(g, gap, &p))
            kfi_copy<size>((char *)dst + e * size, e < left ? (const char *)(row + p.at) : (const char *)&zero);
    }
}
template <int size, int vec, int whole, int held>
KFI_DEVICE void kfi_piece_store(void *dst, kf_i64 gap, kf_i64 column, const void *src, kf_i64 left, const kfi_groups &g)
{
    char (*const row)[size] = (char (*)[size])dst;
    if (whole || !g.in.gaps) {
        kfi_line_store<size, vec, whole>(row + kfi_piece_at<held>(g, gap, column), src, left);
    } else {
        kfi_along p = kfi_piece_along<held>(g, gap, column);
#pragma unroll
        for (int e = 0; e < vec; ++e, kfi_piece_next(g, gap, &p))
            if (e < left) kfi_copy<size>((char *)(row + p.at), (const char *)src + e * size);
    }
}
template <int size, int vec, int held>
KFI_DEVICE void kfi_piece_ahead(char *slot, const void *src, kf_i64 gap, int first, int step, int space, const kfi_groups &g)
{
#pragma unroll
    for (int s = 0; s < held; ++s)
        kfi_line_ahead<size, vec, 1>(slot + s * (size * vec < 16 ? 16 : size * vec),
                                     (const char (*)[size])src + kfi_piece_at<held>(g, gap, first + s * step), 0, space - s * step);
}
template <int size, int vec, int whole, int held>
KFI_DEVICE void kfi_piece_hold(void *dst, bool ringed, const char *slot, const void *src, kf_i64 gap, int first, int step, int room,
                               const kfi_groups &g)
{
#pragma unroll
    for (int s = 0; s < held; ++s) {
        void *const to = (char *)dst + s * size * vec;
        if (ringed)
            kfi_line_take<size * vec>(to, slot + s * (size * vec < 16 ? 16 : size * vec), room - s * step);
        else
            kfi_piece_load<size, vec, whole, held>(to, src, gap, first + s * step, room - s * step, g);
    }
}
// A thread's place in its team, and what it has of an item.
struct kfi_team {
    int lanes, lane;
    kf_i64 first, count; // its first item, and from one to the next
};
struct kfi_item {
    kf_i64 slice, channel; // of the thread, the first one of a vector that lies across channels
    kf_i64 unit, end;      // its first unit, and that behind its last one
    int step, left;        // from one unit to the next; elements across channels, or 1: there is such a channel
};
KFI_DEVICE kfi_team kfi_line_team(const kfi_line &g, const kfi_spot &at)
{
    kfi_team team;
    team.lanes = g.lanes < 32 ? g.lanes : 32;
    team.lane = at.lane & (team.lanes - 1);
    team.first = g.lanes < 32 ? 0 : at.rank * (g.lanes / 32) + at.lane / 32;
    team.count = g.lanes < 32 ? 1 : (g.lanes / 32) << g.cluster_bits;
    return team;
}
template <int vec> KFI_DEVICE kfi_item kfi_line_item(const kfi_groups &g, const kfi_team &team, kf_i64 item, bool there)
{
    kfi_item of;
    of.slice = kfi_divide(item, g.in.blocks);
    of.channel = ((item - of.slice * (kf_i64)g.in.blocks.d) * g.in.wide + (team.lane & (g.in.wide - 1))) * (g.in.across ? vec : 1);
    const kf_i64 left = there ? g.in.parts - of.channel : 0;
    of.left = left < 0 ? 0 : left < vec ? (int)left : vec;
    of.step = team.lanes / g.in.wide;
    of.unit = of.slice * KFI_SLICE + team.lane / g.in.wide;
    of.end = of.left == 0 ? 0 : (of.slice + 1) * KFI_SLICE < g.in.units ? (of.slice + 1) * KFI_SLICE : g.in.units;
    return of;
}
// A unit's first column, the piece that it is in, and how many elements it has.
template <int vec, int held>
KFI_DEVICE kf_i64 kfi_line_unit(const kfi_groups &g, const kfi_item &of, kf_i64 unit, kf_i64 *piece, kf_i64 *left)
{
    *piece = g.in.across ? unit : kfi_piece_divide<held>(unit, g.in.vectors);
    const kf_i64 from = g.in.across ? 0 : (unit - *piece * (kf_i64)g.in.vectors.d) * vec;
    *left = g.in.across ? of.left : (kf_i64)g.in.inner.d - from;
    return *piece * (kf_i64)g.in.piece.d + of.channel * (kf_i64)g.in.inner.d + from;
}
// whole: pieces hold whole vectors.
template <int size, int vec, int whole> KFI_DEVICE void kfi_line_unit_load(void *dst, const void *src, kf_i64 left, const kfi_groups &g)
{
    if (whole && (g.in.across || g.in.even))
        kfi_line_load<size, vec, 1>(dst, src, left);
    else
        kfi_line_load<size, vec, 0>(dst, src, left);
}
// What a team has added up of its channels, to their places among the partial sums.
#define KFI_LINE_LEAVE(type)                                                                                                               \
    template <int vec>                                                                                                                     \
    KFI_DEVICE void kfi_line_leave(type *partial, type(&sum)[vec], const kfi_groups &g, const kfi_team &team, const kfi_item &of)          \
    {                                                                                                                                      \
        if (!g.in.across) {                                                                                                                \
            _Pragma("unroll") for (int e = 1; e < vec; ++e) sum[0] += sum[e];                                                              \
            _Pragma("unroll 1") for (int by = team.lanes >> 1; by >= g.in.wide; by >>= 1) sum[0] +=                                        \
                __shfl_xor_sync(0xffffffffu, sum[0], by);                                                                                  \
            if (team.lane < g.in.wide && of.left > 0) partial[of.channel] = sum[0];                                                        \
            return;                                                                                                                        \
        }                                                                                                                                  \
        _Pragma("unroll 1") for (int by = team.lanes >> 1; by >= g.in.wide; by >>= 1) _Pragma("unroll") for (int e = 0; e < vec; ++e)      \
            sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], by);                                                                            \
        _Pragma("unroll") for (int e = 0; e < vec; ++e) if (team.lane < g.in.wide && e < of.left) partial[of.channel + e] = sum[e];        \
    }
KFI_LINE_LEAVE(float)
KFI_LINE_LEAVE(double)
#endif

#endif
