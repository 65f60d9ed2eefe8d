// SPDX-License-Identifier: Apache-2.0
// Times the elementwise kernels under other schedules than the launchers choose: threads per CTA
// (-DKFI_MAP_THREADS=...) and vectors per thread. Prints GB/s beside a copy of the same bytes.
//   nvcc -O3 -arch=sm_90 -I include -I build/include bench/tune.cu -o build/tune && build/tune
#include <kf/ops/act.cuh>
#include <kf/ops/act_dropout.cuh>
#include <kf/ops/add.cuh>
#include <kf/ops/batch_norm.cuh>
#include <kf/ops/bias.cuh>
#include <kf/ops/bias_act_add.cuh>
#include <kf/ops/bias_act_dropout.cuh>
#include <kf/ops/prelu_bias.cuh>
#include <stdlib.h>

#include <algorithm>
#include <functional>
#include <vector>

static char *pool;
static const size_t MB256 = (size_t)256 << 20;
static float *f32(int i) { return (float *)(pool + i * 2 * MB256); }
static kf_bf16 *bf16(int i) { return (kf_bf16 *)(pool + i * 2 * MB256); }

__global__ void fill(float *x, size_t n, unsigned seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        kfi_u32 w[4];
        kfi_rng r;
        kfi_set_seed(&r, seed);
        r.offset = 1;
        kfi_philox(&r, i, &w[0], &w[1], &w[2], &w[3]);
        x[i] = ((int)(w[0] >> 8) - (1 << 23)) * (2.0f / (1 << 23));
    }
}
__global__ void fill16(kf_bf16 *x, size_t n, unsigned seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        kfi_u32 w[4];
        kfi_rng r;
        kfi_set_seed(&r, seed);
        r.offset = 1;
        kfi_philox(&r, i, &w[0], &w[1], &w[2], &w[3]);
        x[i] = __float2bfloat16(((int)(w[0] >> 8) - (1 << 23)) * (2.0f / (1 << 23)));
    }
}

