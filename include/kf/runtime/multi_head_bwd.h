/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/multi_head_bwd.h: the definition of kf_fused_multi_head_attention_bwd. A product
 * computes the gradient of attention's result, attention's backward those of the projections, side
 * by side, and products those of inputs and weights. Steps that may refuse their sizes precede
 * those that write gradients of the caller. */
#ifndef KF_RUNTIME_MULTI_HEAD_BWD_H
#define KF_RUNTIME_MULTI_HEAD_BWD_H

#include "kf/runtime/multi_head_call.h"

/* An input, the projections [first, end) of it, and their gradients, [batch, rows, columns of all].
 * is_turned: in memory, rows precede the batch in x, and so in dout. */
typedef struct {
    const char *dx_name;
    const kf_tensor_t *dx;
    int first, end, is_wanted, is_turned;
    kf_tensor_t dout;
} kfi_mha_input;
typedef struct {
    const kf_multi_head_attention_t *a;
    const kf_multi_head_attention_gradients_t *g;
    const kfi_mha_sizes *h;
    kfi_mha_between b;
    kfi_mha_projection p[3];
    kfi_mha_input inputs[3];
    int input_count, is_wanted[3]; /* is_wanted: gradients of the projections */
} kfi_mha_backward;

/* ---- layouts */

/* Returns the tensor with its first two dimensions exchanged. */
static kf_tensor_t kfi_mha_turned(const kf_tensor_t *t)
{
    const int64_t shape[] = {t->shape[1], t->shape[0], t->shape[2]},
                  strides[] = {t->strides[1], t->strides[0], t->strides[2]};
    return kfi_rt_part(t, 3, shape, strides, 0);
}
/* Returns whether the rows of a tensor [batch, rows, columns] are contiguous and evenly spaced, and
 * no two share memory: a product sums over them as they are. */
static int kfi_mha_is_even(const kf_tensor_t *t)
{
    return !t->repeats && kfi_layout_merge(t->shape, t->strides, 0, 2) >= 0 &&
           kfi_layout_is_dense(t->shape, t->strides, 2, 3);
}
/* Describes an intermediate tensor [batch, rows, columns]; is_turned: with the rows before the
 * batch in memory. */
static kf_result_t kfi_mha_intermediate(kfi_rt_chain *chain, const char *argument,
                                        const kf_tensor_t *x, int64_t columns, int is_turned,
                                        kf_tensor_t *t)
{
    const int64_t shape[] = {x->shape[is_turned], x->shape[!is_turned], columns};
    const kf_result_t result = kfi_rt_intermediate(chain, argument, x->dtype, 3, shape, t);
    if (result == KF_SUCCESS && is_turned) *t = kfi_mha_turned(t);
    return result;
}
/* Makes *t a contiguous copy of itself unless its rows are evenly spaced. */
static kf_result_t kfi_mha_make_even(kfi_rt_chain *chain, const char *argument, kf_tensor_t *t)
{
    if (kfi_mha_is_even(t)) return KF_SUCCESS;
    kf_tensor_t copy;
    const kf_result_t result = kfi_mha_intermediate(chain, argument, t, t->shape[2], 0, &copy);
    if (result != KF_SUCCESS) return result;
    kfi_rt_add_copy(chain, t, &copy);
    *t = copy;
    return KF_SUCCESS;
}

/* ---- products */

/* One product of a backward: dx = dout . weight, or dweight = dout^T . x and dbias, the sum over
 * the rows of dout. `p` has x, the weight, and dout in `out`. */
typedef struct {
    const char *dx_name, *dweight_name, *dbias_name;
    const kf_tensor_t *dx, *dweight, *dbias;
    double beta;
} kfi_mha_results;

/* Adds the gradient of an input. Rows that are not evenly spaced in all tensors, in one of the two
 * orders, are a batch, whose indices share the weight. */
