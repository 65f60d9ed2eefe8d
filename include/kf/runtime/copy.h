/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/copy.h: copies one tensor to another, with any strides and dtypes. */
#ifndef KF_RUNTIME_COPY_H
#define KF_RUNTIME_COPY_H

#include "kf/runtime/pair.h"
#include "kf/runtime/view.h"
#ifdef KFI_RT_CUDA
#include "kf/runtime/copy_cuda.cuh"
#endif

static kf_result_t kfi_rt_check_copy(const char *function, const kf_tensor_t *to,
                                     const kf_tensor_t *from, int64_t *strides)
{
    kf_result_t result = KFI_RT_CHECK(function, "to", to, KFI_RT_TENSOR);
    if (result == KF_SUCCESS) result = KFI_RT_CHECK(function, "from", from, KFI_RT_TENSOR);
    if (result == KF_SUCCESS)
        result = kfi_rt_broadcast(function, "from", from, to->shape, to->ndim, strides);
    if (result != KF_SUCCESS) return result;
    if (to->storage->read_only)
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, function, "to",
                           "is read-only memory of DLPack, expected a tensor to write to");
    if (to->repeats)
        return kfi_rt_fail(KF_ERROR_OVERLAP, function, "to",
                           "is %s with strides %s, expected elements that lie apart",
                           kfi_rt_list(to->shape, to->ndim).text,
                           kfi_rt_list(to->strides, to->ndim).text);
    if (to->object.ctx->device->type == from->object.ctx->device->type &&
        to->data < from->data + kfi_rt_extent(from) && from->data < to->data + kfi_rt_extent(to) &&
        !kfi_rt_same_view(to, from))
        return kfi_rt_fail(KF_ERROR_OVERLAP, function, "to",
                           "at %p overlaps from at %p, expected memory apart or the same view",
                           (void *)to->data, (void *)from->data);
    return KF_SUCCESS;
}

#ifdef __cplusplus
extern "C" {
#endif

kf_result_t kf_tensor_copy(kf_tensor_t *to, const kf_tensor_t *from, kf_stream_t *stream)
{
    const char *const function = "kf_tensor_copy";
    int64_t strides[KF_MAX_DIMS];
    kf_result_t result = kfi_rt_check_copy(function, to, from, strides);
    if (result != KF_SUCCESS) return result;
    const int to_gpu = to->object.ctx->device->type == KF_DEVICE_CUDA,
              from_gpu = from->object.ctx->device->type == KF_DEVICE_CUDA;
    const int of_from = to_gpu == from_gpu ? stream && stream->object.kind == KFI_RT_STREAM &&
                                                 stream->object.ctx == from->object.ctx
                                           : from_gpu;
    kf_context_t *const ctx = of_from ? from->object.ctx : to->object.ctx;
    result = kfi_rt_check_stream(function, ctx, stream);
    if (result != KF_SUCCESS || !to->count || kfi_rt_same_view(to, from)) return result;
    result = kfi_rt_follow(function, to->object.ctx, stream);
    if (result == KF_SUCCESS && from->object.ctx != to->object.ctx)
        result = kfi_rt_follow(function, from->object.ctx, stream);
    if (result != KF_SUCCESS) return result;
    const kfi_rt_pair pair = kfi_rt_make_pair(to, strides);
    if (to_gpu || from_gpu) {
#ifdef KFI_RT_CUDA
        result = kfi_rt_copy_cuda(function, to, from, &pair, stream);
#endif
    } else
        kfi_rt_copy_host(to->data, to->dtype, from->data, from->dtype, &pair);
    kfi_rt_use(to, ctx, stream); /* after an error too, because a part may have been launched */
    kfi_rt_use(from, ctx, stream);
    return result;
}

#ifdef __cplusplus
}
#endif

#endif
