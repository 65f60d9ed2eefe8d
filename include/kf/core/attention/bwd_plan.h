/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/bwd_plan.h: attention's backward in C: operands of a call, blocking and scratch
   memory. The plan follows from the sizes alone. */
#ifndef KF_CORE_ATTENTION_BWD_PLAN_H
#define KF_CORE_ATTENTION_BWD_PLAN_H

#include "kf/core/host.h"

#include "kf/core/attention/attention.h"

KFI_C_BEGIN

#define KFI_ATTENTION_BWD_ROWS 96         /* rows of a block that a job of keys reads, at most */
#define KFI_ATTENTION_BWD_KEYS 256        /* keys of a block, at most */
#define KFI_ATTENTION_BWD_PITCH 272       /* elements between rows of weights */
#define KFI_ATTENTION_BWD_BYTES (1 << 18) /* bytes of a block of K and V to aim for */

/* Gradient of a tensor of the scores' shape; data: NULL if not wanted. */
typedef struct {
    void *data;
    kfi_cpu_attention_strides strides;
    int size;                                                           /* bytes of an element */
    void (*narrow)(const void *from, void *to, kf_i64 step, int count); /* kfi_gemm_type's */
} kfi_cpu_attention_dscores;
/* The same of an operand with a number per head. */
typedef struct {
    void *data;
    int size;
    void (*narrow)(const void *from, void *to, kf_i64 step, int count);
    char *rows; /* workspace: the sum over keys of each query, as delta; NULL for the sink */
} kfi_cpu_attention_dheads;

/* A call. `a` has the forward's operands; lse, row_max and log_sum are read, `out` is not written.
   The score's function also stores derivatives (kfi_attention_part). */
typedef struct {
    kfi_cpu_attention a;
    const void *dout, *dlse; /* dlse: NULL stands for zeros */
    void *dq, *dk, *dv;      /* each may be NULL */
    kfi_cpu_attention_strides dout_strides, dq_strides, dk_strides, dv_strides;
    kfi_cpu_attention_dscores dscores[KFI_ATTENTION_TENSORS];
    kfi_cpu_attention_dheads dheads[KFI_ATTENTION_TENSORS], dsink;
    kf_i64 kv_heads;
    kf_i64 dscores_rows, dscores_keys; /* extents of dscores: those of packed scores, if packed */
    char *delta; /* workspace: per query, sum of dout * out over dim_v, minus dlse */
} kfi_cpu_attention_bwd;

/* ---- blocking ---- */

/* Jobs of keys compute blocks of dK and dV, and walk all rows. Jobs of rows compute blocks of dQ,
   and walk the visible keys. Rows are the queries of all heads that share a key head, one head
   after the other. */
typedef struct {
    kfi_cpu_gemm_lanes lanes;
    kf_i64 block_rows, rows, keys; /* rows that a job of keys reads at a time; rows of a job of
                                      rows; keys of a block */
    kf_i64 pitch_q, pitch_v;       /* elements of a row of dim and of dim_v: whole tiles */
    kf_i64 row_q, row_v;           /* bytes of a panel of rows, of queries and of dout */
    kf_i64 key_k, key_v;           /* bytes of a panel of keys, of K and of V */
    kf_i64 across_rows;            /* bytes of a panel of columns of block_rows rows */
    kf_i64 across_keys;            /* and of `keys` keys */
    kf_i64 slots;                  /* jobs at a time, each with its scratch memory */
    size_t bytes;                  /* scratch memory of a job */
    size_t plane;                  /* bytes of delta, and of the rows of dheads */
    size_t delta;                  /* bytes of all of them */
} kfi_cpu_attention_bwd_plan;

/* Scratch memory of a job. A panel holds a tile's rows or columns, [sum's index][rows or columns].
 */
typedef struct {
    char *q, *dout;           /* rows in the accumulators' type, q times the scale */
    char *q_rows, *dout_rows; /* panels of rows, summed over dim and dim_v */
    char *q_cols, *dout_cols; /* panels of columns of dim and of dim_v, summed over rows */
    char *k_keys, *v_keys;    /* panels of keys, summed over dim and dim_v */
    char *k_cols;             /* panels of columns of dim, summed over keys */
    char *weights;            /* p, [rows][KFI_ATTENTION_BWD_PITCH] */
    char *dots;               /* dp, then the gradients of the products, as weights */
    char *part;               /* a panel of one of the two */
    char *dq, *dk, *dv;       /* accumulators */
} kfi_cpu_attention_bwd_room;

