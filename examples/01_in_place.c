/* SPDX-License-Identifier: Apache-2.0 */
/* gcc -O3 -march=native -isystem ~/.local/include 01_in_place.c -o 01_in_place -lm */
/* In-place calls and overlap checks: an output may be an input of the same shape. Invalid calls are
 * refused before anything is written, with a description of the error. */
#include <kf/ops/act_mul.h>

#include <stdio.h>

static float gate[1000], up[1000];

int main(void)
{
    for (int i = 0; i < 1000; ++i) {
        gate[i] = (float)(i - 500) / 100;
        up[i] = 2;
    }

    /* up = silu(gate) * up */
    if (kf_cpu_silu_mul_f32(gate, up, up, 1000) != KF_SUCCESS)
        return puts(kf_get_last_error_detail()), 1;
    printf("silu(1) * 2 = %.6f\n", (double)up[600]);

    /* Partial overlap is neither in place nor disjoint. */
    /* disjoint: reads the first 500 elements, writes the last 500 */
    kf_result_t result = kf_cpu_silu_mul_f32(gate, up, up + 500, 500);
    if (result != KF_SUCCESS) return puts(kf_get_last_error_detail()), 1;
    result = kf_cpu_silu_mul_f32(gate, up, up + 1, 500);
    if (result != KF_ERROR_OVERLAP) return 1;
    printf("%s\n%s\n", kf_get_error_string(result), kf_get_last_error_detail());

    result = kf_cpu_silu_mul_f32(gate, NULL, up, 1000);
    if (result != KF_ERROR_NULL_POINTER) return 1;
    printf("%s\n%s\n", kf_get_error_string(result), kf_get_last_error_detail());

    /* Empty tensors are no error, whatever the pointers. */
    return kf_cpu_silu_mul_f32(NULL, NULL, NULL, 0) == KF_SUCCESS ? 0 : 1;
}