static double median_ms(const std::function<void()> &f)
{
    cudaEvent_t a, b;
    cudaEventCreate(&a);
    cudaEventCreate(&b);
    std::vector<float> t;
    for (int i = 0; i < 3; ++i) f();
    for (int i = 0; i < 15; ++i) {
        cudaEventRecord(a);
        f();
        cudaEventRecord(b);
        cudaEventSynchronize(b);
        float ms;
        cudaEventElapsedTime(&ms, a, b);
        t.push_back(ms);
    }
    if (cudaGetLastError() != cudaSuccess) printf("FAILED ");
    std::sort(t.begin(), t.end());
    return t[t.size() / 2];
}
static double copy_gbs(size_t bytes)
{
    return bytes / median_ms([&] {
               cudaMemcpyAsync(pool + 4 * 2 * MB256, pool, bytes / 2, cudaMemcpyDeviceToDevice);
           }) *
           1e-6;
}
static double copy_rate[8];
static void report(const char *name, int unroll, double bytes, double ms)
{
    const int k = (int)(bytes / MB256 + 0.5);
    if (!copy_rate[k]) copy_rate[k] = copy_gbs((size_t)bytes);
    printf("%-24s threads %d unroll %d: %7.0f GB/s %5.1f %%\n", name, KFI_MAP_THREADS, unroll,
           bytes / ms * 1e-6, bytes / ms * 1e-4 / copy_rate[k]);
}
template <int vec, int unroll, int a> static void flat_bf16(const char *what)
{
    const size_t n = MB256 / 2;
    kfi_scalars_f32 s = {{0.01f}};
    char name[64];
    auto go = [&](const char *op, double tensors, auto f) {
        snprintf(name, sizeof name, "%s_%s_bf16", op, what);
        report(name, unroll, tensors * MB256, median_ms(f));
    };
    const unsigned blocks = (unsigned)(n / ((size_t)KFI_MAP_THREADS * vec * unroll));
    const kfi_each each = {(kf_i64)n, (kf_i64)n, KFI_MAP_THREADS * vec,
                           KFI_MAP_THREADS * vec * unroll};
    go("act", 2, [&] {
        kfk_act_bf16<a, vec, unroll><<<blocks, KFI_MAP_THREADS>>>(bf16(0), bf16(3), each, s);
    });
    go("act_bwd", 3, [&] {
        kfk_act_bwd_bf16<a, vec, unroll>
            <<<blocks, KFI_MAP_THREADS>>>(bf16(0), bf16(1), bf16(3), each, s);
    });
    go("add", 3, [&] {
        kfk_add_bf16<a, vec, unroll>
            <<<blocks, KFI_MAP_THREADS>>>(bf16(0), bf16(1), bf16(3), each, s);
    });
    kfi_rng r = kfi_make_rng(0.1, 42, 7, nullptr, nullptr);
    go("dropout", 2, [&] {
        kfk_act_dropout_bf16<a, vec, unroll, 0>
            <<<blocks, KFI_MAP_THREADS>>>(bf16(0), bf16(3), each, r, s);
    });
}
template <int vec, int unroll, int a> static void flat_f32(const char *what)
{
    const size_t n = MB256 / 4;
    kfi_scalars_f32 s = {{0.01f}};
    char name[64];
    auto go = [&](const char *op, double tensors, auto f) {
        snprintf(name, sizeof name, "%s_%s_f32", op, what);
        report(name, unroll, tensors * MB256, median_ms(f));
    };
    const unsigned blocks = (unsigned)(n / ((size_t)KFI_MAP_THREADS * vec * unroll));
    const kfi_each each = {(kf_i64)n, (kf_i64)n, KFI_MAP_THREADS * vec,
                           KFI_MAP_THREADS * vec * unroll};
    go("act", 2,
       [&] { kfk_act_f32<a, vec, unroll><<<blocks, KFI_MAP_THREADS>>>(f32(0), f32(3), each, s); });
    go("act_bwd", 3, [&] {
        kfk_act_bwd_f32<a, vec, unroll>
            <<<blocks, KFI_MAP_THREADS>>>(f32(0), f32(1), f32(3), each, s);
    });
    go("add", 3, [&] {
        kfk_add_f32<a, vec, unroll><<<blocks, KFI_MAP_THREADS>>>(f32(0), f32(1), f32(3), each, s);
    });
    kfi_rng r = kfi_make_rng(0.1, 42, 7, nullptr, nullptr);
    go("dropout", 2, [&] {
        kfk_act_dropout_f32<a, vec, unroll, 0>
            <<<blocks, KFI_MAP_THREADS>>>(f32(0), f32(3), each, r, s);
    });
}
template <int vec, int unroll> static void all()
{
    flat_bf16<vec, unroll, 1>("relu");
    flat_bf16<vec, unroll, 7>("gelu");
    flat_f32<vec / 2, unroll, 1>("relu");
    flat_f32<vec / 2, unroll, 7>("gelu");
}

