/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/attention.h: attention in C: out[i] = sum over visible keys j of
   softmax(score(q[i] . k[j])) v[j], the scores of a few rows at a time.

   Public to the families: kfi_cpu_attention_run and kfi_cpu_attention_bytes, its workspace.
   Schedule: a job has up to KFI_ATTENTION_ROWS rows, queries of all heads that share a key head,
   and walks the visible keys in blocks of KFI_ATTENTION_KEYS. Blocks of K and V are packed once,
   for all jobs of a key head, up to KFI_ATTENTION_SHARED_BYTES, else by each job. For each strip of
   rows multiplies, applies the score, exponentiates online (softmax.h) and accumulates. Products
   are the register tiles of core/matmul. Jobs run in parallel. Accuracy: arithmetic is float, for
   f64 double; probabilities are not rounded to the element type. Sums run over keys in ascending
   order, whatever the other rows, heads and threads. */
#ifndef KF_CORE_ATTENTION_ATTENTION_H
#define KF_CORE_ATTENTION_ATTENTION_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/attention/packed.h"
#include "kf/core/attention/plan.h"
#include "kf/core/attention/softmax.h"
#include "kf/core/attention/sparse.h"

KFI_C_BEGIN

/* Rows of one job: [row0, row0 + rows) of the queries of all heads of a group, one head after the
   other. */
typedef struct {
    const kfi_cpu_attention *m;
    kfi_cpu_attention_plan p;
    kfi_cpu_attention_room room;
    const kfi_cpu_attention_softmax *f;
    kf_i64 batch, kv_head, row0, rows;
    char *shared;      /* packed blocks of the key head, or NULL */
    kf_i64 key0, keys; /* the packed block */
    int partial;       /* whether a row has weights of 0 in the block */
    int finite;        /* whether the block of V is, if `partial` */
} kfi_cpu_attention_job;

/* Address of a row, NULL for an empty tensor without memory. */
KFI_INLINE const char *kfi_cpu_attention_at(const void *p, const kfi_cpu_attention_strides *s,
                                            kf_i64 batch, kf_i64 head, kf_i64 row, int size)
{
    if (!p) return NULL;
    return (const char *)p + (batch * s->batch + head * s->head + row * s->row) * size;
}
/* The keys [begin, end) of the packed block that rows [row, row + rows) need, begin a multiple of
   KFI_ATTENTION_ALIGN. */
KFI_HOST kfi_cpu_attention_keys kfi_cpu_attention_need(const kfi_cpu_attention_job *j, kf_i64 row,
                                                       kf_i64 rows)
{
    kfi_cpu_attention_keys all = {j->key0 + j->keys, j->key0 - 1};
    for (kf_i64 i = row; i < row + rows; ++i) {
        const kfi_cpu_attention_keys own = j->room.row[i].visible;
        if (own.last < own.first) continue;
        if (own.first < all.first) all.first = own.first;
        if (own.last > all.last) all.last = own.last;
    }
    all.first = all.first < j->key0 ? 0 : (all.first - j->key0) & ~(KFI_ATTENTION_ALIGN - 1);
    all.last = kfi_cpu_gemm_least(all.last + 1 - j->key0, j->keys);
    return all;
}

/* ---- packing ---- */

