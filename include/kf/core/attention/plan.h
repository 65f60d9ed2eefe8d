/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/plan.h: attention in C: operands of a call, the keys that a query sees, the
   seam of the scores, blocking and scratch memory. The plan follows from the sizes alone. */
#ifndef KF_CORE_ATTENTION_PLAN_H
#define KF_CORE_ATTENTION_PLAN_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/matmul/matmul.h"
#include "kf/core/matmul/seam.h"

KFI_C_BEGIN

#define KFI_ATTENTION_ROWS 384      /* rows of a job, at most */
#define KFI_ATTENTION_LEAST_ROWS 48 /* and at least: a multiple of every tile's rows */
#define KFI_ATTENTION_KEYS 512      /* keys of a block, at most */
#define KFI_ATTENTION_PITCH 528     /* elements between rows of scores: apart in the cache's sets */
#define KFI_ATTENTION_LEAST_KEYS 64 /* and at least, for large dimensions */
#define KFI_ATTENTION_WORKSPACE 67108864 /* bytes of a workspace: bounds the slots */
#define KFI_ATTENTION_BLOCK_BYTES 524288 /* bytes of a packed block of K and V to aim for */
#define KFI_ATTENTION_SHARED_BYTES                                                                 \
    (32 << 20)                      /* bytes of packed K and V that jobs share, at most            \
                                     */
#define KFI_ATTENTION_ALIGN 32      /* keys: a multiple of every tile's columns */
#define KFI_ATTENTION_MOST_STRIP 12 /* rows of a tile, at most */
#define KFI_ATTENTION_LEAST_COLS 2  /* rows and columns of a tile, at least */
#define KFI_ATTENTION_JOBS 32       /* jobs to aim for */
#define KFI_ATTENTION_SLOTS 64      /* jobs that may run at a time, each with its scratch */
#define KFI_ATTENTION_TENSORS 2     /* tensors of a score */

/* Distances [elements] between consecutive batches, rows and heads; 0: the same for all. The last
   axis is contiguous. */
typedef struct {
    kf_i64 batch, row, head;
} kfi_cpu_attention_strides;
/* Visible keys: first to last, both included; none if last < first. */
typedef struct {
    kf_i64 first, last;
} kfi_cpu_attention_keys;
/* Query i sees keys i * first_slope + first_add to i * last_slope + last_add, both included,
   clamped to the keys. A slope is 0 or 1. */
typedef struct {
    kf_i64 first_slope, first_add, last_slope, last_add;
} kfi_cpu_attention_range;

/* The seam of the scores, a function of one row and `count` consecutive keys: it replaces products
   by scores, in the accumulators' type (float, for f64 double). A score of -inf hides the key.
   count: whole KFI_SIMDs, at most KFI_ATTENTION_KEYS; what is past the last key is readable and
   ignored. */
typedef struct {
    void *score; /* in: q . k; out: the score */
    const void
        *values[KFI_ATTENTION_TENSORS]; /* the score's tensors, one value per key, same type */
    const void *scalars;
    kf_i64 batch, head, query, key; /* logical indices of the row and of its first key */
    kf_i64 queries, keys;           /* sizes of the row's sequence */
    /* Backward: derivatives of the score, to be stored: by the product, and by `values`. */
    void *derivative, *derivatives[KFI_ATTENTION_TENSORS];
} kfi_attention_part;
typedef void (*kfi_attention_score_fn)(const kfi_attention_part *part, int count);

/* A tensor of a score. key: elements between keys; 0: one element per row, or per head if the
   stride of rows is 0 as well. */
typedef struct {
    const void *data;
    kfi_cpu_attention_strides strides;
    kf_i64 key;
    int size;                                                          /* bytes of an element */
    void (*widen)(const void *from, kf_i64 step, void *to, int count); /* kfi_gemm_type's, or
                                                                           kfi_attention_widen_u8 */
} kfi_cpu_attention_tensor;
typedef struct {
    kfi_attention_score_fn fn; /* NULL: the product is the score */
    kfi_cpu_attention_tensor tensor[KFI_ATTENTION_TENSORS];
    int tensors;
    const void *scalars;
} kfi_cpu_attention_score;

/* A dtype: attention.h has kfi_cpu_attention_f32 and its companions. */
typedef struct {
    kfi_gemm_type element;
    kfi_cpu_gemm_lanes (*lanes)(void);
} kfi_cpu_attention_type;

