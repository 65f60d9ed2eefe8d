// SPDX-License-Identifier: Apache-2.0
/* g++ -std=c++17 -O2 -isystem ~/.local/include -isystem /usr/local/cuda/include \
 *     07_nvrtc.cpp -o 07_nvrtc -L/usr/local/cuda/lib64 -lnvrtc -lcuda
 * ./07_nvrtc -I$HOME/.local/include -I/usr/local/cuda/include */
// CUDA without nvcc: g++ compiles kf's launchers, NVRTC each kernel at its first use
// (docs/nvrtc.md). Compares an elementwise op, gradients, a norm and a reduction with the C
// functions. The program passes its arguments to NVRTC. Exits with 77 without a GPU.
#include "nvrtc_loader.h"

static nvrtc_loader loader;
#define KF_LOAD_KERNEL(name, function) loader.load(name, function)
#include <kf/ops/add.cuh>
#include <kf/ops/add.h>
#include <kf/ops/bias.cuh>
#include <kf/ops/bias.h>
#include <kf/ops/layer_norm.cuh>
#include <kf/ops/layer_norm.h>
#include <kf/ops/sum.cuh>
#include <kf/ops/sum.h>

#include <cmath>
#include <cstdlib>

enum { ROWS = 512, COLS = 1000, N = ROWS * COLS };

static int check(const char *name, kf_result_t cuda, kf_result_t c, const float *device,
                 const std::vector<float> &want)
{
    std::vector<float> got(want.size());
    if (cuda != KF_SUCCESS || c != KF_SUCCESS)
        return std::printf("%s\n", kf_get_last_error_detail()), 1;
    if (cuMemcpyDtoH(got.data(), (CUdeviceptr)device, got.size() * sizeof got[0]) != CUDA_SUCCESS)
        return std::printf("%s failed\n", name), 1;
    for (size_t i = 0; i < got.size(); ++i)
        if (!(std::fabs(got[i] - want[i]) <= 1e-4f * (1 + std::fabs(want[i]))))
            return std::printf("%s: %g at %zu, expected %g\n", name, (double)got[i], i,
                               (double)want[i]),
                   1;
    return std::printf("%s agrees with C\n", name), 0;
}

int main(int count, char **words)
{
    CUdevice device = 0;
    CUcontext context = nullptr;
    if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS)
        return std::puts("no GPU"), 77;
    if (cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return 1;
    loader.source = "#include <kf/ops/add.cuh>\n#include <kf/ops/bias.cuh>\n#include "
                    "<kf/ops/layer_norm.cuh>\n#include <kf/ops/sum.cuh>\n";
    loader.options.assign(words + 1, words + count);

    std::vector<float> x(N), y(N), out(N), row(COLS), sums(COLS);
    for (size_t i = 0; i < N; ++i) x[i] = ((float)(i % 97) - 48) / 16;
    for (size_t i = 0; i < N; ++i) y[i] = ((float)(i % 89) - 44) / 32;
    for (size_t c = 0; c < COLS; ++c) row[c] = ((float)(c % 7) - 3) / 8;
    const size_t bias_bytes = kf_bias_bwd_f32_workspace_bytes(ROWS, COLS),
                 sum_bytes = kf_sum_f32_workspace_bytes(1, ROWS, COLS);
    const size_t bytes = bias_bytes > sum_bytes ? bias_bytes : sum_bytes;
    const size_t scratch_bytes = kf_cpu_bias_bwd_f32_workspace_bytes(ROWS, COLS) +
                                 kf_cpu_sum_f32_workspace_bytes(1, ROWS, COLS);
    void *const scratch = aligned_alloc(256, scratch_bytes);
    CUdeviceptr memory = 0, workspace = 0;
    if (cuMemAlloc(&memory, (3 * N + 2 * COLS) * sizeof(float)) != CUDA_SUCCESS ||
        cuMemAlloc(&workspace, bytes + 1) != CUDA_SUCCESS)
        return 1;
    float *const d_x = (float *)memory, *const d_y = d_x + N, *const d_out = d_y + N,
                 *const d_row = d_out + N, *const d_sums = d_row + COLS;
    if (!scratch || cuMemcpyHtoD((CUdeviceptr)d_x, x.data(), N * sizeof x[0]) != CUDA_SUCCESS ||
        cuMemcpyHtoD((CUdeviceptr)d_y, y.data(), N * sizeof y[0]) != CUDA_SUCCESS ||
        cuMemcpyHtoD((CUdeviceptr)d_row, row.data(), COLS * sizeof row[0]) != CUDA_SUCCESS)
        return 1;

    int wrong = check("kf_add_relu_f32", kf_add_relu_f32(d_x, d_y, d_out, N, nullptr),
                      kf_cpu_add_relu_f32(x.data(), y.data(), out.data(), N), d_out, out);
    wrong += check("kf_bias_gelu_bwd_f32",
                   kf_bias_gelu_bwd_f32(d_x, d_row, nullptr, d_y, d_out, d_sums, ROWS, COLS,
                                        (void *)workspace, bytes, nullptr),
                   kf_cpu_bias_gelu_bwd_f32(x.data(), row.data(), nullptr, y.data(), out.data(),
                                            sums.data(), ROWS, COLS, scratch, scratch_bytes),
                   d_sums, sums);
    wrong += check("kf_layer_norm_gelu_f32",
                   kf_layer_norm_gelu_f32(d_x, d_row, d_row, d_out, nullptr, nullptr, ROWS, COLS,
                                          nullptr, 1e-5f, nullptr),
                   kf_cpu_layer_norm_gelu_f32(x.data(), row.data(), row.data(), out.data(), nullptr,
                                              nullptr, ROWS, COLS, nullptr, 1e-5f),
                   d_out, out);
    wrong +=
        check("kf_sum_f32",
              kf_sum_f32(d_y, d_sums, 1, ROWS, COLS, nullptr, (void *)workspace, bytes, nullptr),
              kf_cpu_sum_f32(y.data(), sums.data(), 1, ROWS, COLS, nullptr, scratch, scratch_bytes),
              d_sums, sums);
    cuMemFree(memory);
    cuMemFree(workspace);
    free(scratch);
    return wrong ? 1 : 0;
}
