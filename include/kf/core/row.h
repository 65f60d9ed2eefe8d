/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/row.h: the schedule of the row family on the CPU.

   An op is a function over some rows. It goes over each row once a pass, in tiles of KFI_STRIP elements, whose loop the
   compiler vectorises; what a pass reduces is kept in as many accumulators, which are then folded in a fixed order, so a row's
   bits depend on nothing but the row. What is left at a row's end is copied to a tile, of which so many elements count. How
   rows are shared out depends on the shape alone, so results do not depend on the number of threads. */
#ifndef KF_CORE_ROW_H
#define KF_CORE_ROW_H

#include "kf/core/host.h"

#include "kf/core/map.h"

#define KFI_STRIP 64  /* accumulators of a reduction */
#define KFI_HELD 8192 /* columns of a row, whose values a pass can leave to a later one; on the stack, so few */

/* In a loop over strips, of its counter: gcc -O3 would put the loops of two strips into one (-floop-unroll-and-jam), which it then does not
   vectorise. */
#if defined(__GNUC__)
#define KFI_EACH_STRIP(i) __asm__("" : "+r"(i))
#else
#define KFI_EACH_STRIP(i) (void)(i)
#endif

/* Accumulators without a term, and their fold, whose loops have constant lengths: each is an instruction or two. */
#define KFI_FOLD_STEP(join, n) \
    for (int j = 0; j < n; ++j) a[j] = join(a[j], a[j + n]);
#define KFI_FOLD(word, type, nothing, join) \
    KFI_INLINE void kfi_clear_##word(type *a) \
    { \
        for (int j = 0; j < KFI_STRIP; ++j) a[j] = nothing; \
    } \
    KFI_INLINE type kfi_fold_##word(type *a) \
    { \
        KFI_FOLD_STEP(join, KFI_STRIP / 2) \
        KFI_FOLD_STEP(join, KFI_STRIP / 4) \
        KFI_FOLD_STEP(join, KFI_STRIP / 8) \
        KFI_FOLD_STEP(join, KFI_STRIP / 16) \
        return join(join(a[0], a[2]), join(a[1], a[3])); \
    }
KFI_INLINE float kfi_cpu_sum_f32(float a, float b) { return a + b; }
KFI_INLINE double kfi_cpu_sum_f64(double a, double b) { return a + b; }
KFI_FOLD(sum_f32, float, 0.0f, kfi_cpu_sum_f32)
KFI_FOLD(sum_f64, double, 0.0, kfi_cpu_sum_f64)
KFI_INLINE float kfi_cpu_prod_f32(float a, float b) { return a * b; }
KFI_INLINE double kfi_cpu_prod_f64(double a, double b) { return a * b; }
KFI_FOLD(prod_f32, float, 1.0f, kfi_cpu_prod_f32)
KFI_FOLD(prod_f64, double, 1.0, kfi_cpu_prod_f64)
KFI_FOLD(max_f32, float, -(float)INFINITY, kfi_cpu_max_f32)
KFI_FOLD(max_f64, double, -(double)INFINITY, kfi_cpu_max_f64)
KFI_FOLD(min_f32, float, (float)INFINITY, kfi_cpu_min_f32)
KFI_FOLD(min_f64, double, (double)INFINITY, kfi_cpu_min_f64)

/* What is left of a row, as a tile; NULL stays NULL. */
KFI_HOST const void *kfi_tail(void *tile, const void *from, int left, int size)
{
    if (!from) return NULL;
    memset(tile, 0, (size_t)(KFI_STRIP * size));
    memcpy(tile, from, (size_t)(left * size));
    return tile;
}

/* Whether an output goes past the caches (core/stream.h), by way of a tile: a large one whose rows begin with a line and that is no input,
   whose lines are there already. */
KFI_HOST int kfi_row_streams(const kfi_cpu_map *m, int operand, int size)
{
    const void *ptr = m->operands.of[operand].ptr;
    int streams = KFI_STREAMS && ptr && m->elements >= KF_STREAM_MIN / size && (uintptr_t)ptr % KFI_LINE == 0 && m->cols * size % KFI_LINE == 0;
    for (int k = 0; k < operand; ++k) streams &= m->operands.of[k].ptr != ptr;
    return streams;
}

