/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of launchers over CUDA's driver. One is asked for by its name before each launch; what a
   context has is looked up here, what it has not the caller makes (kfp_set_maker), once. */
#include "loader.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

kfp_driver_functions kfp_driver;

namespace
{
/* A kernel of a function that is about to be launched. 0: there is one. */
typedef int (*maker)(const char *function, int device, void *stream, const char *kernel,
                     const void **cubin, const char **lowered);
typedef std::pair<CUcontext, std::string> place;

maker make;
std::mutex lock;
std::map<place, CUfunction> loaded;
std::map<int, CUcontext> primary;
thread_local struct {
    const char *function;
    int device;
    void *stream;
    std::string reason; /* why there is no kernel */
} now;

CUresult load(const char *name, CUfunction *function)
{
    const void *cubin = nullptr;
    const char *lowered = nullptr;
    if (!make || make(now.function, now.device, now.stream, name, &cubin, &lowered))
        return CUDA_ERROR_NOT_FOUND;
    CUmodule module = nullptr; /* stays as long as its context */
    const CUresult status = kfp_driver.of_cuModuleLoadData(&module, cubin);
    return status == CUDA_SUCCESS ? kfp_driver.of_cuModuleGetFunction(function, module, lowered)
                                  : status;
}

CUresult context_of(int device, CUcontext *context)
{
    const std::lock_guard<std::mutex> guard(lock);
    const std::map<int, CUcontext>::const_iterator found = primary.find(device);
    if (found != primary.end()) return *context = found->second, CUDA_SUCCESS;
    CUdevice number = 0;
    CUresult status = kfp_driver.of_cuDeviceGet(&number, device);
    if (status == CUDA_SUCCESS) status = kfp_driver.of_cuDevicePrimaryCtxRetain(context, number);
    if (status == CUDA_SUCCESS) primary[device] = *context;
    return status;
}
} // namespace

kfp_context::kfp_context(int device) : status(kfp_driver.of_cuCtxGetCurrent(&before)), own(nullptr)
{
    if (status == CUDA_SUCCESS) status = context_of(device, &own);
    if (status == CUDA_SUCCESS && before != own) status = kfp_driver.of_cuCtxSetCurrent(own);
}

kfp_context::~kfp_context()
{
    if (status == CUDA_SUCCESS && before != own) kfp_driver.of_cuCtxSetCurrent(before);
}

extern "C" CUresult kfp_load(const char *name, CUfunction *function)
{
    CUcontext context = nullptr;
    CUresult status = kfp_driver.of_cuCtxGetCurrent(&context);
    if (status != CUDA_SUCCESS) return status;
    const place where(context, name);
    {
        const std::lock_guard<std::mutex> guard(lock);
        const std::map<place, CUfunction>::const_iterator found = loaded.find(where);
        if (found != loaded.end()) return *function = found->second, CUDA_SUCCESS;
    }
    status = load(
        name,
        function); /* not under the lock: the maker may wait for another thread, which launches */
    if (status != CUDA_SUCCESS) return status;
    const std::lock_guard<std::mutex> guard(lock);
    *function = loaded.emplace(where, *function).first->second;
    return CUDA_SUCCESS;
}

extern "C" {
int kfp_run(int id, KFP_PARAMETERS);

extern const kfp_entry kfp_table[];

KFP_EXPORT void kfp_set_maker(maker by) { make = by; }

/* The maker says so why it returns other than 0; who called the launcher reads it. */
KFP_EXPORT void kfp_give_reason(const char *text) { now.reason = text; }
KFP_EXPORT const char *kfp_reason(void) { return now.reason.c_str(); }

/* Finds the driver, which is libcuda.so.1 unless a test says otherwise. 0, or the driver's number
 * of an error; -1: there is none. */
KFP_EXPORT int kfp_open(const char *path)
{
    void *const library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW);
    if (!library) return -1;
#define KFP_FIND(function)                                                                         \
    if (!(kfp_driver.of_##function = (decltype(&function))dlsym(library, #function))) return -1;
#define KFP_FIND_LATER(function)                                                                   \
    kfp_driver.of_##function = (decltype(&function))dlsym(library, #function);
    KFP_DRIVER(KFP_FIND)
    KFP_LATER(KFP_FIND_LATER)
#if CUDA_VERSION >= 12000
    if (!kfp_driver.of_cuTensorMapEncodeTiled)
        kfp_driver.of_cuTensorMapEncodeTiled = [](auto...) { return CUDA_ERROR_NOT_SUPPORTED; };
#endif
    return (int)kfp_driver.of_cuInit(0);
}

/* 10 * major + minor of a device; negative: an error of the driver. */
KFP_EXPORT int kfp_architecture(int device)
{
    CUdevice number = 0;
    int major = 0, minor = 0;
    CUresult status = kfp_driver.of_cuDeviceGet(&number, device);
    if (status == CUDA_SUCCESS)
        status = kfp_driver.of_cuDeviceGetAttribute(
            &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, number);
    if (status == CUDA_SUCCESS)
        status = kfp_driver.of_cuDeviceGetAttribute(
            &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, number);
    return status == CUDA_SUCCESS ? 10 * major + minor : -(int)status;
}

/* Whether the stream is being captured into a graph, where nothing can be loaded. */
KFP_EXPORT int kfp_capturing(void *stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return kfp_driver.of_cuStreamIsCapturing((CUstream)stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Calls a function with a device's primary context. */
KFP_EXPORT int kfp_run_on(int device, int id, KFP_PARAMETERS)
{
    const kfp_context context(device);
    if (context.status != CUDA_SUCCESS) return -1;
    now.function = kfp_table[id].name, now.device = device, now.stream = q;
    now.reason.clear();
    return kfp_run(id, KFP_ARGUMENTS);
}
}
