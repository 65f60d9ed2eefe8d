/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 02_backward.c -o 02_backward -lm */
/* Gradients of act(x + bias): dx per element, dbias summed over the rows, which needs a workspace.
 * Allocate it once: its size depends only on the shape. */
#include <kf/ops/bias.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 300, COLS = 70 };

int main(void)
{
    static float x[ROWS * COLS], bias[COLS], dout[ROWS * COLS], dx[ROWS * COLS], dbias[COLS];
    for (int i = 0; i < ROWS * COLS; ++i) {
        x[i] = (float)(i % 41 - 20) / 8;
        dout[i] = (float)(i % 3 - 1);
    }

    const size_t bytes = kf_cpu_bias_silu_bwd_f32_workspace_bytes(ROWS, COLS);
    void *workspace = aligned_alloc(256, bytes);
    if (!workspace) return 1;
    kf_result_t result =
        kf_cpu_bias_silu_bwd_f32(x, bias, NULL, dout, dx, dbias, ROWS, COLS, workspace, bytes);
    if (result != KF_SUCCESS) return puts(kf_get_last_error_detail()), 1;

    double worst = 0;
    for (int c = 0; c < COLS; ++c) {
        double sum = 0;
        for (int r = 0; r < ROWS; ++r) {
            const int i = r * COLS + c;
            const double s = 1 / (1 + exp(-(double)x[i])),
                         slope = dout[i] * s * (1 + x[i] * (1 - s));
            worst = fmax(worst, fabs(dx[i] - slope));
            sum += slope;
        }
        worst = fmax(worst, fabs(dbias[c] - sum) / ROWS);
    }
    printf("largest error against float64: %.1e\n", worst);

    /* NULL skips a gradient; the workspace keeps its size. */
    result = kf_cpu_bias_silu_bwd_f32(x, bias, NULL, dout, dx, NULL, ROWS, COLS, workspace, bytes);
    free(workspace);
    return result == KF_SUCCESS && worst < 1e-6 ? 0 : 1;
}
