/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/multi_head_check.h: the numbers of a call of kf_fused_multi_head_attention or of its
 * backward, and the checks of its arguments. */
#ifndef KF_RUNTIME_MULTI_HEAD_CHECK_H
#define KF_RUNTIME_MULTI_HEAD_CHECK_H

#include <math.h>

#include "kf/runtime/chain.h"

enum { KFI_MHA_TENSORS = 12, KFI_MHA_ALIGNMENT = 16 };
/* Purpose of a call: the result, the gradients, or the size of `saved`. */
enum { KFI_MHA_FORWARD, KFI_MHA_BACKWARD, KFI_MHA_MEASURE };

/* The numbers of a call. purpose: KFI_MHA_FORWARD, _BACKWARD or _MEASURE. rows: those of the three
 * weights. */
typedef struct {
    const char *function;
    int purpose;
    int64_t batch, queries, keys, heads, kv_heads, dim, dim_v, rows[3];
    double scale;
} kfi_mha_sizes;
/* A tensor of the arguments, and its name. */
typedef struct {
    const char *name;
    const kf_tensor_t *t;
    int is_needed;
} kfi_mha_named;

/* Returns whether two tensors share memory, counting the gaps between strided elements. */
static int kfi_mha_overlaps(const kf_tensor_t *a, const kf_tensor_t *b)
{
    return a && b && a->count && b->count && a->data < b->data + kfi_rt_extent(b) &&
           b->data < a->data + kfi_rt_extent(a);
}
/* Checks a tensor's shape; -1 in `shape` accepts any extent. */
static kf_result_t kfi_mha_expect(const char *function, const char *name, const kf_tensor_t *t,
                                  int ndim, const int64_t *shape, const char *why)
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
    return kfi_rt_fail(KF_ERROR_SHAPE, function, name, "is %s, expected [%s]%s",
                       kfi_rt_list(t->shape, t->ndim).text, wanted, why);
}
/* Lists the tensors of the arguments but `saved`; returns their number. */
static int kfi_mha_list(const kf_multi_head_attention_t *a, int purpose, kfi_mha_named *all)
{
    const int is_packed = a->in_proj_weight != NULL;
    const kfi_mha_named list[KFI_MHA_TENSORS] = {
        {"query", a->query, 1},
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
        {"out", a->out, purpose == KFI_MHA_FORWARD},
        {"mask", a->mask, 0}};
    memcpy(all, list, sizeof list);
    return KFI_MHA_TENSORS;
}
/* Checks that a tensor is one of the context. */
static kf_result_t kfi_mha_check_handle(const char *function, const kf_context_t *ctx,
                                        const char *name, const kf_tensor_t *t)
{
    const kf_result_t result = KFI_RT_CHECK(function, name, t, KFI_RT_TENSOR);
    if (result == KF_SUCCESS && t->object.ctx != ctx)
        return kfi_rt_fail(KF_ERROR_DEVICE, function, name,
                           "is of another context, expected one of ctx");
    return result;
}
/* Checks that the call has its tensors, and their contexts and dtypes. */
static kf_result_t kfi_mha_check_given(const kf_context_t *ctx, const kf_multi_head_attention_t *a,
                                       const kfi_mha_sizes *h)
{
    kfi_mha_named all[KFI_MHA_TENSORS];
    const int count = kfi_mha_list(a, h->purpose, all);
    for (int i = 0; i < count; ++i) {
        const kf_tensor_t *const t = all[i].t;
        if (!t && !all[i].is_needed) continue;
        const kf_result_t result = kfi_mha_check_handle(h->function, ctx, all[i].name, t);
        if (result != KF_SUCCESS) return result;
        if (t->dtype != a->query->dtype && (t != a->mask || t->dtype != KF_U8))
            return kfi_rt_fail(KF_ERROR_DTYPE, h->function, all[i].name,
                               "is %s, expected %s%s as query", kfi_rt_dtype(t->dtype),
                               t == a->mask ? "u8, or " : "", kfi_rt_dtype(a->query->dtype));
        if (a->in_proj_weight && i > 3 && i < 7)
            return kfi_rt_fail(KF_ERROR_INVALID_VALUE, h->function, all[i].name,
                               "is given beside in_proj_weight, expected NULL");
    }
    return a->saved || h->purpose == KFI_MHA_BACKWARD
               ? kfi_mha_check_handle(h->function, ctx, "saved", a->saved)
               : KF_SUCCESS;
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
        result = kfi_mha_expect(h->function, name, w, 2, shape, "");
        if (result == KF_SUCCESS && w->shape[0] % heads)
            return kfi_rt_fail(KF_ERROR_SHAPE, h->function, name,
                               "is %s, expected a multiple of %lld rows, %s",
                               kfi_rt_list(w->shape, 2).text, (long long)heads,
                               a->in_proj_weight ? "heads + 2 * kv_heads"
                               : i               ? "kv_heads"
                                                 : "heads");
        h->rows[i] = w->shape[0];
        if (i == 0) h->dim = w->shape[0] / heads;
        if (i == 2) h->dim_v = w->shape[0] / heads;
    }
    if (result != KF_SUCCESS) return result;
    const int64_t of_keys[] = {h->kv_heads * h->dim, a->key->shape[2]};
    if (!a->in_proj_weight)
        return kfi_mha_expect(h->function, names[1], of[1], 2, of_keys, " beside q_proj_weight");
    h->dim_v = h->dim;
    h->rows[0] = h->heads * h->dim;
    h->rows[1] = h->rows[2] = h->kv_heads * h->dim;
    return KF_SUCCESS;
}
static kf_result_t kfi_mha_measure_rows(const kf_multi_head_attention_t *a, kfi_mha_sizes *h)
{
    const int64_t any[] = {-1, -1, -1};
    kf_result_t result = kfi_mha_expect(h->function, "query", a->query, 3, any, "");
    if (result != KF_SUCCESS) return result;
    h->batch = a->query->shape[0], h->queries = a->query->shape[1];
    const int64_t embed = a->in_proj_weight ? a->query->shape[2] : -1,
                  key[] = {h->batch, -1, embed};
    const char *const why = a->in_proj_weight ? " beside in_proj_weight" : "";
    result = kfi_mha_expect(h->function, "key", a->key, 3, key, why);
    if (result != KF_SUCCESS) return result;
    h->keys = a->key->shape[1];
    const int64_t value[] = {h->batch, h->keys, embed};
    return kfi_mha_expect(h->function, "value", a->value, 3, value, why);
}
static kf_result_t kfi_mha_check_numbers(const kf_multi_head_attention_t *a, kfi_mha_sizes *h)
{
    h->heads = a->heads;
    h->kv_heads = a->kv_heads ? a->kv_heads : a->heads;
    if (h->heads < 1 || h->heads > INT32_MAX)
        return kfi_rt_fail(KF_ERROR_INVALID_SIZE, h->function, "heads",
                           "is %lld, expected 1 or more, below 2^31", (long long)a->heads);
    if (h->kv_heads < 1 || h->heads % h->kv_heads)
        return kfi_rt_fail(KF_ERROR_INVALID_SIZE, h->function, "kv_heads",
                           "is %lld, expected a divisor of heads, %lld", (long long)a->kv_heads,
                           (long long)h->heads);
    if (!(a->scale - a->scale == 0))
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, h->function, "scale",
                           "is %g, expected a finite number", a->scale);
    if (a->is_causal != 0 && a->is_causal != 1)
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, h->function, "is_causal",
                           "is %d, expected 0 or 1", (int)a->is_causal);
    if (a->is_causal && a->mask)
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, h->function, "is_causal",
                           "is 1 beside a mask, expected one of them");
    return KF_SUCCESS;
}
/* Checks the shapes of the other tensors, and that the last product may write the result. */
static kf_result_t kfi_mha_check_result(const kf_multi_head_attention_t *a, const kfi_mha_sizes *h)
{
    const int64_t of_bias[] = {h->rows[0] + h->rows[1] + h->rows[2]},
                  of_weight[] = {-1, h->heads * h->dim_v};
    kf_result_t result = KF_SUCCESS;
    if (a->in_proj_bias)
        result = kfi_mha_expect(h->function, "in_proj_bias", a->in_proj_bias, 1, of_bias, "");
    if (result == KF_SUCCESS)
        result =
            kfi_mha_expect(h->function, "out_proj_weight", a->out_proj_weight, 2, of_weight, "");
    if (result != KF_SUCCESS) return result;
    const int64_t out[] = {h->batch, h->queries, a->out_proj_weight->shape[0]};
    if (a->out_proj_bias)
        result = kfi_mha_expect(h->function, "out_proj_bias", a->out_proj_bias, 1, out + 2, "");
    if (result == KF_SUCCESS && a->out)
        result = kfi_mha_expect(h->function, "out", a->out, 3, out, "");
    kfi_mha_named read[KFI_MHA_TENSORS];
    const int count = kfi_mha_list(a, h->purpose, read);
    for (int i = 0; i < count && result == KF_SUCCESS; ++i)
        if (read[i].t != a->out && kfi_mha_overlaps(a->out, read[i].t) &&
            (a->saved || read[i].t == a->out_proj_weight || read[i].t == a->out_proj_bias))
            return kfi_rt_fail(KF_ERROR_OVERLAP, h->function, "out",
                               "at %p overlaps %s at %p, expected memory apart%s",
                               (void *)a->out->data, read[i].name, (void *)read[i].t->data,
                               a->saved ? ": with saved, the backward reads all arguments" : "");
    return result;
}
/* Checks the arguments of a call and computes its numbers. */
static kf_result_t kfi_mha_check(kf_context_t *ctx, const kf_multi_head_attention_t *arguments,
                                 kf_multi_head_attention_t *a, kfi_mha_sizes *h)
{
    if (!arguments)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, h->function, "arguments",
                           "is NULL, expected those of a call");
    *a = *arguments;
    if (!a->key) a->key = a->query;
    if (!a->value) a->value = a->key;
    if (h->purpose != KFI_MHA_FORWARD) a->out = NULL;
    if (h->purpose == KFI_MHA_MEASURE) a->saved = NULL;
    kf_result_t result = kfi_mha_check_given(ctx, a, h);
    if (result == KF_SUCCESS) result = kfi_mha_check_numbers(a, h);
    if (result == KF_SUCCESS) result = kfi_mha_measure_rows(a, h);
    if (result == KF_SUCCESS) result = kfi_mha_measure_weights(a, h);
    if (result == KF_SUCCESS) result = kfi_mha_check_result(a, h);
    if (result == KF_SUCCESS)
        h->scale = a->scale != 0 ? a->scale : h->dim ? 1 / sqrt((double)h->dim) : 1;
    return result;
}
/* Checks the memory between forward and backward. */
static kf_result_t kfi_mha_check_saved(const kf_multi_head_attention_t *a, const kfi_mha_sizes *h,
                                       size_t bytes)
{
    const kf_tensor_t *const t = a->saved;
    const int is_written = h->purpose == KFI_MHA_FORWARD;
    if (t->dtype != KF_U8)
        return kfi_rt_fail(KF_ERROR_DTYPE, h->function, "saved", "is %s, expected u8",
                           kfi_rt_dtype(t->dtype));
    if (!t->is_dense || (uint64_t)t->count < bytes)
        return kfi_rt_fail(KF_ERROR_SHAPE, h->function, "saved",
                           "is %s with strides %s, expected %zu contiguous bytes or more",
                           kfi_rt_list(t->shape, t->ndim).text,
                           kfi_rt_list(t->strides, t->ndim).text, bytes);
    if (bytes && (uintptr_t)t->data % KFI_MHA_ALIGNMENT)
        return kfi_rt_fail(KF_ERROR_MISALIGNED, h->function, "saved",
                           "is at %p, expected a multiple of %d", (void *)t->data,
                           KFI_MHA_ALIGNMENT);
    if (is_written && t->storage->read_only)
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, h->function, "saved",
                           "is read-only memory of DLPack, expected a tensor to write to");
    kfi_mha_named all[KFI_MHA_TENSORS];
    const int count = is_written ? kfi_mha_list(a, h->purpose, all) : 0;
    for (int i = 0; i < count; ++i)
        if (kfi_mha_overlaps(t, all[i].t))
            return kfi_rt_fail(KF_ERROR_OVERLAP, h->function, "saved",
                               "at %p overlaps %s at %p, expected memory apart", (void *)t->data,
                               all[i].name, (void *)all[i].t->data);
    return KF_SUCCESS;
}

