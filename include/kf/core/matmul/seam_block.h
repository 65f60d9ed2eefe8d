/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/seam_block.h: an epilogue over all rows of a block of the result, for seams
   without dropout and without sums. Addresses are computed, and values that all rows share (a bias)
   are converted, once per block instead of once per row; results of the accumulators' type are
   computed in place. Same bits as kfi_seam_run row by row. */
#ifndef KF_CORE_MATMUL_SEAM_BLOCK_H
#define KF_CORE_MATMUL_SEAM_BLOCK_H

#include "kf/core/host.h"

#include "kf/core/matmul/seam.h"

KFI_C_BEGIN

/* A value of a seam in the current row of a block. */
typedef struct {
    char *at;                  /* NULL: absent */
    kf_i64 row_step, step;     /* bytes from row to row; elements along a row */
    const kfi_gemm_type *type; /* NULL: accumulators */
    int direct;                /* the seam reads or writes it where it is stored */
} kfi_seam_value;

KFI_HOST int kfi_seam_takes_blocks(const kfi_cpu_gemm *m, const kfi_seam *seam)
{
    int takes = !m->rng;
    for (const char *value = seam->out; *value; ++value)
        takes &= *value >= 'a' && !m->steps[*value - 'a'].vector;
    return takes;
}
/* Finds a value at the block's first row. rows: axis of the rows; ld: pitch of accumulators. */
KFI_HOST kfi_seam_value kfi_seam_find(const kfi_cpu_gemm *m, const kfi_seam_row *row, char value,
                                      int rows, kf_i64 ld, kf_i64 done, int count)
{
    const int acc = m->type.acc_size, whole = kfi_seam_whole(count) == count;
    kfi_seam_value v = {NULL, ld * acc, 1, NULL, whole};
    if (value < 'a') {
        v.at = (char *)(uintptr_t)row->product[value - '0'] + done * acc;
        return v;
    }
    const int tensor = value - 'a';
    const kfi_operand *o = &m->operands.of[tensor];
    kf_i64 at[KFI_AXES];
    memcpy(at, row->at, sizeof at);
    at[row->axis] += done;
    v.type = o->size == m->type.size ? &m->type : &m->second;
    v.step = m->steps[tensor].step[row->axis];
    v.row_step = m->steps[tensor].step[rows] * v.type->size;
    v.direct = whole && v.step == 1 && v.type->size == acc;
    if (o->ptr) v.at = (char *)(uintptr_t)o->ptr + kfi_seam_place(m, tensor, at) * v.type->size;
    return v;
}
/* Returns a value's elements in the current row, converted to `room` unless they are direct. */
KFI_HOST const void *kfi_seam_fetch(const kfi_seam_value *v, int acc, int count, void *room)
{
    if (v->at && v->direct) return v->at;
    if (v->at && v->type)
        v->type->widen(v->at, v->step, room, count);
    else if (v->at)
        memcpy(room, v->at, (size_t)(count * acc));
    return room;
}

/* Runs a seam over up to KFI_PART elements of each of `count_rows` rows. */
KFI_HOST void kfi_seam_columns(const kfi_cpu_gemm *m, const kfi_seam *seam, const kfi_seam_row *row,
                               int rows, kf_i64 count_rows, kf_i64 ld, kf_i64 done, int count)
{
    double room[KFI_SEAM_VALUES][KFI_PART];
    kfi_seam_value in[KFI_SEAM_VALUES], out[KFI_SEAM_VALUES];
    kfi_seam_part part;
    const int acc = m->type.acc_size, whole = kfi_seam_whole(count);
    int ins = 0, outs = 0;
    memset(&part, 0, sizeof part);
    part.scalars = m->scalars;
    for (; seam->in[ins]; ++ins) {
        in[ins] = kfi_seam_find(m, row, seam->in[ins], rows, ld, done, count);
        memset(room[ins], 0, (size_t)((in[ins].at && whole == count ? 0 : whole) * acc));
        part.in[ins] = kfi_seam_fetch(&in[ins], acc, count, room[ins]);
    }
    for (; seam->out[outs]; ++outs) {
        out[outs] = kfi_seam_find(m, row, seam->out[outs], rows, ld, done, count);
        out[outs].direct &= out[outs].at && row->beta == 0;
        part.out[outs] = room[ins + outs];
    }
    for (kf_i64 r = 0; r < count_rows; ++r) {
        for (int i = 0; r > 0 && i < ins; ++i) {
            if (!in[i].at || in[i].row_step == 0) continue; /* the same in all rows */
            in[i].at += in[i].row_step;
            part.in[i] = kfi_seam_fetch(&in[i], acc, count, room[i]);
        }
        for (int i = 0; i < outs; ++i)
            if (out[i].direct) part.out[i] = out[i].at;
        if (seam->fn)
            seam->fn(&part, whole);
        else
            memcpy(part.out[0], part.in[0], (size_t)(count * acc));
        for (int i = 0; i < outs; ++i) {
            if (!out[i].at) continue;
            if (row->beta != 0)
                kfi_seam_add(out[i].type, part.out[i], out[i].at, out[i].step, row->beta, count);
            if (!out[i].direct) out[i].type->narrow(part.out[i], out[i].at, out[i].step, count);
            out[i].at += out[i].row_step;
        }
    }
}
/* Runs a seam over a block of `count_rows` rows and `count` columns. rows: axis of the rows. */
KFI_HOST void kfi_seam_block(const kfi_cpu_gemm *m, const kfi_seam *seam, const kfi_seam_row *row,
                             int rows, kf_i64 count_rows, kf_i64 ld, kf_i64 count)
{
    for (kf_i64 done = 0; done < count; done += KFI_PART)
        kfi_seam_columns(m, seam, row, rows, count_rows, ld, done,
                         count - done < KFI_PART ? (int)(count - done) : KFI_PART);
}

KFI_C_END

#endif
