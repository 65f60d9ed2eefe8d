/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/check.h: the argument checks of every launcher: sizes, strides, pointers, overlap,
 * workspace. All of them run before anything is written. */
#ifndef KF_CORE_CHECK_H
#define KF_CORE_CHECK_H

#include "kf/core/host.h"

#include <stddef.h>
#include <stdint.h>

#include "kf/core/operand.h"
#include "kf/core/result.h"

/* Alignment of a workspace, in bytes; its size is a multiple of it. Each buffer that a schedule
 * places in it is aligned for any use, and workspaces can follow each other. */
enum { KFI_WORKSPACE_ALIGNED = 256 };
KFI_HOST size_t kfi_workspace(size_t bytes)
{
    return (bytes + KFI_WORKSPACE_ALIGNED - 1) / KFI_WORKSPACE_ALIGNED * KFI_WORKSPACE_ALIGNED;
}

/* Returns whether a workspace query has sizes that a call would accept. */
KFI_HOST int kfi_fits(kf_i64 a, kf_i64 b, kf_i64 c)
{
    return a >= 0 && b >= 0 && c >= 0 &&
           (double)a * (double)b * (double)c <= 288230376151711744.0; /* 2^58 */
}

KFI_HOST int kfi_all_fit(const kf_i64 *sizes, int count)
{
    double room = 288230376151711744.0;
    for (int i = 0; i < count; ++i) {
        if (sizes[i] < 0) return 0;
        if (sizes[i] > 1) room /= (double)sizes[i];
    }
    return room >= 1.0;
}

/* Returns whether the channels divide evenly into the groups. */
KFI_HOST int kfi_divides(kf_i64 groups, kf_i64 channels)
{
    return groups > 0 ? channels % groups == 0 : channels == 0;
}

/* Clears the description of a call. A function of its own, since an operand may be called memset.
 */
KFI_ONCE void kfi_zero(void *all, size_t bytes) { memset(all, 0, bytes); }

/* Refuses negative sizes and tensors over 2^58 elements. words: names of the `count` sizes. */
KFI_ONCE kf_result_t kfi_check_sizes(const kfi_name *name, const char *words, const kf_i64 *sizes,
                                     int count)
{
    kf_i64 room = (kf_i64)1 << 58;
    for (int i = 0; i < count; ++i)
        if (sizes[i] < 0)
            return kfi_fail(KF_ERROR_INVALID_SIZE, name, kfi_word(words, i),
                            "is %lld, expected 0 or more", (long long)sizes[i]);
    for (int i = 0; i < count; ++i) {
        if (sizes[i] > room)
            return kfi_fail(KF_ERROR_INVALID_SIZE, name, kfi_word(words, i),
                            "is %lld, expected a tensor of at most 2^58 elements in all",
                            (long long)sizes[i]);
        if (sizes[i] > 1) room /= sizes[i];
    }
    return KF_SUCCESS;
}

/* Layouts of ops over rows: rows x cols; planes of outer x channels x inner; batch x heads x
 * queries x keys; groups of channels of outer x length x channels x inner, with `length` segments
 * per row; channels of outer x channels x inner, with `outer` segments per row. */
enum {
    KFI_LAYOUT_ROWS,
    KFI_LAYOUT_PLANES,
    KFI_LAYOUT_HEADS,
    KFI_LAYOUT_GROUPS,
    KFI_LAYOUT_CHANNELS
};

/* Checks the sizes of such a call and computes its shape. In `s`, a head or a group counts as a
 * channel, and rows are the queries of all batches. segments: sizes of the segmented layouts, in
 * the order of GROUPS. */
