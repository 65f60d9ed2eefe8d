/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/amx.h: bf16 matrix product in C by AMX, if kf_cpu_enable_amx() has allowed it.

   Schedule: panels of 32 rows of A, and of 32 columns of B unless few rows read them, are packed
   in parallel. A job computes up to KFI_AMX_TALL x KFI_AMX_WIDE of the result: for each block of K
   a panel of B, which stays in the L1 cache, times all panels of A; 2 x 2 tiles of accumulators.
   Then it hands its accumulators, which are float32 in the workspace, to the store.
   Valid for operands as stored (no `load`), any strides. Order of sums: K ascending, 32 at a time,
   of which the even and the odd elements are added apart; the same for any blocking. */
#ifndef KF_CORE_MATMUL_AMX_H
#define KF_CORE_MATMUL_AMX_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/amx.h"
#include "kf/core/matmul/amx_plan.h"
#include "kf/core/matmul/block.h"

#if KFI_AMX
#include "kf/core/matmul/amx_pack.h"

KFI_C_BEGIN

typedef struct {
    const kfi_cpu_product *q;
    kfi_amx_plan p;
    kf_i64 row0, col0, depth0; /* first packed row, column and element of K */
    kf_i64 rows, cols, depths;
    int keep_b; /* B is packed already */
    int *busy;  /* accumulators in use, a flag each */
    char *a_room, *b_room, *c_room;
} kfi_amx_run;

/* Returns whether AMX multiplies these operands. */
KFI_HOST int kfi_amx_takes(const kfi_gemm_operand *a, const kfi_gemm_operand *b,
                           const kfi_gemm_operand *b2)
{
    return kfi_amx_enabled() && !a->load && !b->load && !(b2 && b2->load);
}

/* c[32][32] = panel of A times panel of B, or (add) c + that. */
KFI_AMX_TARGET static KFI_APART __attribute__((unused)) void
kfi_amx_square(kf_i64 steps, const char *a, const char *b, float *c, kf_i64 pitch, int add)
{
    const kf_i64 row = pitch * (kf_i64)sizeof *c;
    if (add) {
        KFI_AMX_LOAD(0, c, row);
        KFI_AMX_LOAD(1, c + 16, row);
        KFI_AMX_LOAD(2, c + 16 * pitch, row);
        KFI_AMX_LOAD(3, c + 16 * pitch + 16, row);
    } else {
        KFI_AMX_ZERO(0);
        KFI_AMX_ZERO(1);
        KFI_AMX_ZERO(2);
        KFI_AMX_ZERO(3);
    }
    for (; steps > 0; --steps, a += 2 * KFI_AMX_TILE, b += 2 * KFI_AMX_TILE) {
        KFI_AMX_LOAD(4, a, 64);
        KFI_AMX_LOAD(6, b, 64);
        KFI_AMX_DOT(0, 4, 6);
        KFI_AMX_LOAD(7, b + KFI_AMX_TILE, 64);
        KFI_AMX_DOT(1, 4, 7);
        KFI_AMX_LOAD(5, a + KFI_AMX_TILE, 64);
        KFI_AMX_DOT(2, 5, 6);
        KFI_AMX_DOT(3, 5, 7);
    }
    KFI_AMX_STORE(0, c, row);
    KFI_AMX_STORE(1, c + 16, row);
    KFI_AMX_STORE(2, c + 16 * pitch, row);
    KFI_AMX_STORE(3, c + 16 * pitch + 16, row);
}
/* The same for panels of which one has at most 16 lines: two tiles of accumulators. `a_tiles`,
   `b_tiles`: 1 or 2, not both 2. */
KFI_AMX_TARGET static KFI_APART __attribute__((unused)) void
kfi_amx_narrow(int a_tiles, int b_tiles, kf_i64 steps, const char *a, const char *b, float *c,
               kf_i64 pitch, int add)
{
    const kf_i64 row = pitch * (kf_i64)sizeof *c;
    const int two = a_tiles + b_tiles > 2;
    float *const c2 = c + (a_tiles > 1 ? 16 * pitch : 16);
    if (add) {
        KFI_AMX_LOAD(0, c, row);
        if (two) KFI_AMX_LOAD(1, c2, row);
    } else {
        KFI_AMX_ZERO(0);
        KFI_AMX_ZERO(1);
    }
    for (; steps > 0; --steps, a += 2 * KFI_AMX_TILE, b += 2 * KFI_AMX_TILE) {
        KFI_AMX_LOAD(4, a, 64);
        KFI_AMX_LOAD(6, b, 64);
        KFI_AMX_DOT(0, 4, 6);
        if (a_tiles > 1) {
            KFI_AMX_LOAD(5, a + KFI_AMX_TILE, 64);
            KFI_AMX_DOT(1, 5, 6);
        } else if (b_tiles > 1) {
            KFI_AMX_LOAD(7, b + KFI_AMX_TILE, 64);
            KFI_AMX_DOT(1, 4, 7);
        }
    }
    KFI_AMX_STORE(0, c, row);
    if (two) KFI_AMX_STORE(1, c2, row);
}

