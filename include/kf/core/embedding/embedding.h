/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/embedding/embedding.h: embedding on the CPU (rows of a table by index), and the gradient
 * of the table, which adds the rows of each token in order. */
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
    /* Number of elements of each tensor: 't' vocab x cols, 'n' rows, 'e' rows x cols. */
    const char *element_codes;
    const void *numbers;               /* row indices of the table (tokens) */
    int number_size, size, given_size; /* bytes of a token, of an element, of an element of dout */
    const void *table, *dout;          /* NULL: the gradient does not read it */
    void *to;
    /* Computes KFI_PART elements; a gradient is added to float or double sums. */
    void (*part)(const void *scalars, const void *const *from, void *to);
    /* Stores the sums of a gradient. */
    void (*store)(void *to, const void *sums, double beta, int count);
    const void *scalars;
    double beta;
    kf_i64 rows, cols, vocab, skipped, per_block;
    /* Rows sorted by token: token v has positions[end[v - 1]] to positions[end[v] - 1]. */
    kf_i64 *end, *positions;
} kfi_cpu_embedding;

KFI_HOST kf_i64 kfi_embedding_index(const kfi_cpu_embedding *m, kf_i64 row)
{
    return m->number_size == 8 ? ((const int64_t *)m->numbers)[row]
                               : ((const int32_t *)m->numbers)[row];
}

/* Returns `from`, or a zero-padded copy of a row's last elements: loops have a fixed length. */
KFI_HOST const void *kfi_embedding_tail(void *room, const char *from, kf_i64 count, int size)
{
    if (count >= KFI_PART) return from;
    memset(room, 0, (size_t)(KFI_PART * size));
    memcpy(room, from, (size_t)(count * size));
    return room;
}

KFI_HOST void kfi_embedding_rows(void *context, kf_i64 block)
{
    const kfi_cpu_embedding *m = (const kfi_cpu_embedding *)context;
    const kf_i64 width = m->cols * m->size, first = block * m->per_block;
    const kf_i64 last = m->rows - first < m->per_block ? m->rows : first + m->per_block;
    for (kf_i64 row = first; row < last; ++row) {
        const kf_i64 number = kfi_embedding_index(m, row);
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
                kfi_embedding_tail(room, from + col * m->size, count, m->size)};
            if (count == KFI_PART) {
                m->part(m->scalars, read, to + col * m->size);
            } else {
                m->part(m->scalars, read, made);
                memcpy(to + col * m->size, made, (size_t)(count * m->size));
            }
        }
    }
}

/* Sums KFI_PART columns of a row of the table's gradient. */
KFI_HOST void kfi_embedding_sum(const kfi_cpu_embedding *m, kf_i64 number, kf_i64 col, kf_i64 count)
{
    double room[KFI_PART], of_table[KFI_PART], sums[KFI_PART];
    const kf_i64 begin = m->positions && number > 0 ? m->end[number - 1] : 0,
                 end = m->positions ? m->end[number] : 0;
    const void *read[2] = {NULL, NULL};
    memset(sums, 0, sizeof sums);
    if (m->table)
        read[m->dout != NULL] = kfi_embedding_tail(
            of_table, (const char *)m->table + (number * m->cols + col) * m->size, count, m->size);
    for (kf_i64 i = begin; i < end; ++i) {
        if (m->dout)
            read[0] = kfi_embedding_tail(
                room, (const char *)m->dout + (m->positions[i] * m->cols + col) * m->given_size,
                count, m->given_size);
        m->part(m->scalars, read, sums);
    }
    m->store((char *)m->to + (number * m->cols + col) * m->size, sums, m->beta, (int)count);
}
KFI_HOST void kfi_embedding_sums(void *context, kf_i64 block)
{
    const kfi_cpu_embedding *m = (const kfi_cpu_embedding *)context;
    const kf_i64 first = block * m->per_block,
                 last = m->vocab - first < m->per_block ? m->vocab : first + m->per_block;
    for (kf_i64 number = first; number < last; ++number)
        for (kf_i64 col = 0; col < m->cols; col += KFI_PART)
            kfi_embedding_sum(m, number, col, m->cols - col < KFI_PART ? m->cols - col : KFI_PART);
}

#define KFI_STORE_EMBEDDING(name, type, acc, read, write)                                          \
    KFI_HOST void kfi_store_embedding_##name(void *to, const void *from, double beta, int count)   \
    {                                                                                              \
        const acc *sums = (const acc *)from;                                                       \
        for (int j = 0; j < count; ++j) {                                                          \
            acc v = sums[j];                                                                       \
            if (beta != 0) /* otherwise `to` may be uninitialised */                               \
                v += (acc)beta * (acc)read(((const type *)to)[j]);                                 \
            ((type *)to)[j] = write(v);                                                            \
        }                                                                                          \
    }
