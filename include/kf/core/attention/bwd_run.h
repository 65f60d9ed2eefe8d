/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/bwd_run.h: attention's backward in C: the passes of a call. */
#ifndef KF_CORE_ATTENTION_BWD_RUN_H
#define KF_CORE_ATTENTION_BWD_RUN_H

#include "kf/core/host.h"

#include "kf/core/attention/bwd.h"
#include "kf/core/attention/bwd_heads.h"

KFI_C_BEGIN

#define KFI_ATTENTION_BWD_PART 256 /* elements of a row that the first pass loads at a time */
#define KFI_ATTENTION_BWD_MANY 64  /* rows of a job of the first pass */

typedef struct {
    const kfi_cpu_attention_bwd *m;
    const kfi_cpu_attention_bwd_sizes *sizes;
    kfi_cpu_attention_bwd_plan p;
    char *workspace;               /* scratch memory of the slots */
    kf_i64 blocks, jobs;           /* jobs per key head; jobs of a pass */
    int of_keys;                   /* jobs of keys, else of rows */
    int busy[KFI_ATTENTION_SLOTS]; /* scratch memory in use */
} kfi_cpu_attention_bwd_call;

/* ---- the first pass ---- */

/* Sets delta of a row. */
KFI_HOST void kfi_cpu_attention_bwd_delta(const kfi_cpu_attention_bwd_call *call, kf_i64 batch,
                                          kf_i64 head, kf_i64 query)
{
    const kfi_cpu_attention *const m = &call->m->a;
    const int size = call->p.lanes.size, unit = call->p.lanes.unit;
    const kfi_cpu_attention_bwd_rows *const rows = kfi_cpu_attention_bwd_rows_of(&call->p.lanes);
    const kf_i64 at = batch * m->row_batch + head * m->row_head + query;
    const char *const out = kfi_cpu_attention_at(m->out, &m->out_strides, batch, head, query, size),
                      *const dout = kfi_cpu_attention_at(call->m->dout, &call->m->dout_strides,
                                                         batch, head, query, size);
    double a[KFI_ATTENTION_BWD_PART], b[KFI_ATTENTION_BWD_PART];
    union {
        float f32;
        double f64;
    } sum;
    memset(&sum, 0, sizeof sum);
    for (kf_i64 i = 0; i < m->dim_v; i += KFI_ATTENTION_BWD_PART) {
        const int count = (int)kfi_cpu_gemm_least(m->dim_v - i, KFI_ATTENTION_BWD_PART);
        m->type.element.widen(out + i * size, 1, a, count);
        m->type.element.widen(dout + i * size, 1, b, count);
        rows->dot(a, b, count, &sum);
    }
    if (unit == 8)
        ((double *)(void *)call->m->delta)[at] =
            sum.f64 - (call->m->dlse ? ((const double *)call->m->dlse)[at] : 0);
    else
        ((float *)(void *)call->m->delta)[at] =
            sum.f32 - (call->m->dlse ? ((const float *)call->m->dlse)[at] : 0);
}
KFI_HOST void kfi_cpu_attention_bwd_delta_job(void *context, kf_i64 job)
{
    const kfi_cpu_attention_bwd_call *const call = (const kfi_cpu_attention_bwd_call *)context;
    const kfi_cpu_attention *const m = &call->m->a;
    const kf_i64 parts = kfi_cpu_gemm_parts(m->queries, KFI_ATTENTION_BWD_MANY),
                 first = job % parts * KFI_ATTENTION_BWD_MANY,
                 last = kfi_cpu_gemm_least(m->queries, first + KFI_ATTENTION_BWD_MANY),
                 head = job / parts;
    for (kf_i64 query = first; query < last; ++query)
        kfi_cpu_attention_bwd_delta(call, head / m->heads, head % m->heads, query);
}
/* Returns whether jobs of rows store all elements of the gradients of the scores' shape. */
KFI_HOST int kfi_cpu_attention_bwd_covers(const kfi_cpu_attention *m)
{
    const kfi_cpu_attention_range *const r = &m->range;
    return !m->packed && !r->first_slope && r->first_add <= 0 && !r->last_slope &&
           r->last_add >= m->keys - 1;
}
/* Fills the gradients of the scores' shape of one batch and head, whose hidden elements no job of
   rows stores: zeros, and NaN for a sequence that is longer than they allow. */
