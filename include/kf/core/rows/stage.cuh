// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/stage.cuh: long unaligned rows of 2-byte elements, staged in shared memory by one
// block per row.
//
// Aligned vectors are copied asynchronously; elements before the first and after the last one are
// copied one by one, so nothing outside the row is touched. In a reduction a thread's elements have
// a stride of `lanes`: free of bank conflicts and of alignment requirements, so bits depend on the
// row length only. A result is stored by its own aligned vectors, each computed by one thread.
#ifndef KF_CORE_ROWS_STAGE_CUH
#define KF_CORE_ROWS_STAGE_CUH

#include "kf/core/rows/shift.cuh"

#ifdef KFI_DEVICE_PASS
// bytes before and after a row, covered by a result's first and last vector
#define KFI_STAGE_SPARE 16
// Elements from the aligned vector's first one to this address.
KFI_DEVICE int kfi_stage_offset(const void *p) { return (int)((size_t)p & 15) / 2; }
#define KFI_STAGE_AHEAD 6 // stages in flight, one vector per thread each
// A row in flight: its aligned vectors, and the number of stages issued.
template <class type> struct kfi_stage {
    const char *from; // the aligned vector in which the row begins
    char *to;
    int next, end;   // a thread's next vector; the first one that is not entirely in the row
    const type *row; // its first element in shared memory
};
template <class type> KFI_DEVICE void kfi_stage_issue(kfi_stage<type> *row)
{
    if (row->next < row->end) kfi_fetch<16>(row->to + row->next * 16, row->from + row->next * 16);
    row->next += (int)blockDim.x;
    kfi_fetch_commit();
}
// Issues the first stages and copies the elements at both ends of the row; called by all threads.
template <class type>
KFI_DEVICE kfi_stage<type> kfi_stage_row(char *place, const type *row, kf_i64 count)
{
    const int a = kfi_stage_offset(row), cols = (int)count, lane = (int)threadIdx.x, begin = a > 0,
              rest = (a + cols) & 7;
    char *const to = place + KFI_STAGE_SPARE;
    kfi_stage<type> of = {(const char *)row - a * 2, to, begin + lane, (a + cols) / 8,
                          (const type *)to + a};
    const int end = of.end * 8; // whole vectors, in elements
#pragma unroll
    for (int i = 0; i < KFI_STAGE_AHEAD; ++i) kfi_stage_issue(&of);
    if (begin && lane >= a && lane < 8) kfi_copy<2>(of.to + lane * 2, of.from + lane * 2);
    if (lane < rest) kfi_copy<2>(of.to + (end + lane) * 2, of.from + (end + lane) * 2);
    return of;
}
// Issues one more stage, then waits until the stage that the next reduction step reads has arrived.
template <class type> KFI_DEVICE void kfi_stage_wait(kfi_stage<type> *row)
{
    kfi_stage_issue(row);
    kfi_fetch_wait<KFI_STAGE_AHEAD>();
    __syncthreads();
}
// Number of elements of a row that this thread has.
KFI_DEVICE int kfi_stage_count(kf_i64 cols, int lane, int lanes)
{
    return lane < cols ? ((int)cols - lane + lanes - 1) / lanes : 0;
}
KFI_DEVICE float kfi_stage_number(const kf_f16 *s)
{
    float v;
    kfi_unpack_f16<1>(&v, s);
    return v;
}
KFI_DEVICE float kfi_stage_number(const kf_bf16 *s)
{
    float v;
    kfi_unpack_bf16<1>(&v, s);
    return v;
}
// Loads 8 elements with a given stride, of which `left` are in the row; the others are zero.
template <class type>
KFI_DEVICE void kfi_stage_load_elements(float (&v)[8], const type *src, int stride, int left)
{
    if (left >= 8) {
#pragma unroll
        for (int e = 0; e < 8; ++e) v[e] = kfi_stage_number(src + e * stride);
    } else {
#pragma unroll
        for (int e = 0; e < 8; ++e) v[e] = e < left ? kfi_stage_number(src + e * stride) : 0;
    }
}
// Applies a reduction to each of a thread's elements, with their values in v. pass: pass 0 overlaps
// with the copies.
template <int pass, class type, class each>
KFI_DEVICE void kfi_stage_pass(kfi_stage<type> *of, float (&v)[8], const kfi_row_layout &g,
                               const each &element)
{
    const int lane = (int)threadIdx.x;
    const int own = kfi_stage_count(g.cols, lane, g.lanes);
#pragma unroll(pass ? 2 : 1)
    for (int s = 0; s < g.loops; ++s) {
        const int left = own - 8 * s;
        if (!pass) kfi_stage_wait(of);
        kfi_stage_load_elements(v, of->row + lane + 8 * s * g.lanes, g.lanes, left);
        kfi_shift_each<0>(element, left);
    }
}
// Loads 8 contiguous elements at any alignment, uniform over the block. Elements outside the row
// are garbage.
template <class type> KFI_DEVICE void kfi_stage_vector(float (&v)[8], const type *src)
{
    alignas(16) type found[8];
    if (kfi_stage_offset(src) == 0) {
        kfi_copy<16>(found, src);
    } else {
#pragma unroll
        for (int e = 0; e < 8; ++e) found[e] = src[e];
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = kfi_stage_number(found + e);
}
// Stores a result's vector that begins at column `first`, which may be negative.
KFI_DEVICE void kfi_stage_store(void *row, const void *value, int first, int cols)
{
    char *const to = (char *)row + first * 2;
    if (first >= 0 && first + 8 <= cols)
        kfi_store<16>(to, value);
    else
        kfi_shift_write(to, *(const uint4 *)value, -first, cols - first);
}
#endif

#endif
