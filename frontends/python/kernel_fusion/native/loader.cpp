/* SPDX-License-Identifier: Apache-2.0 */
/* Loads kernels through the CUDA driver. Each launch requests its kernel by name: a kernel already
   loaded into the current context is looked up, another one is made once by the caller's callback
   (kfp_set_maker). */
#include "loader.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

kfp_driver_functions kfp_driver;

namespace
{
/* Makes a kernel of the function being launched: its image and lowered name. 0 means success. */
typedef int (*maker)(const char *function, int device, void *stream, const char *kernel,
                     const void **cubin, const char **lowered);
typedef std::pair<CUcontext, std::string> kernel_key;

maker make;
std::mutex lock;
std::map<kernel_key, CUfunction> loaded;
std::map<int, CUcontext> primary;
thread_local struct {
    const char *function;
    int device;
    void *stream;
    std::string reason; /* why the maker failed */
    bool only_load;     /* launch nothing */
} now;
decltype(&cuLaunchKernelEx) launch_kernel;

CUresult launch(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    return now.only_load ? CUDA_SUCCESS : launch_kernel(config, function, parameters, extra);
}

CUresult load(const char *name, CUfunction *function)
{
    const void *cubin = nullptr;
    const char *lowered = nullptr;
    if (!make || make(now.function, now.device, now.stream, name, &cubin, &lowered))
        return CUDA_ERROR_NOT_FOUND;
    CUmodule module = nullptr; /* lives as long as its context */
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
    const kernel_key key(context, name);
    {
        const std::lock_guard<std::mutex> guard(lock);
        const std::map<kernel_key, CUfunction>::const_iterator found = loaded.find(key);
        if (found != loaded.end()) return *function = found->second, CUDA_SUCCESS;
    }
    /* Outside of the lock: the maker may wait for another thread that launches. */
    status = load(name, function);
    if (status != CUDA_SUCCESS) return status;
    const std::lock_guard<std::mutex> guard(lock);
    *function = loaded.emplace(key, *function).first->second;
    return CUDA_SUCCESS;
}

extern "C" {
int kfp_run(int id, KFP_PARAMETERS);

extern const kfp_entry kfp_table[];

KFP_EXPORT void kfp_set_maker(maker by) { make = by; }

/* The maker stores why it failed; the launcher's caller reads it. */
KFP_EXPORT void kfp_give_reason(const char *text) { now.reason = text; }
KFP_EXPORT const char *kfp_reason(void) { return now.reason.c_str(); }

/* Opens the driver, libcuda.so.1 by default. Returns 0, the driver's error code, or -1 without a
 * driver. */
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
    launch_kernel = kfp_driver.of_cuLaunchKernelEx;
    kfp_driver.of_cuLaunchKernelEx = launch;
#if CUDA_VERSION >= 12000
    if (!kfp_driver.of_cuTensorMapEncodeTiled)
        kfp_driver.of_cuTensorMapEncodeTiled = [](auto...) { return CUDA_ERROR_NOT_SUPPORTED; };
#endif
    return (int)kfp_driver.of_cuInit(0);
}

/* Returns 10 * major + minor of a device, or the driver's negated error code. */
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

/* True during stream capture, when no kernel can be loaded. */
KFP_EXPORT int kfp_capturing(void *stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return kfp_driver.of_cuStreamIsCapturing((CUstream)stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Calls a function in a device's primary context. Returns -1 without a context. */
KFP_EXPORT int kfp_run_on(int device, int id, KFP_PARAMETERS)
{
    const kfp_context context(device);
    if (context.status != CUDA_SUCCESS) return -1;
    now.function = kfp_table[id].name, now.device = device, now.stream = q;
    now.reason.clear();
    return kfp_run(id, KFP_ARGUMENTS);
}

/* Loads the kernels of a call, and launches none: a later call may then be captured. */
KFP_EXPORT int kfp_load_on(int device, int id, KFP_PARAMETERS)
{
    now.only_load = true;
    const int code = kfp_run_on(device, id, KFP_ARGUMENTS);
    now.only_load = false;
    return code;
}
}
