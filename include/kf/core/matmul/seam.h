/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/seam.h: prologues and epilogues of matrix products in C. A seam is a function over
   some elements of a row, which gets each value that it reads, and each that it makes, contiguous
   and in the accumulators' type. */
#ifndef KF_CORE_MATMUL_SEAM_H
#define KF_CORE_MATMUL_SEAM_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/matmul/matmul.h"
#include "kf/core/matmul/check.h"
#include "kf/core/philox_tile.h"

KFI_C_BEGIN

#define KFI_SEAM_VALUES 12 /* values of a seam, at most; kfgen's VALUES is the same number */

typedef struct {
    const void *in[KFI_SEAM_VALUES];
    void *out[KFI_SEAM_VALUES];
    const void *scalars;
    const uint16_t *keep; /* random words of a dropout */
    uint32_t keep_from;
    double keep_scale;
} kfi_seam_part;
typedef void (*kfi_seam_fn)(const kfi_seam_part *part,
                            int count); /* whole KFI_SIMDs, at most KFI_PART */

/* in: values read, letters from 'a' on for the call's tensors, 0 and 1 for the products. out:
   values made: tensors (vectors are summed); 0 and 1 for the products' dacc, 0 for the left factor.
   Without a function the output is the first input. */
typedef struct {
    kfi_seam_fn fn;
    const char *in, *out;
} kfi_seam;

/* A dtype: its conversions and its matrix product. */
typedef struct {
    int size, acc_size; /* bytes of an element, and of an accumulator */
    void (*widen)(const void *from, kf_i64 step, void *to, int count);
    void (*narrow)(const void *from, void *to, kf_i64 step, int count);
    size_t (*bytes)(kf_i64 rows, kf_i64 cols, kf_i64 depth, int products);
    void (*run)(kf_i64 batch, kf_i64 rows, kf_i64 cols, kf_i64 depth, const kfi_gemm_operand *a,
                const kfi_gemm_operand *b, const kfi_gemm_operand *b2, kfi_gemm_store store,
                const void *seam, const kfi_gemm_result *result, void *workspace);
} kfi_gemm_type;

