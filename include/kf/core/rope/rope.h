/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/rope/rope.h: rotary embeddings (rope) on the CPU. A block of KFI_PART pairs of a head is
 * copied to contiguous arrays, rotated in loops that the compiler vectorises, and copied back. */
#ifndef KF_CORE_ROPE_ROPE_H
#define KF_CORE_ROPE_ROPE_H

#include "kf/core/host.h"

#include <string.h>

#include "kf/core/rope/check.h"
#include "kf/core/parallel.h"
#include "kf/core/tile.h"

KFI_C_BEGIN

#define KFI_ROPE_TABLES 8

typedef struct {
    kfi_name name;
    kfi_arguments arguments;
    const char *element_codes; /* elements of each tensor: see kfi_rope_check */
    const void *numbers;       /* positions; NULL: 0 to rows - 1 */
    /* Bytes of a position, of an element, of an element of a table. */
    int number_size, size, angle_size;
    int computed; /* tables have one row, which serves all positions */
    int beside;   /* the elements of a pair are adjacent */
    int outside;  /* byte that fills pairs of positions out of range: 0xff (NaN), or 0 */
    int sources, tables;
    /* source[tensor][i]: tensors that are read; elements behind the pairs are copied from i = 0. */
    const void *source[2][2], *angles[KFI_ROPE_TABLES];
    void *to[2]; /* NULL: not wanted */
    /* Rotates `count` pairs, a multiple of KFI_SIMD. */
    void (*part)(const void *scalars, const void *const *from, const void *const *angles,
                 void *const *to, kf_i64 position, int count);
    const void *scalars;
    kf_i64 rows, heads[2], dim, pairs, positions, per_block;
} kfi_cpu_rope;

/* Copies `count` strided elements: one side of consecutive pairs of a head, to or from an array. */
KFI_INLINE void kfi_rope_move(void *to, int to_step, const void *from, int from_step, int count,
                              int size)
{
    if (to_step == 1 && from_step == 1)
        memcpy(to, from, (size_t)(count * size));
    else if (size == 2)
        for (int j = 0; j < count; ++j)
            memcpy((char *)to + 2 * j * to_step, (const char *)from + 2 * j * from_step, 2);
    else if (size == 4)
        for (int j = 0; j < count; ++j)
            memcpy((char *)to + 4 * j * to_step, (const char *)from + 4 * j * from_step, 4);
    else
        for (int j = 0; j < count; ++j)
            memcpy((char *)to + 8 * j * to_step, (const char *)from + 8 * j * from_step, 8);
}

/* Rotates one head, KFI_PART pairs at a time. */
KFI_HOST void kfi_rope_head(const kfi_cpu_rope *m, int tensor, kf_i64 head, kf_i64 position)
{
    const kf_i64 base = head * m->dim;
    const int step = m->beside ? 2 : 1, size = m->size;
    for (kf_i64 i = 0; i < m->pairs; i += KFI_PART) {
        double sides[4][KFI_PART], made[2][KFI_PART], tables[KFI_ROPE_TABLES][KFI_PART];
        const int count = m->pairs - i < KFI_PART ? (int)(m->pairs - i) : KFI_PART;
        const int whole = (count + KFI_SIMD - 1) / KFI_SIMD * KFI_SIMD;
        const kf_i64 place[2] = {base + i * step, base + (m->beside ? 2 * i + 1 : m->pairs + i)};
        const void *from[4] = {sides[0], sides[1], sides[2], sides[3]}, *angles[KFI_ROPE_TABLES];
        void *const to[2] = {made[0], made[1]};
        for (int s = 0; s < 2 * m->sources; ++s) {
            kfi_rope_move(sides[s], 1, (const char *)m->source[tensor][s / 2] + place[s % 2] * size,
                          step, count, size);
            memset((char *)sides[s] + count * size, 0, (size_t)((whole - count) * size));
        }
        for (int t = 0; t < m->tables; ++t) {
            const char *table = (const char *)m->angles[t] +
                                ((m->computed ? 0 : position * m->pairs) + i) * m->angle_size;
            angles[t] = table;
            if (whole > count) {
                memcpy(tables[t], table, (size_t)(count * m->angle_size));
                memset((char *)tables[t] + count * m->angle_size, 0,
                       (size_t)((whole - count) * m->angle_size));
                angles[t] = tables[t];
            }
        }
        m->part(m->scalars, from, angles, to, position, whole);
        for (int s = 0; s < 2; ++s)
            kfi_rope_move((char *)m->to[tensor] + place[s] * size, step, made[s], 1, count, size);
    }
}

/* Rotates all heads of a row of one tensor. */
KFI_HOST void kfi_rope_row(const kfi_cpu_rope *m, int tensor, kf_i64 row, kf_i64 position)
{
    const kf_i64 heads = m->heads[tensor], turned = 2 * m->pairs * m->size,
                 rest = m->dim * m->size - turned;
    if (!m->to[tensor]) return;
    for (kf_i64 head = row * heads; head < (row + 1) * heads; ++head) {
        char *to = (char *)m->to[tensor] + head * m->dim * m->size;
        const char *from = (const char *)m->source[tensor][0] + head * m->dim * m->size;
        if (position >= 0 && position < m->positions)
            kfi_rope_head(m, tensor, head, position);
        else
            memset(to, m->outside, (size_t)turned);
        if (from != to && rest > 0) memcpy(to + turned, from + turned, (size_t)rest);
    }
}

KFI_HOST void kfi_rope_rows(void *context, kf_i64 block)
{
    const kfi_cpu_rope *m = (const kfi_cpu_rope *)context;
    const kf_i64 first = block * m->per_block,
                 last = m->rows - first < m->per_block ? m->rows : first + m->per_block;
    for (kf_i64 row = first; row < last; ++row) {
        const kf_i64 position = !m->numbers           ? row
                                : m->number_size == 8 ? ((const int64_t *)m->numbers)[row]
                                                      : ((const int32_t *)m->numbers)[row];
        for (int tensor = 0; tensor < 2; ++tensor) kfi_rope_row(m, tensor, row, position);
    }
}

KFI_HOST kf_result_t kfi_cpu_rope_run(kfi_cpu_rope *m, kf_i64 rows, kf_i64 heads, kf_i64 more,
                                      kf_i64 dim, kf_i64 pairs, kf_i64 positions)
{
    const kf_i64 chunk = (kf_i64)KFI_CHUNK * KFI_TILE, all = heads + more;
    kf_i64 elements[KFI_MAX_TENSORS];
    kf_result_t result = kfi_rope_check(&m->name, m->element_codes, rows, heads, more, dim, pairs,
                                        positions, elements);
    if (result != KF_SUCCESS || rows == 0 || all == 0 || dim == 0) return result;
    kfi_shape shape = {0, 0, 0, 0, NULL};
    shape.rows = rows;
    shape.cols = (heads > 0 ? heads : more) * dim;
    shape.elements = elements;
    kfi_operands operands;
    result = kfi_check_operands(&m->name, &m->arguments, &shape, NULL, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    m->rows = rows;
    m->heads[0] = heads;
    m->heads[1] = more;
    m->dim = dim;
    m->pairs = pairs;
    m->positions = positions;
    m->per_block = all * dim < chunk ? chunk / (all * dim) : 1;
    kfi_parallel((rows + m->per_block - 1) / m->per_block, kfi_rope_rows, m,
                 rows * all * dim >= KF_OMP_MIN);
    return KF_SUCCESS;
}

KFI_C_END

#endif
