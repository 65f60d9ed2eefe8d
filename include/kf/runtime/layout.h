/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/layout.h: sizes of a call, shapes of its tensors and fields of its strides struct, for
 * tensors of any number of dimensions. The C evaluator of kfgen's rules
 * (gen/kfgen/model/shapes.py), for functions on tensors and for PyTorch's; kf/core/extent.h
 * evaluates its expressions. frontends/python/kernel_fusion/_sizes.py is the one in Python. */
#ifndef KF_RUNTIME_LAYOUT_H
#define KF_RUNTIME_LAYOUT_H

#include <stdint.h>
#include <string.h>

#include "kf/core/extent.h"

#define KFI_LAYOUT_RARE __attribute__((unused, noinline))
#define KFI_LAYOUT_DIMS 80 /* dimensions of all sizes together */

/* An extent: factor * size + addend, or, if size < 0, the expression at `code` of the rules. */
typedef struct {
    int32_t size, factor, addend, code;
} kfi_layout_extent;
typedef struct {
    int32_t extents; /* slowest first */
    /* Number of its fields in the strides struct, one for each of the first extents; the first
     * field, which is that of the innermost of these extents. */
    int32_t levels, field;
    kfi_layout_extent extent[KFI_LAYOUT_EXTENTS];
} kfi_layout_tensor;

/* Number of dimensions of a size, if it depends on the call. */
enum {
    KFI_LAYOUT_BEFORE_AXIS = -1,
    KFI_LAYOUT_REST = -2,    /* the dimensions that a tensor's other extents leave */
    KFI_LAYOUT_ARGUMENT = -3 /* given by the call; one dimension, which no other size has */
};
/* Whether a tensor's innermost level must be contiguous too. ALONE: if no dimension follows. */
enum { KFI_LAYOUT_NEVER, KFI_LAYOUT_ALONE, KFI_LAYOUT_ALWAYS };
typedef struct {
    int32_t sizes;
    int32_t count[KFI_LAYOUT_SIZES];   /* number of dimensions */
    int32_t divides[KFI_LAYOUT_SIZES]; /* index of a size that it must divide, -1: none */
    int32_t least;                     /* minimum dimensions of the first tensor, by its axis */
    int32_t has_axis;                  /* a size has the dimensions in front of the axis */
    int32_t first_says;                /* which of several tensors with a size gives its dimensions:
                                          the first, else the last */
    int32_t joined;                    /* KFI_LAYOUT_NEVER, _ALONE or _ALWAYS */
    const int32_t *code;               /* expressions of the extents */
    const int32_t *defaults;           /* values that replace integers of 0; NULL: none */
    const int32_t *beside; /* per size: index of the size that its 0 stands for in a shape struct,
                              -1: none; NULL: none at all */
} kfi_layout_rules;

typedef struct {
    int64_t dim[KFI_LAYOUT_DIMS]; /* dimensions of all sizes; arguments come last */
    int64_t n[KFI_LAYOUT_VALUES]; /* sizes, -1: above KFI_LAYOUT_MOST; kfi_layout_integers adds the
                                     rest */
    int32_t begin[KFI_LAYOUT_SIZES], end[KFI_LAYOUT_SIZES]; /* range of each size in `dim` */
    int32_t dims;                                           /* without those of arguments */
    int32_t axis;                                           /* counted from the front */
} kfi_layout;

/* Why sizes do not follow from the tensors. */
enum {
    KFI_LAYOUT_DONE,
    KFI_LAYOUT_RANK,     /* expected `wanted` dimensions, or more if `more` is set */
    KFI_LAYOUT_AXIS,     /* has no such axis */
    KFI_LAYOUT_MULTIPLE, /* dimension `dim` is no multiple of `wanted` */
    KFI_LAYOUT_SMALL,    /* dimension `dim` is less than `wanted` */
    KFI_LAYOUT_MISSING,  /* no tensor has size `wanted` */
    KFI_LAYOUT_ROOM      /* too many dimensions */
};
typedef struct {
    int32_t why, tensor; /* tensor: index among those that determine the sizes */
    int32_t dim, wanted, more;
} kfi_layout_error;

