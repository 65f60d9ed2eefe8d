/* SPDX-License-Identifier: Apache-2.0 */
/* Records launches with kernel and arguments, and runs nothing. Launchers call the CUDA runtime or,
   with KFT_DRIVER, the driver, which loads kernels by name. recorded.py includes it before a
   launcher's header. The number and sizes of a kernel's parameters are known with the runtime only,
   where the kernel is declared; a reader of the driver's record sets them before the launch. */
#ifndef KFT_RECORDED_LAUNCHES_H
#define KFT_RECORDED_LAUNCHES_H

#include <cuda.h>
#include <stdio.h>
#include <string.h>

#define KFT_PARAMETERS 24 /* maximum per kernel */

struct kft_launch {
    char kernel[256];
    int act, from_state; /* values of these parameters in `kernel`; the driver's name has numbers */
    unsigned grid[3], block[3], shared, cluster, early;
    unsigned raised; /* limit of shared memory that was set before this launch */
    const void *stream;
    int parameters, sizes[KFT_PARAMETERS];
    unsigned char bytes[KFT_PARAMETERS][640];
};
struct kft_record {
    int count;
    kft_launch of[24];
    unsigned raised;
    /* The driver's answers. */
    int architecture, image; /* the device's; its kernels' */
    int loaded, launched;    /* a CUresult each */
    int threads;             /* maximum per block; 0: no limit */
    int current, own, capturing;
};
extern "C" {
__attribute__((weak)) kft_record kft_log;
}

static inline kft_launch *kft_begin(void)
{
    static kft_launch beyond;
    kft_launch *const found = kft_log.count < 24 ? kft_log.of + kft_log.count : &beyond;
    ++kft_log.count;
    found->raised = kft_log.raised;
    kft_log.raised = 0;
    return found;
}
static inline void kft_keep(kft_launch *to, const unsigned *grid, const unsigned *block,
                            unsigned shared, const void *stream, void **args)
{
    memcpy(to->grid, grid, sizeof to->grid);
    memcpy(to->block, block, sizeof to->block);
    to->shared = shared;
    to->stream = stream;
    for (int i = 0; i < to->parameters; ++i) memcpy(to->bytes[i], args[i], (size_t)to->sizes[i]);
}

/* cuTensorMapEncodeTiled, which stores its arguments in the map's 128 bytes. */
static inline int kft_encode(void *map, int type, unsigned rank, void *p,
                             const unsigned long long *sizes, const unsigned long long *strides,
                             const unsigned *box, const unsigned *steps, int interleave,
                             int swizzle, int promotion, int fill)
{
    unsigned long long words[16] = {
        (unsigned long long)type | (unsigned long long)rank << 8 |
            (unsigned long long)interleave << 16 | (unsigned long long)swizzle << 24 |
            (unsigned long long)promotion << 32 | (unsigned long long)fill << 40,
        (unsigned long long)p};
    for (unsigned i = 0; i < rank && i < 3; ++i) {
        words[2 + i] = sizes[i];
        words[5 + i] = i + 1 < rank ? strides[i] : 0;
        words[8 + i] = box[i] | (unsigned long long)steps[i] << 32;
    }
    memcpy(map, words, sizeof words);
    return 0;
}

#ifdef KFT_DRIVER
static char kft_names[64][256]; /* a kernel is the address of its name */
static inline CUresult kft_load(const char *name, CUfunction *function)
{
    if (kft_log.loaded) return (CUresult)kft_log.loaded;
    int i = 0;
    while (i < 63 && kft_names[i][0] && strcmp(kft_names[i], name)) ++i;
    snprintf(kft_names[i], sizeof kft_names[i], "%s", name);
    *function = (CUfunction)kft_names[i];
    return CUDA_SUCCESS;
}
#define KF_LOAD_KERNEL(name, function) kft_load(name, function)