static void kfi_mha_add_input_gradient(kfi_rt_chain *chain, const kfi_mha_projection *p,
                                       const kfi_mha_results *r)
{
    kf_tensor_t t[] = {*p->x, p->out, *r->dx}, weight = p->weight;
    int is_even[2] = {1, 1};
    for (int i = 0; i < 3; ++i) {
        const kf_tensor_t turned = kfi_mha_turned(&t[i]);
        is_even[0] &= kfi_layout_merge(t[i].shape, t[i].strides, 0, 2) != -1;
        is_even[1] &= kfi_layout_merge(turned.shape, turned.strides, 0, 2) != -1;
    }
    for (int i = 0; i < 3 && !is_even[0] && is_even[1]; ++i) t[i] = kfi_mha_turned(&t[i]);
    if (!is_even[0] && !is_even[1]) {
        const int64_t shape[] = {t[0].shape[0], weight.shape[0], weight.shape[1]},
                      strides[] = {0, weight.strides[0], weight.strides[1]};
        weight = kfi_rt_part(&weight, 3, shape, strides, 0);
    }
    kfi_rt_step *const step = kfi_rt_add_step(
        chain, kfi_rt_ops_of_multi_head_attention[KFI_MHA_PROJECT + KFI_MHA_FORWARDS]);
    kfi_rt_bind(step, "x", p->x_name, &t[0]);
    kfi_rt_bind(step, "weight", p->weight_name, &weight);
    kfi_rt_bind(step, "dout", "dout", &t[1]);
    kfi_rt_bind(step, "dx", r->dx_name, &t[2]);
}
/* Adds the gradients of a weight and a bias, of evenly spaced rows. Does nothing if neither is
 * wanted. */
static void kfi_mha_add_weight_gradient(kfi_rt_chain *chain, const kfi_mha_projection *p,
                                        const kfi_mha_results *r)
{
    if (!r->dweight && !r->dbias) return;
    kfi_rt_step *const step = kfi_rt_add_step(
        chain, kfi_rt_ops_of_multi_head_attention[KFI_MHA_PROJECT + KFI_MHA_FORWARDS]);
    kfi_rt_bind(step, "x", p->x_name, p->x);
    kfi_rt_bind(step, "weight", p->weight_name, &p->weight);
    kfi_rt_bind(step, "dout", "dout", &p->out);
    if (r->dweight) kfi_rt_bind(step, "dweight", r->dweight_name, r->dweight);
    if (r->dbias) kfi_rt_bind(step, "dbias", r->dbias_name, r->dbias);
    step->call.beta = r->beta;
}

/* ---- inputs and their projections */

/* Finds the inputs, the projections of each, and which gradients of projections are wanted. A NULL
 * key counts as query, a NULL value as key. */
static void kfi_mha_find_inputs(const kf_multi_head_attention_t *arguments, kfi_mha_backward *d)
{
    const kf_multi_head_attention_gradients_t *const g = d->g;
    const kf_tensor_t *const given[] = {arguments->query, arguments->key, arguments->value},
                             *const dx[] = {g->dquery, g->dkey, g->dvalue},
                             *const dweight[] = {g->dq_proj_weight, g->dk_proj_weight,
                                                 g->dv_proj_weight};
    static const char *const names[] = {"dquery", "dkey", "dvalue"};
    kfi_mha_input *in = NULL;
    for (int i = 0; i < 3; ++i) {
        if (given[i]) {
            in = &d->inputs[d->input_count++];
            memset(in, 0, sizeof *in);
            in->dx_name = names[i];
            in->dx = dx[i];
            in->first = i;
        }
        in->end = i + 1;
        d->is_wanted[i] = in->dx || dweight[i] || g->din_proj_weight || g->din_proj_bias;
        in->is_wanted |= d->is_wanted[i];
    }
}
/* Describes the gradients of an input's projections. */
static kf_result_t kfi_mha_place_gradients(kfi_rt_chain *chain, const kfi_mha_backward *d,
                                           kfi_mha_input *in)
{
    const kfi_mha_projection *const p = &d->p[in->first];
    const kf_tensor_t turned = kfi_mha_turned(p->x);
    int64_t columns = 0;
    for (int i = in->first; i < in->end; ++i) columns += d->h->rows[i];
    in->is_turned = !kfi_mha_is_even(p->x) && kfi_mha_is_even(&turned);
    return kfi_mha_intermediate(chain, p->x_name, p->x, columns, in->is_turned, &in->dout);
}
/* Makes `whole` the projections of an input as one: by its weights, if they follow each other in
 * memory, else by a copy of all. */
