/* SPDX-License-Identifier: Apache-2.0 */
/* A device's memory, in a stream's order, for arrays whose library gives none. All return 0 or the
 * driver's number of an error. */
#include "loader.h"

static CUstream of(void *stream) { return (CUstream)stream; }

extern "C" {
KFP_EXPORT int kfp_allocate(int device, size_t size, void *stream, void **memory)
{
    const kfp_context context(device);
    CUdeviceptr found = 0;
    const CUresult status = context.status == CUDA_SUCCESS
                                ? kfp_driver.of_cuMemAllocAsync(&found, size, of(stream))
                                : context.status;
    *memory = (void *)found;
    return (int)status;
}

/* stream: NULL waits for all that the device was given, which cuMemFree does not do for what
 * cuMemAllocAsync has given. */
KFP_EXPORT int kfp_free(int device, void *memory, void *stream)
{
    const kfp_context context(device);
    if (context.status != CUDA_SUCCESS) return (int)context.status;
    if (stream) return (int)kfp_driver.of_cuMemFreeAsync((CUdeviceptr)memory, of(stream));
    const CUresult done = kfp_driver.of_cuCtxSynchronize();
    return (int)(done == CUDA_SUCCESS ? kfp_driver.of_cuMemFree_v2((CUdeviceptr)memory) : done);
}

/* What `from` has may change when it returns. */
KFP_EXPORT int kfp_upload(int device, void *to, const void *from, size_t size, void *stream)
{
    const kfp_context context(device);
    return (int)(context.status == CUDA_SUCCESS
                     ? kfp_driver.of_cuMemcpyHtoDAsync_v2((CUdeviceptr)to, from, size, of(stream))
                     : context.status);
}

KFP_EXPORT int kfp_wait(int device, void *stream)
{
    const kfp_context context(device);
    return (int)(context.status == CUDA_SUCCESS ? kfp_driver.of_cuStreamSynchronize(of(stream))
                                                : context.status);
}

/* The number of the device that an address is of. */
KFP_EXPORT int kfp_device_of(const void *memory, int *device)
{
    return (int)kfp_driver.of_cuPointerGetAttribute(device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                    (CUdeviceptr)memory);
}
}
