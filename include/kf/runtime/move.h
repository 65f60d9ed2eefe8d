/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/move.h: elements from one way of lying in memory to another, on the CPU. */
#ifndef KF_RUNTIME_MOVE_H
#define KF_RUNTIME_MOVE_H

#include "kf/runtime/convert.h"

/* Dimensions that two tensors have in common, the innermost last: those of one element are left out, and neighbours that both go over
   as one are one. */
typedef struct kfi_rt_pair {
    int ndim;
    int64_t size[KF_MAX_DIMS], to[KF_MAX_DIMS], from[KF_MAX_DIMS];
} kfi_rt_pair;

static void kfi_rt_swap(int64_t *numbers, int i)
{
    const int64_t one = numbers[i];
    numbers[i] = numbers[i - 1];
    numbers[i - 1] = one;
}
static void kfi_rt_add_dimension(kfi_rt_pair *p, int64_t size, int64_t to, int64_t from)
{
    if (size == 1) return;
    p->size[p->ndim] = size, p->to[p->ndim] = to, p->from[p->ndim] = from;
    ++p->ndim;
}
static void kfi_rt_join_dimensions(kfi_rt_pair *p)
{
    int last = 0;
    for (int i = 1; i < p->ndim; ++i) {
        if (p->to[last] == p->to[i] * p->size[i] && p->from[last] == p->from[i] * p->size[i])
            p->size[last] *= p->size[i];
        else
            p->size[++last] = p->size[i];
        p->to[last] = p->to[i], p->from[last] = p->from[i];
    }
    if (p->ndim) p->ndim = last + 1;
    if (!p->ndim) p->ndim = 1, p->size[0] = p->to[0] = p->from[0] = 1;
}
/* n elements `to` and `from` apart. */
static void kfi_rt_copy_run(char *to, int64_t to_stride, int to_dtype, const char *from, int64_t from_stride, int from_dtype, int64_t n)
{
    const size_t to_width = kfi_rt_width(to_dtype), from_width = kfi_rt_width(from_dtype);
    if (to_dtype == from_dtype && to_stride == 1 && from_stride == 1) {
        memmove(to, from, (size_t)n * to_width);
        return;
    }
    if (to_dtype == from_dtype && to_stride == 1) {
        kfi_rt_gather(to, from, from_stride, to_width, n);
        return;
    }
    if (to_dtype == from_dtype && from_stride == 1) {
        kfi_rt_scatter(to, from, to_stride, to_width, n);
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

#endif
