// SPDX-License-Identifier: Apache-2.0
// The backward kernels of kf/core/attention as a library that the emulator runs: one function for
// every instance (bwd_core.py calls it).
#include <cuda_runtime.h>

#include "kernel.cuh"

#include <kf/core/attention/bwd_hopper_host.cuh>

#include <stdlib.h>
#include <string.h>

// A call as bwd_core.py fills it in: the same fields in the same order.
struct attention_call {
    const void *q, *k, *v, *out, *dout, *bias, *lse, *row_max, *log_sum, *dlse;
    const void *query_offsets, *key_offsets; // NULL: sequences of one length
    void *dq, *dk, *dv, *dbias, *shift, *factor, *delta;
    int64_t strides[8][3]; // q, k, v, out, dout, dq, dk, dv: batch, row, head
    int64_t batch, heads, kv_heads, queries, keys, dim, dim_v;
    int64_t shift_keys, left, right, last; // last: all queries' last key, or -1
    int64_t kernel, type, score;           // kernel 0: mma.sync, 1: FMAs, 2: wgmma
    int64_t drops, seed, number0;          // drops: whether the call has dropout
    int64_t blocks, cluster;               // wgmma: blocks, and those that run together
    double scale, softcap, probability;
};

static const kfi_name NAME = {"attention_bwd", ""};
// A table in which every tile has a kernel.
static const void *const ALL[] = {&NAME, &NAME, &NAME, &NAME};

static kfi_attention_plan plan(const attention_call &c)
{
    kfi_attention_plan p = {};
    p.packed = c.query_offsets != nullptr;
    p.batch = c.batch, p.heads = c.heads, p.kv_heads = c.kv_heads;
    p.queries = c.queries, p.keys = c.keys, p.dim = c.dim, p.dim_v = c.dim_v;
    if (p.packed) {
        p.first = kfi_attention_bind_packed(1, -1, 1, kfi_attention_sub(0, c.left));
        p.last = kfi_attention_bind_packed(1, -1, 1, c.right);
        return p;
    }
    p.first = kfi_attention_bind(&p, 1, kfi_attention_sub(c.shift_keys, c.left));
    p.last = kfi_attention_bind(&p, 1, kfi_attention_add(c.shift_keys, c.right));
    if (c.last >= 0) p.last = kfi_attention_bind(&p, 0, c.last);
    return p;
}
static void fill(kfi_attention *a, kfi_attention_gradients *g, const attention_call &c,
                 const kfi_attention_plan &p)
{
    kfi_attention_strides *const to[] = {&a->q_strides,   &a->k_strides,    &a->v_strides,
                                         &a->out_strides, &g->dout_strides, &g->dq_strides,
                                         &g->dk_strides,  &g->dv_strides};
    for (int i = 0; i < 8; ++i) *to[i] = {c.strides[i][0], c.strides[i][1], c.strides[i][2]};
    a->q = c.q, a->k = c.k, a->v = c.v, a->out = const_cast<void *>(c.out);
    a->queries = (int)c.queries, a->keys = (int)c.keys, a->heads = (int)c.heads;
    a->group = c.kv_heads ? (int)(c.heads / c.kv_heads) : 1;
    a->dim = (int)c.dim, a->dim_v = (int)c.dim_v;
    a->range = {p.first.slope, (int)p.first.add, p.last.slope, (int)p.last.add};
    kfi_attention_scale(a, c.score == KFI_SCORE_PLAIN ? c.scale : 1);
    const kfi_attention_strides of_scores = {c.heads * c.queries * c.keys, c.keys,
                                             c.queries * c.keys};
    a->score.tensors[0] = c.bias, a->score.strides[0] = of_scores;
    a->score.paired[0] = c.keys % 2 == 0;
    a->score.scalars_f64[0] = c.scale, a->score.scalars_f64[1] = c.softcap;
    g->dout = c.dout, g->dlse = c.dlse;
    g->lse = c.lse, g->row_max = c.row_max, g->log_sum = c.log_sum;
    g->dq = c.dq, g->dk = c.dk, g->dv = c.dv;
    g->dscores[0] = c.dbias, g->dscore_strides[0] = of_scores;
    g->shift = c.shift, g->factor = c.factor, g->delta = c.delta;
    g->query_strides = {p.packed ? 0 : c.heads * c.queries, 1, c.queries};
    g->kv_heads = (int)c.kv_heads;
    kfi_attention_random(a, kfi_make_rng(c.probability, (uint64_t)c.seed, 0, nullptr, nullptr));
    a->drop.numbers = {p.packed ? 0 : c.heads * c.queries * c.keys, c.keys, c.queries * c.keys};
    a->drop.number0 = c.number0;
}

