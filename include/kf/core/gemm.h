/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/gemm.h: products of matrices in C, of any dtype and however their elements lie: blocks of the result, one after the other. */
#ifndef KF_CORE_GEMM_H
#define KF_CORE_GEMM_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/math.h"
#include "kf/core/parallel.h"

KFI_C_BEGIN

#define KFI_GEMM_UNIT 16 /* blocks of a result begin at rows that are multiples of it; no two of one column begin in the same such group of rows */
#define KFI_GEMM_WIDE 32 /* columns of one */
#define KFI_GEMM_DEEP 32 /* of the depth, at a time */

/* Some lines of an operand, of a row of a or of a column of b each, in what is computed in: [lines][depths]. */
typedef void (*kfi_gemm_load)(const void *seam, kf_i64 batch, kf_i64 line0, kf_i64 lines, kf_i64 depth0, kf_i64 depths, void *to);
/* A finished block of the result, rows `ld` elements apart; second: of the second product, or NULL. */
typedef void (*kfi_gemm_store)(const void *seam, kf_i64 batch, kf_i64 row0, kf_i64 rows, kf_i64 col0, kf_i64 cols, const void *block,
                               const void *second, kf_i64 ld);
/* An operand: element (line, depth) is data[line * line_step + depth * depth_step]; with `load` that gives it instead. */
typedef struct {
    const void *data;
    kf_i64 line_step, depth_step, batch_step;
    kfi_gemm_load load;
} kfi_gemm_operand;

typedef struct {
    kf_i64 batch, rows, cols, depth;
    const kfi_gemm_operand *a, *b[2];
    kfi_gemm_store store;
    const void *seam;
} kfi_gemm_call;

#define KFI_GEMM(name, type, acc, read)                                                                                                    \
    KFI_HOST void kfi_gemm_lines_##name(const kfi_gemm_call *g, const kfi_gemm_operand *o, kf_i64 batch, kf_i64 line, kf_i64 lines,        \
                                        kf_i64 depth, kf_i64 depths, acc *to)                                                              \
    {                                                                                                                                      \
        if (o->load) {                                                                                                                     \
            o->load(g->seam, batch, line, lines, depth, depths, to);                                                                       \
            return;                                                                                                                        \
        }                                                                                                                                  \
        for (kf_i64 i = 0; i < lines; ++i)                                                                                                 \
            for (kf_i64 k = 0; k < depths; ++k)                                                                                            \
                to[i * depths + k] = read(                                                                                                 \
                    ((const type *)o->data)[batch * o->batch_step + (line + i) * o->line_step + (depth + k) * o->depth_step]);             \
    }                                                                                                                                      \
    KFI_HOST void kfi_gemm_block_##name(void *context, kf_i64 block)                                                                       \
    {                                                                                                                                      \
        const kfi_gemm_call *g = (const kfi_gemm_call *)context;                                                                           \
        const kf_i64 high = (g->rows + KFI_GEMM_UNIT - 1) / KFI_GEMM_UNIT, batch = block / high, row = block % high * KFI_GEMM_UNIT;       \
        const kf_i64 rows = g->rows - row < KFI_GEMM_UNIT ? g->rows - row : KFI_GEMM_UNIT;                                                 \
        acc a[KFI_GEMM_UNIT * KFI_GEMM_DEEP], b[KFI_GEMM_WIDE * KFI_GEMM_DEEP], sums[2][KFI_GEMM_UNIT * KFI_GEMM_WIDE];                    \
        for (kf_i64 col = 0; col < g->cols; col += KFI_GEMM_WIDE) {                                                                        \
            const kf_i64 cols = g->cols - col < KFI_GEMM_WIDE ? g->cols - col : KFI_GEMM_WIDE;                                             \
            memset(sums, 0, sizeof sums);                                                                                                  \
            for (kf_i64 depth = 0; depth < g->depth; depth += KFI_GEMM_DEEP) {                                                             \
                const kf_i64 depths = g->depth - depth < KFI_GEMM_DEEP ? g->depth - depth : KFI_GEMM_DEEP;                                 \
                kfi_gemm_lines_##name(g, g->a, batch, row, rows, depth, depths, a);                                                        \
                for (int p = 0; p < 2 && g->b[p]; ++p) {                                                                                   \
                    kfi_gemm_lines_##name(g, g->b[p], batch, col, cols, depth, depths, b);                                                 \
                    for (kf_i64 i = 0; i < rows; ++i)                                                                                      \
                        for (kf_i64 j = 0; j < cols; ++j)                                                                                  \
                            for (kf_i64 k = 0; k < depths; ++k)                                                                            \
                                sums[p][i * KFI_GEMM_WIDE + j] += a[i * depths + k] * b[j * depths + k];                                   \
                }                                                                                                                          \
            }                                                                                                                              \
            g->store(g->seam, batch, row, rows, col, cols, sums[0], g->b[1] ? sums[1] : NULL, KFI_GEMM_WIDE);                              \
        }                                                                                                                                  \
    }                                                                                                                                      \
    KFI_HOST size_t kfi_gemm_bytes_##name(kf_i64 rows, kf_i64 cols, kf_i64 depth, int products)                                            \
    {                                                                                                                                      \
        (void)rows, (void)cols, (void)depth, (void)products;                                                                               \
        return 256;                                                                                                                        \
    }                                                                                                                                      \
    KFI_HOST void kfi_gemm_run_##name(kf_i64 batch, kf_i64 rows, kf_i64 cols, kf_i64 depth, const kfi_gemm_operand *a,                     \
                                      const kfi_gemm_operand *b, const kfi_gemm_operand *b2, kfi_gemm_store store, const void *seam,       \
                                      void *workspace)                                                                                     \
    {                                                                                                                                      \
        kfi_gemm_call g = {batch, rows, cols, depth, a, {b, b2}, store, seam};                                                             \
        (void)workspace;                                                                                                                   \
        if (cols > 0)                                                                                                                      \
            kfi_parallel(batch *((rows + KFI_GEMM_UNIT - 1) / KFI_GEMM_UNIT), kfi_gemm_block_##name, &g,                                   \
                         (double)batch * (double)rows * (double)cols * (double)(depth + 1) >= KF_OMP_MIN);                                 \
    }
#define KFI_AS_IT_IS(v) (v)
KFI_GEMM(f32, float, float, KFI_AS_IT_IS)
KFI_GEMM(f64, double, double, KFI_AS_IT_IS)
KFI_GEMM(f16, kf_f16, float, kfi_cpu_load_f16)
KFI_GEMM(bf16, kf_bf16, float, kfi_cpu_load_bf16)
#undef KFI_GEMM
#undef KFI_AS_IT_IS

KFI_C_END

#endif