KFI_HOST void kfi_cpu_attention_bwd_fill_job(void *context, kf_i64 job)
{
    const kfi_cpu_attention_bwd_call *const call = (const kfi_cpu_attention_bwd_call *)context;
    const kfi_cpu_attention *const m = &call->m->a;
    const kf_i64 batch = job / m->heads, head = job % m->heads;
    kfi_cpu_attention_sequence s;
    double fill[KFI_ATTENTION_BWD_PART];
    memset(&s, 0, sizeof s);
    if (m->packed) kfi_cpu_attention_set_sequence(&s, m, batch + 1, 0);
    memset(fill, s.refused ? 0xff : 0, sizeof fill);
    for (int i = 0; i < m->score.tensors; ++i) {
        const kfi_cpu_attention_dscores *const t = &call->m->dscores[i];
        for (kf_i64 row = 0; t->data && row < call->m->dscores_rows; ++row) {
            char *const to = (char *)t->data + (batch * t->strides.batch + head * t->strides.head +
                                                row * t->strides.row) *
                                                   t->size;
            for (kf_i64 key = 0; key < call->m->dscores_keys; key += KFI_ATTENTION_BWD_PART)
                t->narrow(
                    fill, to + key * t->size, 1,
                    (int)kfi_cpu_gemm_least(call->m->dscores_keys - key, KFI_ATTENTION_BWD_PART));
        }
    }
}

/* ---- jobs ---- */

KFI_HOST void kfi_cpu_attention_bwd_job_of(kfi_cpu_attention_bwd_job *j, kf_i64 job, int of_keys)
{
    if (of_keys)
        kfi_cpu_attention_bwd_key_job(j, job * j->p.keys, 0);
    else
        kfi_cpu_attention_bwd_row_job(j, job * j->p.rows, 0);
}
/* The same of packed sequences. */
KFI_HOST void kfi_cpu_attention_bwd_packed_job(kfi_cpu_attention_bwd_job *j, kf_i64 job,
                                               int of_keys)
{
    const kfi_cpu_attention_bwd *const m = j->m;
    const int size = j->p.lanes.size, unit = j->p.lanes.unit;
    kfi_cpu_attention_sequence s;
    const kf_i64 part = of_keys ? kfi_cpu_attention_find_keys(&s, &m->a, job, j->p.keys)
                                : kfi_cpu_attention_find(&s, &m->a, job, j->p.rows);
    if (part < 0) return;
    kfi_cpu_attention_bwd own = *m;
    own.a = kfi_cpu_attention_own(&m->a, &s, size, unit);
    own.dout = kfi_cpu_attention_behind(m->dout, s.query * m->dout_strides.row, size);
    own.dq = kfi_cpu_attention_out_behind(m->dq, s.query * m->dq_strides.row, size);
    own.dk = kfi_cpu_attention_out_behind(m->dk, s.key * m->dk_strides.row, size);
    own.dv = kfi_cpu_attention_out_behind(m->dv, s.key * m->dv_strides.row, size);
    own.delta = m->delta + s.query * unit;
    for (int i = 0; i < KFI_ATTENTION_TENSORS; ++i)
        if (own.dheads[i].rows) own.dheads[i].rows += s.query * unit;
    j->m = &own, j->a.m = &own.a;
    j->a.batch = s.index;
    if (of_keys)
        kfi_cpu_attention_bwd_key_job(j, part * j->p.keys, s.refused);
    else
        kfi_cpu_attention_bwd_row_job(j, part * j->p.rows, s.refused);
    j->m = m, j->a.m = &m->a;
}
/* Computes every slots-th job. Takes the first free scratch memory, as the forward. */
KFI_HOST void kfi_cpu_attention_bwd_slot(void *context, kf_i64 slot)
{
    kfi_cpu_attention_bwd_call *const call = (kfi_cpu_attention_bwd_call *)context;
    const int unit = call->p.lanes.unit;
    kfi_cpu_attention_bwd_job j;
    kf_i64 mine = slot;
#if defined(__GNUC__)
    for (mine = 0; __atomic_exchange_n(&call->busy[mine], 1, __ATOMIC_ACQUIRE);)
        mine = (mine + 1) % call->p.slots;
#endif
    char *const base = call->workspace + (size_t)mine * call->p.bytes;
    memset(&j, 0, sizeof j);
    j.m = call->m, j.p = call->p, j.a.m = &call->m->a, j.a.p.lanes = call->p.lanes;
    j.f = kfi_cpu_attention_softmax_of(&call->p.lanes);
    j.rows = kfi_cpu_attention_bwd_rows_of(&call->p.lanes);
    j.stores = !call->of_keys;
    if (call->of_keys)
        (void)kfi_cpu_attention_bwd_key_room(&call->p, unit, base, &j.room, &j.a.room);
    else
        (void)kfi_cpu_attention_bwd_row_room(&call->p, unit, base, &j.room, &j.a.room);
    for (kf_i64 job = slot; job < call->jobs; job += call->p.slots) {
        const kf_i64 head = job / call->blocks;
        j.a.batch = head / call->m->kv_heads;
        j.a.kv_head = head % call->m->kv_heads;
        if (call->m->a.packed)
            kfi_cpu_attention_bwd_packed_job(&j, job % call->blocks, call->of_keys);
        else
            kfi_cpu_attention_bwd_job_of(&j, job % call->blocks, call->of_keys);
    }
#if defined(__GNUC__)
    __atomic_store_n(&call->busy[mine], 0, __ATOMIC_RELEASE);
#endif
}