int main()
{
    if (cudaMalloc((void **)&pool, 6 * 2 * MB256) != cudaSuccess) return 1;
    for (int i = 0; i < 3; ++i) fill16<<<4096, 256>>>(bf16(i), MB256 / 2, 5 + i);
    printf("copy 512M %.0f  768M %.0f GB/s\n", copy_gbs(2 * MB256), copy_gbs(3 * MB256));
#ifndef LAUNCHERS_ONLY
    all<8, 1>();
    all<8, 2>();
    all<8, 4>();
    all<8, 8>();
#endif
    // Launchers with their own choice.
    const size_t ws = (size_t)64 << 20;
    void *w = pool + 5 * 2 * MB256;
#define ROWS(name, rows, cols, tensors, ...)                                                       \
    printf("%-32s %5.1f %%\n", name,                                                               \
           (tensors) * MB256 / median_ms([&] { __VA_ARGS__; }) * 1e-4 /                            \
               copy_gbs((tensors) * MB256))
    const int64_t rows = 16384, cols = 8192;
    ROWS("bias_gelu_bf16", rows, cols, 2,
         kf_bias_gelu_bf16(bf16(0), bf16(1), bf16(3), rows, cols, 0));
    ROWS("bias_gelu_bwd_bf16", rows, cols, 3,
         kf_bias_gelu_bwd_bf16(bf16(0), bf16(1), nullptr, bf16(2), bf16(3), bf16(4), rows, cols, w,
                               ws, 0));
    ROWS("bias_gelu_tanh_bwd_bf16", rows, cols, 3,
         kf_bias_gelu_tanh_bwd_bf16(bf16(0), bf16(1), nullptr, bf16(2), bf16(3), bf16(4), rows,
                                    cols, w, ws, 0));
    ROWS("bias_relu_bwd_f32", rows / 2, cols, 3,
         kf_bias_relu_bwd_f32(f32(0), f32(1), nullptr, f32(2), f32(3), f32(4), rows / 2, cols, w,
                              ws, 0));
    ROWS("prelu_bias_bwd_bf16", rows, cols, 3,
         kf_prelu_bias_bwd_bf16(bf16(0), bf16(1), bf16(2), bf16(2), bf16(3), bf16(4),
                                bf16(4) + 16384, rows, cols, w, ws, 0));
    ROWS("bias_gelu_dropout_bwd_bf16", rows, cols, 3,
         kf_bias_gelu_dropout_bwd_bf16(bf16(0), bf16(1), bf16(2), bf16(3), bf16(4), rows, cols,
                                       0.1f, 1, 2, w, ws, 0));
    ROWS("bias_gelu_dropout_bf16", rows, cols, 2,
         kf_bias_gelu_dropout_bf16(bf16(0), bf16(1), bf16(3), rows, cols, 0.1f, 1, 2, 0));
    ROWS("bias_gelu_add_bf16", rows, cols, 3,
         kf_bias_gelu_add_bf16(bf16(0), bf16(1), bf16(2), bf16(3), rows, cols, 0));
    ROWS("bias_gelu_add_bwd_bf16", rows, cols, 4,
         kf_bias_gelu_add_bwd_bf16(bf16(0), bf16(1), nullptr, bf16(2), bf16(3), bf16(4), bf16(1),
                                   rows, cols, w, ws, 0));
    for (int64_t inner : {1, 49, 196, 3136}) {
        const int64_t channels = 256, outer = (int64_t)(MB256 / 2) / (channels * inner);
        printf("batch_norm inner %-5d relu %5.1f %%  gelu %5.1f %%  relu_f32 %5.1f %%\n",
               (int)inner,
               3 * MB256 / median_ms([&] {
                   kf_batch_norm_relu_bwd_bf16(bf16(0), f32(1), f32(2), f32(1), f32(2), nullptr,
                                               bf16(1), bf16(3), f32(4), f32(4) + 4096, outer,
                                               channels, inner, 1e-5f, w, ws, 0);
               }) * 1e-4 /
                   copy_gbs(3 * MB256),
               3 * MB256 / median_ms([&] {
                   kf_batch_norm_gelu_bwd_bf16(bf16(0), f32(1), f32(2), f32(1), f32(2), nullptr,
                                               bf16(1), bf16(3), f32(4), f32(4) + 4096, outer,
                                               channels, inner, 1e-5f, w, ws, 0);
               }) * 1e-4 /
                   copy_gbs(3 * MB256),
               3 * MB256 / median_ms([&] {
                   kf_batch_norm_relu_bwd_f32(f32(0), f32(1), f32(2), f32(1), f32(2), nullptr,
                                              f32(1), f32(3), f32(4), f32(4) + 4096, outer / 2,
                                              channels, inner, 1e-5f, w, ws, 0);
               }) * 1e-4 /
                   copy_gbs(3 * MB256));
    }
    return 0;
}
