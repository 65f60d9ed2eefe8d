/* SPDX-License-Identifier: Apache-2.0 */
/* A program that holds tensors on the given device (-1: the CPU): C11 and C++17, without CUDA. The
 * definitions are in another file. Everything is checked against plain loops. */
#include "ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ROWS 6
#define COLS 40

#define CHECK(call)                                                                                \
    do {                                                                                           \
        if (!(call)) {                                                                             \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    kf_runtime_error_detail());                                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == KF_SUCCESS)

static const int64_t matrix_shape[] = {ROWS, COLS}, row_shape[] = {COLS}, rows_shape[] = {ROWS};
static const kf_tensor_desc_t matrix = {matrix_shape, NULL, 2, KF_DTYPE_FLOAT32, 0, 0};
static const kf_tensor_desc_t row = {row_shape, NULL, 1, KF_DTYPE_FLOAT32, 0, 0};
static const kf_tensor_desc_t rows = {rows_shape, NULL, 1, KF_DTYPE_FLOAT32, 0, 0};

static float a[ROWS][COLS], b[ROWS][COLS], weight[COLS], bias[COLS], sums[ROWS][COLS],
    found[ROWS][COLS], grad[ROWS][COLS];

static double gelu(double x) { return 0.5 * x * erfc(-x * 0.70710678118654752440); }
static double gelu_slope(double x)
{
    return 0.5 * erfc(-x * 0.70710678118654752440) + x * 0.39894228040143267794 * exp(-0.5 * x * x);
}

