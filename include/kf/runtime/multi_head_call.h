/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/multi_head_call.h: the definition of kf_fused_multi_head_attention. Up to three
 * products write the projections side by side, attention reads them in place by its strides, and
 * one product projects its result. */
#ifndef KF_RUNTIME_MULTI_HEAD_CALL_H
#define KF_RUNTIME_MULTI_HEAD_CALL_H

#include <math.h>

#include "kf/runtime/chain.h"

/* The ops that the function calls, defined by the header that `kfgen runtime` wrote, in the order
 * of gen/kfgen/entries/compositions.toml. NULL: the program does not have the op. */
enum { KFI_MHA_PROJECT, KFI_MHA_ALL_KEYS, KFI_MHA_CAUSAL, KFI_MHA_MASKED, KFI_MHA_BIASED };
extern const kfi_rt_op *const kfi_rt_ops_of_multi_head_attention[5]
    __attribute__((visibility("hidden")));

#define KFI_MHA "kf_fused_multi_head_attention"

/* The numbers of a call. rows: those of the three weights. */
typedef struct {
    int64_t batch, queries, keys, heads, kv_heads, dim, dim_v, rows[3];
    double scale;
} kfi_mha_sizes;
/* One projection: out = x . weight^T + bias. */
typedef struct {
    const kf_tensor_t *x;
    const char *x_name, *weight_name;
    kf_tensor_t weight, bias, out;
} kfi_mha_projection;

/* ---- checks */