extern "C" {
__attribute__((weak)) CUresult cuGetErrorString(CUresult, const char **text)
{
    return *text = "as the test asked for", CUDA_SUCCESS;
}
__attribute__((weak)) CUresult cuCtxGetDevice(CUdevice *device)
{
    return *device = kft_log.current, CUDA_SUCCESS;
}
__attribute__((weak)) CUresult cuDeviceGetCount(int *count) { return *count = 2, CUDA_SUCCESS; }
__attribute__((weak)) CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute what, CUdevice)
{
    if (what == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        *value = kft_log.architecture / 100;
    else if (what == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        *value = kft_log.architecture / 10 % 10;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
__attribute__((weak)) CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus *status)
{
    return *status =
               kft_log.capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE,
           CUDA_SUCCESS;
}
__attribute__((weak)) CUresult cuStreamGetDevice(CUstream, CUdevice *device)
{
    /* This call invalidates a capture. */
    kft_log.launched = kft_log.capturing ? 901 : kft_log.launched;
    return *device = kft_log.own, CUDA_SUCCESS;
}
__attribute__((weak)) CUresult cuFuncGetAttribute(int *value, CUfunction_attribute what, CUfunction)
{
    if (what == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        return *value = kft_log.threads ? kft_log.threads : 1024, CUDA_SUCCESS;
    return *value = kft_log.image / 10,
           what == CU_FUNC_ATTRIBUTE_PTX_VERSION ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
#if CUDA_VERSION >= 12000
__attribute__((weak))
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *p, const cuuint64_t *sizes, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    return (CUresult)kft_encode(map, (int)type, rank, p,
                                (const unsigned long long *)(const void *)sizes,
                                (const unsigned long long *)(const void *)strides, box, steps,
                                (int)interleave, (int)swizzle, (int)promotion, (int)fill);
}
#endif
__attribute__((weak)) CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute what, int value)
{
    kft_log.raised = (unsigned)value;
    return what == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_INVALID_VALUE;
}
__attribute__((weak)) CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function,
                                                void **args, void **)
{
    kft_launch *const to = kft_begin();
    const unsigned grid[] = {c->gridDimX, c->gridDimY, c->gridDimZ},
                   block[] = {c->blockDimX, c->blockDimY, c->blockDimZ};
    memcpy(to->kernel, (const char *)function, sizeof to->kernel);
    to->cluster = to->early = 0;
    for (unsigned i = 0; i < c->numAttrs; ++i) {
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            to->cluster = c->attrs[i].value.clusterDim.x;
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) to->early = 1;
    }
    kft_keep(to, grid, block, c->sharedMemBytes, (const void *)c->hStream, args);
    return (CUresult)kft_log.launched;
}
}

#else
#include <cuda_runtime.h>
#include <kf/core/config.h>

struct kft_kernel {
    const char *text;
    int act, from_state, parameters, sizes[KFT_PARAMETERS];
};
template <class... P>
static kft_kernel kft_kernel_of(void (*)(P...), const char *text, int act, int from_state)
{
    return {text, act, from_state, (int)sizeof...(P), {(int)sizeof(P)...}};
}
#undef KFI_ADDRESS
#undef KFI_STATE_ADDRESS
#define KFI_ADDRESS(...)                                                                           \
    [] {                                                                                           \
        static const kft_kernel found = kft_kernel_of(__VA_ARGS__, #__VA_ARGS__, kfi_act, 0);      \
        return (const void *)&found;                                                               \
    }()
#define KFI_STATE_ADDRESS(...)                                                                     \
    [] {                                                                                           \
        static const kft_kernel found =                                                            \
            kft_kernel_of(__VA_ARGS__, #__VA_ARGS__, kfi_act, kfi_from_state);                     \
        return (const void *)&found;                                                               \
    }()

extern "C" {
__attribute__((weak)) const char *cudaGetErrorString(cudaError_t)
{
    return "as the test asked for";
}
__attribute__((weak)) cudaError_t cudaGetDeviceCount(int *count) { return *count = 1, cudaSuccess; }
/* With one device launchers do not call the following. */
__attribute__((weak)) cudaError_t cudaGetDevice(int *) { return cudaErrorUnknown; }
__attribute__((weak)) cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *)
{
    return cudaErrorUnknown;
}
__attribute__((weak)) cudaError_t cudaStreamGetDevice(cudaStream_t, int *)
{
    return cudaErrorUnknown;
}
__attribute__((weak)) cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found,
                                                        const void *)
{
    return found->maxThreadsPerBlock = 1024, cudaSuccess;
}
#if CUDART_VERSION >= 12050
__attribute__((weak))
cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **entry, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
{
    *entry = (void *)kft_encode;
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
#elif CUDART_VERSION >= 12000
__attribute__((weak)) cudaError_t cudaGetDriverEntryPoint(const char *, void **entry,
                                                          unsigned long long,
                                                          cudaDriverEntryPointQueryResult *found)
{
    *entry = (void *)kft_encode;
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
#endif
__attribute__((weak)) cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute what,
                                                       int value)
{
    kft_log.raised = (unsigned)value;
    return what == cudaFuncAttributeMaxDynamicSharedMemorySize ? cudaSuccess
                                                               : cudaErrorInvalidValue;
}
__attribute__((weak)) cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c,
                                                      const void *address, void **args)
{
    kft_launch *const to = kft_begin();
    const kft_kernel *const kernel = (const kft_kernel *)address;
    const unsigned grid[] = {c->gridDim.x, c->gridDim.y, c->gridDim.z},
                   block[] = {c->blockDim.x, c->blockDim.y, c->blockDim.z};
    snprintf(to->kernel, sizeof to->kernel, "%s", kernel->text);
    to->act = kernel->act;
    to->from_state = kernel->from_state;
    to->parameters = kernel->parameters;
    memcpy(to->sizes, kernel->sizes, sizeof to->sizes);
    to->cluster = to->early = 0;
    for (unsigned i = 0; i < c->numAttrs; ++i) {
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            to->cluster = c->attrs[i].val.clusterDim.x;
        if (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization) to->early = 1;
    }
    kft_keep(to, grid, block, (unsigned)c->dynamicSmemBytes, (const void *)c->stream, args);
    return cudaSuccess;
}
}
#endif

#endif