#define KFI_GEMM_TYPE(name, type, acc, load, cast, widen, narrow)                                  \
    KFI_HOST void kfi_seam_widen_##name(const void *from, kf_i64 step, void *to, int count)        \
    {                                                                                              \
        const int first = step == 1 ? count / 8 * 8 : 0;                                           \
        if (first) widen((const type *)from, (acc *)to, first);                                    \
        for (int j = first; j < count; ++j) ((acc *)to)[j] = load(((const type *)from)[j * step]); \
    }                                                                                              \
    KFI_HOST void kfi_seam_narrow_##name(const void *from, void *to, kf_i64 step, int count)       \
    {                                                                                              \
        const int first = step == 1 ? count / 8 * 8 : 0;                                           \
        if (first) narrow((const acc *)from, (type *)to, first);                                   \
        for (int j = first; j < count; ++j) ((type *)to)[j * step] = cast(((const acc *)from)[j]); \
    }                                                                                              \
    KFI_HOST kfi_gemm_type kfi_gemm_##name(void)                                                   \
    {                                                                                              \
        const kfi_gemm_type found = {(int)sizeof(type),     (int)sizeof(acc),                      \
                                     kfi_seam_widen_##name, kfi_seam_narrow_##name,                \
                                     kfi_gemm_bytes_##name, kfi_gemm_run_##name};                  \
        return found;                                                                              \
    }
#define KFI_AS_IT_IS(v) (v)
#define KFI_MOVE(from, to, count) memcpy(to, from, (size_t)(count) * sizeof *(to))
KFI_GEMM_TYPE(f32, float, float, KFI_AS_IT_IS, KFI_AS_IT_IS, KFI_MOVE, KFI_MOVE)
KFI_GEMM_TYPE(f64, double, double, KFI_AS_IT_IS, KFI_AS_IT_IS, KFI_MOVE, KFI_MOVE)
KFI_GEMM_TYPE(f16, kf_f16, float, kfi_cpu_load_f16, kfi_cpu_cast_f32_f16, kfi_widen_f16,
              kfi_narrow_f16)
KFI_GEMM_TYPE(bf16, kf_bf16, float, kfi_cpu_load_bf16, kfi_cpu_cast_f32_bf16, kfi_widen_bf16,
              kfi_narrow_bf16)
#undef KFI_GEMM_TYPE
#undef KFI_AS_IT_IS
#undef KFI_MOVE

/* A call of an op. Tensors are indices among its arguments. */
typedef struct {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides strides;
    const char *shapes;         /* check.h */
    kfi_gemm_type type, second; /* dtype of tensors, and of weight gradients */
    const void *scalars;
    const kfi_rng *rng; /* dropout; NULL: none */
    double beta;
    int factor; /* the left factor, or an operand that `load` makes it of */
    int products, weights[2], dweights[2];
    kfi_seam load, store, dacc, inputs;
    int vectors[2];         /* vectors that the seams dacc and inputs make */
    int dout, dout_is_dacc; /* dout; whether it is dacc of the one product */
    kf_i64 size[KFI_AXES];
    kfi_operands operands;
    kfi_gemm_steps steps[KFI_MAX_TENSORS];
    char *dacc_rows, *partial; /* workspace: dacc [batch, rows, products, cols], partial sums */
} kfi_cpu_gemm;

/* The run of elements that a seam processes: its position and axis, and its inputs and outputs
 * beside tensors. */
typedef struct {
    kf_i64 at[KFI_AXES];
    int axis;
    const void *product[2]; /* accumulators, contiguous */
    void *made;             /* the left factor, contiguous */
    void *sums;             /* partial sums of vectors, `apart` elements from one to the next */
    kf_i64 apart;
    int first;   /* the partial sums start here */
    double beta; /* results += beta * what is stored */
} kfi_seam_row;

KFI_HOST kf_i64 kfi_seam_place(const kfi_cpu_gemm *m, int tensor, const kf_i64 *at)
{
    const kf_i64 *step = m->steps[tensor].step;
    return at[KFI_AXIS_BATCH] * step[KFI_AXIS_BATCH] + at[KFI_AXIS_ROWS] * step[KFI_AXIS_ROWS] +
           at[KFI_AXIS_COLS] * step[KFI_AXIS_COLS] + at[KFI_AXIS_DEPTH] * step[KFI_AXIS_DEPTH];
}

KFI_HOST int kfi_seam_whole(int count) { return (count + KFI_SIMD - 1) / KFI_SIMD * KFI_SIMD; }

/* Returns a value's elements from `at` on, padded to whole vectors. room: a buffer for those that
 * need conversion or padding. */
KFI_HOST const void *kfi_seam_read(const kfi_cpu_gemm *m, const kfi_seam_row *row, char value,
                                   const kf_i64 *at, kf_i64 done, int count, char *room)
{
    const int acc = m->type.acc_size, whole = kfi_seam_whole(count);
    const char *from = NULL;
    kf_i64 step = 1;
    if (value < 'a') {
        from = (const char *)row->product[value - '0'] + done * acc;
        if (whole == count) return from;
        memcpy(room, from, (size_t)(count * acc));
    } else {
        const kfi_operand *o = &m->operands.of[value - 'a'];
        step = m->steps[value - 'a'].step[row->axis];
        if (o->ptr) from = (const char *)o->ptr + kfi_seam_place(m, value - 'a', at) * m->type.size;
        if (from && m->type.size == acc && step == 1 && whole == count) return from;
        if (from)
            m->type.widen(from, step, room, count);
        else
            memset(room, 0, (size_t)(count * acc));
    }
    memset(room + count * acc, 0, (size_t)((whole - count) * acc));
    return room;
}

/* made += beta * old. */
KFI_HOST void kfi_seam_add(const kfi_gemm_type *type, void *made, const void *old, kf_i64 step,
                           double beta, int count)
{
    double room[KFI_PART];
    type->widen(old, step, room, count);
    if (type->acc_size == 8)
        for (int j = 0; j < count; ++j) ((double *)made)[j] += beta * room[j];
    else
        for (int j = 0; j < count; ++j)
            ((float *)made)[j] += (float)beta * ((const float *)(const void *)room)[j];
}

KFI_HOST void kfi_seam_sum(int acc, void *sums, const void *made, int first, int count)
{
    if (first)
        memcpy(sums, made, (size_t)(count * acc));
    else if (acc == 8)
        for (int j = 0; j < count; ++j) ((double *)sums)[j] += ((const double *)made)[j];
    else
        for (int j = 0; j < count; ++j) ((float *)sums)[j] += ((const float *)made)[j];
}

/* Stores a value. */
KFI_HOST void kfi_seam_write(const kfi_cpu_gemm *m, const kfi_seam_row *row, char value,
                             const kf_i64 *at, kf_i64 done, int count, void *made, int *sum)
{
    const int acc = m->type.acc_size;
    if (value < 'a' && row->made) { /* the left factor, contiguous */
        memcpy((char *)row->made + done * acc, made, (size_t)(count * acc));
        return;
    }
    if (value < 'a') {
        const kf_i64 line =
            (at[KFI_AXIS_BATCH] * m->size[KFI_AXIS_ROWS] + at[KFI_AXIS_ROWS]) * m->products +
            (value - '0');
        if (m->dacc_rows)
            m->type.narrow(made,
                           m->dacc_rows +
                               (line * m->size[KFI_AXIS_COLS] + at[KFI_AXIS_COLS]) * m->type.size,
                           1, count);
        return;
    }
    const int tensor = value - 'a';
    const kfi_operand *o = &m->operands.of[tensor];
    if (m->steps[tensor].vector) {
        if (o->ptr)
            kfi_seam_sum(acc, (char *)row->sums + (*sum * row->apart + at[row->axis]) * acc, made,
                         row->first, count);
        *sum += 1;
        return;
    }
    if (!o->ptr) return;
    const kfi_gemm_type *type = o->size == m->type.size ? &m->type : &m->second;
    char *to = (char *)(uintptr_t)o->ptr + kfi_seam_place(m, tensor, at) * type->size;
    const kf_i64 step = m->steps[tensor].step[row->axis];
    if (row->beta != 0) kfi_seam_add(type, made, to, step, row->beta, count);
    type->narrow(made, to, step, count);
}

/* Runs a seam over `count` elements of a row, along its axis. */
KFI_HOST void kfi_seam_run(const kfi_cpu_gemm *m, const kfi_seam *seam, const kfi_seam_row *row,
                           kf_i64 count)
{
    double room[KFI_SEAM_VALUES][KFI_PART];
    uint16_t words[KFI_TILE + 8];
    kfi_seam_part part;
    memset(&part, 0, sizeof part);
    part.scalars = m->scalars;
    if (m->rng) {
        part.keep_from = m->rng->threshold;
        part.keep_scale = m->type.acc_size == 8 ? m->rng->scale_f64 : (double)m->rng->scale;
    }
    for (kf_i64 done = 0; done < count; done += KFI_PART) {
        const int now = count - done < KFI_PART ? (int)(count - done) : KFI_PART;
        kf_i64 at[KFI_AXES];
        int used = 0, sum = 0;
        memcpy(at, row->at, sizeof at);
        at[row->axis] += done;
        if (m->rng &&
            row->axis == KFI_AXIS_COLS) { /* the mask depends on the result's element numbers */
            const kf_i64 number =
                (at[KFI_AXIS_BATCH] * m->size[KFI_AXIS_ROWS] + at[KFI_AXIS_ROWS]) *
                    m->size[KFI_AXIS_COLS] +
                at[KFI_AXIS_COLS];
            if (done % KFI_TILE == 0) kfi_random_tile(words, m->rng, number);
            part.keep = words + (number - done % KFI_TILE) % 8 + done % KFI_TILE;
        }
        for (int i = 0; seam->in[i]; ++i)
            part.in[i] = kfi_seam_read(m, row, seam->in[i], at, done, now, (char *)room[used++]);
        for (int i = 0; seam->out[i]; ++i) part.out[i] = room[used++];
        if (seam->fn)
            seam->fn(&part, kfi_seam_whole(now));
        else
            memcpy(part.out[0], part.in[0], (size_t)(now * m->type.acc_size));
        for (int i = 0; seam->out[i]; ++i)
            kfi_seam_write(m, row, seam->out[i], at, done, now, part.out[i], &sum);
    }
}

KFI_C_END

#endif