template <int type, int tile, int score, int drop = KFI_NO_DROPOUT>
static bool mma(const attention_call &c, int picked, kfi_attention_bwd_kernels *k)
{
    if (c.type != type || picked != tile || c.score != score || c.drops != (drop >= 0))
        return false;
    if (c.query_offsets)
        *k = {KFI_ADDRESS(kfk_attention_delta_packed<type, 1>),
              KFI_ADDRESS(kfk_attention_bwd_mma_packed<type, tile, score, 0, drop>),
              KFI_ADDRESS(kfk_attention_bwd_mma_packed<type, tile, score, 1, drop>)};
    else
        *k = {KFI_ADDRESS(kfk_attention_delta<type, 1>),
              KFI_ADDRESS(kfk_attention_bwd_mma<type, tile, score, 0, drop>),
              KFI_ADDRESS(kfk_attention_bwd_mma<type, tile, score, 1, drop>)};
    return true;
}
// Every tile, type and score, but not all their combinations.
static bool mma_kernels(const attention_call &c, int tile, kfi_attention_bwd_kernels *k)
{
    return mma<KFI_OF_BF16, KFI_ATTENTION_MMA_64, KFI_SCORE_PLAIN>(c, tile, k) ||
           mma<KFI_OF_BF16, KFI_ATTENTION_MMA_128, KFI_SCORE_PLAIN>(c, tile, k) ||
           mma<KFI_OF_F16, KFI_ATTENTION_MMA_128, KFI_SCORE_PLAIN>(c, tile, k) ||
           mma<KFI_OF_BF16, KFI_ATTENTION_MMA_256, KFI_SCORE_PLAIN>(c, tile, k) ||
           mma<KFI_OF_F16, KFI_ATTENTION_MMA_64, SCORE_SOFTCAP>(c, tile, k) ||
           mma<KFI_OF_BF16, KFI_ATTENTION_MMA_64, KFI_SCORE_PLAIN, 0>(c, tile, k) ||
           mma<KFI_OF_F16, KFI_ATTENTION_MMA_256, KFI_SCORE_PLAIN, 0>(c, tile, k) ||
           mma<KFI_OF_F16, KFI_ATTENTION_MMA_128, SCORE_BIAS>(c, tile, k);
}
template <int type, int tile, int score, int drop = KFI_NO_DROPOUT>
static bool simt(const attention_call &c, int picked, kfi_attention_bwd_kernels *k)
{
    if (c.type != type || picked != tile || c.score != score || c.drops != (drop >= 0))
        return false;
    if (c.query_offsets)
        *k = {KFI_ADDRESS(kfk_attention_delta_packed<type, 0>),
              KFI_ADDRESS(kfk_attention_bwd_simt_packed<type, tile, score, 0, drop>),
              KFI_ADDRESS(kfk_attention_bwd_simt_packed<type, tile, score, 1, drop>)};
    else
        *k = {KFI_ADDRESS(kfk_attention_delta<type, 0>),
              KFI_ADDRESS(kfk_attention_bwd_simt<type, tile, score, 0, drop>),
              KFI_ADDRESS(kfk_attention_bwd_simt<type, tile, score, 1, drop>)};
    return true;
}
static bool simt_kernels(const attention_call &c, int tile, kfi_attention_bwd_kernels *k)
{
    return simt<KFI_OF_F32, 0, KFI_SCORE_PLAIN>(c, tile, k) ||
           simt<KFI_OF_F32, 1, KFI_SCORE_PLAIN>(c, tile, k) ||
           simt<KFI_OF_F32, 1, SCORE_BIAS>(c, tile, k) ||
           simt<KFI_OF_F64, 0, KFI_SCORE_PLAIN>(c, tile, k) ||
           simt<KFI_OF_F64, 1, KFI_SCORE_PLAIN>(c, tile, k) ||
           simt<KFI_OF_F64, 1, SCORE_SOFTCAP>(c, tile, k) ||
           simt<KFI_OF_BF16, 0, KFI_SCORE_PLAIN>(c, tile, k) ||
           simt<KFI_OF_F32, 0, KFI_SCORE_PLAIN, 0>(c, tile, k) ||
           simt<KFI_OF_F64, 1, SCORE_SOFTCAP, 0>(c, tile, k) ||
           simt<KFI_OF_F16, 1, KFI_SCORE_PLAIN>(c, tile, k);
}

