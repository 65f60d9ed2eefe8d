/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 10_mlp.c -o 10_mlp -lm */
/* Two layers, y = gelu(x . W1^T + b1) . W2^T + b2, learn the sine. Only the hidden layer's
 * pre-activation is stored. The second layer applies the activation as it reads it, forward and
 * backward, and computes the gradient of b1 together with those of its own weights. */
#include <kf/ops/act_linear.h>
#include <kf/ops/linear.h>

#include <math.h>
#include <stdalign.h>
#include <stdio.h>

enum { ROWS = 64, HIDDEN = 32, STEPS = 2000 };

static float x[ROWS], want[ROWS], pre[ROWS * HIDDEN], y[ROWS], dy[ROWS], dpre[ROWS * HIDDEN];
static float w1[HIDDEN], b1[HIDDEN], w2[HIDDEN], b2[1], dw1[HIDDEN], db1[HIDDEN], dw2[HIDDEN],
    db2[1];
alignas(256) static char workspace[1 << 20];

static void learn(float *weight, const float *gradient, int n)
{
    for (int i = 0; i < n; ++i) weight[i] -= 0.05f * gradient[i];
}

static int step(void)
{
    /* The second layer adds b1 as its `shift`: the first one is a plain product. */
    if (kf_cpu_linear_f32(x, w1, NULL, pre, NULL, 1, ROWS, HIDDEN, 1, NULL, workspace,
                          sizeof workspace) != KF_SUCCESS)
        return 1;
    if (kf_cpu_gelu_linear_f32(pre, b1, w2, b2, y, 1, ROWS, 1, HIDDEN, NULL, workspace,
                               sizeof workspace) != KF_SUCCESS)
        return 1;
    for (int i = 0; i < ROWS; ++i) dy[i] = (y[i] - want[i]) * (2.0f / ROWS);
    if (kf_cpu_gelu_linear_bwd_f32(pre, b1, w2, NULL, dy, dpre, db1, dw2, db2, 1, ROWS, 1, HIDDEN,
                                   NULL, 0, workspace, sizeof workspace) != KF_SUCCESS)
        return 1;
    if (kf_cpu_linear_bwd_f32(x, w1, NULL, NULL, NULL, dpre, NULL, dw1, NULL, 1, ROWS, HIDDEN, 1,
                              NULL, 0, workspace, sizeof workspace) != KF_SUCCESS)
        return 1;
    learn(w1, dw1, HIDDEN);
    learn(b1, db1, HIDDEN);
    learn(w2, dw2, HIDDEN);
    learn(b2, db2, 1);
    return 0;
}

static double loss(void)
{
    double sum = 0;
    for (int i = 0; i < ROWS; ++i)
        sum += (double)(y[i] - want[i]) * (double)(y[i] - want[i]) / ROWS;
    return sum;
}

int main(void)
{
    if (kf_cpu_gelu_linear_bwd_f32_workspace_bytes(1, ROWS, 1, HIDDEN) > sizeof workspace ||
        kf_cpu_linear_bwd_f32_workspace_bytes(1, ROWS, HIDDEN, 1) > sizeof workspace)
        return 1;
    for (int i = 0; i < ROWS; ++i) {
        x[i] = 6.2831853f * ((float)i / (ROWS - 1) - 0.5f);
        want[i] = sinf(x[i]);
    }
    for (int i = 0; i < HIDDEN; ++i) {
        w1[i] = (float)(i % 7 - 3) / 3;
        b1[i] = (float)(i % 5 - 2);
        w2[i] = (float)(i % 3 - 1) / 8;
    }
    double first = 0;
    for (int i = 0; i < STEPS; ++i) {
        if (step()) return puts(kf_get_last_error_detail()), 1;
        if (i == 0) first = loss();
    }
    printf("a loss of %.2f at first, of less than %s after %d steps\n", first,
           loss() < 0.01 ? "0.01" : "1", STEPS);
    return 0;
}
