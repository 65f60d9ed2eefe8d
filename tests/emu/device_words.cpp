// SPDX-License-Identifier: Apache-2.0
// Tests the public device functions (kf/core/device.cuh) in small user kernels, run by the emulator
// in every thread order, against plain loops. Prints the first wrong value.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include <kf/core/device.cuh>
#include <kf/ops/act_dropout.h>

template <class... A> static void launch(void (*kernel)(A...), dim3 block, A... arguments)
{
    void *args[] = {(void *)&arguments...};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = block;
    if (cudaLaunchKernelExC(&config, kf_emu_kernel(kernel, "words"), args) != cudaSuccess)
        std::printf("the launch failed\n");
}

template <class T> static void reduce(const T *x, T *out)
{
    const unsigned t = threadIdx.x + blockDim.x * threadIdx.y;
    const T v = x[t];
    out[6 * t] = kf_warp_sum(v);
    out[6 * t + 1] = kf_warp_max(v);
    out[6 * t + 2] = kf_warp_min(v);
    out[6 * t + 3] = kf_block_sum(v);
    out[6 * t + 4] = kf_block_max(v);
    out[6 * t + 5] = kf_block_min(v);
}

template <int vec> static void drop(const kf_bf16 *x, kf_bf16 *y, long long n, kf_rng_t rng)
{
    const long long i = (long long)threadIdx.x * vec;
    float v[vec];
    kf_load<vec>(v, x + i, n - i);
    kf_dropout<vec>(v, rng, i);
    kf_store<vec>(y + i, v, n - i);
}

template <class T> static bool reductions(int warps)
{
    const int n = 32 * warps;
    std::vector<T> x(n), out(6 * n);
    for (int i = 0; i < n; ++i) x[i] = (T)(i * 7919 % 1001) - (T)499.75; // sums are exact
    launch(reduce<T>, dim3(32, warps), (const T *)x.data(), out.data());
    T of_warp[3] = {}, of_block[3] = {0, -INFINITY, INFINITY};
    for (T v : x) {
        of_block[0] += v;
        of_block[1] = std::fmax(of_block[1], v);
        of_block[2] = std::fmin(of_block[2], v);
    }
    for (int i = 0; i < n; ++i) {
        if (i % 32 == 0) {
            of_warp[0] = 0;
            of_warp[1] = of_warp[2] = x[i];
            for (int j = i; j < i + 32; ++j) {
                of_warp[0] += x[j];
                of_warp[1] = std::fmax(of_warp[1], x[j]);
                of_warp[2] = std::fmin(of_warp[2], x[j]);
            }
        }
        for (int k = 0; k < 6; ++k) {
            const T want = k < 3 ? of_warp[k] : of_block[k - 3];
            if (!(out[6 * i + k] == want)) {
                std::printf("%d warps, thread %d, word %d: %g instead of %g\n", warps, i, k,
                            (double)out[6 * i + k], (double)want);
                return false;
            }
        }
    }
    x[n / 2] = NAN;
    launch(reduce<T>, dim3(32, warps), (const T *)x.data(), out.data());
    for (int i = 0; i < n; ++i)
        for (int k = 3; k < 6; ++k)
            if (!std::isnan(out[6 * i + k])) {
                std::printf("%d warps, thread %d, word %d: %g instead of NaN\n", warps, i, k,
                            (double)out[6 * i + k]);
                return false;
            }
    return true;
}

// Tests vectors at any offset and length: elements outside stay unchanged, and the dropout mask
// equals the launchers'.
static bool vectors(int vec, int offset, int n)
{
    kf_rng_t rng;
    if (kf_make_rng(&rng, 0.3, 0x123456789abcdefull, 77) != KF_SUCCESS) return false;
    std::vector<float> ones(n, 1.0f), mask(n);
    if (kf_cpu_dropout_f32(ones.data(), mask.data(), n, 0.3f, 0x123456789abcdefull, 77) !=
        KF_SUCCESS)
        return false;
    std::vector<kf_bf16> x(n + 20), y(n + 20, kf_bf16(-7.0f));
    for (int i = 0; i < n + 20; ++i) x[i] = kf_bf16((float)(i + 1));
    void (*const kernel)(const kf_bf16 *, kf_bf16 *, long long, kf_rng_t) = vec == 1   ? drop<1>
                                                                            : vec == 2 ? drop<2>
                                                                            : vec == 4 ? drop<4>
                                                                                       : drop<8>;
    launch(kernel, dim3(128), (const kf_bf16 *)x.data() + offset, y.data() + offset, (long long)n,
           rng);
    for (int i = 0; i < n + 20; ++i) {
        const float want =
            i < offset || i >= n + offset ? -7.0f : (float)kf_bf16((float)x[i] * mask[i - offset]);
        if (!((float)y[i] == want)) {
            std::printf("vec %d, offset %d, n %d, element %d: %g instead of %g\n", vec, offset, n,
                        i, (float)y[i], want);
            return false;
        }
    }
    return true;
}

int main()
{
    for (kf_emu_order = 0; kf_emu_order < 3; ++kf_emu_order) {
        for (int warps : {1, 3, 8, 32})
            if (!reductions<float>(warps) || !reductions<double>(warps)) return 1;
        for (int vec : {1, 2, 4, 8})
            for (int offset : {0, 1, 5, 8})
                for (int n : {1, 7, 8, 9, 31, 100})
                    if (!vectors(vec, offset, n)) return 1;
    }
    std::puts("ok");
    return 0;
}
