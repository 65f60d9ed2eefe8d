// SPDX-License-Identifier: Apache-2.0
// The attention kernels of kf/core/attention as a library that the emulator runs: one function for
// every instance (attention_core.py calls it).
#include <cuda_runtime.h>

#include "kernel.cuh"

#include <kf/core/attention/check.h>
#include <kf/core/attention/hopper_host.cuh>
#include <kf/core/attention/portable_host.cuh>

// A call as attention_core.py fills it in: the same fields in the same order.
struct attention_call {
    const void *q, *k, *v, *bias;
    void *out, *lse, *row_max, *log_sum, *ticket;
    int64_t strides[4][3]; // q, k, v, out: batch, row, head
    int64_t batch, heads, kv_heads, queries, keys, dim, dim_v, bias_head, bias_row;
    int64_t shift, left, right;
    int64_t kernel, type, score,
        blocks; // kernel 0: wgmma, 1: mma.sync, 2: FMAs; blocks of the grid
    double scale, softcap;
};

static const kfi_name NAME = {"attention", ""};
// A table in which every tile has a kernel.
static const void *const ALL[] = {&NAME, &NAME, &NAME, &NAME};

static kfi_attention_plan plan(const attention_call &c)
{
    kfi_attention_plan p = {};
    p.batch = c.batch, p.heads = c.heads, p.queries = c.queries, p.keys = c.keys;
    p.first = kfi_attention_bind(&p, 1, kfi_attention_sub(c.shift, c.left));
    p.last = kfi_attention_bind(&p, 1, kfi_attention_add(c.shift, c.right));
    return p;
}
static kfi_attention arguments(const attention_call &c)
{
    kfi_attention a = {};
    kfi_attention_strides *const to[] = {&a.q_strides, &a.k_strides, &a.v_strides, &a.out_strides};
    for (int i = 0; i < 4; ++i) *to[i] = {c.strides[i][0], c.strides[i][1], c.strides[i][2]};
    a.q = c.q, a.k = c.k, a.v = c.v, a.out = c.out;
    a.lse = c.lse, a.row_max = c.row_max, a.log_sum = c.log_sum, a.ticket = (int *)c.ticket;
    a.queries = (int)c.queries, a.keys = (int)c.keys, a.heads = (int)c.heads;
    a.group = (int)(c.heads / c.kv_heads), a.dim = (int)c.dim, a.dim_v = (int)c.dim_v;
    const kfi_attention_plan p = plan(c);
    a.range = {p.first.slope, (int)p.first.add, p.last.slope, (int)p.last.add};
    kfi_attention_scale(&a, c.score == KFI_SCORE_PLAIN ? c.scale : 1);
    a.score.tensors[0] = c.bias;
    a.score.strides[0] = {0, c.bias_row, c.bias_head};
    a.score.paired[0] = (c.bias_row | c.bias_head) % 2 == 0;
    a.score.scalars_f64[0] = c.scale;
    a.score.scalars_f64[1] = c.softcap;
    return a;
}

// Returns the instance if the call needs it.
template <int type, int tile, int score>
static const void *instance(const attention_call &c, int picked)
{
    return c.type == type && picked == tile && c.score == score
               ? KFI_ADDRESS(kfk_attention_hopper<type, tile, score>)
               : nullptr;
}
// Every tile, type and score, but not all their combinations.
static const void *hopper_kernel(const attention_call &c, int tile)
{
    const void *const all[] = {
        instance<KFI_OF_BF16, KFI_ATTENTION_WGMMA_64, KFI_SCORE_PLAIN>(c, tile),
        instance<KFI_OF_BF16, KFI_ATTENTION_WGMMA_128, KFI_SCORE_PLAIN>(c, tile),
        instance<KFI_OF_BF16, KFI_ATTENTION_WGMMA_192_128, KFI_SCORE_PLAIN>(c, tile),
        instance<KFI_OF_BF16, KFI_ATTENTION_WGMMA_256, KFI_SCORE_PLAIN>(c, tile),
        instance<KFI_OF_F16, KFI_ATTENTION_WGMMA_128, KFI_SCORE_PLAIN>(c, tile),
        instance<KFI_OF_BF16, KFI_ATTENTION_WGMMA_64, SCORE_SOFTCAP>(c, tile),
        instance<KFI_OF_F16, KFI_ATTENTION_WGMMA_128, SCORE_BIAS>(c, tile)};
    for (const void *kernel : all)
        if (kernel) return kernel;
    return nullptr;
}