/* ---- sizes */

static inline int kfi_layout_fail(kfi_layout_error *e, int why, int tensor, int dim, int wanted,
                                  int more)
{
    e->why = why, e->tensor = tensor, e->dim = dim, e->wanted = wanted, e->more = more;
    return 0;
}
/* Computes the number of dimensions of each size: those of the rules, and the rest of a tensor for
 * at most one size that no earlier tensor has. */
static inline int kfi_layout_counts(const kfi_layout_rules *r, int tensors,
                                    const kfi_layout_tensor *const *t, const int *ranks, int axis,
                                    int *count, kfi_layout_error *e)
{
    for (int s = 0; s < r->sizes; ++s)
        count[s] = r->count[s] >= 0                        ? r->count[s]
                   : r->count[s] == KFI_LAYOUT_BEFORE_AXIS ? axis
                   : r->count[s] == KFI_LAYOUT_REST        ? -1
                                                           : 1;
    for (int i = 0; i < tensors; ++i) {
        int known = 0, unknown = -1;
        if (ranks[i] < 0) continue;
        for (int k = 0; k < t[i]->extents; ++k) {
            const int s = t[i]->extent[k].size;
            if (s >= 0 && count[s] < 0)
                unknown = s;
            else
                known += s < 0 ? 1 : count[s];
        }
        if (ranks[i] < known || (ranks[i] > known && unknown < 0))
            return kfi_layout_fail(e, KFI_LAYOUT_RANK, i, 0, known, unknown >= 0);
        if (unknown >= 0) count[unknown] = ranks[i] - known;
    }
    return 1;
}
/* Finds the dimensions of each size that tensor i has and no other one gave. */
static inline int kfi_layout_read(int i, const kfi_layout_tensor *t, const int64_t *shape,
                                  const int *count, const int64_t **of, int64_t *solved,
                                  kfi_layout_error *e)
{
    int at = 0;
    for (int k = 0; k < t->extents; ++k) {
        const kfi_layout_extent x = t->extent[k];
        if (x.size >= 0 && !of[x.size]) {
            of[x.size] = shape + at;
            if (x.factor != 1 || x.addend) {
                const int64_t n = shape[at] - x.addend;
                if (x.addend > 0 && n < 0)
                    return kfi_layout_fail(e, KFI_LAYOUT_SMALL, i, at, x.addend, 0);
                if (n % x.factor)
                    return kfi_layout_fail(e, KFI_LAYOUT_MULTIPLE, i, at, x.factor, 0);
                solved[x.size] = n / x.factor;
                of[x.size] = &solved[x.size];
            }
        }
        at += x.size < 0 ? 1 : count[x.size];
    }
    return 1;
}
/* Copies dimensions, mostly one. */
static inline void kfi_layout_copy(int64_t *to, const int64_t *from, int count)
{
    if (count == 1)
        *to = *from;
    else if (count)
        memcpy(to, from, (size_t)count * sizeof *to);
}
static inline int kfi_layout_place(kfi_layout *l, int s, const int64_t *from, int count, int *at)
{
    if (count > KFI_LAYOUT_DIMS - *at) return 0;
    kfi_layout_copy(l->dim + *at, from, count);
    l->begin[s] = *at;
    l->end[s] = *at += count;
    return 1;
}
/* Computes the sizes. `t`, `shapes`, `ranks`: tensors that determine them, in the order of the
 * rules; a rank of -1 stands for a tensor that may be absent and is: sizes that no other tensor has
 * are 0 then. `arguments`: sizes that the call gives, in order. Returns false and describes the
 * error if they do not follow. */
