// SPDX-License-Identifier: Apache-2.0
// nvcc -O3 -arch=native -isystem ~/.local/include 03_device_functions.cu -o 03_device_functions
// Activations inside your own kernel: each is a device function, and so is its gradient. Exits with
// 77 without a GPU.
#include <kf/ops/activations.cuh>

#include <cstdio>

__global__ void blend(const float *x, float *y, float *slope, float t, int64_t n)
{
    const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = t * kf_gelu(x[i]) + (1 - t) * kf_silu(x[i]);
    slope[i] = kf_gelu_bwd(x[i], t) + kf_silu_bwd(x[i], 1 - t); // kf_<name>_bwd(x, dy)
}

int main()
{
    const int64_t n = 1001;
    const float h = 0.0078125f;
    float *data;
    if (cudaMallocManaged(&data, 3 * n * sizeof *data) != cudaSuccess)
        return std::puts("no GPU"), 77;
    float *x = data, *y = data + n, *slope = data + 2 * n;
    for (int64_t i = 0; i < n; ++i) x[i] = h * (float)(i - 500);
    blend<<<(unsigned)((n + 255) / 256), 256>>>(x, y, slope, 0.25f, n);
    if (cudaGetLastError() != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess)
        return 1; // errors of the launch and of the kernel
    for (int64_t i = 1; i + 1 < n; ++i) {
        const float difference = (y[i + 1] - y[i - 1]) / (2 * h);
        if (!(difference - slope[i] < 1e-3f && slope[i] - difference < 1e-3f)) return 1;
    }
    std::printf("the gradients are the slopes\n");
    return 0;
}
