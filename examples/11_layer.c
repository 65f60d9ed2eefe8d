/* SPDX-License-Identifier: Apache-2.0 */
/* kfgen runtime --ops linear --dtypes f32 -o functions.h
   gcc -O3 -march=native -I. -isystem ~/.local/include 11_layer.c -o 11_layer -lm */
/* A linear layer with its activation on tensors, and its gradients; the weight gradients are added
 * to those of the previous batch. */
/* Exactly one file of a program defines this. */
#define KF_RUNTIME_IMPLEMENTATION
#include "functions.h"
#include <kf/runtime.h>

#include <stdio.h>

enum { BATCH = 2, ROWS = 3, DEPTH = 4, COLS = 5 };

static kf_context_t *ctx;

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, kf_get_last_error_detail());
    return 1;
}
/* Creates a contiguous float32 tensor filled with `value`; returns NULL on failure. */
static kf_tensor_t *filled(int ndim, const int64_t *shape, float value)
{
    const kf_tensor_desc_t dense = {shape, NULL, ndim, KF_DTYPE_FLOAT32, 0, 0};
    kf_tensor_t *const made = kf_tensor_create(ctx, &dense);
    int64_t count = 1;
    for (int i = 0; i < ndim; ++i) count *= shape[i];
    for (int64_t i = 0; made && i < count; ++i) ((float *)kf_tensor_data(made))[i] = value;
    return made;
}
static double sum(const kf_tensor_t *tensor, int count)
{
    double found = 0;
    for (int i = 0; i < count; ++i) found += ((const float *)kf_tensor_data(tensor))[i];
    return found;
}

int main(void)
{
    const int64_t of_x[] = {BATCH, ROWS, DEPTH}, of_weight[] = {COLS, DEPTH}, of_bias[] = {COLS},
                  of_out[] = {BATCH, ROWS, COLS};
    ctx = kf_context_create(-1);
    if (!ctx) return failed("context");
    kf_tensor_t *const x = filled(3, of_x, 0.5f), *const dx = filled(3, of_x, 0);
    kf_tensor_t *const weight = filled(2, of_weight, 1), *const dweight = filled(2, of_weight, 100);
    kf_tensor_t *const bias = filled(1, of_bias, -1), *const dbias = filled(1, of_bias, 100);
    kf_tensor_t *const out = filled(3, of_out, 0), *const dout = filled(3, of_out, 1),
                       *const pre = filled(3, of_out, 0);
    if (!x || !dx || !weight || !dweight || !bias || !dbias || !out || !dout || !pre)
        return failed("tensors");

    /* relu(x . weight^T + bias); pre stores the pre-activation for the gradient. bias and pre may
     * be NULL. */
    if (kf_fused_linear_activation(ctx, x, weight, bias, out, pre, KF_ACTIVATION_RELU, NULL) !=
        KF_SUCCESS)
        return failed("forward");
    /* out is NULL: the gradient is computed from pre. beta = 1 adds the gradients to dweight and
     * dbias. */
    if (kf_fused_linear_activation_bwd(ctx, x, weight, bias, NULL, pre, dout, dx, dweight, dbias,
                                       KF_ACTIVATION_RELU, 1, NULL) != KF_SUCCESS)
        return failed("backward");
    printf("%g %g %g %g\n", sum(out, BATCH * ROWS * COLS), sum(dx, BATCH * ROWS * DEPTH),
           sum(dweight, COLS * DEPTH), sum(dbias, COLS));

    kf_tensor_t *const all[] = {x, dx, weight, dweight, bias, dbias, out, dout, pre};
    for (int i = 0; i < 9; ++i)
        if (kf_tensor_destroy(all[i]) != KF_SUCCESS) return failed("destroy");
    return kf_context_destroy(ctx) == KF_SUCCESS ? 0 : failed("destroy");
}