/* A row's indices, visible keys, and state before its first key. */
KFI_HOST void kfi_cpu_attention_start_row(kfi_cpu_attention_job *j, kf_i64 row)
{
    const kfi_cpu_attention *const m = j->m;
    kfi_cpu_attention_row *const own = &j->room.row[row];
    union {
        float f32;
        double f64;
    } sink;
    own->head = j->kv_head * m->group + (j->row0 + row) / m->queries;
    own->query = (j->row0 + row) % m->queries;
    own->visible = kfi_cpu_attention_visible(m, own->query);
    own->bits = NULL;
    if (m->sink)
        m->sink_type.widen((const char *)m->sink + own->head * m->sink_type.size, 1, &sink, 1);
    j->f->start(&j->room, row, m->sink ? &sink : NULL);
    if (m->sparse && !kfi_cpu_attention_start_list(m, j->batch, own))
        memset(j->room.sum + row * j->p.lanes.unit, 0xff, (size_t)j->p.lanes.unit); /* NaN */
}
/* Packs the queries of a job, times the scale, and sets the state of its rows. */
KFI_HOST void kfi_cpu_attention_start(kfi_cpu_attention_job *j)
{
    const kfi_cpu_attention *const m = j->m;
    const kfi_cpu_gemm_lanes *const v = &j->p.lanes;
    for (kf_i64 row = 0; row < j->rows; row += v->rows) {
        const kf_i64 rows = kfi_cpu_gemm_least(j->rows - row, v->rows);
        for (kf_i64 i = 0; i < rows; ++i) {
            char *const to = j->room.stage + i * j->p.pitch_q * v->unit;
            kfi_cpu_attention_start_row(j, row + i);
            m->type.element.widen(kfi_cpu_attention_at(m->q, &m->q_strides, j->batch,
                                                       j->room.row[row + i].head,
                                                       j->room.row[row + i].query, v->size),
                                  1, to, (int)m->dim);
            if (m->scale != 1) j->f->multiply(to, m->scale, m->dim);
        }
        v->pack_loaded(j->room.q + row / v->rows * j->p.q_panel, 0, (int)rows, m->dim,
                       j->room.stage, j->p.pitch_q, 1);
    }
    memset(j->room.out, 0, (size_t)(j->p.rows * j->p.pitch_out * v->unit));
}
/* Packs a block of K and V: keys from key0 on. */
KFI_HOST void kfi_cpu_attention_pack(const kfi_cpu_attention *m, const kfi_cpu_attention_plan *p,
                                     kf_i64 batch, kf_i64 head, kf_i64 key0, char *k, char *v)
{
    const kfi_cpu_gemm_lanes *const f = &p->lanes;
    const kf_i64 keys = kfi_cpu_gemm_least(m->keys - key0, p->keys);
    const char *const key = kfi_cpu_attention_at(m->k, &m->k_strides, batch, head, key0, f->size),
                      *const value =
                          kfi_cpu_attention_at(m->v, &m->v_strides, batch, head, key0, f->size);
    for (kf_i64 i = 0; m->dim > 0 && i < keys; i += f->cols)
        f->pack(k + i / f->cols * p->k_panel, 1, (int)kfi_cpu_gemm_least(keys - i, f->cols), m->dim,
                key + i * m->k_strides.row * f->size, m->k_strides.row, 1);
    for (kf_i64 i = 0; i < m->dim_v; i += f->cols)
        f->pack(v + i / f->cols * p->v_panel, 1, (int)kfi_cpu_gemm_least(m->dim_v - i, f->cols),
                keys, value + i * f->size, 1, m->v_strides.row);
}
/* Begins a block of keys: packs it, if it is not shared, and tests its values. */
KFI_HOST void kfi_cpu_attention_begin(kfi_cpu_attention_job *j)
{
    const kfi_cpu_attention *const m = j->m;
    const kfi_cpu_gemm_lanes *const v = &j->p.lanes;
    if (j->shared) {
        size_t used = (size_t)(j->key0 / j->p.keys) * j->p.block;
        kfi_cpu_attention_block(&j->p, v->unit, j->shared, &used, &j->room.k, &j->room.v);
    } else {
        kfi_cpu_attention_pack(m, &j->p, j->batch, j->kv_head, j->key0, j->room.k, j->room.v);
    }
    j->partial = m->score.fn || m->rng || m->sparse;
    for (kf_i64 i = 0; !j->partial && i < j->rows; ++i) {
        const kfi_cpu_attention_keys own = j->room.row[i].visible;
        j->partial = own.first > j->key0 || own.last < j->key0 + j->keys - 1;
    }
    j->finite = 1;
    for (kf_i64 i = 0; j->partial && j->finite && i < m->dim_v; i += v->cols)
        j->finite = j->f->finite(j->room.v + i / v->cols * j->p.v_panel, j->keys * v->cols);
}

/* ---- a strip of rows and a block of keys ---- */

