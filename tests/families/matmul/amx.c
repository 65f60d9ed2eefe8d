/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/amx.h at the edges of bf16: NaN, infinities, subnormal elements, sizes around
   tiles and blocks, and that nothing uses AMX before kf_cpu_enable_amx(). Runs on AMX or on its
   double. Prints what is wrong; last a sum of all results' bits. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kf/core/matmul/matmul.h"

enum { ROWS = 50, COLS = 70, DEPTH = 75 };
static int wrong;
static uint64_t bits = 0xCBF29CE484222325ull, state = 1;
static kf_i64 width; /* columns of the result */

static double uniform(void) /* splitmix64, Steele et al. 2014 */
{
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
}
static void expect(int true_, const char *what)
{
    if (!true_) printf("wrong: %s\n", what), ++wrong;
}
static void store(const void *seam, kf_i64 batch, kf_i64 row0, kf_i64 rows, kf_i64 col0,
                  kf_i64 cols, const void *block, const void *second, kf_i64 ld)
{
    float *const out = *(float *const *)seam;
    (void)batch, (void)second;
    for (kf_i64 i = 0; i < rows; ++i)
        memcpy(out + (row0 + i) * width + col0, (const float *)block + i * ld,
               (size_t)cols * sizeof *out);
}
static void multiply(const uint16_t *a, const uint16_t *b, float *out, kf_i64 rows, kf_i64 cols,
                     kf_i64 depth)
{
    const kfi_gemm_operand left = {a, depth, 1, 0, NULL}, right = {b, depth, 1, 0, NULL};
    void *const workspace = malloc(kfi_gemm_bytes_bf16(rows, cols, depth, 1));
    width = cols;
    kfi_gemm_run_bf16(1, rows, cols, depth, &left, &right, NULL, store, &out, NULL, workspace);
    free(workspace);
    for (kf_i64 i = 0; i < rows * cols; ++i) {
        uint32_t u;
        memcpy(&u, &out[i], sizeof u);
        bits = (bits ^ (out[i] == out[i] ? u : 0x7fc00000u)) * 0x100000001B3ull;
    }
}
static void fill(uint16_t *p, kf_i64 count)
{
    for (kf_i64 i = 0; i < count; ++i) p[i] = kfi_cpu_f32_to_bf16_bits((float)uniform());
}

/* All sizes around a tile and a panel, against float64. */
static void sizes(void)
{
    static const kf_i64 lines[] = {9, 15, 16, 17, 31, 32, 33, 48, 63, 95, 97},
                        depths[] = {1, 2, 31, 32, 33, 63, 65};
    static uint16_t a[97 * 65], b[97 * 65];
    static float out[97 * 97];
    fill(a, 97 * 65);
    fill(b, 97 * 65);
    for (int i = 0; i < 11; ++i)
        for (int j = 0; j < 11; ++j)
            for (int k = 0; k < 7; ++k) {
                const kf_i64 depth = depths[k];
                double worst = 0;
                memset(out, 0xff, sizeof out);
                multiply(a, b, out, lines[i], lines[j], depth);
                for (kf_i64 row = 0; row < lines[i]; ++row)
                    for (kf_i64 col = 0; col < lines[j]; ++col) {
                        double sum = 0, sizes = 0;
                        for (kf_i64 d = 0; d < depth; ++d) {
                            const double x = (double)kfi_cpu_bf16_bits_to_f32(a[row * depth + d]) *
                                             (double)kfi_cpu_bf16_bits_to_f32(b[col * depth + d]);
                            sum += x, sizes += x < 0 ? -x : x;
                        }
                        const double off = ((double)out[row * lines[j] + col] - sum) / sizes,
                                     share = (off < 0 ? -off : off) / 0x1p-21;
                        if (!(share <= worst)) worst = share;
                    }
                if (!(worst <= 1))
                    printf("wrong: %lld x %lld x %lld: %g\n", (long long)lines[i],
                           (long long)lines[j], (long long)depth, worst),
                        ++wrong;
            }
}
/* A NaN stays in its row, an infinity in its column; infinities that cancel are NaN. */
static void specials(void)
{
    static uint16_t a[ROWS * DEPTH], b[COLS * DEPTH];
    static float out[ROWS * COLS];
    int nan = 0, infinite = 0;
    fill(a, ROWS * DEPTH);
    fill(b, COLS * DEPTH);
    a[17 * DEPTH + 74] = 0x7fc1; /* the last of K, beside padding */
    a[20 * DEPTH + 3] = 0x7f80;
    a[20 * DEPTH + 70] = 0x7f80;
    b[33 * DEPTH + 40] = 0xff80;
    b[5 * DEPTH + 3] = 0x3f80;
    b[5 * DEPTH + 70] = 0xbf80; /* inf - inf in row 20, column 5 */
    multiply(a, b, out, ROWS, COLS, DEPTH);
    for (int i = 0; i < ROWS; ++i)
        for (int j = 0; j < COLS; ++j) {
            const float v = out[i * COLS + j];
            double sum = 0;
            for (int d = 0; d < DEPTH; ++d)
                sum += (double)kfi_cpu_bf16_bits_to_f32(a[i * DEPTH + d]) *
                       (double)kfi_cpu_bf16_bits_to_f32(b[j * DEPTH + d]);
            nan += v != v;
            infinite += v - v != v - v && v == v;
            if (sum != sum || sum - sum != sum - sum)
                expect((sum != sum && v != v) || (double)v == sum, "a NaN or an infinity");
            else
                expect(v - v == 0, "a finite result");
        }
    expect(nan >= COLS + 1 && infinite >= ROWS - 2, "NaN and infinities are there");
    expect(out[20 * COLS + 5] != out[20 * COLS + 5], "inf - inf");
}
/* Subnormal elements and results count as 0: what docs/families/matmul.md tells. */
static void subnormals(void)
{
    static uint16_t a[ROWS * DEPTH], b[COLS * DEPTH];
    static float out[ROWS * COLS];
    a[0] = 0x0040;             /* 2^-127 */
    b[0] = 0x7e80;             /* 2^126 */
    a[1 * DEPTH + 1] = 0x0080; /* 2^-126 */
    b[1 * DEPTH + 1] = 0x3f00; /* 0.5 */
    b[2 * DEPTH + 1] = 0x4000; /* 2 */
    multiply(a, b, out, ROWS, COLS, DEPTH);
    expect(out[0] == 0, "a subnormal element");
    expect(out[1 * COLS + 1] == 0, "a subnormal result");
    expect(out[1 * COLS + 2] == 0x1p-125f, "the least normal numbers");
}
/* Before permission the vector code runs, which keeps subnormal elements. */
static void before(void)
{
    static uint16_t a[ROWS * DEPTH], b[COLS * DEPTH];
    static float out[ROWS * COLS];
    a[0] = 0x0040;
    b[0] = 0x7e80;
    multiply(a, b, out, ROWS, COLS, DEPTH);
    expect(out[0] == 0.5f, "AMX before kf_cpu_enable_amx");
}

int main(void)
{
    before();
    if (kf_cpu_enable_amx() != KF_SUCCESS) return puts(kf_get_last_error_detail()), 2;
    expect(kf_cpu_enable_amx() == KF_SUCCESS, "a second kf_cpu_enable_amx");
    sizes();
    specials();
    subnormals();
#ifdef KFI_AMX_DOUBLE
    expect(amx_dots > 0, "AMX was used");
#endif
    printf("bits %016llx\n", (unsigned long long)bits);
    return wrong != 0;
}
