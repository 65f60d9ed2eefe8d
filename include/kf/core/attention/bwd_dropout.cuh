// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_dropout.cuh: dropout of the weights in attention's backward: the bits of a
// tile of queries and keys, drawn once by a block and read in either orientation of a fragment.
//
// The bits are those of dropout.cuh: an aligned group of 8 numbers has 4 words of Philox, one half
// per number. A byte of shared memory has the 8 bits of a group: 1 keeps the weight.
// Callers: bwd_mma.cuh, bwd_simt.cuh.
#ifndef KF_CORE_ATTENTION_BWD_DROPOUT_CUH
#define KF_CORE_ATTENTION_BWD_DROPOUT_CUH

#include "kf/core/attention/dropout.cuh"

#define KFI_ATTENTION_KEPT_PITCH 12 // bytes of a query: up to 64 keys, which begin anywhere
#define KFI_ATTENTION_KEPT_QUERIES 64

// Shared memory of a tile. drop: as in kernels.
KFI_BOTH constexpr int kfi_attention_kept_bytes(int drop)
{
    return drop < 0 ? 0 : KFI_ATTENTION_KEPT_PITCH * KFI_ATTENTION_KEPT_QUERIES;
}

#ifdef KFI_DEVICE_PASS

// A tile. first, step: number of the first query's first key, and between queries, modulo 8.
struct kfi_attention_kept {
    unsigned char *bytes;
    int first, step;
};
// Factor of kept weights.
template <int drop, class real> KFI_DEVICE real kfi_attention_kept_factor(const kfi_attention &a)
{
    if constexpr (drop < 0) return real(1);
    return sizeof(real) == 8 ? (real)a.drop.rng.scale_f64 : (real)a.drop.rng.scale;
}
// Draws a tile from a query and a key on. Called by all threads; a barrier makes it visible.
template <int drop, int queries, int keys>
KFI_DEVICE void kfi_attention_draw_tile(kfi_attention_kept *tile, const kfi_rng &rng,
                                        const kfi_attention &a, int query, int key, int head,
                                        int batch)
{
    if constexpr (drop >= 0) {
        constexpr int groups = keys / 8 + 1;
        const kf_i64 number = kfi_attention_number(a, query, head, batch) + key;
        tile->first = (int)number & 7;
        tile->step = (int)a.drop.numbers.row & 7;
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < queries * groups; i += (int)blockDim.x) {
            const int row = i / groups, group = i % groups;
            unsigned w[4], kept = 0;
            kfi_philox(&rng,
                       ((kfi_u64)(number + row * (kf_i64)a.drop.numbers.row) >> 3) + (kfi_u64)group,
                       &w[0], &w[1], &w[2], &w[3]);
#pragma unroll
            for (int e = 0; e < 8; ++e)
                kept |= (unsigned)((w[e / 2] >> 16 * (e % 2) & 0xffffu) >= rng.threshold) << e;
            tile->bytes[row * KFI_ATTENTION_KEPT_PITCH + group] = (unsigned char)kept;
        }
    }
}
// Returns whether the weight of a query and a key of a tile is kept.
template <int drop>
KFI_DEVICE bool kfi_attention_is_kept(const kfi_attention_kept &tile, int query, int key)
{
    if constexpr (drop < 0) return true;
    const int bit = ((tile.first + query * tile.step) & 7) + key;
    return tile.bytes[query * KFI_ATTENTION_KEPT_PITCH + bit / 8] >> bit % 8 & 1;
}
#endif

#endif
