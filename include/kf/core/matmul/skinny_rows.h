/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/skinny_rows.h: matrix products in C with skinny M, fewer rows than a tile: A is
 * packed as a whole, B is read once, unpacked. */
#ifndef KF_CORE_MATMUL_SKINNY_ROWS_H
#define KF_CORE_MATMUL_SKINNY_ROWS_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/matmul/block.h"

KFI_C_BEGIN

/* Returns whether core/matmul/skinny.h takes the product: B is K-contiguous. Columns that are
   contiguous, too (depth 1), are excluded, so that the answer does not depend on the stride along
   K. */
KFI_HOST int kfi_cpu_gemm_is_skinny(const kfi_cpu_product *q)
{
    int skinny =
        q->rows <= KFI_GEMM_SKINNY_ROWS && q->depth > 0 && q->depth <= KFI_GEMM_SKINNY_DEPTH;
    for (int i = 0; i < q->products; ++i)
        skinny &= q->b[i].depth_step == 1 && q->b[i].line_step != 1 && !q->b[i].load;
    return skinny;
}
/* Packs A as vectors, interleaved over the rows; pads K and rows with zeros. */
KFI_HOST void kfi_cpu_gemm_pack_skinny(const kfi_cpu_product *q)
{
    const kf_i64 lanes = q->v.lanes, lines = kfi_cpu_gemm_skinny_rows(q->rows), unit = q->v.unit;
    KFI_ON_A_LINE char stage[KFI_GEMM_STAGE];
    memset(q->a_room, 0, kfi_cpu_gemm_skinny_bytes(q->rows, q->depth, q->v.unit));
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
KFI_HOST void kfi_cpu_gemm_skinny_job(void *context, kf_i64 job)
{
    const kfi_cpu_product *q = (const kfi_cpu_product *)context;
    const kf_i64 col = q->col0 + job * q->p.wide,
                 cols = kfi_cpu_gemm_least(q->col0 + q->count_cols - col, q->p.wide);
    char *const c = q->c_room + (size_t)(job * q->products) * q->p.c_job;
    for (int i = 0; i < q->products; ++i)
        q->v.skinny((int)q->rows, q->depth, q->a_room,
                    (const char *)q->b[i].data + col * q->b[i].line_step * q->v.size,
                    q->b[i].line_step, (int)cols, c + (size_t)i * q->p.c_job, q->p.strip);
    q->store(q->seam, q->batch, 0, q->rows, col, cols, c, q->products > 1 ? c + q->p.c_job : NULL,
             q->p.strip);
}
KFI_HOST void kfi_cpu_gemm_skinny(kfi_cpu_product *q, void *workspace)
{
    q->a_room =
        (char *)(((uintptr_t)workspace + KFI_GEMM_LINE - 1) / KFI_GEMM_LINE * KFI_GEMM_LINE);
    q->c_room = q->a_room + kfi_cpu_gemm_skinny_bytes(q->rows, q->depth, q->v.unit);
    q->p.strip = KFI_GEMM_STRIP_BYTES / q->v.unit;
    q->p.wide = kfi_cpu_gemm_wide(1, q->cols, q->p.strip);
    q->p.strip = q->p.wide;
    q->p.c_job = (size_t)(q->rows * q->p.strip * q->v.unit);
    kfi_cpu_gemm_pack_skinny(q);
    for (q->col0 = 0; q->col0 < q->cols; q->col0 += KFI_GEMM_SKINNY_COLS) {
        q->count_cols = kfi_cpu_gemm_least(q->cols - q->col0, KFI_GEMM_SKINNY_COLS);
        kfi_parallel(kfi_cpu_gemm_parts(q->count_cols, q->p.wide), kfi_cpu_gemm_skinny_job, q,
                     q->parallel);
    }
}

KFI_C_END

#endif
