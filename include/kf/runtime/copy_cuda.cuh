// SPDX-License-Identifier: Apache-2.0
// kf/runtime/copy_cuda.cuh: copies between tensors if at least one is on a GPU.
#ifndef KF_RUNTIME_COPY_CUDA_CUH
#define KF_RUNTIME_COPY_CUDA_CUH

#include "kf/runtime/device_cuda.cuh"
#include "kf/runtime/pair.h"

// CUDA copies memory that is contiguous in both tensors and has one dtype, and rows between
// devices. A kernel copies all other strides on one GPU, including rows, for which CUDA reaches 60
// % of the speed of a contiguous copy.
static kf_result_t kfi_rt_copy_cuda(const char *function, const kf_tensor_t *to,
                                    const kf_tensor_t *from, const kfi_rt_pair *p,
                                    const kf_stream_t *stream)
{
    const int in = p->ndim - 1, rows = p->ndim == 2;
    const bool side_by_side = p->size[in] == 1 || (p->to[in] == 1 && p->from[in] == 1);
    if (to->dtype != from->dtype)
        return kfi_rt_fail(KF_ERROR_UNSUPPORTED, function, "from",
                           "has dtype %d, expected that of to, %d, where one of them is on a GPU",
                           from->dtype, to->dtype);
    kf_context_t *const ctx =
        to->object.ctx->device->type == KF_DEVICE_CUDA ? to->object.ctx : from->object.ctx;
#ifdef KFI_RT_KERNELS
    const bool has_kernel = to->object.ctx == from->object.ctx;
#else
    const bool has_kernel = false;
#endif
    const bool by_cuda =
        p->ndim <= (has_kernel ? 1 : 2) && side_by_side && !(rows && p->from[0] < p->size[1]);
    if (!by_cuda && to->object.ctx == from->object.ctx) {
        const kf_result_t moved = ctx->device->move(function, ctx, to->data, from->data, p,
                                                    kfi_rt_width(to->dtype), stream);
        return moved == KF_SUCCESS && ctx->debug ? ctx->device->synchronize(function, ctx, stream)
                                                 : moved;
    }
    if (!by_cuda)
        return kfi_rt_fail(KF_ERROR_UNSUPPORTED, function, "from",
                           "is %s with strides %s, expected rows of elements side by side from one "
                           "device to another",
                           kfi_rt_list(from->shape, from->ndim).text,
                           kfi_rt_list(from->strides, from->ndim).text);
    const kfi_rt_current current(ctx);
    const cudaStream_t native = kfi_rt_native(stream);
    const size_t width = kfi_rt_width(to->dtype), row = (size_t)p->size[in] * width;
    const cudaError_t status =
        rows ? cudaMemcpy2DAsync(to->data, (size_t)p->to[0] * width, from->data,
                                 (size_t)p->from[0] * width, row, (size_t)p->size[0],
                                 cudaMemcpyDefault, native)
             : cudaMemcpyAsync(to->data, from->data, row, cudaMemcpyDefault, native);
    const kf_result_t result =
        kfi_rt_cuda_status(function, rows ? "cudaMemcpy2DAsync" : "cudaMemcpyAsync", status);
    if (result != KF_SUCCESS || !ctx->debug) return result;
    return kfi_rt_cuda_status(function, "cudaStreamSynchronize", cudaStreamSynchronize(native));
}

#endif
