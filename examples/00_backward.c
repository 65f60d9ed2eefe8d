/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 00_backward.c -o 00_backward -lm */
#include <kf/ops/bias.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    const float x[6] = {-1, 0, 1, 2, 3, 4}, bias[3] = {0, 1, -1}, dout[6] = {1, 1, 1, 1, 1, 1};
    float dx[6], dbias[3];
    /* [readme] */
    /* Every function that takes a workspace has this query. */
    const size_t bytes = kf_cpu_bias_gelu_bwd_f32_workspace_bytes(2, 3);
    /* A workspace is aligned to 256 bytes and overlaps no tensor. */
    void *workspace = aligned_alloc(256, bytes);
    const kf_result_t result =
        kf_cpu_bias_gelu_bwd_f32(x, bias, NULL, dout, dx, dbias, 2, 3, workspace, bytes);
    free(workspace);
    /* [readme] */
    if (result != KF_SUCCESS) return puts(kf_get_last_error_detail()), 1;
    printf("dbias %.4f %.4f %.4f\n", (double)dbias[0], (double)dbias[1], (double)dbias[2]);
    return 0;
}