/* Packs a panel of the current rows of A, then columns of B. */
KFI_HOST void kfi_amx_pack_job(void *context, kf_i64 job)
{
    const kfi_amx_run *const r = (const kfi_amx_run *)context;
    const kf_i64 a_panels = kfi_cpu_gemm_parts(r->rows, KFI_AMX_LINES),
                 b_panels = kfi_cpu_gemm_parts(r->cols, KFI_AMX_LINES);
    if (job < a_panels) {
        const kf_i64 row = job * KFI_AMX_LINES;
        kfi_amx_pack(&r->q->a, 0, r->row0 + row, kfi_cpu_gemm_least(r->rows - row, KFI_AMX_LINES),
                     r->depth0, r->depths, r->a_room + (size_t)job * r->p.panel);
        return;
    }
    const kf_i64 part = job - a_panels, col = part % b_panels * KFI_AMX_LINES;
    kfi_amx_pack(&r->q->b[part / b_panels], 1, r->col0 + col,
                 kfi_cpu_gemm_least(r->cols - col, KFI_AMX_LINES), r->depth0, r->depths,
                 r->b_room + (size_t)part * r->p.panel);
}

/* Multiplies one panel of B, columns [col, col + cols), by a job's rows of A. depth: the first of K
   among the packed ones. c: the panel's accumulators. */
KFI_HOST void kfi_amx_columns(const kfi_amx_run *r, kf_i64 row, kf_i64 rows, kf_i64 cols,
                              kf_i64 depth, const char *b, float *c)
{
    const kf_i64 depths = kfi_cpu_gemm_least(r->depths - depth, r->p.block),
                 steps = kfi_cpu_gemm_parts(depths, KFI_AMX_STEP);
    const int add = r->depth0 + depth > 0;
    for (kf_i64 i = 0; i < rows; i += KFI_AMX_LINES) {
        const char *const a = r->a_room + (size_t)((row + i) / KFI_AMX_LINES) * r->p.panel +
                              (size_t)(depth / KFI_AMX_STEP) * 2 * KFI_AMX_TILE;
        float *const to = c + i * r->p.pitch;
        if (rows - i > 16 && cols > 16)
            kfi_amx_square(steps, a, b, to, r->p.pitch, add);
        else
            kfi_amx_narrow(rows - i > 16 ? 2 : 1, cols > 16 ? 2 : 1, steps, a, b, to, r->p.pitch,
                           add);
    }
}
/* Multiplies the packed elements of K of a job. room: its own panel of B, if fused. */
KFI_HOST void kfi_amx_multiply(const kfi_amx_run *r, kf_i64 row, kf_i64 rows, kf_i64 col,
                               kf_i64 cols, char *room, char *c)
{
    const kf_i64 b_panels = kfi_cpu_gemm_parts(r->cols, KFI_AMX_LINES);
    kfi_amx_configure();
    for (kf_i64 depth = 0; depth < r->depths; depth += r->p.block)
        for (int product = 0; product < r->q->products; ++product)
            for (kf_i64 j = 0; j < cols; j += KFI_AMX_LINES) {
                const kf_i64 lines = kfi_cpu_gemm_least(cols - j, KFI_AMX_LINES);
                const char *b = room;
                if (r->p.fused)
                    kfi_amx_pack(&r->q->b[product], 1, r->col0 + col + j, lines, r->depth0 + depth,
                                 kfi_cpu_gemm_least(r->depths - depth, r->p.block), room);
                else
                    b = r->b_room +
                        (size_t)(product * b_panels + (col + j) / KFI_AMX_LINES) * r->p.panel +
                        (size_t)(depth / KFI_AMX_STEP) * 2 * KFI_AMX_TILE;
                kfi_amx_columns(r, row, rows, lines, depth, b,
                                (float *)(void *)(c + (size_t)product * r->p.c_job) + j);
            }
    kfi_amx_release();
}
/* Takes accumulators that no other job uses, the same ones again if possible: they are in the
   thread's cache. There are as many as jobs. */