static kf_result_t kfi_mha_join_all(kfi_rt_chain *chain, const kfi_mha_backward *d,
                                    const kfi_mha_input *in, kfi_mha_projection *whole)
{
    int follows = 1;
    *whole = d->p[in->first];
    for (int i = in->first + 1; i < in->end; ++i)
        follows &= kfi_mha_follows(&d->p[i - 1], &d->p[i]);
    for (int i = in->first + 1; i < in->end && follows; ++i) kfi_mha_join(&d->p[i], 0, whole);
    whole->out = in->dout;
    if (follows) return KF_SUCCESS;
    const int64_t shape[] = {in->dout.shape[2], whole->weight.shape[1]};
    const kf_result_t result = kfi_rt_intermediate(chain, whole->weight_name, whole->weight.dtype,
                                                   2, shape, &whole->weight);
    int64_t first = 0;
    for (int i = in->first; i < in->end && result == KF_SUCCESS; first += d->h->rows[i++]) {
        const kf_tensor_t *const from = &d->p[i].weight;
        const kf_tensor_t to = kfi_rt_part(&whole->weight, 2, from->shape, whole->weight.strides,
                                           first * whole->weight.strides[0]);
        kfi_rt_add_copy(chain, from, &to);
    }
    return result;
}
/* Adds the gradients of the weights and biases of projections [first, end) of an input. x, dout:
 * with evenly spaced rows, in one order. */
static void kfi_mha_add_parameters(kfi_rt_chain *chain, const kfi_mha_backward *d, int first,
                                   int end, const kf_tensor_t *x, const kf_tensor_t *dout)
{
    static const char *const names[] = {"dq_proj_weight", "dk_proj_weight", "dv_proj_weight"};
    const kf_multi_head_attention_gradients_t *const g = d->g;
    const kf_tensor_t *const of[] = {g->dq_proj_weight, g->dk_proj_weight, g->dv_proj_weight};
    int64_t before = 0;
    for (int i = 0; i < first; ++i) before += d->h->rows[i];
    kfi_mha_projection p = d->p[first];
    for (int i = first + 1; i < end; ++i) kfi_mha_join(&d->p[i], 0, &p);
    p.x = x;
    p.out = *dout;
    kf_tensor_t dweight, dbias;
    kfi_mha_results r;
    memset(&r, 0, sizeof r);
    r.beta = g->beta;
    r.dweight_name = names[first], r.dweight = of[first];
    if (g->din_proj_weight) {
        const kf_tensor_t *const whole = g->din_proj_weight;
        dweight = kfi_rt_part(whole, 2, p.weight.shape, whole->strides, before * whole->strides[0]);
        r.dweight_name = "din_proj_weight", r.dweight = &dweight;
    }
    if (g->din_proj_bias) {
        const kf_tensor_t *const whole = g->din_proj_bias;
        dbias = kfi_rt_part(whole, 1, p.weight.shape, whole->strides, before * whole->strides[0]);
        r.dbias_name = "din_proj_bias", r.dbias = &dbias;
    }
    kfi_mha_add_weight_gradient(chain, &p, &r);
}
/* Adds the gradients of an input and of its projections' weights and biases. */
static kf_result_t kfi_mha_add_input(kfi_rt_chain *chain, const kfi_mha_backward *d,
                                     const kfi_mha_input *in)
{
    const kf_multi_head_attention_gradients_t *const g = d->g;
    kf_result_t result = KF_SUCCESS;
    if (in->dx) {
        kfi_mha_projection whole;
        kfi_mha_results r;
        memset(&r, 0, sizeof r);
        r.dx_name = in->dx_name, r.dx = in->dx;
        result = kfi_mha_join_all(chain, d, in, &whole);
        if (result == KF_SUCCESS) kfi_mha_add_input_gradient(chain, &whole, &r);
    }
    if (result != KF_SUCCESS || !(g->din_proj_weight || g->din_proj_bias || g->dq_proj_weight ||
                                  g->dk_proj_weight || g->dv_proj_weight))
        return result;
    kf_tensor_t x = *d->p[in->first].x, dout = in->dout;
    if (in->is_turned) x = kfi_mha_turned(&x), dout = kfi_mha_turned(&dout);
    result = kfi_mha_make_even(chain, d->p[in->first].x_name, &x);
    const int together = d->a->in_proj_weight != NULL;
    int64_t first = 0;
    for (int i = in->first; i < in->end && result == KF_SUCCESS; first += d->h->rows[i++]) {
        const int64_t shape[] = {dout.shape[0], dout.shape[1],
                                 together ? dout.shape[2] : d->h->rows[i]};
        const kf_tensor_t part = kfi_rt_part(&dout, 3, shape, dout.strides, first);
        kfi_mha_add_parameters(chain, d, i, together ? in->end : i + 1, &x, &part);
        if (together) break;
    }
    return result;
}

/* ---- attention */

/* Adds the sum over the axes along which the mask broadcasts. scores: [rows, columns], the rows to
 * add. The sum is the gradient of the bias of a product without depth. */
