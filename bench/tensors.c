/* SPDX-License-Identifier: Apache-2.0 */
/* Overhead of functions on tensors over their launchers on the CPU: ns per call, and the time of
 * strided tensors relative to dense ones.
 *   kfgen runtime --ops add,layer_norm,softmax --dtypes f32,bf16 --activations none,relu \
 *       -o build/ops.h
 *   gcc -O2 -march=native -Ibuild -Iinclude -isystem build/include bench/tensors.c \
 *       -o build/tensors -lm && build/tensors */
#define _GNU_SOURCE
#define KF_RUNTIME_IMPLEMENTATION
#include "ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SAMPLES 101

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
static int order(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

static kf_context_t *ctx;
static kf_tensor_t *x, *y, *out;
static const kf_op_t *op;
static kf_plan_t *plan;
static void *pointers[3];
static int64_t n;
static const double eps[] = {1e-5};

static kf_result_t launch_add(void)
{
    return kf_cpu_add_relu_f32((float *)pointers[0], (float *)pointers[1], (float *)pointers[2], n);
}
static kf_result_t fused_add(void)
{
    return kf_fused_add_activation(ctx, x, y, out, KF_ACTIVATION_RELU, NULL);
}
static kf_result_t run_plan(void) { return kf_plan_run(plan, pointers, NULL); }
static kf_result_t call_op(void)
{
    const kf_tensor_t *const tensors[] = {x, y, out};
    kf_op_arguments_t a = {0};
    a.tensors = tensors;
    a.scalars = eps;
    return kf_op_call(ctx, op, &a, NULL);
}

/* Returns the median time of a call, in ns. */
static double timed(kf_result_t (*call)(void), int calls)
{
    static double samples[SAMPLES];
    for (int s = -3; s < SAMPLES; ++s) {
        const double begin = now();
        for (int i = 0; i < calls; ++i)
            if (call() != KF_SUCCESS) fprintf(stderr, "%s\n", kf_get_last_error_detail()), exit(1);
        if (s >= 0) samples[s] = (now() - begin) / calls;
    }
    qsort(samples, SAMPLES, sizeof *samples, order);
    return samples[SAMPLES / 2];
}
static kf_tensor_t *matrix(int64_t rows, int64_t cols, int64_t pitch, int64_t step, int dtype)
{
    const int64_t shape[] = {rows, cols}, strides[] = {pitch, step};
    const kf_tensor_desc_t desc = {shape, strides, 2, dtype, 0, 0};
    kf_tensor_t *const made = kf_tensor_create(ctx, &desc);
    if (!made) fprintf(stderr, "%s\n", kf_get_last_error_detail()), exit(1);
    const int64_t reach = (rows - 1) * pitch + (cols - 1) * step + 1;
    for (int64_t i = 0; i < reach; ++i)
        if (dtype == KF_F32)
            ((float *)kf_tensor_data(made))[i] = (float)(i % 1000) * 0.001f;
        else
            ((uint16_t *)kf_tensor_data(made))[i] = (uint16_t)(0x3f80 + i % 100);
    return made;
}
static void overhead(void)
{
    const int dtypes[] = {KF_DTYPE_FLOAT32};
    op = kf_op_lookup("add", KF_ACTIVATION_RELU, dtypes, 1, 0);
    puts("add_relu f32, ns a call: elements, launcher, plan, by name, function");
    for (n = 16; n <= 16384; n *= 32) {
        x = matrix(1, n, n, 1, KF_F32), y = matrix(1, n, n, 1, KF_F32),
        out = matrix(1, n, n, 1, KF_F32);
        const kf_tensor_t *const tensors[] = {x, y, out};
        kf_op_arguments_t a = {0};
        a.tensors = tensors;
        plan = kf_plan_create(ctx, op, &a);
        for (int i = 0; i < 3; ++i) pointers[i] = kf_tensor_data(tensors[i]);
        printf("%6d %8.0f %8.0f %8.0f %8.0f\n", (int)n, timed(launch_add, 200),
               timed(run_plan, 200), timed(call_op, 200), timed(fused_add, 200));
        kf_plan_destroy(plan), kf_tensor_destroy(x), kf_tensor_destroy(y), kf_tensor_destroy(out);
    }
}
static void layouts(const char *name, const char *of, int dtype)
{
    enum { SIDE = 1024 };
    static const struct {
        const char *name;
        int64_t x[2], out[2];
    } ways[] = {{"dense", {SIDE, 1}, {SIDE, 1}},
                {"rows apart", {SIDE + 8, 1}, {SIDE + 8, 1}},
                {"all transposed", {1, SIDE}, {1, SIDE}},
                {"x transposed", {1, SIDE}, {SIDE, 1}},
                {"every other of x", {2 * SIDE, 2}, {SIDE, 1}}};
    double dense = 0;
    op = kf_op_lookup(name, KF_ACTIVATION_NONE, &dtype, 1, 0);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; ++i) {
        x = matrix(SIDE, SIDE, ways[i].x[0], ways[i].x[1], dtype),
        y = matrix(SIDE, SIDE, SIDE, 1, dtype);
        out = matrix(SIDE, SIDE, ways[i].out[0], ways[i].out[1], dtype);
        if (*of == '1') kf_tensor_destroy(y), y = out; /* one input only: x, out */
        const double us = timed(call_op, 1) / 1e3;
        if (!i) dense = us;
        printf("%s %s, %s: %.0f us, %.2f of dense\n", name, dtype == KF_F32 ? "f32" : "bf16",
               ways[i].name, us, us / dense);
        if (y != out) kf_tensor_destroy(y);
        kf_tensor_destroy(x), kf_tensor_destroy(out);
    }
}

int main(void)
{
    ctx = kf_context_create(-1);
    overhead();
    for (int dtype = KF_F32; dtype <= KF_BF16; dtype += KF_BF16 - KF_F32)
        layouts("add", "2", dtype), layouts("softmax", "1", dtype);
    return kf_context_destroy(ctx) != KF_SUCCESS;
}
