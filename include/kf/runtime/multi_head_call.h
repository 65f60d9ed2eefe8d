/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/multi_head_call.h: the definition of kf_fused_multi_head_attention. Up to three
 * products write the projections side by side, attention reads them in place by its strides, and
 * one product projects its result. */
#ifndef KF_RUNTIME_MULTI_HEAD_CALL_H
#define KF_RUNTIME_MULTI_HEAD_CALL_H

#include "kf/runtime/multi_head_check.h"

/* The ops that the functions call, defined by the header that `kfgen runtime` wrote, in the order
 * of gen/kfgen/entries/compositions.toml: the forwards, then their backwards. NULL: the program
 * does not have the op. */
enum {
    KFI_MHA_PROJECT,
    KFI_MHA_ALL_KEYS,
    KFI_MHA_CAUSAL,
    KFI_MHA_MASKED,
    KFI_MHA_BIASED,
    KFI_MHA_FORWARDS
};
extern const kfi_rt_op *const kfi_rt_ops_of_multi_head_attention[2 * KFI_MHA_FORWARDS]
    __attribute__((visibility("hidden")));

/* One projection: out = x . weight^T + bias. */
typedef struct {
    const kf_tensor_t *x;
    const char *x_name, *weight_name;
    kf_tensor_t weight, bias, out;
} kfi_mha_projection;

/* ---- projections */

