// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_hopper_load.cuh: the producer warpgroup of attention's backward by wgmma
// (bwd_hopper.cuh): loads of the operands by TMA, and stores and adds of dQ.
#ifndef KF_CORE_ATTENTION_BWD_HOPPER_LOAD_CUH
#define KF_CORE_ATTENTION_BWD_HOPPER_LOAD_CUH

#include "kf/core/attention/bwd_hopper_work.cuh"

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// Maps of q, k, v, dout, dk and dv.
struct kfi_attention_bwd_maps {
    const kfi_tensor_map *q, *k, *v, *dout, *dk, *dv;
};
// The address of an mbarrier.
template <int tile> KFI_DEVICE unsigned kfi_attention_bwd_bar_at(unsigned base, int number)
{
    return base + (unsigned)(kfi_attention_bwd_layout_of(tile).bars + 8 * number);
}

// Loads a tile of `rows` rows in slabs of 64 columns.
template <int tile, int rows>
KFI_DEVICE void kfi_attention_bwd_load(unsigned to, const kfi_tensor_map *map, unsigned bar,
                                       int row, int head, int batch)
{
#pragma unroll
    for (int c = 0; c < kfi_attention_bwd_dim(tile) / 64; ++c)
        kfi_tma_load4(to + c * rows * 128, map, bar, c * 64, row, head, batch);
}
// Loads the operands of step number `n` of the CTA.
template <int tile>
KFI_DEVICE void kfi_attention_bwd_load_step(unsigned base, int n, const kfi_attention_bwd_maps &m,
                                            const kfi_attention_bwd_tiles &a, int block, int head,
                                            int batch)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    constexpr int queries = kfi_attention_bwd_queries(tile);
    const int s = n & 1, phase = (n >> 1 & 1) ^ 1;
    const kf_i64 row = ((kf_i64)batch * a.heads + head) * a.padded + block * queries;
    unsigned full = kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_Q_FULL + s);
    kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_Q_EMPTY + s), phase);
    kfi_mbar_expect(full, at.of_queries + queries * 4);
    kfi_attention_bwd_load<tile, queries>(base + at.q + s * at.of_queries, m.q, full,
                                          block * queries, head, batch);
    kfi_bulk_load(base + at.shift + s * queries * 4, a.shift + row, queries * 4, full);
    full = kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_DOUT_FULL + s);
    kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_DOUT_EMPTY + s), phase);
    kfi_mbar_expect(full, at.of_queries + queries * 4);
    kfi_attention_bwd_load<tile, queries>(base + at.dout + s * at.of_queries, m.dout, full,
                                          block * queries, head, batch);
    kfi_bulk_load(base + at.delta + s * queries * 4, a.delta + row, queries * 4, full);
}
// Loads K and V of an item; `used` items had any before.
template <int tile>
KFI_DEVICE void kfi_attention_bwd_load_keys(unsigned base, int used,
                                            const kfi_attention_bwd_maps &m,
                                            const kfi_attention_bwd_item &x)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    const int phase = (used & 1) ^ 1;
    unsigned full = kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_V_FULL);
    kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_V_EMPTY), phase);
    kfi_mbar_expect(full, at.of_keys);
    kfi_attention_bwd_load<tile, KFI_ATTENTION_BWD_ITEM_KEYS>(base + at.v, m.v, full, x.key,
                                                              x.kv_head, x.batch);
    full = kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_K_FULL);
    kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_K_EMPTY), phase);
    kfi_mbar_expect(full, at.of_keys);
    kfi_attention_bwd_load<tile, KFI_ATTENTION_BWD_ITEM_KEYS>(base + at.k, m.k, full, x.key,
                                                              x.kv_head, x.batch);
}
// One thread takes items and loads. It takes the next item after the last load of the one before:
// an item taken early and begun late would hold up those that wait for its sums.
template <int tile>
KFI_DEVICE void kfi_attention_bwd_produce(unsigned base, volatile int *items,
                                          const kfi_attention_bwd_maps &m,
                                          const kfi_attention_bwd_tiles &a)
{
    kfi_attention_bwd_cursor cursor = {};
    int number = atomicAdd(a.next, 1), n = 0, used = 0;
    for (int round = 0;; ++round) {
        kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_ITEM_EMPTY + (round & 1)),
                      (round >> 1 & 1) ^ 1);
        items[round & 1] = number < a.items ? number : -1;
        kfi_mbar_arrive(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_ITEM_FULL + (round & 1)));
        if (number >= a.items) return;
        const kfi_attention_bwd_item x = kfi_attention_bwd_item_at<tile>(&cursor, number, a);
        kfi_attention_bwd_query_step step = kfi_attention_bwd_first(x, a);
        for (int i = 0; i < x.steps; ++i, ++n, kfi_attention_bwd_next(&step, a)) {
            kfi_attention_bwd_load_step<tile>(base, n, m, a, step.block,
                                              x.kv_head * a.group + step.head, x.batch);
            if (i == 0) kfi_attention_bwd_load_keys<tile>(base, used++, m, x);
        }
        number = atomicAdd(a.next, 1);
    }
}
// One thread sends the tiles of dQ in buffer `s` to memory, each in its turn.
template <int tile>
KFI_DEVICE void kfi_attention_bwd_send(unsigned base, const volatile int *items,
                                       const kfi_attention_bwd_tiles &a, int s)
{
    constexpr kfi_attention_bwd_layout at = kfi_attention_bwd_layout_of(tile);
    const unsigned from = base + at.dq + s * at.of_dq;
    kfi_attention_bwd_cursor cursor = {};
    int n = 0;
    for (int round = 0;; ++round) {
        const int number = kfi_attention_bwd_receive<tile>(base, items, round);
        kfi_attention_bwd_pass_on<tile>(base, round);
        if (number < 0) break;
        const kfi_attention_bwd_item x = kfi_attention_bwd_item_at<tile>(&cursor, number, a);
        kfi_attention_bwd_query_step step = kfi_attention_bwd_first(x, a);
        for (int i = 0; i < x.steps; ++i, ++n, kfi_attention_bwd_next(&step, a)) {
            if ((n & 1) != s) continue;
            const int to =
                (x.batch * a.heads + x.kv_head * a.group + step.head) * a.query_blocks + step.block;
            float *const sums = a.sums + (kf_i64)to * (at.of_dq / 4);
            const unsigned turn = kfi_attention_bwd_turn<tile>(x.block, step.block, a);
            if (turn) {
                kfi_ticket_wait(a.added + to, turn);
                kfi_global_async_fence();
            }
            kfi_mbar_wait(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_DQ_FULL + s), n >> 1 & 1);
            if (turn)
                kfi_bulk_add(sums, from, at.of_dq);
            else
                kfi_bulk_store(sums, from, at.of_dq);
            kfi_bulk_commit();
            kfi_bulk_wait_read<0>();
            kfi_mbar_arrive(kfi_attention_bwd_bar_at<tile>(base, KFI_BWD_DQ_EMPTY + s));
            kfi_bulk_wait<0>();
            kfi_global_async_fence();
            kfi_ticket_add(a.added + to);
        }
    }
}
#endif

#endif
