// SPDX-License-Identifier: Apache-2.0
// The demo on a GPU. To compile it by hand:
//   nvcc -O3 -arch=native -Iinclude -Ibuild/include examples/demo_cuda.cu
// Exits with 77 without a GPU.
#include <kf/kf.cuh>

#include <cstdio>
#include <cstdlib>

// Larger than the L2 cache of any GPU, so that the times measure memory.
#define ROWS 16384
#define COLS 4096
#define CALL(name, dtype, ...) kf_##name##_##dtype(__VA_ARGS__, (cudaStream_t)0)
#define WORKSPACE_BYTES(name, dtype, ...) kf_##name##_##dtype##_workspace_bytes(__VA_ARGS__)

static cudaEvent_t before, after;

static void check(cudaError_t status)
{
    if (status == cudaSuccess) return;
    fprintf(stderr, "demo: %s\n", cudaGetErrorString(status));
    exit(1);
}

static void timer_start(void) { check(cudaEventRecord(before, 0)); }

static double timer_stop(void)
{
    float ms = 0;
    check(cudaEventRecord(after, 0));
    check(cudaEventSynchronize(after));
    check(cudaEventElapsedTime(&ms, before, after));
    return ms;
}

static void *device_tensor(void *, size_t bytes)
{
    void *device = NULL;
    if (bytes) check(cudaMalloc(&device, bytes));
    return device;
}

static void device_write(void *device, const void *host, size_t bytes)
{
    check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}
static void device_read(void *host, const void *device, size_t bytes)
{
    check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}
static void device_free(void *device) { check(cudaFree(device)); }

static int device_open(void)
{
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess || count == 0) {
        printf("No GPU answers (%s): the demo runs on the CPU.\n",
               status != cudaSuccess ? cudaGetErrorString(status) : "no device");
        return 0;
    }
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0));
    check(cudaEventCreate(&before));
    check(cudaEventCreate(&after));
    printf("%s, sm_%d%d", properties.name, properties.major, properties.minor);
    return 1;
}

#include "demo.h"