/* Describes the three products, without their results. */
static void kfi_mha_describe_projections(const kf_multi_head_attention_t *a, const kfi_mha_sizes *h,
                                         kfi_mha_projection *p)
{
    const kf_tensor_t *const of[] = {a->q_proj_weight, a->k_proj_weight, a->v_proj_weight};
    const char *const names[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    const kf_tensor_t *const x[] = {a->query, a->key, a->value};
    const char *const x_names[] = {"query", "key", "value"};
    int64_t first = 0;
    for (int i = 0; i < 3; first += h->rows[i++]) {
        p[i].x = x[i];
        p[i].x_name = x_names[i];
        p[i].weight_name = a->in_proj_weight ? "in_proj_weight" : names[i];
        const kf_tensor_t *const w = a->in_proj_weight ? a->in_proj_weight : of[i];
        const int64_t shape[] = {h->rows[i], w->shape[1]};
        p[i].weight =
            kfi_rt_part(w, 2, shape, w->strides, a->in_proj_weight ? first * w->strides[0] : 0);
        if (a->in_proj_bias)
            p[i].bias = kfi_rt_part(a->in_proj_bias, 1, shape, a->in_proj_bias->strides,
                                    first * a->in_proj_bias->strides[0]);
    }
}
/* Returns whether one product computes both projections: of one tensor, by weights whose rows
 * follow each other in memory. */
static int kfi_mha_follows(const kfi_mha_projection *p, const kfi_mha_projection *next)
{
    const kf_tensor_t *const w = &p->weight, *const v = &next->weight;
    const int64_t bytes = w->shape[0] * w->strides[0] * (int64_t)kfi_rt_width(w->dtype);
    return kfi_rt_same_view(p->x, next->x) && w->strides[0] == v->strides[0] &&
           w->strides[1] == v->strides[1] &&
           (uintptr_t)v->data - (uintptr_t)w->data == (uintptr_t)bytes;
}
/* Returns a view of so many columns of a result by heads, from its first on. */
static kf_tensor_t kfi_mha_columns(const kf_tensor_t *by_heads, int64_t columns)
{
    const int64_t shape[] = {by_heads->shape[0], by_heads->shape[1], columns},
                  strides[] = {by_heads->strides[0], by_heads->strides[1], 1};
    return kfi_rt_part(by_heads, 3, shape, strides, 0);
}
/* Makes projection `next` part of p. */
static void kfi_mha_join(const kfi_mha_projection *next, int has_bias, kfi_mha_projection *p)
{
    const int64_t shape[] = {p->weight.shape[0] + next->weight.shape[0], p->weight.shape[1]};
    p->weight = kfi_rt_part(&p->weight, 2, shape, p->weight.strides, 0);
    if (has_bias) p->bias = kfi_rt_part(&p->bias, 1, shape, p->bias.strides, 0);
}
/* Adds a product to the chain. Rows of x or out that are not evenly spaced are a batch, whose
 * indices share the weight. */
static void kfi_mha_add_product(kfi_rt_chain *chain, const kfi_mha_projection *p, int has_bias,
                                const char *bias, const char *out)
{
    const kf_tensor_t *const x = p->x;
    const int is_batch = kfi_layout_merge(x->shape, x->strides, 0, 2) == -1 ||
                         kfi_layout_merge(p->out.shape, p->out.strides, 0, 2) == -1;
    const int64_t shape[] = {x->shape[0], p->weight.shape[0], p->weight.shape[1]},
                  strides[] = {0, p->weight.strides[0], p->weight.strides[1]},
                  of_bias[] = {0, p->bias.strides[0]};
    const int skip = !is_batch;
    const kf_tensor_t weight = kfi_rt_part(&p->weight, 3 - skip, shape + skip, strides + skip, 0);
    kfi_rt_step *const step =
        kfi_rt_add_step(chain, kfi_rt_ops_of_multi_head_attention[KFI_MHA_PROJECT]);
    kfi_rt_bind(step, "x", p->x_name, x);
    kfi_rt_bind(step, "weight", p->weight_name, &weight);
    kfi_rt_bind(step, "out", out, &p->out);
    if (!has_bias) return;
    const kf_tensor_t added = kfi_rt_part(&p->bias, 2 - skip, shape + skip, of_bias + skip, 0);
    kfi_rt_bind(step, "bias", bias, &added);
}
/* Adds the projections. qkv: their results by heads, [batch, rows, heads, dim]; those of one tensor
 * lie side by side. */
static void kfi_mha_project(kfi_rt_chain *chain, const kf_multi_head_attention_t *a,
                            const kfi_mha_sizes *h, const kf_tensor_t *qkv)
{
    kfi_mha_projection p[3];
    memset(p, 0, sizeof p);
    kfi_mha_describe_projections(a, h, p);
    for (int i = 0, next; i < 3; i = next) {
        for (next = i + 1; next < 3 && kfi_mha_follows(&p[next - 1], &p[next]); ++next) continue;
        for (int k = i + 1; k < next; ++k) kfi_mha_join(&p[k], a->in_proj_bias != NULL, &p[i]);
        p[i].out = kfi_mha_columns(&qkv[i], p[i].weight.shape[0]);
        kfi_mha_add_product(chain, &p[i], a->in_proj_bias != NULL, "in_proj_bias", p[i].x_name);
    }
}

/* ---- tensors between the steps */

/* statistics: lse, row_max and log_sum; they exist only for a backward. */
typedef struct {
    kf_tensor_t qkv[3], attended, statistics[3];
} kfi_mha_between;

/* Describes a tensor between the steps: the part of `saved` from *used on, or an intermediate. Adds
 * its bytes to *used. */
static kf_result_t kfi_mha_place(kfi_rt_chain *chain, const kf_tensor_t *saved,
                                 const char *argument, int dtype, int ndim, const int64_t *shape,
                                 size_t *used, kf_tensor_t *t)
{
    const size_t before = chain->bytes;
    const kf_result_t result = kfi_rt_intermediate(chain, argument, dtype, ndim, shape, t);
    const size_t bytes = chain->bytes - before;
    if (result == KF_SUCCESS && saved) {
        chain->bytes = before;
        t->storage = saved->storage;
        t->data = saved->data + *used;
    }
    *used += bytes;
    return result;
}
/* Describes all tensors between the steps. Their layout follows from the sizes alone: the backward
 * finds what the forward wrote, wherever weights and inputs lie. Projections of as many rows lie
 * side by side, so that one product may write them. */
static kf_result_t kfi_mha_place_all(kfi_rt_chain *chain, const kf_multi_head_attention_t *a,
                                     const kfi_mha_sizes *h, size_t *used, kfi_mha_between *b)
{
    const int64_t rows[] = {h->queries, h->keys, h->keys};
    const int64_t heads[] = {h->heads, h->kv_heads, h->kv_heads},
                  dim[] = {h->dim, h->dim, h->dim_v};
    const int64_t attended[] = {h->batch, h->queries, h->heads, h->dim_v},
                  of_query[] = {h->batch, h->heads, h->queries};
    const int dtype = a->query->dtype, sums = dtype == KF_F64 ? KF_F64 : KF_F32,
              has_statistics = a->saved || h->purpose == KFI_MHA_MEASURE;
    kf_result_t result = KF_SUCCESS;
    for (int i = 0, next; i < 3 && result == KF_SUCCESS; i = next) {
        int64_t shape[] = {h->batch, rows[i], h->rows[i]}, first = 0;
        for (next = i + 1; next < 3 && rows[next] == rows[i]; ++next) shape[2] += h->rows[next];
        kf_tensor_t whole;
        result = kfi_mha_place(chain, a->saved, i ? "key" : "query", dtype, 3, shape, used, &whole);
        for (int k = i; k < next && result == KF_SUCCESS; first += h->rows[k++]) {
            const int64_t by_heads[] = {h->batch, rows[k], heads[k], dim[k]},
                          strides[] = {rows[k] * shape[2], shape[2], dim[k], 1};
            b->qkv[k] = kfi_rt_part(&whole, 4, by_heads, strides, first);
        }
    }
    if (result == KF_SUCCESS)
        result = kfi_mha_place(chain, a->saved, "query", dtype, 4, attended, used, &b->attended);
    for (int i = 0; i < 3 && has_statistics && result == KF_SUCCESS; ++i)
        result =
            kfi_mha_place(chain, a->saved, "query", sums, 3, of_query, used, &b->statistics[i]);
    return result;
}

/* ---- attention */

static const char *const kfi_mha_statistics[] = {"lse", "row_max", "log_sum"};

/* Adds attention, forward or backward, with what both read. */
static kf_result_t kfi_mha_add_attention(kfi_rt_chain *chain, const kf_multi_head_attention_t *a,
                                         const kfi_mha_sizes *h, const kfi_mha_between *b,
                                         kfi_rt_step **step)
{
    static const char *const names[] = {"", "attention", "causal_attention", "mask_attention",
                                        "bias_attention"};
    const int of_mask = a->mask && a->mask->dtype == KF_U8 ? KFI_MHA_MASKED : KFI_MHA_BIASED,
              is_backward = h->purpose == KFI_MHA_BACKWARD,
              which = a->mask        ? of_mask
                      : a->is_causal ? KFI_MHA_CAUSAL
                                     : KFI_MHA_ALL_KEYS;
    const kfi_rt_op *const op =
        kfi_rt_ops_of_multi_head_attention[which + is_backward * KFI_MHA_FORWARDS];
    if (!op)
        return kfi_rt_fail(
            KF_ERROR_UNSUPPORTED, h->function, a->mask ? "mask" : "is_causal",
            "is %s, which calls %s%s, which this program does not have (kfgen runtime --ops)",
            a->mask        ? kfi_rt_dtype(a->mask->dtype)
            : a->is_causal ? "1"
                           : "0",
            names[which], is_backward ? "_bwd" : "");
    *step = kfi_rt_add_step(chain, op);
    kfi_rt_bind(*step, "q", "query", &b->qkv[0]);
    kfi_rt_bind(*step, "k", "key", &b->qkv[1]);
    kfi_rt_bind(*step, "v", "value", &b->qkv[2]);
    kfi_rt_bind(*step, "out", is_backward ? "saved" : "out", &b->attended);
    kfi_rt_bind_scalar(*step, "scale", h->scale);
    for (int i = 0; i < 3 && b->statistics[i].ndim; ++i)
        kfi_rt_bind(*step, kfi_mha_statistics[i], "saved", &b->statistics[i]);
    if (!a->mask) return KF_SUCCESS;
    const int64_t shape[] = {h->batch, h->heads, h->queries, h->keys};
    int64_t strides[4];
    const kf_result_t result = kfi_rt_broadcast(h->function, "mask", a->mask, shape, 4, strides);
    if (result != KF_SUCCESS) return result;
    const kf_tensor_t mask = kfi_rt_part(a->mask, 4, shape, strides, 0);
    kfi_rt_bind(*step, which == KFI_MHA_MASKED ? "mask" : "bias", "mask", &mask);
    return KF_SUCCESS;
}
/* Returns a view [batch, queries, heads * dim_v] of the result of attention. */
static kf_tensor_t kfi_mha_attended(const kfi_mha_sizes *h, const kf_tensor_t *attended)
{
    const int64_t rows[] = {h->batch, h->queries, h->heads * h->dim_v},
                  strides[] = {rows[1] * rows[2], rows[2], 1};
    return kfi_rt_part(attended, 3, rows, strides, 0);
}
/* Adds all steps of a checked call. */
static kf_result_t kfi_mha_add_steps(kfi_rt_chain *chain, const kf_multi_head_attention_t *a,
                                     const kfi_mha_sizes *h, kfi_mha_between *b)
{
    kfi_rt_step *step;
    kfi_mha_projection last;
    kfi_mha_project(chain, a, h, b->qkv);
    const kf_result_t result = kfi_mha_add_attention(chain, a, h, b, &step);
    if (result != KF_SUCCESS) return result;
    const kf_tensor_t attended = kfi_mha_attended(h, &b->attended);
    memset(&last, 0, sizeof last);
    last.x = &attended;
    last.x_name = "query", last.weight_name = "out_proj_weight";
    last.weight = *a->out_proj_weight;
    if (a->out_proj_bias) last.bias = *a->out_proj_bias;
    last.out = *a->out;
    kfi_mha_add_product(chain, &last, a->out_proj_bias != NULL, "out_proj_bias", "out");
    return KF_SUCCESS;
}
/* Runs the chain. One product may read weights of several tensors, of which it knows the first. */
static kf_result_t kfi_mha_run(kfi_rt_chain *chain, const kf_multi_head_attention_t *a)
{
    const kf_result_t result = kfi_rt_run_chain(chain);
    const kf_tensor_t *const joined[] = {a->k_proj_weight, a->v_proj_weight};
    for (int i = 0; i < 2; ++i)
        if (joined[i]) kfi_rt_use(joined[i], chain->ctx, chain->stream);
    return result;
}

#ifdef __cplusplus
extern "C" {
#endif

kf_result_t kf_fused_multi_head_attention(kf_context_t *ctx,
                                          const kf_multi_head_attention_t *arguments,
                                          kf_stream_t *stream)
{
    kf_multi_head_attention_t a;
    kfi_mha_sizes h;
    kfi_mha_between b;
    kfi_rt_chain chain;
    size_t saved = 0;
    memset(&h, 0, sizeof h);
    memset(&b, 0, sizeof b);
    h.function = "kf_fused_multi_head_attention";
    h.purpose = KFI_MHA_FORWARD;
    kf_result_t result = KFI_RT_CHECK(h.function, "ctx", ctx, KFI_RT_CONTEXT);
    if (result == KF_SUCCESS) result = kfi_rt_check_stream(h.function, ctx, stream);
    if (result == KF_SUCCESS) result = kfi_mha_check(ctx, arguments, &a, &h);
    if (result != KF_SUCCESS) return result;
    kfi_rt_begin_chain(&chain, h.function, ctx, stream);
    result = kfi_mha_place_all(&chain, &a, &h, &saved, &b);
    if (result == KF_SUCCESS && a.saved) result = kfi_mha_check_saved(&a, &h, saved);
    if (result == KF_SUCCESS) result = kfi_mha_add_steps(&chain, &a, &h, &b);
    return result == KF_SUCCESS ? kfi_mha_run(&chain, &a) : result;
}
int64_t kf_fused_multi_head_attention_saved_bytes(kf_context_t *ctx,
                                                  const kf_multi_head_attention_t *arguments)
{
    kf_multi_head_attention_t a;
    kfi_mha_sizes h;
    kfi_mha_between b;
    kfi_rt_chain chain;
    size_t bytes = 0;
    memset(&h, 0, sizeof h);
    h.function = "kf_fused_multi_head_attention_saved_bytes";
    h.purpose = KFI_MHA_MEASURE;
    kf_result_t result = KFI_RT_CHECK(h.function, "ctx", ctx, KFI_RT_CONTEXT);
    if (result == KF_SUCCESS) result = kfi_mha_check(ctx, arguments, &a, &h);
    if (result != KF_SUCCESS) return -1;
    kfi_rt_begin_chain(&chain, h.function, ctx, NULL);
    result = kfi_mha_place_all(&chain, &a, &h, &bytes, &b);
    if (result == KF_SUCCESS && bytes > KFI_LAYOUT_MOST)
        result = kfi_rt_fail(KF_ERROR_INVALID_SIZE, h.function, "query",
                             "makes saved %zu bytes, expected at most 2^58", bytes);
    return result == KF_SUCCESS ? (int64_t)bytes : -1;
}

#ifdef __cplusplus
}
#endif

#endif
