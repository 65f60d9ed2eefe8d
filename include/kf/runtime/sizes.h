/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/sizes.h: chooses the launcher of a call and computes its sizes from the tensors, or
 * reports why it cannot. */
#ifndef KF_RUNTIME_SIZES_H
#define KF_RUNTIME_SIZES_H

#include "kf/runtime/op.h"

static const char *kfi_rt_dtype(int dtype)
{
    static const char *const words[] = {"f32", "f16", "bf16", "f64", "i32", "i64", "u8"};
    return dtype >= 0 && dtype <= KF_U8 ? words[dtype] : "none";
}

/* ---- tensors and dtypes */

static int kfi_rt_is_read(const kfi_rt_operand *o, int activation)
{
    return !(o->unread >> activation & 1u);
}
static kf_result_t kfi_rt_check_tensors(const kfi_rt_call *c, const kfi_rt_prepared *m)
{
    const kfi_rt_op *const op = c->op;
    for (int i = 0; i < op->operand_count; ++i) {
        const kfi_rt_operand *const o = &op->operands[i];
        const kf_tensor_t *const t = c->tensors[i];
        if (!t && !(o->missing >> m->activation & 1u) && kfi_rt_is_read(o, m->activation))
            return kfi_rt_fail(KF_ERROR_NULL_POINTER, op->name, o->name,
                               "is NULL, expected a tensor");
        if (!t) continue;
        const kf_result_t result = kfi_rt_check(op->name, o->name, &t->object, KFI_RT_TENSOR);
        if (result != KF_SUCCESS) return result;
        if (t->object.ctx != c->ctx)
            return kfi_rt_fail(KF_ERROR_DEVICE, op->name, o->name,
                               "is of another context, expected one of ctx");
        if (o->is_out && t->storage->read_only)
            return kfi_rt_fail(KF_ERROR_INVALID_VALUE, op->name, o->name,
                               "is read-only memory of DLPack, expected a tensor to write to");
        if (o->is_out && t->repeats)
            return kfi_rt_fail(KF_ERROR_OVERLAP, op->name, o->name,
                               "is %s with strides %s, expected elements that lie apart",
                               kfi_rt_list(t->shape, t->ndim).text,
                               kfi_rt_list(t->strides, t->ndim).text);
    }
    return KF_SUCCESS;
}
/* Returns the dtype of the first tensor of a type variable; -1: none. */
static int kfi_rt_first_dtype(const kfi_rt_call *c, int var)
{
    for (int i = 0; i < c->op->operand_count; ++i)
        if (c->tensors[i] && c->op->operands[i].var == var) return c->tensors[i]->dtype;
    return -1;
}
static const kf_op_t *kfi_rt_find_entry(const kfi_rt_op *op, int activation, int t, int u,
                                        int index)
{
    for (int i = 0; i < op->entry_count; ++i) {
        const kf_op_t *const e = &op->entries[i];
        if (e->activation == activation && e->dtype[0] == t && e->dtype[1] == u &&
            (e->dtype[2] == index || index < 0))
            return e;
    }
    return NULL;
}
static int kfi_rt_has_device(const kf_op_t *entry, int device_type)
{
    return device_type == KF_DEVICE_CPU ? entry->cpu.run != NULL
                                        : device_type == KF_DEVICE_CUDA && entry->cuda.run != NULL;
}
static int kfi_rt_wanted_dtype(int var, int t, int u, int index)
{
    const int acc = t == KF_F64 ? KF_F64 : KF_F32;
    return var == KFI_RT_T     ? t
           : var == KFI_RT_U   ? u
           : var == KFI_RT_ACC ? acc
           : var == KFI_RT_I   ? index
                               : var - KFI_RT_FIXED;
}
static kf_result_t kfi_rt_choose(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    const kfi_rt_op *const op = c->op;
    for (m->activation = 0; m->activation < op->activation_count; ++m->activation)
        if (op->activations[m->activation].id == c->activation) break;
    if (m->activation == op->activation_count)
        return kfi_rt_fail(KF_ERROR_UNSUPPORTED, op->name, "activation",
                           "is %d, which this program does not have (kfgen runtime --activations, "
                           "KF_RUNTIME_ACTIVATIONS)",
                           (int)c->activation);
    kf_result_t result = kfi_rt_check_tensors(c, m);
    if (result != KF_SUCCESS) return result;
    const int t = kfi_rt_first_dtype(c, KFI_RT_T), named = kfi_rt_first_dtype(c, KFI_RT_U),
              u = named < 0 ? t : named;
    const int whole = kfi_rt_first_dtype(c, KFI_RT_I),
              index = whole < 0 || whole == KF_I32 ? whole : KF_I64;
    m->entry = kfi_rt_find_entry(op, m->activation, t, u, index);
    if (!m->entry)
        return kfi_rt_fail(KF_ERROR_DTYPE, op->name, op->operands[0].name,
                           "has %s%s%s with activation %s, which this program does not have (kfgen "
                           "runtime --dtypes, KF_RUNTIME_DTYPES)",
                           kfi_rt_dtype(t), named < 0 ? "" : ", the others ",
                           named < 0 ? "" : kfi_rt_dtype(u), op->activations[m->activation].name);
    if (!kfi_rt_has_device(m->entry, c->ctx->device->type))
        return kfi_rt_fail(
            KF_ERROR_UNSUPPORTED, op->name, "ctx",
            "is of a %s, and %s was compiled for the other device alone (%s)",
            c->ctx->device->type == KF_DEVICE_CPU ? "CPU" : "GPU", m->entry->launcher,
            c->ctx->device->type == KF_DEVICE_CPU ? "KF_RUNTIME_CPU" : "a .cu file has both");
    if (c->entry && c->entry != m->entry)
        return kfi_rt_fail(KF_ERROR_DTYPE, op->name, op->operands[0].name,
                           "has %s, which is %s, expected tensors for %s", kfi_rt_dtype(t),
                           m->entry->launcher, c->entry->launcher);
    for (int i = 0; i < op->operand_count; ++i) {
        const int wanted = kfi_rt_wanted_dtype(op->operands[i].var, t, u, index);
        if (c->tensors[i] && c->tensors[i]->dtype != wanted)
            return kfi_rt_fail(KF_ERROR_DTYPE, op->name, op->operands[i].name,
                               "is %s, expected %s beside %s of %s",
                               kfi_rt_dtype(c->tensors[i]->dtype), kfi_rt_dtype(wanted),
                               op->operands[0].name, kfi_rt_dtype(t));
    }
    return KF_SUCCESS;
}