KFI_ONCE kf_result_t kfi_check_layout(const kfi_name *name, int layout, const kf_i64 *sizes,
                                      kfi_shape *s, kf_i64 *segments)
{
    const char *words = layout == KFI_LAYOUT_ROWS     ? "rows cols"
                        : layout == KFI_LAYOUT_HEADS  ? "batch heads queries keys"
                        : layout == KFI_LAYOUT_GROUPS ? "outer length groups channels inner"
                                                      : "outer channels inner";
    const int count = layout == KFI_LAYOUT_CHANNELS ? 3 : layout + 2,
              grouped = layout == KFI_LAYOUT_GROUPS;
    kf_i64 extents[5];
    for (int i = 0; i < count; ++i) extents[i] = sizes[i];
    if (grouped && sizes[2] > 0 && sizes[3] > 0)
        extents[2] = 1; /* channels counts those of all groups */
    const kf_result_t result = kfi_check_sizes(name, words, extents, count);
    if (result != KF_SUCCESS) return result;
    if (grouped && !kfi_divides(sizes[2], sizes[3]))
        return kfi_fail(KF_ERROR_INVALID_SIZE, name, "channels",
                        "is %lld, expected a multiple of groups, %lld", (long long)sizes[3],
                        (long long)sizes[2]);
    s->rows = layout == KFI_LAYOUT_HEADS      ? sizes[0] * sizes[2]
              : layout == KFI_LAYOUT_CHANNELS ? 1
                                              : sizes[0];
    s->channels = layout == KFI_LAYOUT_ROWS ? 0 : sizes[grouped ? 2 : 1];
    s->cols = sizes[count - 1];
    s->parts = 0;
    if (layout < KFI_LAYOUT_GROUPS) return KF_SUCCESS;
    s->parts = !grouped ? 1 : sizes[2] > 0 ? sizes[3] / sizes[2] : 0;
    segments[0] = s->rows;
    segments[1] = sizes[grouped];
    segments[2] = s->channels;
    segments[3] = s->parts;
    segments[4] = s->cols;
    s->cols *= segments[1] * segments[3];
    return KF_SUCCESS;
}

/* Returns the levels of a layout. sizes: [outer, length, groups, channels, inner], or those of
 * another layout as for kfi_check_layout. */
KFI_ONCE kfi_levels kfi_make_levels(int layout, const kf_i64 *sizes)
{
    kfi_levels l = {2,
                    sizes[layout == KFI_LAYOUT_ROWS ? 1 : 2],
                    {sizes[layout != KFI_LAYOUT_ROWS], sizes[0], 0},
                    ". _outer"};
    if (layout == KFI_LAYOUT_ROWS) l.count = 1;
    if (layout != KFI_LAYOUT_HEADS && layout != KFI_LAYOUT_GROUPS) return l;
    l.count = 3;
    l.size[0] = sizes[2];
    l.size[1] = sizes[1];
    l.size[2] = sizes[0];
    l.line = layout == KFI_LAYOUT_HEADS ? sizes[3]
             : sizes[2] > 0             ? sizes[3] / sizes[2] * sizes[4]
                                        : 0; /* the channels of one group */
    l.words = layout == KFI_LAYOUT_HEADS ? ". _head _batch" : ". _length _outer";
    return l;
}

/* kfi_fail for the stride of tensor i at level k. */
#define KFI_FAIL_STRIDE(result, name, arguments, levels, i, k, ...)                                \
    do {                                                                                           \
        char kfi_text[96];                                                                         \
        const char *const kfi_tensor = kfi_word((arguments)->words, i);                            \
        const char *const kfi_level = kfi_word((levels)->words, k);                                \
        snprintf(kfi_text, sizeof kfi_text, "strides->%.*s%.*s", (int)strcspn(kfi_tensor, " "),    \
                 kfi_tensor, *kfi_level == '.' ? 0 : (int)strcspn(kfi_level, " "), kfi_level);     \
        return kfi_fail(result, name, kfi_text, __VA_ARGS__);                                      \
    } while (0)

/* Reads the row strides of tensor i. A stride of 0 means dense: the extent of the level below.
 * Refuses negative strides and tensors over 2^58 elements. */
