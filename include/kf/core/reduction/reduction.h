/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/reduction/reduction.h: reductions over an axis on the CPU, [outer, axis, inner] to
   [outer, inner].

   A unit is up to KFI_STRIP neighbouring results of one outer. Each pass reads the axis in strips
   of KFI_STRIP elements, whose loop the compiler vectorises. If inner is at most KFI_STRIP / 2, a
   strip holds several axis positions, whose accumulators are combined at the end. A long axis is
   split into parts, whose partial results are combined in order. The split follows from axis and
   inner alone, so results depend neither on outer nor on the number of threads. */
#ifndef KF_CORE_REDUCTION_REDUCTION_H
#define KF_CORE_REDUCTION_REDUCTION_H

#include "kf/core/host.h"

#include "kf/core/rows/rows.h"

KFI_C_BEGIN

/* `stage` that runs all passes, then stores results or gradients. Stages from 0 on run one pass
   over a part, or the stores after the last pass. */
#define KFI_CPU_REDUCE_ALL (-1)
#ifndef KFI_REDUCE_PART       /* only tests set it */
#define KFI_REDUCE_PART 65536 /* minimum elements of a unit per part */
#endif
#define KFI_REDUCE_PARTS 4096
/* Strips, or parts, that are combined before they are added to the total: rounding errors grow with
   the longest run of additions. */
#define KFI_REDUCE_RUN 32

typedef struct {
    kfi_name name;
    kfi_arguments arguments;
    const void *scalars;
    kfi_strides strides;
    /* Operation of every reduction of all passes: 0 sum, 1 max, 2 min, 3 prod. */
    const unsigned char *codes;
    const unsigned char *counts; /* reductions per pass */
    int passes, most, all, acc_size, bwd;
    int refuses; /* an empty axis is an error */
    /* Combines the partial results of this traversal (argmax, argmin). NULL: plain reductions. */
    void (*join)(void *);
    /* Set by the traversal. */
    kfi_operands operands;
    kf_i64 outer, axis, inner, results, strips, length, parts, units, per_block, total;
    int stage, down; /* down: axis positions per strip */
    /* partial[reduction of the pass][part][result], done[reduction][result] */
    char *partial, *done;
} kfi_cpu_reduce;

/* A part of a unit: strips from axis position `begin` on, m->down positions and `lanes` elements
 * each; the last one has `last` elements. */
typedef struct {
    kf_i64 outer, begin, column, strips, result, part;
    int lanes, last, width; /* width: number of results */
} kfi_unit;

KFI_HOST kfi_unit kfi_reduce_unit(const kfi_cpu_reduce *m, kf_i64 i)
{
    kfi_unit u;
    const kf_i64 unit = i / m->parts, o = unit / m->strips,
                 column = (unit - o * m->strips) * KFI_STRIP;
    kf_i64 rows;
    u.part = i - unit * m->parts;
    u.outer = o;
    u.column = column;
    u.begin = u.part * m->length;
    rows = u.begin + m->length < m->axis ? m->length : m->axis - u.begin;
    u.width = (int)(m->inner - column < KFI_STRIP ? m->inner - column : KFI_STRIP);
    u.strips = (rows + m->down - 1) / m->down;
    u.lanes = m->down * u.width;
    u.last = rows % m->down ? (int)(rows % m->down) * u.width : u.lanes;
    u.result = o * m->inner + column;
    return u;
}

