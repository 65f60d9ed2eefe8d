/* SPDX-License-Identifier: Apache-2.0 */
/* kfgen render --spec my_ops.toml --out ~/.local/include
   gcc -O3 -march=native -isystem ~/.local/include 04_own_ops.c -o 04_own_ops -lm */
/* Uses examples/my_ops.toml: a new activation in every op, a new op with every activation, and
 * their gradients. */
#include <kf/kf.h>
#include <kf/my_ops.h>

#include <math.h>
#include <stdio.h>

enum { ROWS = 4, COLS = 250 };

static double logsigmoid(double x) { return fmin(x, 0) - log1p(exp(-fabs(x))); }

int main(void)
{
    static float x[ROWS * COLS], y[ROWS * COLS], out[ROWS * COLS], gamma[COLS];
    for (int i = 0; i < ROWS * COLS; ++i) {
        x[i] = (float)(i % 101 - 50) / 10;
        y[i] = (float)(i % 7);
    }
    for (int c = 0; c < COLS; ++c) gamma[c] = 0.5f;

    double worst = 0;
    if (kf_cpu_add_logsigmoid_f32(x, y, out, ROWS * COLS) != KF_SUCCESS)
        return puts(kf_get_last_error_detail()), 1; /* a built-in op with your activation */
    for (int i = 0; i < ROWS * COLS; ++i)
        worst = fmax(worst, fabs(out[i] - logsigmoid((double)x[i] + y[i])));
    if (kf_cpu_relu_layer_scale_f32(x, gamma, y, out, ROWS, COLS) != KF_SUCCESS)
        return puts(kf_get_last_error_detail()), 1; /* your op with a built-in activation */
    for (int i = 0; i < ROWS * COLS; ++i)
        worst = fmax(worst, fabs(out[i] - (y[i] + 0.5 * fmax(x[i], 0))));
    if (kf_cpu_logsigmoid_bwd_f32(x, NULL, y, out, ROWS * COLS, NULL, 0) != KF_SUCCESS)
        return puts(kf_get_last_error_detail()), 1; /* a gradient that kfgen derived */
    for (int i = 0; i < ROWS * COLS; ++i)
        worst = fmax(worst, fabs(out[i] - y[i] / (1 + exp((double)x[i]))));
    printf("largest error against float64: %.1e\n", worst);
    return worst < 4e-6 ? 0 : 1;
}