KFI_ONCE kf_result_t kfi_check_stride(const kfi_name *name, const kfi_arguments *arguments,
                                      const kfi_strides *strides, const kfi_levels *l,
                                      kfi_operands *all, int i)
{
    const kf_i64 most = (kf_i64)1 << 58;
    kfi_operand *o = &all->of[i];
    kf_i64 dense = l->line;
    o->extent = l->line;
    for (int k = 0; k < l->count; ++k) {
        const int64_t given =
            strides->given ? ((const int64_t *)strides->given)[strides->fields[i] - '0' + k] : 0;
        if (given < 0 && given != KF_BROADCAST)
            KFI_FAIL_STRIDE(KF_ERROR_INVALID_SIZE, name, arguments, l, i, k,
                            "is %lld, expected a distance in elements, 0 (dense) or KF_BROADCAST",
                            (long long)given);
        o->apart[k] = given == 0 ? dense : given == KF_BROADCAST ? 0 : given;
        if (l->size[k] > 1 && o->apart[k] > (most - o->extent) / (l->size[k] - 1))
            KFI_FAIL_STRIDE(
                KF_ERROR_INVALID_SIZE, name, arguments, l, i, k,
                "is %lld, expected a tensor of at most 2^58 elements from first to last",
                (long long)given);
        if (l->size[k] > 1) o->extent += o->apart[k] * (l->size[k] - 1);
        if (o->apart[k] > 0 && l->size[k] > 1)
            dense = o->apart[k] * l->size[k];
        else if (o->apart[k] > dense && l->size[k] <= 1)
            dense = o->apart[k] < most ? o->apart[k] : most;
        if (l->size[k] > 1) all->steps |= o->apart[k];
    }
    return KF_SUCCESS;
}
KFI_ONCE kf_result_t kfi_check_strides(const kfi_name *name, const kfi_arguments *arguments,
                                       const kfi_strides *strides, const kfi_levels *l,
                                       kfi_operands *all)
{
    memset(all, 0, sizeof *all);
    for (int i = 0; strides->fields[i]; ++i) {
        const kf_result_t result = strides->fields[i] == ' '
                                       ? KF_SUCCESS
                                       : kfi_check_stride(name, arguments, strides, l, all, i);
        if (result != KF_SUCCESS) return result;
    }
    return KF_SUCCESS;
}

/* Returns the levels of [outer, axis, inner], reduced over the axis. If inner is 1 the axis is
 * contiguous: its stride can only be 1. */
KFI_ONCE kfi_levels kfi_make_axis(kf_i64 outer, kf_i64 axis, kf_i64 inner)
{
    const kfi_levels l = {
        2, inner == 1 ? axis : inner, {inner == 1 ? 1 : axis, outer, 0}, ". _outer"};
    return l;
}
KFI_ONCE kf_result_t kfi_check_axis(const kfi_name *name, const kfi_arguments *arguments,
                                    const kfi_strides *strides, const kfi_levels *l, int flat,
                                    kfi_operands *all)
{
    const kf_result_t result = kfi_check_strides(name, arguments, strides, l, all);
    if (result != KF_SUCCESS) return result;
    for (int i = 0; strides->fields[i]; ++i) {
        if (strides->fields[i] == ' ') continue;
        kfi_operand *o = &all->of[i];
        const int64_t given =
            strides->given ? ((const int64_t *)strides->given)[strides->fields[i] - '0'] : 0;
        if (flat && l->line > 1 && given != 0 && given != 1)
            KFI_FAIL_STRIDE(KF_ERROR_UNSUPPORTED, name, arguments, l, i, 0,
                            "is %lld, expected 0 or 1 where inner is 1: the elements of an axis "
                            "lie side by side",
                            (long long)given);
        o->at.row = flat ? 1 : o->apart[0];
        o->at.outer = o->apart[1];
    }
    return KF_SUCCESS;
}

/* Returns the strides as kernels read them. */
KFI_ONCE kfi_pitch kfi_make_pitch(int layout, const kfi_levels *l, const kf_i64 *apart)
{
    kfi_pitch p = {apart[0], 0, 0, 0};
    if (layout == KFI_LAYOUT_PLANES) p.outer = apart[1] - l->size[0] * apart[0];
    if (layout == KFI_LAYOUT_HEADS) {
        p.head = apart[1] - l->size[0] * apart[0];
        p.outer = apart[2] - l->size[1] * apart[1];
    }
    if (layout == KFI_LAYOUT_GROUPS) p.outer = apart[2] - l->size[0] * apart[0];
    if (layout >= KFI_LAYOUT_GROUPS) p.gap = l->size[1] > 1 ? apart[1] - l->line : 0;
    return p;
}

/* Returns the first level, by ascending stride, whose rows overlap, or -1 if none do. need: the
 * stride it would require. */
