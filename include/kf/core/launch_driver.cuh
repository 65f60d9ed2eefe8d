// SPDX-License-Identifier: Apache-2.0
// kf/core/launch_driver.cuh: the CUDA calls of launch.cuh through the driver API, for files that
// nvcc does not compile. KF_LOAD_KERNEL loads the kernels.
#ifndef KF_CORE_LAUNCH_DRIVER_CUH
#define KF_CORE_LAUNCH_DRIVER_CUH

#include "kf/core/host.h"

#include "kf/core/launch_args.cuh"
#include "kf/core/result.h"

#ifdef KFI_DRIVER
// A kernel instance: its name, with the placeholders kfi_act and kfi_from_state, and their values.
struct kfi_instance {
    const char *text; // "kfk_bias_f32<kfi_act, 4, 2, KFI_ROWS>"
    int act, from_state;
};
KF_FN KFI_SMALL void kfi_write_instance(char *name, size_t size, const kfi_instance *kernel)
{
    const char *from = strchr(kernel->text, '<');
    size_t used = from ? (size_t)(from - kernel->text) : 0;
    snprintf(name, size, "%.*s", (int)used, kernel->text);
    while (from && *from && used < size) {
        const size_t gap = strspn(from, "<, >"), word = strcspn(from + gap, "<, >");
        const char *const is = from + gap;
        const bool act = word == 7 && strncmp(is, "kfi_act", word) == 0,
                   state = word == 14 && strncmp(is, "kfi_from_state", word) == 0;
        if (act || state)
            snprintf(name + used, size - used, "%.*s%d", (int)gap, from,
                     act ? kernel->act : kernel->from_state);
        else
            snprintf(name + used, size - used, "%.*s", (int)(gap + word), from);
        used += strlen(name + used);
        from = is + word;
    }
}

typedef CUresult kfi_status;
#define KFI_NO_ERROR CUDA_SUCCESS
KF_FN const char *kfi_status_text(kfi_status status)
{
    const char *text = nullptr;
    return KF_DRIVER_CALL(cuGetErrorString)(status, &text) == CUDA_SUCCESS && text ? text
                                                                                   : "unknown";
}
// True if there is no code for this device.
KF_FN bool kfi_no_image(kfi_status status)
{
    return status == CUDA_ERROR_NO_BINARY_FOR_GPU || status == CUDA_ERROR_INVALID_PTX ||
           status == CUDA_ERROR_UNSUPPORTED_PTX_VERSION || status == CUDA_ERROR_NOT_FOUND ||
           status == CUDA_ERROR_INVALID_IMAGE;
}

// Compute capability of the current device times 100 (900 for 9.0); 0 without a device, which the
// launch then reports. A schedule may rely on the major number only.
KF_FN KFI_SMALL int kfi_architecture()
{
    CUdevice device = 0;
    int major = 0, minor = 0;
    if (KF_DRIVER_CALL(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
        KF_DRIVER_CALL(cuDeviceGetAttribute)(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                             device) != CUDA_SUCCESS ||
        KF_DRIVER_CALL(cuDeviceGetAttribute)(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                             device) != CUDA_SUCCESS)
        return 0;
    return 100 * major + 10 * minor;
}
#define KFI_ARCHITECTURES kfi_architecture() // a loader compiles kernels for the device (kfi_load)

// False if the stream may not be queried, or the toolkit cannot.
#if CUDA_VERSION >= 12080
KF_FN bool kfi_count_devices(int *devices)
{
    return KF_DRIVER_CALL(cuDeviceGetCount)(devices) == CUDA_SUCCESS;
}
KF_FN KFI_SMALL bool kfi_devices_of(cudaStream_t stream, int *current, int *own)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    if (KF_DRIVER_CALL(cuStreamIsCapturing)(stream, &capture) != CUDA_SUCCESS ||
        capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return false;
    return KF_DRIVER_CALL(cuCtxGetDevice)(current) == CUDA_SUCCESS &&
           KF_DRIVER_CALL(cuStreamGetDevice)(stream, own) == CUDA_SUCCESS;
}
#else
KF_FN bool kfi_count_devices(int *) { return false; }
KF_FN bool kfi_devices_of(cudaStream_t, int *, int *) { return false; }
#endif

// Loads a kernel by name. Refuses one compiled for an older generation than the device: it would
// not wait for the previous kernel, and does not support clusters.
KF_FN KFI_SMALL kf_result_t kfi_load(const kfi_name *name, const char *kernel, CUfunction *function)
{
    const CUresult status = KF_LOAD_KERNEL(kernel, function);
    if (status != CUDA_SUCCESS)
        return kfi_fail(kfi_no_image(status) ? KF_ERROR_NO_KERNEL_IMAGE : KF_ERROR_CUDA, name,
                        "kernel", "%s was not loaded: CUDA error %d (%s)", kernel, (int)status,
                        kfi_status_text(status));
    int version = 0;
    const int device = kfi_architecture();
    if (KF_DRIVER_CALL(cuFuncGetAttribute)(&version, CU_FUNC_ATTRIBUTE_PTX_VERSION, *function) ==
            CUDA_SUCCESS &&
        version / 10 != device / 100)
        return kfi_fail(KF_ERROR_NO_KERNEL_IMAGE, name, "kernel",
                        "%s was compiled for %d.%d, expected the device's %d.%d", kernel,
                        version / 10, version % 10, device / 100, device / 10 % 10);
    return KF_SUCCESS;
}

// Returns the maximum threads per block of this kernel; 0 if unknown.
KF_FN KFI_SMALL int kfi_most_threads(const void *kernel)
{
    char text[256];
    kfi_write_instance(text, sizeof text, (const kfi_instance *)kernel);
    CUfunction function = nullptr;
    int most = 0;
    if (KF_LOAD_KERNEL(text, &function) != CUDA_SUCCESS ||
        KF_DRIVER_CALL(cuFuncGetAttribute)(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                           function) != CUDA_SUCCESS)
        return 0;
    return most;
}

KF_FN KFI_SMALL kf_result_t kfi_enqueue(const kfi_name *name, const void *kernel, const kfi_call &c,
                                        kfi_status *status)
{
    char text[256];
    kfi_write_instance(text, sizeof text, (const kfi_instance *)kernel);
    CUfunction function = nullptr;
    const kf_result_t result = kfi_load(name, text, &function);
    if (result != KF_SUCCESS) return result;
    CUlaunchAttribute attributes[2] = {};
    CUlaunchConfig config = {};
    config.attrs = attributes;
    config.gridDimX = c.blocks.x, config.gridDimY = c.blocks.y, config.gridDimZ = c.blocks.z;
    config.blockDimX = c.threads, config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = c.shared;
    config.hStream = c.stream;
    if (c.early) {
        attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[config.numAttrs++].value.programmaticStreamSerializationAllowed = 1;
    }
    if (c.cluster > 1) {
        attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[config.numAttrs].value.clusterDim.y =
            attributes[config.numAttrs].value.clusterDim.z = 1;
        attributes[config.numAttrs++].value.clusterDim.x = c.cluster;
    }
    if (c.shared > 48 << 10)
        *status = KF_DRIVER_CALL(cuFuncSetAttribute)(
            function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)c.most);
#ifdef KF_ON_LAUNCH
    char launcher[128];
    kfi_write_name(launcher, sizeof launcher, name);
    KF_ON_LAUNCH(launcher, (const void *)text, &config);
#endif
    if (*status == CUDA_SUCCESS)
        *status = KF_DRIVER_CALL(cuLaunchKernelEx)(&config, function, c.args, nullptr);
    return KF_SUCCESS;
}
#endif

#endif
