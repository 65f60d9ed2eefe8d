/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/plan.h: matrix products in C: operands, and the blocking of a product.

   The plan follows from the sizes alone: results depend neither on the number of threads nor on the
   batch. A block of K fits: a panel of A stays in the L1 cache, the blocks of B in the L2. Panels
   and accumulators are in the caller's workspace. */
#ifndef KF_CORE_MATMUL_PLAN_H
#define KF_CORE_MATMUL_PLAN_H

#include "kf/core/host.h"

#include <stddef.h>

#include "kf/core/config.h"
#include "kf/core/dtype.h"

#define KFI_GEMM_LINE 64            /* alignment of panels, and padding behind one, in bytes */
#define KFI_GEMM_DEPTH_BYTES 2048   /* bytes of K per row or column of a panel */
#define KFI_GEMM_AHEAD 16           /* elements of K by which a tile prefetches its panel of B */
#define KFI_GEMM_UNIT 48            /* rows of a block of the result, a multiple of every tile's */
#define KFI_GEMM_TALL 192           /* rows that share a block of B */
#define KFI_GEMM_GROUP 4            /* blocks of K that are packed at a time */
#define KFI_GEMM_AT_ONCE 1024       /* rows, and columns, that are packed at a time */
#define KFI_GEMM_STRIP_BYTES 512    /* bytes of a row of a block of the result */
#define KFI_GEMM_LEAST 32           /* columns of such a block, at least, if there are enough */
#define KFI_GEMM_JOBS 8             /* jobs to aim for */
#define KFI_GEMM_SKINNY_ROWS 8      /* rows up to which B is not packed (skinny M), */
#define KFI_GEMM_SKINNY_DEPTH 65536 /* for a depth up to this, */
#define KFI_GEMM_SKINNY_COLS 16384  /* with so many columns at a time */
#define KFI_GEMM_STAGED 64          /* elements of K that are staged at a time before packing */
#define KFI_GEMM_STAGE 8192         /* bytes of the stage, for all rows or columns of a panel */
#define KFI_GEMM_SMALL 16384        /* bytes of a product whose batches run in parallel, */
#define KFI_GEMM_SLOTS 8            /* so many at a time */

#if defined(__GNUC__)
#define KFI_GEMM_PREFETCH(at) __builtin_prefetch(at)
#else
#define KFI_GEMM_PREFETCH(at) (void)(at)
#endif

/* Loads rows of A or columns of B [lines][depths], contiguous, converted to the accumulators' type.
 * Any thread may ask for the same elements repeatedly. */
typedef void (*kfi_gemm_load)(const void *seam, kf_i64 batch, kf_i64 line0, kf_i64 lines,
                              kf_i64 depth0, kf_i64 depths, void *to);
/* An operand. line_step: elements between rows of A or columns of B; depth_step: along K. `load`
 * converts elements; NULL reads them as stored. */
typedef struct {
    const void *data;
    kf_i64 line_step, depth_step, batch_step;
    kfi_gemm_load load;
} kfi_gemm_operand;
/* Stores a finished block of the result, up to KFI_GEMM_UNIT rows; row0 is a multiple of it. ld:
   pitch of the accumulators, which are readable and undefined past the last column. second: the
   second product's, or NULL. */
typedef void (*kfi_gemm_store)(const void *seam, kf_i64 batch, kf_i64 row0, kf_i64 rows,
                               kf_i64 col0, kf_i64 cols, const void *block, const void *second,
                               kf_i64 ld);

/* The tensor that the store writes, for prefetches. Steps in elements of `size` bytes. */
typedef struct {
    const void *data;
    kf_i64 row_step, batch_step;
    int size;
} kfi_gemm_result;

