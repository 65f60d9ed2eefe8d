/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/block.h: blocked matrix product in C. Panels of both operands are packed. Jobs of
   up to KFI_GEMM_TALL rows and KFI_GEMM_STRIP_BYTES of columns accumulate over K. They hand
   finished rows of tiles to the store while these are in the L1 cache.
 */
#ifndef KF_CORE_MATMUL_BLOCK_H
#define KF_CORE_MATMUL_BLOCK_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/matmul/plan.h"
#include "kf/core/parallel.h"
#include "kf/core/stream.h"

KFI_C_BEGIN

typedef struct {
    kfi_cpu_gemm_lanes v;
    kfi_cpu_gemm_plan p;
    kfi_gemm_operand a, b[2];
    int products, parallel;
    kfi_gemm_store store;
    const void *seam;
    kfi_gemm_result result;
    kf_i64 batch, rows, cols, depth;
    kf_i64 row0, col0, block0; /* first packed row, column, and block of K */
    kf_i64 count_rows, count_cols, count_blocks;
    kf_i64 row_jobs;
    char *a_room, *b_room, *c_room;
} kfi_cpu_product;

/* Elements of K in a block; 0 if the depth is 0. */
KFI_INLINE kf_i64 kfi_cpu_gemm_depths(const kfi_cpu_product *q, kf_i64 block)
{
    return kfi_cpu_gemm_least(q->depth - block * q->p.depth, q->p.depth);
}
KFI_INLINE char *kfi_cpu_gemm_a_at(const kfi_cpu_product *q, kf_i64 block, kf_i64 row)
{
    return q->a_room +
           (size_t)(block * q->p.a_panels + row / q->v.rows) * kfi_cpu_gemm_line(q->p.a_panel);
}
KFI_INLINE char *kfi_cpu_gemm_b_at(const kfi_cpu_product *q, int product, kf_i64 block, kf_i64 col)
{
    const kf_i64 blocks = q->p.fused ? 1 : kfi_cpu_gemm_least(q->p.blocks, KFI_GEMM_GROUP);
    return q->b_room + (size_t)((product * blocks + (q->p.fused ? 0 : block)) * q->p.b_panels +
                                col / q->v.cols) *
                           kfi_cpu_gemm_line(q->p.b_panel);
}

/* Stages rows of A or columns of B, at most a panel's, that a function loads or whose steps packing
 * does not read. */
