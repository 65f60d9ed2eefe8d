/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/bwd_strip.h: attention's backward in C: weights and gradients of the products
   of a strip of rows and a block of keys, and the packing that precedes them. */
#ifndef KF_CORE_ATTENTION_BWD_STRIP_H
#define KF_CORE_ATTENTION_BWD_STRIP_H

#include "kf/core/host.h"

#include "kf/core/attention/bwd_plan.h"

KFI_C_BEGIN

/* A job. `a` has its rows, its block of keys and the score's scratch memory, for the forward's
   functions. */
typedef struct {
    const kfi_cpu_attention_bwd *m;
    kfi_cpu_attention_bwd_plan p;
    kfi_cpu_attention_bwd_room room;
    kfi_cpu_attention_job a;
    const kfi_cpu_attention_softmax *f;
    const kfi_cpu_attention_bwd_rows *rows;
    int stores; /* whether strips store the gradients of the scores' shape */
} kfi_cpu_attention_bwd_job;

/* Sets the rows [row0, row0 + most) of the job's head: their indices and the keys that they see. */
KFI_HOST void kfi_cpu_attention_bwd_start_rows(kfi_cpu_attention_bwd_job *j, kf_i64 row0,
                                               kf_i64 most)
{
    const kfi_cpu_attention *const m = &j->m->a;
    j->a.row0 = row0;
    j->a.rows = kfi_cpu_gemm_least(m->queries * m->group - row0, most);
    for (kf_i64 i = 0; i < j->a.rows; ++i) {
        kfi_cpu_attention_row *const own = &j->a.room.row[i];
        own->head = j->a.kv_head * m->group + (row0 + i) / m->queries;
        own->query = (row0 + i) % m->queries;
        own->visible = kfi_cpu_attention_visible(m, own->query);
    }
}
/* The first and the last key that some row of the job sees; last < first: none. */
KFI_HOST kfi_cpu_attention_keys kfi_cpu_attention_bwd_seen(const kfi_cpu_attention_bwd_job *j)
{
    kfi_cpu_attention_keys all = {j->m->a.keys, -1};
    for (kf_i64 i = 0; i < j->a.rows; ++i) {
        const kfi_cpu_attention_keys own = j->a.room.row[i].visible;
        if (own.last < own.first) continue;
        if (own.first < all.first) all.first = own.first;
        if (own.last > all.last) all.last = own.last;
    }
    return all;
}
/* Loads rows of q, times the scale, and of dout. */
KFI_HOST void kfi_cpu_attention_bwd_load(kfi_cpu_attention_bwd_job *j, kf_i64 row, kf_i64 rows)
{
    const kfi_cpu_attention *const m = &j->m->a;
    const int unit = j->p.lanes.unit, size = j->p.lanes.size;
    for (kf_i64 i = 0; i < rows; ++i) {
        const kfi_cpu_attention_row *const own = &j->a.room.row[row + i];
        char *const q = j->room.q + i * j->p.pitch_q * unit;
        m->type.element.widen(
            kfi_cpu_attention_at(m->q, &m->q_strides, j->a.batch, own->head, own->query, size), 1,
            q, (int)m->dim);
        if (m->scale != 1) j->f->multiply(q, m->scale, m->dim);
        m->type.element.widen(kfi_cpu_attention_at(j->m->dout, &j->m->dout_strides, j->a.batch,
                                                   own->head, own->query, size),
                              1, j->room.dout + i * j->p.pitch_v * unit, (int)m->dim_v);
    }
}
/* Packs the strip of rows from `row` on, which are loaded from `at` on. */
KFI_HOST void kfi_cpu_attention_bwd_pack_rows(kfi_cpu_attention_bwd_job *j, kf_i64 row, kf_i64 at)
{
    const kfi_cpu_gemm_lanes *const v = &j->p.lanes;
    const int rows = (int)kfi_cpu_gemm_least(j->a.rows - row, v->rows);
    v->pack_loaded(j->room.q_rows + row / v->rows * j->p.row_q, 0, rows, j->m->a.dim,
                   j->room.q + at * j->p.pitch_q * v->unit, j->p.pitch_q, 1);
    v->pack_loaded(j->room.dout_rows + row / v->rows * j->p.row_v, 0, rows, j->m->a.dim_v,
                   j->room.dout + at * j->p.pitch_v * v->unit, j->p.pitch_v, 1);
}
/* Packs a block of K and V by keys. */
KFI_HOST void kfi_cpu_attention_bwd_pack_keys(kfi_cpu_attention_bwd_job *j)
{
    const kfi_cpu_attention *const m = &j->m->a;
    const kfi_cpu_gemm_lanes *const f = &j->p.lanes;
    const char *const k = kfi_cpu_attention_at(m->k, &m->k_strides, j->a.batch, j->a.kv_head,
                                               j->a.key0, f->size),
                      *const v = kfi_cpu_attention_at(m->v, &m->v_strides, j->a.batch, j->a.kv_head,
                                                      j->a.key0, f->size);
    for (kf_i64 i = 0; i < j->a.keys; i += f->cols) {
        const int keys = (int)kfi_cpu_gemm_least(j->a.keys - i, f->cols);
        if (m->dim)
            f->pack(j->room.k_keys + i / f->cols * j->p.key_k, 1, keys, m->dim,
                    k + i * m->k_strides.row * f->size, m->k_strides.row, 1);
        if (m->dim_v)
            f->pack(j->room.v_keys + i / f->cols * j->p.key_v, 1, keys, m->dim_v,
                    v + i * m->v_strides.row * f->size, m->v_strides.row, 1);
    }
}