/* Functions for one element type and vector width (core/matmul/lanes.h). */
typedef struct {
    int rows, cols, lanes; /* tile size, also the widths of panels of A and B; lanes of a vector */
    int unit, size;        /* bytes of an accumulator, of an element */
    /* c[rows][tile cols] = panel of A times panel of B, or (add) c + that. */
    void (*tile)(int rows, kf_i64 depths, const void *a, const void *b, void *c, kf_i64 ld,
                 int add);
    /* Packs a panel, of stored elements or of loaded numbers. One of the steps is 1. */
    void (*pack)(void *to, int is_b, int lines, kf_i64 depths, const void *from, kf_i64 line_step,
                 kf_i64 depth_step);
    void (*pack_loaded)(void *to, int is_b, int lines, kf_i64 depths, const void *from,
                        kf_i64 line_step, kf_i64 depth_step);
    void (*gather)(void *to, kf_i64 lines, kf_i64 depths, const void *from, kf_i64 line_step,
                   kf_i64 depth_step);
    /* c[rows][cols] = packed rows of A times K-contiguous, unpacked columns of B. */
    void (*skinny)(int rows, kf_i64 depths, const void *a, const void *b, kf_i64 line_step,
                   int cols, void *c, kf_i64 ld);
} kfi_cpu_gemm_lanes;

typedef struct {
    kf_i64 depth, blocks;      /* elements of K per block; blocks, at least 1 */
    kf_i64 rows, cols;         /* packed at a time */
    kf_i64 tall, wide, strip;  /* rows and columns of a job; pitch of its accumulators */
    size_t a_panel, b_panel;   /* bytes */
    kf_i64 a_panels, b_panels; /* panels per block of K */
    size_t a_bytes, b_bytes, c_job, c_bytes;
    int fused; /* a job packs a panel of B and computes all its rows */
} kfi_cpu_gemm_plan;

KFI_INLINE kf_i64 kfi_cpu_gemm_least(kf_i64 a, kf_i64 b) { return a < b ? a : b; }
KFI_INLINE kf_i64 kfi_cpu_gemm_parts(kf_i64 n, kf_i64 of) { return (n + of - 1) / of; }
/* Size of the parts, a multiple of `step`, of n in as few equal parts of up to `most` as possible.
 */
KFI_HOST kf_i64 kfi_cpu_gemm_share(kf_i64 n, kf_i64 most, kf_i64 step)
{
    const kf_i64 parts = n > most ? kfi_cpu_gemm_parts(n, most) : 1;
    return n < 1 ? step : kfi_cpu_gemm_parts(kfi_cpu_gemm_parts(n, parts), step) * step;
}
KFI_INLINE size_t kfi_cpu_gemm_line(size_t bytes)
{
    return (bytes + KFI_GEMM_LINE - 1) / KFI_GEMM_LINE * KFI_GEMM_LINE;
}

/* Columns per job, fewer if there would be too few jobs. */
KFI_HOST kf_i64 kfi_cpu_gemm_wide(kf_i64 jobs, kf_i64 cols, kf_i64 strip)
{
    kf_i64 wide = strip;
    while (wide > KFI_GEMM_LEAST && jobs * kfi_cpu_gemm_parts(cols, wide) < KFI_GEMM_JOBS)
        wide /= 2;
    return wide;
}

