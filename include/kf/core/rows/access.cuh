// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/access.cuh: a row's vectors: from memory into registers and back, on their way
// through shared memory; its first element; dropout's words.
#ifndef KF_CORE_ROWS_ACCESS_CUH
#define KF_CORE_ROWS_ACCESS_CUH

#include "kf/core/rows/args.cuh"

#ifdef KFI_DEVICE_PASS
// Of [batch, heads, queries, cols] the row whose turn it is: a query's of all heads one after the
// other, which read the same row of what heads share. Behind the last one, a row that there is not.
KFI_DEVICE kf_i64 kfi_row_index(const kfi_row_layout &g, kf_i64 turn)
{
    const kf_i64 unit = kfi_divide(turn, g.channels), batch = kfi_divide(unit, g.queries);
    return (batch * (kf_i64)g.channels.d + turn - unit * (kf_i64)g.channels.d) *
               (kf_i64)g.queries.d +
           unit - batch * (kf_i64)g.queries.d;
}
// A thread's s-th vector: elements from its first one to there, and that there are from there on.
// What is in registers is short: an int. A column, or what is compared with columns, as a place
// behind column `from`: those that are no place of a vector, and what lies beyond them, are before
// it or behind it. A row in registers has few columns: a is cut to 30 bits once a row.
template <int in_registers> KFI_DEVICE int kfi_near(kf_i64 a, kf_i64 from)
{
    if (in_registers) return (a < -1 ? -1 : a > 0x3fffffff ? 0x3fffffff : (int)a) - (int)from;
    return a < from ? -1 : a - from > 16 ? 16 : (int)(a - from);
}

template <int in_registers> KFI_DEVICE kf_i64 kfi_row_off(int s, int step)
{
    return in_registers ? (kf_i64)(s * step) : (kf_i64)s * step;
}
template <int in_registers> KFI_DEVICE kf_i64 kfi_row_left(kf_i64 room, int s, int step)
{
    return in_registers ? (kf_i64)((int)room - s * step) : room - (kf_i64)s * step;
}
// A vector of a row, of which `left` elements are in it; the others are zero. whole: rows hold
// whole vectors, aligned to 16.
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