template <int type, int tile>
static bool wgmma(const attention_call &c, int picked, kfi_attention_bwd_hopper_kernels *k)
{
    if (c.type != type || picked != tile) return false;
    *k = {KFI_ADDRESS(kfk_attention_bwd_prepare<type, tile>),
          KFI_ADDRESS(kfk_attention_bwd_hopper<type, tile>),
          KFI_ADDRESS(kfk_attention_bwd_finish<type, tile>)};
    return true;
}
static bool wgmma_kernels(const attention_call &c, int tile, kfi_attention_bwd_hopper_kernels *k)
{
    return wgmma<KFI_OF_BF16, KFI_ATTENTION_WGMMA_64>(c, tile, k) ||
           wgmma<KFI_OF_BF16, KFI_ATTENTION_WGMMA_128>(c, tile, k) ||
           wgmma<KFI_OF_F16, KFI_ATTENTION_WGMMA_64>(c, tile, k) ||
           wgmma<KFI_OF_F16, KFI_ATTENTION_WGMMA_128>(c, tile, k);
}
// Runs a call by wgmma, in a workspace full of NaN.
static int run_wgmma(const attention_call &c, const kfi_attention_bwd_call &call)
{
    const int tile = kfi_attention_bwd_pick_tile(c.dim, c.dim_v);
    kfi_attention_bwd_hopper_kernels k;
    kfi_attention_bwd_rows rows = {};
    kfi_tensor_map maps[KFI_ATTENTION_BWD_MAPS];
    if (!kfi_attention_bwd_hopper_sees(*call.a) || !wgmma_kernels(c, tile, &k) ||
        !kfi_attention_bwd_whole(*call.a, *call.g, *call.p) ||
        !kfi_attention_bwd_encode(maps, *call.a, *call.g, (int)c.type, tile, *call.p))
        return -1;
    const size_t bytes = kfi_attention_bwd_hopper_bytes(*call.p);
    void *const workspace = aligned_alloc(KFI_WORKSPACE_ALIGNED, bytes);
    memset(workspace, 0xff, bytes);
    kfi_attention_bwd_fill_rows(&rows, call, workspace, tile);
    const int result = kfi_attention_bwd_launch_hopper(call, k, tile, &rows, maps, (int)c.blocks,
                                                       (unsigned)c.cluster);
    free(workspace);
    return result;
}

// Runs a call; returns its result.
extern "C" int attention_bwd(const attention_call *c)
{
    kfi_attention_bwd_packed w = {};
    kfi_attention_bwd dense = {};
    const kfi_attention_plan p = plan(*c);
    fill(&w.p.a, &w.g, *c, p);
    w.p.query_offsets = c->query_offsets, w.p.key_offsets = c->key_offsets;
    w.p.batch = (int)p.batch, w.p.max_query = w.p.max_key = INT32_MAX;
    w.p.first = p.first, w.p.last = p.last;
    dense.a = w.p.a, dense.g = w.g;
    const kfi_attention_bwd_call call = {&NAME,
                                         &p,
                                         p.packed ? (void *)&w : (void *)&dense,
                                         p.packed ? &w.p.a : &dense.a,
                                         p.packed ? &w.g : &dense.g,
                                         nullptr,
                                         c->drops ? 0 : KFI_NO_DROPOUT};
    kfi_attention_bwd_kernels k;
    if (c->kernel == 2) return run_wgmma(*c, call);
    if (c->kernel == 0) {
        const int tile = kfi_attention_pick_mma(ALL, c->dim, c->dim_v);
        return mma_kernels(*c, tile, &k) ? kfi_attention_bwd_launch_mma(call, k, tile) : -1;
    }
    const int tile = kfi_attention_bwd_pick_simt(c->dim, c->dim_v);
    return simt_kernels(*c, tile, &k) ? kfi_attention_bwd_launch_simt(call, k, (int)c->type, tile)
                                      : -1;
}
