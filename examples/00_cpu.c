/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 00_cpu.c -o 00_cpu -lm */
#include <kf/ops/bias.h>
#include <stdio.h>

int main(void)
{
    const float x[6] = {-1, 0, 1, 2, 3, 4}, bias[3] = {0, 1, -1};
    float out[6]; /* gelu(x + bias): x is 2 x 3, bias is added to each row */
    if (kf_cpu_bias_gelu_f32(x, bias, out, 2, 3) != KF_SUCCESS)
        return puts(kf_get_last_error_detail()), 1;
    for (int i = 0; i < 6; ++i) printf("%.4f%c", (double)out[i], i < 5 ? ' ' : '\n');
    return 0;
}