// A thread's vectors of a row, or of a row operand, on their way through shared memory, and from
// there into registers. Its places of 16 bytes, of which conditions use fewer, lie side by side, an
// odd number of them, so that neighbours' do not fall into the same banks: an access needs no
// arithmetic. space, left: elements from its first one on that there are.
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
template <int bytes> KFI_DEVICE void kfi_row_take(void *dst, const char *slot, kf_i64 left)
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
// All that a thread holds of a row, from its places (ringed) or from the tensor.
template <int size, int vec, int whole, int in_registers>
KFI_DEVICE void kfi_row_hold(void *dst, bool ringed, const char *slot, const void *src, int step,
                             int room)
{
#pragma unroll
    for (int s = 0; s < in_registers; ++s) {
        void *const to = (char *)dst + s * size * vec;
        if (ringed)
            kfi_row_take<size * vec>(to, slot + s * (size * vec < 16 ? 16 : size * vec),
                                     room - s * step);
        else if (whole)
            kfi_row_load<size, vec, 1>(to, (const char (*)[size])src + s * step,
                                       room - s * step); // one instruction an address
        else
            kfi_row_load<size, vec, 0>(to, (const char *)src + (kf_i64)(s * step) * size,
                                       room - s * step); // fewer registers
    }
}
// That all of it is on its way before the first value is looked at: ptxas likes to load the last
// vectors when the first ones are used up, a wait more. So the first word is made to depend on a
// word of each vector, by a mask that it cannot know to be 0. (Not of vectors of two bytes, as two
// conditions are: they hold no word.)
KFI_DEVICE unsigned kfi_row_zero(const kfi_row_layout &g)
{
    return (unsigned)((unsigned long long)g.cols >> 63);
}
template <bool asked, int in_registers, int vec, class type>
KFI_DEVICE void kfi_row_await(void *first, const type (&values)[in_registers][vec],
                              const kfi_row_layout &g)
{
#ifdef KFI_PTX
    const unsigned zero = kfi_row_zero(g);
#pragma unroll
    for (int s = 0; s < in_registers && asked && sizeof values[0] % 4 == 0; ++s)
        *(unsigned *)first ^= *(const unsigned *)values[s] & zero;
#else
    (void)first, (void)values, (void)g;
#endif
}
// The same number, which the compiler cannot know to be the same.
KFI_DEVICE int kfi_segment_again(int first, const kfi_row_layout &g)
{
#ifdef KFI_PTX
    const int zero = (int)kfi_row_zero(g);
    asm volatile("xor.b32 %0, %0, %1;" : "+r"(first) : "r"(zero));
#else
    (void)g;
#endif
    return first;
}
// A result as it is stored, where others are computed from it: rounded as one of two, which is one
// instruction of many a clock; that of one alone has a quarter of the throughput.
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
// The first element of a row.
KFI_DEVICE kf_i64 kfi_row_row(kf_i64 row, const kfi_pitch &p) { return row * p.row; }
KFI_DEVICE kf_i64 kfi_plane_row(kf_i64 row, const kfi_pitch &p, const kfi_row_layout &g)
{
    kf_i64 at = row * p.row;
    if (p.outer)
        at += kfi_divide(row, g.channels) *
              p.outer; // not where all is dense: the same of all threads
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
// A row operand on its way to the caches at a kernel's beginning, where there are so few rows that
// no other block will have brought it: the last pass loads it vector by vector, and each would wait
// for memory.
#define KFI_ROW_FEW 132 // blocks of one row: one an SM
template <int in_registers, class type>
KFI_DEVICE void kfi_row_prefetch(const type *src, int first, int step, const kfi_row_layout &g)
{
#ifdef KFI_PTX
    const bool few = src && g.groups == 1 && gridDim.x <= KFI_ROW_FEW;
#pragma unroll
    for (int s = 0; s < in_registers && few; ++s)
        if ((int)g.cols - first - s * step > 0)
            asm volatile("prefetch.global.L1 [%0];" ::"l"(src + first + s * step));
#else
    (void)src, (void)first, (void)step, (void)g;
#endif
}
// The value of a row operand that is absent.
#define KFI_ROW_ABSENT(type, number)                                                               \
    template <int count> KFI_DEVICE void kfi_row_absent(type *to, number v)                        \
    {                                                                                              \
        _Pragma("unroll") for (int e = 0; e < count; ++e) kfi_cast(to + e, v);                     \
    }
KFI_ROW_ABSENT(float, float)
KFI_ROW_ABSENT(double, double)
KFI_ROW_ABSENT(kf_f16, float)
KFI_ROW_ABSENT(kf_bf16, float)
// A thread's vectors of a row operand, at once: with the row (if it is absent, its value), or
// (asked) behind the reductions.
template <int in_registers, int vec, class type, class number>
KFI_DEVICE void kfi_row_operand(type (&to)[in_registers][vec], const type *src, int first, int step,
                                const kfi_row_layout &g, number absent)
{
    if (src)
        kfi_row_hold<sizeof(type), vec, 1, in_registers>(to, false, nullptr, src + first, step,
                                                         (int)g.cols - first);
    else
        kfi_row_absent<in_registers * vec>(to[0],
                                           absent); // not behind the loads, which it would await
}
template <bool asked, int in_registers, int vec, class type>
KFI_DEVICE void kfi_row_early(type (&to)[in_registers][vec], const type *src, int first, int step,
                              int room)
{
    if (asked && src)
        kfi_row_hold<sizeof(type), vec, 1, in_registers>(to, false, nullptr, src + first, step,
                                                         room);
}

// Hides from the compiler that these 2-byte values were converted before: it would keep the floats,
// twice the registers. Where there would not be enough of those (many), from ptxas too, which sees
// through an empty statement and spills: no size is negative. Of wider values (each as several of 2
// bytes) hides what a pass made of them: of eight vectors ptxas keeps some beside them, and spills
// it. And of a value of the row how it was computed: nvcc would divide again for each vector.
template <int count, int many> KFI_DEVICE void kfi_row_forget(void *values, const kfi_row_layout &g)
{
#ifdef KFI_PTX
    unsigned *const words = (unsigned *)values;
    const unsigned zero = kfi_row_zero(g);
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
        if (many)
            asm volatile("xor.b32 %0, %0, %1;" : "+r"(words[i]) : "r"(zero));
        else
            asm volatile("" : "+r"(words[i]));
    }
#else
    (void)values, (void)g;
#endif
}
#endif

#endif
