/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered device memory, for arrays of libraries without an allocator. All functions return
 * 0 or the driver's error code. */
#include "loader.h"

static CUstream as_stream(void *stream) { return (CUstream)stream; }

extern "C" {
KFP_EXPORT int kfp_allocate(int device, size_t size, void *stream, void **memory)
{
    const kfp_context context(device);
    CUdeviceptr found = 0;
    const CUresult status = context.status == CUDA_SUCCESS
                                ? kfp_driver.of_cuMemAllocAsync(&found, size, as_stream(stream))
                                : context.status;
    *memory = (void *)found;
    return (int)status;
}

/* Frees memory in stream order; with stream NULL after all work of the device, for which cuMemFree
 * does not wait if cuMemAllocAsync allocated the memory. */
KFP_EXPORT int kfp_free(int device, void *memory, void *stream)
{
    const kfp_context context(device);
    if (context.status != CUDA_SUCCESS) return (int)context.status;
    if (stream) return (int)kfp_driver.of_cuMemFreeAsync((CUdeviceptr)memory, as_stream(stream));
    const CUresult done = kfp_driver.of_cuCtxSynchronize();
    return (int)(done == CUDA_SUCCESS ? kfp_driver.of_cuMemFree_v2((CUdeviceptr)memory) : done);
}

/* Copies host memory, which may be modified after the return. */
KFP_EXPORT int kfp_upload(int device, void *to, const void *from, size_t size, void *stream)
{
    const kfp_context context(device);
    return (int)(context.status == CUDA_SUCCESS
                     ? kfp_driver.of_cuMemcpyHtoDAsync_v2((CUdeviceptr)to, from, size,
                                                          as_stream(stream))
                     : context.status);
}

KFP_EXPORT int kfp_wait(int device, void *stream)
{
    const kfp_context context(device);
    return (int)(context.status == CUDA_SUCCESS
                     ? kfp_driver.of_cuStreamSynchronize(as_stream(stream))
                     : context.status);
}

/* Stores the device of an address. */
KFP_EXPORT int kfp_device_of(const void *memory, int *device)
{
    return (int)kfp_driver.of_cuPointerGetAttribute(device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                    (CUdeviceptr)memory);
}
}
