/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/view.h: views: other shapes of the same memory. */
#ifndef KF_RUNTIME_VIEW_H
#define KF_RUNTIME_VIEW_H

#include "kf/runtime/tensor.h"

static kfi_rt_layout kfi_rt_layout_of(const kf_tensor_t *t)
{
    kfi_rt_layout l;
    memset(&l, 0, sizeof l);
    l.ndim = t->ndim;
    l.dtype = t->dtype;
    l.count = t->count;
    memcpy(l.shape, t->shape, sizeof l.shape);
    memcpy(l.strides, t->strides, sizeof l.strides);
    return l;
}
/* Creates a view. offset: elements from the tensor's first element. */
static kf_tensor_t *kfi_rt_view(const char *function, kf_tensor_t *t, kfi_rt_layout *l,
                                int64_t offset)
{
    l->count = 1;
    for (int i = 0; i < l->ndim; ++i) l->count *= l->shape[i];
    char *const data =
        t->data && l->count ? t->data + offset * (int64_t)kfi_rt_width(t->dtype) : t->data;
    return kfi_rt_tensor(function, t->object.ctx, l, t->storage, data);
}
static kf_result_t kfi_rt_check_shape(const char *function, const int64_t *shape, int ndim)
{
    if (ndim < 0 || ndim > KF_MAX_DIMS)
        return kfi_rt_fail(KF_ERROR_INVALID_SIZE, function, "ndim", "is %d, expected 0 to %d", ndim,
                           KF_MAX_DIMS);
    return shape || !ndim ? KF_SUCCESS
                          : kfi_rt_fail(KF_ERROR_NULL_POINTER, function, "shape",
                                        "is NULL, expected %d numbers", ndim);
}
/* Computes strides of `to` such that it has the elements of `from` in order, dimension by dimension
 * from the last. Returns 0 if there are none: a dimension of `to` would span dimensions of `from`
 * that are not contiguous. */
static int kfi_rt_restride(const kfi_rt_layout *from, kfi_rt_layout *to)
{
    int f = from->ndim - 1;
    /* a contiguous run of dimensions of `from`: elements not yet assigned to `to`, and their
     * stride */
    int64_t left = 1, stride = 1;
    for (int t = to->ndim - 1; t >= 0; --t) {
        const int64_t n = to->shape[t];
        if (n == 1) {
            to->strides[t] = left > 1 || f < 0 ? stride : from->strides[f];
            continue;
        }
        for (; left == 1; --f) /* the next run begins; dimensions of size 1 are skipped */
            left = from->shape[f], stride = from->strides[f];
        /* too few elements are left, or they do not divide: the run must continue */
        while (left % n != 0) {
            if (f < 0 || (from->shape[f] != 1 && from->strides[f] != stride * left)) return 0;
            left *= from->shape[f--];
        }
        to->strides[t] = stride;
        left /= n;
        stride *= n;
    }
    return 1;
}
/* Computes strides with which t broadcasts to this shape, by NumPy's rule. argument: name in
 * messages. */
static kf_result_t kfi_rt_broadcast(const char *function, const char *argument,
                                    const kf_tensor_t *t, const int64_t *shape, int ndim,
                                    int64_t *strides)
{
    int fits = ndim >= t->ndim;
    for (int i = 0; i < ndim && fits; ++i) {
        const int k = i - (ndim - t->ndim);
        const int64_t own = k >= 0 ? t->shape[k] : 1;
        fits = own == shape[i] || own == 1;
        strides[i] = own == shape[i] && k >= 0 ? t->strides[k] : 0;
    }
    return fits ? KF_SUCCESS
                : kfi_rt_fail(KF_ERROR_SHAPE, function, argument,
                              "is %s, expected a shape that broadcasts to %s",
                              kfi_rt_list(t->shape, t->ndim).text, kfi_rt_list(shape, ndim).text);
}

