/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/bwd.h: attention's backward in C. With p the softmax weights, dp = dout . v and
   delta = dout . out - dlse per query: dscore = p * (dp - delta), ddot = dscore times the score's
   derivative; dv sums p * dout, dk sums ddot * q, dq sums ddot * k.

   Public to the families: kfi_cpu_attention_bwd_run and kfi_cpu_attention_bwd_bytes, its workspace.
   Schedule: a first pass computes delta. Jobs of keys hold dK and dV of up to
   KFI_ATTENTION_BWD_KEYS keys and walk blocks of KFI_ATTENTION_BWD_ROWS rows; jobs of rows hold dQ
   of up to KFI_ATTENTION_ROWS rows and walk blocks of keys. Both compute the scores again, by
   strips of a tile's rows (bwd_strip.h). Jobs run in parallel. Accuracy: arithmetic is float, for
   f64 double; weights are not rounded to the element type. dQ sums over keys in ascending order; dK
   and dV over the heads of a group, then queries, in ascending order, whatever batch and threads.
 */
#ifndef KF_CORE_ATTENTION_BWD_H
#define KF_CORE_ATTENTION_BWD_H

#include "kf/core/host.h"

#include "kf/core/attention/bwd_plan.h"
#include "kf/core/attention/bwd_strip.h"

KFI_C_BEGIN

/* ---- jobs of keys ---- */

/* Adds the sums of a block of rows to dK and dV: products of transposed weights, panels of
   which are packed by keys. need: keys of the block that some row sees. */
KFI_HOST void kfi_cpu_attention_bwd_add_rows(kfi_cpu_attention_bwd_job *j,
                                             kfi_cpu_attention_keys need)
{
    const kfi_cpu_gemm_lanes *const v = &j->p.lanes;
    const struct {
        const char *from, *cols;
        char *to;
        kf_i64 pitch, count;
    } sums[] = {{j->room.weights, j->room.dout_cols, j->room.dv, j->p.pitch_v, j->m->a.dim_v},
                {j->room.dots, j->room.q_cols, j->room.dk, j->p.pitch_q, j->m->a.dim}};
    for (kf_i64 key = need.first; key < need.last; key += v->rows) {
        const int keys = (int)kfi_cpu_gemm_least(need.last - key, v->rows);
        for (int i = 0; i < 2; ++i) {
            if (!sums[i].count) continue;
            v->pack_loaded(j->room.part, 0, keys, j->a.rows, sums[i].from + key * v->unit, 1,
                           KFI_ATTENTION_BWD_PITCH);
            for (kf_i64 c = 0; c < sums[i].count; c += v->cols)
                v->tile(keys, j->a.rows, j->room.part,
                        sums[i].cols + c / v->cols * j->p.across_rows,
                        sums[i].to + (key * sums[i].pitch + c) * v->unit, sums[i].pitch, 1);
        }
    }
}
/* The same by single pairs of a row and a key, those of weight 0 excluded: for rows that are not
   finite. */
