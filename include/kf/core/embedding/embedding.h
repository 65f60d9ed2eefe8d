/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/embedding/embedding.h: rows of a table by their numbers in C, and the table's gradient: the rows of
 * each number, one after the other. */
#ifndef KF_CORE_EMBEDDING_EMBEDDING_H
#define KF_CORE_EMBEDDING_EMBEDDING_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/check.h"
#include "kf/core/parallel.h"
#include "kf/core/tile.h"

KFI_C_BEGIN

typedef struct {
    kfi_name name;
    kfi_arguments arguments;
    const char
        *element_codes; /* of each tensor: t as the table, n as the numbers, e as rows x cols */
    const void *numbers;
    int number_size, size, given_size; /* bytes of a number, of an element, of one of dout */
    const void *table, *dout;          /* NULL: a gradient does not read it */
    void *to;
    void (*part)(const void *scalars, const void *const *from,
                 void *to); /* KFI_PART elements; a gradient's are added to float or double */
    void (*store)(void *to, const void *sums, double beta, int count); /* and stored */
    const void *scalars;
    double beta;
    kf_i64 rows, cols, vocab, skipped, per_block;
    kf_i64 *end,
        *places; /* end[v]: where number v's places end; those of the first number begin at 0 */
} kfi_cpu_lookup;

KFI_HOST kf_i64 kfi_cpu_number(const kfi_cpu_lookup *m, kf_i64 row)
{
    return m->number_size == 8 ? ((const int64_t *)m->numbers)[row]
                               : ((const int32_t *)m->numbers)[row];
}

/* What is left of a row goes through a copy: the loops have a fixed length. */
KFI_HOST const void *kfi_lookup_tail(void *room, const char *from, kf_i64 count, int size)
{
    if (count >= KFI_PART) return from;
    memset(room, 0, (size_t)(KFI_PART * size));
    memcpy(room, from, (size_t)(count * size));
    return room;
}

KFI_HOST void kfi_lookup_rows(void *context, kf_i64 block)
{
    const kfi_cpu_lookup *m = (const kfi_cpu_lookup *)context;
    const kf_i64 width = m->cols * m->size, first = block * m->per_block;
    const kf_i64 last = m->rows - first < m->per_block ? m->rows : first + m->per_block;
    for (kf_i64 row = first; row < last; ++row) {
        const kf_i64 number = kfi_cpu_number(m, row);
        char *to = (char *)m->to + row * width;
        if (number < 0 || number >= m->vocab) {
            memset(to, 0xff, (size_t)width); /* NaN in every dtype */
            continue;
        }
        const char *from = (const char *)m->table + number * width;
        for (kf_i64 col = 0; col < m->cols; col += KFI_PART) {
            double room[KFI_PART], made[KFI_PART];
            const kf_i64 count = m->cols - col < KFI_PART ? m->cols - col : KFI_PART;
            const void *const read[] = {
                kfi_lookup_tail(room, from + col * m->size, count, m->size)};
            if (count == KFI_PART) {
                m->part(m->scalars, read, to + col * m->size);
            } else {
                m->part(m->scalars, read, made);
                memcpy(to + col * m->size, made, (size_t)(count * m->size));
            }
        }
    }
}

/* The sums of KFI_PART columns of a row of the table. */
KFI_HOST void kfi_lookup_sum(const kfi_cpu_lookup *m, kf_i64 number, kf_i64 col, kf_i64 count)
{
    double room[KFI_PART], of_table[KFI_PART], sums[KFI_PART];
    const kf_i64 begin = m->places && number > 0 ? m->end[number - 1] : 0,
                 end = m->places ? m->end[number] : 0;
    const void *read[2] = {NULL, NULL};
    memset(sums, 0, sizeof sums);
    if (m->table)
        read[m->dout != NULL] = kfi_lookup_tail(
            of_table, (const char *)m->table + (number * m->cols + col) * m->size, count, m->size);
    for (kf_i64 i = begin; i < end; ++i) {
        if (m->dout)
            read[0] = kfi_lookup_tail(
                room, (const char *)m->dout + (m->places[i] * m->cols + col) * m->given_size, count,
                m->given_size);
        m->part(m->scalars, read, sums);
    }
    m->store((char *)m->to + (number * m->cols + col) * m->size, sums, m->beta, (int)count);
}
KFI_HOST void kfi_lookup_sums(void *context, kf_i64 block)
{
    const kfi_cpu_lookup *m = (const kfi_cpu_lookup *)context;
    const kf_i64 first = block * m->per_block,
                 last = m->vocab - first < m->per_block ? m->vocab : first + m->per_block;
    for (kf_i64 number = first; number < last; ++number)
        for (kf_i64 col = 0; col < m->cols; col += KFI_PART)
            kfi_lookup_sum(m, number, col, m->cols - col < KFI_PART ? m->cols - col : KFI_PART);
}

#define KFI_STORE_LOOKUP(name, type, acc, read, write)                                             \
    KFI_HOST void kfi_store_lookup_##name(void *to, const void *from, double beta, int count)      \
    {                                                                                              \
        const acc *sums = (const acc *)from;                                                       \
        for (int j = 0; j < count; ++j) {                                                          \
            acc v = sums[j];                                                                       \
            if (beta != 0)                                                                         \
                v += (acc)beta *                                                                   \
                     (acc)read(((const type *)to)[j]); /* what is there is read for no other */    \
            ((type *)to)[j] = write(v);                                                            \
        }                                                                                          \
    }
