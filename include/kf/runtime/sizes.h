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
/* Name of an activation; NULL if no op of the program has it. */
static const char *kfi_rt_activation_name(kf_activation_t id)
{
    for (const kfi_rt_op *const *op = __start_kf_rt_ops; op < __stop_kf_rt_ops; ++op)
        for (int i = 0; i < (*op)->activation_count; ++i)
            if ((*op)->activations[i].id == id) return (*op)->activations[i].name;
    return NULL;
}
/* Fails for an activation that an op lacks, and lists those that it has. */
static kf_result_t kfi_rt_lacks_activation(const char *function, const char *what,
                                           const kfi_rt_op *op, kf_activation_t id)
{
    const char *const name = kfi_rt_activation_name(id);
    char known[256] = "", number[24];
    size_t end = 0;
    snprintf(number, sizeof number, name ? " (%d)" : "%d", (int)id);
    for (int i = 0; i < op->activation_count && end < sizeof known; ++i)
        end += (size_t)snprintf(known + end, sizeof known - end, "%s%s", i ? ", " : "",
                                op->activations[i].name);
    return kfi_rt_fail(KF_ERROR_UNSUPPORTED, function, "activation",
                       "is %s%s, which %.60s does not have, expected one of %s (kfgen runtime "
                       "--activations, KF_RUNTIME_ACTIVATIONS)",
                       name ? name : "", number, what, known);
}
static kf_result_t kfi_rt_choose(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    const kfi_rt_op *const op = c->op;
    for (m->activation = 0; m->activation < op->activation_count; ++m->activation)
        if (op->activations[m->activation].id == c->activation) break;
    if (m->activation == op->activation_count)
        return kfi_rt_lacks_activation(op->name, "this program", op, c->activation);
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

/* Broadcasts the shapes of all inputs. */
static kf_result_t kfi_rt_broadcast_all(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    kfi_layout *const l = &m->layout;
    l->dims = 0;
    for (int i = 0; i < c->op->operand_count; ++i)
        if (c->tensors[i] && c->tensors[i]->ndim > l->dims) l->dims = c->tensors[i]->ndim;
    for (int d = 0; d < l->dims; ++d) l->dim[d] = 1;
    for (int i = 0; i < c->op->operand_count; ++i) {
        const kf_tensor_t *const t = c->tensors[i];
        if (!t || c->op->operands[i].is_out) continue;
        for (int k = 0; k < t->ndim; ++k) {
            int64_t *const n = &l->dim[l->dims - t->ndim + k];
            if (*n == 1)
                *n = t->shape[k];
            else if (t->shape[k] != 1 && t->shape[k] != *n)
                return kfi_rt_fail(KF_ERROR_SHAPE, c->op->name, c->op->operands[i].name,
                                   "is %s, expected a shape that broadcasts with %s",
                                   kfi_rt_list(t->shape, t->ndim).text,
                                   kfi_rt_list(l->dim, l->dims).text);
        }
    }
    l->begin[0] = 0, l->end[0] = l->dims;
    l->n[0] = kfi_layout_product(l->dim, 0, l->dims);
    return KF_SUCCESS;
}
/* Returns the first operand that contains a size. */
static const kfi_rt_operand *kfi_rt_sized(const kfi_rt_op *op, int size)
{
    const kfi_rt_operand *found = op->operands;
    for (int i = op->operand_count - 1; i >= 0; --i)
        for (int k = 0; k < op->operands[i].layout.extents; ++k)
            if (op->operands[i].layout.extent[k].size == size) found = &op->operands[i];
    return found;
}
/* Reports why sizes do not follow from the shape of operand `o`. */
static kf_result_t kfi_rt_refuse_shape(const kfi_rt_call *c, int o, const kfi_layout_error *e)
{
    const kfi_rt_op *const op = c->op;
    const kf_tensor_t *const t = c->tensors[o];
    const char *const name = op->operands[o].name;
    const kfi_rt_text shape = kfi_rt_list(t->shape, t->ndim);
    switch (e->why) {
    case KFI_LAYOUT_RANK:
        return kfi_rt_fail(KF_ERROR_SHAPE, op->name, name, "is %s, expected %d dimensions%s",
                           shape.text, e->wanted, e->more ? " or more" : "");
    case KFI_LAYOUT_AXIS:
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, op->name, "dim", "is %d, expected %d to %d",
                           c->dim, -t->ndim, t->ndim - 1);
    case KFI_LAYOUT_SMALL:
        return kfi_rt_fail(KF_ERROR_SHAPE, op->name, name,
                           "is %s, expected a dimension %d of at least %d", shape.text, e->dim,
                           e->wanted);
    case KFI_LAYOUT_ROOM:
        return kfi_rt_fail(KF_ERROR_SHAPE, op->name, name,
                           "is %s, expected at most %d dimensions of all tensors", shape.text,
                           e->wanted);
    default: break;
    }
    if (e->wanted != 2)
        return kfi_rt_fail(KF_ERROR_SHAPE, op->name, name,
                           "is %s, expected a dimension %d that is a multiple of %d", shape.text,
                           e->dim, e->wanted);
    if (op->shaping_count == 1 && e->dim == t->ndim - 1)
        return kfi_rt_fail(KF_ERROR_SHAPE, op->name, name,
                           "is %s, expected an even last dimension: two halves", shape.text);
    return kfi_rt_fail(KF_ERROR_SHAPE, op->name, name,
                       "is %s, expected an even dimension %d: two tensors in one", shape.text,
                       e->dim);
}
/* Computes the sizes from the tensors that determine them. */
static kf_result_t kfi_rt_read_shapes(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    const kfi_rt_op *const op = c->op;
    const int all = op->shaping_count ? op->shaping_count : op->operand_count;
    const kfi_layout_tensor *layouts[KFI_RT_TENSORS];
    const int64_t *shapes[KFI_RT_TENSORS];
    int count = 0, ranks[KFI_RT_TENSORS], from[KFI_RT_TENSORS];
    for (int i = 0; i < all; ++i) {
        const int o = op->shaping_count ? op->shaping[i] : i;
        const kf_tensor_t *const t = c->tensors[o];
        if (!t && !op->shaping_count) continue;
        if (!t && !(op->operands[o].missing >> c->activation & 1))
            return kfi_rt_fail(KF_ERROR_NULL_POINTER, op->name, op->operands[o].name,
                               "is NULL, expected a tensor, of whose shape the others are");
        layouts[count] = &op->operands[o].layout;
        shapes[count] = t ? t->shape : NULL, ranks[count] = t ? t->ndim : -1, from[count++] = o;
    }
    kfi_layout_error e;
    if (kfi_layout_find(&op->rules, count, layouts, shapes, ranks, c->dim, &c->groups, &m->layout,
                        &e))
        return KF_SUCCESS;
    if (e.why == KFI_LAYOUT_MISSING)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, op->name, kfi_rt_sized(op, e.wanted)->name,
                           "is NULL, expected a tensor, which says a size");
    return kfi_rt_refuse_shape(c, from[e.tensor], &e);
}
static kf_result_t kfi_rt_check_operand_shape(const kfi_rt_call *c, const kfi_rt_prepared *m, int o)
{
    const kf_tensor_t *const t = c->tensors[o];
    const char *const name = c->op->operands[o].name;
    int64_t shape[KFI_LAYOUT_DIMS];
    const int n = kfi_layout_shape(&c->op->rules, &m->layout, &c->op->operands[o].layout, shape);
    if (n < 0)
        return kfi_rt_fail(KF_ERROR_SHAPE, c->op->name, name,
                           "is %s, whose extent %d the sizes make negative or too large",
                           kfi_rt_list(t->shape, t->ndim).text, -1 - n);
    int same = n == t->ndim;
    for (int d = 0; d < n && same; ++d) same = shape[d] == t->shape[d];
    return same ? KF_SUCCESS
                : kfi_rt_fail(KF_ERROR_SHAPE, c->op->name, name, "is %s, expected %s",
                              kfi_rt_list(t->shape, t->ndim).text, kfi_rt_list(shape, n).text);
}
static kf_result_t kfi_rt_measure_call(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    const kfi_rt_op *const op = c->op;
    const kfi_layout *const l = &m->layout;
    kf_result_t result = op->any_order ? kfi_rt_broadcast_all(c, m) : kfi_rt_read_shapes(c, m);
    if (result != KF_SUCCESS) return result;
    kfi_layout_integers(&op->rules, &m->layout, c->integers, op->integers);
    if (op->refused >= 0 && !l->n[op->refused])
        return kfi_rt_fail(KF_ERROR_INVALID_SIZE, op->name, "dim",
                           "is %d of %s, expected a dimension with elements", c->dim,
                           kfi_rt_list(l->dim, l->dims).text);
    int fits = 1;
    for (int i = 0; i < op->rules.sizes; ++i)
        fits &= l->n[i] >= 0 || op->rules.count[i] == KFI_LAYOUT_ARGUMENT;
    for (int i = 0; i < op->operand_count && result == KF_SUCCESS; ++i)
        if (c->tensors[i] && !(op->any_order && !op->operands[i].is_out))
            result = kfi_rt_check_operand_shape(c, m, i);
    const int zero = kfi_layout_zero(&op->rules, l);
    if (zero >= 0 && result == KF_SUCCESS)
        return kfi_rt_fail(KF_ERROR_INVALID_SIZE, op->name, kfi_rt_sized(op, zero)->name,
                           "has no elements: %s is 0, expected 1 or more beside %lld %s",
                           op->size_names[zero], (long long)l->n[op->rules.beside[zero]],
                           op->size_names[op->rules.beside[zero]]);
    if (fits || result != KF_SUCCESS) return result;
    return kfi_rt_fail(KF_ERROR_INVALID_SIZE, op->name, op->operands[op->shaped_by].name,
                       "makes %s of all, expected at most 2^58 elements",
                       kfi_rt_list(l->dim, l->dims).text);
}

#endif
