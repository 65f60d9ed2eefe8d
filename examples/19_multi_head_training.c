/* SPDX-License-Identifier: Apache-2.0 */
/* kfgen runtime --ops linear,causal_attention --dtypes f32 -o layer.h
   gcc -O3 -march=native -I. -isystem ~/.local/include 19_multi_head_training.c -o training -lm */
/* Trains causal self-attention of four heads, with its projections, to return the row before: each
 * row of the result becomes the row of x one position earlier. */
/* Exactly one file of a program defines this. */
#define KF_RUNTIME_IMPLEMENTATION
#include "layer.h"
#include <kf/runtime.h>

#include <stdio.h>

enum { BATCH = 8, ROWS = 6, EMBED = 32, HEADS = 4, STEPS = 600, PARAMETERS = 4 };

static kf_context_t *ctx;

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, kf_get_last_error_detail());
    return 1;
}
/* Creates a contiguous float32 tensor of numbers from -scale to scale; returns NULL on failure. */
static kf_tensor_t *drawn(int ndim, const int64_t *shape, float scale)
{
    static unsigned state = 1;
    const kf_tensor_desc_t dense = {shape, NULL, ndim, KF_DTYPE_FLOAT32, 0, 0};
    kf_tensor_t *const made = kf_tensor_create(ctx, &dense);
    for (int64_t i = 0; made && i < kf_tensor_count(made); ++i) {
        state = state * 1664525u + 1013904223u;
        ((float *)kf_tensor_data(made))[i] = scale * ((float)(state >> 8) / 8388608.0f - 1);
    }
    return made;
}
/* Sets each row of x to its number plus a random one, so that a row tells its position. */
static void draw_rows(float *x)
{
    static unsigned state = 7;
    for (int i = 0; i < BATCH * ROWS * EMBED; ++i) {
        state = state * 1664525u + 1013904223u;
        const int row = i / EMBED % ROWS, column = i % EMBED;
        x[i] = (float)(state >> 8) / 8388608.0f - 1 + (column % ROWS == row ? 3.0f : 0.0f);
    }
}
/* Computes the mean of (out - wanted)^2 and its gradient; wanted is the row before, or 0. */
static double compare(const float *x, const float *out, float *dout)
{
    const int n = BATCH * ROWS * EMBED;
    double loss = 0;
    for (int i = 0; i < n; ++i) {
        const float wanted = i / EMBED % ROWS ? x[i - EMBED] : 0, error = out[i] - wanted;
        loss += (double)(error * error) / n;
        dout[i] = 2 * error / (float)n;
    }
    return loss;
}

int main(void)
{
    const int64_t of_x[] = {BATCH, ROWS, EMBED}, of_in[] = {3 * EMBED, EMBED},
                  of_in_bias[] = {3 * EMBED}, of_out[] = {EMBED, EMBED}, of_out_bias[] = {EMBED};
    ctx = kf_context_create(-1);
    if (!ctx) return failed("context");
    kf_tensor_t *const x = drawn(3, of_x, 1), *const out = drawn(3, of_x, 0),
                       *const dout = drawn(3, of_x, 0);
    kf_tensor_t *const p[PARAMETERS] = {drawn(2, of_in, 0.2f), drawn(1, of_in_bias, 0),
                                        drawn(2, of_out, 0.2f), drawn(1, of_out_bias, 0)};
    kf_tensor_t *const d[PARAMETERS] = {drawn(2, of_in, 0), drawn(1, of_in_bias, 0),
                                        drawn(2, of_out, 0), drawn(1, of_out_bias, 0)};
    for (int i = 0; i < PARAMETERS; ++i)
        if (!x || !out || !dout || !p[i] || !d[i]) return failed("tensors");

    kf_multi_head_attention_t layer = {0};
    layer.query = x;
    layer.in_proj_weight = p[0], layer.in_proj_bias = p[1];
    layer.out_proj_weight = p[2], layer.out_proj_bias = p[3];
    layer.out = out;
    layer.heads = HEADS;
    layer.is_causal = 1;
    const int64_t bytes = kf_fused_multi_head_attention_saved_bytes(ctx, &layer);
    const kf_tensor_desc_t of_saved = {&bytes, NULL, 1, KF_DTYPE_UINT8, 0, 0};
    layer.saved = bytes < 0 ? NULL : kf_tensor_create(ctx, &of_saved);
    if (!layer.saved) return failed("saved");
    kf_multi_head_attention_gradients_t gradients = {0};
    gradients.dout = dout; /* and dquery, if a layer precedes this one */
    gradients.din_proj_weight = d[0], gradients.din_proj_bias = d[1];
    gradients.dout_proj_weight = d[2], gradients.dout_proj_bias = d[3];

    double first = 0, loss = 0;
    for (int step = 0; step < STEPS; ++step) {
        draw_rows((float *)kf_tensor_data(x));
        if (kf_fused_multi_head_attention(ctx, &layer, NULL) != KF_SUCCESS)
            return failed("forward");
        loss = compare((const float *)kf_tensor_data(x), (const float *)kf_tensor_data(out),
                       (float *)kf_tensor_data(dout));
        if (step == 0) first = loss;
        if (kf_fused_multi_head_attention_bwd(ctx, &layer, &gradients, NULL) != KF_SUCCESS)
            return failed("backward");
        for (int i = 0; i < PARAMETERS; ++i)
            for (int64_t k = 0; k < kf_tensor_count(p[i]); ++k)
                ((float *)kf_tensor_data(p[i]))[k] -= 1.0f * ((float *)kf_tensor_data(d[i]))[k];
    }
    printf("a loss of %.2f at first, of %s than 0.2 after %d steps\n", first,
           loss < 0.2 ? "less" : "more", STEPS);

    kf_tensor_t *const all[] = {x, out, dout, layer.saved};
    for (int i = 0; i < 4; ++i)
        if (kf_tensor_destroy(all[i]) != KF_SUCCESS) return failed("destroy");
    for (int i = 0; i < PARAMETERS; ++i)
        if (kf_tensor_destroy(p[i]) != KF_SUCCESS || kf_tensor_destroy(d[i]) != KF_SUCCESS)
            return failed("destroy");
    return kf_context_destroy(ctx) == KF_SUCCESS ? 0 : failed("destroy");
}
