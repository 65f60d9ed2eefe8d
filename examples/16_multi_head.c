/* SPDX-License-Identifier: Apache-2.0 */
/* kfgen runtime --ops linear,causal_attention,mask_attention --dtypes f32 -o layer.h
   gcc -O3 -march=native -I. -isystem ~/.local/include 16_multi_head.c -o 16_multi_head -lm */
/* Causal self-attention of four heads with its projections, as torch.nn.MultiheadAttention with
 * batch_first, then attention of the same rows to those of an encoder, of which the second sequence
 * is padded. */
/* Exactly one file of a program defines this. */
#define KF_RUNTIME_IMPLEMENTATION
#include "layer.h"
#include <kf/runtime.h>

#include <stdio.h>

enum { BATCH = 2, QUERIES = 6, KEYS = 9, SEEN = 5, EMBED = 32, HEADS = 4 };

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
static float at(const kf_tensor_t *tensor, int batch, int row)
{
    return ((const float *)kf_tensor_data(tensor))[(batch * QUERIES + row) * EMBED];
}

int main(void)
{
    const int64_t of_x[] = {BATCH, QUERIES, EMBED}, of_encoded[] = {BATCH, KEYS, EMBED},
                  of_in[] = {3 * EMBED, EMBED}, of_in_bias[] = {3 * EMBED},
                  of_out[] = {EMBED, EMBED}, of_out_bias[] = {EMBED},
                  of_mask[] = {BATCH, 1, 1, KEYS};
    uint8_t visible[BATCH][KEYS];
    for (int i = 0; i < KEYS; ++i) visible[0][i] = 1, visible[1][i] = i < SEEN;
    const kf_memory_desc_t of_visible = {visible, sizeof visible, 0};
    const kf_tensor_desc_t bytes = {of_mask, NULL, 4, KF_DTYPE_UINT8, 0, 0};
    ctx = kf_context_create(-1);
    if (!ctx) return failed("context");
    kf_tensor_t *const x = drawn(3, of_x, 1), *const encoded = drawn(3, of_encoded, 1);
    kf_tensor_t *const in_weight = drawn(2, of_in, 0.3f), *const in_bias = drawn(1, of_in_bias, 1);
    kf_tensor_t *const out_weight = drawn(2, of_out, 0.3f),
                       *const out_bias = drawn(1, of_out_bias, 1), *const out = drawn(3, of_x, 0);
    kf_tensor_t *const mask = kf_tensor_create_from_memory(ctx, &of_visible, &bytes);
    if (!x || !encoded || !in_weight || !in_bias || !out_weight || !out_bias || !out || !mask)
        return failed("tensors");

    kf_multi_head_attention_t layer = {0};
    layer.query = x; /* key and value, too, unless they are given */
    layer.in_proj_weight = in_weight, layer.in_proj_bias = in_bias;
    layer.out_proj_weight = out_weight, layer.out_proj_bias = out_bias;
    layer.out = out;
    layer.heads = HEADS;
    layer.is_causal = 1;
    if (kf_fused_multi_head_attention(ctx, &layer, NULL) != KF_SUCCESS) return failed("causal");
    printf("causal %.4f %.4f; ", (double)at(out, 0, 0), (double)at(out, 1, QUERIES - 1));

    layer.key = encoded; /* and value */
    layer.is_causal = 0;
    layer.mask = mask;
    if (kf_fused_multi_head_attention(ctx, &layer, NULL) != KF_SUCCESS) return failed("encoder");
    printf("encoder %.4f %.4f\n", (double)at(out, 0, 0), (double)at(out, 1, QUERIES - 1));

    kf_tensor_t *const all[] = {x, encoded, in_weight, in_bias, out_weight, out_bias, out, mask};
    for (int i = 0; i < 8; ++i)
        if (kf_tensor_destroy(all[i]) != KF_SUCCESS) return failed("destroy");
    return kf_context_destroy(ctx) == KF_SUCCESS ? 0 : failed("destroy");
}