/* Replaces the products of a row by scores. */
KFI_HOST void kfi_cpu_attention_score_row(const kfi_cpu_attention_job *j, kf_i64 row,
                                          kfi_cpu_attention_keys need, char *s)
{
    const kfi_cpu_attention *const m = j->m;
    const int unit = j->p.lanes.unit, count = (int)(need.last - need.first);
    kfi_attention_part part;
    memset(&part, 0, sizeof part);
    part.score = s + need.first * unit;
    part.scalars = m->score.scalars;
    part.batch = j->batch;
    part.head = j->room.row[row].head;
    part.query = j->room.row[row].query;
    part.key = j->key0 + need.first;
    part.queries = m->queries, part.keys = m->keys;
    for (int i = 0; i < m->score.tensors; ++i) {
        const kfi_cpu_attention_tensor *const t = &m->score.tensor[i];
        char *const to = j->room.values + i * KFI_ATTENTION_KEYS * unit;
        const char *const from =
            kfi_cpu_attention_at(t->data, &t->strides, j->batch, part.head, part.query, t->size) +
            part.key * t->key * t->size;
        part.values[i] = to;
        t->widen(from, t->key, to, count);
        memset(to + count * unit, 0, (size_t)((kfi_seam_whole(count) - count) * unit));
        if (j->room.derivatives)
            part.derivatives[i] = j->room.derivatives + (i + 1) * KFI_ATTENTION_KEYS * unit;
    }
    part.derivative = j->room.derivatives;
    m->score.fn(&part, kfi_seam_whole(count));
}
/* Turns a row of products into weights. */
KFI_HOST void kfi_cpu_attention_weigh(const kfi_cpu_attention_job *j, kf_i64 row,
                                      kfi_cpu_attention_keys need, char *s)
{
    const kfi_cpu_attention *const m = j->m;
    const kfi_cpu_attention_row *const own = &j->room.row[row];
    const kfi_cpu_attention_keys visible = {own->visible.first - j->key0,
                                            own->visible.last + 1 - j->key0};
    if (m->score.fn && visible.first < visible.last) kfi_cpu_attention_score_row(j, row, need, s);
    if (own->bits) j->f->hide(s, need, own->bits);
    j->f->row(s, need, visible, &j->room, row);
    if (m->rng)
        j->f->drop(s, need, m->rng,
                   m->number0 + j->batch * m->numbers.batch + own->head * m->numbers.head +
                       own->query * m->numbers.row + j->key0);
    j->f->rescale(j->room.out + row * j->p.pitch_out * j->p.lanes.unit, &j->room, row,
                  j->p.pitch_out);
}
/* Adds weights times V, keys of weight 0 excluded: for values that are not finite. */
KFI_HOST void kfi_cpu_attention_add_finite(const kfi_cpu_attention_job *j, kf_i64 row, kf_i64 rows,
                                           kfi_cpu_attention_keys need)
{
    const kfi_cpu_attention *const m = j->m;
    const int unit = j->p.lanes.unit, size = j->p.lanes.size;
    for (kf_i64 key = need.first; key < need.last; ++key) {
        m->type.element.widen(
            kfi_cpu_attention_at(m->v, &m->v_strides, j->batch, j->kv_head, j->key0 + key, size), 1,
            j->room.stage, (int)m->dim_v);
        for (kf_i64 i = 0; i < rows; ++i)
            j->f->add(j->room.out + (row + i) * j->p.pitch_out * unit, j->room.stage,
                      j->room.s + (i * KFI_ATTENTION_PITCH + key) * unit, m->dim_v);
    }
}
KFI_HOST void kfi_cpu_attention_strip(const kfi_cpu_attention_job *j, kf_i64 row)
{
    const kfi_cpu_gemm_lanes *const v = &j->p.lanes;
    const kf_i64 rows = kfi_cpu_gemm_least(j->rows - row, v->rows);
    const kfi_cpu_attention_keys need = kfi_cpu_attention_need(j, row, rows);
    if (need.last <= need.first) return;
    for (kf_i64 i = need.first; i < need.last; i += v->cols)
        v->tile((int)rows, j->m->dim, j->room.q + row / v->rows * j->p.q_panel,
                j->room.k + i / v->cols * j->p.k_panel, j->room.s + i * v->unit,
                KFI_ATTENTION_PITCH, 0);
    for (kf_i64 i = 0; i < rows; ++i)
        kfi_cpu_attention_weigh(j, row + i, need, j->room.s + i * KFI_ATTENTION_PITCH * v->unit);
    if (j->partial && !j->finite) {
        kfi_cpu_attention_add_finite(j, row, rows, need);
        return;
    }
    v->pack_loaded(j->room.p, 0, (int)rows, need.last - need.first,
                   j->room.s + need.first * v->unit, KFI_ATTENTION_PITCH, 1);
    for (kf_i64 i = 0; i < j->m->dim_v; i += v->cols)
        v->tile((int)rows, need.last - need.first, j->room.p,
                j->room.v + i / v->cols * j->p.v_panel + need.first * v->cols * v->unit,
                j->room.out + (row * j->p.pitch_out + i) * v->unit, j->p.pitch_out, 1);
}

/* ---- jobs ---- */