/* Checks a tensor's shape; -1 in `shape` accepts any extent. */
static kf_result_t kfi_mha_expect(const char *name, const kf_tensor_t *t, int ndim,
                                  const int64_t *shape, const char *why)
{
    int same = t->ndim == ndim;
    for (int i = 0; i < ndim && same; ++i) same = shape[i] < 0 || t->shape[i] == shape[i];
    if (same) return KF_SUCCESS;
    char wanted[120] = "";
    size_t used = 0;
    for (int i = 0; i < ndim; ++i) {
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)shape[i]);
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, "%s%s", i ? ", " : "",
                                 shape[i] < 0 ? "any" : number);
    }
    return kfi_rt_fail(KF_ERROR_SHAPE, KFI_MHA, name, "is %s, expected [%s]%s",
                       kfi_rt_list(t->shape, t->ndim).text, wanted, why);
}
/* Checks that the call has its tensors, and their contexts and dtypes. */
static kf_result_t kfi_mha_check_given(const kf_context_t *ctx, const kf_multi_head_attention_t *a)
{
    const int is_packed = a->in_proj_weight != NULL;
    const struct {
        const char *name;
        const kf_tensor_t *t;
        int is_needed;
    } all[] = {{"query", a->query, 1},
               {"key", a->key, 0},
               {"value", a->value, 0},
               {"in_proj_weight", a->in_proj_weight,
                !a->q_proj_weight && !a->k_proj_weight && !a->v_proj_weight},
               {"q_proj_weight", a->q_proj_weight, !is_packed},
               {"k_proj_weight", a->k_proj_weight, !is_packed},
               {"v_proj_weight", a->v_proj_weight, !is_packed},
               {"in_proj_bias", a->in_proj_bias, 0},
               {"out_proj_weight", a->out_proj_weight, 1},
               {"out_proj_bias", a->out_proj_bias, 0},
               {"out", a->out, 1},
               {"mask", a->mask, 0}};
    const int count = (int)(sizeof all / sizeof *all);
    for (int i = 0; i < count; ++i) {
        const kf_tensor_t *const t = all[i].t;
        if (!t && !all[i].is_needed) continue;
        const kf_result_t result = KFI_RT_CHECK(KFI_MHA, all[i].name, t, KFI_RT_TENSOR);
        if (result != KF_SUCCESS) return result;
        if (t->object.ctx != ctx)
            return kfi_rt_fail(KF_ERROR_DEVICE, KFI_MHA, all[i].name,
                               "is of another context, expected one of ctx");
        if (t->dtype != a->query->dtype && (t != a->mask || t->dtype != KF_U8))
            return kfi_rt_fail(KF_ERROR_DTYPE, KFI_MHA, all[i].name,
                               "is %s, expected %s%s as query", kfi_rt_dtype(t->dtype),
                               t == a->mask ? "u8, or " : "", kfi_rt_dtype(a->query->dtype));
        if (is_packed && i > 3 && i < 7)
            return kfi_rt_fail(KF_ERROR_INVALID_VALUE, KFI_MHA, all[i].name,
                               "is given beside in_proj_weight, expected NULL");
    }
    return KF_SUCCESS;
}
/* Computes the number of heads and their dimensions, and checks the shapes of the weights. */
static kf_result_t kfi_mha_measure_weights(const kf_multi_head_attention_t *a, kfi_mha_sizes *h)
{
    const kf_tensor_t *const of[] = {a->q_proj_weight, a->k_proj_weight, a->v_proj_weight};
    const char *const names[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    const kf_tensor_t *const x[] = {a->query, a->key, a->value};
    kf_result_t result = KF_SUCCESS;
    for (int i = 0; i < (a->in_proj_weight ? 1 : 3) && result == KF_SUCCESS; ++i) {
        const kf_tensor_t *const w = a->in_proj_weight ? a->in_proj_weight : of[i];
        const char *const name = a->in_proj_weight ? "in_proj_weight" : names[i];
        const int64_t heads = a->in_proj_weight ? h->heads + 2 * h->kv_heads
                              : i               ? h->kv_heads
                                                : h->heads,
                      shape[] = {-1, x[i]->shape[2]};
        result = kfi_mha_expect(name, w, 2, shape, "");
        if (result == KF_SUCCESS && w->shape[0] % heads)
            return kfi_rt_fail(KF_ERROR_SHAPE, KFI_MHA, name, "is %s, expected rows for %lld heads",
                               kfi_rt_list(w->shape, 2).text, (long long)heads);
        h->rows[i] = w->shape[0];
        if (i == 0) h->dim = w->shape[0] / heads;
        if (i == 2) h->dim_v = w->shape[0] / heads;
    }
    if (result != KF_SUCCESS) return result;
    const int64_t of_keys[] = {h->kv_heads * h->dim, a->key->shape[2]};
    if (!a->in_proj_weight)
        return kfi_mha_expect(names[1], of[1], 2, of_keys, " beside q_proj_weight");
    h->dim_v = h->dim;
    h->rows[0] = h->heads * h->dim;
    h->rows[1] = h->rows[2] = h->kv_heads * h->dim;
    return KF_SUCCESS;
}
static kf_result_t kfi_mha_measure_rows(const kf_multi_head_attention_t *a, kfi_mha_sizes *h)
{
    const int64_t any[] = {-1, -1, -1};
    kf_result_t result = kfi_mha_expect("query", a->query, 3, any, "");
    if (result != KF_SUCCESS) return result;
    h->batch = a->query->shape[0], h->queries = a->query->shape[1];
    const int64_t embed = a->in_proj_weight ? a->query->shape[2] : -1,
                  key[] = {h->batch, -1, embed};
    const char *const why = a->in_proj_weight ? " beside in_proj_weight" : "";
    result = kfi_mha_expect("key", a->key, 3, key, why);
    if (result != KF_SUCCESS) return result;
    h->keys = a->key->shape[1];
    const int64_t value[] = {h->batch, h->keys, embed};
    return kfi_mha_expect("value", a->value, 3, value, why);
}
static kf_result_t kfi_mha_check_numbers(const kf_multi_head_attention_t *a, kfi_mha_sizes *h)
{
    h->heads = a->heads;
    h->kv_heads = a->kv_heads ? a->kv_heads : a->heads;
    if (h->heads < 1 || h->heads > INT32_MAX)
        return kfi_rt_fail(KF_ERROR_INVALID_SIZE, KFI_MHA, "heads",
                           "is %lld, expected 1 or more, below 2^31", (long long)a->heads);
    if (h->kv_heads < 1 || h->heads % h->kv_heads)
        return kfi_rt_fail(KF_ERROR_INVALID_SIZE, KFI_MHA, "kv_heads",
                           "is %lld, expected a divisor of heads, %lld", (long long)a->kv_heads,
                           (long long)h->heads);
    if (!(a->scale - a->scale == 0))
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, KFI_MHA, "scale",
                           "is %g, expected a finite number", a->scale);
    if (a->is_causal != 0 && a->is_causal != 1)
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, KFI_MHA, "is_causal", "is %d, expected 0 or 1",
                           (int)a->is_causal);
    if (a->is_causal && a->mask)
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, KFI_MHA, "is_causal",
                           "is 1 beside a mask, expected one of them");
    return KF_SUCCESS;
}
/* Checks the shapes of the other tensors, and that the last product may write the result. */
static kf_result_t kfi_mha_check_result(const kf_multi_head_attention_t *a, const kfi_mha_sizes *h)
{
    const int64_t of_bias[] = {h->rows[0] + h->rows[1] + h->rows[2]},
                  of_weight[] = {-1, h->heads * h->dim_v};
    kf_result_t result = KF_SUCCESS;
    if (a->in_proj_bias) result = kfi_mha_expect("in_proj_bias", a->in_proj_bias, 1, of_bias, "");
    if (result == KF_SUCCESS)
        result = kfi_mha_expect("out_proj_weight", a->out_proj_weight, 2, of_weight, "");
    if (result != KF_SUCCESS) return result;
    const int64_t out[] = {h->batch, h->queries, a->out_proj_weight->shape[0]};
    if (a->out_proj_bias)
        result = kfi_mha_expect("out_proj_bias", a->out_proj_bias, 1, out + 2, "");
    if (result == KF_SUCCESS) result = kfi_mha_expect("out", a->out, 3, out, "");
    const kf_tensor_t *const read[] = {a->out_proj_weight, a->out_proj_bias};
    for (int i = 0; i < 2 && result == KF_SUCCESS; ++i)
        if (read[i] && a->out->data < read[i]->data + kfi_rt_extent(read[i]) &&
            read[i]->data < a->out->data + kfi_rt_extent(a->out))
            return kfi_rt_fail(KF_ERROR_OVERLAP, KFI_MHA, "out",
                               "at %p overlaps out_proj_%s at %p, expected memory apart",
                               (void *)a->out->data, i ? "bias" : "weight", (void *)read[i]->data);
    return result;
}

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
/* Adds the projections. qkv: their results by heads, [batch, rows, heads, dim]. */
static kf_result_t kfi_mha_project(kfi_rt_chain *chain, const kf_multi_head_attention_t *a,
                                   const kfi_mha_sizes *h, kf_tensor_t *qkv)
{
    kfi_mha_projection p[3];
    memset(p, 0, sizeof p);
    kfi_mha_describe_projections(a, h, p);
    const int64_t heads[] = {h->heads, h->kv_heads, h->kv_heads},
                  dim[] = {h->dim, h->dim, h->dim_v};
    for (int i = 0, next; i < 3; i = next) {
        for (next = i + 1; next < 3 && kfi_mha_follows(&p[next - 1], &p[next]); ++next) continue;
        for (int k = i + 1; k < next; ++k) kfi_mha_join(&p[k], a->in_proj_bias != NULL, &p[i]);
        const int64_t *const rows = p[i].x->shape;
        const int64_t shape[] = {rows[0], rows[1], p[i].weight.shape[0]};
        const kf_result_t result =
            kfi_rt_intermediate(chain, p[i].x_name, a->query->dtype, 3, shape, &p[i].out);
        if (result != KF_SUCCESS) return result;
        kfi_mha_add_product(chain, &p[i], a->in_proj_bias != NULL, "in_proj_bias", p[i].x_name);
        int64_t first = 0;
        for (int k = i; k < next; first += h->rows[k++]) {
            const int64_t by_heads[] = {rows[0], rows[1], heads[k], dim[k]},
                          strides[] = {rows[1] * shape[2], shape[2], dim[k], 1};
            qkv[k] = kfi_rt_part(&p[i].out, 4, by_heads, strides, first);
        }
    }
    return KF_SUCCESS;
}

