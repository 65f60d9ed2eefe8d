// SPDX-License-Identifier: Apache-2.0
// nvcc -O3 -arch=native -isystem ~/.local/include 06_launches.cu -o 06_launches
// Prints the launches of a call: KF_ON_LAUNCH, defined before kf's headers, receives each of them.
// Layer norms with rows of 128 to 262,144 columns, and their gradients, whose weight part takes a
// second kernel. Exits with 77 without a GPU.
#include <cuda_runtime.h>

#include <cstdio>

inline void print(const char *function, const cudaLaunchConfig_t *config)
{
    unsigned cluster = 1;
    for (unsigned i = 0; i < config->numAttrs; ++i)
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = config->attrs[i].val.clusterDim.x;
    std::printf("  %-24s %6u x %u blocks of %4u threads, %6zu bytes of shared memory, %u blocks a "
                "cluster\n",
                function, config->gridDim.x, config->gridDim.y, config->blockDim.x,
                config->dynamicSmemBytes, cluster);
}
#define KF_ON_LAUNCH(function, kernel, config) print(function, config)
#include <kf/ops/layer_norm.cuh>

int main()
{
    const int64_t n = 1 << 22;
    kf_bf16 *x;
    if (cudaMalloc(&x, 9 * n * sizeof *x) != cudaSuccess) return std::puts("no GPU"), 77;
    kf_bf16 *out = x + n, *dout = x + 2 * n, *dx = x + 3 * n, *weight = x + 4 * n,
            *dweight = x + 5 * n;
    float *mean = (float *)(x + 6 * n), *rstd = mean + n / 2;
    for (int64_t cols = 128; cols <= 1 << 18; cols *= 8 - 4 * (cols > 8192)) {
        const int64_t rows = n / cols;
        std::printf("%lld x %lld\n", (long long)rows, (long long)cols);
        const size_t bytes = kf_layer_norm_bwd_bf16_workspace_bytes(rows, cols);
        void *workspace;
        if (cudaMalloc(&workspace, bytes) != cudaSuccess) return 1;
        if (kf_layer_norm_bf16(x, weight, nullptr, out, mean, rstd, rows, cols, nullptr, 1e-5f,
                               0) != KF_SUCCESS ||
            kf_layer_norm_bwd_bf16(x, weight, nullptr, nullptr, mean, rstd, dout, dx, dweight,
                                   nullptr, rows, cols, nullptr, 1e-5f, workspace, bytes,
                                   0) != KF_SUCCESS)
            return std::puts(kf_get_last_error_detail()), 1;
        if (cudaFree(workspace) != cudaSuccess) return 1; // waits
    }
    return cudaFree(x) != cudaSuccess;
}
