// SPDX-License-Identifier: Apache-2.0
// nvcc -O3 -arch=native -isystem ~/.local/include 00_cuda.cu -o 00_cuda
#include <kf/ops/bias.cuh>
#include <cstdio>

int main()
{
    const int64_t rows = 8192, cols = 4096;
    float *x, *bias, first; // device memory; kf itself never allocates
    if (cudaMalloc(&x, rows * cols * sizeof *x) || cudaMalloc(&bias, cols * sizeof *bias))
        return std::puts("no GPU"), 77;
    if (cudaMemset(x, 0, rows * cols * sizeof *x) || cudaMemset(bias, 0, cols * sizeof *bias))
        return 1;
    const float one = 1;
    if (cudaMemcpy(bias, &one, sizeof one, cudaMemcpyHostToDevice)) return 1;
    /* [readme] */
    const cudaStream_t stream = 0; // x = gelu(x + bias), in place: one pass over memory
    if (kf_bias_gelu_f32(x, bias, x, rows, cols, stream) != KF_SUCCESS)
        return std::puts(kf_get_last_error_detail()), 1;
    /* [readme] */
    if (cudaMemcpy(&first, x, sizeof first, cudaMemcpyDeviceToHost)) return 1; // waits
    std::printf("gelu(0 + 1) = %.4f\n", (double)first);
}