/* Dropout's random words, those of a whole tile at a time: the strips of a row lie side by side, as rows do. */
typedef struct {
    const kfi_rng *rng;
    kf_i64 from; /* the first element that has its word here; a multiple of 8 */
    uint16_t words[KFI_TILE + 8];
} kfi_words;
KFI_HOST void kfi_words_begin(kfi_words *w, const kfi_rng *rng)
{
    w->rng = rng;
    w->from = -KFI_TILE; /* of no element that there is */
}
/* Of KFI_STRIP elements from `first` on. */
KFI_HOST const uint16_t *kfi_strip_words(kfi_words *w, kf_i64 first)
{
    if (first < w->from || first + KFI_STRIP > w->from + KFI_TILE) {
        w->from = first / 8 * 8;
        kfi_random_tile(w->words, w->rng, w->from);
    }
    return w->words + (first - w->from);
}

/* Rows that a thread takes at a time. */
KFI_HOST kf_i64 kfi_row_blocks(kf_i64 rows, kf_i64 cols)
{
    const kf_i64 chunk = (kf_i64)KFI_CHUNK * KFI_TILE, per = cols >= chunk ? 1 : cols > 0 ? chunk / cols : chunk;
    return (rows + per - 1) / per;
}

/* A plane's value of gradient `sum`, which is added up over the batches; NULL: nobody wants any. */
KFI_HOST char *kfi_plane_partial(const kfi_cpu_map *m, kf_i64 row, int sum)
{
    return m->partial ? m->partial + (sum * m->rows + row) * m->acc_size : NULL;
}
KFI_HOST size_t kfi_cpu_plane_workspace(kf_i64 outer, kf_i64 channels, kf_i64 inner, int sums, int acc_size)
{
    return kfi_fits(outer, channels, inner) ? (size_t)(outer * channels) * (size_t)(sums * acc_size) : 0;
}

/* per_row: some result is one per row, which rows without columns have as well. */
KFI_HOST kf_result_t kfi_cpu_rows(kfi_cpu_map *m, int layout, const kf_i64 *sizes, void (*walk)(void *, kf_i64), int per_row, void *workspace,
                                  size_t workspace_bytes)
{
    kfi_shape shape;
    kf_result_t result = kfi_check_layout(&m->name, layout, sizes, &shape);
    if (result != KF_SUCCESS) return result;
    const kf_i64 outer = shape.rows, channels = shape.channels, cols = shape.cols;
    const int planes = layout == KFI_LAYOUT_PLANES;
    m->rows = layout == KFI_LAYOUT_ROWS ? outer : outer * channels;
    m->cols = cols;
    m->channels = channels;
    m->queries = layout == KFI_LAYOUT_HEADS ? sizes[2] : 1;
    m->elements = m->rows * cols;
    const int nothing = m->rows == 0 || (cols == 0 && !per_row);
    if (!m->sums ? nothing : planes ? channels == 0 : cols == 0 && !per_row) return KF_SUCCESS;
    result = kfi_check_operands(&m->name, &m->arguments, &shape, &m->operands);
    if (result != KF_SUCCESS) return result;
    int wanted = 0;
    for (int k = 0; k < m->sums && !wanted; ++k) wanted = m->sum_outputs[k] != NULL;
    const size_t needed = !wanted ? 0 : planes ? kfi_cpu_plane_workspace(outer, channels, cols, m->sums, m->acc_size)
                                               : kfi_cpu_workspace(outer, 0, cols, 0, m->sums, m->acc_size);
    result = kfi_check_workspace(&m->name, &m->arguments, &m->operands, workspace, workspace_bytes, needed);
    if (result != KF_SUCCESS) return result;
    m->partial = wanted ? (char *)workspace : NULL;
    m->blocks = m->sums && !planes ? kfi_blocks_of(m->rows, m->elements) : kfi_row_blocks(m->rows, cols);
    if (m->blocks < 1) m->blocks = 1;
    m->per_block = (m->rows + m->blocks - 1) / m->blocks;
    if (!planes || !nothing) kfi_parallel(m->blocks, walk, m, m->elements >= KF_OMP_MIN);
    if (planes) { /* what is left to add up are the batches */
        m->blocks = nothing ? 0 : outer;
        m->cols = channels;
    }
    if (wanted) kfi_parallel((m->cols + KFI_TILE - 1) / KFI_TILE, kfi_sum_partials, m, m->blocks * m->cols >= KF_OMP_MIN);
    return KF_SUCCESS;
}

#endif
