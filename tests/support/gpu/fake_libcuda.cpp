// SPDX-License-Identifier: Apache-2.0
// A CUDA driver with one device of compute capability 9.0 and host memory. A module has the kernels
// whose names its cubin contains. A launch prints a line to stderr and computes nothing.
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

struct module {
    std::string cubin;
};

extern "C" {
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char **text)
{
    return *text = "as the test asked for", CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice *device, int) { return *device = 0, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute what, CUdevice)
{
    *value = what == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice)
{
    return *context = (CUcontext)1, CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = (CUcontext)1, CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { return *device = 0, CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus *) { return CUDA_ERROR_UNKNOWN; }
CUresult cuStreamGetDevice(CUstream, CUdevice *) { return CUDA_ERROR_UNKNOWN; }
CUresult cuMemAlloc(CUdeviceptr *memory, size_t size)
{
    *memory = (CUdeviceptr)std::aligned_alloc(256, (size + 255) / 256 * 256);
    std::memset((void *)*memory, 0x7f, size); // large numbers, unlike any result
    return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr *memory, size_t size, CUstream)
{
    return size >> 40 ? CUDA_ERROR_OUT_OF_MEMORY : cuMemAlloc(memory, size);
}
CUresult cuMemFreeAsync(CUdeviceptr memory, CUstream stream)
{
    return std::fprintf(stderr, "free on %p\n", (void *)stream), std::free((void *)memory),
           CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream)
{
    return std::memcpy((void *)to, from, size), CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream)
{
    return std::fprintf(stderr, "wait for %p\n", (void *)stream), CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() { return std::fprintf(stderr, "wait for all\n"), CUDA_SUCCESS; }
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute, CUdeviceptr)
{
    return *(int *)value = 0, CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr memory)
{
    return std::fprintf(stderr, "free at once\n"), std::free((void *)memory), CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size)
{
    return std::memcpy((void *)to, from, size), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size)
{
    return std::memcpy(to, (const void *)from, size), CUDA_SUCCESS;
}

// An ELF file ends with its section headers.
CUresult cuModuleLoadData(CUmodule *loaded, const void *image)
{
    const char *elf = (const char *)image;
    unsigned long long sections;
    unsigned short size, count;
    std::memcpy(&sections, elf + 40, 8);
    std::memcpy(&size, elf + 58, 2);
    std::memcpy(&count, elf + 60, 2);
    *loaded = (CUmodule) new module{std::string(elf, sections + (size_t)size * count)};
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule loaded, const char *name)
{
    const std::string section = std::string(".text.") + name;
    if (((module *)loaded)->cubin.find(section.c_str(), 0, section.size() + 1) == std::string::npos)
        return CUDA_ERROR_NOT_FOUND;
    *function = (CUfunction) new std::string(name);
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute, CUfunction)
{
    return *value = 90, CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **, void **)
{
    std::fprintf(stderr, "%s %u %u %u", ((std::string *)function)->c_str(), c->gridDimX,
                 c->gridDimY, c->blockDimX);
    if (c->hStream) std::fprintf(stderr, " on %p", (void *)c->hStream);
    std::fprintf(stderr, "\n");
    return CUDA_SUCCESS;
}
}
