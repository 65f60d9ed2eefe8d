// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_hopper_work.cuh: items of work of attention's backward by wgmma
// (bwd_hopper.cuh): a block of keys of one key head, with the queries of all heads of its group.
//
// Items come in sets of pairs (batch, key head), whose tensors and sums of dq stay in L2. In a set
// blocks of keys ascend, pairs inside, and each walks the queries from the last block down. Or
// (`ascending`, with a causal mask and heads of their own) blocks of keys descend, and each walks
// up from its diagonal. A block of queries takes its sums in the order of items, which neither the
// batch nor the number of SMs changes. All waiting is for items before, which CTAs that run have
// taken: no CTA needs another to be resident.
#ifndef KF_CORE_ATTENTION_BWD_HOPPER_WORK_CUH
#define KF_CORE_ATTENTION_BWD_HOPPER_WORK_CUH

#include "kf/core/attention/bwd_hopper_tile.cuh"
#include "kf/core/wgmma.cuh"

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// Blocks of queries first to first + blocks - 1, each of all heads of the group: `steps` steps.
struct kfi_attention_bwd_item {
    int block, key, batch, kv_head, first, blocks, steps;
};
// Decodes items of ascending numbers: the set of the last one, and its first item.
struct kfi_attention_bwd_cursor {
    int base, set, first, wide;
};
template <int tile>
KFI_DEVICE kfi_attention_bwd_item kfi_attention_bwd_item_at(kfi_attention_bwd_cursor *c, int number,
                                                            const kfi_attention_bwd_tiles &a)
{
    constexpr int queries = kfi_attention_bwd_queries(tile);
    if (c->wide == 0) c->wide = a.pairs / a.sets;
    while (number >= c->base + c->wide * a.key_blocks) {
        c->base += c->wide * a.key_blocks;
        c->first += c->wide;
        ++c->set;
        c->wide = (a.pairs - c->first) / (a.sets - c->set);
    }
    kfi_attention_bwd_item x;
    const int i = number - c->base, turn = i / c->wide, pair = c->first + i - turn * c->wide;
    x.batch = pair / a.kv_heads;
    x.kv_head = pair - x.batch * a.kv_heads;
    x.block = a.ascending ? a.key_blocks - 1 - turn : turn;
    x.key = x.block * KFI_ATTENTION_BWD_ITEM_KEYS;
    x.first = a.slope ? kfi_max_i32(0, x.key - a.add) / queries : 0;
    x.blocks = x.key < a.end ? kfi_max_i32(0, a.query_blocks - x.first) : 0;
    x.steps = x.blocks * a.group;
    return x;
}
// Steps with pairs that the mask hides: the last ones, or the first ones if ascending.
template <int tile>
KFI_DEVICE int kfi_attention_bwd_masked(const kfi_attention_bwd_item &x,
                                        const kfi_attention_bwd_tiles &a)
{
    constexpr int queries = kfi_attention_bwd_queries(tile);
    const int last = x.key + KFI_ATTENTION_BWD_ITEM_KEYS - 1;
    if (last >= a.end) return x.steps;
    if (!a.slope) return 0;
    const int blocks = (last - a.add + queries - 1) / queries - x.first;
    return kfi_min_i32(x.blocks, kfi_max_i32(0, blocks)) * a.group;
}
// A step of an item: a block of queries of one head of the group.
struct kfi_attention_bwd_query_step {
    int head, block;
};
KFI_DEVICE kfi_attention_bwd_query_step kfi_attention_bwd_first(const kfi_attention_bwd_item &x,
                                                                const kfi_attention_bwd_tiles &a)
{
    const kfi_attention_bwd_query_step s = {0, a.ascending ? x.first : a.query_blocks - 1};
    return s;
}
KFI_DEVICE void kfi_attention_bwd_next(kfi_attention_bwd_query_step *s,
                                       const kfi_attention_bwd_tiles &a)
{
    if (++s->head < a.group) return;
    s->head = 0;
    s->block += a.ascending ? 1 : -1;
}
// Number of blocks of keys that add to a block of queries before block `block` does.
template <int tile>
KFI_DEVICE unsigned kfi_attention_bwd_turn(int block, int of_queries,
                                           const kfi_attention_bwd_tiles &a)
{
    constexpr int queries = kfi_attention_bwd_queries(tile);
    if (!a.ascending) return (unsigned)block;
    const int last = (of_queries * queries + queries - 1 + a.add) / KFI_ATTENTION_BWD_ITEM_KEYS;
    return (unsigned)(kfi_min_i32(a.key_blocks - 1, last) - block);
}

// Receives number `round` of the CTA's items; -1: no more.
template <int tile>
KFI_DEVICE int kfi_attention_bwd_receive(unsigned base, const volatile int *items, int round)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    kfi_mbar_wait(base + at.bars + 8 * (KFI_BWD_ITEM_FULL + (round & 1)), round >> 1 & 1);
    return items[round & 1];
}
template <int tile> KFI_DEVICE void kfi_attention_bwd_pass_on(unsigned base, int round)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    kfi_mbar_arrive(base + at.bars + 8 * (KFI_BWD_ITEM_EMPTY + (round & 1)));
}
#endif

#endif
