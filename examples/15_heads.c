/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 15_heads.c -o 15_heads -lm */
/* Causal attention of four heads that share two heads of keys: whole, and in two parts of the keys,
 * as of two devices, whose results the logarithms of their sums combine. */
#include <kf/ops/causal_attention.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { QUERIES = 6, KEYS = 10, HEADS = 4, KV_HEADS = 2, DIM = 16, FIRST = 7 };

static float q[QUERIES * HEADS * DIM], k[KEYS * KV_HEADS * DIM], v[KEYS * KV_HEADS * DIM];
static float whole[QUERIES * HEADS * DIM], part[2][QUERIES * HEADS * DIM], lse[2][HEADS * QUERIES];

/* Attention of keys from `base` on. */
static int attend(float *out, float *sums, int base, int keys)
{
    kf_attention_t shape = {0};
    shape.batch = 1, shape.heads = HEADS, shape.kv_heads = KV_HEADS;
    shape.queries = QUERIES, shape.keys = keys, shape.dim = DIM;
    shape.key_base = base, shape.keys_total = KEYS;
    const size_t bytes = kf_cpu_causal_attention_f32_workspace_bytes(&shape);
    void *workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
    const kf_result_t result =
        kf_cpu_causal_attention_f32(q, k + base * KV_HEADS * DIM, v + base * KV_HEADS * DIM, out,
                                    sums, NULL, NULL, &shape, NULL, 0.25f, workspace, bytes);
    free(workspace);
    if (result != KF_SUCCESS) puts(kf_get_last_error_detail());
    return result == KF_SUCCESS;
}

int main(void)
{
    for (int i = 0; i < QUERIES * HEADS * DIM; ++i) q[i] = (float)(i % 7 - 3) / 2;
    for (int i = 0; i < KEYS * KV_HEADS * DIM; ++i)
        k[i] = (float)(i % 5 - 2) / 2, v[i] = (float)(i % 11 - 5);
    if (!attend(whole, NULL, 0, KEYS) || !attend(part[0], lse[0], 0, FIRST) ||
        !attend(part[1], lse[1], FIRST, KEYS - FIRST))
        return 1;
    double worst = 0;
    int unseen = 0;
    for (int row = 0; row < QUERIES; ++row)
        for (int head = 0; head < HEADS; ++head) {
            const double a = lse[0][head * QUERIES + row], b = lse[1][head * QUERIES + row];
            const double share = 1 / (1 + exp(b - a)); /* the first part's; b may be -inf */
            unseen += isinf(b) != 0;
            for (int i = 0; i < DIM; ++i) {
                const int at = (row * HEADS + head) * DIM + i;
                const double sum = share * part[0][at] + (1 - share) * part[1][at];
                worst = fmax(worst, fabs(sum - whole[at]));
            }
        }
    printf("both parts give %s; %d rows see nothing of the second\n",
           worst < 1e-5 ? "the whole" : "something else", unseen);
    return 0;
}
