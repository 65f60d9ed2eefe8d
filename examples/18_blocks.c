/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 18_blocks.c -o 18_blocks -lm */
/* Attention to blocks of keys: each query sees its own block of 64 keys up to itself, and the first
 * block. Lists name the blocks, one mask has the bits of the blocks on the diagonal. Compared with
 * the same sums in double. */
#include <kf/ops/block_sparse_attention.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 64, ROWS = 300, BLOCKS = (ROWS + BLOCK - 1) / BLOCK, HEADS = 2, DIM = 16 };

static float q[ROWS * HEADS * DIM], k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
static float out[ROWS * HEADS * DIM];
static int32_t block_offsets[BLOCKS + 1], key_blocks[2 * BLOCKS][2], block_masks[BLOCK][BLOCK / 32];

/* Fills in the lists; returns how many blocks they have. All heads share them. */
static int list_blocks(void)
{
    int listed = 0;
    for (int row = 0; row < BLOCKS; ++row) {
        if (row > 0) key_blocks[listed][0] = 0, key_blocks[listed++][1] = -1; /* all keys */
        key_blocks[listed][0] = row, key_blocks[listed++][1] = 0;             /* the mask 0 */
        block_offsets[row + 1] = listed;
    }
    for (int row = 0; row < BLOCK; ++row)
        for (int key = 0; key <= row; ++key)
            block_masks[row][key / 32] |= (int32_t)((uint32_t)1 << key % 32);
    return listed;
}

static int sees(int query, int key)
{
    return key / BLOCK == query / BLOCK ? key <= query : key < BLOCK && key < query;
}

/* Largest difference to softmax(q . k * 0.25) . v of the visible keys. */
static double compare(void)
{
    double worst = 0;
    for (int i = 0; i < ROWS * HEADS; ++i) {
        double sum = 0, want[DIM] = {0};
        for (int j = i % HEADS; j < ROWS * HEADS; j += HEADS) {
            double dot = 0;
            if (!sees(i / HEADS, j / HEADS)) continue;
            for (int d = 0; d < DIM; ++d) dot += (double)q[i * DIM + d] * k[j * DIM + d];
            const double weight = exp(dot * 0.25);
            sum += weight;
            for (int d = 0; d < DIM; ++d) want[d] += weight * v[j * DIM + d];
        }
        for (int d = 0; d < DIM; ++d) worst = fmax(worst, fabs(want[d] / sum - out[i * DIM + d]));
    }
    return worst;
}

int main(void)
{
    for (int i = 0; i < ROWS * HEADS * DIM; ++i) {
        q[i] = (float)(i % 7 - 3) / 2;
        k[i] = (float)(i % 5 - 2) / 2, v[i] = (float)(i % 11 - 5);
    }
    const int listed = list_blocks();
    kf_attention_t shape = {0};
    shape.batch = 1, shape.heads = HEADS, shape.queries = ROWS, shape.keys = ROWS, shape.dim = DIM;
    shape.block_size = BLOCK, shape.listed_blocks = listed, shape.partial_blocks = 1;
    kf_block_sparse_attention_strides_t strides = {0};
    strides.block_offsets_head = KF_BROADCAST;
    const size_t bytes = kf_cpu_block_sparse_attention_f32_workspace_bytes(&shape);
    void *workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
    const kf_result_t result = kf_cpu_block_sparse_attention_f32(
        q, k, v, block_offsets, key_blocks[0], block_masks[0], out, NULL, NULL, NULL, &shape,
        &strides, 0.25f, workspace, bytes);
    free(workspace);
    if (result != KF_SUCCESS) puts(kf_get_last_error_detail());
    printf("%d of %d blocks give %s\n", listed, BLOCKS * BLOCKS,
           result == KF_SUCCESS && compare() < 1e-5 ? "the result" : "something else");
    return 0;
}