template <int type, int tile, int score, int whole>
static const void *mma_instance(const attention_call &c, int picked, bool rows_whole)
{
    return c.type == type && picked == tile && c.score == score && rows_whole == (whole != 0)
               ? KFI_ADDRESS(kfk_attention_mma<type, tile, score, whole>)
               : nullptr;
}
static const void *mma_kernel(const attention_call &c, int tile)
{
    const bool whole = (uintptr_t)c.q % 16 == 0 && c.dim % 8 == 0 && c.dim_v % 8 == 0;
    const void *const all[] = {
        mma_instance<KFI_OF_BF16, KFI_ATTENTION_MMA_64, KFI_SCORE_PLAIN, 1>(c, tile, whole),
        mma_instance<KFI_OF_BF16, KFI_ATTENTION_MMA_64, KFI_SCORE_PLAIN, 0>(c, tile, whole),
        mma_instance<KFI_OF_BF16, KFI_ATTENTION_MMA_128, KFI_SCORE_PLAIN, 1>(c, tile, whole),
        mma_instance<KFI_OF_F16, KFI_ATTENTION_MMA_128, KFI_SCORE_PLAIN, 0>(c, tile, whole),
        mma_instance<KFI_OF_BF16, KFI_ATTENTION_MMA_256, KFI_SCORE_PLAIN, 1>(c, tile, whole),
        mma_instance<KFI_OF_F16, KFI_ATTENTION_MMA_64, SCORE_SOFTCAP, 1>(c, tile, whole),
        mma_instance<KFI_OF_BF16, KFI_ATTENTION_MMA_128, SCORE_BIAS, 1>(c, tile, whole)};
    for (const void *kernel : all)
        if (kernel) return kernel;
    return nullptr;
}
template <int type, int tile, int score>
static const void *simt_instance(const attention_call &c, int picked)
{
    return c.type == type && picked == tile && c.score == score
               ? KFI_ADDRESS(kfk_attention_simt<type, tile, score>)
               : nullptr;
}
static const void *simt_kernel(const attention_call &c, int tile)
{
    const void *const all[] = {simt_instance<KFI_OF_F32, 0, KFI_SCORE_PLAIN>(c, tile),
                               simt_instance<KFI_OF_F32, 1, SCORE_BIAS>(c, tile),
                               simt_instance<KFI_OF_F32, 2, KFI_SCORE_PLAIN>(c, tile),
                               simt_instance<KFI_OF_F64, 0, KFI_SCORE_PLAIN>(c, tile),
                               simt_instance<KFI_OF_F64, 1, SCORE_SOFTCAP>(c, tile),
                               simt_instance<KFI_OF_F64, 2, KFI_SCORE_PLAIN>(c, tile),
                               simt_instance<KFI_OF_BF16, 0, KFI_SCORE_PLAIN>(c, tile),
                               simt_instance<KFI_OF_F16, 1, KFI_SCORE_PLAIN>(c, tile)};
    for (const void *kernel : all)
        if (kernel) return kernel;
    return nullptr;
}

// Runs a call; returns its result.
extern "C" int attention(const attention_call *c)
{
    kfi_attention a = arguments(*c);
    const kfi_attention_plan p = plan(*c);
    if (c->kernel == 1) {
        const int tile = kfi_attention_pick_mma(ALL, c->dim, c->dim_v);
        return kfi_attention_launch_mma(&NAME, mma_kernel(*c, tile), &a, tile, p, nullptr);
    }
    if (c->kernel == 2) {
        const int tile = kfi_attention_pick_simt(ALL, c->dim_v, 0);
        return kfi_attention_launch_simt(&NAME, simt_kernel(*c, tile), &a, (int)c->type, tile, p,
                                         nullptr);
    }
    const int tile = kfi_attention_pick_tile(ALL, c->dim, c->dim_v);
    kfi_tensor_map maps[3];
    if (!kfi_attention_encode(maps, a, (int)c->type, tile, p)) return -1;
    return kfi_attention_launch(&NAME, hopper_kernel(*c, tile),
                                KFI_ADDRESS(kfk_attention_ticket<0>), &a, maps, tile, p,
                                (int)c->blocks, nullptr);
}