/* Copies an array to a new tensor on the device. */
static kf_tensor_t *to_device(kf_context_t *ctx, kf_context_t *cpu, float *from, size_t bytes,
                              const kf_tensor_desc_t *desc, kf_stream_t *stream)
{
    const kf_memory_desc_t memory = {from, bytes, 0};
    kf_tensor_t *const here = kf_tensor_create_from_memory(cpu, &memory, desc),
                       *const there = kf_tensor_create(ctx, desc);
    CHECK(here && there);
    OK(kf_tensor_copy(there, here, stream));
    OK(kf_tensor_destroy(here));
    return there;
}
static void to_host(kf_tensor_t *from, kf_context_t *cpu, float *to, size_t bytes,
                    const kf_tensor_desc_t *desc, kf_stream_t *stream)
{
    const kf_memory_desc_t memory = {to, bytes, 0};
    kf_tensor_t *const here = kf_tensor_create_from_memory(cpu, &memory, desc);
    CHECK(here);
    OK(kf_tensor_copy(here, from, stream));
    OK(kf_stream_synchronize(stream));
    OK(kf_tensor_destroy(here));
}
static void expect(double got, double wanted, const char *what)
{
    if (!(fabs(got - wanted) <= 2e-6 * (1 + fabs(wanted))))
        fprintf(stderr, "%s: got %.9g, expected %.9g\n", what, got, wanted), exit(1);
}
static void draw(float *x, int n, unsigned seed)
{
    for (int i = 0; i < n; ++i) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

/* Checks layer norm with gelu, and its gradient for dout = 1, against the formulas. */
static void check_norm(void)
{
    for (int i = 0; i < ROWS; ++i) {
        double mean = 0, square = 0, inner = 0, all = 0, t[COLS], d[COLS];
        for (int j = 0; j < COLS; ++j) mean += sums[i][j] / (double)COLS;
        for (int j = 0; j < COLS; ++j) square += (sums[i][j] - mean) * (sums[i][j] - mean) / COLS;
        const double rstd = 1 / sqrt(square + 1e-5);
        for (int j = 0; j < COLS; ++j) {
            t[j] = (sums[i][j] - mean) * rstd;
            const double z = t[j] * weight[j] + bias[j];
            expect(found[i][j], gelu(z), "layer_norm");
            d[j] = gelu_slope(z) * weight[j];
            inner += d[j] * t[j] / COLS;
            all += d[j] / COLS;
        }
        for (int j = 0; j < COLS; ++j)
            expect(grad[i][j], rstd * (d[j] - all - t[j] * inner), "layer_norm_bwd");
    }
}

int main(int argc, char **argv)
{
    const int device = argc > 1 ? atoi(argv[1]) : -1;
    kf_context_t *const ctx = kf_context_create(device), *const cpu = kf_context_create(-1);
    CHECK(ctx && cpu);
    OK(kf_set_debug_mode(ctx, argc > 2));
    const kf_stream_config_t high = {KF_PRIORITY_HIGH, KF_STREAM_NON_BLOCKING, 0};
    kf_stream_t *const first = kf_stream_create(ctx, &high), *const second =
                                                                 kf_stream_create(ctx, NULL);
    kf_event_t *const added = kf_event_create(ctx);
    CHECK(first && second && added);

    /* Memory of the program with gaps after its rows. */
    const int64_t apart[] = {COLS + 8, 1};
    const kf_tensor_desc_t pitched = {matrix_shape, apart, 2, KF_DTYPE_FLOAT32, 0, 0};
    kf_memory_desc_t own = {NULL, (size_t)ROWS * (COLS + 8) * sizeof(float), 0};
    own.data = kf_pool_allocate(ctx, own.size, first);
    kf_tensor_t *const sum = kf_tensor_create_from_memory(ctx, &own, &pitched);
    CHECK(own.data && sum);

    draw(&a[0][0], ROWS * COLS, 1), draw(&b[0][0], ROWS * COLS, 2), draw(weight, COLS, 3),
        draw(bias, COLS, 4);
    kf_tensor_t *const x = to_device(ctx, cpu, &a[0][0], sizeof a, &matrix, first);
    kf_tensor_t *const y = to_device(ctx, cpu, &b[0][0], sizeof b, &matrix, first);
    kf_tensor_t *const w = to_device(ctx, cpu, weight, sizeof weight, &row, second);
    kf_tensor_t *const shift = to_device(ctx, cpu, bias, sizeof bias, &row, second);
    kf_tensor_t *const out = kf_tensor_create(ctx, &matrix), *const dx =
                                                                 kf_tensor_create(ctx, &matrix);
    kf_tensor_t *const mean = kf_tensor_create(ctx, &rows), *const rstd =
                                                                kf_tensor_create(ctx, &rows);
    kf_tensor_t *const dw = kf_tensor_create(ctx, &row), *const dshift =
                                                             kf_tensor_create(ctx, &row);
    CHECK(out && dx && mean && rstd && dw && dshift);

    /* add + relu on one stream, and its reader on another. */
    OK(kf_fused_add_activation(ctx, x, y, sum, KF_ACTIVATION_RELU, first));
    OK(kf_event_record(added, first));
    OK(kf_stream_wait_event(second, added));
    OK(kf_fused_layer_norm_activation(ctx, sum, w, shift, out, mean, rstd, 1e-5, KF_ACTIVATION_GELU,
                                      second));
    to_host(sum, cpu, &sums[0][0], sizeof sums, &matrix, second);
    to_host(out, cpu, &found[0][0], sizeof found, &matrix, second);
    for (int i = 0; i < ROWS; ++i)
        for (int j = 0; j < COLS; ++j)
            expect(sums[i][j], a[i][j] + b[i][j] > 0 ? a[i][j] + b[i][j] : 0, "add");

    /* Backward with a constant gradient of the result: one number broadcast to a matrix. */
    float one = 1;
    const kf_tensor_desc_t number = {NULL, NULL, 0, KF_DTYPE_FLOAT32, 0, 0};
    kf_tensor_t *const unit = to_device(ctx, cpu, &one, sizeof one, &number, second);
    kf_tensor_t *const ones = kf_tensor_broadcast_to(unit, matrix_shape, 2), *const dout =
                                                                                 kf_tensor_create(
                                                                                     ctx, &matrix);
    CHECK(ones && dout);
    OK(kf_tensor_copy(dout, ones, second));
    OK(kf_fused_layer_norm_activation_bwd(ctx, sum, w, shift, out, mean, rstd, dout, dx, dw, dshift,
                                          1e-5, KF_ACTIVATION_GELU, second));
    to_host(dx, cpu, &grad[0][0], sizeof grad, &matrix, second);
    check_norm();

    /* Views: copies the transposed sum to the transposed output. */
    kf_tensor_t *const turned = kf_tensor_transpose(sum, 0, 1), *const also =
                                                                    kf_tensor_transpose(out, 0, 1);
    CHECK(turned && also);
    OK(kf_fused_add(ctx, turned, also, also, second));
    to_host(out, cpu, &grad[0][0], sizeof grad, &matrix, second);
    for (int i = 0; i < ROWS; ++i)
        for (int j = 0; j < COLS; ++j)
            expect(grad[i][j], (double)sums[i][j] + found[i][j], "a view");

    OK(kf_pool_deallocate(ctx, own.data, second)); /* after the second stream is done with it */
    kf_tensor_t *const tensors[] = {sum,  x,  y,      w,    shift, out,  dx,     mean,
                                    rstd, dw, dshift, unit, ones,  dout, turned, also};
    OK(kf_context_destroy(ctx)); /* its objects keep it alive */
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; ++i) OK(kf_tensor_destroy(tensors[i]));
    OK(kf_event_destroy(added));
    OK(kf_stream_destroy(second));
    OK(kf_stream_destroy(first));
    OK(kf_context_destroy(cpu));
    puts("all right");
    return 0;
}
