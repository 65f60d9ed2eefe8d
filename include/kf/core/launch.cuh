// SPDX-License-Identifier: Apache-2.0
// kf/core/launch.cuh: the one way a kernel is launched.
#ifndef KF_CORE_LAUNCH_CUH
#define KF_CORE_LAUNCH_CUH

#include <cuda_runtime.h>

#include "kf/core/result.h"

// Whether a kernel may be launched while the one before it still runs, and waits for it by itself (kfi_await_launch_before):
// from compute capability 9.0 on.
KF_FN KFI_SMALL bool kfi_overlaps()
{
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           major >= 9;
}

// The status is the launch call's own: cudaGetLastError might report somebody else's error.
KF_FN KFI_SMALL kf_result_t kfi_launch(const kfi_name *name, const void *kernel, dim3 blocks, unsigned threads, void **args, cudaStream_t stream,
                                      bool overlaps = false)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.attrs = &attribute;
    config.numAttrs = overlaps;
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.stream = stream;
    const cudaError_t status = cudaLaunchKernelExC(&config, kernel, args);
    if (status == cudaSuccess) return KF_SUCCESS;
    const bool image = status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction;
    return kfi_fail(image ? KF_ERROR_NO_KERNEL_IMAGE : KF_ERROR_CUDA, name, "launch", "of %u x %u blocks of %u threads: CUDA error %d (%s)",
                    blocks.x, blocks.y, threads, (int)status, cudaGetErrorString(status));
}

#endif