KFI_ONCE int kfi_overlapping_level(const kfi_operand *o, const kfi_levels *l, kf_i64 *need)
{
    int seen = 0;
    *need = l->line;
    for (int turn = 0; turn < l->count; ++turn) {
        int least = -1;
        for (int k = 0; k < l->count; ++k)
            if (!(seen >> k & 1) && l->size[k] > 1 && (least < 0 || o->apart[k] < o->apart[least]))
                least = k;
        if (least < 0) return -1;
        if (o->apart[least] < *need) return least;
        seen |= 1 << least;
        *need += o->apart[least] * (l->size[least] - 1);
    }
    return -1;
}

/* Returns whether two tensors are disjoint column ranges of one larger matrix: all their rows begin
 * at the same offset in its rows. */
KFI_ONCE int kfi_disjoint_columns(const kfi_operand *a, const kfi_operand *b, const kfi_levels *l)
{
    const uintptr_t at = (uintptr_t)a->ptr, other = (uintptr_t)b->ptr,
                    width = (uintptr_t)l->line * (uintptr_t)a->size;
    kf_i64 row = 0;
    if (a->size != b->size || !a->extent || !b->extent) return 0;
    for (int k = 0; k < l->count; ++k)
        if (l->size[k] > 1) row = row == 0 || a->apart[k] < row ? a->apart[k] : row;
    for (int k = 0; k < l->count && row > 0; ++k)
        if (l->size[k] > 1 && (a->apart[k] % row || b->apart[k] % row)) row = 0;
    if (row == 0) return 0;
    const uintptr_t pitch = (uintptr_t)row * (uintptr_t)a->size,
                    between = (at > other ? at - other : other - at) % pitch;
    return between >= width && pitch - between >= width;
}

/* Here and below, conditions have no branches: it halves the host compiler's time for them. */
KFI_ONCE int kfi_touches(const kfi_operand *o, const void *begin,
                         uintptr_t bytes) /* tensors of 0 bytes overlap nothing */
{
    const uintptr_t at = (uintptr_t)o->ptr, other = (uintptr_t)begin;
    return (at < other + bytes) & (other < at + o->bytes) & (bytes > 0) & (o->bytes > 0);
}

/* Returns whether an output may be the same pointer as tensor j. In place: the same thread reads
 * every element before it writes it. Otherwise the output equals tensor j or holds its next value.
 */
KFI_ONCE int kfi_may_share(const kfi_operand *out, const kfi_operand *other, int j)
{
    const int same = (out->size == other->size) & (out->elements == other->elements);
    const int aliased = (out->alias == j + 1) | ((out->alias != 0) & (out->alias == other->alias));
    const int in_place = ((other->flags & KFI_OUT) == 0) & (out->overlap == other->overlap) &
                         (out->overlap != KFI_NO_OVERLAP);
    return same & (aliased | in_place);
}

/* Returns whether two tensors have the same strides, which in-place calls require. */
KFI_ONCE int kfi_same_strides(const kfi_operand *a, const kfi_operand *b, const kfi_levels *l)
{
    int same = 1;
    for (int k = 0; l && k < l->count; ++k)
        same &= (a->apart[k] == b->apart[k]) | (l->size[k] <= 1);
    return same;
}

/* Returns whether tensor i is an output that overlaps tensor j in a way that no call allows. */
KFI_ONCE int kfi_clashes(const kfi_operands *all, const kfi_levels *l, int i, int j)
{
    const kfi_operand *out = &all->of[i], *other = &all->of[j];
    if ((out->flags & KFI_OUT) == 0 || !kfi_touches(out, other->ptr, other->bytes)) return 0;
    return !(out->ptr == other->ptr
                 ? kfi_may_share(out, other, j) && kfi_same_strides(out, other, l)
                 : l && kfi_disjoint_columns(out, other, l));
}

/* Returns the levels that both tensors share, or NULL. */
KFI_ONCE const kfi_levels *kfi_common_levels(const kfi_levels *levels, int each, int i, int j)
{
    if (!levels || !each) return levels;
    const kfi_levels *a = levels + i, *b = levels + j;
    int same = a->count == b->count && a->line == b->line;
    for (int k = 0; k < a->count; ++k) same &= a->size[k] == b->size[k];
    return same ? a : NULL;
}

/* Fills the table of a call's tensors, and refuses invalid pointers and overlaps.
 * levels: NULL without strides. Otherwise the levels of the strided tensors, whose strides have
 * been checked; or one per tensor if `s` gives the elements of each. A call without a wanted output
 * needs no further checks. */
