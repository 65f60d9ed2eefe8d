// SPDX-License-Identifier: Apache-2.0
// Kernels with one fault for each tool of compute-sanitizer. A tool that reports nothing here does
// not work.
#include <cuda_runtime.h>
#include <string.h>

__global__ void behind_the_end(int *out, int n) { out[threadIdx.x + n - 31] = 1; }

__global__ void race(int *out)
{
    __shared__ int shared[64];
    shared[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = shared[threadIdx.x ^ 32]; // written by the other warp, without a barrier
}

__global__ void uninitialised(int *out, const int *in) { out[threadIdx.x] = in[threadIdx.x] + 1; }

__global__ void wrong_mask(int *out)
{
    __shared__ int shared[32];
    if (threadIdx.x <= 16) {
        shared[threadIdx.x] = (int)threadIdx.x;
        __syncwarp(0x0000ffffu); // thread 16 is not in the mask
        out[threadIdx.x] = shared[0];
    }
}
__global__ void not_all(int *out, int n)
{
    for (int i = (int)threadIdx.x; i < n;
         /* Only one warp reaches the barrier of the last iteration. */
         i += (int)blockDim.x) {
        out[threadIdx.x] += i;
        __syncthreads();
    }
}

int main(int count, char **words)
{
    const char *tool = count > 1 ? words[1] : "";
    int *out = 0, *in = 0;
    if (cudaMalloc((void **)&out, 256) != cudaSuccess ||
        cudaMalloc((void **)&in, 256) != cudaSuccess)
        return 2;
    if (cudaMemset(out, 0, 256) != cudaSuccess) return 2;
    if (!strcmp(tool, "memcheck")) behind_the_end<<<1, 32>>>(out, 64);
    if (!strcmp(tool, "racecheck")) race<<<1, 64>>>(out);
    if (!strcmp(tool, "initcheck")) uninitialised<<<1, 64>>>(out, in);
    if (!strcmp(tool, "synccheck")) {
        wrong_mask<<<1, 32>>>(out);
        if (cudaDeviceSynchronize() != cudaSuccess) return 3;
        not_all<<<1, 64>>>(out, 96);
    }
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 3;
}
