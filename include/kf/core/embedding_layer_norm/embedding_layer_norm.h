/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/embedding_layer_norm/embedding_layer_norm.h: embeddings of several tables, added up and
   normalised, on the CPU.

   Forward: threads share blocks of rows; each pass over a row processes parts of it. Backward: a
   first step stores the rows' gradients in the workspace and sums the gradients of weights per
   block of rows. Then each table's gradient is summed like that of an embedding
   (core/embedding/embedding.h). Partitions depend on the shape only, so results do not depend on
   the number of threads. */
#ifndef KF_CORE_EMBEDDING_LAYER_NORM_EMBEDDING_LAYER_NORM_H
#define KF_CORE_EMBEDDING_LAYER_NORM_EMBEDDING_LAYER_NORM_H

#include "kf/core/host.h"

#include "kf/core/elementwise/elementwise.h"
#include "kf/core/embedding_layer_norm/gather_check.h"
#include "kf/core/embedding/embedding.h"

KFI_C_BEGIN

/* Maximum columns of a row that is gathered once; longer rows are gathered again in each pass. */
#define KFI_GATHER_HELD 1024

typedef struct kfi_cpu_gathering {
    kfi_name name;
    kfi_arguments arguments;
    const char *element_codes; /* sizes of the tensors, one code each
                                  (core/embedding_layer_norm/gather_check.h) */
    const void *const *from;   /* inputs */
    void *const *to;           /* outputs */
    const void *numbers[KFI_GATHERED];
    int number_size, size, acc_size; /* bytes of an index, of an element, of an accumulator */
    int planes, bwd;                 /* number of row gradients; whether it is a backward */
    /* Processes a row. at: its row index in each table; NULL: an index is out of range. row_grads,
       sums: in a backward; NULL: not wanted. */
    void (*row)(const struct kfi_cpu_gathering *m, kf_i64 row, const kf_i64 *at, char *row_grads,
                char *const *sums);
    const void *scalars;
    kf_i64 sizes[2 + KFI_GATHERED], rows, cols,
        per_block;    /* sizes: rows, cols, rows of each table */
    char *row_grads;  /* [plane][row][col] */
    kfi_cpu_map sums; /* sums of the gradients of weights */
    /* Backward, per table: its gradient, the index without gradient (padding), and which row
       gradient is the table's. */
    void *out[KFI_GATHERED];
    kf_i64 skipped[KFI_GATHERED];
    int plane[KFI_GATHERED];
    double beta;
    void (*part)(const void *scalars, const void *const *from, void *to);
    void (*store)(void *to, const void *sums, double beta, int count);
} kfi_cpu_gathering;

/* Number of elements rounded up to whole SIMD vectors. Loads convert `count` elements from a column
   on and fill up with zeros; saves convert back. */
KFI_HOST int kfi_gather_whole(kf_i64 count)
{
    return (int)(count + KFI_SIMD - 1) / KFI_SIMD * KFI_SIMD;
}
#define KFI_GATHER_SAME(word, type)                                                                \
    KFI_HOST void kfi_gather_load_##word(const type *from, kf_i64 count, type *to)                 \
    {                                                                                              \
        memcpy(to, from, (size_t)count * sizeof(type));                                            \
        memset(to + count, 0, (size_t)(kfi_gather_whole(count) - count) * sizeof(type));           \
    }                                                                                              \
    KFI_HOST void kfi_gather_save_##word(type *to, kf_i64 count, const type *from)                 \
    {                                                                                              \
        memcpy(to, from, (size_t)count * sizeof(type));                                            \
    }
#define KFI_GATHER_WIDENED(word, type)                                                             \
    KFI_HOST void kfi_gather_load_##word(const type *from, kf_i64 count, float *to)                \
    {                                                                                              \
        type part[KFI_PART];                                                                       \
        memcpy((void *)part, from, (size_t)count * sizeof(type));                                  \
        memset((void *)(part + count), 0,                                                          \
               (size_t)(kfi_gather_whole(count) - count) * sizeof(type));                          \
        kfi_widen_##word(part, to, kfi_gather_whole(count));                                       \
    }                                                                                              \
    KFI_HOST void kfi_gather_save_##word(type *to, kf_i64 count, const float *from)                \
    {                                                                                              \
        type part[KFI_PART];                                                                       \
        kfi_narrow_##word(from, part, kfi_gather_whole(count));                                    \
        memcpy((void *)to, part, (size_t)count * sizeof(type));                                    \
    }
