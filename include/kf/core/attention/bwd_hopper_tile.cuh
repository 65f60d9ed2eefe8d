// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_hopper_tile.cuh: tiles of attention's backward by wgmma (bwd_hopper.cuh),
// the layout of their shared memory, and their arguments.
#ifndef KF_CORE_ATTENTION_BWD_HOPPER_TILE_CUH
#define KF_CORE_ATTENTION_BWD_HOPPER_TILE_CUH

#include "kf/core/attention/hopper_tile.cuh"

#define KFI_ATTENTION_BWD_ITEM_KEYS 128 // keys of an item of work, 64 per consumer warpgroup
#define KFI_ATTENTION_BWD_THREADS 384   // a producer and two consumer warpgroups
#define KFI_ATTENTION_BWD_ALIGNED 128   // queries of a head are padded to a multiple of this

// Tiles are the forward's KFI_ATTENTION_WGMMA_64 and _128. A smaller dimension takes the next tile:
// TMA loads zeros past the end.
KFI_BOTH constexpr int kfi_attention_bwd_dim(int tile)
{
    return tile == KFI_ATTENTION_WGMMA_64 ? 64 : 128;
}
// Queries of a step: as many as keep the scores in registers.
KFI_BOTH constexpr int kfi_attention_bwd_queries(int tile)
{
    return tile == KFI_ATTENTION_WGMMA_64 ? 128 : 64;
}

// mbarriers, by number. _full, _empty: of two stages each, where two are counted.
enum {
    KFI_BWD_K_FULL,
    KFI_BWD_V_FULL,
    KFI_BWD_K_EMPTY,
    KFI_BWD_V_EMPTY,
    KFI_BWD_Q_FULL,
    KFI_BWD_DOUT_FULL = KFI_BWD_Q_FULL + 2,
    KFI_BWD_Q_EMPTY = KFI_BWD_DOUT_FULL + 2,
    KFI_BWD_DOUT_EMPTY = KFI_BWD_Q_EMPTY + 2,
    KFI_BWD_DSCORE_FULL = KFI_BWD_DOUT_EMPTY + 2,
    KFI_BWD_DSCORE_EMPTY = KFI_BWD_DSCORE_FULL + 2,
    KFI_BWD_DQ_FULL = KFI_BWD_DSCORE_EMPTY + 2,
    KFI_BWD_DQ_EMPTY = KFI_BWD_DQ_FULL + 2,
    KFI_BWD_ITEM_FULL = KFI_BWD_DQ_EMPTY + 2,
    KFI_BWD_ITEM_EMPTY = KFI_BWD_ITEM_FULL + 2,
    KFI_BWD_BARRIERS = KFI_BWD_ITEM_EMPTY + 2
};

// Bytes of the tiles, and offsets in shared memory: K, V, two stages each of Q, dout, gradients of
// scores and dQ; shifts and deltas of two stages; two numbers of items; mbarriers. `bytes`: of all.
struct kfi_attention_bwd_layout {
    int of_keys, of_queries, of_scores, of_dq;
    int k, v, q, dout, dscore, dq, shift, delta, items, bars, bytes;
};
KFI_BOTH constexpr kfi_attention_bwd_layout kfi_attention_bwd_layout_of(int tile)
{
    const int dim = kfi_attention_bwd_dim(tile), queries = kfi_attention_bwd_queries(tile);
    kfi_attention_bwd_layout at = {};
    at.of_keys = KFI_ATTENTION_BWD_ITEM_KEYS * dim * 2;
    at.of_queries = queries * dim * 2;
    at.of_scores = KFI_ATTENTION_BWD_ITEM_KEYS * queries * 2;
    at.of_dq = queries * dim * 4;
    at.v = at.of_keys;
    at.q = at.v + at.of_keys;
    at.dout = at.q + 2 * at.of_queries;
    at.dscore = at.dout + 2 * at.of_queries;
    at.dq = at.dscore + 2 * at.of_scores;
    at.shift = at.dq + 2 * at.of_dq;
    at.delta = at.shift + 8 * queries;
    at.items = at.delta + 8 * queries;
    at.bars = at.items + 16;
    at.bytes = at.bars + 8 * KFI_BWD_BARRIERS;
    return at;
}

// Arguments of the kernels, besides tensor maps. Heads are [batch, heads], pairs [batch, kv_heads].
struct kfi_attention_bwd_tiles {
    // Workspace: [heads, padded] shifts, log2(e) (row_max + log_sum) or infinity if the query sees
    // no key, and deltas; [heads, query_blocks] sums of dq in the order of accumulators, and how
    // many blocks of keys have added theirs; the next item; [pairs, key_blocks, 8]: 1 where 16 keys
    // have a gradient that is not finite and queries that do not see all of them.
    float *shift, *delta, *sums;
    unsigned *added;
    int *next;
    unsigned char *reached;
    int heads, kv_heads, group, queries, keys, padded, query_blocks, key_blocks, pairs, items;
    int sets; // sets of pairs, whose tensors stay in L2
    // The last key of query i is min(slope * i + add, end - 1).
    int slope, add, end;
    bool ascending; // items walk the queries up, and take the blocks of keys down
    bool stores_dk, stores_dv;
    float scale, log2_scale;
};

#endif