/* ---- shapes */

/* Return the range [begin, end) of dimensions whose product is a size. */
static int kfi_rt_begin(const kfi_rt_prepared *m, int what)
{
    switch (what) {
    case KFI_RT_AXIS:
    case KFI_RT_BETWEEN: return m->axis;
    case KFI_RT_AFTER: return m->axis + 1;
    case KFI_RT_FIFTH:
    case KFI_RT_FOURTH:
    case KFI_RT_THIRD:
    case KFI_RT_SECOND:
    case KFI_RT_LAST: return m->ndim - 1 - (KFI_RT_LAST - what);
    default: return 0;
    }
}
static int kfi_rt_end(const kfi_rt_prepared *m, int what)
{
    switch (what) {
    case KFI_RT_ALL:
    case KFI_RT_AFTER: return m->ndim;
    case KFI_RT_BEFORE: return m->axis;
    case KFI_RT_AXIS: return m->axis + 1;
    case KFI_RT_BUT_THREE: return m->ndim - 3;
    case KFI_RT_BETWEEN: return m->ndim - 2;
    case KFI_RT_GROUPS:
    case KFI_RT_ONE: return 0;
    default: return kfi_rt_begin(m, what) + 1;
    }
}
/* Returns the product of dimensions [begin, end); -1 if it exceeds the size of any tensor, which
 * joined shapes can. */