KFI_GATHER_SAME(f32, float)
KFI_GATHER_SAME(f64, double)
KFI_GATHER_WIDENED(f16, kf_f16)
KFI_GATHER_WIDENED(bf16, kf_bf16)
#undef KFI_GATHER_SAME
#undef KFI_GATHER_WIDENED

/* Adds up to KFI_SIMD terms to the accumulators of a vector; folds these to one value; adds a part
   of a row to a part of sums. */
#define KFI_GATHER_SUMS(word, type)                                                                \
    KFI_INLINE void kfi_gather_add_##word(type *sums, const type *terms, int count)                \
    {                                                                                              \
        if (count >= KFI_SIMD)                                                                     \
            for (int j = 0; j < KFI_SIMD; ++j) sums[j] += terms[j];                                \
        else                                                                                       \
            for (int j = 0; j < count; ++j) sums[j] += terms[j];                                   \
    }                                                                                              \
    KFI_INLINE type kfi_gather_fold_##word(const type *v)                                          \
    {                                                                                              \
        type two[KFI_SIMD / 2];                                                                    \
        for (int j = 0; j < KFI_SIMD / 2; ++j) two[j] = v[j] + v[j + KFI_SIMD / 2];                \
        return ((two[0] + two[4]) + (two[1] + two[5])) + ((two[2] + two[6]) + (two[3] + two[7]));  \
    }                                                                                              \
    KFI_HOST void kfi_gather_part_##word(const void *scalars, const void *const *from, void *to)   \
    {                                                                                              \
        (void)scalars;                                                                             \
        KFI_TILE_LOOP                                                                              \
        for (int j = 0; j < KFI_PART; ++j) ((type *)to)[j] += ((const type *)from[0])[j];          \
    }
KFI_GATHER_SUMS(f32, float)
KFI_GATHER_SUMS(f64, double)
#undef KFI_GATHER_SUMS

KFI_HOST void kfi_gather_rows(void *context, kf_i64 block)
{
    const kfi_cpu_gathering *m = (const kfi_cpu_gathering *)context;
    const kf_i64 first = block * m->per_block, end = first + m->per_block,
                 last = end < m->rows ? end : m->rows;
    const size_t bytes = (size_t)(m->cols * m->acc_size);
    char *sums[KFI_MAX_TENSORS];
    for (int k = 0; k < m->sums.sums; ++k) {
        sums[k] = m->sums.sum_outputs[k] ? kfi_partial(&m->sums, block, k) : NULL;
        if (sums[k]) memset(sums[k], 0, bytes);
    }
    for (kf_i64 row = first; row < last; ++row) {
        kf_i64 at[KFI_GATHERED];
        int inside = 1;
        for (int i = 0; i < KFI_GATHERED; ++i) {
            at[i] = m->number_size == 8 ? ((const int64_t *)m->numbers[i])[row]
                                        : ((const int32_t *)m->numbers[i])[row];
            inside = inside && at[i] >= 0 && at[i] < m->sizes[2 + i];
        }
        char *const row_grads = m->row_grads ? m->row_grads + row * m->cols * m->acc_size : NULL;
        if (inside || !m->bwd)
            m->row(m, row, inside ? at : NULL, row_grads, sums);
        else
            for (int p = 0; row_grads && p < m->planes; ++p)
                memset(row_grads + (size_t)(p * m->rows) * bytes, 0, bytes);
    }
}

/* Number of row blocks with their own partial sums; independent of the number of threads. */
KFI_HOST kf_i64 kfi_gathering_blocks(kf_i64 rows, kf_i64 cols)
{
    return kfi_blocks_of(rows, rows * cols);
}
/* Bytes of each part of the workspace: the rows' gradients, the sums of weights, the sorted
   indices. */
