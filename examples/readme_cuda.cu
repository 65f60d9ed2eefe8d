// SPDX-License-Identifier: Apache-2.0
#include <kf/kf.cuh>
#include <cstdio>

int main()
{
    kf_bf16 *x, *bias; // in device memory; kf itself never allocates
    if (cudaMalloc(&x, 8192 * 4096 * sizeof *x) || cudaMalloc(&bias, 4096 * sizeof *bias)) return 77;
    if (cudaMemset(x, 0, 8192 * 4096 * sizeof *x) || cudaMemset(bias, 0, 4096 * sizeof *bias)) return 1;
    const cudaStream_t stream = 0; // x = gelu(x + bias), in place: one pass over memory
    if (kf_bias_gelu_bf16(x, bias, x, 8192, 4096, stream) != KF_SUCCESS) return std::puts(kf_get_last_error_detail()), 1;
    return cudaStreamSynchronize(stream);
}