KFI_HOST void kfi_cpu_attention_bwd_add_pairs(kfi_cpu_attention_bwd_job *j,
                                              kfi_cpu_attention_keys need)
{
    const kf_i64 unit = j->p.lanes.unit;
    for (kf_i64 row = 0; row < j->a.rows; ++row)
        for (kf_i64 key = need.first; key < need.last; ++key) {
            const kf_i64 at = (row * KFI_ATTENTION_BWD_PITCH + key) * unit;
            j->f->add(j->room.dv + key * j->p.pitch_v * unit,
                      j->room.dout + row * j->p.pitch_v * unit, j->room.weights + at,
                      j->m->a.dim_v);
            j->f->add(j->room.dk + key * j->p.pitch_q * unit, j->room.q + row * j->p.pitch_q * unit,
                      j->room.dots + at, j->m->a.dim);
        }
}
/* Computes the weights of a block of rows; keys of `need` that a strip does not see have 0. */
KFI_HOST void kfi_cpu_attention_bwd_score_rows(kfi_cpu_attention_bwd_job *j,
                                               kfi_cpu_attention_keys need)
{
    const kf_i64 unit = j->p.lanes.unit, pitch = KFI_ATTENTION_BWD_PITCH;
    for (kf_i64 row = 0; row < j->a.rows; row += j->p.lanes.rows) {
        const kf_i64 rows = kfi_cpu_gemm_least(j->a.rows - row, j->p.lanes.rows);
        char *const weights = j->room.weights + row * pitch * unit, *const dots =
                                                                        j->room.dots +
                                                                        row * pitch * unit;
        kfi_cpu_attention_keys own = kfi_cpu_attention_need(&j->a, row, rows);
        if (own.last > own.first)
            kfi_cpu_attention_bwd_strip(j, row, own, weights, dots);
        else
            own.first = own.last = need.first;
        for (kf_i64 i = 0; i < rows; ++i) {
            j->rows->zeros(weights + i * pitch * unit, need.first, own.first);
            j->rows->zeros(weights + i * pitch * unit, own.last, need.last);
            j->rows->zeros(dots + i * pitch * unit, need.first, own.first);
            j->rows->zeros(dots + i * pitch * unit, own.last, need.last);
        }
    }
}
/* Adds the block of rows from row0 on. */
KFI_HOST void kfi_cpu_attention_bwd_rows_to_keys(kfi_cpu_attention_bwd_job *j, kf_i64 row0)
{
    const kfi_cpu_attention *const m = &j->m->a;
    const kfi_cpu_gemm_lanes *const v = &j->p.lanes;
    kfi_cpu_attention_bwd_start_rows(j, row0, j->p.block_rows);
    const kfi_cpu_attention_keys need = kfi_cpu_attention_need(&j->a, 0, j->a.rows);
    if (need.last <= need.first) return;
    kfi_cpu_attention_bwd_load(j, 0, j->a.rows);
    for (kf_i64 row = 0; row < j->a.rows; row += v->rows)
        kfi_cpu_attention_bwd_pack_rows(j, row, row);
    kfi_cpu_attention_bwd_score_rows(j, need);
    int finite = 1;
    for (kf_i64 row = 0; finite && row < j->a.rows; ++row)
        finite = j->f->finite(j->room.q + row * j->p.pitch_q * v->unit, m->dim) &&
                 j->f->finite(j->room.dout + row * j->p.pitch_v * v->unit, m->dim_v);
    if (!finite) {
        kfi_cpu_attention_bwd_add_pairs(j, need);
        return;
    }
    for (kf_i64 c = 0; c < m->dim; c += v->cols)
        v->pack_loaded(j->room.q_cols + c / v->cols * j->p.across_rows, 1,
                       (int)kfi_cpu_gemm_least(m->dim - c, v->cols), j->a.rows,
                       j->room.q + c * v->unit, 1, j->p.pitch_q);
    for (kf_i64 c = 0; c < m->dim_v; c += v->cols)
        v->pack_loaded(j->room.dout_cols + c / v->cols * j->p.across_rows, 1,
                       (int)kfi_cpu_gemm_least(m->dim_v - c, v->cols), j->a.rows,
                       j->room.dout + c * v->unit, 1, j->p.pitch_v);
    kfi_cpu_attention_bwd_add_rows(j, need);
}
/* Stores rows of a gradient; NULL: it is not wanted. */
KFI_HOST void kfi_cpu_attention_bwd_store(const kfi_cpu_attention_bwd_job *j, void *to,
                                          const kfi_cpu_attention_strides *s, kf_i64 key0,
                                          kf_i64 keys, const char *from, kf_i64 pitch, kf_i64 count)
{
    if (!to || !count) return;
    for (kf_i64 i = 0; i < keys; ++i)
        j->m->a.type.element.narrow(
            from + i * pitch * j->p.lanes.unit,
            (char *)to + (j->a.batch * s->batch + j->a.kv_head * s->head + (key0 + i) * s->row) *
                             j->p.lanes.size,
            1, (int)count);
}
/* Computes dK and dV of a block of keys of the job's head. refused: they are NaN. */
KFI_HOST void kfi_cpu_attention_bwd_key_job(kfi_cpu_attention_bwd_job *j, kf_i64 key0, int refused)
{
    const kfi_cpu_attention *const m = &j->m->a;
    const kf_i64 rows = m->queries * m->group;
    j->a.key0 = key0;
    j->a.keys = kfi_cpu_gemm_least(m->keys - key0, j->p.keys);
    memset(j->room.dk, refused ? 0xff : 0, (size_t)(j->a.keys * j->p.pitch_q * j->p.lanes.unit));
    memset(j->room.dv, refused ? 0xff : 0, (size_t)(j->a.keys * j->p.pitch_v * j->p.lanes.unit));
    if (!refused && rows > 0) kfi_cpu_attention_bwd_pack_keys(j);
    for (kf_i64 row = 0; !refused && row < rows; row += j->p.block_rows)
        kfi_cpu_attention_bwd_rows_to_keys(j, row);
    kfi_cpu_attention_bwd_store(j, j->m->dk, &j->m->dk_strides, key0, j->a.keys, j->room.dk,
                                j->p.pitch_q, m->dim);
    kfi_cpu_attention_bwd_store(j, j->m->dv, &j->m->dv_strides, key0, j->a.keys, j->room.dv,
                                j->p.pitch_v, m->dim_v);
}

