/* SPDX-License-Identifier: Apache-2.0 */
/* What kf's launchers ask of CUDA's driver, as a library gets it that starts where there is none;
 * and where their kernels come from (loader.cpp). */
#ifndef KF_NATIVE_LOADER_H
#define KF_NATIVE_LOADER_H

#include <cuda.h>

#include "packed.h"
#ifndef KFP_CUDA
#error "kf: all files of this library are compiled with -DKFP_CUDA: their functions take a stream"
#endif

/* The driver's functions by their names; NULL before kfp_open. */
#define KFP_DRIVER(do)                                                                                                                                                                                                                         \
    do                                                                                                                                                                                                                                         \
    (cuLaunchKernelEx) do(cuFuncSetAttribute) do(cuFuncGetAttribute) do(cuCtxGetDevice) do(cuDeviceGetAttribute) do(cuDeviceGetCount) do(cuStreamIsCapturing) do(cuGetErrorString) do(cuInit) do(cuDeviceGet) do(cuDevicePrimaryCtxRetain) do( \
        cuCtxGetCurrent) do(cuCtxSetCurrent) do(cuModuleLoadData) do(cuModuleGetFunction) do(cuMemAllocAsync) do(cuMemFreeAsync) do(cuMemFree_v2) do(cuMemcpyHtoDAsync_v2) do(cuStreamSynchronize) do(cuCtxSynchronize) do(cuPointerGetAttribute)
#if CUDA_VERSION >= 12080
#define KFP_LATER(do)                                                                              \
    do (cuStreamGetDevice) do(cuTensorMapEncodeTiled)
#elif CUDA_VERSION >= 12000
#define KFP_LATER(do)                                                                              \
    do (cuTensorMapEncodeTiled)
#else
#define KFP_LATER(do)
#endif

typedef struct {
#define KFP_MEMBER(function) decltype(&function) of_##function;
    KFP_DRIVER(KFP_MEMBER)
    KFP_LATER(KFP_MEMBER)
#undef KFP_MEMBER
} kfp_driver_functions;
extern "C" kfp_driver_functions kfp_driver;
extern "C" CUresult kfp_load(const char *name, CUfunction *function);

/* For its lifetime the thread has a device's primary context, which is the one that CUDA's runtime
 * uses; then the one that it had. */
struct kfp_context {
    explicit kfp_context(int device);
    ~kfp_context();
    kfp_context(const kfp_context &) = delete;
    kfp_context &operator=(const kfp_context &) = delete;
    CUresult status;

  private:
    CUcontext before, own;
};

#define KF_DRIVER_CALL(function) kfp_driver.of_##function
#define KF_LOAD_KERNEL(name, function) kfp_load(name, function)

#endif