KFI_HOST void kfi_cpu_attention_finish(const kfi_cpu_attention_job *j)
{
    const kfi_cpu_attention *const m = j->m;
    for (kf_i64 i = 0; i < j->rows; ++i) {
        const kf_i64 head = j->room.row[i].head, query = j->room.row[i].query;
        char *const sums = j->room.out + i * j->p.pitch_out * j->p.lanes.unit;
        j->f->finish(sums, &j->room, i, j->p.pitch_out, m,
                     j->batch * m->row_batch + head * m->row_head + query);
        m->type.element.narrow(sums,
                               (char *)(uintptr_t)kfi_cpu_attention_at(
                                   m->out, &m->out_strides, j->batch, head, query, j->p.lanes.size),
                               1, (int)m->dim_v);
    }
}
/* Computes the rows from row0 on of the job's head. refused: results are NaN. */
KFI_HOST void kfi_cpu_attention_rows_of(kfi_cpu_attention_job *j, kf_i64 row0, int refused)
{
    const kfi_cpu_attention *const m = j->m;
    kf_i64 first = m->keys, last = -1;
    j->row0 = row0;
    j->rows = kfi_cpu_gemm_least(m->queries * m->group - j->row0, j->p.rows);
    kfi_cpu_attention_start(j);
    if (refused) memset(j->room.sum, 0xff, (size_t)(j->rows * j->p.lanes.unit)); /* NaN */
    for (kf_i64 i = 0; i < j->rows; ++i) {
        const kfi_cpu_attention_keys own = j->room.row[i].visible;
        if (own.last < own.first) continue;
        if (own.first < first) first = own.first;
        if (own.last > last) last = own.last;
    }
    for (j->key0 = first / j->p.keys * j->p.keys; j->key0 <= last; j->key0 += j->p.keys) {
        j->keys = kfi_cpu_gemm_least(m->keys - j->key0, j->p.keys);
        if (m->sparse && !kfi_cpu_attention_listed(m, j->room.row, j->rows, j->key0)) continue;
        kfi_cpu_attention_begin(j);
        for (kf_i64 row = 0; row < j->rows; row += j->p.lanes.rows) kfi_cpu_attention_strip(j, row);
    }
    kfi_cpu_attention_finish(j);
}
KFI_HOST void kfi_cpu_attention_tile(kfi_cpu_attention_job *j, kf_i64 tile)
{
    j->batch = tile / (j->p.blocks * j->p.kv_heads);
    j->kv_head = tile / j->p.blocks % j->p.kv_heads;
    kfi_cpu_attention_rows_of(j, tile % j->p.blocks * j->p.rows, 0);
}
/* The same of packed sequences. */
KFI_HOST void kfi_cpu_attention_packed_tile(kfi_cpu_attention_job *j, kf_i64 tile)
{
    const kfi_cpu_attention *const m = j->m;
    kfi_cpu_attention_sequence s;
    const kf_i64 block = kfi_cpu_attention_find(&s, m, tile % j->p.blocks, j->p.rows);
    if (block < 0) return;
    const kfi_cpu_attention own = kfi_cpu_attention_own(m, &s, j->p.lanes.size, j->p.lanes.unit);
    j->m = &own;
    j->batch = s.index;
    j->kv_head = tile / j->p.blocks;
    kfi_cpu_attention_rows_of(j, block * j->p.rows, s.refused);
    j->m = m;
}
typedef struct {
    const kfi_cpu_attention *m;
    kfi_cpu_attention_plan p;
    char *workspace, *shared;   /* scratch memory of the slots; packed blocks */
    kf_i64 head0, tile0, tiles; /* first key head of all batches, its first tile, and the tiles */
    int busy[KFI_ATTENTION_SLOTS]; /* scratch memory in use */
} kfi_cpu_attention_call;
/* Computes every slots-th tile. Takes the first free scratch memory: a few threads then use little
   of the workspace. */