KFI_ONCE kf_result_t kfi_check_operands(const kfi_name *name, const kfi_arguments *arguments,
                                        const kfi_shape *s, const kfi_levels *levels,
                                        kfi_operands *all)
{
    const char *code = arguments->codes;
    all->bits = 0;
    all->count = all->wanted = 0;
    for (int i = 0; *code; ++i, code += KFI_CODE_LENGTH) {
        kfi_operand *o = &all->of[i];
        const char extent = code[KFI_CODE_EXTENT];
        const kf_i64 width = s->channels > 0 ? s->channels : 1, n = s->rows * s->cols * width;
        const kf_i64 elements = s->elements                     ? s->elements[i]
                                : extent == KFI_EXTENT_ELEMENTS ? n
                                : extent == KFI_EXTENT_HALVES   ? 2 * n
                                : extent == KFI_EXTENT_ONE      ? 1
                                : extent == KFI_EXTENT_ROWS     ? s->rows
                                : extent == KFI_EXTENT_PLANES   ? s->rows * width
                                : extent == KFI_EXTENT_SHARED   ? s->rows * s->cols
                                : extent == KFI_EXTENT_GROUPS   ? s->channels * s->parts
                                : s->channels > 0               ? width
                                                                : s->cols;
        const int each = s->elements != NULL;
        const kfi_levels *own = levels && each ? levels + i : levels;
        o->size = code[KFI_CODE_SIZE] - '0';
        o->elements = extent;
        o->overlap = code[KFI_CODE_OVERLAP];
        o->flags = code[KFI_CODE_FLAGS] - '0';
        o->ptr = o->flags & KFI_UNREAD ? NULL : arguments->tensors[i];
        o->alias = code[KFI_CODE_ALIAS] - '0';
        o->bytes = o->ptr ? (uintptr_t)(levels && extent == KFI_EXTENT_ELEMENTS && n ? o->extent
                                                                                     : elements) *
                                (uintptr_t)o->size
                          : 0;
        all->count = i + 1;
        all->wanted += ((o->flags & KFI_OUT) != 0) & (o->ptr != NULL);
        all->bits |= o->flags & KFI_VECTORS ? (uintptr_t)o->ptr : 0;
        if (!o->ptr && !(o->flags & KFI_NULLABLE) && elements > 0)
            return kfi_fail(KF_ERROR_NULL_POINTER, name, kfi_word(arguments->words, i),
                            "is NULL, expected a pointer to %lld element%s", (long long)elements,
                            elements == 1 ? "" : "s");
        if ((uintptr_t)arguments->tensors[i] & (uintptr_t)(o->size - 1))
            return kfi_fail(KF_ERROR_MISALIGNED, name, kfi_word(arguments->words, i),
                            "is %p, expected a pointer aligned to its %d-byte elements",
                            arguments->tensors[i], o->size);
        kf_i64 need;
        const int crowded =
            own && (extent == KFI_EXTENT_ELEMENTS || each) && o->flags & KFI_OUT && o->bytes
                ? kfi_overlapping_level(o, own, &need)
                : -1;
        if (crowded >= 0)
            KFI_FAIL_STRIDE(KF_ERROR_OVERLAP, name, arguments, own, i, crowded,
                            "puts an output's rows %lld elements apart, expected %lld or more",
                            (long long)o->apart[crowded], (long long)need);
        for (int j = 0; j < i; ++j) {
            const int out = o->flags & KFI_OUT ? i : j, other = i + j - out;
            const kfi_levels *both = kfi_common_levels(levels, each, out, other);
            if (!kfi_clashes(all, both, out, other)) continue;
            return kfi_fail(KF_ERROR_OVERLAP, name, kfi_word(arguments->words, out),
                            "at %p overlaps %.*s at %p, expected %s", all->of[out].ptr,
                            (int)strcspn(kfi_word(arguments->words, other), " "),
                            kfi_word(arguments->words, other), all->of[other].ptr,
                            (all->of[other].flags & KFI_OUT) ? "outputs that are apart"
                            : !kfi_may_share(&all->of[out], &all->of[other], other) ? "memory apart"
                            : kfi_same_strides(&all->of[out], &all->of[other], both)
                                ? "the same pointer (in place) or memory apart"
                                : "the same strides in place, or memory apart");
        }
    }
    return KF_SUCCESS;
}

