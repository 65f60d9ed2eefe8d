// SPDX-License-Identifier: Apache-2.0
// kf/core/launch_runtime.cuh: the CUDA calls of launch.cuh through the runtime, for files that nvcc
// compiles.
#ifndef KF_CORE_LAUNCH_RUNTIME_CUH
#define KF_CORE_LAUNCH_RUNTIME_CUH

#include "kf/core/host.h"

#include "kf/core/launch_args.cuh"
#include "kf/core/result.h"

#ifndef KFI_DRIVER

#ifdef __CUDA_ARCH_LIST__
// architectures that this file's kernels are compiled for
#define KFI_ARCHITECTURES __CUDA_ARCH_LIST__
#endif

typedef cudaError_t kfi_status;
#define KFI_NO_ERROR cudaSuccess
KF_FN const char *kfi_status_text(kfi_status status) { return cudaGetErrorString(status); }
// True if there is no code for this device.
KF_FN bool kfi_no_image(kfi_status status)
{
    return status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction;
}

// False if the stream may not be queried, or the toolkit cannot.
#if CUDART_VERSION >= 12080
KF_FN bool kfi_count_devices(int *devices) { return cudaGetDeviceCount(devices) == cudaSuccess; }
KF_FN KFI_SMALL bool kfi_devices_of(cudaStream_t stream, int *current, int *own)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess ||
        capture != cudaStreamCaptureStatusNone)
        return false;
    return cudaGetDevice(current) == cudaSuccess && cudaStreamGetDevice(stream, own) == cudaSuccess;
}
#else
KF_FN bool kfi_count_devices(int *) { return false; }
KF_FN bool kfi_devices_of(cudaStream_t, int *, int *) { return false; }
#endif

// Returns the maximum threads per block of this kernel; 0 if unknown.
KF_FN KFI_SMALL int kfi_most_threads(const void *kernel)
{
    cudaFuncAttributes found;
    return cudaFuncGetAttributes(&found, kernel) == cudaSuccess ? found.maxThreadsPerBlock : 0;
}

KF_FN KFI_SMALL kf_result_t kfi_enqueue(const kfi_name *name, const void *kernel, const kfi_call &c,
                                        kfi_status *status)
{
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    config.attrs = attributes;
    config.gridDim = c.blocks;
    config.blockDim = dim3(c.threads);
    config.dynamicSmemBytes = c.shared;
    config.stream = c.stream;
    if (c.early) {
        attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (c.cluster > 1) {
        attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attributes[config.numAttrs].val.clusterDim.y =
            attributes[config.numAttrs].val.clusterDim.z = 1;
        attributes[config.numAttrs++].val.clusterDim.x = c.cluster;
    }
    if (c.shared > 48 << 10)
        *status =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c.most);
#ifdef KF_ON_LAUNCH
    char function[128];
    kfi_write_name(function, sizeof function, name);
    KF_ON_LAUNCH(function, kernel, &config);
#else
    (void)name;
#endif
    if (*status == cudaSuccess) *status = cudaLaunchKernelExC(&config, kernel, c.args);
    return KF_SUCCESS;
}
#endif

#endif
