/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 13_positions.c -o 13_positions -lm */
/* Rotary position embedding of queries and keys in one call: from tables for twice the trained
 * length, with normalised heads, and with computed angles, which need no tables. The product of a
 * query at position p and a key at position r depends only on p - r. */
#include <kf/rope_table.h>
#include <kf/ops/rope_computed_qk.h>
#include <kf/ops/rope_qk.h>
#include <kf/ops/rope_rms_norm_qk.h>

#include <stdio.h>

enum { ROWS = 6, HEADS = 4, KV_HEADS = 2, DIM = 8, PAIRS = DIM / 2, POSITIONS = 256 };

static float q[ROWS * HEADS * DIM], k[ROWS * KV_HEADS * DIM], turned_q[ROWS * HEADS * DIM],
    turned_k[ROWS * KV_HEADS * DIM];
static float computed_q[ROWS * HEADS * DIM], computed_k[ROWS * KV_HEADS * DIM],
    cosine[POSITIONS * PAIRS], sine[POSITIONS * PAIRS], frequency[PAIRS];

static float product(int row, int other)
{
    float sum = 0;
    for (int i = 0; i < DIM; ++i)
        sum += turned_q[row * HEADS * DIM + i] * turned_k[other * KV_HEADS * DIM + i];
    return sum;
}

static int fails(void) { return puts(kf_get_last_error_detail()), 1; }

int main(void)
{
    const kf_rope_scaling_t scaling = {
        .scheme = KF_ROPE_YARN, .factor = 2, .original = POSITIONS / 2};
    const int64_t position[ROWS] = {0, 1, 2, 100, 101, 102};
    const float weight[DIM] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (int row = 0; row < ROWS; ++row)
        for (int i = 0; i < HEADS * DIM; ++i) q[row * HEADS * DIM + i] = (float)(i % 5 - 1);
    for (int row = 0; row < ROWS; ++row)
        for (int i = 0; i < KV_HEADS * DIM; ++i) k[row * KV_HEADS * DIM + i] = (float)(i % 3 - 1);
    if (kf_rope_table_f32(cosine, sine, POSITIONS, PAIRS, 10000, &scaling) != KF_SUCCESS)
        return fails();
    if (kf_rope_frequencies_f32(frequency, PAIRS, 10000, &scaling) != KF_SUCCESS) return fails();

    if (kf_cpu_rope_rms_norm_qk_f32(q, k, weight, weight, cosine, sine, position, turned_q,
                                    turned_k, ROWS, HEADS, KV_HEADS, DIM, PAIRS, POSITIONS,
                                    1e-6f) != KF_SUCCESS)
        return fails();
    printf("%.2f %.2f normalised; ", product(2, 1), product(4, 3));
    if (kf_cpu_rope_qk_f32(q, k, cosine, sine, position, turned_q, turned_k, ROWS, HEADS, KV_HEADS,
                           DIM, PAIRS, POSITIONS) != KF_SUCCESS)
        return fails();
    printf("%.2f %.2f, one behind the other; %.2f at the same place; ", product(2, 1),
           product(5, 4), product(3, 3));
    if (kf_cpu_rope_computed_qk_f32(q, k, frequency, position, computed_q, computed_k, ROWS, HEADS,
                                    KV_HEADS, DIM, PAIRS,
                                    (float)kf_rope_magnitude(&scaling)) != KF_SUCCESS)
        return fails();
    float most = 0;
    for (int i = 0; i < ROWS * HEADS * DIM; ++i) {
        const float off = computed_q[i] - turned_q[i];
        most = off > most ? off : -off > most ? -off : most;
    }
    printf("computed angles are %s\n", most < 1e-4f ? "the same" : "others");
    return 0;
}