static kf_result_t kfi_mha_add_mask_sum(kfi_rt_chain *chain, const kfi_mha_backward *d,
                                        const kf_tensor_t *scores)
{
    const kf_tensor_t *const dmask = d->g->dmask;
    if (!dmask->is_dense)
        return kfi_rt_fail(KF_ERROR_UNSUPPORTED, d->h->function, "dmask",
                           "is %s with strides %s, which takes a copy: kf_tensor_copy makes one",
                           kfi_rt_list(dmask->shape, dmask->ndim).text,
                           kfi_rt_list(dmask->strides, dmask->ndim).text);
    const int64_t of_x[] = {scores->shape[0], 0}, of_weight[] = {scores->shape[1], 0},
                  dense[] = {1};
    kf_tensor_t x;
    kfi_mha_projection p;
    kfi_mha_results r;
    memset(&p, 0, sizeof p);
    memset(&r, 0, sizeof r);
    const kf_tensor_t sum = kfi_rt_part(dmask, 1, of_weight, dense, 0);
    kf_result_t result = kfi_rt_intermediate(chain, "dmask", dmask->dtype, 2, of_x, &x);
    if (result == KF_SUCCESS)
        result = kfi_rt_intermediate(chain, "dmask", dmask->dtype, 2, of_weight, &p.weight);
    p.x = &x;
    p.x_name = p.weight_name = "dmask";
    p.out = *scores;
    r.dbias_name = "dmask", r.dbias = &sum;
    if (result == KF_SUCCESS) kfi_mha_add_weight_gradient(chain, &p, &r);
    return result;
}
/* Binds the gradient of the scores' bias to attention's backward: dmask, or, if the mask
 * broadcasts, an intermediate tensor with those axes first in memory. scores: that tensor, if its
 * ndim is set. */
static kf_result_t kfi_mha_bind_mask(kfi_rt_chain *chain, const kfi_mha_backward *d,
                                     kfi_rt_step *step, kf_tensor_t *scores)
{
    const kf_tensor_t *const dmask = d->g->dmask;
    const int64_t shape[] = {d->h->batch, d->h->heads, d->h->queries, d->h->keys};
    int64_t strides[4], of_scores[] = {1, 1};
    int is_shared[4], any = 0;
    const kf_result_t result = kfi_rt_broadcast(d->h->function, "dmask", dmask, shape, 4, strides);
    if (result != KF_SUCCESS) return result;
    for (int i = 0; i < 4; ++i) {
        const int own = i - (4 - dmask->ndim);
        any |= is_shared[i] = (own < 0 ? 1 : dmask->shape[own]) != shape[i];
    }
    if (!any) {
        const kf_tensor_t whole = kfi_rt_part(dmask, 4, shape, strides, 0);
        kfi_rt_bind(step, "dbias", "dmask", &whole);
        return KF_SUCCESS;
    }
    for (int shared = 0; shared < 2; ++shared)
        for (int i = 3; i >= 0; --i) {
            if (is_shared[i] != shared) continue;
            strides[i] = of_scores[0] * of_scores[1];
            of_scores[!shared] *= shape[i];
        }
    const kf_result_t placed =
        kfi_rt_intermediate(chain, "dmask", dmask->dtype, 2, of_scores, scores);
    if (placed != KF_SUCCESS) return placed;
    const kf_tensor_t by_scores = kfi_rt_part(scores, 4, shape, strides, 0);
    kfi_rt_bind(step, "dbias", "dmask", &by_scores);
    return KF_SUCCESS;
}
/* Adds attention's backward and what precedes it. scores: as kfi_mha_bind_mask. */
static kf_result_t kfi_mha_add_attention_bwd(kfi_rt_chain *chain, kfi_mha_backward *d,
                                             const kfi_mha_projection *last, kf_tensor_t *scores)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    const kfi_mha_sizes *const h = d->h;
    const int64_t by_heads[] = {h->batch, h->queries, h->heads, h->dim_v};
    kf_tensor_t dattended;
    kfi_mha_results r;
    memset(&r, 0, sizeof r);
    kf_result_t result =
        kfi_rt_intermediate(chain, "query", d->a->query->dtype, 4, by_heads, &dattended);
    if (result != KF_SUCCESS) return result;
    const kf_tensor_t dx = kfi_mha_attended(h, &dattended);
    r.dx_name = "dout", r.dx = &dx;
    kfi_mha_add_input_gradient(chain, last, &r);
    kfi_rt_step *step;
    result = kfi_mha_add_attention(chain, d->a, h, &d->b, &step);
    if (result != KF_SUCCESS) return result;
    kfi_rt_bind(step, "dout", "dout", &dattended);
    for (int k = 0; k < d->input_count; ++k) {
        kfi_mha_input *const in = &d->inputs[k];
        if (!in->is_wanted) continue;
        result = kfi_mha_place_gradients(chain, d, in);
        if (result != KF_SUCCESS) return result;
        int64_t first = 0;
        for (int i = in->first; i < in->end; first += h->rows[i++]) {
            const kf_tensor_t *const q = &d->b.qkv[i];
            const int64_t strides[] = {in->dout.strides[0], in->dout.strides[1], q->shape[3], 1};
            const kf_tensor_t part = kfi_rt_part(&in->dout, 4, q->shape, strides, first);
            if (d->is_wanted[i]) kfi_rt_bind(step, names[i], in->dx_name, &part);
        }
    }
    return d->g->dmask ? kfi_mha_bind_mask(chain, d, step, scores) : KF_SUCCESS;
}