/* ---- attention */

/* Adds attention. out: [batch, queries, heads, dim_v]. */
static kf_result_t kfi_mha_attend(kfi_rt_chain *chain, const kf_multi_head_attention_t *a,
                                  const kfi_mha_sizes *h, const kf_tensor_t *qkv,
                                  const kf_tensor_t *out)
{
    static const char *const names[] = {"", "attention", "causal_attention", "mask_attention",
                                        "bias_attention"};
    const int of_mask = a->mask && a->mask->dtype == KF_U8 ? KFI_MHA_MASKED : KFI_MHA_BIASED,
              which = a->mask        ? of_mask
                      : a->is_causal ? KFI_MHA_CAUSAL
                                     : KFI_MHA_ALL_KEYS;
    const kfi_rt_op *const op = kfi_rt_ops_of_multi_head_attention[which];
    if (!op)
        return kfi_rt_fail(
            KF_ERROR_UNSUPPORTED, KFI_MHA, a->mask ? "mask" : "is_causal",
            "is %s, which calls %s, which this program does not have (kfgen runtime --ops)",
            a->mask        ? kfi_rt_dtype(a->mask->dtype)
            : a->is_causal ? "1"
                           : "0",
            names[which]);
    kfi_rt_step *const step = kfi_rt_add_step(chain, op);
    kfi_rt_bind(step, "q", "query", &qkv[0]);
    kfi_rt_bind(step, "k", "key", &qkv[1]);
    kfi_rt_bind(step, "v", "value", &qkv[2]);
    kfi_rt_bind(step, "out", "out", out);
    kfi_rt_bind_scalar(step, "scale", h->scale);
    if (!a->mask) return KF_SUCCESS;
    const int64_t shape[] = {h->batch, h->heads, h->queries, h->keys};
    int64_t strides[4];
    const kf_result_t result = kfi_rt_broadcast(KFI_MHA, "mask", a->mask, shape, 4, strides);
    if (result != KF_SUCCESS) return result;
    const kf_tensor_t mask = kfi_rt_part(a->mask, 4, shape, strides, 0);
    kfi_rt_bind(step, which == KFI_MHA_MASKED ? "mask" : "bias", "mask", &mask);
    return KF_SUCCESS;
}
/* Adds all steps of a checked call. */
static kf_result_t kfi_mha_add_steps(kfi_rt_chain *chain, const kf_multi_head_attention_t *a,
                                     const kfi_mha_sizes *h)
{
    const int64_t by_heads[] = {h->batch, h->queries, h->heads, h->dim_v},
                  rows[] = {h->batch, h->queries, h->heads * h->dim_v};
    kf_tensor_t qkv[3], attended, joined;
    kfi_mha_projection last;
    kf_result_t result = kfi_mha_project(chain, a, h, qkv);
    if (result == KF_SUCCESS)
        result = kfi_rt_intermediate(chain, "query", a->query->dtype, 4, by_heads, &attended);
    if (result == KF_SUCCESS) result = kfi_mha_attend(chain, a, h, qkv, &attended);
    if (result != KF_SUCCESS) return result;
    const int64_t strides[] = {rows[1] * rows[2], rows[2], 1};
    joined = kfi_rt_part(&attended, 3, rows, strides, 0);
    memset(&last, 0, sizeof last);
    last.x = &joined;
    last.x_name = "query", last.weight_name = "out_proj_weight";
    last.weight = *a->out_proj_weight;
    if (a->out_proj_bias) last.bias = *a->out_proj_bias;
    last.out = *a->out;
    kfi_mha_add_product(chain, &last, a->out_proj_bias != NULL, "out_proj_bias", "out");
    return KF_SUCCESS;
}