/* Broadcast of a result to all its lanes, and stores, loads and combination of partial results. */
#define KFI_CPU_REDUCE_FUNCTIONS(type, f)                                                          \
    KFI_INLINE void kfi_reduce_spread_##f(type *a, int width)                                      \
    {                                                                                              \
        const type first = a[0];                                                                   \
        if (width == 1) { /* avoids a chain of dependent copies */                                 \
            for (int j = 1; j < KFI_STRIP; ++j) a[j] = first;                                      \
        } else {                                                                                   \
            for (int j = width; j < KFI_STRIP; ++j) a[j] = a[j - width];                           \
        }                                                                                          \
    }                                                                                              \
    KFI_INLINE void kfi_reduce_store_partial_##f(const type *a, char *to, kf_i64 row,              \
                                                 const kfi_cpu_reduce *m, const kfi_unit *u)       \
    {                                                                                              \
        memcpy((type *)(void *)to + row * m->results + u->result, a,                               \
               (size_t)u->width * sizeof *a);                                                      \
    }                                                                                              \
    KFI_INLINE void kfi_reduce_load_result_##f(type *a, kf_i64 row, const kfi_cpu_reduce *m,       \
                                               const kfi_unit *u)                                  \
    {                                                                                              \
        memcpy(a, (const type *)(const void *)m->done + row * m->results + u->result,              \
               (size_t)u->width * sizeof *a);                                                      \
        kfi_reduce_spread_##f(a, u->width);                                                        \
    }                                                                                              \
    KFI_INLINE type kfi_reduce_combine_##f(int code, type a, type b)                               \
    {                                                                                              \
        return code == 0   ? a + b                                                                 \
               : code == 1 ? kfi_cpu_max_##f(a, b)                                                 \
               : code == 2 ? kfi_cpu_min_##f(a, b)                                                 \
                           : a * b;                                                                \
    }                                                                                              \
    KFI_HOST void kfi_reduce_join_partials_##f(kfi_cpu_reduce *m, int code, kf_i64 own,            \
                                               kf_i64 row)                                         \
    {                                                                                              \
        const type *const from =                                                                   \
            (const type *)(const void *)m->partial + own * m->parts * m->results;                  \
        type *const to = (type *)(void *)m->done + row * m->results;                               \
        for (kf_i64 i = 0; i < m->results; ++i) {                                                  \
            type all = 0;                                                                          \
            for (kf_i64 part = 0; part < m->parts; part += KFI_REDUCE_RUN) {                       \
                type run = from[part * m->results + i];                                            \
                for (kf_i64 k = part + 1; k < part + KFI_REDUCE_RUN && k < m->parts; ++k)          \
                    run = kfi_reduce_combine_##f(code, run, from[k * m->results + i]);             \
                all = part == 0 ? run : kfi_reduce_combine_##f(code, all, run);                    \
            }                                                                                      \
            to[i] = all;                                                                           \
        }                                                                                          \
    }
KFI_CPU_REDUCE_FUNCTIONS(float, f32)
KFI_CPU_REDUCE_FUNCTIONS(double, f64)

#define KFI_REDUCE_JOIN(word, f, type)                                                             \
    KFI_INLINE void kfi_reduce_join_##word##_##f(type *a, const kfi_cpu_reduce *m,                 \
                                                 const kfi_unit *u)                                \
    {                                                                                              \
        if (m->down == KFI_STRIP) {                                                                \
            a[0] = kfi_fold_##word##_##f(a);                                                       \
        } else {                                                                                   \
            for (int k = 1; k < m->down; ++k)                                                      \
                for (int j = 0; j < u->width; ++j)                                                 \
                    a[j] = kfi_cpu_##word##_##f(a[j], a[k * u->width + j]);                        \
        }                                                                                          \
        kfi_reduce_spread_##f(a, u->width);                                                        \
    }
KFI_REDUCE_JOIN(sum, f32, float)
KFI_REDUCE_JOIN(sum, f64, double)
KFI_REDUCE_JOIN(prod, f32, float)
KFI_REDUCE_JOIN(prod, f64, double)
KFI_REDUCE_JOIN(max, f32, float)
KFI_REDUCE_JOIN(max, f64, double)
KFI_REDUCE_JOIN(min, f32, float)
KFI_REDUCE_JOIN(min, f64, double)

/* The strips of a unit in one tensor, computed once per unit: computing them per strip took a sixth
 * of a gradient's time in the cache. */