#ifdef __cplusplus
extern "C" {
#endif

kf_tensor_t *kf_tensor_slice(kf_tensor_t *tensor, int dim, int64_t start, int64_t stop,
                             int64_t step)
{
    const char *const function = "kf_tensor_slice";
    if (KFI_RT_CHECK(function, "tensor", tensor, KFI_RT_TENSOR) != KF_SUCCESS) return NULL;
    if (dim < 0 || dim >= tensor->ndim)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_INVALID_VALUE, function, "dim",
                           "is %d, expected 0 to %d", dim, tensor->ndim - 1);
    const int64_t n = tensor->shape[dim];
    if (step < 1)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_INVALID_VALUE, function, "step",
                           "is %lld, expected at least 1", (long long)step);
    if (start < 0 || stop < start || stop > n)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_INVALID_VALUE, function, "start",
                           "to stop is %lld to %lld, expected numbers from 0 to %lld",
                           (long long)start, (long long)stop, (long long)n);
    kfi_rt_layout l = kfi_rt_layout_of(tensor);
    l.shape[dim] = (stop - start) / step + ((stop - start) % step != 0);
    if (l.shape[dim] > 1)
        l.strides[dim] *= step; /* stays within the tensor, so it does not overflow */
    return kfi_rt_view(function, tensor, &l, start * tensor->strides[dim]);
}
kf_tensor_t *kf_tensor_permute(kf_tensor_t *tensor, const int *dims, int count)
{
    const char *const function = "kf_tensor_permute";
    if (KFI_RT_CHECK(function, "tensor", tensor, KFI_RT_TENSOR) != KF_SUCCESS) return NULL;
    if (!dims && count)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_NULL_POINTER, function, "dims",
                           "is NULL, expected %d numbers", count);
    if (count != tensor->ndim)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_INVALID_VALUE, function, "count",
                           "is %d, expected %d", count, tensor->ndim);
    kfi_rt_layout l = kfi_rt_layout_of(tensor);
    unsigned seen = 0;
    for (int i = 0; i < count; ++i) {
        if (dims[i] < 0 || dims[i] >= count || (seen >> dims[i] & 1u))
            return KFI_RT_NULL(kf_tensor_t, KF_ERROR_INVALID_VALUE, function, "dims",
                               "has %d at %d, expected each of 0 to %d once", dims[i], i,
                               count - 1);
        seen |= 1u << dims[i];
        l.shape[i] = tensor->shape[dims[i]];
        l.strides[i] = tensor->strides[dims[i]];
    }
    return kfi_rt_view(function, tensor, &l, 0);
}
kf_tensor_t *kf_tensor_transpose(kf_tensor_t *tensor, int dim0, int dim1)
{
    const char *const function = "kf_tensor_transpose";
    if (KFI_RT_CHECK(function, "tensor", tensor, KFI_RT_TENSOR) != KF_SUCCESS) return NULL;
    if (dim0 < 0 || dim0 >= tensor->ndim || dim1 < 0 || dim1 >= tensor->ndim)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_INVALID_VALUE, function, "dim0",
                           "and dim1 are %d and %d, expected 0 to %d", dim0, dim1,
                           tensor->ndim - 1);
    kfi_rt_layout l = kfi_rt_layout_of(tensor);
    l.shape[dim0] = tensor->shape[dim1], l.strides[dim0] = tensor->strides[dim1];
    l.shape[dim1] = tensor->shape[dim0], l.strides[dim1] = tensor->strides[dim0];
    return kfi_rt_view(function, tensor, &l, 0);
}
kf_tensor_t *kf_tensor_reshape(kf_tensor_t *tensor, const int64_t *shape, int ndim)
{
    const char *const function = "kf_tensor_reshape";
    if (KFI_RT_CHECK(function, "tensor", tensor, KFI_RT_TENSOR) != KF_SUCCESS ||
        kfi_rt_check_shape(function, shape, ndim) != KF_SUCCESS)
        return NULL;
    const kfi_rt_layout from = kfi_rt_layout_of(tensor);
    const kf_tensor_desc_t desc = {shape, NULL, ndim, tensor->dtype, 0, 0};
    kfi_rt_layout l;
    l.ndim = ndim;
    l.dtype = tensor->dtype;
    if (kfi_rt_measure(function, &desc, &l) != KF_SUCCESS) return NULL;
    if (l.count != from.count)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_SHAPE, function, "shape",
                           "is %s, expected one of %lld elements as %s has",
                           kfi_rt_list(shape, ndim).text, (long long)from.count,
                           kfi_rt_list(from.shape, from.ndim).text);
    if (l.count && !kfi_rt_restride(&from, &l))
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_UNSUPPORTED, function, "shape",
                           "is %s, which takes a copy of %s with strides %s",
                           kfi_rt_list(shape, ndim).text, kfi_rt_list(from.shape, from.ndim).text,
                           kfi_rt_list(from.strides, from.ndim).text);
    return kfi_rt_view(function, tensor, &l, 0);
}
kf_tensor_t *kf_tensor_broadcast_to(kf_tensor_t *tensor, const int64_t *shape, int ndim)
{
    const char *const function = "kf_tensor_broadcast_to";
    if (KFI_RT_CHECK(function, "tensor", tensor, KFI_RT_TENSOR) != KF_SUCCESS ||
        kfi_rt_check_shape(function, shape, ndim) != KF_SUCCESS)
        return NULL;
    const kf_tensor_desc_t desc = {shape, NULL, ndim, tensor->dtype, 0, 0};
    kfi_rt_layout l;
    l.ndim = ndim;
    l.dtype = tensor->dtype;
    if (kfi_rt_measure(function, &desc, &l) != KF_SUCCESS) return NULL;
    if (kfi_rt_broadcast(function, "tensor", tensor, shape, ndim, l.strides) != KF_SUCCESS)
        return NULL;
    return kfi_rt_view(function, tensor, &l, 0);
}

#ifdef __cplusplus
}
#endif

#endif
