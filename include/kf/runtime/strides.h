/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/strides.h: strided rows, described by the strides struct of a launcher. */
#ifndef KF_RUNTIME_STRIDES_H
#define KF_RUNTIME_STRIDES_H

#include "kf/core/pitch.h"
#include "kf/runtime/sizes.h"

/* Returns the stride of dimensions [begin, end) of a tensor, merged into one level; 0: contiguous,
 * or nothing to describe; -1: they cannot be merged. */
static int64_t kfi_rt_distance(const kf_tensor_t *t, int begin, int end)
{
    int64_t found = 0, wanted = 0;
    for (int d = end - 1; d >= begin; --d) {
        if (t->shape[d] == 1) continue;
        if (!found) found = wanted = t->strides[d] ? t->strides[d] : KF_BROADCAST;
        if ((wanted == KF_BROADCAST ? 0 : wanted) != t->strides[d]) return -1;
        if (wanted != KF_BROADCAST) wanted *= t->shape[d];
    }
    return found;
}
static int kfi_rt_side_by_side(const kf_tensor_t *t, int begin, int end)
{
    int64_t wanted = 1;
    for (int d = end - 1; d >= begin; --d) {
        if (t->shape[d] != 1 && t->strides[d] != wanted) return 0;
        wanted *= t->shape[d];
    }
    return 1;
}
/* Sets an operand's fields in the struct; returns 0 if no number describes its strides. Its levels
 * are the extents of its shape from the first on; the fields begin with the innermost. */
static int kfi_rt_set_strides(const kfi_rt_call *c, kfi_rt_prepared *m, const kfi_rt_operand *o,
                              const kf_tensor_t *t)
{
    if (t->is_dense) return 1;
    if (!o->levels) return 0;
    int begin[KFI_RT_SIZES + 1] = {0}, levels = o->levels, at = 0;
    for (int k = 0; k < o->extents; ++k) {
        const int what = c->op->size[o->extent[k]];
        begin[k] = at;
        at += kfi_rt_end(m, what) - kfi_rt_begin(m, what);
    }
    begin[o->extents] = at;
    int64_t behind = 1;
    for (int d = begin[levels]; d < at; ++d) behind *= t->shape[d];
    /* Index of the first extent that is contiguous. */
    const int first =
        c->op->joined == KFI_RT_ALWAYS || (c->op->joined == KFI_RT_ALONE && behind == 1)
            ? levels - 1
            : levels;
    if (!kfi_rt_side_by_side(t, begin[first], at)) return 0;
    for (int k = 0; k < first; ++k) {
        const int64_t distance = kfi_rt_distance(t, begin[k], begin[k + 1]);
        if (distance == -1 || (distance == KF_BROADCAST && o->is_out)) return 0;
        m->strides[o->field + levels - 1 - k] = distance;
        m->apart |= distance != 0;
    }
    return 1;
}

#endif
