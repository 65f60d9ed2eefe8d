/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 12_vocabulary.c -o 12_vocabulary -lm */
/* The last layer of a language model learns which token follows each token. Logits exist only for a
 * chunk of rows at a time, in the workspace, and the same call computes the loss and its gradients.
 * weight is columns 0 to DIM of a wider matrix, so its rows are strided. */
#include <kf/ops/linear_cross_entropy_with_grad.h>

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 300, VOCAB = 50, DIM = 16, WIDE = 24, STEPS = 60, PADDING = -1 };

static float x[ROWS * DIM], weight[VOCAB * WIDE], dweight[VOCAB * DIM], loss[ROWS], each[ROWS];
static int64_t token[ROWS];

int main(void)
{
    const size_t bytes =
        kf_cpu_linear_cross_entropy_with_grad_f32_workspace_bytes(ROWS, VOCAB, DIM);
    void *const workspace = aligned_alloc(256, bytes);
    const kf_linear_cross_entropy_with_grad_strides_t strides = {.weight = WIDE};
    unsigned state = 1;
    int counted = 0;
    double first = 0, mean = 0;
    if (!workspace) return 1;
    for (int i = 0; i < ROWS; ++i) {
        const int before = i % VOCAB;
        for (int j = 0; j < DIM; ++j)
            x[i * DIM + j] = (float)((before * 7 + j * (before % 5 + 3)) % 11 - 5) / 5;
        token[i] = i % 10 == 9 ? PADDING : (before * 3 + 1) % VOCAB; /* padding rows have no loss */
        counted += token[i] != PADDING;
    }
    for (int i = 0; i < ROWS; ++i) each[i] = 1.0f / (float)counted; /* gradient of the mean */
    for (int i = 0; i < VOCAB * WIDE; ++i)
        weight[i] = (float)((state = state * 1664525u + 1013904223u) >> 16 & 255) / 2560;
    for (int step = 0; step < STEPS; ++step) {
        if (kf_cpu_linear_cross_entropy_with_grad_f32(
                x, weight, NULL, token, each, loss, NULL, dweight, NULL, NULL, NULL, ROWS, VOCAB,
                DIM, &strides, PADDING, 0, 0, 0, workspace, bytes) != KF_SUCCESS)
            return puts(kf_get_last_error_detail()), 1;
        mean = 0;
        for (int i = 0; i < ROWS; ++i) mean += (double)loss[i] / counted;
        if (step == 0) first = mean;
        for (int i = 0; i < VOCAB; ++i)
            for (int j = 0; j < DIM; ++j) weight[i * WIDE + j] -= 10 * dweight[i * DIM + j];
    }
    free(workspace);
    printf("a loss of %.1f at first, of %s after %d steps\n", first,
           mean < 0.2 ? "less than 0.2" : "0.2 or more", STEPS);
    return 0;
}
