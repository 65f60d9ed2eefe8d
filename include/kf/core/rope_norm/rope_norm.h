/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/rope_norm/rope_norm.h: heads that are normalised and rotated (rope), on the CPU.

   Each pass over a head processes some of its pairs at a time, copied to contiguous storage, and
   then the elements after the pairs. Gradients of weights are summed per block of rows in the
   workspace, then over the blocks. Partitions depend on the shape only. */
#ifndef KF_CORE_ROPE_NORM_ROPE_NORM_H
#define KF_CORE_ROPE_NORM_ROPE_NORM_H

#include "kf/core/host.h"

#include "kf/core/elementwise/elementwise.h"
#include "kf/core/rope/rope.h"

KFI_C_BEGIN

typedef struct kfi_cpu_heads {
    kfi_name name;
    kfi_arguments arguments;
    const char *element_codes; /* sizes of the tensors, one code each (core/rope/check.h) */
    const void *numbers;
    int number_size, size, acc_size; /* bytes of a position, of an element, of an accumulator */
    int beside;                      /* the elements of a pair are adjacent */
    /* for q and k: heads and weights; given: the gradients of the results */
    const void *heads[2], *scales[2], *given[2], *tables[KFI_ROPE_TABLES];
    void *to[2];              /* NULL: not wanted */
    void *const *sum_outputs; /* the gradients of both weights; NULL in a forward */
    const kfi_sum_writer *stores;
    /* Processes a head. partial: sums of the gradient of the head's weight; NULL: not wanted. */
    void (*head)(const struct kfi_cpu_heads *m, int tensor, kf_i64 head, kf_i64 position,
                 void *partial);
    const void *scalars;
    kf_i64 rows, count[2], dim, pairs, positions, per_block;
    kfi_cpu_map *sums;
} kfi_cpu_heads;

/* Some pairs of a head, or some elements after the pairs. */
typedef struct {
    kf_i64 at;       /* index of the first one; pairs come first */
    kf_i64 first[2]; /* first element of each side */
    int count, sides, step;
} kfi_head_part;

/* Advances to the next part of a head, beginning with {0}. Returns 0 past the last one. */
KFI_HOST int kfi_head_next(const kfi_cpu_heads *m, kfi_head_part *p)
{
    p->at += p->count;
    const int paired = p->at < m->pairs;
    const kf_i64 left = (paired ? m->pairs : m->dim - m->pairs) - p->at;
    p->count = left < KFI_PART ? (int)left : KFI_PART;
    p->sides = paired ? 2 : 1;
    p->step = paired && m->beside ? 2 : 1;
    p->first[0] = paired ? p->at * p->step : m->pairs + p->at;
    p->first[1] = m->beside ? p->first[0] + 1 : m->pairs + p->at;
    return left > 0;
}
KFI_HOST int kfi_head_whole(const kfi_head_part *p)
{
    return (p->count + KFI_SIMD - 1) / KFI_SIMD * KFI_SIMD;
}

/* Loads one side of a part, or the part's values of a table, converted; fills up to whole SIMD
   vectors with zeros. Saves convert back. */
#define KFI_HEAD_SAME(word, type)                                                                  \
    KFI_HOST void kfi_head_load_##word(const kfi_head_part *p, const void *from, int step,         \
                                       type *to)                                                   \
    {                                                                                              \
        kfi_rope_move(to, 1, from, step, p->count, (int)sizeof(type));                             \
        memset(to + p->count, 0, (size_t)(kfi_head_whole(p) - p->count) * sizeof(type));           \
    }                                                                                              \
    KFI_HOST void kfi_head_save_##word(const kfi_head_part *p, void *to, const type *from)         \
    {                                                                                              \
        kfi_rope_move(to, p->step, from, 1, p->count, (int)sizeof(type));                          \
    }
#define KFI_HEAD_WIDENED(word, type)                                                               \
    KFI_HOST void kfi_head_load_##word(const kfi_head_part *p, const void *from, int step,         \
                                       float *to)                                                  \
    {                                                                                              \
        type side[KFI_PART];                                                                       \
        kfi_rope_move(side, 1, from, step, p->count, (int)sizeof(type));                           \
        memset((void *)(side + p->count), 0,                                                       \
               (size_t)(kfi_head_whole(p) - p->count) * sizeof(type));                             \
        kfi_widen_##word(side, to, kfi_head_whole(p));                                             \
    }                                                                                              \
    KFI_HOST void kfi_head_save_##word(const kfi_head_part *p, void *to, const float *from)        \
    {                                                                                              \
        type side[KFI_PART];                                                                       \
        kfi_narrow_##word(from, side, kfi_head_whole(p));                                          \
        kfi_rope_move(to, p->step, side, 1, p->count, (int)sizeof(type));                          \
    }
KFI_HEAD_SAME(f32, float)
KFI_HEAD_SAME(f64, double)
KFI_HEAD_WIDENED(f16, kf_f16)
KFI_HEAD_WIDENED(bf16, kf_bf16)
#undef KFI_HEAD_SAME
#undef KFI_HEAD_WIDENED

