// SPDX-License-Identifier: Apache-2.0
// kf/core/launch.cuh: the one way a kernel is launched.
#ifndef KF_CORE_LAUNCH_CUH
#define KF_CORE_LAUNCH_CUH

#include <cuda_runtime.h>

#include "kf/core/result.h"

// The status is the launch call's own: cudaGetLastError might report somebody else's error.
KF_FN KFI_SMALL kf_result_t kfi_launch(const kfi_name *name, const void *kernel, dim3 blocks, unsigned threads, void **args, cudaStream_t stream)
{
    cudaLaunchConfig_t config = {};
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