KFI_HOST void kfi_cpu_gathering_layout(size_t *bytes, const kf_i64 *sizes, int planes, int sums,
                                       int acc_size)
{
    kf_i64 most = 0;
    for (int i = 0; i < KFI_GATHERED; ++i) most = sizes[2 + i] > most ? sizes[2 + i] : most;
    bytes[0] = kfi_workspace((size_t)(planes * sizes[0] * sizes[1] * acc_size));
    bytes[1] = kfi_workspace(
        (size_t)(sums * kfi_gathering_blocks(sizes[0], sizes[1]) * sizes[1] * acc_size));
    bytes[2] = kfi_cpu_embedding_workspace(sizes[0], sizes[1], most);
}
KFI_HOST size_t kfi_cpu_gathering_workspace(kf_i64 rows, kf_i64 cols, kf_i64 vocab,
                                            kf_i64 positions, kf_i64 types, int planes, int sums,
                                            int acc_size)
{
    const kf_i64 sizes[] = {rows, cols, vocab, positions, types};
    size_t bytes[3];
    for (int i = 0; i < 2 + KFI_GATHERED; ++i)
        if (!kfi_fits(sizes[i], cols, 1)) return 0; /* the launcher reports it */
    if (cols == 0) return 0;
    kfi_cpu_gathering_layout(bytes, sizes, planes, sums, acc_size);
    return bytes[0] + bytes[1] + bytes[2];
}

/* Sums the gradient of table i from the rows' gradients. sorted: workspace for its sorted indices.
 */
KFI_HOST void kfi_gather_table(const kfi_cpu_gathering *m, int i, char *sorted)
{
    kfi_cpu_embedding t;
    kfi_zero(&t, sizeof t);
    t.numbers = m->numbers[i];
    t.number_size = m->number_size;
    t.size = m->size;
    t.given_size = m->acc_size;
    t.dout = m->row_grads + m->plane[i] * m->rows * m->cols * m->acc_size;
    t.to = m->out[i];
    t.part = m->part;
    t.store = m->store;
    t.beta = m->beta;
    t.rows = m->rows;
    t.cols = m->cols;
    t.vocab = m->sizes[2 + i];
    t.skipped = m->skipped[i];
    kfi_cpu_embedding_sums(&t, sorted);
}

KFI_HOST kf_result_t kfi_cpu_gathering_run(kfi_cpu_gathering *m, void *workspace,
                                           size_t workspace_bytes)
{
    size_t bytes[3];
    kfi_cpu_map *const s = &m->sums;
    kf_result_t result = kfi_check_gathering(&m->name, &m->arguments, m->element_codes, m->sizes,
                                             m->bwd, &s->operands);
    if (result != KF_SUCCESS || !s->operands.wanted) return result;
    m->rows = m->sizes[0];
    m->cols = m->sizes[1];
    m->per_block = m->cols > 0 && m->cols < (kf_i64)KFI_CHUNK * KFI_TILE
                       ? (kf_i64)KFI_CHUNK * KFI_TILE / m->cols
                       : 1;
    if (!m->bwd) {
        kfi_parallel((m->rows + m->per_block - 1) / m->per_block, kfi_gather_rows, m,
                     m->rows * m->cols >= KF_OMP_MIN);
        return KF_SUCCESS;
    }
    result = kfi_check_workspace(&m->name, &m->arguments, &s->operands, workspace, workspace_bytes,
                                 kfi_cpu_gathering_workspace(m->rows, m->cols, m->sizes[2],
                                                             m->sizes[3], m->sizes[4], m->planes,
                                                             s->sums, m->acc_size));
    if (result != KF_SUCCESS) return result;
    kfi_cpu_gathering_layout(bytes, m->sizes, m->planes, s->sums, m->acc_size);
    for (int i = 0; i < KFI_GATHERED; ++i)
        if (m->out[i]) m->row_grads = (char *)workspace;
    s->partial = (char *)workspace + bytes[0];
    s->acc_size = m->acc_size;
    s->cols = m->cols;
    s->blocks = kfi_gathering_blocks(m->rows, m->cols);
    m->per_block = (m->rows + s->blocks - 1) / s->blocks;
    kfi_parallel(s->blocks, kfi_gather_rows, m, m->rows * m->cols >= KF_OMP_MIN);
    if (s->sums)
        kfi_parallel((m->cols + KFI_TILE - 1) / KFI_TILE, kfi_sum_partials, s,
                     s->blocks * m->cols >= KF_OMP_MIN);
    for (int i = 0; i < KFI_GATHERED; ++i)
        if (m->out[i]) kfi_gather_table(m, i, (char *)workspace + bytes[0] + bytes[1]);
    return KF_SUCCESS;
}

KFI_C_END

#endif
