/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/skinny_rows.h: products in C of fewer rows than a tile has: A is packed as a
 * whole, B is read as it lies, once. */
#ifndef KF_CORE_MATMUL_SKINNY_ROWS_H
#define KF_CORE_MATMUL_SKINNY_ROWS_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/matmul/block.h"

KFI_C_BEGIN

/* B as core/matmul/skinny.h reads it. Of columns that are side by side, as those of a single depth
   may be, the answer must not depend on how far apart depths lie. */
KFI_HOST int kfi_cpu_gemm_is_few(const kfi_cpu_product *q)
{
    int few = q->rows <= KFI_GEMM_FEW_ROWS && q->depth > 0 && q->depth <= KFI_GEMM_FEW_DEPTH;
    for (int i = 0; i < q->products; ++i)
        few &= q->b[i].depth_step == 1 && q->b[i].line_step != 1 && !q->b[i].load;
    return few;
}
/* Vectors of all rows in turn; zeros behind the depth, and rows that there are not. */
KFI_HOST void kfi_cpu_gemm_pack_few(const kfi_cpu_product *q)
{
    const kf_i64 lanes = q->v.lanes, lines = kfi_cpu_gemm_few_lines(q->rows), unit = q->v.unit;
    KFI_ON_A_LINE char stage[KFI_GEMM_STAGE];
    memset(q->a_room, 0, kfi_cpu_gemm_few_a(q->rows, q->depth, q->v.unit));
    for (kf_i64 depth = 0; depth < q->depth; depth += KFI_GEMM_STAGED) {
        const kf_i64 depths = kfi_cpu_gemm_least(q->depth - depth, KFI_GEMM_STAGED);
        kfi_cpu_gemm_stage(q, &q->a, 0, q->rows, depth, depths, stage);
        for (kf_i64 i = 0; i < q->rows; ++i)
            for (kf_i64 d = 0; d < depths; d += lanes)
                memcpy(q->a_room + (((depth + d) / lanes * lines + i) * lanes) * unit,
                       stage + (i * depths + d) * unit,
                       (size_t)(kfi_cpu_gemm_least(depths - d, lanes) * unit));
    }
}
KFI_HOST void kfi_cpu_gemm_few_job(void *context, kf_i64 job)
{
    const kfi_cpu_product *q = (const kfi_cpu_product *)context;
    const kf_i64 col = q->col0 + job * q->p.wide,
                 cols = kfi_cpu_gemm_least(q->col0 + q->count_cols - col, q->p.wide);
    char *const c = q->c_room + (size_t)(job * q->products) * q->p.c_job;
    for (int i = 0; i < q->products; ++i)
        q->v.few((int)q->rows, q->depth, q->a_room,
                 (const char *)q->b[i].data + col * q->b[i].line_step * q->v.size,
                 q->b[i].line_step, (int)cols, c + (size_t)i * q->p.c_job, q->p.strip);
    q->store(q->seam, q->batch, 0, q->rows, col, cols, c, q->products > 1 ? c + q->p.c_job : NULL,
             q->p.strip);
}
KFI_HOST void kfi_cpu_gemm_few_rows(kfi_cpu_product *q, void *workspace)
{
    q->a_room =
        (char *)(((uintptr_t)workspace + KFI_GEMM_LINE - 1) / KFI_GEMM_LINE * KFI_GEMM_LINE);
    q->c_room = q->a_room + kfi_cpu_gemm_few_a(q->rows, q->depth, q->v.unit);
    q->p.strip = KFI_GEMM_STRIP_BYTES / q->v.unit;
    q->p.wide = kfi_cpu_gemm_wide(1, q->cols, q->p.strip);
    q->p.strip = q->p.wide;
    q->p.c_job = (size_t)(q->rows * q->p.strip * q->v.unit);
    kfi_cpu_gemm_pack_few(q);
    for (q->col0 = 0; q->col0 < q->cols; q->col0 += KFI_GEMM_FEW_COLS) {
        q->count_cols = kfi_cpu_gemm_least(q->cols - q->col0, KFI_GEMM_FEW_COLS);
        kfi_parallel(kfi_cpu_gemm_parts(q->count_cols, q->p.wide), kfi_cpu_gemm_few_job, q,
                     q->parallel);
    }
}

KFI_C_END

#endif