KFI_HOST void kfi_cpu_attention_bwd_head_job(void *context, kf_i64 head)
{
    const kfi_cpu_attention_bwd_call *const call = (const kfi_cpu_attention_bwd_call *)context;
    kfi_cpu_attention_bwd_head(call->m, head, call->p.lanes.unit);
}

/* ---- a call ---- */

/* Gives the sums of gradients per head their memory behind delta. Returns whether there are any. */
KFI_HOST int kfi_cpu_attention_bwd_place_heads(kfi_cpu_attention_bwd *m, size_t plane)
{
    int count = 0;
    for (int i = 0; i < m->a.score.tensors; ++i)
        if (m->dheads[i].data) m->dheads[i].rows = m->delta + plane * (size_t)++count;
    return count > 0;
}

/* Runs the jobs of one kind: `count` rows or keys of each key head, `part` of them a job. */
KFI_HOST void kfi_cpu_attention_bwd_pass(kfi_cpu_attention_bwd_call *call, int of_keys,
                                         kf_i64 count, kf_i64 part, int parallel)
{
    call->of_keys = of_keys;
    call->blocks = kfi_cpu_attention_bwd_blocks(call->sizes, count, part);
    call->jobs = call->sizes->heads * call->blocks;
    kfi_parallel(kfi_cpu_gemm_least(call->jobs, call->p.slots), kfi_cpu_attention_bwd_slot, call,
                 parallel);
}
/* Computes a call whose arguments are checked. workspace: kfi_cpu_attention_bwd_bytes. `m` has no
   delta yet. */
KFI_HOST void kfi_cpu_attention_bwd_run(kfi_cpu_attention_bwd *m,
                                        const kfi_cpu_attention_bwd_sizes *sizes, void *workspace)
{
    const kfi_cpu_attention *const a = &m->a;
    const kfi_cpu_gemm_lanes lanes = a->type.lanes();
    const kf_i64 batch = a->packed ? 1 : a->batch, heads = batch * a->heads;
    const double work =
        (double)heads * (double)a->queries * ((double)a->keys + 8) * (double)(a->dim + a->dim_v);
    const int parallel = 2 * work > 8.0 * KF_OMP_MIN;
    int scores = 0;
    kfi_cpu_attention_bwd_call call;
    memset(&call, 0, sizeof call);
    call.m = m;
    call.sizes = sizes;
    call.p = kfi_cpu_attention_bwd_make_plan(sizes);
    kfi_cpu_attention_bwd_panels(&call.p, &lanes, a->dim, a->dim_v);
    m->delta = (char *)(((uintptr_t)workspace + KFI_GEMM_LINE - 1) / KFI_GEMM_LINE * KFI_GEMM_LINE);
    call.workspace = m->delta + call.p.delta;
    const int heads_of_scores = kfi_cpu_attention_bwd_place_heads(m, call.p.plane);
    for (int i = 0; i < a->score.tensors; ++i) scores |= m->dscores[i].data != NULL;
    if (heads > 0)
        kfi_parallel(heads * kfi_cpu_gemm_parts(a->queries, KFI_ATTENTION_BWD_MANY),
                     kfi_cpu_attention_bwd_delta_job, &call, parallel);
    if (scores && !kfi_cpu_attention_bwd_covers(a))
        kfi_parallel((a->packed ? a->packed->batch : batch) * a->heads,
                     kfi_cpu_attention_bwd_fill_job, &call, parallel);
    if (m->dk || m->dv) kfi_cpu_attention_bwd_pass(&call, 1, a->keys, call.p.keys, parallel);
    if (m->dq || scores || heads_of_scores)
        kfi_cpu_attention_bwd_pass(&call, 0, sizes->rows, call.p.rows, parallel);
    if (heads_of_scores || m->dsink.data)
        kfi_parallel(a->heads, kfi_cpu_attention_bwd_head_job, &call, parallel);
}

KFI_C_END

#endif