KFI_HOST void kfi_cpu_gemm_stage(const kfi_cpu_product *q, const kfi_gemm_operand *o, kf_i64 line,
                                 kf_i64 lines, kf_i64 depth, kf_i64 depths, void *to)
{
    if (o->load) {
        o->load(q->seam, q->batch, line, lines, depth, depths, to);
        return;
    }
    const char *const from =
        (const char *)o->data + (line * o->line_step + depth * o->depth_step) * q->v.size;
    q->v.gather(to, lines, depths, from, o->line_step, o->depth_step);
}
/* Packs a panel. */
KFI_HOST void kfi_cpu_gemm_panel(const kfi_cpu_product *q, const kfi_gemm_operand *o, int is_b,
                                 kf_i64 line, kf_i64 lines, kf_i64 block, char *to)
{
    const kf_i64 depth = block * q->p.depth, depths = kfi_cpu_gemm_depths(q, block),
                 width = is_b ? q->v.cols : q->v.rows;
    if (!o->load && (o->depth_step == 1 || o->line_step == 1)) {
        const char *const from =
            (const char *)o->data + (line * o->line_step + depth * o->depth_step) * q->v.size;
        q->v.pack(to, is_b, (int)lines, depths, from, o->line_step, o->depth_step);
        return;
    }
    KFI_ON_A_LINE char stage[KFI_GEMM_STAGE];
    for (kf_i64 d = 0; d < depths; d += KFI_GEMM_STAGED) {
        const kf_i64 count = kfi_cpu_gemm_least(depths - d, KFI_GEMM_STAGED);
        kfi_cpu_gemm_stage(q, o, line, lines, depth + d, count, stage);
        q->v.pack_loaded(to + d * width * q->v.unit, is_b, (int)lines, count, stage, count, 1);
    }
}
/* Packs columns of B from a panel's first on. col: relative to the packed columns. */
KFI_HOST void kfi_cpu_gemm_pack_b(const kfi_cpu_product *q, kf_i64 block, kf_i64 col, kf_i64 cols)
{
    for (int product = 0; product < q->products; ++product)
        for (kf_i64 j = col; j < col + cols; j += q->v.cols)
            kfi_cpu_gemm_panel(q, &q->b[product], 1, q->col0 + j,
                               kfi_cpu_gemm_least(col + cols - j, q->v.cols), q->block0 + block,
                               kfi_cpu_gemm_b_at(q, product, block, j));
}
/* Rows of A per packing job: about as much work as a panel of B. */
KFI_INLINE kf_i64 kfi_cpu_gemm_a_lines(const kfi_cpu_product *q)
{
    return kfi_cpu_gemm_parts(q->v.cols, q->v.rows) * q->v.rows;
}
KFI_HOST void kfi_cpu_gemm_pack_job(void *context, kf_i64 job)
{
    const kfi_cpu_product *q = (const kfi_cpu_product *)context;
    const kf_i64 each = kfi_cpu_gemm_a_lines(q), a_jobs = kfi_cpu_gemm_parts(q->count_rows, each);
    const kf_i64 b_jobs = q->p.fused ? 0 : kfi_cpu_gemm_parts(q->count_cols, q->v.cols);
    const kf_i64 block = job / (a_jobs + b_jobs), part = job % (a_jobs + b_jobs);
    if (part >= a_jobs) {
        const kf_i64 col = (part - a_jobs) * q->v.cols;
        kfi_cpu_gemm_pack_b(q, block, col, kfi_cpu_gemm_least(q->count_cols - col, q->v.cols));
        return;
    }
    const kf_i64 end = kfi_cpu_gemm_least(q->count_rows, (part + 1) * each);
    for (kf_i64 i = part * each; i < end; i += q->v.rows)
        kfi_cpu_gemm_panel(q, &q->a, 0, q->row0 + i, kfi_cpu_gemm_least(end - i, q->v.rows),
                           q->block0 + block, kfi_cpu_gemm_a_at(q, block, i));
}

/* Multiplies a panel of A by the columns of a job. c: accumulators of the first product; those of
 * the second are c_job bytes behind. */
