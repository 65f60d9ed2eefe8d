// SPDX-License-Identifier: Apache-2.0
// kf/core/map.cuh: elementwise kernels and the second stage of their reduced gradients.
// map_args.cuh has the kernel arguments, map_device.cuh the device functions, map_host.cuh the
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
// cuda/map_*.j2 include this header.
#ifndef KF_CORE_MAP_CUH
#define KF_CORE_MAP_CUH

#if defined(KFI_DECLARED_KF_LAUNCHERS) && !defined(KFI_LAUNCHERS_SOURCE)
#error "kf: do not include kf_launchers.h before kf.cuh: it would hide the functions of kf.cuh"
#endif

#include "kf/core/map_args.cuh"
#include "kf/core/map_device.cuh"
#include "kf/core/map_host.cuh"

#ifndef KFI_DRIVER
// Sums the partial rows of reduced gradients. Grid: (columns / 32, gradients); block: KFI_SUM_LANES
// vectors of 4 columns x KFI_SUM_GROUPS groups of partial rows.
template <int acc, int dtype>
KFI_KERNEL void KFI_BOUNDS(KFI_SUM_LANES *KFI_SUM_GROUPS) kfk_sum_partials(kfi_sums s)
{
#ifdef KFI_DEVICE_PASS
    kfi_begin();
    __shared__ double buffer[KFI_SUM_GROUPS][4 * KFI_SUM_LANES + 1];
    void *const out = kfi_sum_out(s, blockIdx.y);
    if (!out) return;
    const int lane = (int)threadIdx.x % KFI_SUM_LANES, group = (int)threadIdx.x / KFI_SUM_LANES;
    const kf_i64 col = ((kf_i64)blockIdx.x * KFI_SUM_LANES + lane) * 4;
    double total[4] = {}; // few additions: float64 is free here
    for (kf_i64 k = group; k < s.parts; k += KFI_SUM_GROUPS * KFI_SUM_AHEAD) {
        double v[KFI_SUM_AHEAD][4] = {};
#pragma unroll
        for (int u = 0; u < KFI_SUM_AHEAD; ++u) {
            const kf_i64 row = k + u * KFI_SUM_GROUPS;
            if (row < s.parts && col + 4 <= s.count)
                kfi_load_sums(kfi_tag<acc>(), v[u], s.partial,
                              (blockIdx.y * s.parts + row) * s.stride + col);
        }
#pragma unroll
        for (int u = 0; u < KFI_SUM_AHEAD; ++u)
#pragma unroll
            for (int e = 0; e < 4; ++e) total[e] += v[u][e];
    }
    if (col + 4 > s.count) // the last, partial vector: columns past the end are not stored
        for (kf_i64 row = group; row < s.parts; row += KFI_SUM_GROUPS)
#pragma unroll
            for (int e = 0; e < 3; ++e)
                if (col + e < s.count)
                    total[e] += kfi_load_sum(kfi_tag<acc>(), s.partial,
                                             (blockIdx.y * s.parts + row) * s.stride + col + e);
#pragma unroll
    for (int e = 0; e < 4; ++e) buffer[group][4 * lane + e] = total[e];
    __syncthreads();
    // Each warp reduces some columns, one after the other.
    for (int c = (int)threadIdx.x / 32; c < 4 * KFI_SUM_LANES;
         c += KFI_SUM_LANES * KFI_SUM_GROUPS / 32) {
        const double sum = kfi_sum_groups(&buffer[0][c], 4 * KFI_SUM_LANES + 1, KFI_SUM_GROUPS);
        const kf_i64 i = (kf_i64)blockIdx.x * KFI_SUM_LANES * 4 + c;
        if (threadIdx.x % 32 == 0 && i < s.count) kfi_store_sum(kfi_tag<dtype>(), out, i, sum);
    }
#endif
}

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
