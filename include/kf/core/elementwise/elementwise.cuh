// SPDX-License-Identifier: Apache-2.0
// kf/core/elementwise/elementwise.cuh: the schedules of the map family. Kernels take args.cuh, speak the words of
// device.cuh, and are launched by host.cuh.
//
// each   one vector per thread (a few for dropout), whatever is broadcast: the vector's place among
// the rows or planes is
//        found by one multiplication. Nothing is kept in flight by hand: 2,048 threads an SM, 16
//        bytes each, are enough. Several vectors per thread lie whole rows (or batches) apart, so
//        that they share their row values.
// sum    some gradient is reduced to a row or to channels. A block works on a rectangle of rows x
// columns (batches x
//        channels * inner): a thread keeps its columns, loops over the rows, and adds up in
//        registers; partial sums go to the workspace, a second small kernel adds them.
#ifndef KF_CORE_ELEMENTWISE_ELEMENTWISE_CUH
#define KF_CORE_ELEMENTWISE_ELEMENTWISE_CUH

#include "kf/core/elementwise/args.cuh"
#include "kf/core/elementwise/device.cuh"
#include "kf/core/elementwise/host.cuh"

#ifndef KFI_DRIVER

// The same for planes: a block per channel, over the tiles that touch it.
template <int acc, int dtype> KFI_KERNEL void KFI_BOUNDS(KFI_MAP_THREADS) kfk_sum_planes(kfi_sums s)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    __shared__ double buffer[KFI_MAP_THREADS / 32];
    const kf_i64 channel = blockIdx.x, begin = channel * s.inner, tile = begin / s.tile_cols;
    const kf_i64 tiles = (begin + s.inner - 1) / s.tile_cols - tile + 1;
    double total = 0.0;
    void *const out = kfi_sum_out(s, blockIdx.y);
    if (!out) return;
    for (kf_i64 k = threadIdx.x; k < s.parts * tiles; k += KFI_MAP_THREADS) {
        const kf_i64 part = k / tiles, t = tile + k - part * tiles;
        total += (double)kfi_load_sum(kfi_tag<acc>(), s.partial,
                                      ((blockIdx.y * s.parts + part) * s.tiles + t) * s.slots +
                                          channel - t * s.tile_cols / s.inner);
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) total += __shfl_xor_sync(0xffffffffu, total, step);
    if (threadIdx.x % 32 == 0) buffer[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int k = 1; k < KFI_MAP_THREADS / 32; ++k) total += buffer[k];
    kfi_store_sum(kfi_tag<dtype>(), out, channel, total);
#endif
}
#endif

#endif