/* ---- jobs of rows ---- */

/* Adds the product of a strip's gradients and a block of K to dQ. */
KFI_HOST void kfi_cpu_attention_bwd_add_keys(kfi_cpu_attention_bwd_job *j, kf_i64 row, kf_i64 rows,
                                             kfi_cpu_attention_keys need)
{
    const kfi_cpu_attention *const m = &j->m->a;
    const kfi_cpu_gemm_lanes *const v = &j->p.lanes;
    char *const to = j->room.dq + row * j->p.pitch_q * v->unit;
    if (j->a.finite) {
        v->pack_loaded(j->room.part, 0, (int)rows, need.last - need.first,
                       j->room.dots + need.first * v->unit, KFI_ATTENTION_BWD_PITCH, 1);
        for (kf_i64 c = 0; c < m->dim; c += v->cols)
            v->tile((int)rows, need.last - need.first, j->room.part,
                    j->room.k_cols + c / v->cols * j->p.across_keys +
                        need.first * v->cols * v->unit,
                    to + c * v->unit, j->p.pitch_q, 1);
        return;
    }
    for (kf_i64 key = need.first; key < need.last; ++key) {
        m->type.element.widen(kfi_cpu_attention_at(m->k, &m->k_strides, j->a.batch, j->a.kv_head,
                                                   j->a.key0 + key, v->size),
                              1, j->room.q, (int)m->dim);
        for (kf_i64 i = 0; i < rows; ++i)
            j->f->add(to + i * j->p.pitch_q * v->unit, j->room.q,
                      j->room.dots + (i * KFI_ATTENTION_BWD_PITCH + key) * v->unit, m->dim);
    }
}
/* Packs the columns of a block of K and tests whether they are finite. */
KFI_HOST void kfi_cpu_attention_bwd_pack_cols(kfi_cpu_attention_bwd_job *j)
{
    const kfi_cpu_attention *const m = &j->m->a;
    const kfi_cpu_gemm_lanes *const v = &j->p.lanes;
    const char *const k =
        kfi_cpu_attention_at(m->k, &m->k_strides, j->a.batch, j->a.kv_head, j->a.key0, v->size);
    j->a.finite = 1;
    for (kf_i64 c = 0; c < m->dim; c += v->cols) {
        char *const to = j->room.k_cols + c / v->cols * j->p.across_keys;
        v->pack(to, 1, (int)kfi_cpu_gemm_least(m->dim - c, v->cols), j->a.keys, k + c * v->size, 1,
                m->k_strides.row);
        j->a.finite = j->a.finite && j->f->finite(to, j->a.keys * v->cols);
    }
}
/* Sets the sums of the job's rows, of gradients per head, to 0. refused: to NaN. */
KFI_HOST void kfi_cpu_attention_bwd_start_heads(kfi_cpu_attention_bwd_job *j, int refused)
{
    const kfi_cpu_attention *const m = &j->m->a;
    const kf_i64 unit = j->p.lanes.unit;
    for (int n = 0; n < m->score.tensors; ++n)
        for (kf_i64 i = 0; j->m->dheads[n].data && i < j->a.rows; ++i) {
            const kfi_cpu_attention_row *const own = &j->a.room.row[i];
            const kf_i64 at = j->a.batch * m->row_batch + own->head * m->row_head + own->query;
            memset(j->m->dheads[n].rows + at * unit, refused ? 0xff : 0, (size_t)unit);
        }
}
/* Computes dQ, gradients of the scores' shape and sums of gradients per head, of the rows from row0
   on of the job's head. refused: they are NaN. */
