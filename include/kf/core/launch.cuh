// SPDX-License-Identifier: Apache-2.0
// kf/core/launch.cuh: the one way a kernel is launched.
#ifndef KF_CORE_LAUNCH_CUH
#define KF_CORE_LAUNCH_CUH

#include <cuda_runtime.h>

#include "kf/core/result.h"

// Whether kernels may be launched while the one before them still runs, and wait for it by themselves (kfi_begin): where all
// code of this file is for compute capability 9.0 or later. By the list of architectures, not by the device: a later one may
// run code that was compiled for an earlier one, which does not wait.
KF_FN bool kfi_overlaps()
{
#ifdef __CUDA_ARCH_LIST__
    const int list[] = {__CUDA_ARCH_LIST__};
    for (int arch : list)
        if (arch < 900) return false;
    return true;
#else
    return false;
#endif
}

// The status is the launch call's own: cudaGetLastError might report somebody else's error.
KF_FN KFI_SMALL kf_result_t kfi_launch(const kfi_name *name, const void *kernel, dim3 blocks, unsigned threads, void **args, cudaStream_t stream)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.attrs = &attribute;
    config.numAttrs = kfi_overlaps();
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
