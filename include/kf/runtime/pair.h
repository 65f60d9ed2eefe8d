/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/pair.h: two tensors of one shape, and the elements of one into the other on the CPU. */
#ifndef KF_RUNTIME_PAIR_H
#define KF_RUNTIME_PAIR_H

#include "kf/runtime/convert.h"
#include "kf/runtime/tensor.h"

/* Dimensions that two tensors have in common, the innermost last: those of one element are left out, and neighbours that both go over
   as one are one. */
typedef struct {
    int ndim;
    int64_t size[KF_MAX_DIMS], to[KF_MAX_DIMS], from[KF_MAX_DIMS];
} kfi_rt_pair;

static void kfi_rt_swap(int64_t *numbers, int i)
{
    const int64_t one = numbers[i];
    numbers[i] = numbers[i - 1];
    numbers[i - 1] = one;
}
static kfi_rt_pair kfi_rt_make_pair(const kf_tensor_t *to, const int64_t *from)
{
    kfi_rt_pair p;
    memset(&p, 0, sizeof p);
    for (int i = 0; i < to->ndim; ++i) {
        if (to->shape[i] == 1) continue;
        p.size[p.ndim] = to->shape[i], p.to[p.ndim] = to->strides[i], p.from[p.ndim] = from[i];
        for (int k = p.ndim++; k > 0 && p.to[k - 1] < p.to[k]; --k) /* in the order of the target's memory */
            kfi_rt_swap(p.size, k), kfi_rt_swap(p.to, k), kfi_rt_swap(p.from, k);
    }
    int last = 0;
    for (int i = 1; i < p.ndim; ++i) {
        if (p.to[last] == p.to[i] * p.size[i] && p.from[last] == p.from[i] * p.size[i])
            p.size[last] *= p.size[i];
        else
            p.size[++last] = p.size[i];
        p.to[last] = p.to[i], p.from[last] = p.from[i];
    }
    if (p.ndim) p.ndim = last + 1;
    if (!p.ndim) p.ndim = 1, p.size[0] = p.to[0] = p.from[0] = 1;
    return p;
}
/* n elements `to` and `from` apart. */
static void kfi_rt_copy_run(char *to, int64_t to_stride, int to_dtype, const char *from, int64_t from_stride, int from_dtype, int64_t n)
{
    const size_t to_width = kfi_rt_width(to_dtype), from_width = kfi_rt_width(from_dtype);
    if (to_dtype == from_dtype && to_stride == 1 && from_stride == 1) {
        memmove(to, from, (size_t)n * to_width);
        return;
    }
    uint64_t together[KFI_RT_RUN];
    kfi_rt_wide wide;
    for (int64_t done = 0; done < n; done += KFI_RT_RUN) {
        const int run = n - done < KFI_RT_RUN ? (int)(n - done) : KFI_RT_RUN;
        kfi_rt_gather(together, from + done * from_stride * (int64_t)from_width, from_stride, from_width, run);
        if (to_dtype != from_dtype) {
            kfi_rt_widen(&wide, together, from_dtype, run);
            kfi_rt_narrow(&wide, together, to_dtype, run);
        }
        kfi_rt_scatter(to + done * to_stride * (int64_t)to_width, together, to_stride, to_width, run);
    }
}
static void kfi_rt_copy_host(char *to, int to_dtype, const char *from, int from_dtype, const kfi_rt_pair *p)
{
    const int in = p->ndim - 1;
    int64_t index[KF_MAX_DIMS] = {0}, to_at = 0, from_at = 0;
    for (;;) {
        kfi_rt_copy_run(to + to_at * (int64_t)kfi_rt_width(to_dtype), p->to[in], to_dtype,
                        from + from_at * (int64_t)kfi_rt_width(from_dtype), p->from[in], from_dtype, p->size[in]);
        int i = in - 1;
        for (; i >= 0; --i) {
            to_at += p->to[i], from_at += p->from[i];
            if (++index[i] < p->size[i]) break;
            to_at -= p->to[i] * p->size[i], from_at -= p->from[i] * p->size[i];
            index[i] = 0;
        }
        if (i < 0) return;
    }
}
/* Bytes from the first element to the end of the last. */
static int64_t kfi_rt_extent(const kf_tensor_t *t)
{
    int64_t reach = 1;
    for (int i = 0; i < t->ndim; ++i) reach += (t->shape[i] - 1) * t->strides[i];
    return t->count ? reach * (int64_t)kfi_rt_width(t->dtype) : 0;
}
/* Both are one tensor, seen in one way. */
static int kfi_rt_same_view(const kf_tensor_t *a, const kf_tensor_t *b)
{
    int same = a->data == b->data && a->dtype == b->dtype && a->ndim == b->ndim;
    for (int i = 0; i < a->ndim && same; ++i) same = a->shape[i] == b->shape[i] && (a->strides[i] == b->strides[i] || a->shape[i] == 1);
    return same;
}

#endif
