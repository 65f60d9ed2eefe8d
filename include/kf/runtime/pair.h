/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/pair.h: pairs of tensors of one shape. */
#ifndef KF_RUNTIME_PAIR_H
#define KF_RUNTIME_PAIR_H

#include "kf/runtime/move.h"
#include "kf/runtime/tensor.h"

static kfi_rt_pair kfi_rt_make_pair(const kf_tensor_t *to, const int64_t *from)
{
    kfi_rt_pair p;
    memset(&p, 0, sizeof p);
    for (int i = 0; i < to->ndim; ++i) {
        kfi_rt_add_dimension(&p, to->shape[i], to->strides[i], from[i]);
        for (int k = p.ndim - 1; k > 0 && p.to[k - 1] < p.to[k];
             --k) /* follows the order of the target in memory */
            kfi_rt_swap(p.size, k), kfi_rt_swap(p.to, k), kfi_rt_swap(p.from, k);
    }
    kfi_rt_join_dimensions(&p);
    return p;
}
/* Returns the bytes from the first element to the end of the last. */
static int64_t kfi_rt_extent(const kf_tensor_t *t)
{
    int64_t reach = 1;
    for (int i = 0; i < t->ndim; ++i) reach += (t->shape[i] - 1) * t->strides[i];
    return t->count ? reach * (int64_t)kfi_rt_width(t->dtype) : 0;
}
/* Returns whether both are the same view of one tensor. */
static int kfi_rt_same_view(const kf_tensor_t *a, const kf_tensor_t *b)
{
    int same = a->data == b->data && a->dtype == b->dtype && a->ndim == b->ndim;
    for (int i = 0; i < a->ndim && same; ++i)
        same = a->shape[i] == b->shape[i] && (a->strides[i] == b->strides[i] || a->shape[i] == 1);
    return same;
}

#endif