/* Bytes of panels of `lines` rows or columns of any tile with sums over `count` elements. */
KFI_INLINE kf_i64 kfi_cpu_attention_panels_of(kf_i64 lines, kf_i64 count, int unit)
{
    return lines * count * unit + lines / KFI_ATTENTION_LEAST_COLS * 2 * KFI_GEMM_LINE;
}
/* Divides the scratch memory: what both kinds of jobs have. rows: of a job's panels; staged: rows
   in the accumulators' type; scored: rows of weights. */
KFI_HOST void kfi_cpu_attention_bwd_common(const kfi_cpu_attention_bwd_plan *p, int unit,
                                           kf_i64 rows, kf_i64 staged, kf_i64 scored, char *base,
                                           size_t *used, kfi_cpu_attention_bwd_room *r,
                                           kfi_cpu_attention_room *scores)
{
    const kf_i64 pad = 2 * KFI_GEMM_LINE;
    memset(r, 0, sizeof *r);
    memset(scores, 0, sizeof *scores);
    r->q = kfi_cpu_attention_take(base, used, staged * p->pitch_q * unit + pad);
    r->dout = kfi_cpu_attention_take(base, used, staged * p->pitch_v * unit + pad);
    r->q_rows =
        kfi_cpu_attention_take(base, used, kfi_cpu_attention_panels_of(rows, p->pitch_q, unit));
    r->dout_rows =
        kfi_cpu_attention_take(base, used, kfi_cpu_attention_panels_of(rows, p->pitch_v, unit));
    r->k_keys =
        kfi_cpu_attention_take(base, used, kfi_cpu_attention_panels_of(p->keys, p->pitch_q, unit));
    r->v_keys =
        kfi_cpu_attention_take(base, used, kfi_cpu_attention_panels_of(p->keys, p->pitch_v, unit));
    r->weights = kfi_cpu_attention_take(base, used, scored * KFI_ATTENTION_BWD_PITCH * unit + pad);
    r->dots = kfi_cpu_attention_take(base, used, scored * KFI_ATTENTION_BWD_PITCH * unit + pad);
    scores->values =
        kfi_cpu_attention_take(base, used, KFI_ATTENTION_TENSORS * KFI_ATTENTION_KEYS * unit);
    scores->derivatives =
        kfi_cpu_attention_take(base, used, (1 + KFI_ATTENTION_TENSORS) * KFI_ATTENTION_KEYS * unit);
    scores->row = (kfi_cpu_attention_row *)(void *)kfi_cpu_attention_take(
        base, used, rows * (kf_i64)sizeof *scores->row);
}
/* Divides the scratch memory of a job of keys. Returns its size. */
KFI_HOST size_t kfi_cpu_attention_bwd_key_room(const kfi_cpu_attention_bwd_plan *p, int unit,
                                               char *base, kfi_cpu_attention_bwd_room *r,
                                               kfi_cpu_attention_room *scores)
{
    const kf_i64 rows = p->block_rows, keys = p->keys + KFI_ATTENTION_MOST_STRIP;
    size_t used = 0;
    kfi_cpu_attention_bwd_common(p, unit, rows, rows, rows, base, &used, r, scores);
    r->q_cols =
        kfi_cpu_attention_take(base, &used, kfi_cpu_attention_panels_of(p->pitch_q, rows, unit));
    r->dout_cols =
        kfi_cpu_attention_take(base, &used, kfi_cpu_attention_panels_of(p->pitch_v, rows, unit));
    r->part = kfi_cpu_attention_take(base, &used,
                                     KFI_ATTENTION_MOST_STRIP * rows * unit + 2 * KFI_GEMM_LINE);
    r->dk = kfi_cpu_attention_take(base, &used, keys * p->pitch_q * unit);
    r->dv = kfi_cpu_attention_take(base, &used, keys * p->pitch_v * unit);
    return used;
}
/* The same of a job of rows. */
KFI_HOST size_t kfi_cpu_attention_bwd_row_room(const kfi_cpu_attention_bwd_plan *p, int unit,
                                               char *base, kfi_cpu_attention_bwd_room *r,
                                               kfi_cpu_attention_room *scores)
{
    const kf_i64 strip = KFI_ATTENTION_MOST_STRIP;
    size_t used = 0;
    kfi_cpu_attention_bwd_common(p, unit, p->rows, strip, strip, base, &used, r, scores);
    r->k_cols =
        kfi_cpu_attention_take(base, &used, kfi_cpu_attention_panels_of(p->pitch_q, p->keys, unit));
    r->part = kfi_cpu_attention_take(base, &used, strip * p->keys * unit + 2 * KFI_GEMM_LINE);
    r->dq = kfi_cpu_attention_take(base, &used, (p->rows + strip) * p->pitch_q * unit);
    return used;
}
/* Sizes that a plan follows from: key heads of all batches, queries of a key head's heads, keys,
   rows of delta; sequences, if they are packed. sums: operands of the score with a gradient per
   head. */