/* Checks a gradient computed from the result `given`: some scalars of the activation must not be
 * negative, because they map the other side of 0 to this one. words: their names, '.' for each
 * unrestricted scalar; NULL: all are unrestricted. values: floats, or doubles if size is 8. */
KFI_ONCE kf_result_t kfi_check_rising(const kfi_name *name, const char *given, const char *words,
                                      const void *values, size_t size)
{
    for (int i = 0; words; ++i) {
        const char *const word = kfi_word(words, i);
        const double value =
            size == 8 ? ((const double *)values)[i] : (double)((const float *)values)[i];
        if (*word != '.' && value < 0.0)
            return kfi_fail(KF_ERROR_INVALID_VALUE, name, word,
                            "is %g, expected 0 or more where `%s` is given: without it the "
                            "gradient is that of the inputs",
                            value, given);
        if (!strchr(word, ' ')) break;
    }
    return KF_SUCCESS;
}

/* A bound of a call's scalars: scalar `at` is at least ('>') or at most ('<') the number `limit`,
 * or, if `other` is not negative, that scalar. */
typedef struct {
    int at;
    char sign;
    int other;
    double limit;
} kfi_bound;

/* Checks the scalars of a call; NaN fails. words: their names; size: bytes of the launcher's type,
 * to which a limit is rounded as the value was. */
KFI_ONCE kf_result_t kfi_check_scalars(const kfi_name *name, const char *words,
                                       const kfi_bound *bounds, int count, const double *values,
                                       size_t size)
{
    for (int i = 0; i < count; ++i) {
        const kfi_bound *const b = bounds + i;
        const char *const other = b->other < 0 ? "" : kfi_word(words, b->other);
        const double value = values[b->at], own = size == 4 ? (double)(float)b->limit : b->limit,
                     limit = b->other < 0 ? own : values[b->other];
        if (b->sign == '>' ? value >= limit : value <= limit) continue;
        return kfi_fail(KF_ERROR_INVALID_VALUE, name, kfi_word(words, b->at),
                        "is %g, expected %.*s%s%g or %s", value, (int)strcspn(other, " "), other,
                        *other ? " = " : "", limit, b->sign == '>' ? "more" : "less");
    }
    return KF_SUCCESS;
}

/* Checks the probability of a dropout; NaN fails. */
KFI_ONCE kf_result_t kfi_check_probability(const kfi_name *name, double p)
{
    if (p >= 0.0 && p <= 1.0) return KF_SUCCESS;
    return kfi_fail(KF_ERROR_INVALID_VALUE, name, "p", "is %g, expected 0 <= p <= 1", p);
}

/* Checks the workspace. expected: the result of <function>_workspace_bytes, whichever outputs are
 * wanted. Only this many bytes must not overlap the tensors. */
KFI_ONCE kf_result_t kfi_check_workspace(const kfi_name *name, const kfi_arguments *arguments,
                                         const kfi_operands *all, const void *workspace, size_t got,
                                         size_t expected)
{
    if (expected == 0) return KF_SUCCESS;
    if (!workspace || got < expected) {
        char launcher[120];
        kfi_write_name(launcher, sizeof launcher, name);
        return kfi_fail(
            KF_ERROR_WORKSPACE, name, "workspace",
            "is %p of %llu bytes, expected %llu bytes (%s_workspace_bytes), aligned to %d",
            workspace, (unsigned long long)got, (unsigned long long)expected, launcher,
            KFI_WORKSPACE_ALIGNED);
    }
    if ((uintptr_t)workspace % KFI_WORKSPACE_ALIGNED != 0)
        return kfi_fail(KF_ERROR_MISALIGNED, name, "workspace",
                        "is %p, expected memory aligned to %d bytes", workspace,
                        KFI_WORKSPACE_ALIGNED);
    for (int i = 0; i < all->count; ++i)
        if (kfi_touches(&all->of[i], workspace, expected))
            return kfi_fail(
                KF_ERROR_OVERLAP, name, "workspace",
                "at %p overlaps %.*s at %p, expected %llu bytes apart from every tensor", workspace,
                (int)strcspn(kfi_word(arguments->words, i), " "), kfi_word(arguments->words, i),
                all->of[i].ptr, (unsigned long long)expected);
    return KF_SUCCESS;
}

#endif
