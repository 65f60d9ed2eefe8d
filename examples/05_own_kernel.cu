// SPDX-License-Identifier: Apache-2.0
// nvcc -O3 -arch=native -isystem ~/.local/include 05_own_kernel.cu -o 05_own_kernel
// Your own kernel, fused by hand from kf's device functions (docs/device.md): sum = residual +
// dropout(x), and out = weight * sum / rms(sum) per row. One CTA per row, one pass over memory.
// Exits with 77 without a GPU.
#include <kf/core/device.cuh>
#include <kf/ops/act_dropout.h> // one op: nvcc takes 8.5 s for all of <kf/kf.h>

#include <cmath>
#include <cstdio>
#include <vector>

enum { ROWS = 64, COLS = 1000, VEC = 8, THREADS = 128 }; // a row fits in the registers of a CTA

__global__ void dropout_add_rms_norm(const kf_bf16 *x, const kf_bf16 *residual, const float *weight,
                                     kf_bf16 *sum, float *out, kf_rng_t rng)
{
    const int64_t row = blockIdx.x * (int64_t)COLS, col = threadIdx.x * VEC, left = COLS - col;
    float v[VEC], r[VEC], w[VEC], squares = 0;
    kf_load<VEC>(v, x + row + col, left); // 0 beyond the end of the row
    kf_load<VEC>(r, residual + row + col, left);
    kf_dropout<VEC>(v, rng, row + col); // the mask depends on the element index
    for (int e = 0; e < VEC; ++e) {
        v[e] += r[e];
        squares += v[e] * v[e];
    }
    kf_store<VEC>(sum + row + col, v, left);                          // rounded once
    const float scale = rsqrtf(kf_block_sum(squares) / COLS + 1e-6f); // all threads must call
    kf_load<VEC>(w, weight + col, left);
    for (int e = 0; e < VEC; ++e) v[e] *= w[e] * scale;
    kf_store<VEC>(out + row + col, v, left);
}

int main()
{
    const int n = ROWS * COLS;
    std::vector<kf_bf16> x(n), residual(n), sum(n);
    std::vector<float> weight(COLS), out(n), ones(n, 1.0f), mask(n);
    for (int i = 0; i < n; ++i) x[i] = __float2bfloat16((float)(i % 97 - 48) / 16);
    for (int i = 0; i < n; ++i) residual[i] = __float2bfloat16((float)(i % 89 - 44) / 32);
    for (int c = 0; c < COLS; ++c) weight[c] = 1 + (float)(c % 7) / 8;

    kf_rng_t rng;
    if (kf_make_rng(&rng, 0.25, 42, 7) != KF_SUCCESS)
        return std::puts(kf_get_last_error_detail()), 1;
    char *device;
    if (cudaMalloc(&device, (size_t)n * 10 + COLS * 4) != cudaSuccess)
        return std::puts("no GPU"), 77;
    float *d_out = (float *)device, *d_weight = d_out + n;
    kf_bf16 *d_x = (kf_bf16 *)(d_weight + COLS), *d_residual = d_x + n, *d_sum = d_residual + n;
    if (cudaMemcpy(d_x, x.data(), n * sizeof x[0], cudaMemcpyHostToDevice) || // 0: cudaSuccess
        cudaMemcpy(d_residual, residual.data(), n * sizeof x[0], cudaMemcpyHostToDevice) ||
        cudaMemcpy(d_weight, weight.data(), COLS * sizeof weight[0], cudaMemcpyHostToDevice))
        return 1;
    dropout_add_rms_norm<<<ROWS, THREADS>>>(d_x, d_residual, d_weight, d_sum, d_out, rng);
    if (cudaGetLastError() ||
        cudaMemcpy(sum.data(), d_sum, n * sizeof sum[0], cudaMemcpyDeviceToHost) ||
        cudaMemcpy(out.data(), d_out, n * sizeof out[0], cudaMemcpyDeviceToHost) ||
        cudaFree(device))
        return 1;

    // The same in double, with the mask of the C launcher: dropout depends only on seed, offset and
    // element index.
    if (kf_cpu_dropout_f32(ones.data(), mask.data(), n, 0.25f, 42, 7) != KF_SUCCESS) return 1;
    for (int r = 0; r < ROWS; ++r) {
        double t[COLS], squares = 0;
        for (int c = 0; c < COLS; ++c) {
            const int i = r * COLS + c;
            t[c] = (double)__bfloat162float(residual[i]) +
                   (mask[i] != 0 ? (double)__bfloat162float(x[i]) / 0.75 : 0.0);
            squares += t[c] * t[c];
        }
        for (int c = 0; c < COLS; ++c) {
            const double want = t[c] * weight[c] / std::sqrt(squares / COLS + 1e-6);
            const bool close = std::fabs(out[r * COLS + c] - want) <= 1e-5 * std::fabs(want) + 1e-6;
            const bool near =
                std::fabs(__bfloat162float(sum[r * COLS + c]) - t[c]) <= std::fabs(t[c]) / 256;
            if (!close || !near)
                return std::printf("row %d, column %d: %g, expected %g\n", r, c,
                                   (double)out[r * COLS + c], want),
                       1;
        }
    }
    std::printf("%d rows agree with float64\n", ROWS);
    return 0;
}
