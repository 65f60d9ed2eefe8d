// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/access.cuh: vector access to a row: loads into registers, stores, asynchronous
// copies through shared memory, row addresses, and words of dropout.
#ifndef KF_CORE_ROWS_ACCESS_CUH
#define KF_CORE_ROWS_ACCESS_CUH

#include "kf/core/rows/args.cuh"

#ifdef KFI_DEVICE_PASS
// Row index in [batch, heads, queries, cols] for position `turn`. All heads of one query are
// consecutive, so the row of the operand that heads share stays cached. Past the last row, returns
// an index out of range.
KFI_DEVICE kf_i64 kfi_row_index(const kfi_row_layout &g, kf_i64 turn)
{
    const kf_i64 unit = kfi_divide(turn, g.channels), batch = kfi_divide(unit, g.queries);
    return (batch * (kf_i64)g.channels.d + turn - unit * (kf_i64)g.channels.d) *
               (kf_i64)g.queries.d +
           unit - batch * (kf_i64)g.queries.d;
}
// Column `a` as an index relative to column `from`. Columns outside the vector map to an index
// before or after it. A row in registers has few columns: `a` is clamped to 30 bits once per row.
template <int in_registers> KFI_DEVICE int kfi_near(kf_i64 a, kf_i64 from)
{
    if (in_registers) return (a < -1 ? -1 : a > 0x3fffffff ? 0x3fffffff : (int)a) - (int)from;
    return a < from ? -1 : a - from > 16 ? 16 : (int)(a - from);
}

// Offset of a thread's vector s from its first element, and the elements from there to the end of
// the row. For rows in registers both are computed as int.
template <int in_registers> KFI_DEVICE kf_i64 kfi_row_off(int s, int step)
{
    return in_registers ? (kf_i64)(s * step) : (kf_i64)s * step;
}
template <int in_registers> KFI_DEVICE kf_i64 kfi_row_left(kf_i64 room, int s, int step)
{
    return in_registers ? (kf_i64)((int)room - s * step) : room - (kf_i64)s * step;
}
// Loads a vector of which `left` elements are in the row; the others are zero. whole: rows consist
// of whole vectors aligned to 16 bytes.
template <int size, int vec, int whole>
KFI_DEVICE void kfi_row_load(void *dst, const void *src, kf_i64 left)
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
        for (int e = 0; e < vec; ++e)
            kfi_copy<size>((char *)dst + e * size,
                           e < left ? (const char *)src + e * size : (const char *)&zero);
    }
}
template <int size, int vec, int whole>
KFI_DEVICE void kfi_row_store(void *dst, const void *src, kf_i64 left)
{
    if (whole) {
        if (left > 0) kfi_store<size * vec>(dst, src);
    } else {
#pragma unroll
        for (int e = 0; e < vec; ++e)
            if (e < left) kfi_copy<size>((char *)dst + e * size, (const char *)src + e * size);
    }
}

// Copies a thread's vectors of a row, or of a row operand, asynchronously into its slots in shared
// memory. A thread's 16-byte slots are contiguous and odd in number: neighbours use different
// banks, and an access needs no arithmetic. Conditions (1 byte) use part of a slot. space: elements
// from the thread's first one to the end of the row.
template <int size, int vec, int in_registers>
KFI_DEVICE void kfi_row_ahead(char *slot, const void *src, int step, int space)
{
    constexpr int bytes = size * vec < 16 ? size * vec : 16, parts = size * vec / bytes;
#pragma unroll
    for (int s = 0; s < in_registers; ++s)
#pragma unroll
        for (int i = 0; i < parts; ++i)
            if (space - s * step > 0)
                kfi_fetch<bytes>(slot + (s * parts + i) * 16,
                                 (const char *)((const char (*)[size])src + s * step) + i * 16);
}
template <int bytes> KFI_DEVICE void kfi_row_load_slot(void *dst, const char *slot, kf_i64 left)
{
    const uint4 zero = {0, 0, 0, 0};
    if (bytes < 16) {
        constexpr int few = bytes < 16 ? bytes : 1;
        alignas(16) unsigned char v[few] = {};
        if (left > 0) kfi_copy<few>(v, slot);
        kfi_copy<few>(dst, v);
    }
#pragma unroll
    for (int i = 0; i < bytes / 16; ++i)
        ((uint4 *)dst)[i] = left > 0 ? ((const uint4 *)slot)[i] : zero;
}
// Loads all of a thread's vectors of a row into registers: from its slots (ringed) or from the
// tensor.
template <int size, int vec, int whole, int in_registers>
KFI_DEVICE void kfi_row_load_row(void *dst, bool ringed, const char *slot, const void *src,
                                 int step, int room)
{
#pragma unroll
    for (int s = 0; s < in_registers; ++s) {
        void *const to = (char *)dst + s * size * vec;
        if (ringed)
            kfi_row_load_slot<size * vec>(to, slot + s * (size * vec < 16 ? 16 : size * vec),
                                          room - s * step);
        else if (whole)
            kfi_row_load<size, vec, 1>(to, (const char (*)[size])src + s * step,
                                       room - s * step); // one instruction per address
        else
            kfi_row_load<size, vec, 0>(to, (const char *)src + (kf_i64)(s * step) * size,
                                       room - s * step); // fewer registers
    }
}
// Makes the first word depend on a word of each vector, through a mask that ptxas cannot know to be
// 0. Otherwise ptxas delays the last loads until the first vectors are consumed, which adds a
// memory latency. Skipped for 2-byte vectors (two conditions), which hold no whole word.
KFI_DEVICE unsigned kfi_row_zero(const kfi_row_layout &g)
{
    return (unsigned)((unsigned long long)g.cols >> 63);
}
template <bool asked, int in_registers, int vec, class type>
KFI_DEVICE void kfi_row_wait(void *first, const type (&values)[in_registers][vec],
                             const kfi_row_layout &g)
{
    const unsigned zero = kfi_row_zero(g);
#pragma unroll
    for (int s = 0; s < in_registers && asked && sizeof values[0] % 4 == 0; ++s)
        *(unsigned *)first ^= *(const unsigned *)values[s] & zero;
}
// Returns the same number as an opaque copy.
KFI_DEVICE int kfi_segment_opaque(int first, const kfi_row_layout &g)
{
    kfi_opaque(first, (int)kfi_row_zero(g));
    return first;
}
// Rounds a stored result to its dtype where further results are computed from it. Converts a pair:
// the paired conversion has four times the throughput of the scalar one.
#define KFI_ROW_STORED(type, word)                                                                 \
    KFI_DEVICE float kfi_stored_##word(float v)                                                    \
    {                                                                                              \
        const float two[2] = {v, 0};                                                               \
        alignas(4) type stored[2];                                                                 \
        kfi_pack_##word<2>(stored, two);                                                           \
        kfi_unpack_##word<1>(&v, stored);                                                          \
        return v;                                                                                  \
    }
