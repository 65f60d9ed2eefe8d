// SPDX-License-Identifier: Apache-2.0
// kf/core/decoding/items.cuh: work items of the persistent kernel: runs of chunks of a tile.
//
// An item has as many whole chunks of a sequence as come nearest to a goal, so that items of all
// sequences fill the grid evenly. The goal follows from the lengths, which each block reads: bits
// do not depend on it, because chunks do not. A warp finds its items in a window of 32 sequences,
// one per lane.
#ifndef KF_CORE_DECODING_ITEMS_CUH
#define KF_CORE_DECODING_ITEMS_CUH

#include "kf/core/decoding/args.cuh"

#ifdef KFI_DEVICE_PASS
#define KFI_ALL_LANES 0xffffffffu

// Chunks [begin, end) of a tile, counted from the sequence's first one, of `chunks` in all.
struct kfi_decode_item {
    int sequence, kv_head, tile, begin, end, chunks;
};
// The window: its first sequence, items up to its end, the lane's inclusive sum and its keys.
struct kfi_decode_window {
    int first, last, inclusive, keys;
};

// Keys of an item: those of all sequences, divided by the fewest items per tile that fill at least
// 90 % of the blocks that run at a time, or that fill them best.
KFI_DEVICE int kfi_decode_goal(const kfi_decode &a, int lane)
{
    float sum = 0;
#pragma unroll 1
    for (int b = lane; b < a.batch; b += 32) {
        const kfi_decode_range r = kfi_decode_range_in(a, kfi_decode_keys(a, b));
        sum += (float)(r.end - r.first);
    }
#pragma unroll
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(KFI_ALL_LANES, sum, o);
    const float blocks = (float)gridDim.x, tiles = (float)a.kv_heads * (float)a.tiles,
                items = (float)a.batch * tiles * (float)(lane + 1),
                filled = items / (ceilf(items / blocks) * blocks);
    float best = filled;
#pragma unroll
    for (int o = 16; o; o /= 2) best = fmaxf(best, __shfl_xor_sync(KFI_ALL_LANES, best, o));
    const unsigned good = __ballot_sync(KFI_ALL_LANES, filled >= 0.9f),
                   same = __ballot_sync(KFI_ALL_LANES, filled == best);
    return (int)(sum / (float)a.batch / (float)__ffs((int)(good ? good : same))) + 1;
}
// Chunks of an item, spread evenly over a sequence.
KFI_DEVICE int kfi_decode_run(const kfi_decode_range &r, int goal)
{
    const int each = kfi_max_i32(1, (goal + r.chunk / 2) / r.chunk),
              items = goal >= r.end - r.first ? 1 : (r.count + each - 1) / each;
    return (r.count + items - 1) / items;
}
// Finds item number `item` of a warp, whose numbers ascend. Returns false behind the last one.
KFI_DEVICE bool kfi_decode_locate(const kfi_decode &a, kfi_decode_window *w, int goal, int lane,
                                  int item, kfi_decode_item *found)
{
    const int per = a.kv_heads * a.tiles;
    while (item >= w->last) {
        w->first += 32;
        if (w->first >= a.batch) return false;
        const int b = w->first + lane, keys = b < a.batch ? kfi_decode_keys(a, b) : 0;
        const kfi_decode_range r = kfi_decode_range_in(a, keys);
        const int run = kfi_decode_run(r, goal);
        int n = b < a.batch ? (r.count + run - 1) / run * per : 0;
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
            const int y = __shfl_up_sync(KFI_ALL_LANES, n, (unsigned)o);
            if (lane >= o) n += y;
        }
        w->keys = keys;
        w->inclusive = w->last + n;
        w->last = __shfl_sync(KFI_ALL_LANES, w->inclusive, 31);
    }
    const int i = __popc(__ballot_sync(KFI_ALL_LANES, item >= w->inclusive)),
              last = __shfl_sync(KFI_ALL_LANES, w->inclusive, i),
              keys = __shfl_sync(KFI_ALL_LANES, w->keys, i);
    const kfi_decode_range r = kfi_decode_range_in(a, keys);
    const int run = kfi_decode_run(r, goal), items = (r.count + run - 1) / run,
              left = item - (last - items * per), at = left / per;
    found->sequence = w->first + i;
    found->kv_head = (left - at * per) / a.tiles;
    found->tile = left - at * per - found->kv_head * a.tiles;
    found->begin = at * run;
    found->end = kfi_min_i32(r.count, found->begin + run);
    found->chunks = r.count;
    return true;
}
#endif

#endif