/* Adds terms to the sums of a side's elements; folds the accumulators of a vector to one value. */
#define KFI_HEAD_SUMS(word, type)                                                                  \
    KFI_HOST void kfi_head_add_##word(const kfi_head_part *p, int side, type *sums,                \
                                      const type *terms)                                           \
    {                                                                                              \
        for (int j = 0; j < p->count; ++j) sums[p->first[side] + j * p->step] += terms[j];         \
    }                                                                                              \
    KFI_INLINE type kfi_head_fold_##word(const type *v)                                            \
    {                                                                                              \
        type two[KFI_SIMD / 2];                                                                    \
        for (int j = 0; j < KFI_SIMD / 2; ++j) two[j] = v[j] + v[j + KFI_SIMD / 2];                \
        return ((two[0] + two[4]) + (two[1] + two[5])) + ((two[2] + two[6]) + (two[3] + two[7]));  \
    }
KFI_HEAD_SUMS(f32, float)
KFI_HEAD_SUMS(f64, double)
#undef KFI_HEAD_SUMS

KFI_HOST void kfi_heads_rows(void *context, kf_i64 block)
{
    const kfi_cpu_heads *m = (const kfi_cpu_heads *)context;
    const kf_i64 first = block * m->per_block, end = first + m->per_block,
                 last = end < m->rows ? end : m->rows;
    for (int tensor = 0; tensor < 2; ++tensor) {
        char *partial =
            m->sum_outputs && m->sum_outputs[tensor] ? kfi_partial(m->sums, block, tensor) : NULL;
        if (partial) memset(partial, 0, (size_t)(m->dim * m->acc_size));
        if (!partial && !m->to[tensor]) continue;
        for (kf_i64 row = first; row < last; ++row) {
            const kf_i64 position = !m->numbers           ? row
                                    : m->number_size == 8 ? ((const int64_t *)m->numbers)[row]
                                                          : ((const int32_t *)m->numbers)[row];
            const kf_i64 there = position >= 0 && position < m->positions ? position : -1;
            for (kf_i64 head = row * m->count[tensor]; head < (row + 1) * m->count[tensor]; ++head)
                m->head(m, tensor, head, there, partial);
        }
    }
}

/* Number of row blocks with their own partial sums; independent of the number of threads. */
KFI_HOST kf_i64 kfi_heads_blocks(kf_i64 rows, kf_i64 all, kf_i64 dim)
{
    return kfi_blocks_of(rows, rows * all * dim);
}
KFI_HOST size_t kfi_cpu_heads_workspace(kf_i64 rows, kf_i64 heads, kf_i64 more, kf_i64 dim,
                                        kf_i64 pairs, kf_i64 positions, int acc_size)
{
    if (!kfi_fits(rows, heads, dim) || !kfi_fits(rows, more, dim) || !kfi_fits(positions, pairs, 1))
        return 0;
    return kfi_workspace((size_t)(2 * kfi_heads_blocks(rows, heads + more, dim) * dim) *
                         (size_t)acc_size);
}

KFI_HOST kf_result_t kfi_cpu_heads_run(kfi_cpu_heads *m, kf_i64 rows, kf_i64 heads, kf_i64 more,
                                       kf_i64 dim, kf_i64 pairs, kf_i64 positions, void *workspace,
                                       size_t workspace_bytes)
{
    const kf_i64 chunk = (kf_i64)KFI_CHUNK * KFI_TILE, all = heads + more;
    kf_i64 elements[KFI_MAX_TENSORS];
    kf_result_t result = kfi_rope_check(&m->name, m->element_codes, rows, heads, more, dim, pairs,
                                        positions, elements);
    if (result != KF_SUCCESS || dim == 0 || (!m->sum_outputs && (rows == 0 || all == 0)))
        return result;
    kfi_cpu_map sums;
    kfi_zero(&sums, sizeof sums);
    kfi_shape shape = {0, 0, 0, 0, NULL};
    shape.rows = rows;
    shape.cols = (heads > 0 ? heads : more) * dim;
    shape.elements = elements;
    result = kfi_check_operands(&m->name, &m->arguments, &shape, NULL, &sums.operands);
    if (result != KF_SUCCESS || !sums.operands.wanted) return result;
    if (m->sum_outputs)
        result = kfi_check_workspace(
            &m->name, &m->arguments, &sums.operands, workspace, workspace_bytes,
            kfi_cpu_heads_workspace(rows, heads, more, dim, pairs, positions, m->acc_size));
    if (result != KF_SUCCESS) return result;
    const int wanted = m->sum_outputs && (m->sum_outputs[0] || m->sum_outputs[1]);
    sums.partial = wanted ? (char *)workspace : NULL;
    sums.sums = 2;
    sums.sum_outputs = m->sum_outputs;
    sums.stores = m->stores;
    sums.acc_size = m->acc_size;
    sums.cols = dim;
    m->sums = &sums;
    m->rows = rows;
    m->count[0] = heads;
    m->count[1] = more;
    m->dim = dim;
    m->pairs = pairs;
    m->positions = positions;
    m->per_block = all > 0 && all * dim < chunk ? chunk / (all * dim) : 1;
    sums.blocks = (rows + m->per_block - 1) / m->per_block;
    if (m->sum_outputs) {
        sums.blocks = kfi_heads_blocks(rows, all, dim);
        m->per_block = (rows + sums.blocks - 1) / sums.blocks;
    }
    kfi_parallel(sums.blocks, kfi_heads_rows, m, rows * all * dim >= KF_OMP_MIN);
    if (wanted)
        kfi_parallel((dim + KFI_TILE - 1) / KFI_TILE, kfi_sum_partials, &sums,
                     sums.blocks * dim >= KF_OMP_MIN);
    return KF_SUCCESS;
}

KFI_C_END

#endif
