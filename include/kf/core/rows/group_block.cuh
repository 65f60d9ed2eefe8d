// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/group_block.cuh: device code of channel blocks that channel_block.cuh lacks: blocks
// held by a cluster, and rows that are groups of channels with inner = 1 (group norm NHWC).
//
// Schedule: a thread's vectors have the same columns of different pixels, so weights and gradients
// of channels stay in registers. A cluster of up to 8 CUDA blocks holds a channel block: each block
// reduces its pixels, sends its totals to all blocks of the cluster, and combines those of all in
// their order. Each element is read once.
//
// Callers: templates/rows/band.cuh.j2. Sums are deterministic and depend on the sizes alone.
#ifndef KF_CORE_ROWS_GROUP_BLOCK_CUH
#define KF_CORE_ROWS_GROUP_BLOCK_CUH

#include "kf/core/rows/channel_block.cuh"

#ifdef KFI_DEVICE_PASS
// Announces that the block has begun, so that others may write to its shared memory
// (kfi_band_send).
KFI_DEVICE void kfi_band_begin_cluster(const kfi_bands &g)
{
#if KFI_CLUSTERS
    if (g.parts > 1) kfi_cluster_arrive();
#else
    (void)g;
#endif
}
// Sends `count` values per channel to all blocks of the cluster: slots[block][count][segs]. first:
// the first call of a kernel.
template <int first, class R, class Thread>
KFI_DEVICE void kfi_band_send(R *slots, const R *totals, int count, const kfi_bands &g,
                              const Thread &at)
{
#if KFI_CLUSTERS
    const int all = count * g.segs;
    if (first) kfi_cluster_wait();
    for (int to = 0; to < (int)g.parts; ++to)
        for (int i = (int)threadIdx.x; i < all; i += (int)blockDim.x)
            kfi_cluster_store(slots + (int)at.part * all + i, to, totals[i]);
    kfi_cluster_arrive();
    kfi_cluster_wait();
#else
    (void)slots, (void)totals, (void)count, (void)g, (void)at;
#endif
}
// Combines the totals of a cluster's blocks. words: reductions, 2 bits each. Called by all threads;
// synchronises at the end.
template <int first, int words, int count, class R, class Thread>
KFI_DEVICE void kfi_band_across(R *totals, R *slots, const kfi_bands &g, const Thread &at)
{
    if (g.parts == 1) return;
    kfi_band_send<first>(slots, totals, count, g, at);
    for (int k = (int)threadIdx.x; k < at.segs; k += (int)blockDim.x)
#pragma unroll
        for (int v = 0; v < count; ++v) {
            R own = slots[v * g.segs + k];
            for (int b = 1; b < (int)g.parts; ++b)
                own = kfi_join(words >> 2 * v & 3, own, slots[(b * count + v) * g.segs + k]);
            totals[v * g.segs + k] = own;
        }
    __syncthreads();
}
// The same for moments: [3][segs] sums, squares, numbers (kfi_band_moments).
template <int first, class R, class Thread>
KFI_DEVICE void kfi_band_across_moments(R *totals, R *slots, const kfi_bands &g, const Thread &at)
{
    if (g.parts == 1) return;
    kfi_band_send<first>(slots, totals, 3, g, at);
    for (int k = (int)threadIdx.x; k < at.segs; k += (int)blockDim.x) {
        R sum = 0, number = 0, square = 0;
        for (int b = 0; b < (int)g.parts; ++b) {
            sum += slots[b * 3 * g.segs + k];
            number += slots[(b * 3 + 2) * g.segs + k];
        }
        const R mean = number > 0 ? sum / number : (R)0;
        for (int b = 0; b < (int)g.parts; ++b)
            square += slots[(b * 3 + 1) * g.segs + k] +
                      kfi_band_deviation(slots[(b * 3 + 2) * g.segs + k], slots[b * 3 * g.segs + k],
                                         mean);
        totals[k] = sum, totals[g.segs + k] = square, totals[2 * g.segs + k] = number;
    }
    __syncthreads();
}

// Position of a block among groups: its batch, and the first channel of its channel block.
struct kfi_group_place {
    kf_i64 batch, first;
};
// Computes the coordinates of a thread. Blocks are ordered as the memory, or, if a cluster holds a
// channel block, cluster by cluster.
template <int form, int vec, int held>
KFI_DEVICE kfi_band_thread<kfi_band_slots<form, vec>()>
kfi_group_enter(const kfi_group_bands &g, bool back, kfi_group_place *place)
{
    const kf_i64 block = back ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const kf_i64 parts = (kf_i64)g.parts.d, bands = (kf_i64)g.bands.d;
    const kf_i64 turn = kfi_divide(block, held ? g.parts : g.bands);
    place->batch = kfi_divide(turn, held ? g.bands : g.parts);
    const kf_i64 part = held ? block - turn * parts : turn - place->batch * parts,
                 band = held ? turn - place->batch * bands : block - turn * bands;
    const kf_i64 group = band * g.band.segs;
    place->first = group * g.band.inner;
    return kfi_band_enter_part<form, vec>(g.band, part, place->batch * g.groups + group,
                                          g.groups - group);
}
// Adds a block's terms of each channel over its pixels, and stores the sums to `to`. Called by all
// threads; synchronises.
template <int vec, class R, class Thread>
KFI_DEVICE void kfi_group_store_sums(R *to, const R (&sum)[vec], R *buffer, const kfi_bands &g,
                                     const Thread &at)
{
    const int stride = g.wide * vec, width = at.segs * (int)g.inner;
#pragma unroll
    for (int e = 0; e < vec; ++e) buffer[(int)threadIdx.x * vec + e] = sum[e];
    __syncthreads();
    for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
        R total = buffer[c];
#pragma unroll 8
        for (int y = 1; y < g.rows; ++y) total += buffer[y * stride + c];
        to[c] = total;
    }
    __syncthreads();
}
#endif

#endif
