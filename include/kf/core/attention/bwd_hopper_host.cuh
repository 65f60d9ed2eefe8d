// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/bwd_hopper_host.cuh: host side of attention's backward by wgmma
// (bwd_hopper.cuh, bwd_hopper_rows.cuh): the tile, the workspace, tensor maps and the launches.
#ifndef KF_CORE_ATTENTION_BWD_HOPPER_HOST_CUH
#define KF_CORE_ATTENTION_BWD_HOPPER_HOST_CUH

#include "kf/core/attention/bwd_hopper.cuh"
#include "kf/core/attention/bwd_hopper_rows.cuh"
#include "kf/core/attention/bwd_host.cuh"
#include "kf/core/attention/hopper_host.cuh"

#ifdef KFI_HOST_PASS

#define KFI_ATTENTION_BWD_MAPS 6 // q, k, v, dout, dk and dv
enum { KFI_ATTENTION_BWD_WGMMA_TILES = 2 };

// Kernels of one tile.
struct kfi_attention_bwd_hopper_kernels {
    const void *prepare, *sums, *finish;
};

// Returns the tile of head dimensions; -1: none. The sizes alone decide it.
KF_FN KFI_SMALL int kfi_attention_bwd_pick_tile(kf_i64 dim, kf_i64 dim_v)
{
    const kf_i64 most = dim > dim_v ? dim : dim_v;
    if (dim % 8 || dim_v % 8 || dim <= 0 || dim_v <= 0 || most > 128) return -1;
    return most <= 64 ? KFI_ATTENTION_WGMMA_64 : KFI_ATTENTION_WGMMA_128;
}
KF_FN KFI_SMALL size_t kfi_attention_bwd_aligned(kf_i64 bytes)
{
    return (size_t)(kfi_ceil(bytes, KFI_WORKSPACE_ALIGNED) * KFI_WORKSPACE_ALIGNED);
}
// Sets the sizes of a call, and its tensors in a workspace. Returns the bytes of the latter.
KF_FN KFI_SMALL size_t kfi_attention_bwd_room_of(kfi_attention_bwd_tiles *t, void *workspace,
                                                 const kfi_attention_plan &p, int tile)
{
    const int queries = kfi_attention_bwd_queries(tile);
    const kf_i64 heads = p.batch * p.heads, pairs = p.batch * p.kv_heads,
                 padded =
                     kfi_ceil(p.queries, KFI_ATTENTION_BWD_ALIGNED) * KFI_ATTENTION_BWD_ALIGNED,
                 blocks = kfi_ceil(p.queries, queries),
                 key_blocks = kfi_ceil(p.keys, KFI_ATTENTION_BWD_ITEM_KEYS);
    const size_t of_row = kfi_attention_bwd_aligned(heads * padded * 4),
                 of_sums = kfi_attention_bwd_aligned(heads * blocks *
                                                     kfi_attention_bwd_layout_of(tile).of_dq),
                 of_tickets = kfi_attention_bwd_aligned((heads * blocks + 1) * 4),
                 of_reached = kfi_attention_bwd_aligned(pairs * key_blocks * 8);
    char *const room = (char *)workspace;
    t->shift = (float *)(void *)room;
    t->delta = (float *)(void *)(room + of_row);
    t->sums = (float *)(void *)(room + 2 * of_row);
    t->next = (int *)(void *)(room + 2 * of_row + of_sums);
    t->added = (unsigned *)(void *)(t->next + 1);
    t->reached = (unsigned char *)room + 2 * of_row + of_sums + of_tickets;
    t->heads = (int)p.heads, t->kv_heads = (int)p.kv_heads;
    t->queries = (int)p.queries, t->keys = (int)p.keys;
    t->padded = (int)padded, t->query_blocks = (int)blocks, t->key_blocks = (int)key_blocks;
    t->pairs = (int)pairs, t->items = (int)(pairs * key_blocks);
    return 2 * of_row + of_sums + of_tickets + of_reached;
}
// Returns the bytes of the workspace; 0: the sizes do not allow these kernels.
KF_FN KFI_SMALL size_t kfi_attention_bwd_hopper_bytes(const kfi_attention_plan &p)
{
    const int tile = kfi_attention_bwd_pick_tile(p.dim, p.dim_v);
    kfi_attention_bwd_tiles t = {};
    return tile < 0 || p.packed ? 0 : kfi_attention_bwd_room_of(&t, nullptr, p, tile);
}
// Sets the order of work. Pairs of a set are as many as keep q, dout and sums of dq in 24 MB of L2,
// but not so few that a set of long items has a long tail.
KF_FN KFI_SMALL void kfi_attention_bwd_plan(kfi_attention_bwd_tiles *t, const kfi_attention &a,
                                            int tile)
{
    const int group = a.group > 0 ? a.group : 1;
    t->group = a.group;
    t->slope = a.range.last_slope;
    t->add = a.range.last_add;
    t->end = t->slope || t->add >= t->keys ? t->keys : t->add + 1;
    // Blocks of keys that run together spread over all queries, which L2 holds for heads of their
    // own only.
    t->ascending = t->slope && group == 1;
    const kf_i64 bytes = (kf_i64)group * t->padded * kfi_attention_bwd_dim(tile) * 8,
                 fit = kfi_clamp((24ll << 20) / kfi_clamp(bytes, 1, INT64_MAX), 1, INT32_MAX),
                 least = group > 1      ? kfi_ceil(3 * 132, t->key_blocks > 0 ? t->key_blocks : 1)
                         : t->ascending ? 1
                                        : 4,
                 sets = t->pairs / (fit > least ? fit : least);
    t->sets = (int)kfi_clamp(sets, 1, INT32_MAX);
    const double log2e = 1.4426950408889634, most = 3.4028234663852886e38;
    const double scaled = a.factor_f64 * log2e;
    t->scale = a.factor;
    t->log2_scale = (float)(scaled > most ? most : scaled < -most ? -most : scaled);
}
// Encodes the maps. Gradients that nobody wants have those of k and v, and are not stored. Without
// queries nothing but dk and dv is touched.
KF_FN KFI_SMALL bool kfi_attention_bwd_encode(kfi_tensor_map *maps, const kfi_attention &a,
                                              const kfi_attention_gradients &g, int type, int tile,
                                              const kfi_attention_plan &p)
{
    const int box = kfi_attention_bwd_queries(tile), keys = KFI_ATTENTION_BWD_ITEM_KEYS;
    const auto of_keys = [&](int i, const void *x, kf_i64 dim, const kfi_attention_strides &s,
                             int rows) {
        return kfi_attention_map(&maps[i], x, type, dim, p.keys, p.kv_heads, p.batch, s, rows);
    };
    const auto of_queries = [&](int i, const void *x, kf_i64 dim, const kfi_attention_strides &s) {
        return kfi_attention_map(&maps[i], x, type, dim, p.queries, p.heads, p.batch, s, box);
    };
    if (p.keys * p.kv_heads * p.queries * p.heads * p.batch <= 0) return false;
    return of_queries(0, a.q, a.dim, a.q_strides) && of_keys(1, a.k, a.dim, a.k_strides, keys) &&
           of_keys(2, a.v, a.dim_v, a.v_strides, keys) &&
           of_queries(3, g.dout, a.dim_v, g.dout_strides) &&
           of_keys(4, g.dk ? g.dk : a.k, a.dim, g.dk ? g.dk_strides : a.k_strides, 64) &&
           of_keys(5, g.dv ? g.dv : a.v, a.dim_v, g.dv ? g.dv_strides : a.v_strides, 64);
}
// Returns whether rows of q, k, v, out, dout and the gradients begin at multiples of 16 bytes.
KF_FN KFI_SMALL bool kfi_attention_bwd_whole(const kfi_attention &a,
                                             const kfi_attention_gradients &g,
                                             const kfi_attention_plan &p)
{
    const void *const tensors[] = {a.q, a.out, g.dout, g.dq, a.k, a.v, g.dk, g.dv};
    const kfi_attention_strides *const strides[] = {&a.q_strides,  &a.out_strides, &g.dout_strides,
                                                    &g.dq_strides, &a.k_strides,   &a.v_strides,
                                                    &g.dk_strides, &g.dv_strides};
    kf_i64 steps = 0;
    uintptr_t bits = 0;
    for (int i = 0; i < 8; ++i) {
        if (!tensors[i]) continue;
        bits |= (uintptr_t)tensors[i];
        if (p.batch > 1) steps |= strides[i]->batch;
        if ((i < 4 ? p.queries : p.keys) > 1) steps |= strides[i]->row;
        if ((i < 4 ? p.heads : p.kv_heads) > 1) steps |= strides[i]->head;
    }
    return bits % 16 == 0 && steps % 8 == 0;
}
// Launches the kernels of a tile. rows: the arguments, complete but for `columns`. sms: CTAs of the
// persistent kernel at most. cluster: CTAs that the emulator runs together, else 1.
KF_FN KFI_SMALL kf_result_t kfi_attention_bwd_launch_hopper(
    const kfi_attention_bwd_call &c, const kfi_attention_bwd_hopper_kernels &k, int tile,
    kfi_attention_bwd_rows *rows, kfi_tensor_map *maps, int sms, unsigned cluster = 1)
{
    kfi_attention_bwd_tiles &t = rows->t;
    const unsigned heads = (unsigned)(c.p->batch * c.p->heads),
                   threads = KFI_ATTENTION_BWD_ROW_THREADS;
    void *const_rows[] = {rows},
         *args[] = {&maps[0], &maps[1], &maps[2], &maps[3], &maps[4], &maps[5], &t};
    rows->columns = t.padded / KFI_ATTENTION_BWD_PREPARED;
    kf_result_t result = kfi_launch(c.name, k.prepare, dim3((unsigned)rows->columns * heads),
                                    threads, const_rows, c.stream, true);
    if (!(c.g->dq || c.g->dk || c.g->dv)) return result; // the sink's gradient alone is wanted
    if (result == KF_SUCCESS)
        result = kfi_launch(c.name, k.sums, dim3((unsigned)(t.items < sms ? t.items : sms)),
                            KFI_ATTENTION_BWD_THREADS, args, c.stream, false,
                            (unsigned)kfi_attention_bwd_layout_of(tile).bytes, cluster);
    if (result != KF_SUCCESS || !(c.g->dq || rows->hides)) return result;
    rows->columns = t.query_blocks + rows->hides;
    return kfi_launch(c.name, k.finish, dim3((unsigned)rows->columns * heads), threads, const_rows,
                      c.stream, true);
}
// Fills in the arguments of a call. Its `g` has no room for statistics yet.
KF_FN KFI_SMALL void kfi_attention_bwd_fill_rows(kfi_attention_bwd_rows *rows,
                                                 const kfi_attention_bwd_call &c, void *workspace,
                                                 int tile)
{
    kfi_attention_bwd_tiles &t = rows->t;
    rows->w.a = *c.a;
    rows->w.g = *c.g;
    kfi_attention_bwd_room_of(&t, workspace, *c.p, tile);
    kfi_attention_bwd_plan(&t, *c.a, tile);
    t.stores_dk = c.g->dk != nullptr, t.stores_dv = c.g->dv != nullptr;
    rows->w.g.shift = t.shift, rows->w.g.delta = t.delta, rows->w.g.factor = nullptr;
    rows->w.g.query_strides = {(kf_i64)t.heads * t.padded, 1, t.padded};
    rows->hides = t.slope || t.end < t.keys;
}
// Returns whether the kernels compute the mask: no bound on the first key.
KF_FN KFI_SMALL bool kfi_attention_bwd_hopper_sees(const kfi_attention &a)
{
    return !a.range.first_slope && a.range.first_add <= 0;
}
#endif

#endif
