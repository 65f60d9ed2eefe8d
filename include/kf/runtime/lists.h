/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/lists.h: calls an op over lists of tensors. */
#ifndef KF_RUNTIME_LISTS_H
#define KF_RUNTIME_LISTS_H

#include "kf/runtime/launch.h"

/* A call of the tensors with one index. In messages its operands are "param[3]". */
typedef struct {
    kfi_rt_call call;
    kfi_rt_op op;
    kfi_rt_operand operands[KFI_RT_TENSORS];
    char names[KFI_RT_TENSORS][80];
    const kf_tensor_t *tensors[KFI_RT_TENSORS];
} kfi_rt_member;

static void kfi_rt_name_member(int64_t i, kfi_rt_member *one)
{
    const kfi_rt_op *const op = one->call.op;
    one->op = *op;
    one->op.operands = one->operands;
    one->call.op = &one->op;
    for (int o = 0; o < op->operand_count; ++o) {
        one->operands[o] = op->operands[o];
        snprintf(one->names[o], sizeof one->names[o], "%s[%lld]", op->operands[o].name,
                 (long long)i);
        one->operands[o].name = one->names[o];
    }
}
/* Checks contexts, dtypes, shapes and strides. before: the entry of the tensors before; NULL: none.
 */
static kf_result_t kfi_rt_check_member(const kfi_rt_call *c, const kf_op_t *before,
                                       kfi_rt_prepared *m)
{
    const kfi_rt_operand *const operands = c->op->operands;
    const kf_result_t result = kfi_rt_choose(c, m);
    if (result != KF_SUCCESS) return result;
    if (before && before != m->entry)
        return kfi_rt_fail(KF_ERROR_DTYPE, c->op->name, operands[0].name,
                           "has the dtype for %s, expected that for %s, as tensors before it",
                           m->entry->launcher, before->launcher);
    const kf_tensor_t *const first = c->tensors[0];
    for (int o = 0; o < c->op->operand_count; ++o) {
        const kf_tensor_t *const t = c->tensors[o];
        int same = t->ndim == first->ndim;
        for (int d = 0; d < t->ndim && same; ++d) same = t->shape[d] == first->shape[d];
        if (!same)
            return kfi_rt_fail(KF_ERROR_SHAPE, c->op->name, operands[o].name,
                               "is %s, expected %s beside %s", kfi_rt_list(t->shape, t->ndim).text,
                               kfi_rt_list(first->shape, first->ndim).text, operands[0].name);
        if (!t->is_dense)
            return kfi_rt_fail(KF_ERROR_UNSUPPORTED, c->op->name, operands[o].name,
                               "is %s with strides %s, expected contiguous memory",
                               kfi_rt_list(t->shape, t->ndim).text,
                               kfi_rt_list(t->strides, t->ndim).text);
    }
    return KF_SUCCESS;
}
/* Reports a call with tensors instead of lists. */
static kf_result_t kfi_rt_takes_lists(const kfi_rt_op *op)
{
    return kfi_rt_fail(KF_ERROR_UNSUPPORTED, op->name, op->operands[0].name,
                       "is a tensor, and the op takes lists: call it by its own function");
}
static kf_result_t kfi_rt_check_members(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    if (!c->lists) return kfi_rt_takes_lists(c->op);
    if (c->count < 0)
        return kfi_rt_fail(KF_ERROR_INVALID_SIZE, c->op->name, "count",
                           "is %lld, expected 0 or more", (long long)c->count);
    for (int o = 0; o < c->op->operand_count; ++o)
        if (c->count && !c->lists[o])
            return kfi_rt_fail(KF_ERROR_NULL_POINTER, c->op->name, c->op->operands[o].name,
                               "is NULL, expected an array of %lld tensors", (long long)c->count);
    for (int64_t i = 0; i < c->count; ++i) {
        const kf_op_t *const before = m->entry;
        kfi_rt_member one;
        one.call = *c;
        one.call.tensors = one.tensors;
        for (int o = 0; o < c->op->operand_count; ++o) one.tensors[o] = c->lists[o][i];
        if (kfi_rt_check_member(&one.call, before, m) == KF_SUCCESS) continue;
        kfi_rt_name_member(i, &one);
        return kfi_rt_check_member(&one.call, before, m);
    }
    return KF_SUCCESS;
}
/* Launches with the tensors' pointers in `pointers`, one array per operand, and their lengths. */
static kf_result_t kfi_rt_launch_lists(const kfi_rt_call *c, kfi_rt_prepared *m, void **pointers,
                                       int64_t *lengths)
{
    const int operands = c->op->operand_count;
    void *t[KFI_RT_TENSORS + 1];
    for (int64_t i = 0; i < c->count; ++i) {
        lengths[i] = c->lists[0][i]->count;
        for (int o = 0; o < operands; ++o) pointers[o * c->count + i] = c->lists[o][i]->data;
    }
    for (int o = 0; o < operands; ++o) t[o] = pointers + o * c->count;
    t[operands] = lengths;
    m->layout.n[0] = c->count;
    for (int i = 0; i < c->op->integers; ++i) m->layout.n[1 + i] = c->integers[i];
    kfi_rt_gather_scalars(c, m);
    const kf_result_t result = kfi_rt_launch(c, m, t, NULL, NULL, 0, 0);
    for (int o = 0; o < operands; ++o)
        for (int64_t i = 0; i < c->count; ++i) kfi_rt_use(c->lists[o][i], c->ctx, c->stream);
    return result;
}
static kf_result_t kfi_rt_run_lists(const kfi_rt_call *c)
{
    const char *const name = c->op->name;
    kfi_rt_prepared m;
    memset(&m, 0, sizeof m);
    kf_result_t result = KFI_RT_CHECK(name, "ctx", c->ctx, KFI_RT_CONTEXT);
    if (result == KF_SUCCESS) result = kfi_rt_check_stream(name, c->ctx, c->stream);
    if (result == KF_SUCCESS) result = kfi_rt_check_members(c, &m);
    if (result == KF_SUCCESS && c->count) result = kfi_rt_follow(name, c->ctx, c->stream);
    if (result != KF_SUCCESS || !c->count) return result;
    void **const pointers =
        (void **)calloc((size_t)c->count * (size_t)c->op->operand_count, sizeof *pointers);
    int64_t *const lengths = (int64_t *)calloc((size_t)c->count, sizeof *lengths);
    result = pointers && lengths ? kfi_rt_launch_lists(c, &m, pointers, lengths)
                                 : kfi_rt_fail(KF_ERROR_OUT_OF_MEMORY, name, "count",
                                               "is %lld, for whose pointers the host has no memory",
                                               (long long)c->count);
    free(pointers);
    free(lengths);
    return result;
}

#endif