static int64_t kfi_rt_product(const int64_t *shape, int begin, int end)
{
    int64_t n = 1;
    for (int d = begin; d < end; ++d)
        if (!shape[d]) return 0;
    for (int d = begin; d < end; n *= shape[d++])
        if (n > KFI_RT_MOST / shape[d]) return -1;
    return n;
}
/* Computes the shape of an operand; returns its number of dimensions. */
static int kfi_rt_shape_of(const kfi_rt_call *c, const kfi_rt_prepared *m, const kfi_rt_operand *o,
                           int64_t *shape)
{
    int n = 0;
    for (int k = 0; k < o->extents; ++k) {
        const int what = c->op->size[o->extent[k]], times = k == o->twice ? 2 : 1;
        if (what == KFI_RT_GROUPS) shape[n++] = c->groups;
        for (int d = kfi_rt_begin(m, what); d < kfi_rt_end(m, what); ++d)
            shape[n++] = m->shape[d] * times;
    }
    return n;
}
/* Broadcasts the shapes of all inputs. */
static kf_result_t kfi_rt_broadcast_all(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    m->ndim = 0;
    for (int i = 0; i < c->op->operand_count; ++i)
        if (c->tensors[i] && c->tensors[i]->ndim > m->ndim) m->ndim = c->tensors[i]->ndim;
    for (int d = 0; d < m->ndim; ++d) m->shape[d] = 1;
    for (int i = 0; i < c->op->operand_count; ++i) {
        const kf_tensor_t *const t = c->tensors[i];
        if (!t || c->op->operands[i].is_out) continue;
        for (int k = 0; k < t->ndim; ++k) {
            int64_t *const n = &m->shape[m->ndim - t->ndim + k];
            if (*n == 1)
                *n = t->shape[k];
            else if (t->shape[k] != 1 && t->shape[k] != *n)
                return kfi_rt_fail(KF_ERROR_SHAPE, c->op->name, c->op->operands[i].name,
                                   "is %s, expected a shape that broadcasts with %s",
                                   kfi_rt_list(t->shape, t->ndim).text,
                                   kfi_rt_list(m->shape, m->ndim).text);
        }
    }
    return KF_SUCCESS;
}
/* Joins the shapes of several tensors into the dimensions of all sizes. A size has one dimension,
 * except at most one per tensor, which takes the remaining ones. */
static kf_result_t kfi_rt_join_shapes(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    const kfi_rt_op *const op = c->op;
    const int64_t *shape[KFI_RT_SIZES] = {NULL};
    int count[KFI_RT_SIZES], times[KFI_RT_SIZES];
    for (int s = 0; s < op->size_count; ++s) count[s] = op->size[s] >= KFI_RT_FIFTH ? 1 : -1;
    for (int i = 0; i < KFI_RT_SHAPED; ++i) {
        const kfi_rt_operand *const o = &op->operands[op->shaped[i]];
        const kf_tensor_t *const t = c->tensors[op->shaped[i]];
        if (!t)
            return kfi_rt_fail(KF_ERROR_NULL_POINTER, op->name, o->name,
                               "is NULL, expected a tensor, of whose shape the others are");
        int left = t->ndim, unknown = -1, at = 0;
        for (int k = 0; k < o->extents; ++k) {
            if (count[o->extent[k]] < 0) unknown = o->extent[k];
            left -= count[o->extent[k]] < 0 ? 0 : count[o->extent[k]];
        }
        if (left < 0 || (left && unknown < 0))
            return kfi_rt_fail(KF_ERROR_SHAPE, op->name, o->name, "is %s, expected %d dimensions%s",
                               kfi_rt_list(t->shape, t->ndim).text, t->ndim - left,
                               unknown < 0 ? "" : " or more");
        if (unknown >= 0) count[unknown] = left;
        for (int k = 0; k < o->extents; at += count[o->extent[k++]]) {
            const int s = o->extent[k];
            shape[s] = t->shape + at;
            times[s] = k == o->twice ? 2 : 1;
            if (times[s] == 2 && t->shape[at] % 2)
                return kfi_rt_fail(KF_ERROR_SHAPE, op->name, o->name,
                                   "is %s, expected an even dimension %d: two tensors in one",
                                   kfi_rt_list(t->shape, t->ndim).text, at);
        }
    }
    m->ndim = 0;
    m->axis = count[0];
    for (int s = 0; s < op->size_count; ++s)
        for (int d = 0; d < count[s]; ++d) m->shape[m->ndim++] = shape[s][d] / times[s];
    return KF_SUCCESS;
}
/* Returns the first operand that contains a size. */
static const kfi_rt_operand *kfi_rt_sized(const kfi_rt_op *op, int size)
{
    const kfi_rt_operand *found = op->operands;
    for (int i = op->operand_count - 1; i >= 0; --i)
        for (int k = 0; k < op->operands[i].extents; ++k)
            if (op->operands[i].extent[k] == size) found = &op->operands[i];
    return found;
}
/* Joins shapes if every tensor gives sizes: one dimension per size, and the remaining ones for the
 * first size. */
