/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/packed.h: packed sequences of attention in C: the bounds of a sequence, its
   jobs, and the arguments of a call of one sequence.

   Part i has jobs first_row(i) / rows + i and following, rows counting those of all heads of a key
   head: parts are the rows in front of all sequences, the sequences, and the rows behind them. Each
   part has at most one job too many. Rows of no sequence see no key. */
#ifndef KF_CORE_ATTENTION_PACKED_H
#define KF_CORE_ATTENTION_PACKED_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/attention/check.h"
#include "kf/core/attention/plan.h"

KFI_C_BEGIN

/* Packed sequences of a call, whose queries and keys are those of all sequences. */
struct kfi_cpu_attention_packed {
    const void *query_offsets, *key_offsets; /* [batch + 1] */
    int wide;                                /* 64-bit offsets; else 32-bit */
    kf_i64 batch, max_query, max_key;        /* sequences, and the longest ones allowed */
    kfi_attention_bound first, last;
};
/* One of them: its index, and its rows in q and in k. refused: it is longer than max_query or
   max_key, and its results are NaN. */
typedef struct {
    kf_i64 index, query, queries, key, keys;
    int refused;
} kfi_cpu_attention_sequence;

/* An offset, clamped to the tensor's rows. */
KFI_HOST kf_i64 kfi_cpu_attention_offset(const kfi_cpu_attention_packed *p, const void *offsets,
                                         kf_i64 i, kf_i64 most)
{
    const kf_i64 at =
        p->wide ? ((const int64_t *)offsets)[i] : (kf_i64)((const int32_t *)offsets)[i];
    return at < 0 ? 0 : at > most ? most : at;
}
/* First row of part i of batch + 2; of part batch + 2, the number of rows, `most`. */
KFI_HOST kf_i64 kfi_cpu_attention_first_row(const kfi_cpu_attention_packed *p, const void *offsets,
                                            kf_i64 i, kf_i64 most)
{
    if (i == 0) return 0;
    return i > p->batch + 1 ? most : kfi_cpu_attention_offset(p, offsets, i - 1, most);
}
/* Finds the part of a job of `rows` rows, which count `group` times each. Sets *first to the number
   of the part's first job. */
KFI_HOST kf_i64 kfi_cpu_attention_part_of(const kfi_cpu_attention_packed *p, const void *offsets,
                                          kf_i64 most, kf_i64 group, kf_i64 job, kf_i64 rows,
                                          kf_i64 *first)
{
    kf_i64 i = 0;
    for (kf_i64 end = p->batch + 2; end - i > 1;) {
        const kf_i64 middle = (i + end) / 2;
        if (kfi_cpu_attention_first_row(p, offsets, middle, most) * group / rows + middle <= job)
            i = middle;
        else
            end = middle;
    }
    *first = kfi_cpu_attention_first_row(p, offsets, i, most) * group / rows + i;
    return i;
}
/* Sets the sequence that is part i, or rows of no sequence: those of q, or of k if `keys`. */
KFI_HOST void kfi_cpu_attention_set_sequence(kfi_cpu_attention_sequence *s,
                                             const kfi_cpu_attention *m, kf_i64 i, int keys)
{
    const kfi_cpu_attention_packed *const p = m->packed;
    const int inside = i > 0 && i <= p->batch;
    memset(s, 0, sizeof *s);
    s->index = inside ? i - 1 : 0;
    if (inside || !keys) {
        const kf_i64 end = kfi_cpu_attention_first_row(p, p->query_offsets, i + 1, m->queries);
        s->query = kfi_cpu_attention_first_row(p, p->query_offsets, i, m->queries);
        s->queries = end > s->query ? end - s->query : 0;
    }
    if (inside || keys) {
        const kf_i64 end = kfi_cpu_attention_first_row(p, p->key_offsets, i + 1, m->keys);
        s->key = kfi_cpu_attention_first_row(p, p->key_offsets, i, m->keys);
        s->keys = end > s->key ? end - s->key : 0;
    }
    s->refused = inside && (s->queries > p->max_query || s->keys > p->max_key);
}
/* Finds the sequence of a job. Returns the job's number in the sequence; negative: it has no rows.
   rows: of a job. */
