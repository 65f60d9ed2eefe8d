/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/amx_plan.h: blocking of a bf16 product by AMX. It follows from the sizes alone, as
   core/matmul/plan.h's; K is accumulated KFI_AMX_STEP at a time in any case, so that the blocking
   changes no bits. */
#ifndef KF_CORE_MATMUL_AMX_PLAN_H
#define KF_CORE_MATMUL_AMX_PLAN_H

#include "kf/core/host.h"

#include "kf/core/matmul/plan.h"

#define KFI_AMX_STEP 32      /* elements of K that an instruction multiplies */
#define KFI_AMX_LINES 32     /* rows of A or columns of B per panel: two tiles */
#define KFI_AMX_TILE 1024    /* bytes of a tile */
#define KFI_AMX_PART 96      /* rows of a job: a multiple of this, of panels and KFI_GEMM_UNITs */
#define KFI_AMX_SMALL_JOBS 8 /* jobs come in multiples of this, */
#define KFI_AMX_MANY_JOBS 64 /* unless there are so many */
#define KFI_AMX_A_BYTES 0x600000 /* bytes of packed rows of A, about */
#define KFI_AMX_SPEED 8          /* work that one thread does alone, over that without AMX */
#ifndef KFI_AMX_LONGEST
#define KFI_AMX_LONGEST 32768 /* elements of K of them, at most */
#endif
#ifndef KFI_AMX_DEPTH
#define KFI_AMX_DEPTH 512 /* elements of K per pass over a job's accumulators */
#endif
#ifndef KFI_AMX_TALL
#define KFI_AMX_TALL 384 /* rows and columns of a job, at most */
#endif
#ifndef KFI_AMX_WIDE
#define KFI_AMX_WIDE 384
#endif
#ifndef KFI_AMX_ROWS
#define KFI_AMX_ROWS 768 /* rows, columns and elements of K that are packed at a time, at most */
#endif
#ifndef KFI_AMX_COLS
#define KFI_AMX_COLS 2304
#endif
#ifndef KFI_AMX_GROUP
#define KFI_AMX_GROUP 4096
#endif

typedef struct {
    kf_i64 group, groups;     /* elements of K packed at a time; how often */
    kf_i64 block;             /* elements of K per pass */
    kf_i64 rows, cols;        /* packed at a time */
    kf_i64 tall, wide, pitch; /* rows and columns of a job; pitch of its accumulators */
    kf_i64 row_jobs, jobs;    /* at most, of what is packed */
    int fused;                /* one row of jobs: each packs its columns of B itself */
    size_t panel, b_panel;    /* bytes of a packed panel; of a job's own one if fused */
    size_t flags, a_bytes, b_bytes, c_job, c_bytes;
} kfi_amx_plan;

/* Columns per job, such that jobs are a multiple of KFI_AMX_SMALL_JOBS and share evenly. */
KFI_HOST kf_i64 kfi_amx_wide(kf_i64 row_jobs, kf_i64 cols)
{
    kf_i64 jobs = row_jobs * kfi_cpu_gemm_parts(cols, KFI_AMX_WIDE);
    if (jobs < KFI_AMX_MANY_JOBS)
        jobs = kfi_cpu_gemm_parts(jobs, KFI_AMX_SMALL_JOBS) * KFI_AMX_SMALL_JOBS;
    return kfi_cpu_gemm_share(cols, kfi_cpu_gemm_parts(cols, kfi_cpu_gemm_parts(jobs, row_jobs)),
                              KFI_AMX_LINES);
}
KFI_HOST kfi_amx_plan kfi_amx_make_plan(kf_i64 rows, kf_i64 cols, kf_i64 depth, int products)
{
    kfi_amx_plan p;
    if (rows < 1) rows = 1; /* space is asked for of empty products too */
    if (cols < 1) cols = 1;
    p.rows = kfi_cpu_gemm_share(rows, KFI_AMX_ROWS, KFI_AMX_PART);
    p.cols = kfi_cpu_gemm_share(cols, KFI_AMX_COLS, KFI_AMX_LINES);
    p.tall = kfi_cpu_gemm_share(p.rows, KFI_AMX_TALL, KFI_AMX_PART);
    const kf_i64 most_rows = kfi_cpu_gemm_least(rows, p.rows),
                 most_cols = kfi_cpu_gemm_least(cols, p.cols);
    p.row_jobs = kfi_cpu_gemm_parts(most_rows, p.tall);
    p.fused = rows <= p.tall;
    p.wide = kfi_amx_wide(p.row_jobs, most_cols);
    p.jobs = p.row_jobs * kfi_cpu_gemm_parts(most_cols, p.wide);
    p.pitch = p.wide + 16; /* rows 2 KiB apart would share a set of the L1 cache */
    kf_i64 longest = KFI_AMX_GROUP;
    if (p.fused && KFI_AMX_A_BYTES / 2 / p.rows > longest)
        longest = kfi_cpu_gemm_least(KFI_AMX_A_BYTES / 2 / p.rows, KFI_AMX_LONGEST);
    p.group = kfi_cpu_gemm_share(depth, longest, KFI_AMX_STEP);
    p.groups = depth > p.group ? kfi_cpu_gemm_parts(depth, p.group) : 1;
    p.block = kfi_cpu_gemm_share(p.group, KFI_AMX_DEPTH, KFI_AMX_STEP);
    p.panel = (size_t)(p.group / KFI_AMX_STEP) * 2 * KFI_AMX_TILE;
    p.b_panel = p.fused ? (size_t)(p.block / KFI_AMX_STEP) * 2 * KFI_AMX_TILE : 0;
    p.flags = kfi_cpu_gemm_line((size_t)p.jobs * sizeof(int));
    p.a_bytes = (size_t)kfi_cpu_gemm_parts(most_rows, KFI_AMX_LINES) * p.panel;
    p.b_bytes =
        p.fused ? 0 : (size_t)(kfi_cpu_gemm_parts(most_cols, KFI_AMX_LINES) * products) * p.panel;
    const kf_i64 lines = kfi_cpu_gemm_parts(most_rows, KFI_AMX_LINES) * KFI_AMX_LINES;
    p.c_job = (size_t)(kfi_cpu_gemm_least(p.tall, lines) * p.pitch) * sizeof(float);
    p.c_bytes = (size_t)p.jobs * (p.b_panel + p.c_job * (size_t)products);
    return p;
}
/* Workspace of one product in bytes. */
KFI_HOST size_t kfi_amx_bytes(kf_i64 rows, kf_i64 cols, kf_i64 depth, int products)
{
    const kfi_amx_plan p = kfi_amx_make_plan(rows, cols, depth, products);
    return p.flags + p.a_bytes + p.b_bytes + p.c_bytes + KFI_GEMM_LINE;
}

#endif