KFI_ROW_STORED(kf_f16, f16)
KFI_ROW_STORED(kf_bf16, bf16)
// Offset of a row's first element.
KFI_DEVICE kf_i64 kfi_row_row(kf_i64 row, const kfi_pitch &p) { return row * p.row; }
KFI_DEVICE kf_i64 kfi_plane_row(kf_i64 row, const kfi_pitch &p, const kfi_row_layout &g)
{
    kf_i64 at = row * p.row;
    if (p.outer)
        at += kfi_divide(row, g.channels) *
              p.outer; // skipped for contiguous tensors; uniform over all threads
    return at;
}
KFI_DEVICE kf_i64 kfi_head_row(kf_i64 row, const kfi_pitch &p, const kfi_row_layout &g)
{
    kf_i64 at = row * p.row;
    if (p.head | p.outer) {
        const kf_i64 head = kfi_divide(row, g.queries);
        at += head * p.head + kfi_divide(head, g.channels) * p.outer;
    }
    return at;
}
// Prefetches a row operand at kernel start if there are so few rows that no other block has cached
// it. The last pass loads it vector by vector, and each load would wait for memory.
#define KFI_ROW_FEW 132 // blocks of one row: one per SM
template <int in_registers, class type>
KFI_DEVICE void kfi_row_prefetch(const type *src, int first, int step, const kfi_row_layout &g)
{
    const bool few = src && g.groups == 1 && gridDim.x <= KFI_ROW_FEW;
#pragma unroll
    for (int s = 0; s < in_registers && few; ++s)
        if ((int)g.cols - first - s * step > 0) kfi_prefetch_l1(src + first + s * step);
}
// Fills a vector with the default value of an absent row operand.
#define KFI_ROW_ABSENT(type, number)                                                               \
    template <int count> KFI_DEVICE void kfi_row_absent(type *to, number v)                        \
    {                                                                                              \
        _Pragma("unroll") for (int e = 0; e < count; ++e) kfi_cast(to + e, v);                     \
    }
KFI_ROW_ABSENT(float, float)
KFI_ROW_ABSENT(double, double)
KFI_ROW_ABSENT(kf_f16, float)
KFI_ROW_ABSENT(kf_bf16, float)
// Loads all of a thread's vectors of a row operand at once: with the row (or fills in the default
// value if it is absent), or, with `asked`, after the reductions.
template <int in_registers, int vec, class type, class number>
KFI_DEVICE void kfi_row_operand(type (&to)[in_registers][vec], const type *src, int first, int step,
                                const kfi_row_layout &g, number absent)
{
    if (src)
        kfi_row_load_row<sizeof(type), vec, 1, in_registers>(to, false, nullptr, src + first, step,
                                                             (int)g.cols - first);
    else // not after the loads, for which it would wait
        kfi_row_absent<in_registers * vec>(to[0], absent);
}
template <bool asked, int in_registers, int vec, class type>
KFI_DEVICE void kfi_row_load_early(type (&to)[in_registers][vec], const type *src, int first,
                                   int step, int room)
{
    if (asked && src)
        kfi_row_load_row<sizeof(type), vec, 1, in_registers>(to, false, nullptr, src + first, step,
                                                             room);
}

// Opaque copy of values in registers. Hides earlier conversions of 2-byte values: nvcc would keep
// the floats, which take twice the registers. many: hides them from ptxas too, which sees through
// an empty statement and would spill. Wider values count as several 2-byte ones: ptxas would keep
// intermediate results of eight vectors and spill. For a value per row it prevents nvcc from
// repeating a division per vector.
template <int count, int many> KFI_DEVICE void kfi_row_opaque(void *values, const kfi_row_layout &g)
{
    unsigned *const words = (unsigned *)values;
    const unsigned zero = kfi_row_zero(g);
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
        if (many)
            kfi_opaque(words[i], zero);
        else
            kfi_opaque(words[i]);
    }
}
#endif

#endif
