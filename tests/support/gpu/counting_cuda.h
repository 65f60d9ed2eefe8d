/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the part of the CUDA runtime that launchers may use: records launches and runs
   nothing. hostcuda.py includes it before a launcher's header, so that g++ compiles the launchers
   and their checks run without a GPU, a driver or nvcc. */
#ifndef KFT_COUNTING_CUDA_H
#define KFT_COUNTING_CUDA_H

#include <cuda_runtime.h>

#ifndef KFT_ARCHITECTURE
#define KFT_ARCHITECTURE 900
#endif
struct kft_launches {
    long long count;
    int status; /* result of a launch */
    unsigned grid[3], block[3];
    long long shared_bytes;
    const void *stream, *kernel;
    int current, own; /* the current device and the stream's, of two */
    int capturing;    /* during a capture a launcher may not ask for the stream's device */
    int raised;       /* last limit of shared memory, of kernel `raised_of`; others have 48 KiB */
    const void *raised_of;
};

extern "C" {
__attribute__((weak)) kft_launches kft_seen;
__attribute__((weak)) cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found,
                                                        const void *)
{
    return found->maxThreadsPerBlock = 1024, cudaSuccess;
}
#if CUDART_VERSION >= 12050 /* a driver without tensor maps, so no launcher uses wgmma */
__attribute__((weak))
cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **entry, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
{
    *entry = nullptr;
    *found = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
#elif CUDART_VERSION >= 12000
__attribute__((weak)) cudaError_t cudaGetDriverEntryPoint(const char *, void **entry,
                                                          unsigned long long,
                                                          cudaDriverEntryPointQueryResult *found)
{
    *entry = nullptr;
    *found = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
#endif
__attribute__((weak)) cudaError_t cudaFuncSetAttribute(const void *kernel,
                                                       enum cudaFuncAttribute what, int value)
{
    const int room = KFT_ARCHITECTURE / 100 == 12 ? 99 << 10 : 227 << 10;
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize || value > room)
        return cudaErrorInvalidValue;
    kft_seen.raised = value;
    kft_seen.raised_of = kernel;
    return cudaSuccess;
}
__attribute__((weak)) cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config,
                                                      const void *kernel, void **)
{
    ++kft_seen.count;
    const unsigned grid[] = {config->gridDim.x, config->gridDim.y, config->gridDim.z};
    const unsigned block[] = {config->blockDim.x, config->blockDim.y, config->blockDim.z};
    for (int i = 0; i < 3; ++i) {
        kft_seen.grid[i] = grid[i];
        kft_seen.block[i] = block[i];
    }
    kft_seen.shared_bytes = (long long)config->dynamicSmemBytes;
    kft_seen.stream = (const void *)config->stream;
    kft_seen.kernel = kernel;
    const int room = kernel == kft_seen.raised_of ? kft_seen.raised : 48 << 10;
    if (kft_seen.status == 0 && kft_seen.shared_bytes > room) return cudaErrorInvalidValue;
    return (cudaError_t)kft_seen.status;
}
__attribute__((weak)) cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 2;
    return cudaSuccess;
}
__attribute__((weak)) cudaError_t cudaGetDevice(int *device)
{
    *device = kft_seen.current;
    return cudaSuccess;
}
__attribute__((weak)) cudaError_t cudaStreamIsCapturing(cudaStream_t,
                                                        cudaStreamCaptureStatus *status)
{
    *status = kft_seen.capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
__attribute__((weak)) cudaError_t cudaStreamGetDevice(cudaStream_t, int *device)
{
    /* This call invalidates a capture. */
    kft_seen.status = kft_seen.capturing ? 901 : kft_seen.status;
    *device = kft_seen.own;
    return cudaSuccess;
}
__attribute__((weak)) const char *cudaGetErrorString(cudaError_t)
{
    return "as the test asked for";
}
}

#endif