static kf_result_t kfi_rt_join_all_shapes(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    const kfi_rt_op *const op = c->op;
    const int64_t *shape[KFI_RT_SIZES] = {NULL};
    m->axis = 0;
    for (int i = 0; i < op->operand_count; ++i) {
        const kfi_rt_operand *const o = &op->operands[i];
        const kf_tensor_t *const t = c->tensors[i];
        if (!t) continue;
        const int any = o->extent[0] == 0, own = o->extents - any, left = t->ndim - own;
        if (left < 0 || (left && !any))
            return kfi_rt_fail(KF_ERROR_SHAPE, op->name, o->name, "is %s, expected %d dimensions%s",
                               kfi_rt_list(t->shape, t->ndim).text, own, any ? " or more" : "");
        if (any && !shape[0]) m->axis = left, shape[0] = t->shape;
        for (int k = 0; k < own; ++k)
            if (!shape[o->extent[any + k]]) shape[o->extent[any + k]] = t->shape + left + k;
    }
    m->ndim = m->axis + op->size_count - 1;
    for (int s = 0; s < op->size_count; ++s) {
        if (!shape[s])
            return kfi_rt_fail(KF_ERROR_NULL_POINTER, op->name, kfi_rt_sized(op, s)->name,
                               "is NULL, expected a tensor, which says a size");
        memcpy(s ? m->shape + m->axis + s - 1 : m->shape, shape[s],
               (size_t)(s ? 1 : m->axis) * sizeof *shape[s]);
    }
    return KF_SUCCESS;
}
static kf_result_t kfi_rt_read_shape(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    const kfi_rt_op *const op = c->op;
    const kf_tensor_t *const first = c->tensors[op->shaped_by];
    const char *const name = op->operands[op->shaped_by].name;
    if (op->any_order) return kfi_rt_broadcast_all(c, m);
    if (op->by_all) return kfi_rt_join_all_shapes(c, m);
    if (op->shaped[0] != op->shaped[1]) return kfi_rt_join_shapes(c, m);
    if (!first)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, op->name, name,
                           "is NULL, expected a tensor, of whose shape the others are");
    m->ndim = first->ndim;
    memcpy(m->shape, first->shape, sizeof first->shape);
    if (m->ndim < op->least)
        return kfi_rt_fail(KF_ERROR_SHAPE, op->name, name, "is %s, expected %d dimensions or more",
                           kfi_rt_list(m->shape, m->ndim).text, op->least);
    const int axis = c->dim < 0 ? c->dim + m->ndim : c->dim;
    if (m->ndim && (axis < 0 || axis >= m->ndim))
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, op->name, "dim", "is %d, expected %d to %d",
                           c->dim, -m->ndim, m->ndim - 1);
    m->axis = axis;
    if (!op->halves) return KF_SUCCESS;
    if (m->shape[m->ndim - 1] % 2)
        return kfi_rt_fail(KF_ERROR_SHAPE, op->name, name,
                           "is %s, expected an even last dimension: two halves",
                           kfi_rt_list(m->shape, m->ndim).text);
    m->shape[m->ndim - 1] /= 2;
    return KF_SUCCESS;
}
static kf_result_t kfi_rt_measure_call(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    const kfi_rt_op *const op = c->op;
    kf_result_t result = kfi_rt_read_shape(c, m);
    if (result != KF_SUCCESS) return result;
    int fits = 1;
    for (int i = 0; i < op->size_count; ++i) {
        const int what = op->size[i];
        const int64_t n = kfi_rt_product(m->shape, kfi_rt_begin(m, what), kfi_rt_end(m, what));
        m->n[i] = what == KFI_RT_GROUPS ? c->groups : n;
        fits &= n >= 0;
        if (op->refuses_empty && what == KFI_RT_AXIS && !n)
            return kfi_rt_fail(KF_ERROR_INVALID_SIZE, op->name, "dim",
                               "is %d of %s, expected a dimension with elements", c->dim,
                               kfi_rt_list(m->shape, m->ndim).text);
    }
    for (int i = 0; i < op->operand_count; ++i) {
        const kf_tensor_t *const t = c->tensors[i];
        int64_t shape[2 * KF_MAX_DIMS];
        if (!t || (op->any_order && !op->operands[i].is_out)) continue;
        const int n = kfi_rt_shape_of(c, m, &op->operands[i], shape);
        int same = n == t->ndim;
        for (int d = 0; d < n && same; ++d) same = shape[d] == t->shape[d];
        if (!same)
            return kfi_rt_fail(KF_ERROR_SHAPE, op->name, op->operands[i].name, "is %s, expected %s",
                               kfi_rt_list(t->shape, t->ndim).text, kfi_rt_list(shape, n).text);
    }
    if (fits) return KF_SUCCESS;
    return kfi_rt_fail(KF_ERROR_INVALID_SIZE, op->name, op->operands[op->shaped_by].name,
                       "makes %s of all, expected at most 2^58 elements",
                       kfi_rt_list(m->shape, m->ndim).text);
}

#endif
