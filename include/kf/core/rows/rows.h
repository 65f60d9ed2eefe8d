/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/rows/rows.h: the schedule of the rows family on the CPU.

   An op's traversal visits rows and calls one function per pass and row. These functions share a
   frame: a pass reads there what the traversal and the earlier passes stored. Each function
   processes tiles of KFI_STRIP elements in a loop that the compiler vectorises. A reduction keeps
   KFI_STRIP accumulators and folds them in a fixed order, so a row's bits depend on the row only. A
   row's remainder is copied into a tile, of which only the valid elements count. The partition of
   rows depends on the shape only, so results do not depend on the number of threads. */
#ifndef KF_CORE_ROWS_ROWS_H
#define KF_CORE_ROWS_ROWS_H

#include "kf/core/host.h"

#include "kf/core/elementwise/elementwise.h"

KFI_C_BEGIN

#define KFI_STRIP 64 /* accumulators of a reduction */

/* Keeps the counter of a loop over strips opaque: gcc -O3 would fuse the loops of two strips
   (-floop-unroll-and-jam) and then fail to vectorise them. */
#if defined(__GNUC__)
#define KFI_EACH_STRIP(i) __asm__("" : "+r"(i))
#else
#define KFI_EACH_STRIP(i) (void)(i)
#endif

/* Accumulator initialisation and the final fold. The loops have constant lengths, so each compiles
   to a few instructions. */
#define KFI_FOLD_STEP(join, n)                                                                     \
    for (int j = 0; j < n; ++j) a[j] = join(a[j], a[j + n]);
