/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu.cpp: the CUDA runtime calls that launchers make, and the test controls of emu.h. */
#ifndef KF_EMU_RUNTIME_H
#define KF_EMU_RUNTIME_H

#include "emu_run.h"

/* Hash table of kernel entries by function address. */
struct entry {
    const void *function;
    kf_emu_call call;
    const char *name;
    bool offered, launched;
    size_t dynamic_bytes; /* limit of dynamic shared memory per launch */
    entry *next;
};
static entry *entries[1 << 14];

const void *kf_emu_enter(const void *function, kf_emu_call call, const char *name)
{
    pthread_mutex_lock(&lock);
    entry **list = &entries[((uintptr_t)function >> 4) % (sizeof entries / sizeof *entries)];
    entry *e = *list;
    while (e && e->function != function) e = e->next;
    if (!e) {
        e = (entry *)calloc(1, sizeof *e);
        *e = entry{function, call, name, false, false, DEFAULT_DYNAMIC, *list};
        *list = e;
    }
    e->offered = true;
    pthread_mutex_unlock(&lock);
    return e;
}

static entry *find_entry(const void *p)
{
    for (entry *list : entries)
        for (entry *e = list; e; e = e->next)
            if (e == p) return e;
    return nullptr;
}

/* Reads the cluster size from the launch attributes, 1 if there is none. Error codes are an
   H100's. */
static cudaError_t cluster_of(const cudaLaunchConfig_t *config, unsigned *size)
{
    *size = 1;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        const auto &d = config->attrs[i].val.clusterDim;
        if (config->attrs[i].id != cudaLaunchAttributeClusterDimension ||
            (d.x == 0 && d.y == 0 && d.z == 0))
            continue;
        if (d.x == 0 || d.y == 0 || d.z == 0 || d.x > MAX_CLUSTER || config->gridDim.x % d.x != 0)
            return cudaErrorInvalidClusterSize;
        if (d.y != 1 || d.z != 1) return cudaErrorNotSupported; /* not emulated */
        *size = d.x;
    }
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args)
{
    const dim3 g = config->gridDim, b = config->blockDim;
    const unsigned long long threads = (unsigned long long)b.x * b.y * b.z;
    pthread_mutex_lock(&lock);
    cudaError_t result = (cudaError_t)kf_emu_failure;
    kf_emu_failure = 0;
    entry *const e = (entry *)kernel;
    if (result == cudaSuccess && !(e && find_entry(e))) result = cudaErrorInvalidDeviceFunction;
    if (result == cudaSuccess && (threads == 0 || threads > MAX_THREADS || b.z > 64 ||
                                  (unsigned long long)g.x * g.y * g.z == 0 || g.x > 0x7fffffff ||
                                  g.y > 65535 || g.z > 65535))
        result = cudaErrorInvalidConfiguration;
    if (result == cudaSuccess && config->dynamicSmemBytes > e->dynamic_bytes)
        result = cudaErrorInvalidValue;
    unsigned size = 1;
    if (result == cudaSuccess) result = cluster_of(config, &size);
#if defined(KF_EMU_TSAN) /* ThreadSanitizer has no room for more fibers */
    if (result == cudaSuccess && size * threads > 4096) result = cudaErrorNotSupported;
#endif
    if (result == cudaSuccess) {
        e->launched = true;
        ++kf_emu_launches;
        emu.function = e->function;
        emu.call = e->call;
        emu.name = e->name;
        emu.args = args;
        emu.count = (int)threads;
        emu.size = (int)size;
        emu.dynamic_bytes = config->dynamicSmemBytes;
        emu.failed = false;
        gridDim = g;
        blockDim = b;
        run_grid();
        if (emu.failed) {
            if (kf_emu_aborts) {
                fprintf(stderr, "kf_emu: %s", emu.report);
                abort();
            }
            free_waiting_threads();
            result = cudaErrorLaunchFailure;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Sets a kernel's limit of dynamic shared memory, at most 227 KiB as on an H100. */
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute what, int value)
{
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > MAX_DYNAMIC)
        return cudaErrorInvalidValue;
    pthread_mutex_lock(&lock);
    entry *const e = find_entry(kernel);
    if (e) e->dynamic_bytes = (size_t)value;
    pthread_mutex_unlock(&lock);
    return e ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = MAX_THREADS;
    return find_entry(kernel) ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

/* Finds the encoder of tensor maps alone. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned,
                                             unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    const bool known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    *function = known ? (void *)kf_emu_encode : nullptr;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidClusterSize: return "cluster misconfiguration";
    case cudaErrorInvalidDeviceFunction: return "invalid device function";
    case cudaErrorNoKernelImageForDevice:
        return "no kernel image is available for execution on the device";
    case cudaErrorLaunchFailure: return emu.report;
    default: return "an error";
    }
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, enum cudaStreamCaptureStatus *status)
{
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t, int *device) { return cudaGetDevice(device); }
cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

/* Describes a device of compute capability 7.5, for which kf's portable kernels are meant. */
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int)
{
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = kf_emu_sms; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = 7; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 5; return cudaSuccess;
    case cudaDevAttrWarpSize: *value = WARP; return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock: *value = MAX_THREADS; return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 1024; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = DEFAULT_DYNAMIC; return cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; return cudaSuccess;
    default: return cudaErrorInvalidValue;
    }
}

const char *kf_emu_report(void) { return emu.report; }

const char *kf_emu_missing(void)
{
    static char text[1 << 16];
    size_t used = 0;
    text[0] = 0;
    for (entry *list : entries)
        for (entry *e = list; e; e = e->next)
            if (e->offered && !e->launched && used + strlen(e->name) + 2 < sizeof text)
                used += (size_t)sprintf(text + used, "%s\n", e->name);
    return text;
}

void kf_emu_forget(void)
{
    for (entry *list : entries)
        for (entry *e = list; e; e = e->next) e->offered = e->launched = false;
}

#endif
