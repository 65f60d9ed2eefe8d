// SPDX-License-Identifier: Apache-2.0
// Cost of functions on tensors on a GPU: host ns per call compared with the launcher, and strided
// copies compared with a copy of the same bytes.
//   kfgen runtime --ops add,layer_norm --dtypes f32,bf16 --activations none,relu -o build/ops.h
//   nvcc -O3 -arch=native -Ibuild -Iinclude -isystem build/include bench/tensors_cuda.cu \
//       -o build/tensors_cuda && build/tensors_cuda
#define KF_RUNTIME_IMPLEMENTATION
#include "ops.h"
#include <kf/ops/layer_norm.cuh>
#include <kf/ops/softmax.cuh>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

static kf_context_t *ctx;
static kf_tensor_t *x, *y, *out;
static kf_plan_t *plan;
static void *pointers[3];
static int64_t n;

static void check(bool right)
{
    if (!right)
        fprintf(stderr, "%s; %s\n", kf_get_last_error_detail(),
                cudaGetErrorString(cudaGetLastError())),
            exit(1);
}
static kf_tensor_t *matrix(int64_t rows, int64_t cols, int64_t pitch, int64_t step, int dtype)
{
    const int64_t shape[] = {rows, cols}, strides[] = {pitch, step};
    const kf_tensor_desc_t desc = {shape, strides, 2, dtype, 0, 0};
    kf_tensor_t *const made = kf_tensor_create(ctx, &desc);
    check(made);
    const size_t bytes =
        (size_t)((rows - 1) * pitch + (cols - 1) * step + 1) * (dtype == KF_F32 ? 4 : 2);
    std::vector<unsigned char> host(bytes);
    for (size_t i = 0; i < bytes; ++i) host[i] = (unsigned char)(i * 37 % 61);
    check(cudaMemcpy(kf_tensor_data(made), host.data(), bytes, cudaMemcpyHostToDevice) ==
          cudaSuccess);
    return made;
}
static double median(std::vector<double> v)
{
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

static kf_result_t launch_add()
{
    return kf_add_relu_f32((float *)pointers[0], (float *)pointers[1], (float *)pointers[2], n, 0);
}
static kf_result_t fused_add()
{
    return kf_fused_add_activation(ctx, x, y, out, KF_ACTIVATION_RELU, nullptr);
}
static kf_result_t run_plan() { return kf_plan_run(plan, pointers, nullptr); }

// Prints host ns per call while the device keeps up: 100 calls on an empty queue, median of many.
static void overhead()
{
    kf_result_t (*const calls[])() = {launch_add, run_plan, fused_add};
    const char *const names[] = {"launcher", "plan", "function"};
    const int dtypes[] = {KF_DTYPE_FLOAT32};
    const kf_op_t *const op = kf_op_lookup("add", KF_ACTIVATION_RELU, dtypes, 1, KF_DEVICE_CUDA);
    n = 1024;
    x = matrix(1, n, n, 1, KF_F32), y = matrix(1, n, n, 1, KF_F32),
    out = matrix(1, n, n, 1, KF_F32);
    const kf_tensor_t *const tensors[] = {x, y, out};
    kf_op_arguments_t a = {};
    a.tensors = tensors;
    check(plan = kf_plan_create(ctx, op, &a));
    for (int i = 0; i < 3; ++i) pointers[i] = kf_tensor_data(tensors[i]);
    std::vector<double> samples[3];
    for (int s = -5; s < 200; ++s)
        for (int turn = 0; turn < 3; ++turn) {
            const int c = (s + 5 + turn) % 3; // alternates
            timespec begin, end;
            cudaDeviceSynchronize();
            clock_gettime(CLOCK_MONOTONIC, &begin);
            for (int i = 0; i < 100; ++i) check(calls[c]() == KF_SUCCESS);
            clock_gettime(CLOCK_MONOTONIC, &end);
            if (s >= 0)
                samples[c].push_back(
                    ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / 100);
        }
    const double launcher = median(samples[0]);
    for (int c = 0; c < 3; ++c)
        printf("add_relu f32 of 1024: %s %.0f ns, %+.0f\n", names[c], median(samples[c]),
               median(samples[c]) - launcher);
}

static char *flush;
enum { FLUSH = 256 << 20 };

// Returns the time in us with a cold L2 cache.
template <class F> static double timed(F call)
{
    std::vector<double> samples;
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    for (int s = -3; s < 41; ++s) {
        float ms;
        cudaMemsetAsync(flush, s & 1, FLUSH, 0);
        cudaEventRecord(begin, 0);
        call();
        cudaEventRecord(end, 0);
        check(cudaEventSynchronize(end) == cudaSuccess);
        cudaEventElapsedTime(&ms, begin, end);
        if (s >= 0) samples.push_back(ms * 1e3);
    }
    return median(samples);
}
static void copies(int dtype)
{
    const int64_t side = 4096, bytes = side * side * (dtype == KF_F32 ? 4 : 2);
    const struct {
        const char *name;
        int64_t from[2], to[2];
    } cases[] = {{"dense", {side, 1}, {side, 1}},
                 {"rows apart", {side + 8, 1}, {side, 1}},
                 {"rows apart by an odd pitch", {side + 3, 1}, {side + 5, 1}},
                 {"transposed", {1, side}, {side, 1}},
                 {"transposed, rows apart", {1, side + 8}, {side, 1}},
                 {"both transposed", {1, side}, {1, side}}};
    for (auto &layout : cases) {
        kf_tensor_t *const from = matrix(side, side, layout.from[0], layout.from[1], dtype),
                           *const to = matrix(side, side, layout.to[0], layout.to[1], dtype);
        const double copy = timed([&] {
            cudaMemcpyAsync(kf_tensor_data(to), kf_tensor_data(from), bytes,
                            cudaMemcpyDeviceToDevice, 0);
        });
        const double own = timed([&] { check(kf_tensor_copy(to, from, nullptr) == KF_SUCCESS); });
        printf("copy of 4096 x 4096 %s, %s: %.1f us, %.0f %% of a copy\n",
               dtype == KF_F32 ? "f32" : "bf16", layout.name, own, 100 * copy / own);
        for (kf_tensor_t *t : {from, to}) check(kf_tensor_destroy(t) == KF_SUCCESS);
    }
}
// Times add of strided tensors, relative to dense ones and to a copy of the same bytes.
static void layouts(int dtype)
{
    const int64_t side = 4096;
    const kf_op_t *const op = kf_op_lookup("add", KF_ACTIVATION_RELU, &dtype, 1, KF_DEVICE_CUDA);
    const struct {
        const char *name;
        int64_t a[2], b[2], out[2];
    } cases[] = {{"dense", {side, 1}, {side, 1}, {side, 1}},
                 {"rows apart", {side + 8, 1}, {side + 8, 1}, {side + 8, 1}},
                 {"rows of one apart", {side + 8, 1}, {side, 1}, {side, 1}},
                 {"rows apart by an odd pitch", {side + 3, 1}, {side + 3, 1}, {side + 3, 1}},
                 {"rows apart by three odd pitches", {side + 3, 1}, {side + 1, 1}, {side + 5, 1}},
                 {"all transposed", {1, side}, {1, side}, {1, side}},
                 {"one transposed", {1, side}, {side, 1}, {side, 1}},
                 {"the result transposed", {side, 1}, {side, 1}, {1, side}},
                 {"every other of one", {2 * side, 2}, {side, 1}, {side, 1}},
                 {"a row for all", {0, 1}, {side, 1}, {side, 1}},
                 {"a column for all", {1, 0}, {side, 1}, {side, 1}}};
    double dense = 0;
    for (auto &layout : cases) {
        kf_tensor_t *const a = matrix(side, side, layout.a[0], layout.a[1], dtype),
                           *const b = matrix(side, side, layout.b[0], layout.b[1], dtype),
                           *const c = matrix(side, side, layout.out[0], layout.out[1], dtype);
        const kf_tensor_t *const tensors[] = {a, b, c};
        kf_op_arguments_t arguments = {};
        arguments.tensors = tensors;
        const double us =
            timed([&] { check(kf_op_call(ctx, op, &arguments, nullptr) == KF_SUCCESS); });
        dense = dense ? dense : us;
        printf("add_relu %s 4096 x 4096, %s: %.1f us, %.0f %% of dense\n",
               dtype == KF_F32 ? "f32" : "bf16", layout.name, us, 100 * dense / us);
        for (kf_tensor_t *t : {a, b, c}) check(kf_tensor_destroy(t) == KF_SUCCESS);
    }
}

// Times kf's row launchers with a dense and with larger pitches.
static void pitches(int64_t rows, int64_t cols)
{
    double dense[4] = {};
    for (int64_t more : {0, 8, 3}) {
        const int64_t pitch = cols + more;
        kf_tensor_t *const from = matrix(rows, cols, pitch, 1, KF_BF16),
                           *const to = matrix(rows, cols, pitch, 1, KF_BF16),
                           *const weight = matrix(1, cols, cols, 1, KF_BF16),
                           *const saved = matrix(2, rows, rows, 1, KF_F32);
        const kf_bf16 *const a = (const kf_bf16 *)kf_tensor_data(from), *const w = (const kf_bf16 *)
                                                                            kf_tensor_data(weight);
        kf_bf16 *const b = (kf_bf16 *)kf_tensor_data(to);
        float *const mean = (float *)kf_tensor_data(saved);
        kf_softmax_strides_t of_softmax = {};
        kf_layer_norm_strides_t of_norm = {};
        of_softmax.x = of_softmax.out = of_softmax.dout = of_softmax.dx = of_norm.x = of_norm.out =
            pitch;
        const double us[] = {
            timed([&] { check(kf_softmax_bf16(a, b, rows, cols, &of_softmax, 0) == KF_SUCCESS); }),
            timed([&] {
                check(kf_softmax_bwd_bf16(nullptr, a, a, b, rows, cols, &of_softmax, nullptr, 0,
                                          0) == KF_SUCCESS);
            }),
            timed([&] {
                check(kf_layer_norm_bf16(a, w, w, b, mean, mean + rows, rows, cols, &of_norm, 1e-5f,
                                         0) == KF_SUCCESS);
            }),
        };
        const char *const names[] = {"softmax", "softmax_bwd", "layer_norm"};
        for (int i = 0; i < 3; ++i) {
            dense[i] = more ? dense[i] : us[i];
            printf("%s bf16 %d x %d, pitch cols + %d: %.1f us, %.0f %% of dense\n", names[i],
                   (int)rows, (int)cols, (int)more, us[i], 100 * dense[i] / us[i]);
        }
        for (kf_tensor_t *t : {from, to, weight, saved}) check(kf_tensor_destroy(t) == KF_SUCCESS);
    }
}

int main()
{
    check(ctx = kf_context_create(0));
    check(cudaMalloc(&flush, FLUSH) == cudaSuccess);
    overhead();
    copies(KF_F32), copies(KF_BF16);
    layouts(KF_F32), layouts(KF_BF16);
    pitches(32768, 4096), pitches(32768, 1000), pitches(2048, 65536);
    return kf_context_destroy(ctx) != KF_SUCCESS;
}