#define KFI_AS_IT_IS(v) (v)
KFI_STORE_LOOKUP(f32, float, float, KFI_AS_IT_IS, KFI_AS_IT_IS)
KFI_STORE_LOOKUP(f64, double, double, KFI_AS_IT_IS, KFI_AS_IT_IS)
KFI_STORE_LOOKUP(f16, kf_f16, float, kfi_cpu_load_f16, kfi_cpu_cast_f32_f16)
KFI_STORE_LOOKUP(bf16, kf_bf16, float, kfi_cpu_load_bf16, kfi_cpu_cast_f32_bf16)
#undef KFI_STORE_LOOKUP
#undef KFI_AS_IT_IS

KFI_ONCE size_t kfi_cpu_lookup_workspace(kf_i64 rows, kf_i64 cols, kf_i64 vocab)
{
    if (cols == 0 || !kfi_fits(rows, cols, 1) || !kfi_fits(vocab, cols, 1))
        return 0; /* nothing is done, or it is refused */
    return ((size_t)(rows + vocab) * 8 + 255) / 256 * 256;
}

/* Counts, and puts the places of each number behind each other in their order. */
KFI_HOST void kfi_lookup_sort(kfi_cpu_lookup *m)
{
    kf_i64 before = 0;
    memset(m->end, 0, (size_t)m->vocab * sizeof *m->end);
    for (int pass = 0; pass < 2; ++pass) {
        for (kf_i64 row = 0; row < m->rows; ++row) {
            const kf_i64 number = kfi_cpu_number(m, row);
            if (number < 0 || number >= m->vocab || number == m->skipped) continue;
            if (pass) m->places[m->end[number]] = row;
            ++m->end[number];
        }
        for (kf_i64 v = 0; v < m->vocab && !pass; ++v) {
            const kf_i64 count = m->end[v];
            m->end[v] = before;
            before += count;
        }
    }
}

/* made: rows of what is made. Without any, and without columns, nothing but sizes is asked:
 * operands->wanted is 0. */
KFI_ONCE kf_result_t kfi_cpu_lookup_check(const kfi_cpu_lookup *m, kf_i64 made,
                                          kfi_operands *operands)
{
    const kf_i64 result[] = {m->rows, m->cols}, table[] = {m->vocab, m->cols};
    kf_result_t code = kfi_check_sizes(&m->name, "rows cols", result, 2);
    if (code == KF_SUCCESS) code = kfi_check_sizes(&m->name, "vocab cols", table, 2);
    operands->wanted = 0;
    if (code != KF_SUCCESS || made == 0 || m->cols == 0) return code;
    kf_i64 elements[KFI_MAX_TENSORS];
    for (int i = 0; m->element_codes[i]; ++i)
        elements[i] = m->element_codes[i] == 't'   ? m->vocab * m->cols
                      : m->element_codes[i] == 'n' ? m->rows
                                                   : m->rows * m->cols;
    kfi_shape shape = {0, 0, 0, 0, NULL};
    shape.rows = m->rows;
    shape.cols = m->cols;
    shape.elements = elements;
    return kfi_check_operands(&m->name, &m->arguments, &shape, NULL, operands);
}
/* Rows that a thread has at a time, of so many elements. */
KFI_ONCE kf_i64 kfi_lookup_blocks(kfi_cpu_lookup *m, kf_i64 rows)
{
    const kf_i64 chunk = (kf_i64)KFI_CHUNK * KFI_TILE;
    m->per_block = m->cols < chunk ? chunk / m->cols : 1;
    return (rows + m->per_block - 1) / m->per_block;
}
KFI_HOST kf_result_t kfi_cpu_lookup_run(kfi_cpu_lookup *m)
{
    kfi_operands operands;
    const kf_result_t result = kfi_cpu_lookup_check(m, m->rows, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    kfi_parallel(kfi_lookup_blocks(m, m->rows), kfi_lookup_rows, m,
                 m->rows * m->cols >= KF_OMP_MIN);
    return KF_SUCCESS;
}
/* Adds up a table's gradient, the places of its numbers sorted in a workspace. */
KFI_HOST void kfi_cpu_lookup_sums(kfi_cpu_lookup *m, void *workspace)
{
    if (m->rows > 0) {
        m->end = (kf_i64 *)workspace;
        m->places = m->end + m->vocab;
        kfi_lookup_sort(m);
    }
    kfi_parallel(kfi_lookup_blocks(m, m->vocab), kfi_lookup_sums, m,
                 (m->vocab + m->rows) * m->cols >= KF_OMP_MIN);
}
KFI_HOST kf_result_t kfi_cpu_lookup_sum_run(kfi_cpu_lookup *m, void *workspace,
                                            size_t workspace_bytes)
{
    kfi_operands operands;
    kf_result_t result = kfi_cpu_lookup_check(m, m->vocab, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    result = kfi_check_workspace(&m->name, &m->arguments, &operands, workspace, workspace_bytes,
                                 kfi_cpu_lookup_workspace(m->rows, m->cols, m->vocab));
    if (result != KF_SUCCESS) return result;
    kfi_cpu_lookup_sums(m, workspace);
    return KF_SUCCESS;
}

KFI_C_END

#endif