#define KFI_IDENTITY(v) (v)
KFI_STORE_EMBEDDING(f32, float, float, KFI_IDENTITY, KFI_IDENTITY)
KFI_STORE_EMBEDDING(f64, double, double, KFI_IDENTITY, KFI_IDENTITY)
KFI_STORE_EMBEDDING(f16, kf_f16, float, kfi_cpu_load_f16, kfi_cpu_cast_f32_f16)
KFI_STORE_EMBEDDING(bf16, kf_bf16, float, kfi_cpu_load_bf16, kfi_cpu_cast_f32_bf16)
#undef KFI_STORE_EMBEDDING
#undef KFI_IDENTITY

KFI_ONCE size_t kfi_cpu_embedding_workspace(kf_i64 rows, kf_i64 cols, kf_i64 vocab)
{
    if (cols == 0 || !kfi_fits(rows, cols, 1) || !kfi_fits(vocab, cols, 1))
        return 0; /* nothing to do, or invalid sizes */
    return ((size_t)(rows + vocab) * 8 + 255) / 256 * 256;
}

/* Counting sort: orders the rows by token, rows of one token by their index. */
KFI_HOST void kfi_embedding_sort(kfi_cpu_embedding *m)
{
    kf_i64 before = 0;
    memset(m->end, 0, (size_t)m->vocab * sizeof *m->end);
    for (int pass = 0; pass < 2; ++pass) {
        for (kf_i64 row = 0; row < m->rows; ++row) {
            const kf_i64 number = kfi_embedding_index(m, row);
            if (number < 0 || number >= m->vocab || number == m->skipped) continue;
            if (pass) m->positions[m->end[number]] = row;
            ++m->end[number];
        }
        for (kf_i64 v = 0; v < m->vocab && !pass; ++v) {
            const kf_i64 count = m->end[v];
            m->end[v] = before;
            before += count;
        }
    }
}

/* Checks sizes and tensors. made: rows of the result. Without rows or columns it checks only the
 * sizes and sets operands->wanted to 0. */
KFI_ONCE kf_result_t kfi_cpu_embedding_check(const kfi_cpu_embedding *m, kf_i64 made,
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
/* Sets the rows per unit of parallel work and returns the number of units. */
KFI_ONCE kf_i64 kfi_embedding_blocks(kfi_cpu_embedding *m, kf_i64 rows)
{
    const kf_i64 chunk = (kf_i64)KFI_CHUNK * KFI_TILE;
    m->per_block = m->cols < chunk ? chunk / m->cols : 1;
    return (rows + m->per_block - 1) / m->per_block;
}
KFI_HOST kf_result_t kfi_cpu_embedding_run(kfi_cpu_embedding *m)
{
    kfi_operands operands;
    const kf_result_t result = kfi_cpu_embedding_check(m, m->rows, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    kfi_parallel(kfi_embedding_blocks(m, m->rows), kfi_embedding_rows, m,
                 m->rows * m->cols >= KF_OMP_MIN);
    return KF_SUCCESS;
}
/* Computes a table's gradient, with the rows sorted by token in the workspace. */
KFI_HOST void kfi_cpu_embedding_sums(kfi_cpu_embedding *m, void *workspace)
{
    if (m->rows > 0) {
        m->end = (kf_i64 *)workspace;
        m->positions = m->end + m->vocab;
        kfi_embedding_sort(m);
    }
    kfi_parallel(kfi_embedding_blocks(m, m->vocab), kfi_embedding_sums, m,
                 (m->vocab + m->rows) * m->cols >= KF_OMP_MIN);
}
KFI_HOST kf_result_t kfi_cpu_embedding_sum_run(kfi_cpu_embedding *m, void *workspace,
                                               size_t workspace_bytes)
{
    kfi_operands operands;
    kf_result_t result = kfi_cpu_embedding_check(m, m->vocab, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    result = kfi_check_workspace(&m->name, &m->arguments, &operands, workspace, workspace_bytes,
                                 kfi_cpu_embedding_workspace(m->rows, m->cols, m->vocab));
    if (result != KF_SUCCESS) return result;
    kfi_cpu_embedding_sums(m, workspace);
    return KF_SUCCESS;
}

KFI_C_END

#endif