typedef struct {
    char *first;         /* strip 0 */
    const char *most;    /* last address at which a whole strip may be read; NULL: none */
    kf_i64 step, stride; /* bytes from strip to strip, from axis position to axis position */
    int whole;           /* lanes of a strip that needs no scratch tile; -1: always needs one */
    int dense;           /* the lanes of a strip are contiguous */
    int size, width;     /* bytes per element, number of results */
} kfi_strips;

KFI_INLINE kfi_strips kfi_strips_of(const kfi_cpu_reduce *m, const kfi_unit *u, const void *tensor,
                                    int operand, int size)
{
    const kfi_pitch *const p = &m->operands.of[operand].at;
    const kf_i64 at = u->outer * p->outer + u->begin * p->row + u->column,
                 extent = m->operands.of[operand].extent;
    char *const base = (char *)(uintptr_t)tensor;
    kfi_strips s = {NULL,          NULL,    m->down * p->row * size,
                    p->row * size, -1,      m->down == 1 || p->row == m->inner,
                    size,          u->width};
    if (base) s.first = base + at * size;
    if (base && s.dense) s.whole = KFI_STRIP;
    if (base && extent == m->total && extent >= KFI_STRIP)
        s.most = base + (extent - KFI_STRIP) * size;
    return s;
}
KFI_HOST const void *kfi_strip_copy(const kfi_strips *s, void *tile, const char *from, int lanes)
{
    if (s->dense)
        return s->most && from <= s->most ? (const void *)from
                                          : kfi_tail(tile, from, lanes, s->size);
    memset(tile, 0, (size_t)(KFI_STRIP * s->size));
    for (int j = 0; j < lanes; j += s->width)
        memcpy((char *)tile + j * s->size, from + j / s->width * s->stride,
               (size_t)(s->width * s->size));
    return tile;
}
/* Returns strip i for reading: in place, or a copy if the read would cross the end or the gap
 * between rows. */
KFI_INLINE const void *kfi_reduce_strip(const kfi_strips *s, void *tile, kf_i64 i, int lanes)
{
    const char *const from = s->first + i * s->step;
    return lanes == s->whole ? (const void *)from : kfi_strip_copy(s, tile, from, lanes);
}
/* Returns where to write strip i: in place, or a tile that kfi_strip_store then copies. */
KFI_INLINE void *kfi_strip_to(const kfi_strips *s, void *tile, kf_i64 i, int lanes)
{
    return lanes == s->whole ? (void *)(s->first + i * s->step) : tile;
}
KFI_HOST void kfi_strip_store(const kfi_strips *s, const void *tile, kf_i64 i, int lanes)
{
    char *const to = s->first + i * s->step;
    const int run = s->dense ? lanes : s->width;
    for (int j = 0; j < lanes; j += run)
        memcpy(to + j / run * s->stride, (const char *)tile + j * s->size, (size_t)(run * s->size));
}

KFI_HOST void kfi_reduce_plan(kfi_cpu_reduce *m, kf_i64 outer, kf_i64 axis, kf_i64 inner)
{
    const kf_i64 width = inner < KFI_STRIP ? inner : KFI_STRIP;
    kf_i64 parts = width > 0 ? axis / (KFI_REDUCE_PART / width) : 1;
    parts = parts < 1 ? 1 : parts > KFI_REDUCE_PARTS ? KFI_REDUCE_PARTS : parts;
    m->outer = outer;
    m->axis = axis;
    m->inner = inner;
    m->results = outer * inner;
    m->total = m->results * axis;
    m->strips = (inner + KFI_STRIP - 1) / KFI_STRIP;
    m->down = width > 0 && width <= KFI_STRIP / 2 ? (int)(KFI_STRIP / width) : 1;
    m->length = ((axis + parts - 1) / parts + m->down - 1) / m->down * m->down;
    m->parts = m->length > 0 ? (axis + m->length - 1) / m->length : 1;
    if (m->parts == 1) m->length = axis;
    m->stage = KFI_CPU_REDUCE_ALL;
}
KFI_HOST size_t kfi_cpu_reduce_workspace(kf_i64 outer, kf_i64 axis, kf_i64 inner, int most, int all,
                                         int acc_size)
{
    kfi_cpu_reduce m;
    if (!kfi_fits(outer, axis, inner)) return 0;
    kfi_reduce_plan(&m, outer, axis, inner);
    return m.parts > 1
               ? kfi_workspace((size_t)m.results * ((size_t)most * (size_t)m.parts + (size_t)all) *
                               (size_t)acc_size)
               : 0;
}
typedef void (*kfi_traversal)(void *, kf_i64);
KFI_HOST void kfi_reduce_units(kfi_cpu_reduce *m, kfi_traversal traverse, int stage)
{
    const kf_i64 chunk = (kf_i64)KFI_CHUNK * KFI_TILE,
                 unit = m->length * (m->inner < KFI_STRIP ? m->inner : KFI_STRIP);
    m->stage = stage;
    m->units = m->outer * m->strips * m->parts;
    m->per_block = unit >= chunk ? 1 : unit > 0 ? chunk / unit : chunk;
    kfi_parallel((m->units + m->per_block - 1) / m->per_block, traverse, m, m->total >= KF_OMP_MIN);
}