typedef struct kfi_cpu_attention_packed kfi_cpu_attention_packed; /* packed.h */
typedef struct kfi_cpu_attention_sparse kfi_cpu_attention_sparse; /* sparse.h */

/* A call. */
typedef struct {
    kfi_cpu_attention_type type;
    const void *q, *k, *v;
    const void *sink; /* [heads]: a score without a value, or NULL */
    kfi_gemm_type sink_type;
    void *out;
    /* [batch, heads, queries], float, for f64 double; each may be NULL. lse = row_max + log_sum,
       natural logarithms. row_max: the maximum of the scores; -inf if the query sees no key. */
    void *lse, *row_max, *log_sum;
    kfi_cpu_attention_strides q_strides, k_strides, v_strides, out_strides;
    kf_i64 batch, heads, group; /* group: query heads per key head, divides heads */
    kf_i64 queries, keys, dim, dim_v;
    kf_i64 row_batch, row_head; /* distances of batches and heads in lse, row_max and log_sum */
    const kfi_cpu_attention_packed *packed; /* NULL: sequences of one length */
    const kfi_cpu_attention_sparse *sparse; /* NULL: no lists of blocks of keys */
    kfi_cpu_attention_range range;
    double scale; /* factor of the products, before the score's function */
    kfi_cpu_attention_score score;
    const kfi_rng *rng; /* dropout of the weights; NULL: none */
    /* The number of a weight, which its random bits follow from: number0 and the steps to its
       batch, query and head, and its key. */
    kfi_cpu_attention_strides numbers;
    kf_i64 number0;
} kfi_cpu_attention;

/* ---- visible keys ---- */

/* Adds with saturation. */
KFI_ONCE kf_i64 kfi_cpu_attention_plus(kf_i64 a, kf_i64 b)
{
    if (b > 0 && a > INT64_MAX - b) return INT64_MAX;
    return b < 0 && a < INT64_MIN - b ? INT64_MIN : a + b;
}
/* Query i sees keys i + shift - left to i + shift + right; INT64_MAX is unbounded. shift: keys -
   queries aligns the last query with the last key (bottom right), 0 the first ones (top left). */
KFI_ONCE kfi_cpu_attention_range kfi_cpu_attention_window(kf_i64 queries, kf_i64 keys, kf_i64 shift,
                                                          kf_i64 left, kf_i64 right)
{
    kfi_cpu_attention_range r = {0, 0, 0, keys - 1};
    if (left != INT64_MAX)
        r.first_add = left == INT64_MIN ? INT64_MAX : kfi_cpu_attention_plus(shift, -left);
    if (right != INT64_MAX) r.last_add = kfi_cpu_attention_plus(shift, right);
    /* Bounds beyond all keys need no slope, and sums of the others do not overflow. */
    r.first_slope = left != INT64_MAX && r.first_add > -queries && r.first_add < keys;
    r.last_slope = right != INT64_MAX && r.last_add > -queries && r.last_add < keys;
    return r;
}
KFI_INLINE kfi_cpu_attention_keys kfi_cpu_attention_visible(const kfi_cpu_attention *m,
                                                            kf_i64 query)
{
    kfi_cpu_attention_keys own = {query * m->range.first_slope + m->range.first_add,
                                  query * m->range.last_slope + m->range.last_add};
    if (own.first < 0) own.first = 0;
    if (own.last > m->keys - 1) own.last = m->keys - 1;
    return own;
}

/* ---- blocking ---- */

typedef struct {
    kfi_cpu_gemm_lanes lanes;
    kf_i64 kv_heads, rows, keys, blocks; /* rows of a job, keys of a block; jobs per key head */
    kf_i64 tiles, slots;                 /* jobs; jobs at a time */
    kf_i64 pitch_q, pitch_out;           /* elements of a staged row, of a row of accumulators */
    kf_i64 q_panel, k_panel, v_panel;    /* bytes */
    kf_i64 shared; /* key heads that are packed at a time; 0: jobs pack their own blocks */
    size_t bytes;  /* scratch memory of a job */
    size_t block, head_bytes; /* shared memory of a block of K and V, of all blocks of a key head */
} kfi_cpu_attention_plan;

