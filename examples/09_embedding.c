/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 09_embedding.c -o 09_embedding -lm */
/* The first layers of a language model: an embedding, its gradient, and rotary position embedding.
 * Tokens outside the table give NaN; the padding row has no gradient; beta sums the gradients of
 * two micro-batches. */
#include <kf/ops/embedding.h>
#include <kf/ops/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    TOKENS = 6,
    VOCAB = 5,
    COLS = 8,
    HEADS = 2,
    DIM = COLS / HEADS,
    PAIRS = DIM / 2,
    PADDING = 0
};

int main(void)
{
    const int64_t token[TOKENS] = {3, 1, 3, PADDING, 4, VOCAB},
                  position[TOKENS] = {0, 1, 2, 3, 4, 5};
    static float table[VOCAB * COLS], x[TOKENS * COLS], turned[TOKENS * COLS], dout[TOKENS * COLS],
        dtable[VOCAB * COLS];
    static float cosine[TOKENS * PAIRS], sine[TOKENS * PAIRS];
    for (int i = 0; i < VOCAB * COLS; ++i) table[i] = (float)(i / COLS) + 1;
    for (int i = 0; i < TOKENS * COLS; ++i) dout[i] = 1;
    for (int i = 0; i < TOKENS * PAIRS; ++i) {
        const double angle = i / PAIRS * pow(10000, -(double)(i % PAIRS) / PAIRS);
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
    if (kf_cpu_embedding_f32(table, token, x, TOKENS, COLS, VOCAB, PADDING, 1) != KF_SUCCESS)
        return puts(kf_get_last_error_detail()), 1;
    if (kf_cpu_rope_f32(x, cosine, sine, position, turned, TOKENS, HEADS, DIM, PAIRS, TOKENS) !=
        KF_SUCCESS)
        return puts(kf_get_last_error_detail()), 1;

    const size_t bytes = kf_cpu_embedding_bwd_f32_workspace_bytes(TOKENS, COLS, VOCAB);
    void *workspace = aligned_alloc(256, bytes);
    if (!workspace) return 1;
    for (int batch = 0; batch < 2; ++batch) /* beta = 0 overwrites dtable, beta = 1 adds to it */
        if (kf_cpu_embedding_bwd_f32(NULL, token, dout, dtable, TOKENS, COLS, VOCAB, PADDING, 1,
                                     (float)batch, workspace, bytes) != KF_SUCCESS)
            return puts(kf_get_last_error_detail()), 1;
    free(workspace);
    for (int v = 0; v < VOCAB; ++v) printf("%g ", dtable[v * COLS]);
    printf("of each token; token %d: %s; turned %.4f %.4f\n", VOCAB,
           isnan(x[5 * COLS]) ? "NaN" : "a number", turned[COLS], turned[COLS + PAIRS]);
    return 0;
}
