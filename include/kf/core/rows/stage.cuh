// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/stage.cuh: a long row of 2-byte elements that begins at any address, staged in shared
// memory, where a block goes over it.
//
// Its aligned vectors are copied as they lie; only where it begins and ends are elements copied one
// by one, so that nothing outside of the row is touched. A thread's elements in a reduction are
// `lanes` apart, which no banks of shared memory mind and no address has to be aligned for: bits
// depend on the row's length alone. A result has its own aligned vectors, each of which one thread
// computes.
#ifndef KF_CORE_ROWS_STAGE_CUH
#define KF_CORE_ROWS_STAGE_CUH

#include "kf/core/rows/shift.cuh"

#ifdef KFI_DEVICE_PASS
#define KFI_STAGE_SPARE 16 // bytes before and behind a row, which a result's vectors reach into
// Elements from an aligned vector's first one to this address.
KFI_DEVICE int kfi_stage_behind(const void *p) { return (int)((size_t)p & 15) / 2; }
#define KFI_STAGE_AHEAD 6 // rounds on their way, a vector a thread each
// A row on its way: its aligned vectors, and how many rounds of them have been asked for.
template <class type> struct kfi_stage {
    const char *from; // the vector in which the row begins
    char *to;
    int next, end;   // a thread's next vector, and the first one that is not wholly in the row
    const type *row; // its first element in shared memory
};
template <class type> KFI_DEVICE void kfi_stage_ask(kfi_stage<type> *row)
{
    if (row->next < row->end) kfi_fetch<16>(row->to + row->next * 16, row->from + row->next * 16);
    row->next += (int)blockDim.x;
    kfi_fetch_commit();
}
// The first rounds, and the elements where the row begins and ends, by all threads of the block.
template <class type>
KFI_DEVICE kfi_stage<type> kfi_stage_row(char *place, const type *row, kf_i64 count)
{
    const int a = kfi_stage_behind(row), cols = (int)count, lane = (int)threadIdx.x, begin = a > 0,
              rest = (a + cols) & 7;
    char *const to = place + KFI_STAGE_SPARE;
    kfi_stage<type> of = {(const char *)row - a * 2, to, begin + lane, (a + cols) / 8,
                          (const type *)to + a};
    const int end = of.end * 8; // of whole vectors, in elements
#pragma unroll
    for (int i = 0; i < KFI_STAGE_AHEAD; ++i) kfi_stage_ask(&of);
    if (begin && lane >= a && lane < 8) kfi_copy<2>(of.to + lane * 2, of.from + lane * 2);
    if (lane < rest) kfi_copy<2>(of.to + (end + lane) * 2, of.from + (end + lane) * 2);
    return of;
}
// One round more, and then whatever a reduction's next eight elements of each thread need has come.
template <class type> KFI_DEVICE void kfi_stage_await(kfi_stage<type> *row)
{
    kfi_stage_ask(row);
    kfi_fetch_wait<KFI_STAGE_AHEAD>();
    __syncthreads();
}
// Elements of a row that are this thread's.
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
// Eight elements, `apart` elements from each other, of which there are `left`; the others are zero.
template <class type>
KFI_DEVICE void kfi_stage_take(float (&v)[8], const type *src, int apart, int left)
{
    if (left >= 8) {
#pragma unroll
        for (int e = 0; e < 8; ++e) v[e] = kfi_stage_number(src + e * apart);
    } else {
#pragma unroll
        for (int e = 0; e < 8; ++e) v[e] = e < left ? kfi_stage_number(src + e * apart) : 0;
    }
}
// What a reduction does with each of a thread's elements, whose values are in v. pass: the first
// one goes along with what comes.
template <int pass, class type, class each>
KFI_DEVICE void kfi_stage_pass(kfi_stage<type> *of, float (&v)[8], const kfi_row_layout &g,
                               const each &element)
{
    const int lane = (int)threadIdx.x;
    const int own = kfi_stage_count(g.cols, lane, g.lanes);
#pragma unroll(pass ? 2 : 1)
    for (int s = 0; s < g.loops; ++s) {
        const int left = own - 8 * s;
        if (!pass) kfi_stage_await(of);
        kfi_stage_take(v, of->row + lane + 8 * s * g.lanes, g.lanes, left);
        kfi_shift_each<0>(element, left);
    }
}
// Eight elements side by side, at any address, which is aligned for all of a block or for none;
// what is outside of the row is anything.
template <class type> KFI_DEVICE void kfi_stage_vector(float (&v)[8], const type *src)
{
    alignas(16) type found[8];
    if (kfi_stage_behind(src) == 0) {
        kfi_copy<16>(found, src);
    } else {
#pragma unroll
        for (int e = 0; e < 8; ++e) found[e] = src[e];
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = kfi_stage_number(found + e);
}
// A result's vector that begins at column `first`, which may be before the row's first one.
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