#define KFI_FOLD(word, type, nothing, join)                                                        \
    KFI_INLINE void kfi_clear_##word(type *a)                                                      \
    {                                                                                              \
        for (int j = 0; j < KFI_STRIP; ++j) a[j] = nothing;                                        \
    }                                                                                              \
    KFI_INLINE type kfi_fold_##word(type *a)                                                       \
    {                                                                                              \
        KFI_FOLD_STEP(join, KFI_STRIP / 2)                                                         \
        KFI_FOLD_STEP(join, KFI_STRIP / 4)                                                         \
        KFI_FOLD_STEP(join, KFI_STRIP / 8)                                                         \
        KFI_FOLD_STEP(join, KFI_STRIP / 16)                                                        \
        return join(join(a[0], a[2]), join(a[1], a[3]));                                           \
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

/* Column `a` as an index relative to column `from`. Columns outside the strip map to -1 (before it)
   or to KFI_STRIP (after it). */
KFI_INLINE int kfi_cpu_near(kf_i64 a, kf_i64 from)
{
    return a < from ? -1 : a - from > KFI_STRIP ? KFI_STRIP : (int)(a - from);
}

/* Copies a row's remainder into a zeroed tile. NULL stays NULL. */
KFI_HOST const void *kfi_tail(void *tile, const void *from, int left, int size)
{
    if (!from) return NULL;
    memset(tile, 0, (size_t)(KFI_STRIP * size));
    memcpy(tile, from, (size_t)(left * size));
    return tile;
}

/* True if an output is stored with non-temporal stores from a tile (core/stream.h). Requires a
   large output with line-aligned rows that is not also an input, whose lines are cached already. */
KFI_HOST int kfi_row_streams(const kfi_cpu_map *m, int operand, int size)
{
    const void *ptr = m->operands.of[operand].ptr;
    const kfi_operand *o = &m->operands.of[operand];
    int streams = KFI_STREAMS && ptr && m->elements >= KF_STREAM_MIN / size &&
                  (uintptr_t)ptr % KFI_LINE == 0 && m->cols * size % KFI_LINE == 0;
    streams &= o->at.gap == 0 && ((o->at.row | o->at.head | o->at.outer) * size) % KFI_LINE == 0;
    for (int k = 0; k < operand; ++k) streams &= m->operands.of[k].ptr != ptr;
    return streams;
}

/* Random words of dropout, generated a tile at a time: consecutive strips and rows are contiguous.
 */
typedef struct {
    const kfi_rng *rng;
    kf_i64 from; /* first element whose word is stored; a multiple of 8 */
    uint16_t words[KFI_TILE + 8];
} kfi_words;
KFI_HOST void kfi_words_begin(kfi_words *w, const kfi_rng *rng)
{
    w->rng = rng;
    w->from = -KFI_TILE; /* holds no element yet */
}
/* Returns the words of KFI_STRIP elements from `first` on. */
KFI_HOST const uint16_t *kfi_strip_words(kfi_words *w, kf_i64 first)
{
    if (first < w->from || first + KFI_STRIP > w->from + KFI_TILE) {
        w->from = first / 8 * 8;
        kfi_random_tile(w->words, w->rng, w->from);
    }
    return w->words + (first - w->from);
}

/* Number of row blocks; a thread processes one block at a time. */
KFI_HOST kf_i64 kfi_row_blocks(kf_i64 rows, kf_i64 cols)
{
    const kf_i64 chunk = (kf_i64)KFI_CHUNK * KFI_TILE, per = cols >= chunk ? 1
                                                             : cols > 0    ? chunk / cols
                                                                           : chunk;
    return (rows + per - 1) / per;
}

/* n / d for nonnegative numbers, by a 32-bit division where possible. */
KFI_INLINE kf_i64 kfi_quotient(kf_i64 n, kf_i64 d)
{
    return (n | d) >> 32 ? n / d : (kf_i64)((uint32_t)n / (uint32_t)d);
}
KFI_INLINE kf_i64 kfi_rest(kf_i64 n, kf_i64 d) { return n - kfi_quotient(n, d) * d; }
/* Offset of a row's first element in tensor `operand`. */
KFI_INLINE kf_i64 kfi_row_at(const kfi_cpu_map *m, int operand, kf_i64 row)
{
    const kfi_pitch *p = &m->operands.of[operand].at;
    kf_i64 at = row * p->row;
    if (p->head | p->outer) {
        const kf_i64 head = kfi_quotient(row, m->queries);
        at += head * p->head + kfi_quotient(head, m->channels) * p->outer;
    }
    return at;
}
/* Offset of column i from the row's first element, for rows in segments that are `gap` elements
   apart. */
KFI_INLINE kf_i64 kfi_segment_at(const kfi_cpu_map *m, kf_i64 gap, kf_i64 i)
{
    return gap ? i + kfi_quotient(i, m->segment) * gap : i;
}
/* Number of contiguous columns from i on: the rest of the segment, or `count` in a row without
   gaps. */
KFI_INLINE kf_i64 kfi_segment_room(const kfi_cpu_map *m, kf_i64 gap, kf_i64 i, int count)
{
    return gap ? m->segment - kfi_rest(i, m->segment) : count;
}
KFI_INLINE int kfi_segment_whole(const kfi_cpu_map *m, kf_i64 gap, kf_i64 i, int count)
{
    return kfi_segment_room(m, gap, i, count) >= count;
}
/* Copies a segment or a part of one. Inlined, because segments may be short. */
KFI_INLINE void kfi_segment_copy(char *to, const char *from, kf_i64 bytes)
{
    if (bytes % 16 != 0)
        memcpy(to, from, (size_t)bytes);
    else
        for (kf_i64 k = 0; k < bytes; k += 16) memcpy(to + k, from + k, 16);
}
/* Prefetch distance in segments: the hardware prefetcher does not follow the gaps. */
#define KFI_SEGMENTS_AHEAD 32
#if defined(__GNUC__)
#define KFI_PREFETCH(address) __builtin_prefetch((const void *)(address))
#else
#define KFI_PREFETCH(address) ((void)(address))
#endif
/* Contiguous copy of the first columns of a row in short segments. The first pass fills it, later
   passes read it. */
typedef struct {
    kf_i64 row, columns, room, gap; /* room: bytes; gap: of the tensor, in elements */
    char *bytes;
} kfi_gathered;
KFI_INLINE kfi_gathered kfi_gather(const kfi_cpu_map *m, int operand, char *bytes, size_t room)
{
    kfi_gathered none;
    none.row = -1;
    none.gap = m->operands.of[operand].at.gap;
    none.columns = 0;
    none.room = (kf_i64)room;
    none.bytes = bytes;
    return none;
}
/* Returns `count` columns from column i on of the row that begins at `from`: their address if they
   are a contiguous strip, otherwise the address of a copy. */
KFI_HOST const void *kfi_segment_tile(const kfi_cpu_map *m, kfi_gathered *g, void *tile,
                                      const void *from, kf_i64 row, kf_i64 i, int count, int size)
{
    if (!from) return NULL;
    if (g->row != row) g->columns = 0;
    g->row = row;
    if (i + KFI_STRIP <= g->columns) return g->bytes + i * size;
    kf_i64 at = kfi_segment_at(m, g->gap, i), room = kfi_segment_room(m, g->gap, i, count);
    if (count < KFI_STRIP)
        memset(tile, 0, (size_t)(KFI_STRIP * size));
    else if (room >= count)
        return (const char *)from + at * size;
    else if (i == g->columns && (i + KFI_STRIP) * size <= g->room) {
        tile = g->bytes + i * size;
        g->columns += KFI_STRIP;
    }
    for (int j = 0, run; j < count; j += run, room = m->segment) {
        run = room < count - j ? (int)room : count - j;
        KFI_PREFETCH((uintptr_t)from +
                     (uintptr_t)((at + KFI_SEGMENTS_AHEAD * (m->segment + g->gap)) * size));
        kfi_segment_copy((char *)tile + j * size, (const char *)from + at * size, run * size);
        at += run + g->gap;
    }
    return tile;
}
KFI_HOST void kfi_segment_scatter(const kfi_cpu_map *m, kf_i64 gap, void *to, const void *tile,
                                  kf_i64 i, int count, int size)
{
    kf_i64 at = kfi_segment_at(m, gap, i), room = kfi_segment_room(m, gap, i, count);
    for (int j = 0, run; j < count; j += run, room = m->segment) {
        run = room < count - j ? (int)room : count - j;
        kfi_segment_copy((char *)to + at * size, (const char *)tile + j * size, run * size);
        at += run + gap;
    }
}
/* Range of columns that belong to one channel, kept between calls to avoid divisions. */
typedef struct {
    kf_i64 begin, end, channel;
    /* Index, over all groups, of the channel whose value fills the tile, or of the first of
       contiguous channels; -1: none. */
    kf_i64 filled;
} kfi_channel;
KFI_INLINE kfi_channel kfi_channel_begin(void)
{
    const kfi_channel none = {0, 0, 0, -1};
    return none;
}
/* Sets the range for column i. Returns how many of the `count` columns from i on belong to that
   channel. */
KFI_HOST int kfi_channel_at(const kfi_cpu_map *m, kfi_channel *c, kf_i64 i, int count)
{
    if (i < c->begin || i >= c->end) {
        const kf_i64 at = kfi_rest(i, m->segment);
        c->channel = kfi_quotient(at, m->inner);
        c->begin = i - kfi_rest(at, m->inner);
        c->end = c->begin + m->inner;
    }
    return c->end - i < count ? (int)(c->end - i) : count;
}
/* Fills a tile with the channel values of group `group` for `count` columns from column i on. If
   `from` is NULL, the tile already holds the default value. */
KFI_HOST const void *kfi_channel_tile(const kfi_cpu_map *m, kfi_channel *c, void *tile,
                                      const void *from, kf_i64 group, kf_i64 i, int count, int size)
{
    if (!from) return tile;
    const char *values = (const char *)from + group * m->parts * size;
    if (m->inner == 1) { /* contiguous channels: strips of whole segments repeat the same ones */
        kf_i64 channel = kfi_rest(i, m->segment);
        const kf_i64 filled = c->filled;
        c->filled = count == KFI_STRIP ? group * m->parts + channel : -1;
        if (c->filled >= 0 && c->filled == filled) return tile;
        if (count < KFI_STRIP) memset(tile, 0, (size_t)(KFI_STRIP * size));
        for (int j = 0, run; j < count; j += run, channel = 0) {
            const kf_i64 room = m->parts - channel;
            run = room < count - j ? (int)room : count - j;
            kfi_segment_copy((char *)tile + j * size, values + channel * size, run * size);
        }
        return tile;
    }
    int run = kfi_channel_at(m, c, i, count);
    if (run == count) {
        if (c->filled != group * m->parts + c->channel)
            kfi_fill((unsigned char *)tile, values + c->channel * size, KFI_STRIP, size);
        c->filled = group * m->parts + c->channel;
        return tile;
    }
    c->filled = -1;
    memset(tile, 0, (size_t)(KFI_STRIP * size));
    for (int j = 0; j < count; j += run) {
        run = kfi_channel_at(m, c, i + j, count - j);
        kfi_fill((unsigned char *)tile + j * size, values + c->channel * size, run, size);
    }
    return tile;
}
/* Adds a tile of terms to the sums of their channels. Overwrites the terms. */
#define KFI_CHANNEL_ADD(word, type)                                                                \
    KFI_HOST void kfi_channel_add_##word(const kfi_cpu_map *m, kfi_channel *c, type *sums,         \
                                         type *terms, kf_i64 i, int count)                         \
    {                                                                                              \
        if (m->inner == 1) { /* contiguous channels */                                             \
            kf_i64 at = kfi_rest(i, m->segment);                                                   \
            for (int j = 0, run; j < count; j += run, at = 0) {                                    \
                run = m->segment - at < count - j ? (int)(m->segment - at) : count - j;            \
                for (int k = 0; k < run; ++k) sums[at + k] += terms[j + k];                        \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (int j = 0, run; j < count; j += run) {                                                \
            run = kfi_channel_at(m, c, i + j, count - j);                                          \
            if (run == KFI_STRIP)                                                                  \
                sums[c->channel] += kfi_fold_sum_##word(terms);                                    \
            else                                                                                   \
                for (int k = 0; k < run; ++k) sums[c->channel] += terms[j + k];                    \
        }                                                                                          \
    }
KFI_CHANNEL_ADD(f32, float)
KFI_CHANNEL_ADD(f64, double)

/* Partial sums of gradient `sum`, one per channel of the group; the batches are added up later. */
KFI_HOST char *kfi_group_partial(const kfi_cpu_map *m, kf_i64 row, int sum)
{
    return m->partial + (sum * m->rows + row) * m->parts * m->acc_size;
}
KFI_HOST size_t kfi_cpu_group_workspace(kf_i64 outer, kf_i64 length, kf_i64 groups, kf_i64 channels,
                                        kf_i64 inner, int sums, int acc_size)
{
    const kf_i64 sizes[] = {outer, length, channels, inner};
    const int fits = groups >= 0 && kfi_all_fit(sizes, 4) && kfi_divides(groups, channels);
    return fits ? kfi_workspace((size_t)(outer * channels) * (size_t)(sums * acc_size)) : 0;
}

/* Partial sum of gradient `sum` of one plane; the batches are added up later. NULL: no gradient is
   wanted. */
KFI_HOST char *kfi_plane_partial(const kfi_cpu_map *m, kf_i64 row, int sum)
{
    return m->partial ? m->partial + (sum * m->rows + row) * m->acc_size : NULL;
}
KFI_HOST size_t kfi_cpu_plane_workspace(kf_i64 outer, kf_i64 channels, kf_i64 inner, int sums,
                                        int acc_size)
{
    return kfi_fits(outer, channels, inner)
               ? kfi_workspace((size_t)(outer * channels) * (size_t)(sums * acc_size))
               : 0;
}

/* Runs an op over rows. per_row: an output has one value per row, so rows without columns are
   computed too. */
KFI_HOST kf_result_t kfi_cpu_rows(kfi_cpu_map *m, int layout, const kf_i64 *sizes,
                                  void (*traverse)(void *, kf_i64), int per_row, void *workspace,
                                  size_t workspace_bytes)
{
    kfi_shape shape = {0, 0, 0, 0, NULL};
    kf_i64 segments[5] = {0, 0, 0, 0, 0};
    kf_result_t result = kfi_check_layout(&m->name, layout, sizes, &shape, segments);
    if (result != KF_SUCCESS) return result;
    const kfi_levels levels = kfi_make_levels(layout, sizes);
    result = kfi_check_strides(&m->name, &m->arguments, &m->strides, &levels, &m->operands);
    if (result != KF_SUCCESS) return result;
    const kf_i64 outer = shape.rows, channels = shape.channels, cols = shape.cols;
    const int groups = layout >= KFI_LAYOUT_GROUPS, planes = layout == KFI_LAYOUT_PLANES || groups;
    /* Number of channels for which each plane, or each group, stores a partial sum. */
    const kf_i64 summed = groups ? channels * shape.parts : channels;
    m->rows = layout == KFI_LAYOUT_ROWS ? outer : outer * channels;
    m->cols = cols;
    m->channels = channels;
    m->queries = layout == KFI_LAYOUT_HEADS ? sizes[2] : 1;
    m->elements = m->rows * cols;
    if (groups) {
        m->parts = shape.parts;
        m->inner = segments[4];
        m->segment = m->parts * m->inner;
    }
    const int nothing = m->rows == 0 || (cols == 0 && !per_row);
    if (!m->sums ? nothing : planes ? summed == 0 : cols == 0 && !per_row) return KF_SUCCESS;
    result = kfi_check_operands(&m->name, &m->arguments, &shape, &levels, &m->operands);
    if (result != KF_SUCCESS || !m->operands.wanted) return result;
    for (int i = 0; i < m->operands.count; ++i)
        m->operands.of[i].at = kfi_make_pitch(layout, &levels, m->operands.of[i].apart);
    int wanted = 0;
    for (int k = 0; k < m->sums && !wanted; ++k) wanted = m->sum_outputs[k] != NULL;
    const size_t needed = !m->sums ? 0
                          : planes ? kfi_cpu_plane_workspace(outer, summed, 1, m->sums, m->acc_size)
                                   : kfi_cpu_workspace(outer, 0, cols, 0, m->sums, m->acc_size);
    result = kfi_check_workspace(&m->name, &m->arguments, &m->operands, workspace, workspace_bytes,
                                 needed);
    if (result != KF_SUCCESS) return result;
    m->partial = wanted ? (char *)workspace : NULL;
    m->blocks =
        m->sums && !planes ? kfi_blocks_of(m->rows, m->elements) : kfi_row_blocks(m->rows, cols);
    if (m->blocks < 1) m->blocks = 1;
    m->per_block = (m->rows + m->blocks - 1) / m->blocks;
    if (!planes || !nothing) kfi_parallel(m->blocks, traverse, m, m->elements >= KF_OMP_MIN);
    if (planes) { /* the batches remain to be added up */
        m->blocks = nothing ? 0 : outer;
        m->cols = summed;
    }
    if (wanted)
        kfi_parallel((m->cols + KFI_TILE - 1) / KFI_TILE, kfi_sum_partials, m,
                     m->blocks * m->cols >= KF_OMP_MIN);
    return KF_SUCCESS;
}

KFI_C_END

#endif
