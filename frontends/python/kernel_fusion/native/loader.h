/* SPDX-License-Identifier: Apache-2.0 */
/* Driver functions of kf's launchers, looked up at run time so that the library also loads without
 * a driver, and the loader of their kernels (loader.cpp). */
#ifndef KF_NATIVE_LOADER_H
#define KF_NATIVE_LOADER_H

#include <cuda.h>

#include "packed.h"
#ifndef KFP_CUDA
#error "kf: compile all files of this library with -DKFP_CUDA: their functions take a stream"
#endif

/* Required driver functions, and optional ones of newer versions. */
/* clang-format off */
#define KFP_DRIVER(X)                                                                              \
    X(cuLaunchKernelEx) X(cuFuncSetAttribute) X(cuFuncGetAttribute) X(cuCtxGetDevice)              \
    X(cuDeviceGetAttribute) X(cuDeviceGetCount) X(cuStreamIsCapturing) X(cuGetErrorString)         \
    X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxGetCurrent) X(cuCtxSetCurrent)     \
    X(cuModuleLoadData) X(cuModuleGetFunction) X(cuMemAllocAsync) X(cuMemFreeAsync)                \
    X(cuMemFree_v2) X(cuMemcpyHtoDAsync_v2) X(cuStreamSynchronize) X(cuCtxSynchronize)             \
    X(cuPointerGetAttribute)
#if CUDA_VERSION >= 12080
#define KFP_LATER(X) X(cuStreamGetDevice) X(cuTensorMapEncodeTiled)
#elif CUDA_VERSION >= 12000
#define KFP_LATER(X) X(cuTensorMapEncodeTiled)
#else
#define KFP_LATER(X)
#endif
/* clang-format on */

/* NULL before kfp_open. */
typedef struct {
#define KFP_MEMBER(function) decltype(&function) of_##function;
    KFP_DRIVER(KFP_MEMBER)
    KFP_LATER(KFP_MEMBER)
#undef KFP_MEMBER
} kfp_driver_functions;
extern "C" kfp_driver_functions kfp_driver;
extern "C" CUresult kfp_load(const char *name, CUfunction *function);

/* Makes a device's primary context, which the CUDA runtime uses, current for its lifetime. */
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
