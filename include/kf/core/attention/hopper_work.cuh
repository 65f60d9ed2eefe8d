// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/hopper_work.cuh: tiles of work of the wgmma attention kernel (hopper.cuh): the
// ticket's tile, and its way from the producer to the consumers through shared memory.
//
// Functions are overloads on the arguments' type: kfi_attention, or kfi_attention_packed for packed
// sequences, whose tile names its sequence too.
#ifndef KF_CORE_ATTENTION_HOPPER_WORK_CUH
#define KF_CORE_ATTENTION_HOPPER_WORK_CUH

#include "kf/core/attention/hopper_tile.cuh"
#include "kf/core/attention/packed.cuh"
#include "kf/core/wgmma.cuh"

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// A tile of work. row_block < 0: no more. Key blocks first to last; last < first: none. s: the
// sequence, if sequences are packed.
struct kfi_attention_work {
    int row_block, head, batch, first, last;
    kfi_attention_sequence s;
};
template <int tile>
KFI_DEVICE void kfi_attention_work_blocks(kfi_attention_work *w, const kfi_attention &a)
{
    constexpr int rows = 64 * kfi_attention_tile(tile).consumers;
    const int begin = w->row_block * rows;
    const kfi_attention_blocks b = kfi_attention_blocks_of<kfi_attention_tile(tile).keys>(
        a, begin, kfi_min_i32(begin + rows, a.queries) - 1);
    w->first = b.first;
    w->last = b.last;
}
template <int tile>
KFI_DEVICE kfi_attention_work kfi_attention_work_at(const kfi_attention &a, int ticket)
{
    kfi_attention_work w;
    const int group = ticket / a.group_tiles, i = ticket - group * a.group_tiles,
              wide = kfi_min_i32(a.span, a.batch_heads - group * a.span),
              at = group * a.span + i % wide;
    w.row_block = a.row_blocks - 1 - i / wide;
    w.batch = at / a.heads;
    w.head = at - w.batch * a.heads;
    kfi_attention_work_blocks<tile>(&w, a);
    return w;
}
// The same; row_block < 0: the tile has no rows.
template <int tile>
KFI_DEVICE kfi_attention_work kfi_attention_work_at(const kfi_attention_packed &p, int ticket)
{
    constexpr int rows = 64 * kfi_attention_tile(tile).consumers;
    kfi_attention_work w;
    const int group = ticket / p.a.group_tiles, i = ticket - group * p.a.group_tiles,
              wide = kfi_min_i32(p.a.span, p.a.batch_heads - group * p.a.span);
    w.row_block = kfi_attention_find<rows>(&w.s, p, i / wide);
    w.batch = w.s.index;
    w.head = group * p.a.span + i % wide;
    kfi_attention_work_blocks<tile>(&w, kfi_attention_own(p, w.s, w.head, 2));
    return w;
}
// Whether a block takes its next ticket at once.
KFI_DEVICE bool kfi_attention_is_empty(const kfi_attention &, const kfi_attention_work &)
{
    return false;
}
KFI_DEVICE bool kfi_attention_is_empty(const kfi_attention_packed &, const kfi_attention_work &w)
{
    return w.row_block < 0;
}

// Numbers of a slot.
KFI_BOTH constexpr int kfi_attention_slot(const kfi_attention *) { return 8; }
KFI_BOTH constexpr int kfi_attention_slot(const kfi_attention_packed *)
{
    return KFI_ATTENTION_PACKED_SLOT;
}
KFI_DEVICE void kfi_attention_write_sequence(volatile int *, const kfi_attention &,
                                             const kfi_attention_work &)
{
}
KFI_DEVICE void kfi_attention_write_sequence(volatile int *to, const kfi_attention_packed &,
                                             const kfi_attention_work &w)
{
    to[5] = w.s.index;
    to[6] = w.s.query;
    to[7] = w.s.queries;
    to[8] = w.s.key;
    to[9] = w.s.keys;
    to[10] = w.s.refused;
}
KFI_DEVICE void kfi_attention_read_sequence(kfi_attention_work *, const volatile int *,
                                            const kfi_attention &)
{
}
KFI_DEVICE void kfi_attention_read_sequence(kfi_attention_work *w, const volatile int *from,
                                            const kfi_attention_packed &)
{
    w->s = {from[5], from[6], from[7], from[8], from[9], from[10] != 0};
}
// Passes tile number `it` of the block to the consumers.
template <int tile, class A>
KFI_DEVICE void kfi_attention_publish(const kfi_attention_work &w, unsigned base,
                                      volatile int *slots, int it, const A &a)
{
    constexpr kfi_attention_layout at = kfi_attention_layout_of(tile);
    volatile int *const to = slots + it % 2 * kfi_attention_slot(&a);
    to[0] = w.row_block;
    to[1] = w.head;
    to[2] = w.batch;
    to[3] = w.first;
    to[4] = w.last;
    kfi_attention_write_sequence(to, a, w);
    kfi_mbar_arrive(base + at.work_full + 8 * (it % 2));
}
// Reads tile number `it` of the block.
template <int tile, class A>
KFI_DEVICE kfi_attention_work kfi_attention_receive(unsigned base, const volatile int *slots,
                                                    int it, const A &a)
{
    constexpr kfi_attention_layout at = kfi_attention_layout_of(tile);
    kfi_mbar_wait(base + at.work_full + 8 * (it % 2), it / 2 & 1);
    const volatile int *const from = slots + it % 2 * kfi_attention_slot(&a);
    kfi_attention_work w;
    w.row_block = from[0];
    w.head = from[1];
    w.batch = from[2];
    w.first = from[3];
    w.last = from[4];
    kfi_attention_read_sequence(&w, from, a);
    __syncwarp();
    if (threadIdx.x % 32 == 0) kfi_mbar_arrive(base + at.work_empty + 8 * (it % 2));
    return w;
}

KFI_DEVICE const kfi_attention &kfi_attention_all(const kfi_attention &a) { return a; }
KFI_DEVICE const kfi_attention &kfi_attention_all(const kfi_attention_packed &p) { return p.a; }
// A tile's first rows in the maps of q, k and v.
struct kfi_attention_origin {
    int query, key, batch;
};
KFI_DEVICE kfi_attention_origin kfi_attention_origin_of(const kfi_attention &,
                                                        const kfi_attention_work &w)
{
    const kfi_attention_origin o = {0, 0, w.batch};
    return o;
}
KFI_DEVICE kfi_attention_origin kfi_attention_origin_of(const kfi_attention_packed &,
                                                        const kfi_attention_work &w)
{
    const kfi_attention_origin o = {w.s.query, w.s.key, 0};
    return o;
}
// Keys from there on load as zeros.
KFI_DEVICE int kfi_attention_end(const kfi_attention &a, const kfi_attention_work &)
{
    return a.keys;
}
KFI_DEVICE int kfi_attention_end(const kfi_attention_packed &p, const kfi_attention_work &w)
{
    return p.a.keys - w.s.key;
}
KFI_DEVICE bool kfi_attention_refused(const kfi_attention &, const kfi_attention_work &)
{
    return false;
}
KFI_DEVICE bool kfi_attention_refused(const kfi_attention_packed &, const kfi_attention_work &w)
{
    return w.s.refused;
}
// The arguments of a tile.
KFI_DEVICE const kfi_attention &kfi_attention_of(const kfi_attention &a, const kfi_attention_work &)
{
    return a;
}
KFI_DEVICE kfi_attention kfi_attention_of(const kfi_attention_packed &p,
                                          const kfi_attention_work &w)
{
    return kfi_attention_own(p, w.s, w.head, 2);
}
#endif

#endif
