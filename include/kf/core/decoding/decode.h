/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/decoding/decode.h: attention to cached keys and values in C.
 *
 * A unit is a sequence and a head of k, with the rows of all queries and heads of q that read it.
 * Jobs, in parallel: a unit's rows of q in the numbers of the arithmetic; a chunk of a unit's keys,
 * whose sums go to the workspace; the sums of a unit's chunks, in order. A job reads 64 keys at a
 * time, with an online softmax.
 *
 * Chunks follow from a sequence's own length (plan.h), and each chunk is computed in one order: a
 * sequence has the same bits in any batch, with any pages, and on any number of threads. */
#ifndef KF_CORE_DECODING_DECODE_H
#define KF_CORE_DECODING_DECODE_H

#include "kf/core/host.h"

#include <math.h>

#include "kf/core/decoding/check.h"
#include "kf/core/decoding/element.h"
#include "kf/core/math.h"
#include "kf/core/paged.h"
#include "kf/core/parallel.h"

KFI_C_BEGIN

#define KFI_DECODE_KEYS 64   /* keys of a block */
#define KFI_DECODE_ROWS 8    /* rows that share a loaded key */
#define KFI_DECODE_SLICE 256 /* elements of a key that are loaded at a time */

/* A call. */
typedef struct {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides given;
    kfi_cpu_decoding_element element;
    const char *q, *k, *v;
    char *out;
    void *lse; /* [batch, heads, queries], of `unit` bytes; may be NULL */
    kfi_decoding_strides q_strides, k_strides, v_strides, out_strides;
    kfi_decoding_sizes sizes;
    kfi_pages pages;
    const int *counts;                  /* keys of each sequence */
    int left, right, most, slots, seen; /* seen: queries, for kfi_decode_range_of */
    kf_i64 group, rows, units;
    double scale;
    /* Parts of the workspace: q [unit][row][dim]; of each chunk the maximum and the sum
     * [unit][slot][row] and the values' sums [unit][slot][row][dim_v]. Rows are padded. */
    char *queries, *maxima, *totals, *sums;
    kf_i64 q_pitch, sum_pitch;
} kfi_cpu_decode;

/* A chunk of a unit. */
typedef struct {
    kf_i64 unit, sequence, kv_head, keys, first, last; /* keys: the sequence's; last: excluded */
    void *maximum, *total, *sum;
} kfi_cpu_decode_chunk;

/* Address of row r of q or out of a unit, r = query * group + head within the unit's heads. */
KFI_HOST kf_i64 kfi_cpu_decode_offset(const kfi_cpu_decode *m, const kfi_decoding_strides *s,
                                      kf_i64 unit, kf_i64 row)
{
    const kf_i64 query = row / m->group,
                 head = unit % m->sizes.kv_heads * m->group + row % m->group;
    return (unit / m->sizes.kv_heads * s->batch + query * s->row + head * s->head) *
           m->element.size;
}
/* Address of a key's or a value's head; NULL if the row has no memory. */
KFI_HOST const char *kfi_decode_row(const kfi_cpu_decode *m, const char *cache,
                                    const kfi_decoding_strides *s, kf_i64 sequence, kf_i64 kv_head,
                                    kf_i64 key)
{
    const kf_i64 at = kfi_page_row(&m->pages, sequence, key), size = m->sizes.page_size;
    if (at < 0) return NULL;
    return cache +
           (at / size * s->batch + at % size * s->row + kv_head * s->head) * m->element.size;
}
/* Keys [lo, hi) that a query of a sequence sees. */
KFI_HOST void kfi_decode_seen(const kfi_cpu_decode *m, kf_i64 keys, kf_i64 query, kf_i64 *lo,
                              kf_i64 *hi)
{
    const kf_i64 own = query + keys - m->sizes.queries, first = own - m->left,
                 last = own + m->right + 1;
    *lo = first < 0 ? 0 : first;
    *hi = last < keys ? last : keys;
}