KFI_HOST kf_result_t kfi_cpu_reduce_run(kfi_cpu_reduce *m, kf_i64 outer, kf_i64 axis, kf_i64 inner,
                                        kfi_traversal traverse, void *workspace,
                                        size_t workspace_bytes)
{
    const kf_i64 sizes[] = {outer, axis, inner};
    kf_result_t result = kfi_check_sizes(&m->name, "outer axis inner", sizes, 3);
    const kfi_levels levels = kfi_make_axis(outer, axis, inner);
    kfi_shape shape = {0, 0, 0, 0, NULL};
    size_t needed;
    int first = 0;
    if (result == KF_SUCCESS)
        result =
            kfi_check_axis(&m->name, &m->arguments, &m->strides, &levels, inner == 1, &m->operands);
    if (result != KF_SUCCESS || outer == 0 || inner == 0 || (axis == 0 && m->bwd)) return result;
    if (axis == 0 && m->refuses)
        return kfi_fail(KF_ERROR_INVALID_SIZE, &m->name, "axis",
                        "is 0, expected 1 or more: the result has no value of no elements");
    shape.rows = outer * inner;
    shape.channels = 0;
    shape.cols = axis;
    shape.parts = 0;
    result = kfi_check_operands(&m->name, &m->arguments, &shape, &levels, &m->operands);
    if (result != KF_SUCCESS || !m->operands.wanted) return result;
    needed =
        m->passes ? kfi_cpu_reduce_workspace(outer, axis, inner, m->most, m->all, m->acc_size) : 0;
    result = kfi_check_workspace(&m->name, &m->arguments, &m->operands, workspace, workspace_bytes,
                                 needed);
    if (result != KF_SUCCESS) return result;
    kfi_reduce_plan(m, outer, axis, inner);
    m->partial = (char *)workspace;
    m->done = needed ? m->partial + (size_t)m->results * (size_t)m->most * (size_t)m->parts *
                                        (size_t)m->acc_size
                     : NULL;
    for (int pass = 0; needed && pass < m->passes; ++pass) {
        kfi_reduce_units(m, traverse, pass);
        if (m->join) m->join(m);
        for (int k = 0; !m->join && k < m->counts[pass]; ++k) {
            if (m->acc_size == 8)
                kfi_reduce_join_partials_f64(m, m->codes[first + k], k, first + k);
            else
                kfi_reduce_join_partials_f32(m, m->codes[first + k], k, first + k);
        }
        first += m->counts[pass];
    }
    if (needed && !m->bwd) { /* only the results remain, one per unit */
        m->parts = 1;
        m->length = axis;
    }
    kfi_reduce_units(m, traverse, needed ? m->passes : KFI_CPU_REDUCE_ALL);
    return KF_SUCCESS;
}

KFI_C_END

#endif