KFI_HOST kf_i64 kfi_cpu_attention_find(kfi_cpu_attention_sequence *s, const kfi_cpu_attention *m,
                                       kf_i64 job, kf_i64 rows)
{
    kf_i64 first;
    const kf_i64 i = kfi_cpu_attention_part_of(m->packed, m->packed->query_offsets, m->queries,
                                               m->group, job, rows, &first);
    kfi_cpu_attention_set_sequence(s, m, i, 0);
    if (s->refused) s->keys = 0;
    return job - first < kfi_cpu_gemm_parts(s->queries * m->group, rows) ? job - first : -1;
}
/* The same of a job of `keys` keys of one head. */
KFI_HOST kf_i64 kfi_cpu_attention_find_keys(kfi_cpu_attention_sequence *s,
                                            const kfi_cpu_attention *m, kf_i64 job, kf_i64 keys)
{
    kf_i64 first;
    const kf_i64 i =
        kfi_cpu_attention_part_of(m->packed, m->packed->key_offsets, m->keys, 1, job, keys, &first);
    kfi_cpu_attention_set_sequence(s, m, i, 1);
    return job - first < kfi_cpu_gemm_parts(s->keys, keys) ? job - first : -1;
}
KFI_HOST kfi_attention_bound kfi_cpu_attention_own_bound(const kfi_attention_bound *b,
                                                         const kfi_cpu_attention_sequence *s)
{
    return kfi_attention_normalised(
        b->slope, b->add + b->of_queries * s->queries + b->of_keys * s->keys, s->queries, s->keys);
}
KFI_INLINE const void *kfi_cpu_attention_behind(const void *p, kf_i64 elements, int size)
{
    return p ? (const char *)p + elements * size : NULL;
}
KFI_INLINE void *kfi_cpu_attention_out_behind(void *p, kf_i64 elements, int size)
{
    return p ? (char *)p + elements * size : NULL;
}
/* Returns the call of one sequence, which tensors of the scores' shape know by its index. size,
   unit: bytes of an element and of an accumulator. */
KFI_HOST kfi_cpu_attention kfi_cpu_attention_own(const kfi_cpu_attention *m,
                                                 const kfi_cpu_attention_sequence *s, int size,
                                                 int unit)
{
    const kfi_attention_bound first = kfi_cpu_attention_own_bound(&m->packed->first, s),
                              last = kfi_cpu_attention_own_bound(&m->packed->last, s);
    kfi_cpu_attention own = *m;
    own.queries = s->queries, own.keys = s->keys;
    own.range.first_slope = first.slope, own.range.first_add = first.add;
    own.range.last_slope = last.slope, own.range.last_add = last.add;
    own.q = kfi_cpu_attention_behind(m->q, s->query * m->q_strides.row, size);
    own.k = kfi_cpu_attention_behind(m->k, s->key * m->k_strides.row, size);
    own.v = kfi_cpu_attention_behind(m->v, s->key * m->v_strides.row, size);
    own.out = kfi_cpu_attention_out_behind(m->out, s->query * m->out_strides.row, size);
    own.lse = kfi_cpu_attention_out_behind(m->lse, s->query, unit);
    own.row_max = kfi_cpu_attention_out_behind(m->row_max, s->query, unit);
    own.log_sum = kfi_cpu_attention_out_behind(m->log_sum, s->query, unit);
    own.number0 += s->query * m->numbers.row + s->key;
    return own;
}

/* Plan of a call, without its tile: jobs pack their own blocks of K and V, which are
   shorter if all sequences together have few keys. */
KFI_HOST kfi_cpu_attention_plan kfi_cpu_attention_packed_plan(kf_i64 batch, kf_i64 heads,
                                                              kf_i64 group, kf_i64 queries,
                                                              kf_i64 keys, kf_i64 dim, kf_i64 dim_v,
                                                              int unit)
{
    kfi_cpu_attention_plan p =
        kfi_cpu_attention_make_plan(1, heads, group, queries, 0, dim, dim_v, unit);
    while (p.keys > KFI_ATTENTION_LEAST_KEYS && p.keys / 2 >= keys) p.keys /= 2;
    (void)kfi_cpu_attention_rooms(&p, unit, NULL, &p.bytes);
    p.blocks = queries * group / p.rows + batch + 2;
    p.tiles = p.kv_heads * p.blocks;
    p.slots = kfi_cpu_gemm_least(kfi_cpu_gemm_least(p.tiles, KFI_ATTENTION_SLOTS),
                                 kfi_cpu_attention_most_slots(&p));
    return p;
}
/* Workspace of a call in bytes. */
KFI_HOST size_t kfi_cpu_attention_packed_bytes(kf_i64 batch, kf_i64 heads, kf_i64 group,
                                               kf_i64 queries, kf_i64 keys, kf_i64 dim,
                                               kf_i64 dim_v, int unit)
{
    if (heads < 1 || group < 1 || queries < 1) return KFI_GEMM_LINE;
    const kfi_cpu_attention_plan p =
        kfi_cpu_attention_packed_plan(batch, heads, group, queries, keys, dim, dim_v, unit);
    return (size_t)p.slots * p.bytes + KFI_GEMM_LINE;
}

KFI_C_END

#endif