KFI_HOST kf_i64 kfi_amx_claim(const kfi_amx_run *r)
{
    kf_i64 slot = 0;
    while (__atomic_exchange_n(&r->busy[slot], 1, __ATOMIC_ACQUIRE)) slot = (slot + 1) % r->p.jobs;
    return slot;
}
KFI_HOST void kfi_amx_job(void *context, kf_i64 job)
{
    const kfi_amx_run *const r = (const kfi_amx_run *)context;
    const kfi_cpu_product *const q = r->q;
    const kf_i64 row_jobs = kfi_cpu_gemm_parts(r->rows, r->p.tall),
                 row = job % row_jobs * r->p.tall, col = job / row_jobs * r->p.wide,
                 rows = kfi_cpu_gemm_least(r->rows - row, r->p.tall),
                 cols = kfi_cpu_gemm_least(r->cols - col, r->p.wide);
    const int kept = r->p.groups > 1; /* accumulators wait for the next part of K */
    const kf_i64 slot = kept ? job : kfi_amx_claim(r);
    char *const room = r->c_room + (size_t)slot * (r->p.b_panel + r->p.c_job * (size_t)q->products),
                *const c = room + r->p.b_panel;
    if (q->depth > 0)
        kfi_amx_multiply(r, row, rows, col, cols, room, c);
    else
        memset(c, 0, r->p.c_job * (size_t)q->products);
    for (kf_i64 i = 0; r->depth0 + r->depths >= q->depth && i < rows; i += KFI_GEMM_UNIT) {
        const char *const sums = c + (size_t)(i * r->p.pitch) * sizeof(float);
        q->store(q->seam, q->batch, r->row0 + row + i, kfi_cpu_gemm_least(rows - i, KFI_GEMM_UNIT),
                 r->col0 + col, cols, sums, q->products > 1 ? sums + r->p.c_job : NULL, r->p.pitch);
    }
    if (!kept) __atomic_store_n(&r->busy[slot], 0, __ATOMIC_RELEASE);
}

/* Packs and multiplies the current rows and columns. */
KFI_HOST void kfi_amx_blocks(kfi_amx_run *r)
{
    const kf_i64 jobs =
        kfi_cpu_gemm_parts(r->rows, r->p.tall) * kfi_cpu_gemm_parts(r->cols, r->p.wide);
    for (kf_i64 group = 0; group < r->p.groups; ++group) {
        r->depth0 = group * r->p.group;
        r->depths = kfi_cpu_gemm_least(r->q->depth - r->depth0, r->p.group);
        const kf_i64 a_panels = kfi_cpu_gemm_parts(r->rows, KFI_AMX_LINES),
                     b_panels = r->p.fused || (r->keep_b && r->p.groups == 1)
                                    ? 0
                                    : kfi_cpu_gemm_parts(r->cols, KFI_AMX_LINES);
        if (r->depths > 0)
            kfi_parallel(a_panels + b_panels * r->q->products, kfi_amx_pack_job, r, r->q->parallel);
        kfi_parallel(jobs, kfi_amx_job, r, r->q->parallel);
    }
}
KFI_HOST void kfi_amx_product(const kfi_cpu_product *q, void *workspace)
{
    kfi_amx_run r;
    memset(&r, 0, sizeof r);
    r.q = q;
    r.p = kfi_amx_make_plan(q->rows, q->cols, q->depth, q->products);
    char *const room =
        (char *)(((uintptr_t)workspace + KFI_GEMM_LINE - 1) / KFI_GEMM_LINE * KFI_GEMM_LINE);
    r.busy = (int *)(void *)room;
    memset(r.busy, 0, r.p.flags);
    r.a_room = room + r.p.flags;
    r.b_room = r.a_room + r.p.a_bytes;
    r.c_room = r.b_room + r.p.b_bytes;
    for (r.col0 = 0; r.col0 < q->cols; r.col0 += r.p.cols)
        for (r.row0 = 0; r.row0 < q->rows; r.row0 += r.p.rows) {
            r.rows = kfi_cpu_gemm_least(q->rows - r.row0, r.p.rows);
            r.cols = kfi_cpu_gemm_least(q->cols - r.col0, r.p.cols);
            r.keep_b = r.row0 > 0;
            kfi_amx_blocks(&r);
        }
}

KFI_C_END
#endif

#endif