KFI_HOST void kfi_cpu_attention_bwd_row_job(kfi_cpu_attention_bwd_job *j, kf_i64 row0, int refused)
{
    const kfi_cpu_attention *const m = &j->m->a;
    const kfi_cpu_gemm_lanes *const v = &j->p.lanes;
    kfi_cpu_attention_bwd_start_rows(j, row0, j->p.rows);
    const kfi_cpu_attention_keys seen = kfi_cpu_attention_bwd_seen(j);
    kfi_cpu_attention_bwd_start_heads(j, refused);
    memset(j->room.dq, refused ? 0xff : 0, (size_t)(j->a.rows * j->p.pitch_q * v->unit));
    for (kf_i64 row = 0; seen.first <= seen.last && row < j->a.rows; row += v->rows) {
        kfi_cpu_attention_bwd_load(j, row, kfi_cpu_gemm_least(j->a.rows - row, v->rows));
        kfi_cpu_attention_bwd_pack_rows(j, row, 0);
    }
    for (j->a.key0 = seen.first / j->p.keys * j->p.keys; j->a.key0 <= seen.last;
         j->a.key0 += j->p.keys) {
        j->a.keys = kfi_cpu_gemm_least(m->keys - j->a.key0, j->p.keys);
        kfi_cpu_attention_bwd_pack_keys(j);
        kfi_cpu_attention_bwd_pack_cols(j);
        for (kf_i64 row = 0; row < j->a.rows; row += v->rows) {
            const kf_i64 rows = kfi_cpu_gemm_least(j->a.rows - row, v->rows);
            const kfi_cpu_attention_keys need = kfi_cpu_attention_need(&j->a, row, rows);
            if (need.last <= need.first) continue;
            kfi_cpu_attention_bwd_strip(j, row, need, j->room.weights, j->room.dots);
            kfi_cpu_attention_bwd_add_keys(j, row, rows, need);
        }
    }
    for (kf_i64 i = 0; j->m->dq && m->dim && i < j->a.rows; ++i) {
        const kfi_cpu_attention_row *const own = &j->a.room.row[i];
        const kfi_cpu_attention_strides *const s = &j->m->dq_strides;
        char *const sums = j->room.dq + i * j->p.pitch_q * v->unit;
        if (m->scale != 1) j->f->multiply(sums, m->scale, j->p.pitch_q);
        m->type.element.narrow(
            sums,
            (char *)j->m->dq +
                (j->a.batch * s->batch + own->head * s->head + own->query * s->row) * v->size,
            1, (int)m->dim);
    }
}

KFI_C_END

#endif