/* ---- a row ---- */

/* Stores a row's gradients of the scores' shape. dscores: gradients of the scores. */
KFI_HOST void kfi_cpu_attention_bwd_store_scores(kfi_cpu_attention_bwd_job *j, kf_i64 row,
                                                 kfi_cpu_attention_keys need, const char *dscores)
{
    const kfi_cpu_attention_row *const own = &j->a.room.row[row];
    const kf_i64 unit = j->p.lanes.unit, count = need.last - need.first;
    for (int i = 0; i < j->m->a.score.tensors; ++i) {
        const kfi_cpu_attention_dscores *const t = &j->m->dscores[i];
        const kfi_cpu_attention_strides *const s = &t->strides;
        if (!t->data) continue;
        j->rows->chain(j->a.room.values, dscores + need.first * unit,
                       j->a.room.derivatives + (i + 1) * KFI_ATTENTION_KEYS * unit, count);
        t->narrow(j->a.room.values,
                  (char *)t->data + (j->a.batch * s->batch + own->head * s->head +
                                     own->query * s->row + j->a.key0 + need.first) *
                                        t->size,
                  1, (int)count);
    }
}
/* Adds a row's gradients of operands with a number per head. dscores: gradients of the scores. */
KFI_HOST void kfi_cpu_attention_bwd_add_heads(kfi_cpu_attention_bwd_job *j, kf_i64 at,
                                              kfi_cpu_attention_keys need, const char *dscores)
{
    const kf_i64 unit = j->p.lanes.unit;
    for (int i = 0; i < j->m->a.score.tensors; ++i)
        if (j->m->dheads[i].data)
            j->rows->total(dscores + need.first * unit,
                           j->a.room.derivatives + (i + 1) * KFI_ATTENTION_KEYS * unit,
                           need.last - need.first, j->m->dheads[i].rows + at);
}
/* Turns a row of products into weights, with dropout if the call has it, and a row of dp into
   gradients of the products. */
KFI_HOST void kfi_cpu_attention_bwd_row(kfi_cpu_attention_bwd_job *j, kf_i64 row,
                                        kfi_cpu_attention_keys need, char *weights, char *dots)
{
    const kfi_cpu_attention *const m = &j->m->a;
    const kfi_cpu_attention_row *const own = &j->a.room.row[row];
    const kfi_cpu_attention_keys visible = {own->visible.first - j->a.key0,
                                            own->visible.last + 1 - j->a.key0};
    const kf_i64 unit = j->p.lanes.unit,
                 at = (j->a.batch * m->row_batch + own->head * m->row_head + own->query) * unit,
                 number = m->number0 + j->a.batch * m->numbers.batch + own->head * m->numbers.head +
                          own->query * m->numbers.row + j->a.key0;
    const int pair = m->row_max && m->log_sum;
    if (m->score.fn && visible.first < visible.last)
        kfi_cpu_attention_score_row(&j->a, row, need, weights);
    j->rows->weights(weights, need, visible, (const char *)(pair ? m->row_max : m->lse) + at,
                     pair ? (const char *)m->log_sum + at : NULL);
    if (m->rng) j->f->drop(dots, need, m->rng, number);
    j->rows->differences(weights, dots, need, j->m->delta + at);
    if (m->rng) j->f->drop(weights, need, m->rng, number);
    if (!m->score.fn) return;
    if (j->stores) {
        kfi_cpu_attention_bwd_store_scores(j, row, need, dots);
        kfi_cpu_attention_bwd_add_heads(j, at, need, dots);
    }
    j->rows->chain(dots + need.first * unit, dots + need.first * unit, j->a.room.derivatives,
                   need.last - need.first);
}
/* Computes the weights and the gradients of the products of the rows from `row` on and the keys
   `need` of the packed block. weights, dots: of the strip's first row. */
KFI_HOST void kfi_cpu_attention_bwd_strip(kfi_cpu_attention_bwd_job *j, kf_i64 row,
                                          kfi_cpu_attention_keys need, char *weights, char *dots)
{
    const kfi_cpu_gemm_lanes *const v = &j->p.lanes;
    const kf_i64 rows = kfi_cpu_gemm_least(j->a.rows - row, v->rows),
                 pitch = KFI_ATTENTION_BWD_PITCH;
    const char *const q = j->room.q_rows + row / v->rows * j->p.row_q, *const dout =
                                                                           j->room.dout_rows +
                                                                           row / v->rows *
                                                                               j->p.row_v;
    for (kf_i64 i = need.first; i < need.last; i += v->cols) {
        v->tile((int)rows, j->m->a.dim, q, j->room.k_keys + i / v->cols * j->p.key_k,
                weights + i * v->unit, pitch, 0);
        v->tile((int)rows, j->m->a.dim_v, dout, j->room.v_keys + i / v->cols * j->p.key_v,
                dots + i * v->unit, pitch, 0);
    }
    for (kf_i64 i = 0; i < rows; ++i)
        kfi_cpu_attention_bwd_row(j, row + i, need, weights + i * pitch * v->unit,
                                  dots + i * pitch * v->unit);
}

KFI_C_END

#endif
