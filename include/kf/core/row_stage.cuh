// SPDX-License-Identifier: Apache-2.0
// kf/core/row_stage.cuh: a long row of 2-byte elements that begins at any address, staged in shared memory, where a block goes over it.
//
// Its aligned vectors are copied as they lie; only where it begins and ends are elements copied one by one, so that nothing outside of the row is
// touched. A thread's elements in a reduction are `lanes` apart, which no banks of shared memory mind and no address has to be aligned for:
// bits depend on the row's length alone. A result has its own aligned vectors, each of which one thread computes.
#ifndef KF_CORE_ROW_STAGE_CUH
#define KF_CORE_ROW_STAGE_CUH

#include "kf/core/row_shift.cuh"

#ifdef KFI_DEVICE_PASS
#define KFI_STAGE_SPARE 16 // bytes before and behind a row, which a result's vectors reach into
// Elements from an aligned vector's first one to this address.
KFI_DEVICE int kfi_stage_behind(const void *p) { return (int)((size_t)p & 15) / 2; }
// The row on its way, by all threads of the block. Its first element will be at the place returned.
KFI_DEVICE const char *kfi_stage_row(char *place, const void *row, kf_i64 count)
{
    const int a = kfi_stage_behind(row), cols = (int)count, lane = (int)threadIdx.x, lanes = (int)blockDim.x;
    const char *const from = (const char *)row - a * 2;
    char *const to = place + KFI_STAGE_SPARE;
    const int begin = a > 0, end = (a + cols) / 8, rest = (a + cols) & 7, head = a > 0 ? 8 - a : 0;
#pragma unroll 4
    for (int i = begin + lane; i < end; i += lanes) kfi_fetch<16>(to + i * 16, from + i * 16);
    kfi_fetch_commit();
    if (lane < head && lane < cols) kfi_copy<2>(to + (a + lane) * 2, (const char *)row + lane * 2);
    if (lane < rest && end >= begin) kfi_copy<2>(to + (end * 8 + lane) * 2, from + (end * 8 + lane) * 2);
    return to + a * 2;
}
KFI_DEVICE void kfi_stage_await()
{
    kfi_fetch_wait<0>();
    __syncthreads();
}
// Elements of a row that are this thread's.
KFI_DEVICE int kfi_stage_count(kf_i64 cols, int lane, int lanes) { return lane < cols ? ((int)cols - lane + lanes - 1) / lanes : 0; }
// Eight elements, `apart` elements from each other, of which there are `left`; the others are zero.
#define KFI_STAGE_TAKE(type, word)                                                                                                         \
    KFI_DEVICE void kfi_stage_take(float(&v)[8], const type *src, int apart, int left)                                                     \
    {                                                                                                                                      \
        if (left >= 8) {                                                                                                                   \
            _Pragma("unroll") for (int e = 0; e < 8; ++e) kfi_unpack_##word<1>(&v[e], src + e * apart);                                    \
            return;                                                                                                                        \
        }                                                                                                                                  \
        _Pragma("unroll") for (int e = 0; e < 8; ++e)                                                                                      \
        {                                                                                                                                  \
            v[e] = 0;                                                                                                                      \
            if (e < left) kfi_unpack_##word<1>(&v[e], src + e * apart);                                                                    \
        }                                                                                                                                  \
    }
KFI_STAGE_TAKE(kf_f16, f16)
KFI_STAGE_TAKE(kf_bf16, bf16)
// Eight elements side by side; what is outside of the row is anything.
template <class type> KFI_DEVICE void kfi_stage_vector(type (&v)[8], const char *src, bool aligned)
{
    if (aligned) {
        kfi_copy<16>(v, src);
    } else {
#pragma unroll
        for (int e = 0; e < 8; ++e) kfi_copy<2>(&v[e], src + e * 2);
    }
}
// A result's vector that begins at column `first`, which may be before the row's first one.
KFI_DEVICE void kfi_stage_store(char *row, const void *value, int first, int cols)
{
    if (first >= 0 && first + 8 <= cols)
        kfi_store<16>(row + first * 2, value);
    else
        kfi_shift_write(row + first * 2, *(const uint4 *)value, -first, cols - first);
}
#endif

#endif