#define KFI_DECODE_TYPE f32
#define KFI_DECODE_REAL float
#include "kf/core/decoding/decode_real.h"
#define KFI_DECODE_TYPE f64
#define KFI_DECODE_REAL double
#include "kf/core/decoding/decode_real.h"

/* ---- jobs */

KFI_HOST void kfi_decode_load_job(void *context, kf_i64 job)
{
    const kfi_cpu_decode *const m = (const kfi_cpu_decode *)context;
    const kf_i64 unit = job / m->rows, row = job % m->rows;
    m->element.load(m->q + kfi_cpu_decode_offset(m, &m->q_strides, unit, row),
                    m->queries + job * m->q_pitch * m->element.unit, m->sizes.dim);
}
KFI_HOST void kfi_decode_chunk_job(void *context, kf_i64 job)
{
    const kfi_cpu_decode *const m = (const kfi_cpu_decode *)context;
    const kf_i64 unit = job / m->slots, slot = job % m->slots, sequence = unit / m->sizes.kv_heads;
    const int keys = m->counts[sequence];
    if (keys < 0 || keys > kfi_decoding_rows(&m->sizes, m->pages.table != NULL)) return;
    const kfi_decode_range r = kfi_decode_range_of(keys, m->seen, m->left, m->right, m->most);
    if (slot >= r.count) return;
    const kf_i64 first = (r.begin + slot) * (kf_i64)r.chunk, last = first + r.chunk,
                 at = job * m->rows * m->element.unit;
    const kfi_cpu_decode_chunk c = {unit,           sequence,       unit % m->sizes.kv_heads,
                                    keys,           first,          last < r.end ? last : r.end,
                                    m->maxima + at, m->totals + at, m->sums + at * m->sum_pitch};
    /* Blocks in front of the first key that a query sees contribute nothing. */
    const kf_i64 skipped = r.first > first ? (r.first - first) / KFI_DECODE_KEYS : 0;
    for (kf_i64 row = 0; row < m->rows; row += KFI_DECODE_ROWS) {
        const int rows = (int)(m->rows - row < KFI_DECODE_ROWS ? m->rows - row : KFI_DECODE_ROWS);
        if (m->element.unit == 8)
            kfi_decode_rows_f64(m, &c, row, rows, first + skipped * KFI_DECODE_KEYS);
        else
            kfi_decode_rows_f32(m, &c, row, rows, first + skipped * KFI_DECODE_KEYS);
    }
}
KFI_HOST void kfi_decode_fold_job(void *context, kf_i64 job)
{
    const kfi_cpu_decode *const m = (const kfi_cpu_decode *)context;
    const kf_i64 unit = job / m->rows, row = job % m->rows;
    const int keys = m->counts[unit / m->sizes.kv_heads],
              valid = keys >= 0 && keys <= kfi_decoding_rows(&m->sizes, m->pages.table != NULL);
    const kfi_decode_range r =
        kfi_decode_range_of(valid ? keys : 0, m->seen, m->left, m->right, m->most);
    if (m->element.unit == 8)
        kfi_decode_fold_f64(m, unit, row, valid ? r.count : 0);
    else
        kfi_decode_fold_f32(m, unit, row, valid ? r.count : 0);
}

/* ---- calls */

