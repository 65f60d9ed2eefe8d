// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/shift.cuh: unaligned rows of 2-byte elements, read and written by aligned 16-byte
// accesses.
//
// A thread's vectors are 8 elements from column 8 * i on, at any alignment of the row, so bits do
// not depend on it. In memory they begin `a` elements (0 to 7) into an aligned vector. A thread
// loads the aligned vectors in which its own ones begin, gets the following ones from the next lane
// by shuffles, and extracts its elements from both. Stores go the other way. A warp's vectors are
// contiguous, so only its first and last one involve another warp. Vectors at the ends of a row are
// accessed element by element: nothing outside the row is touched.
#ifndef KF_CORE_ROWS_SHIFT_CUH
#define KF_CORE_ROWS_SHIFT_CUH

#include "kf/core/rows/access.cuh"
#include "kf/core/rows/reduce.cuh"

#ifdef KFI_DEVICE_PASS
// Alignment of a thread's vectors, and the end of its row.
struct kfi_shift {
    int a;     // elements from the aligned vector's first one to the thread's first one
    int lane;  // lane among the lanes of the warp that share the row
    int lanes; // number of these lanes, a power of two
    // Offset, in elements from the thread's first one, of the aligned vector in which the row ends.
    int end;
    int rest; // elements of the row in that vector; 0: the row ends at a vector's end
};
// room: elements from the thread's first one to the end of the row.
KFI_DEVICE kfi_shift kfi_shift_at(const void *first, int room, const kfi_row_layout &g)
{
    kfi_shift of;
    of.a = (int)((size_t)first & 15) / 2;
    of.lanes = g.lanes < 32 ? g.lanes : 32;
    of.lane = (int)threadIdx.x & (of.lanes - 1);
    of.end = (of.a + room) & ~7;
    of.rest = (of.a + room) & 7;
    return of;
}
// True if the thread has that vector among its `count`.
KFI_DEVICE bool kfi_shift_ends(const kfi_shift &of, int count)
{
    const int step = of.lanes * 8;
    return of.rest > 0 && of.end >= 0 && of.end < count * step && (of.end & (step - 1)) == 0;
}
KFI_DEVICE uint4 kfi_shift_lane(const uint4 &v, const kfi_shift &of, int by)
{
    const int from = ((int)threadIdx.x & (32 - of.lanes)) + ((of.lane + by) & (of.lanes - 1));
    return {__shfl_sync(0xffffffffu, v.x, from), __shfl_sync(0xffffffffu, v.y, from),
            __shfl_sync(0xffffffffu, v.z, from), __shfl_sync(0xffffffffu, v.w, from)};
}
// Extracts the 8 elements from number `from` (0 to 7) on from two adjacent vectors.
KFI_DEVICE uint4 kfi_shift_extract(const uint4 &low, const uint4 &high, int from)
{
    unsigned w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = from & 4 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = from & 2 ? w[i + 1] : w[i];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        w[i] = (unsigned)(((unsigned long long)w[i + 1] << 32 | w[i]) >> (from & 1) * 16);
    return {w[0], w[1], w[2], w[3]};
}
// Reads elements `from` to `to` of an aligned vector; the others are zero.
KFI_DEVICE uint4 kfi_shift_read(const char *src, int from, int to)
{
    alignas(16) unsigned short e[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        e[i] = 0;
        if (i >= from && i < to) kfi_copy<2>(&e[i], src + i * 2);
    }
    return *(const uint4 *)e;
}
KFI_DEVICE void kfi_shift_write(char *dst, const uint4 &v, int from, int to)
{
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (i >= from && i < to) kfi_copy<2>(dst + i * 2, (const char *)&v + i * 2);
}
// Counterpart of kfi_row_ahead. Copies the aligned vectors that are within the row.
template <int in_registers>
KFI_DEVICE void kfi_shift_ahead(char *slot, const void *src, int first, int step, int space,
                                const kfi_row_layout &g)
{
    const kfi_shift of = kfi_shift_at(src, space, g);
    const char *const from = (const char *)src - of.a * 2;
    const bool begins = first == 0 && of.a > 0;
#pragma unroll
    for (int s = 0; s < in_registers; ++s)
        if ((s > 0 || !begins) && s * step + 8 <= of.a + space)
            kfi_fetch<16>(slot + s * 16, from + s * step * 2);
    if (begins && space > 0) kfi_prefetch_l1(src); // its elements are loaded one by one
    if (kfi_shift_ends(of, in_registers)) kfi_prefetch_l1(from + of.end * 2);
}
// Counterpart of kfi_row_load_all. src: the thread's first element; slot: the copied vectors in
// shared memory (ringed).
template <int in_registers, bool ringed>
KFI_DEVICE void kfi_shift_load_row(void *dst, const char *slot, const void *src, int first,
                                   int step, int room, const kfi_row_layout &g)
{
    uint4 *const v = (uint4 *)dst;
    const kfi_shift of = kfi_shift_at(src, room, g);
    const char *const from = (const char *)src - of.a * 2;
    const bool front = of.lane == 0, begins = first == 0 && of.a > 0;
    const uint4 zero = {0, 0, 0, 0};
    uint4 next = zero; // the one after the warp's last vector
#pragma unroll
    for (int s = 0; s < in_registers; ++s) {
        v[s] = zero;
        if ((s > 0 || !begins) && s * step + 8 <= of.a + room)
            kfi_copy<16>(&v[s], ringed ? slot + s * 16 : from + s * step * 2);
    }
    if (front && in_registers * step + 8 <= of.a + room)
        kfi_copy<16>(&next, from + in_registers * step * 2);
    const bool ends = kfi_shift_ends(of, in_registers + front) && !(begins && of.end == 0);
    if (begins || ends) {
        const uint4 head = kfi_shift_read(from, begins ? of.a : 8, of.a + room);
        const uint4 tail = kfi_shift_read(ends ? from + of.end * 2 : from, 0, ends ? of.rest : 0);
        if (begins) v[0] = head;
#pragma unroll
        for (int s = 0; s < in_registers; ++s)
            if (ends && s * step == of.end) v[s] = tail;
        if (ends && in_registers * step == of.end) next = tail;
    }
#pragma unroll
    for (int s = 0; s < in_registers; ++s) {
        const uint4 give =
            front ? s + 1 < in_registers ? v[s + 1 < in_registers ? s + 1 : 0] : next : v[s];
        v[s] = kfi_shift_extract(v[s], kfi_shift_lane(give, of, 1), of.a);
    }
}
// State that a thread's stores share.
struct kfi_shifted {
    char *first; // the thread's first element
    int step, room;
    uint4 before; // last vector stored by the lane before the first one
    uint4 last;   // the vector in which the row ends
};
// Stores the thread's vector s of `in_registers`; called in order.
template <int in_registers>
KFI_DEVICE void kfi_shift_store(kfi_shifted *so, const void *value, int s, const kfi_row_layout &g)
{
    const kfi_shift of = kfi_shift_at(so->first, so->room, g);
    const int step = so->step, room = so->room;
    char *const to = so->first - of.a * 2;
    const uint4 own = *(const uint4 *)value, up = kfi_shift_lane(own, of, -1);
    // another thread has the elements before
    const bool begins = s == 0 && of.lane == 0 && of.a > 0;
    uint4 both = of.lane == 0 ? so->before : up;
    both = of.a > 0 ? kfi_shift_extract(both, own, (8 - of.a) & 7) : own;
    so->before = up;
    if (!begins && s * step + 8 <= of.a + room) kfi_store<16>(to + s * step * 2, &both);
    if (begins) kfi_shift_write(to, both, of.a, of.a + room);
    if (s * step == of.end) so->last = both;
    const int left = of.a + room - s * step - 8; // elements of the row after the last lane's vector
    // The next aligned vector begins with elements of this warp.
    if (s + 1 == in_registers && of.lane == of.lanes - 1 && of.a > 0)
        kfi_shift_write(to + (s * step + 8) * 2, kfi_shift_extract(own, own, (8 - of.a) & 7), 0,
                        of.a < left ? of.a : left);
}
// Stores the row's last, incomplete vector.
template <int in_registers, int schedule>
KFI_DEVICE void kfi_shift_done(const kfi_shifted &so, const kfi_row_layout &g)
{
    if (kfi_rows_aligned(schedule) || !in_registers) return;
    const kfi_shift of = kfi_shift_at(so.first, so.room, g);
    if (kfi_shift_ends(of, in_registers) && !(of.lane == 0 && of.a > 0 && of.end == 0))
        kfi_shift_write(so.first + (of.end - of.a) * 2, so.last, 0, of.rest);
}
// Entry points of a kernel of any `schedule` (kfi_rows_schedule): load a row's vectors into
// registers, copy the next row's vectors to shared memory, store a result. left: elements from the
// vector's first one to the end of the row.
template <int in_registers, int schedule>
KFI_DEVICE void kfi_shift_row(void *dst, const char *slot, const void *src, int first, int step,
                              int room, const kfi_row_layout &g)
{
    if (in_registers && !kfi_rows_aligned(schedule))
        kfi_shift_load_row<in_registers, kfi_rows_kind(schedule) == KFI_ROWS_PERSISTENT>(
            dst, slot, src, first, step, room, g);
    else
        kfi_row_load_row<2, 8, kfi_rows_aligned(schedule), in_registers>(
            dst, schedule == (KFI_ROWS_PERSISTENT | KFI_ROWS_ALIGNED), slot, src, step, room);
}
template <int in_registers, int schedule>
KFI_DEVICE void kfi_shift_next(char *slot, const void *src, int first, int step, int space,
                               const kfi_row_layout &g)
{
    if (kfi_rows_aligned(schedule))
        kfi_row_ahead<2, 8, in_registers>(slot, src, step, space);
    else
        kfi_shift_ahead<in_registers>(slot, src, first, step, space, g);
}
template <int in_registers, int schedule>
KFI_DEVICE void kfi_shift_store_vector(kfi_shifted *so, const void *value, int s, kf_i64 off,
                                       kf_i64 left, const kfi_row_layout &g)
{
    if (in_registers && !kfi_rows_aligned(schedule))
        kfi_shift_store<in_registers>(so, value, s, g);
    else
        kfi_row_store<2, 8, kfi_rows_aligned(schedule)>((char (*)[2])so->first + off, value, left);
}
// Applies a function to each element of a vector. Almost all vectors are entirely within the row;
// these skip the comparisons.
template <int schedule, class each> KFI_DEVICE void kfi_shift_each(const each &element, kf_i64 left)
{
    if (kfi_rows_aligned(schedule) || left >= 8) {
#pragma unroll
        for (int e = 0; e < 8; ++e) element(e, !kfi_rows_aligned(schedule) || left > 0);
    } else {
#pragma unroll
        for (int e = 0; e < 8; ++e) element(e, e < left);
    }
}
// Loads a vector of an operand that all rows share; most of them are aligned.
template <int size, int vec, int whole>
KFI_DEVICE void kfi_shift_load(void *dst, const void *src, kf_i64 left)
{
    if (whole || (left >= vec && ((size_t)src & 15) == 0))
        kfi_row_load<size, vec, 1>(dst, src, left);
    else
        kfi_row_load<size, vec, 0>(dst, src, left);
}
#endif

#endif
