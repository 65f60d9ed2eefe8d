/* SPDX-License-Identifier: Apache-2.0 */
/* kfgen runtime --ops add --dtypes f32 -o functions.h
   gcc -O3 -march=native -I. -isystem ~/.local/include 08_tensors.c -o 08_tensors -lm */
/* Tensors: a context, memory of the program and of the context's pool, a function on tensors, a
 * view, a copy to another dtype, a stream and an event, a plan. */
/* Exactly one file of a program defines this. */
#define KF_RUNTIME_IMPLEMENTATION
#include "functions.h"
#include <kf/runtime.h>

#include <stdio.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, kf_get_last_error_detail());
    return 1;
}

int main(void)
{
    float a[2][3] = {{1, -2, 3}, {4, -5, 6}}, b[2][3] = {{1, 1, 1}, {2, 2, 2}};
    const int64_t shape[] = {2, 3}, turned[] = {3, 2};
    /* NULL: contiguous; 0, 0: the context's device. */
    const kf_tensor_desc_t matrix = {shape, NULL, 2, KF_DTYPE_FLOAT32, 0, 0};
    const kf_tensor_desc_t columns = {turned, NULL, 2, KF_DTYPE_FLOAT64, 0, 0};
    /* 0: the program keeps its memory. */
    const kf_memory_desc_t of_a = {a, sizeof a, 0}, of_b = {b, sizeof b, 0};
    const kf_stream_config_t high = {KF_PRIORITY_HIGH, 0, 0};

    kf_context_t *const ctx = kf_context_create(-1);
    if (!ctx) return failed("context");
    kf_stream_t *const stream = kf_stream_create(ctx, &high);
    kf_event_t *const done = kf_event_create(ctx);
    /* x and y share the program's memory; out has its own, from the context's pool. */
    kf_tensor_t *const x = kf_tensor_create_from_memory(ctx, &of_a, &matrix);
    kf_tensor_t *const y = kf_tensor_create_from_memory(ctx, &of_b, &matrix);
    kf_tensor_t *const out = kf_tensor_create(ctx, &matrix);
    kf_tensor_t *const wide = kf_tensor_create(ctx, &columns);
    /* view is 3 x 2, in the memory of out. */
    kf_tensor_t *const view = out ? kf_tensor_transpose(out, 0, 1) : NULL;
    if (!stream || !done || !x || !y || !wide || !view) return failed("objects");

    if (kf_fused_add_activation(ctx, x, y, out, KF_ACTIVATION_RELU, stream) != KF_SUCCESS)
        return failed("add");
    if (kf_tensor_copy(wide, view, stream) != KF_SUCCESS ||
        kf_event_record(done, stream) != KF_SUCCESS || kf_event_synchronize(done) != KF_SUCCESS)
        return failed("copy");
    const double *const v = (const double *)kf_tensor_data(wide); /* column-major order of out */
    for (int i = 0; i < 6; ++i) printf("%g%c", v[i], i == 5 ? '\n' : ' ');

    /* The same function by name: checked and chosen once, run at other addresses. */
    const int dtypes[] = {KF_DTYPE_FLOAT32};
    const kf_op_t *const add = kf_op_lookup("add", KF_ACTIVATION_RELU, dtypes, 1, KF_DEVICE_CPU);
    const kf_tensor_t *const of_add[] = {x, y, out};
    kf_op_arguments_t arguments = {0};
    arguments.tensors = of_add;
    /* The plan is for tensors of these shapes and strides; `again` holds one address for each. */
    kf_plan_t *const plan = kf_plan_create(ctx, add, &arguments);
    void *const again[] = {b, a, kf_tensor_data(out)};
    if (!plan || kf_plan_run(plan, again, stream) != KF_SUCCESS) return failed("plan");

    /* Destroys in any order: each object keeps what it needs. */
    const kf_result_t ends[] = {
        kf_context_destroy(ctx), kf_tensor_destroy(out),    kf_tensor_destroy(view),
        kf_tensor_destroy(x),    kf_tensor_destroy(y),      kf_tensor_destroy(wide),
        kf_event_destroy(done),  kf_stream_destroy(stream), kf_plan_destroy(plan)};
    for (int i = 0; i < 9; ++i)
        if (ends[i] != KF_SUCCESS) return failed("destroy");
    return 0;
}
