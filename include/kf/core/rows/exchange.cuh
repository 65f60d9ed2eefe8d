// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/exchange.cuh: unaligned rows of 4-byte elements in registers: contiguous accesses,
// and an exchange among the lanes of a row.
//
// A lane owns four adjacent elements, whatever the address of the row: so a row's bits do not
// depend on it. Loaded by their owner, each access of a warp would touch a quarter of four times as
// many sectors, and stores would write each sector in four parts. Instead lane l of L accesses the
// elements k * L + l, k = 0 to 3, of the lanes' vectors. Four shuffles, of which each sends one
// element of each lane, then exchange owner and accessor.
//
// Callers: templates/rows/registers.cuh.j2, persistent.cuh.j2 and last.cuh.j2. All lanes of a warp
// call each function. Rows of one or two lanes are accessed by their owners.
#ifndef KF_CORE_ROWS_EXCHANGE_CUH
#define KF_CORE_ROWS_EXCHANGE_CUH

#include "kf/core/rows/access.cuh"

#ifdef KFI_DEVICE_PASS
// A thread's place among the lanes of a warp that have its row.
struct kfi_exchange {
    int lanes, lane, quarter; // quarter: index of the lane's quarter of the lanes
};
KFI_DEVICE kfi_exchange kfi_exchange_lanes(const kfi_row_layout &g)
{
    kfi_exchange x;
    x.lanes = g.lanes < 32 ? g.lanes : 32;
    x.lane = (int)threadIdx.x & (x.lanes - 1);
    x.quarter = g.lanes < 32 ? 4 * x.lane * g.share >> 20 : x.lane / 8;
    return x;
}
KFI_DEVICE bool kfi_exchanges(const kfi_row_layout &g) { return g.lanes >= 4; }
// Rotates four words: v[i] becomes v[(i + by) % 4].
KFI_DEVICE void kfi_exchange_rotate(unsigned (&v)[4], int by)
{
    const unsigned a[4] = {by & 1 ? v[1] : v[0], by & 1 ? v[2] : v[1], by & 1 ? v[3] : v[2],
                           by & 1 ? v[0] : v[3]};
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = by & 2 ? a[(i + 2) & 3] : a[i];
}
KFI_DEVICE unsigned kfi_exchange_from(unsigned v, const kfi_exchange &x, int lane)
{
    return __shfl_sync(0xffffffffu, v, ((int)threadIdx.x & (32 - x.lanes)) + lane);
}
// Accessed elements to owned ones: in round j a lane receives its element (quarter - j) % 4.
KFI_DEVICE void kfi_exchange_own(unsigned (&v)[4], const kfi_exchange &x)
{
    kfi_exchange_rotate(v, x.lane);
    unsigned own[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
        own[(4 - j) & 3] =
            kfi_exchange_from(v[j], x, 4 * (x.lane & (x.lanes / 4 - 1)) + ((x.quarter - j) & 3));
    kfi_exchange_rotate(own, -x.quarter);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = own[i];
}
// Owned elements to accessed ones: in round j a lane sends its element (quarter - j) % 4.
KFI_DEVICE void kfi_exchange_access(unsigned (&v)[4], const kfi_exchange &x)
{
    kfi_exchange_rotate(v, x.quarter);
    unsigned out[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
        out[j] =
            kfi_exchange_from(v[(4 - j) & 3], x, ((j + x.lane) & 3) * (x.lanes / 4) + x.lane / 4);
    kfi_exchange_rotate(out, -x.lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = out[i];
}
// Copies a thread's accessed elements of a row to its own slots (kfi_row_ahead). src: the thread's
// first owned element; space: elements from there to the end of the row.
template <int whole, int in_registers>
KFI_DEVICE void kfi_exchange_ahead(char *slot, const void *src, int step, int space,
                                   const kfi_row_layout &g)
{
    if (whole || !kfi_exchanges(g)) {
        kfi_row_ahead<4, 4, whole, in_registers>(slot, src, step, space);
        return;
    }
    const kfi_exchange x = kfi_exchange_lanes(g);
    const char *const from = (const char *)src + (x.lane - 4 * x.lane) * 4;
    const int left = space - x.lane + 4 * x.lane;
#pragma unroll
    for (int s = 0; s < in_registers; ++s)
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (left - s * step > k * x.lanes)
                kfi_fetch<4>(slot + s * 16 + k * 4, from + (kf_i64)(s * step + k * x.lanes) * 4);
}
// Counterpart of kfi_row_load_row.
template <int whole, int in_registers>
KFI_DEVICE void kfi_exchange_load_row(void *dst, bool ringed, const char *slot, const void *src,
                                      int step, int room, const kfi_row_layout &g)
{
    if (whole || !in_registers || !kfi_exchanges(g)) {
        kfi_row_load_row<4, 4, whole, in_registers>(dst, ringed, slot, src, step, room);
        return;
    }
    const kfi_exchange x = kfi_exchange_lanes(g);
    const char *const from = (const char *)src + (x.lane - 4 * x.lane) * 4;
    const int left = room - x.lane + 4 * x.lane;
    alignas(16) unsigned v[in_registers ? in_registers : 1][4];
#pragma unroll
    for (int s = 0; s < in_registers; ++s)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            v[s][k] = 0;
            if (left - s * step > k * x.lanes)
                kfi_copy<4>(&v[s][k], ringed ? slot + s * 16 + k * 4
                                             : from + (kf_i64)(s * step + k * x.lanes) * 4);
        }
#pragma unroll
    for (int s = 0; s < in_registers; ++s) {
        kfi_exchange_own(v[s], x);
        kfi_copy<16>((char *)dst + s * 16, v[s]);
    }
}
// Counterpart of kfi_row_store.
template <int whole, int in_registers>
KFI_DEVICE void kfi_exchange_store(void *dst, const void *src, kf_i64 left, const kfi_row_layout &g)
{
    if (whole || !in_registers || !kfi_exchanges(g)) {
        kfi_row_store<4, 4, whole>(dst, src, left);
        return;
    }
    const kfi_exchange x = kfi_exchange_lanes(g);
    char *const to = (char *)dst + (x.lane - 4 * x.lane) * 4;
    const int room = (int)left - x.lane + 4 * x.lane;
    alignas(16) unsigned v[4];
    kfi_copy<16>(v, src);
    kfi_exchange_access(v, x);
#pragma unroll
    for (int k = 0; k < 4; ++k)
        if (room > k * x.lanes) kfi_copy<4>(to + k * x.lanes * 4, &v[k]);
}
#endif

#endif