static inline int kfi_layout_find(const kfi_layout_rules *r, int tensors,
                                  const kfi_layout_tensor *const *t, const int64_t *const *shapes,
                                  const int *ranks, int64_t axis, const int64_t *arguments,
                                  kfi_layout *l, kfi_layout_error *e)
{
    const int64_t *of[KFI_LAYOUT_SIZES] = {0};
    int64_t solved[KFI_LAYOUT_SIZES];
    int count[KFI_LAYOUT_SIZES], at = 0, absent = 0;
    static const int64_t none[KFI_LAYOUT_DIMS] = {0};
    const int rank = tensors ? ranks[0] : 0;
    if (rank < r->least) return kfi_layout_fail(e, KFI_LAYOUT_RANK, 0, 0, r->least, 1);
    if (r->has_axis && (axis < -rank || axis >= rank))
        return kfi_layout_fail(e, KFI_LAYOUT_AXIS, 0, 0, 0, 0);
    l->axis = (int32_t)(axis < 0 ? axis + rank : axis);
    if (!kfi_layout_counts(r, tensors, t, ranks, l->axis, count, e)) return 0;
    for (int i = 0; i < tensors; ++i) {
        const int k = r->first_says ? i : tensors - 1 - i;
        if (ranks[k] >= 0 && !kfi_layout_read(k, t[k], shapes[k], count, of, solved, e)) return 0;
        absent |= ranks[k] < 0;
    }
    for (int s = 0; s < r->sizes; ++s) {
        if (r->count[s] == KFI_LAYOUT_ARGUMENT) continue;
        if (!of[s] && count[s] && !absent)
            return kfi_layout_fail(e, KFI_LAYOUT_MISSING, 0, 0, s, 0);
        if (!of[s]) of[s] = none;
        if (!kfi_layout_place(l, s, of[s], count[s], &at))
            return kfi_layout_fail(e, KFI_LAYOUT_ROOM, 0, 0, KFI_LAYOUT_DIMS, 0);
        l->n[s] = kfi_layout_product(l->dim, l->begin[s], l->end[s]);
    }
    l->dims = at;
    for (int s = 0; s < r->sizes; ++s) {
        if (r->count[s] != KFI_LAYOUT_ARGUMENT) continue; /* the others are placed */
        l->n[s] = *arguments;
        if (!kfi_layout_place(l, s, arguments++, 1, &at))
            return kfi_layout_fail(e, KFI_LAYOUT_ROOM, 0, 0, KFI_LAYOUT_DIMS, 0);
    }
    return 1;
}
/* Adds the integers to the values of a call. */
static inline void kfi_layout_integers(const kfi_layout_rules *r, kfi_layout *l,
                                       const int64_t *integers, int count)
{
    for (int i = 0; i < count; ++i)
        l->n[r->sizes + i] = integers[i] || !r->defaults ? integers[i] : r->defaults[i];
}
/* Returns the index of a size that the call gives and that does not divide its other size; -1: none
 * such. */
static inline int kfi_layout_divisor(const kfi_layout_rules *r, const kfi_layout *l)
{
    for (int s = 0; s < r->sizes; ++s)
        if (r->divides[s] >= 0 && (l->n[s] < 1 || l->n[r->divides[s]] % l->n[s])) return s;
    return -1;
}
/* Returns the index of a size of 0 that a launcher would read as another number; -1: none such. */
static inline int kfi_layout_zero(const kfi_layout_rules *r, const kfi_layout *l)
{
    for (int s = 0; r->beside && s < r->sizes; ++s)
        if (r->beside[s] >= 0 && !l->n[s] && l->n[r->beside[s]]) return s;
    return -1;
}

/* ---- shapes */

/* Returns whether an extent is a size itself, whose dimensions the tensor then has. */
static inline int kfi_layout_is_size(const kfi_layout_extent *x)
{
    return x->size >= 0 && x->factor == 1 && !x->addend;
}
/* Evaluates an extent. Returns false if it is negative, is no int64_t, or divides by 0. Rare: kept
 * out of the loops over extents. */
