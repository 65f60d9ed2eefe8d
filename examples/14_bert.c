/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 14_bert.c -o 14_bert -lm */
/* BERT's first layer in one call: the sum of the word, position and type rows of each token,
 * normalised. Then its backward: the gradients of all three tables and of the norm's weights. A
 * token outside the table gives NaN and has no gradient. */
#include <kf/ops/embedding_add_layer_norm.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 5, VOCAB = 6, POSITIONS = 8, TYPES = 2, COLS = 4, PADDING = 0 };

int main(void)
{
    const int64_t token[TOKENS] = {3, 5, 3, PADDING, VOCAB}, position[TOKENS] = {0, 1, 2, 3, 4},
                  type[TOKENS] = {0, 0, 1, 1, 1};
    static float words[VOCAB * COLS], positions[POSITIONS * COLS], types[TYPES * COLS],
        weight[COLS], bias[COLS];
    static float dwords[VOCAB * COLS], dpositions[POSITIONS * COLS], dtypes[TYPES * COLS],
        dweight[COLS], dbias[COLS];
    static float x[TOKENS * COLS], mean[TOKENS], rstd[TOKENS], dx[TOKENS * COLS];
    for (int i = 0; i < VOCAB * COLS; ++i) words[i] = (float)(i % COLS * (i / COLS));
    for (int i = 0; i < POSITIONS * COLS; ++i) positions[i] = (float)(i / COLS);
    for (int i = 0; i < COLS; ++i) weight[i] = 2;
    for (int i = 0; i < TOKENS * COLS; ++i) dx[i] = i % COLS == 0;
    if (kf_cpu_embedding_add_layer_norm_f32(words, positions, types, token, position, type, weight,
                                            bias, x, mean, rstd, TOKENS, COLS, VOCAB, POSITIONS,
                                            TYPES, PADDING, 1e-12f) != KF_SUCCESS)
        return puts(kf_get_last_error_detail()), 1;
    const size_t bytes = kf_cpu_embedding_add_layer_norm_bwd_f32_workspace_bytes(
        TOKENS, COLS, VOCAB, POSITIONS, TYPES);
    void *workspace = aligned_alloc(256, bytes);
    if (!workspace) return 1;
    if (kf_cpu_embedding_add_layer_norm_bwd_f32(
            words, positions, types, token, position, type, weight, NULL, mean, rstd, dx, dwords,
            dpositions, dtypes, dweight, dbias, TOKENS, COLS, VOCAB, POSITIONS, TYPES, PADDING,
            1e-12f, 0, workspace, bytes) != KF_SUCCESS)
        return puts(kf_get_last_error_detail()), 1;
    free(workspace);
    printf(
        "%.4f %.4f of mean %g; token %d: %s; dbias %g; gradients %.4f of word 3, %.4f of type 0\n",
        x[0], x[COLS - 1], mean[0], VOCAB, isnan(x[4 * COLS]) ? "NaN" : "a number", dbias[0],
        dwords[3 * COLS], dtypes[0]);
    return 0;
}
