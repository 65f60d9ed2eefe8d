// SPDX-License-Identifier: Apache-2.0
// kf/core/elementwise/elementwise.cuh: elementwise kernels and the second stage of their reduced
// gradients. args.cuh has the kernel arguments, device.cuh the device functions, host.cuh the
// launch configuration.
//
// each   No gradient is reduced. One 16-byte vector per thread, or a few (dropout, broadcasts) that
//        lie whole rows or batches apart and share their row values. One multiplication finds the
//        row or plane of a vector. Grid: ceil(vectors / 256), block: 256 threads, no shared memory.
//        There is no software pipeline: 2,048 threads per SM with 16 bytes each hide the latency.
// sum    Some gradient is reduced to a row or to channels. A block works on a tile of rows x
//        columns (batches x channels * inner). A thread keeps its columns, loops over the rows and
//        accumulates in registers; partial sums go to the workspace. kfk_sum_partials or
//        kfk_sum_planes (below) adds them in a fixed order, in float64.
//
// Results depend on sizes and alignment alone: no kernel uses atomics. The templates
// elementwise/*.cuh.j2 include this header.
#ifndef KF_CORE_ELEMENTWISE_ELEMENTWISE_CUH
#define KF_CORE_ELEMENTWISE_ELEMENTWISE_CUH

#include "kf/core/elementwise/args.cuh"
#include "kf/core/elementwise/device.cuh"
#include "kf/core/elementwise/host.cuh"

#ifndef KFI_DRIVER

// Sums the partial sums of planes: one block per channel reads the tiles that overlap it.
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