#ifdef __cplusplus
extern "C" {
#endif

kf_result_t kf_fused_multi_head_attention(kf_context_t *ctx,
                                          const kf_multi_head_attention_t *arguments,
                                          kf_stream_t *stream)
{
    kf_result_t result = KFI_RT_CHECK(KFI_MHA, "ctx", ctx, KFI_RT_CONTEXT);
    if (result == KF_SUCCESS) result = kfi_rt_check_stream(KFI_MHA, ctx, stream);
    if (result != KF_SUCCESS) return result;
    if (!arguments)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, KFI_MHA, "arguments",
                           "is NULL, expected those of a call");
    kf_multi_head_attention_t a = *arguments;
    kfi_mha_sizes h;
    kfi_rt_chain chain;
    memset(&h, 0, sizeof h);
    memset(&chain, 0, sizeof chain);
    if (!a.key) a.key = a.query;
    if (!a.value) a.value = a.key;
    result = kfi_mha_check_given(ctx, &a);
    if (result == KF_SUCCESS) result = kfi_mha_check_numbers(&a, &h);
    if (result == KF_SUCCESS) result = kfi_mha_measure_rows(&a, &h);
    if (result == KF_SUCCESS) result = kfi_mha_measure_weights(&a, &h);
    if (result == KF_SUCCESS) result = kfi_mha_check_result(&a, &h);
    if (result != KF_SUCCESS) return result;
    h.scale = a.scale != 0 ? a.scale : h.dim ? 1 / sqrt((double)h.dim) : 1;
    chain.name = KFI_MHA;
    chain.ctx = ctx;
    chain.stream = stream;
    result = kfi_mha_add_steps(&chain, &a, &h);
    return result == KF_SUCCESS ? kfi_rt_run_chain(&chain) : result;
}

#ifdef __cplusplus
}
#endif

#endif