/* Adds all steps of a checked call. */
static kf_result_t kfi_mha_add_gradients(kfi_rt_chain *chain, kfi_mha_backward *d)
{
    const kf_multi_head_attention_gradients_t *const g = d->g;
    const kf_tensor_t attended = kfi_mha_attended(d->h, &d->b.attended);
    kf_tensor_t scores;
    kfi_mha_projection last;
    kfi_mha_results r;
    memset(&scores, 0, sizeof scores);
    memset(&last, 0, sizeof last);
    memset(&r, 0, sizeof r);
    last.x = &attended;
    last.x_name = "saved", last.weight_name = "out_proj_weight";
    last.weight = *d->a->out_proj_weight;
    last.out = *g->dout;
    const int any = d->is_wanted[0] || d->is_wanted[1] || d->is_wanted[2] || g->dmask;
    if (!any && !g->dout_proj_weight && !g->dout_proj_bias) return KF_SUCCESS;
    kf_result_t result = kfi_mha_make_even(chain, "dout", &last.out);
    if (result == KF_SUCCESS && any) result = kfi_mha_add_attention_bwd(chain, d, &last, &scores);
    if (result == KF_SUCCESS && scores.ndim) result = kfi_mha_add_mask_sum(chain, d, &scores);
    r.dweight_name = "dout_proj_weight", r.dweight = g->dout_proj_weight;
    r.dbias_name = "dout_proj_bias", r.dbias = g->dout_proj_bias;
    r.beta = g->beta;
    if (result == KF_SUCCESS) kfi_mha_add_weight_gradient(chain, &last, &r);
    for (int k = 0; k < d->input_count && result == KF_SUCCESS; ++k)
        if (d->inputs[k].is_wanted) result = kfi_mha_add_input(chain, d, &d->inputs[k]);
    return result;
}

#ifdef __cplusplus
extern "C" {
#endif

kf_result_t kf_fused_multi_head_attention_bwd(kf_context_t *ctx,
                                              const kf_multi_head_attention_t *arguments,
                                              const kf_multi_head_attention_gradients_t *gradients,
                                              kf_stream_t *stream)
{
    kf_multi_head_attention_t a;
    kfi_mha_sizes h;
    kfi_mha_backward d;
    kfi_rt_chain chain;
    size_t saved = 0;
    memset(&h, 0, sizeof h);
    memset(&d, 0, sizeof d);
    h.function = "kf_fused_multi_head_attention_bwd";
    h.purpose = KFI_MHA_BACKWARD;
    kf_result_t result = KFI_RT_CHECK(h.function, "ctx", ctx, KFI_RT_CONTEXT);
    if (result == KF_SUCCESS) result = kfi_rt_check_stream(h.function, ctx, stream);
    if (result == KF_SUCCESS) result = kfi_mha_check(ctx, arguments, &a, &h);
    if (result == KF_SUCCESS) result = kfi_mha_check_gradients(ctx, arguments, &a, gradients, &h);
    if (result != KF_SUCCESS) return result;
    d.a = &a, d.g = gradients, d.h = &h;
    kfi_rt_begin_chain(&chain, h.function, ctx, stream);
    result = kfi_mha_place_all(&chain, &a, &h, &saved, &d.b);
    if (result == KF_SUCCESS) result = kfi_mha_check_saved(&a, &h, saved);
    if (result != KF_SUCCESS) return result;
    kfi_mha_describe_projections(&a, &h, d.p);
    kfi_mha_find_inputs(arguments, &d);
    result = kfi_mha_add_gradients(&chain, &d);
    return result == KF_SUCCESS ? kfi_mha_run(&chain, &a) : result;
}

#ifdef __cplusplus
}
#endif

#endif
