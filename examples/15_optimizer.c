/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 15_optimizer.c -o 15_optimizer -lm */
/* Two layers learn the sine with AdamW. One call updates all parameters: lists of pointers, one
 * length per tensor. The learning rate falls along a cosine. */
#include <kf/ops/act_linear.h>
#include <kf/ops/adamw.h>
#include <kf/ops/linear.h>

#include <math.h>
#include <stdalign.h>
#include <stdio.h>

enum { ROWS = 64, HIDDEN = 32, STEPS = 300, TENSORS = 4, WEIGHTS = 3 * HIDDEN + 1 };

static float x[ROWS], want[ROWS], pre[ROWS * HIDDEN], y[ROWS], dy[ROWS], dpre[ROWS * HIDDEN];
/* w1, b1, w2 and b2, one after another; their gradients and moments in the same order. */
static float weights[WEIGHTS], gradients[WEIGHTS], moments[2][WEIGHTS];
static float *param[TENSORS], *grad[TENSORS], *exp_avg[TENSORS], *exp_avg_sq[TENSORS];
static const int64_t lengths[TENSORS] = {HIDDEN, HIDDEN, HIDDEN, 1};
alignas(256) static char workspace[1 << 20];

static int gradients_of(void)
{
    /* The second layer adds b1 as its `shift`: the first one is a plain product. */
    if (kf_cpu_linear_f32(x, param[0], NULL, pre, NULL, 1, ROWS, HIDDEN, 1, NULL, workspace,
                          sizeof workspace) != KF_SUCCESS)
        return 1;
    if (kf_cpu_gelu_linear_f32(pre, param[1], param[2], param[3], y, 1, ROWS, 1, HIDDEN, NULL,
                               workspace, sizeof workspace) != KF_SUCCESS)
        return 1;
    for (int i = 0; i < ROWS; ++i) dy[i] = (y[i] - want[i]) * (2.0f / ROWS);
    if (kf_cpu_gelu_linear_bwd_f32(pre, param[1], param[2], NULL, dy, dpre, grad[1], grad[2],
                                   grad[3], 1, ROWS, 1, HIDDEN, NULL, 0, workspace,
                                   sizeof workspace) != KF_SUCCESS)
        return 1;
    return kf_cpu_linear_bwd_f32(x, param[0], NULL, NULL, NULL, dpre, NULL, grad[0], NULL, 1, ROWS,
                                 HIDDEN, 1, NULL, 0, workspace, sizeof workspace) != KF_SUCCESS;
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
    double first = 0;
    for (int i = 0, at = 0; i < TENSORS; at += (int)lengths[i++]) {
        param[i] = weights + at;
        grad[i] = gradients + at;
        exp_avg[i] = moments[0] + at;
        exp_avg_sq[i] = moments[1] + at;
    }
    for (int i = 0; i < ROWS; ++i) {
        x[i] = 6.2831853f * ((float)i / (ROWS - 1) - 0.5f);
        want[i] = sinf(x[i]);
    }
    for (int i = 0; i < HIDDEN; ++i) {
        param[0][i] = (float)(i % 7 - 3) / 3;
        param[1][i] = (float)(i % 5 - 2);
        param[2][i] = (float)(i % 3 - 1) / 8;
    }
    for (int step = 1; step <= STEPS; ++step) {
        const double lr = 0.025 * (1 + cos(3.14159265 * step / STEPS));
        if (gradients_of()) return puts(kf_get_last_error_detail()), 1;
        if (step == 1) first = loss();
        if (kf_cpu_adamw_f32(param, (const float *const *)grad, exp_avg, exp_avg_sq, NULL, NULL,
                             NULL, lengths, TENSORS, step, 0, lr, 0.9, 0.99, 1e-8,
                             0.001) != KF_SUCCESS)
            return puts(kf_get_last_error_detail()), 1;
    }
    printf("a loss of %.2f at first, of %s after %d steps\n", first,
           loss() < 0.001 ? "less than 0.001" : "0.001 or more", STEPS);
    return 0;
}
