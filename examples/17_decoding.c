/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 17_decoding.c -o 17_decoding -lm */
/* Text generation with a paged cache: stores the keys and values of two prompts, then appends a row
 * to each sequence and computes its attention, step by step. Compared with the same sums in double.
 */
#include <kf/ops/attention_decode.h>
#include <kf/ops/kv_append.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, DIM = 16, STEPS = 6, MOST = 12 };
enum { PAGE_SIZE = 4, PAGES = MOST / PAGE_SIZE, BLOCKS = 7, ROW = KV_HEADS * DIM };

/* Keys and values that a model would compute, for all rows of both sequences. */
static float keys[BATCH][MOST][ROW], values[BATCH][MOST][ROW], q[BATCH][HEADS * DIM];
/* The cache: blocks of PAGE_SIZE rows, which sequences own in any order. */
static float k_cache[BLOCKS][PAGE_SIZE][ROW], v_cache[BLOCKS][PAGE_SIZE][ROW];
static const int32_t page_table[BATCH][PAGES] = {{4, 0, 6}, {1, 5, 2}};
static int32_t lengths[BATCH]; /* rows of each sequence in the cache, for the caller to raise */
static float k[BATCH][ROW], v[BATCH][ROW], out[BATCH][HEADS * DIM];

/* Stores the rows of a prompt, which is a batch of one sequence here: prompts differ in length. */
static kf_result_t store_prompt(kf_decoding_t shape, int sequence, int rows)
{
    shape.batch = 1, shape.queries = rows;
    const kf_result_t result = kf_cpu_kv_append_f32(
        keys[sequence][0], values[sequence][0], NULL, NULL, NULL, /* no rotation */
        page_table[sequence], &lengths[sequence], k_cache[0][0], v_cache[0][0], &shape, NULL);
    lengths[sequence] += rows;
    return result;
}

/* Appends a row to each sequence and computes its attention to all rows so far. */
static kf_result_t step(const kf_decoding_t *shape, void *workspace, size_t bytes)
{
    for (int s = 0; s < BATCH; ++s)
        for (int i = 0; i < ROW; ++i)
            k[s][i] = keys[s][lengths[s]][i], v[s][i] = values[s][lengths[s]][i];
    const kf_result_t result =
        kf_cpu_kv_append_f32(k[0], v[0], NULL, NULL, NULL, page_table[0], lengths, k_cache[0][0],
                             v_cache[0][0], shape, NULL);
    if (result != KF_SUCCESS) return result;
    for (int s = 0; s < BATCH; ++s) ++lengths[s]; /* attention_decode counts the new rows, too */
    return kf_cpu_attention_decode_f32(q[0], k_cache[0][0], v_cache[0][0], page_table[0], lengths,
                                       out[0], NULL, shape, NULL, INT64_MAX, 0, 0.25f, workspace,
                                       bytes);
}

/* Largest difference to softmax(q . k * 0.25) . v of a sequence's rows. */
static double compare(int s)
{
    double worst = 0;
    for (int h = 0; h < HEADS; ++h) {
        const int own = h / (HEADS / KV_HEADS) * DIM; /* two heads of q share a head of k */
        double sum = 0, want[DIM] = {0};
        for (int row = 0; row < lengths[s]; ++row) {
            double dot = 0;
            for (int i = 0; i < DIM; ++i) dot += (double)q[s][h * DIM + i] * keys[s][row][own + i];
            const double weight = exp(dot * 0.25);
            sum += weight;
            for (int i = 0; i < DIM; ++i) want[i] += weight * values[s][row][own + i];
        }
        for (int i = 0; i < DIM; ++i)
            worst = fmax(worst, fabs(want[i] / sum - out[s][h * DIM + i]));
    }
    return worst;
}

int main(void)
{
    for (int s = 0; s < BATCH; ++s) {
        for (int row = 0; row < MOST; ++row)
            for (int i = 0; i < ROW; ++i) {
                keys[s][row][i] = (float)((i + 3 * row + s) % 5 - 2) / 2;
                values[s][row][i] = (float)((i + 7 * row + s) % 11 - 5);
            }
        for (int i = 0; i < HEADS * DIM; ++i) q[s][i] = (float)((i + s) % 7 - 3) / 2;
    }
    kf_decoding_t shape = {0};
    shape.batch = BATCH, shape.heads = HEADS, shape.kv_heads = KV_HEADS, shape.queries = 1;
    shape.blocks = BLOCKS, shape.page_size = PAGE_SIZE, shape.pages = PAGES, shape.dim = DIM;
    /* The workspace follows from the shape, not from the lengths: one serves all steps. */
    const size_t bytes = kf_cpu_attention_decode_f32_workspace_bytes(&shape);
    void *workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);

    kf_result_t result = store_prompt(shape, 0, 5);
    if (result == KF_SUCCESS) result = store_prompt(shape, 1, 2);
    double worst = 0;
    for (int i = 0; result == KF_SUCCESS && i < STEPS; ++i) {
        result = step(&shape, workspace, bytes);
        worst = fmax(worst, fmax(compare(0), compare(1)));
    }
    free(workspace);
    if (result != KF_SUCCESS) return puts(kf_get_last_error_detail()), 1;
    printf("sequences of %d and %d rows, each step is %s\n", lengths[0], lengths[1],
           worst < 1e-5 ? "right" : "wrong");
    return 0;
}