typedef struct {
    kf_i64 heads, rows, keys, queries, dim, dim_v, sequences;
    int packed, unit, sums; /* unit: bytes of an accumulator */
} kfi_cpu_attention_bwd_sizes;

/* Jobs of a key head that walks `count` rows or keys, `part` a job. */
KFI_HOST kf_i64 kfi_cpu_attention_bwd_blocks(const kfi_cpu_attention_bwd_sizes *s, kf_i64 count,
                                             kf_i64 part)
{
    return s->packed ? count / part + s->sequences + 2 : kfi_cpu_gemm_parts(count, part);
}
/* Plan of a call, without its tile. */
KFI_HOST kfi_cpu_attention_bwd_plan
kfi_cpu_attention_bwd_make_plan(const kfi_cpu_attention_bwd_sizes *s)
{
    kfi_cpu_attention_bwd_plan p;
    kfi_cpu_attention_bwd_room r;
    kfi_cpu_attention_room scores;
    memset(&p, 0, sizeof p);
    p.block_rows =
        s->rows > KFI_ATTENTION_LEAST_ROWS ? KFI_ATTENTION_BWD_ROWS : KFI_ATTENTION_LEAST_ROWS;
    p.rows = kfi_cpu_attention_rows(s->rows, s->heads);
    p.keys = KFI_ATTENTION_BWD_KEYS;
    while (
        p.keys > KFI_ATTENTION_LEAST_KEYS &&
        (p.keys * (s->dim + s->dim_v) * s->unit > KFI_ATTENTION_BWD_BYTES || p.keys / 2 >= s->keys))
        p.keys /= 2;
    p.pitch_q = kfi_cpu_attention_up(s->dim, KFI_ATTENTION_ALIGN);
    p.pitch_v = kfi_cpu_attention_up(s->dim_v, KFI_ATTENTION_ALIGN);
    p.plane = kfi_cpu_gemm_line((size_t)(s->queries * s->unit));
    p.delta = p.plane * (size_t)(1 + s->sums);
    const size_t of_keys = kfi_cpu_attention_bwd_key_room(&p, s->unit, NULL, &r, &scores),
                 of_rows = kfi_cpu_attention_bwd_row_room(&p, s->unit, NULL, &r, &scores);
    const kf_i64 key_jobs = kfi_cpu_attention_bwd_blocks(s, s->keys, p.keys),
                 row_jobs = kfi_cpu_attention_bwd_blocks(s, s->rows, p.rows),
                 jobs = s->heads * (key_jobs > row_jobs ? key_jobs : row_jobs);
    p.bytes = of_keys > of_rows ? of_keys : of_rows;
    const size_t left = p.delta + p.bytes < KFI_ATTENTION_WORKSPACE - KFI_GEMM_LINE
                            ? KFI_ATTENTION_WORKSPACE - KFI_GEMM_LINE - p.delta
                            : p.bytes;
    p.slots =
        kfi_cpu_gemm_least(kfi_cpu_gemm_least(jobs, KFI_ATTENTION_SLOTS), (kf_i64)(left / p.bytes));
    return p;
}
/* Adds the tile. */
KFI_HOST void kfi_cpu_attention_bwd_panels(kfi_cpu_attention_bwd_plan *p,
                                           const kfi_cpu_gemm_lanes *v, kf_i64 dim, kf_i64 dim_v)
{
    const kf_i64 row = (kf_i64)v->rows * v->unit, col = (kf_i64)v->cols * v->unit,
                 pad = KFI_GEMM_LINE;
    p->lanes = *v;
    p->row_q = (kf_i64)kfi_cpu_gemm_line((size_t)(dim * row + pad));
    p->row_v = (kf_i64)kfi_cpu_gemm_line((size_t)(dim_v * row + pad));
    p->key_k = (kf_i64)kfi_cpu_gemm_line((size_t)(dim * col + pad));
    p->key_v = (kf_i64)kfi_cpu_gemm_line((size_t)(dim_v * col + pad));
    p->across_rows = (kf_i64)kfi_cpu_gemm_line((size_t)(p->block_rows * col + pad));
    p->across_keys = (kf_i64)kfi_cpu_gemm_line((size_t)(p->keys * col + pad));
}
/* Workspace of a call in bytes. */
KFI_HOST size_t kfi_cpu_attention_bwd_bytes(const kfi_cpu_attention_bwd_sizes *s)
{
    const kfi_cpu_attention_bwd_plan p = kfi_cpu_attention_bwd_make_plan(s);
    return (size_t)p.slots * p.bytes + p.delta + KFI_GEMM_LINE;
}

KFI_C_END

#endif
