/* SPDX-License-Identifier: Apache-2.0 */
/* Functions on tensors with a shape struct: options are arguments, 0 is their default, sizes follow
 * from the tensors. Prints results, gradients and errors. */
#define KF_RUNTIME_IMPLEMENTATION
#include "functions.h"

#include <stdio.h>

static kf_context_t *ctx;

static kf_tensor_t *tensor(void *data, int dtype, int64_t a, int64_t b, int64_t c)
{
    const int64_t shape[] = {a, b, c};
    const int dims = c ? 3 : b ? 2 : 1;
    const size_t bytes = (size_t)(a * (b ? b : 1) * (c ? c : 1)) * 8;
    const kf_tensor_desc_t desc = {shape, NULL, dims, (kf_dtype_t)dtype, 0, 0};
    const kf_memory_desc_t memory = {data, bytes, 0};
    return kf_tensor_create_from_memory(ctx, &memory, &desc);
}
static void show(const char *what, kf_result_t result, const double *values, int count)
{
    printf("%s: %d", what, (int)result);
    if (result != KF_SUCCESS) printf(" %s", kf_get_last_error_detail());
    for (int i = 0; i < count; ++i) printf(" %g", values[i]);
    puts("");
}

int main(void)
{
    double x[10], weight[4], bias[2] = {1, -1}, out[8], dx[10], dweight[4], dbias[2];
    int64_t offsets[3] = {0, 2, 5};
    for (int i = 0; i < 10; ++i) x[i] = i;
    for (int i = 0; i < 4; ++i) weight[i] = i + 1;
    ctx = kf_context_create(-1);
    kf_tensor_t *const of_x = tensor(x, KF_DTYPE_FLOAT64, 1, 5, 2);
    kf_tensor_t *const of_weight = tensor(weight, KF_DTYPE_FLOAT64, 2, 2, 1);
    kf_tensor_t *const of_bias = tensor(bias, KF_DTYPE_FLOAT64, 2, 0, 0);
    kf_tensor_t *const of_out = tensor(out, KF_DTYPE_FLOAT64, 1, 4, 2);
    kf_tensor_t *const of_dx = tensor(dx, KF_DTYPE_FLOAT64, 1, 5, 2);
    kf_tensor_t *const of_dweight = tensor(dweight, KF_DTYPE_FLOAT64, 2, 2, 1);
    kf_tensor_t *const of_dbias = tensor(dbias, KF_DTYPE_FLOAT64, 2, 0, 0);
    kf_tensor_t *const rows = tensor(x, KF_DTYPE_FLOAT64, 4, 2, 0);
    kf_tensor_t *const of_offsets = tensor(offsets, KF_DTYPE_INT64, 3, 0, 0);
    kf_tensor_t *const of_rows = tensor(out, KF_DTYPE_FLOAT64, 4, 2, 0);

    show("forward", kf_fused_conv1d(ctx, of_x, of_weight, of_bias, of_out, 0, 0, 0, 0, 2, NULL),
         out, 8);
    show("backward",
         kf_fused_conv1d_bwd(ctx, of_x, of_weight, NULL, of_out, of_dx, of_dweight, of_dbias, 1, 0,
                             0, 1, 2, NULL),
         dx, 10);
    show("weights", KF_SUCCESS, dweight, 4);
    show("bias", KF_SUCCESS, dbias, 2);
    offsets[2] = 4;
    show("packed",
         kf_fused_conv1d_varlen(ctx, rows, of_offsets, of_weight, NULL, of_rows, 0, 1, 0, 0, 2,
                                NULL),
         out, 8);
    show("stride", kf_fused_conv1d(ctx, of_x, of_weight, of_bias, of_out, 2, 0, 0, 1, 2, NULL), out,
         0);
    show("negative", kf_fused_conv1d(ctx, of_x, of_weight, of_bias, of_out, 1, -3, 3, 1, 2, NULL),
         out, 0);
    const kf_result_t end = kf_context_destroy(ctx);
    return end == KF_SUCCESS ? 0 : 1;
}