/* ---- gradients */

/* A gradient and its argument. is_parameter: of a weight or a bias. */
typedef struct {
    const char *name, *of_name;
    const kf_tensor_t *t, *of;
    int is_parameter;
} kfi_mha_gradient;
enum { KFI_MHA_GRADIENTS = 11 };

/* Lists the gradients. arguments: those of the call, whose key and value may be NULL. */
static void kfi_mha_list_gradients(const kf_multi_head_attention_t *arguments,
                                   const kf_multi_head_attention_gradients_t *g,
                                   kfi_mha_gradient *all)
{
    const kf_multi_head_attention_t *const a = arguments;
    const kfi_mha_gradient list[KFI_MHA_GRADIENTS] = {
        {"dquery", "query", g->dquery, a->query, 0},
        {"dkey", "key", g->dkey, a->key, 0},
        {"dvalue", "value", g->dvalue, a->value, 0},
        {"din_proj_weight", "in_proj_weight", g->din_proj_weight, a->in_proj_weight, 1},
        {"dq_proj_weight", "q_proj_weight", g->dq_proj_weight, a->q_proj_weight, 1},
        {"dk_proj_weight", "k_proj_weight", g->dk_proj_weight, a->k_proj_weight, 1},
        {"dv_proj_weight", "v_proj_weight", g->dv_proj_weight, a->v_proj_weight, 1},
        {"din_proj_bias", "in_proj_bias", g->din_proj_bias, a->in_proj_bias, 1},
        {"dout_proj_weight", "out_proj_weight", g->dout_proj_weight, a->out_proj_weight, 1},
        {"dout_proj_bias", "out_proj_bias", g->dout_proj_bias, a->out_proj_bias, 1},
        {"dmask", "a mask of numbers", g->dmask,
         a->mask && a->mask->dtype != KF_U8 ? a->mask : NULL, 0}};
    memcpy(all, list, sizeof list);
}
/* Checks that gradient i overlaps no tensor that is read and no later gradient. */
static kf_result_t kfi_mha_check_apart(const kf_multi_head_attention_t *a, const kf_tensor_t *dout,
                                       const kfi_mha_sizes *h, const kfi_mha_gradient *all, int i)
{
    kfi_mha_named others[KFI_MHA_TENSORS + KFI_MHA_GRADIENTS + 2];
    int count = kfi_mha_list(a, h->purpose, others);
    others[count].name = "saved", others[count++].t = a->saved;
    others[count].name = "dout", others[count++].t = dout;
    for (int k = i + 1; k < KFI_MHA_GRADIENTS; ++k)
        others[count].name = all[k].name, others[count++].t = all[k].t;
    for (int k = 0; k < count; ++k)
        if (kfi_mha_overlaps(all[i].t, others[k].t))
            return kfi_rt_fail(KF_ERROR_OVERLAP, h->function, all[i].name,
                               "at %p overlaps %s at %p, expected memory apart",
                               (void *)all[i].t->data, others[k].name, (void *)others[k].t->data);
    return KF_SUCCESS;
}
static kf_result_t kfi_mha_check_gradient(const kf_context_t *ctx, int dtype,
                                          const kfi_mha_sizes *h, const kfi_mha_gradient *d)
{
    kf_result_t result = kfi_mha_check_handle(h->function, ctx, d->name, d->t);
    if (result != KF_SUCCESS) return result;
    if (!d->of)
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, h->function, d->name,
                           "is given without %s, expected NULL", d->of_name);
    const int may_be_wide = d->is_parameter && (dtype == KF_F16 || dtype == KF_BF16);
    if (d->t->dtype != dtype && !(may_be_wide && d->t->dtype == KF_F32))
        return kfi_rt_fail(KF_ERROR_DTYPE, h->function, d->name, "is %s, expected %s%s as query",
                           kfi_rt_dtype(d->t->dtype), may_be_wide ? "f32, or " : "",
                           kfi_rt_dtype(dtype));
    result = kfi_mha_expect(h->function, d->name, d->t, d->of->ndim, d->of->shape, "");
    if (result == KF_SUCCESS && d->t->repeats)
        return kfi_rt_fail(KF_ERROR_OVERLAP, h->function, d->name,
                           "is %s with strides %s, expected elements that lie apart",
                           kfi_rt_list(d->t->shape, d->t->ndim).text,
                           kfi_rt_list(d->t->strides, d->t->ndim).text);
    return result;
}
static kf_result_t kfi_mha_check_gradients(const kf_context_t *ctx,
                                           const kf_multi_head_attention_t *arguments,
                                           const kf_multi_head_attention_t *a,
                                           const kf_multi_head_attention_gradients_t *g,
                                           const kfi_mha_sizes *h)
{
    if (!g)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, h->function, "gradients",
                           "is NULL, expected the gradients to compute");
    kfi_mha_gradient all[KFI_MHA_GRADIENTS];
    kf_result_t result = kfi_mha_check_handle(h->function, ctx, "dout", g->dout);
    if (result != KF_SUCCESS) return result;
    if (g->dout->dtype != a->query->dtype)
        return kfi_rt_fail(KF_ERROR_DTYPE, h->function, "dout", "is %s, expected %s as query",
                           kfi_rt_dtype(g->dout->dtype), kfi_rt_dtype(a->query->dtype));
    const int64_t out[] = {h->batch, h->queries, a->out_proj_weight->shape[0]};
    result = kfi_mha_expect(h->function, "dout", g->dout, 3, out, "");
    if (result == KF_SUCCESS && !(g->beta - g->beta == 0))
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, h->function, "beta",
                           "is %g, expected a finite number", g->beta);
    kfi_mha_list_gradients(arguments, g, all);
    for (int i = 0; i < KFI_MHA_GRADIENTS && result == KF_SUCCESS; ++i)
        if (all[i].t) result = kfi_mha_check_gradient(ctx, a->query->dtype, h, &all[i]);
    for (int i = 0; i < KFI_MHA_GRADIENTS && result == KF_SUCCESS; ++i)
        if (all[i].t) result = kfi_mha_check_apart(a, g->dout, h, all, i);
    return result;
}

#endif