KFI_HOST void kfi_cpu_attention_slot(void *context, kf_i64 slot)
{
    kfi_cpu_attention_call *const call = (kfi_cpu_attention_call *)context;
    kfi_cpu_attention_job job;
    kf_i64 mine = slot;
#if defined(__GNUC__)
    for (mine = 0; __atomic_exchange_n(&call->busy[mine], 1, __ATOMIC_ACQUIRE);)
        mine = (mine + 1) % call->p.slots;
#endif
    memset(&job, 0, sizeof job);
    job.m = call->m;
    job.p = call->p;
    job.f = kfi_cpu_attention_softmax_of(&call->p.lanes);
    job.room = kfi_cpu_attention_rooms(&call->p, call->p.lanes.unit,
                                       call->workspace + (size_t)mine * call->p.bytes, NULL);
    for (kf_i64 tile = call->tile0 + slot; tile < call->tile0 + call->tiles;
         tile += call->p.slots) {
        if (call->p.shared)
            job.shared =
                call->shared + (size_t)(tile / call->p.blocks - call->head0) * call->p.head_bytes;
        if (call->m->packed)
            kfi_cpu_attention_packed_tile(&job, tile);
        else
            kfi_cpu_attention_tile(&job, tile);
    }
#if defined(__GNUC__)
    __atomic_store_n(&call->busy[mine], 0, __ATOMIC_RELEASE);
#endif
}
#define KFI_ATTENTION_TYPE(name)                                                                   \
    KFI_HOST kfi_cpu_attention_type kfi_cpu_attention_##name(void)                                 \
    {                                                                                              \
        const kfi_cpu_attention_type found = {kfi_gemm_##name(), kfi_cpu_gemm_lanes_##name};       \
        return found;                                                                              \
    }
KFI_ATTENTION_TYPE(f32)
KFI_ATTENTION_TYPE(f64)
KFI_ATTENTION_TYPE(f16)
KFI_ATTENTION_TYPE(bf16)
#undef KFI_ATTENTION_TYPE

/* Packs one shared block. */
KFI_HOST void kfi_cpu_attention_pack_job(void *context, kf_i64 job)
{
    const kfi_cpu_attention_call *const call = (const kfi_cpu_attention_call *)context;
    const kf_i64 blocks = kfi_cpu_gemm_parts(call->m->keys, call->p.keys), head = job / blocks,
                 kv_head = (call->head0 + head) % call->p.kv_heads,
                 batch = (call->head0 + head) / call->p.kv_heads;
    size_t used = (size_t)head * call->p.head_bytes + (size_t)(job % blocks) * call->p.block;
    char *k, *v;
    kfi_cpu_attention_block(&call->p, call->p.lanes.unit, call->shared, &used, &k, &v);
    kfi_cpu_attention_pack(call->m, &call->p, batch, kv_head, job % blocks * call->p.keys, k, v);
}
/* Computes a call whose arguments are checked. workspace: kfi_cpu_attention_bytes, of packed
   sequences kfi_cpu_attention_packed_bytes. */
KFI_HOST void kfi_cpu_attention_run(const kfi_cpu_attention *m, void *workspace)
{
    const kfi_cpu_gemm_lanes lanes = m->type.lanes();
    const kf_i64 batch = m->packed ? 1 : m->batch;
    const double work = (double)batch * (double)m->heads * (double)m->queries *
                        ((double)m->keys + 8) * (double)(m->dim + m->dim_v);
    const int parallel = work > 8.0 * KF_OMP_MIN;
    kfi_cpu_attention_call call;
    memset(&call, 0, sizeof call);
    if (batch < 1 || m->heads < 1 || m->queries < 1) return;
    call.m = m;
    call.p = m->packed
                 ? kfi_cpu_attention_packed_plan(m->packed->batch, m->heads, m->group, m->queries,
                                                 m->keys, m->dim, m->dim_v, lanes.unit)
                 : kfi_cpu_attention_make_plan(batch, m->heads, m->group, m->queries, m->keys,
                                               m->dim, m->dim_v, lanes.unit);
    if (m->sparse)
        kfi_cpu_attention_limit_keys(&call.p, m->sparse->block, batch, m->keys, lanes.unit);
    kfi_cpu_attention_panels(&call.p, &lanes, m->dim);
    call.workspace =
        (char *)(((uintptr_t)workspace + KFI_GEMM_LINE - 1) / KFI_GEMM_LINE * KFI_GEMM_LINE);
    call.shared = call.workspace + (size_t)call.p.slots * call.p.bytes;
    const kf_i64 heads = batch * call.p.kv_heads, step = call.p.shared ? call.p.shared : heads;
    for (; call.head0 < heads; call.head0 += step) {
        const kf_i64 some = kfi_cpu_gemm_least(heads - call.head0, step);
        call.tile0 = call.head0 * call.p.blocks;
        call.tiles = some * call.p.blocks;
        if (call.p.shared)
            kfi_parallel(some * kfi_cpu_gemm_parts(m->keys, call.p.keys),
                         kfi_cpu_attention_pack_job, &call, parallel);
        kfi_parallel(kfi_cpu_gemm_least(call.tiles, call.p.slots), kfi_cpu_attention_slot, &call,
                     parallel);
    }
}

KFI_C_END

#endif
