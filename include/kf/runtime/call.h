/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/call.h: calls an op on tensors, for all functions that `kfgen runtime` writes. */
#ifndef KF_RUNTIME_CALL_H
#define KF_RUNTIME_CALL_H

#include "kf/runtime/copy.h"
#include "kf/runtime/apart.h"
#include "kf/runtime/lists.h"
#include "kf/runtime/strides.h"

/* Checks outputs that overlap other tensors. Launchers check contiguous and row-strided tensors
 * themselves. In place, a block is read before it is written; an operand shared by all blocks would
 * already be overwritten in the second. */
static kf_result_t kfi_rt_check_blocks(const kfi_rt_call *c)
{
    for (int o = 0; o < c->op->operand_count; ++o) {
        const kf_tensor_t *const out = c->tensors[o];
        for (int k = 0; k < c->op->operand_count && out && c->op->operands[o].is_out; ++k) {
            const kf_tensor_t *const t = c->tensors[k];
            if (!t || k == o || out->data >= t->data + kfi_rt_extent(t) ||
                t->data >= out->data + kfi_rt_extent(out))
                continue;
            const int in_place = !c->op->operands[k].is_out && kfi_rt_is_cut(c->op, k);
            if (in_place && kfi_rt_same_view(out, t)) continue;
            return kfi_rt_fail(KF_ERROR_OVERLAP, c->op->name, c->op->operands[o].name,
                               "at %p overlaps %s at %p, expected memory apart%s",
                               (void *)out->data, c->op->operands[k].name, (void *)t->data,
                               in_place ? " or the same view" : "");
        }
    }
    return KF_SUCCESS;
}
/* Returns whether the call can run on some indices of its batch at a time. */
static int kfi_rt_fits_blocks(const kfi_rt_op *op, const kfi_rt_prepared *m)
{
    if (op->batch < 0) return 0;
    const int64_t elements = kfi_layout_product(m->layout.dim, kfi_rt_cut(op, m), m->layout.dims);
    return elements >= 0 && elements <= KFI_RT_WIDEST;
}
/* Checks a call and computes its launch arguments. */
static kf_result_t kfi_rt_prepare(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    const kfi_rt_op *const op = c->op;
    memset(m, 0, sizeof *m);
    kf_result_t result = KFI_RT_CHECK(op->name, "ctx", c->ctx, KFI_RT_CONTEXT);
    if (result == KF_SUCCESS) result = kfi_rt_check_stream(op->name, c->ctx, c->stream);
    if (result == KF_SUCCESS && op->takes_lists) result = kfi_rt_takes_lists(op);
    if (result == KF_SUCCESS) result = kfi_rt_choose(c, m);
    if (result == KF_SUCCESS) result = kfi_rt_measure_call(c, m);
    if (result != KF_SUCCESS) return result;
    for (int i = 0; i < op->operand_count; ++i) {
        const kf_tensor_t *const t = c->tensors[i];
        m->t[i] = t && kfi_rt_is_read(&op->operands[i], m->activation) ? t->data : NULL;
        if (!m->t[i]) continue;
        if (op->any_order)
            m->in_blocks |= !t->is_dense || t->count != m->layout.n[0];
        else if (kfi_rt_set_strides(c, m, &op->operands[i], t))
            continue;
        else if (kfi_rt_fits_blocks(op, m))
            m->in_blocks = 1;
        else
            return kfi_rt_fail(
                KF_ERROR_UNSUPPORTED, op->name, op->operands[i].name,
                "is %s with strides %s, which takes a copy: kf_tensor_copy makes one",
                kfi_rt_list(t->shape, t->ndim).text, kfi_rt_list(t->strides, t->ndim).text);
    }
    kfi_rt_gather_scalars(c, m);
    return KF_SUCCESS;
}
static kf_result_t kfi_rt_execute(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    if (!m->in_blocks) return kfi_rt_run_whole(c, m);
    const kf_result_t result = kfi_rt_check_blocks(c);
    if (result != KF_SUCCESS) return result;
    /* Every output has the dimensions that are cut. If those are empty, the launcher checks the
     * arguments and writes nothing. */
    if (!kfi_layout_product(m->layout.dim, 0, kfi_rt_cut(c->op, m))) return kfi_rt_run_whole(c, m);
#ifdef KFI_RT_KERNELS
    if (kfi_rt_has_apart(c, m)) return kfi_rt_run_apart(c, m);
#endif
    return kfi_rt_run_blocks(c, m);
}
static kf_result_t kfi_rt_run(const kfi_rt_call *c)
{
    if (c->op->takes_lists) return kfi_rt_run_lists(c);
    kfi_rt_prepared m;
    kf_result_t result = kfi_rt_prepare(c, &m);
    if (result == KF_SUCCESS) result = kfi_rt_follow(c->op->name, c->ctx, c->stream);
    if (result != KF_SUCCESS) return result;
    result = kfi_rt_execute(c, &m); /* may fail after a part was launched */
    for (int i = 0; i < c->op->operand_count; ++i)
        if (c->tensors[i]) kfi_rt_use(c->tensors[i], c->ctx, c->stream);
    return result;
}

#endif