KFI_HOST kfi_cpu_gemm_plan kfi_cpu_gemm_make_plan(int tile_rows, int tile_cols, int unit,
                                                  kf_i64 rows, kf_i64 cols, kf_i64 depth,
                                                  int products)
{
    kfi_cpu_gemm_plan p;
    p.depth = kfi_cpu_gemm_share(depth, KFI_GEMM_DEPTH_BYTES / unit, 16);
    p.blocks = depth > p.depth ? kfi_cpu_gemm_parts(depth, p.depth) : 1;
    p.rows = kfi_cpu_gemm_share(rows, KFI_GEMM_AT_ONCE, KFI_GEMM_UNIT);
    p.cols = kfi_cpu_gemm_share(cols, KFI_GEMM_AT_ONCE, KFI_GEMM_STRIP_BYTES / unit);
    p.strip = KFI_GEMM_STRIP_BYTES / unit;
    p.fused =
        rows <= KFI_GEMM_TALL || (rows <= KFI_GEMM_AT_ONCE && cols >= KFI_GEMM_JOBS * p.strip / 2);
    p.tall = p.fused ? p.rows : kfi_cpu_gemm_share(p.rows, KFI_GEMM_TALL, KFI_GEMM_UNIT);
    p.wide = kfi_cpu_gemm_wide(kfi_cpu_gemm_parts(p.rows, p.tall), kfi_cpu_gemm_least(cols, p.cols),
                               p.strip);
    p.strip = p.wide;
    p.a_panel = (size_t)(p.depth * tile_rows * unit) + KFI_GEMM_LINE;
    p.b_panel = (size_t)(p.depth * tile_cols * unit) + KFI_GEMM_LINE;
    const kf_i64 group = kfi_cpu_gemm_least(p.blocks, KFI_GEMM_GROUP);
    const kf_i64 most_rows = kfi_cpu_gemm_least(rows, p.rows),
                 most_cols = kfi_cpu_gemm_least(cols, p.cols);
    p.a_panels = kfi_cpu_gemm_parts(most_rows, tile_rows);
    p.b_panels = kfi_cpu_gemm_parts(most_cols, tile_cols);
    p.a_bytes = (size_t)(p.a_panels * group) * kfi_cpu_gemm_line(p.a_panel);
    p.b_bytes = (size_t)(p.b_panels * (p.fused ? 1 : group)) * kfi_cpu_gemm_line(p.b_panel);
    p.c_job =
        (size_t)(kfi_cpu_gemm_least(p.blocks > 1 ? p.tall : KFI_GEMM_UNIT, p.a_panels * tile_rows) *
                 p.strip * unit);
    p.c_bytes =
        (size_t)(kfi_cpu_gemm_parts(most_rows, p.tall) * kfi_cpu_gemm_parts(most_cols, p.wide)) *
        p.c_job;
    p.b_bytes *= (size_t)products;
    p.c_bytes *= (size_t)products;
    return p;
}

/* Skinny M: rows to which A is padded. */
KFI_INLINE int kfi_cpu_gemm_skinny_rows(kf_i64 rows) { return rows == 1 ? 1 : rows <= 4 ? 4 : 8; }
KFI_INLINE size_t kfi_cpu_gemm_skinny_bytes(kf_i64 rows, kf_i64 depth, int unit)
{
    return (size_t)kfi_cpu_gemm_skinny_rows(rows) * ((size_t)depth * (size_t)unit + KFI_GEMM_LINE);
}

/* Workspace of one product in bytes: enough for every vector width, and for skinny M. */
KFI_HOST size_t kfi_cpu_gemm_bytes(int unit, kf_i64 rows, kf_i64 cols, kf_i64 depth, int products)
{
    static const int tiles[4][2] = {
        {4, 16}, {4, 32}, {6, 64}, {12, 128}}; /* rows, bytes of a row */
    size_t most = 0;
    for (int i = 0; i < 4; ++i) {
        const kfi_cpu_gemm_plan p = kfi_cpu_gemm_make_plan(tiles[i][0], tiles[i][1] / unit, unit,
                                                           rows, cols, depth, products);
        const size_t bytes = p.a_bytes + p.b_bytes + p.c_bytes;
        if (bytes > most) most = bytes;
    }
    if (rows <= KFI_GEMM_SKINNY_ROWS && depth <= KFI_GEMM_SKINNY_DEPTH) {
        const kf_i64 jobs =
            kfi_cpu_gemm_parts(kfi_cpu_gemm_least(cols, KFI_GEMM_SKINNY_COLS), KFI_GEMM_LEAST);
        const size_t bytes = kfi_cpu_gemm_skinny_bytes(rows, depth, unit) +
                             (size_t)(jobs * rows * products) * KFI_GEMM_STRIP_BYTES;
        if (bytes > most) most = bytes;
    }
    return most + KFI_GEMM_LINE;
}
KFI_INLINE kf_i64 kfi_cpu_gemm_slots(size_t bytes)
{
    return bytes <= KFI_GEMM_SMALL ? KFI_GEMM_SLOTS : 1;
}

#endif