/* Bytes of each part of the workspace; returns their sum, at most 2^62. */
KFI_ONCE size_t kfi_cpu_decode_parts(const kfi_decoding_sizes *p, int unit, size_t *bytes)
{
    const kf_i64 rows = p->kv_heads ? p->heads / p->kv_heads * p->queries : 0,
                 units = p->batch * p->kv_heads,
                 slots = kfi_decode_slots(kfi_decoding_rows(p, p->pages > 1),
                                          kfi_decode_bound(p->queries), p->kv_heads);
    const double each = (double)units * (double)rows,
                 found[] = {each * (double)kfi_decoding_padded(p->dim), each * (double)slots,
                            each * (double)slots,
                            each * (double)slots * (double)kfi_decoding_padded(p->dim_v)};
    size_t sum = 0;
    if (found[0] + found[3] > 5.7e17) return (size_t)1 << 62;
    for (int i = 0; i < 4; ++i) {
        bytes[i] = kfi_workspace((size_t)found[i] * (size_t)unit);
        sum += bytes[i];
    }
    return sum;
}
KFI_ONCE size_t kfi_cpu_decode_workspace(const void *shape, int unit)
{
    size_t bytes[4];
    if (!shape) return 0;
    const kfi_decoding_sizes p = kfi_decoding_sizes_of((const int64_t *)shape);
    return kfi_decoding_fits(&p) ? kfi_cpu_decode_parts(&p, unit, bytes) : 0;
}
/* Checks a call and runs it. `m` has name, arguments, strides, element, integers and scale. */
KFI_ONCE kf_result_t kfi_cpu_decode_run(kfi_cpu_decode *m, const kfi_shape_values *v,
                                        void *workspace, size_t workspace_bytes)
{
    kfi_operands operands;
    kfi_decoding_strides steps[KFI_MAX_TENSORS];
    size_t bytes[4];
    m->sizes = kfi_decoding_sizes_of(v->value);
    kfi_decoding_sizes *const p = &m->sizes;
    kf_result_t result = kfi_decoding_check_sizes(&m->name, p, 1);
    if (result == KF_SUCCESS)
        result = kfi_decoding_check(&m->name, &m->arguments, &m->given, "qkv..o.", v->elements, p,
                                    steps, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const size_t needed = kfi_cpu_decode_parts(p, m->element.unit, bytes);
    result = kfi_decoding_check_blocks(&m->name, &m->arguments, p, 3);
    if (result == KF_SUCCESS)
        result = kfi_check_workspace(&m->name, &m->arguments, &operands, workspace, workspace_bytes,
                                     needed);
    if (result != KF_SUCCESS) return result;
    const void *const *const t = m->arguments.tensors;
    m->q = (const char *)t[0], m->k = (const char *)t[1], m->v = (const char *)t[2];
    m->out = (char *)(uintptr_t)t[5], m->lse = (void *)(uintptr_t)t[6];
    m->q_strides = steps[0], m->k_strides = steps[1], m->v_strides = steps[2];
    m->out_strides = steps[5];
    m->pages.table = (const int *)t[3], m->counts = (const int *)t[4];
    m->pages.sequences = p->batch, m->pages.pages = p->pages;
    m->pages.rows = p->page_size, m->pages.blocks = p->blocks;
    m->group = p->heads / p->kv_heads, m->rows = m->group * p->queries;
    m->units = p->batch * p->kv_heads, m->most = kfi_decode_most(p->kv_heads);
    m->seen = kfi_decode_bound(p->queries);
    m->slots = kfi_decode_slots(kfi_decoding_rows(p, t[3] != NULL), m->seen, p->kv_heads);
    m->q_pitch = kfi_decoding_padded(p->dim), m->sum_pitch = kfi_decoding_padded(p->dim_v);
    m->queries = (char *)workspace;
    m->maxima = m->queries + bytes[0], m->totals = m->maxima + bytes[1];
    m->sums = m->totals + bytes[2];
    const int parallel =
        m->units * m->rows * m->slots * KFI_DECODE_LEAST * (p->dim + p->dim_v) >= KF_OMP_MIN;
    kfi_parallel(m->units * m->rows, kfi_decode_load_job, m, parallel);
    kfi_parallel(m->units * m->slots, kfi_decode_chunk_job, m, parallel);
    kfi_parallel(m->units * m->rows, kfi_decode_fold_job, m, parallel);
    return KF_SUCCESS;
}

KFI_C_END

#endif