KFI_LAYOUT_RARE static int kfi_layout_value(const kfi_layout_rules *r, const kfi_layout *l,
                                            const kfi_layout_extent *x, int64_t *out)
{
    const int is_number = x->size < 0 ? kfi_layout_evaluate(r->code + x->code, l->n, out)
                                      : l->n[x->size] >= 0 &&
                                            kfi_layout_multiply(l->n[x->size], x->factor, out) &&
                                            kfi_layout_add(*out, x->addend, out);
    return is_number && *out >= 0;
}
/* Writes the shape of a tensor, of up to KFI_LAYOUT_DIMS dimensions. Returns their number; -1 - k:
 * extent k has no value. */
static inline int kfi_layout_shape(const kfi_layout_rules *r, const kfi_layout *l,
                                   const kfi_layout_tensor *t, int64_t *shape)
{
    int n = 0;
    for (int k = 0; k < t->extents; ++k) {
        const kfi_layout_extent *const x = &t->extent[k];
        const int count = kfi_layout_is_size(x) ? l->end[x->size] - l->begin[x->size] : 1;
        if (n + count > KFI_LAYOUT_DIMS) return -1 - k;
        if (kfi_layout_is_size(x))
            kfi_layout_copy(shape + n, l->dim + l->begin[x->size], count);
        else if (!kfi_layout_value(r, l, x, &shape[n]))
            return -1 - k;
        n += count;
    }
    return n;
}

/* ---- strides */

/* Returns whether dimensions [begin, end) are contiguous. */
static inline int kfi_layout_is_dense(const int64_t *shape, const int64_t *strides, int begin,
                                      int end)
{
    int64_t wanted = 1;
    for (int d = end - 1; d >= begin; --d) {
        if (shape[d] != 1 && strides[d] != wanted) return 0;
        wanted *= shape[d];
    }
    return 1;
}
/* Merges dimensions [begin, end) into one. Returns its stride: 0 if all have one element, INT64_MIN
 * (KF_BROADCAST) if all share their elements; -1 if they cannot be merged. */
static inline int64_t kfi_layout_merge(const int64_t *shape, const int64_t *strides, int begin,
                                       int end)
{
    int64_t found = 0, wanted = 0;
    for (int d = end - 1; d >= begin; --d) {
        if (shape[d] == 1) continue;
        if (strides[d] < 0 || (found && strides[d] != wanted)) return -1;
        if (!found) found = strides[d] ? strides[d] : INT64_MIN;
        wanted = strides[d] * shape[d];
    }
    return found;
}
/* Writes the fields of a tensor that is not contiguous into a strides struct of zeros, and sets
 * *some if one is not zero. Returns false if no fields describe its strides. */
static inline int kfi_layout_strides(const kfi_layout_rules *r, const kfi_layout *l,
                                     const kfi_layout_tensor *t, const int64_t *shape,
                                     const int64_t *strides, int is_out, int64_t *fields, int *some)
{
    int begin[KFI_LAYOUT_EXTENTS + 1] = {0}, first = t->levels, alone = 1;
    if (!t->levels) return 0;
    for (int k = 0; k < t->extents; ++k) {
        const kfi_layout_extent *const x = &t->extent[k];
        begin[k + 1] = begin[k] + (kfi_layout_is_size(x) ? l->end[x->size] - l->begin[x->size] : 1);
    }
    const int rank = begin[t->extents];
    for (int d = begin[first]; d < rank; ++d) alone &= shape[d] == 1;
    /* Index of the first extent that is contiguous. */
    first -= r->joined == KFI_LAYOUT_ALWAYS || (r->joined == KFI_LAYOUT_ALONE && alone);
    if (!kfi_layout_is_dense(shape, strides, begin[first], rank)) return 0;
    for (int k = 0; k < first; ++k) {
        const int64_t stride = kfi_layout_merge(shape, strides, begin[k], begin[k + 1]);
        if (stride == -1 || (stride == INT64_MIN && is_out)) return 0;
        fields[t->field + t->levels - 1 - k] = stride; /* the innermost first */
        *some |= stride != 0;
    }
    return 1;
}

#endif