/* A row of a job: its indices, and the keys that it sees. */
typedef struct {
    kf_i64 head, query;
    kfi_cpu_attention_keys visible; /* with lists: in the packed block */
    kf_i64 next, end;               /* entries of the row's list that are not behind it */
    const int32_t *bits;            /* the keys of the packed block that a list shows; NULL: all */
} kfi_cpu_attention_row;
/* Scratch memory of a job. */
typedef struct {
    char *q, *k, *v;   /* panels of the tile's rows; of its columns, keys and columns of dim_v */
    char *s, *p;       /* scores, then weights, of a strip of rows, [rows][KFI_ATTENTION_PITCH]; and
                          packed */
    char *out;         /* accumulators [rows][pitch_out] */
    char *values;      /* the score's tensors [tensors][KFI_ATTENTION_KEYS] */
    char *derivatives; /* backward: derivatives of the score by the product, then by its tensors,
                      [1 + tensors][KFI_ATTENTION_KEYS]; NULL in the forward */
    char *stage;       /* rows of q [tile rows][pitch_q], or one of v */
    char *most, *sum, *factor;  /* per row: maximum, sum of exponentials, factor of earlier
                                   sums */
    kfi_cpu_attention_row *row; /* per row */
} kfi_cpu_attention_room;

KFI_INLINE kf_i64 kfi_cpu_attention_up(kf_i64 n, kf_i64 step)
{
    return (n + step - 1) / step * step;
}
/* Rows of a job: fewer if there would be too few jobs. */
KFI_HOST kf_i64 kfi_cpu_attention_rows(kf_i64 rows, kf_i64 heads)
{
    kf_i64 most = KFI_ATTENTION_ROWS;
    while (most > KFI_ATTENTION_LEAST_ROWS &&
           (most / 2 >= rows || heads * kfi_cpu_gemm_parts(rows, most) < KFI_ATTENTION_JOBS))
        most /= 2;
    return most;
}
/* Takes the next part of the scratch memory. */
KFI_INLINE char *kfi_cpu_attention_take(char *base, size_t *used, kf_i64 bytes)
{
    const size_t at = *used;
    *used += kfi_cpu_gemm_line((size_t)bytes);
    return base ? base + at : NULL;
}
/* Divides the memory of a packed block of K and V: enough for every tile. */
KFI_HOST void kfi_cpu_attention_block(const kfi_cpu_attention_plan *p, int unit, char *base,
                                      size_t *used, char **k, char **v)
{
    const kf_i64 line = 2 * KFI_GEMM_LINE, across = KFI_ATTENTION_LEAST_COLS;
    *k = kfi_cpu_attention_take(base, used, p->keys * p->pitch_q * unit + p->keys / across * line);
    *v = kfi_cpu_attention_take(base, used,
                                p->keys * p->pitch_out * unit + p->pitch_out / across * line);
}
/* Divides the scratch memory of a job: enough for every tile. Returns its size in *bytes. */
KFI_HOST kfi_cpu_attention_room kfi_cpu_attention_rooms(const kfi_cpu_attention_plan *p, int unit,
                                                        char *base, size_t *bytes)
{
    const kf_i64 strip = KFI_ATTENTION_MOST_STRIP, line = 2 * KFI_GEMM_LINE,
                 across = KFI_ATTENTION_LEAST_COLS;
    kfi_cpu_attention_room r;
    size_t used = 0;
    r.q =
        kfi_cpu_attention_take(base, &used, p->rows * p->pitch_q * unit + p->rows / across * line);
    r.k = r.v = r.derivatives = NULL;
    if (!p->shared) kfi_cpu_attention_block(p, unit, base, &used, &r.k, &r.v);
    r.s = kfi_cpu_attention_take(base, &used, strip * KFI_ATTENTION_PITCH * unit);
    r.p = kfi_cpu_attention_take(base, &used, strip * KFI_ATTENTION_KEYS * unit + line);
    r.out = kfi_cpu_attention_take(base, &used, p->rows * p->pitch_out * unit);
    r.values =
        kfi_cpu_attention_take(base, &used, KFI_ATTENTION_TENSORS * KFI_ATTENTION_KEYS * unit);
    r.stage =
        kfi_cpu_attention_take(base, &used, (strip * p->pitch_q + p->pitch_out) * unit + line);
    r.most = kfi_cpu_attention_take(base, &used, p->rows * unit);
    r.sum = kfi_cpu_attention_take(base, &used, p->rows * unit);
    r.factor = kfi_cpu_attention_take(base, &used, p->rows * unit);
    r.row = (kfi_cpu_attention_row *)(void *)kfi_cpu_attention_take(
        base, &used, p->rows * (kf_i64)sizeof *r.row);
    if (bytes) *bytes = used;
    return r;
}
/* Plans shared blocks, if several jobs read each and one head's are not too many. heads: key heads
   of all batches. */