KFI_HOST void kfi_cpu_gemm_tiles(const kfi_cpu_product *q, kf_i64 block, kf_i64 row, kf_i64 rows,
                                 kf_i64 col, kf_i64 cols, char *c)
{
    const kf_i64 depths = kfi_cpu_gemm_depths(q, q->block0 + block);
    const char *const a = kfi_cpu_gemm_a_at(q, block, row);
    for (int product = 0; product < q->products; ++product)
        for (kf_i64 j = 0; j < cols; j += q->v.cols)
            q->v.tile((int)rows, depths, a, kfi_cpu_gemm_b_at(q, product, block, col + j),
                      c + (size_t)product * q->p.c_job + j * q->v.unit, q->p.strip,
                      q->block0 + block > 0);
}
/* Prefetches rows of the result that the store is about to write. */
KFI_HOST void kfi_cpu_gemm_fetch(const kfi_cpu_product *q, kf_i64 row, kf_i64 rows, kf_i64 col,
                                 kf_i64 cols)
{
    const kfi_gemm_result *const r = &q->result;
    for (kf_i64 i = row; r->data && i < row + rows; ++i) {
        const char *const at =
            (const char *)r->data + (q->batch * r->batch_step + i * r->row_step + col) * r->size;
        for (kf_i64 byte = 0; byte < cols * r->size; byte += KFI_GEMM_LINE)
            KFI_GEMM_PREFETCH(at + byte);
    }
}
KFI_HOST void kfi_cpu_gemm_job(void *context, kf_i64 job)
{
    const kfi_cpu_product *q = (const kfi_cpu_product *)context;
    const kf_i64 row = job % q->row_jobs * q->p.tall,
                 col = job / q->row_jobs * q->p.wide; /* consecutive jobs share columns */
    const kf_i64 end = kfi_cpu_gemm_least(q->count_rows, row + q->p.tall),
                 cols = kfi_cpu_gemm_least(q->count_cols - col, q->p.wide);
    char *const c = q->c_room + (size_t)(job * q->products) * q->p.c_job;
    for (kf_i64 block = 0; block < q->count_blocks; ++block) {
        const int last = q->block0 + block == q->p.blocks - 1;
        if (q->p.fused && q->depth > 0) kfi_cpu_gemm_pack_b(q, block, col, cols);
        for (kf_i64 unit = row; unit < end; unit += KFI_GEMM_UNIT) {
            const kf_i64 rows = kfi_cpu_gemm_least(end - unit, KFI_GEMM_UNIT),
                         step = q->p.strip * q->v.unit;
            char *const sums = c + (q->p.blocks > 1 ? (unit - row) * step : 0);
            for (kf_i64 i = 0; i < rows; i += q->v.rows) {
                const kf_i64 some = kfi_cpu_gemm_least(rows - i, q->v.rows);
                if (last) kfi_cpu_gemm_fetch(q, q->row0 + unit + i, some, q->col0 + col, cols);
                kfi_cpu_gemm_tiles(q, block, unit + i, some, col, cols, sums + i * step);
            }
            if (last)
                q->store(q->seam, q->batch, q->row0 + unit, rows, q->col0 + col, cols, sums,
                         q->products > 1 ? sums + q->p.c_job : NULL, q->p.strip);
        }
    }
}

/* Packs and multiplies the blocks of K of the current rows and columns. */
KFI_HOST void kfi_cpu_gemm_blocks(kfi_cpu_product *q)
{
    const kf_i64 group = kfi_cpu_gemm_least(q->p.blocks, KFI_GEMM_GROUP);
    const kf_i64 a_each = kfi_cpu_gemm_a_lines(q);
    for (q->block0 = 0; q->block0 < q->p.blocks; q->block0 += group) {
        q->count_blocks = kfi_cpu_gemm_least(q->p.blocks - q->block0, group);
        const kf_i64 a_jobs = kfi_cpu_gemm_parts(q->count_rows, a_each),
                     b_jobs = q->p.fused ? 0 : kfi_cpu_gemm_parts(q->count_cols, q->v.cols);
        kfi_parallel(q->depth > 0 ? (a_jobs + b_jobs) * q->count_blocks : 0, kfi_cpu_gemm_pack_job,
                     q, q->parallel);
        kfi_parallel(q->row_jobs * kfi_cpu_gemm_parts(q->count_cols, q->p.wide), kfi_cpu_gemm_job,
                     q, q->parallel);
    }
}
KFI_HOST void kfi_cpu_gemm_blocks_of(kfi_cpu_product *q, void *workspace)
{
    q->p = kfi_cpu_gemm_make_plan(q->v.rows, q->v.cols, q->v.unit, q->rows, q->cols, q->depth,
                                  q->products);
    q->a_room =
        (char *)(((uintptr_t)workspace + KFI_GEMM_LINE - 1) / KFI_GEMM_LINE * KFI_GEMM_LINE);
    q->b_room = q->a_room + q->p.a_bytes;
    q->c_room = q->b_room + q->p.b_bytes;
    for (q->col0 = 0; q->col0 < q->cols; q->col0 += q->p.cols)
        for (q->row0 = 0; q->row0 < q->rows; q->row0 += q->p.rows) {
            q->count_rows = kfi_cpu_gemm_least(q->rows - q->row0, q->p.rows);
            q->count_cols = kfi_cpu_gemm_least(q->cols - q->col0, q->p.cols);
            q->row_jobs = kfi_cpu_gemm_parts(q->count_rows, q->p.tall);
            kfi_cpu_gemm_blocks(q);
        }
}

KFI_C_END

#endif