KFI_HOST void kfi_cpu_attention_share(kfi_cpu_attention_plan *p, kf_i64 heads, kf_i64 keys,
                                      int unit)
{
    char *k, *v;
    kfi_cpu_attention_block(p, unit, NULL, &p->block, &k, &v);
    p->head_bytes = (size_t)kfi_cpu_gemm_parts(keys, p->keys) * p->block;
    if (p->blocks > 1 && keys > 0 && p->head_bytes <= KFI_ATTENTION_SHARED_BYTES)
        p->shared = kfi_cpu_gemm_least(heads, (kf_i64)(KFI_ATTENTION_SHARED_BYTES / p->head_bytes));
}
/* Jobs whose scratch fits the workspace: at least one. */
KFI_HOST kf_i64 kfi_cpu_attention_most_slots(const kfi_cpu_attention_plan *p)
{
    const size_t used = (size_t)p->shared * p->head_bytes + KFI_GEMM_LINE;
    const kf_i64 most = (kf_i64)((KFI_ATTENTION_WORKSPACE - used) / p->bytes);
    return most < 1 ? 1 : most;
}
/* Plan of a call, without its tile. unit: bytes of an accumulator. */
KFI_HOST kfi_cpu_attention_plan kfi_cpu_attention_make_plan(kf_i64 batch, kf_i64 heads,
                                                            kf_i64 group, kf_i64 queries,
                                                            kf_i64 keys, kf_i64 dim, kf_i64 dim_v,
                                                            int unit)
{
    kfi_cpu_attention_plan p;
    memset(&p, 0, sizeof p);
    p.kv_heads = heads / group;
    p.rows = kfi_cpu_attention_rows(queries * group, batch * p.kv_heads);
    p.keys = KFI_ATTENTION_KEYS;
    while (p.keys > KFI_ATTENTION_LEAST_KEYS &&
           p.keys * (dim + dim_v) * unit > KFI_ATTENTION_BLOCK_BYTES)
        p.keys /= 2;
    p.blocks = kfi_cpu_gemm_parts(queries * group, p.rows);
    p.tiles = batch * p.kv_heads * p.blocks;
    p.slots = kfi_cpu_gemm_least(p.tiles, KFI_ATTENTION_SLOTS);
    p.pitch_q = kfi_cpu_attention_up(dim, KFI_SIMD);
    p.pitch_out = kfi_cpu_attention_up(dim_v, KFI_ATTENTION_ALIGN);
    kfi_cpu_attention_share(&p, batch * p.kv_heads, keys, unit);
    (void)kfi_cpu_attention_rooms(&p, unit, NULL, &p.bytes);
    p.slots = kfi_cpu_gemm_least(p.slots, kfi_cpu_attention_most_slots(&p));
    return p;
}
/* Adds the tile. */
KFI_HOST void kfi_cpu_attention_panels(kfi_cpu_attention_plan *p, const kfi_cpu_gemm_lanes *v,
                                       kf_i64 dim)
{
    p->lanes = *v;
    p->q_panel = (kf_i64)kfi_cpu_gemm_line((size_t)(dim * v->rows * v->unit) + KFI_GEMM_LINE);
    p->k_panel = (kf_i64)kfi_cpu_gemm_line((size_t)(dim * v->cols * v->unit) + KFI_GEMM_LINE);
    p->v_panel = (kf_i64)kfi_cpu_gemm_line((size_t)(p->keys * v->cols * v->unit) + KFI_GEMM_LINE);
}
/* Workspace of a call in bytes. unit: bytes of an accumulator. */
KFI_HOST size_t kfi_cpu_attention_bytes(kf_i64 batch, kf_i64 heads, kf_i64 group, kf_i64 queries,
                                        kf_i64 keys, kf_i64 dim, kf_i64 dim_v, int unit)
{
    if (batch < 1 || heads < 1 || group < 1 || queries < 1) return KFI_GEMM_LINE;
    const kfi_cpu_attention_plan p =
        kfi_cpu_attention_make_plan(batch, heads, group, queries, keys, dim, dim_v, unit);
    return (size_t)p.slots * p.bytes + (size_t)p.shared * p.head_bytes + KFI_GEMM_LINE;
}

KFI_C_END

#endif
