/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, shapes and strides of a call from tensors of any number of dimensions: the C++ version of
   _table.py, _sizes.py and _strides.py. torch/_shim.py fills the structs, and declares the same
   fields in the same order. */
#ifndef KF_NATIVE_TORCH_LAYOUT_H
#define KF_NATIVE_TORCH_LAYOUT_H

#include <stdint.h>
#include <string.h>

enum { DIMS = 64, SIZES = 8, EXTENTS = 4, TENSORS = 24, FIELDS = 96, SHAPED = 4 };
/* Dimensions whose product is a size. Negative values are the index of one dimension. */
enum { ALL = 0, BEFORE, AXIS, AFTER, ALL_BUT_THREE, ONE, GROUPS, BETWEEN };
enum { ALWAYS = 0, SAVED, GRADIENT, PLACE };

typedef struct {
    const char *name;
    const uint8_t *unread; /* [activation] */
    int32_t extents, size[EXTENTS], factor[EXTENTS];
    int32_t var;              /* index of a dtype, or T, U, acc */
    int32_t optional, absent; /* optional in the schema; may be absent in a call */
    int32_t levels, field, use, place;
} kfs_tensor;

typedef struct {
    const char *name;
    const kfs_tensor *tensors; /* inputs, then outputs */
    /* Function indices on the CPU and on a GPU: [activation][T][U], -1 if missing. */
    const int32_t *functions[2];
    /* Libraries of a user-made op: [T][U], NULL before the first call; NULL for kf's own ops. */
    const struct kfs_library **own[2];
    const int64_t *activations;
    const int32_t *act_scalars; /* [activation]: number of scalars */
    const double *bounds;       /* [activation][scalar][least, most] */
    int64_t copies;             /* number of inputs that were copied to be contiguous */
    int32_t inputs, outputs, integers, scalars, acts, dropout, has_axis, axis, has_groups, has_act,
        saves, backward;
    int32_t parts[SIZES];        /* dimensions of each size */
    int32_t sizes, order[SIZES]; /* number of sizes; sizes in the launcher's order */
    int32_t number_of_activations, basis, half, fields, workspace, least_dims, bound_count;
    int32_t shaped[SHAPED]; /* inputs that determine the sizes jointly, then -1 */
    int32_t betas;          /* number of zero scalars before p */
} kfs_op;

typedef struct {
    int64_t shape[DIMS], groups;
    int32_t dims, at, first[SIZES], last[SIZES];
} kfs_layout;

static inline void kfs_range(const kfs_op *op, kfs_layout *l, int s)
{
    const int what = op->parts[s], n = l->dims;
    const int first[] = {0, 0, l->at, l->at + 1, 0, 0, 0, l->at};
    const int last[] = {n, l->at, l->at + 1, n, n - 3, 0, 0, n - 2};
    l->first[s] = what < 0 ? n + what : first[what];
    l->last[s] = what < 0 ? n + what + 1 : last[what];
}

/* Computes the layout from the shape of one tensor; false if the shape is invalid. */
static inline bool kfs_lay_out(const kfs_op *op, kfs_layout *l, const int64_t *shape, int64_t dims,
                               int64_t axis, int64_t groups)
{
    if (dims > DIMS || dims < op->least_dims) return false;
    memcpy(l->shape, shape, (size_t)dims * sizeof *shape);
    l->dims = (int32_t)dims, l->groups = groups;
    if (op->half && (shape[dims - 1] & 1)) return false;
    if (op->half) l->shape[dims - 1] /= 2;
    if (op->has_axis && (axis < -dims || axis >= dims)) return false;
    const int64_t at = op->has_axis ? axis : op->axis;
    l->at = dims ? (int32_t)(at < 0 ? at + dims : at) : 0;
    for (int s = 0; s < op->sizes; ++s) kfs_range(op, l, s);
    return !op->has_groups || (groups >= 1 && l->shape[l->at] % groups == 0);
}

/* Computes the layout from several tensors, with the dimensions of all sizes in sequence. Each
   tensor has one dimension per size, and the rest for at most one size not yet known. On failure,
   *wrong is the input with too few or too many dimensions, or a dimension that is no multiple of
   its factor. */
static inline bool kfs_join(const kfs_op *op, kfs_layout *l, int tensors,
                            const int64_t *const *shapes, const int64_t *dims, int *wrong)
{
    const int64_t *of[SIZES];
    int count[SIZES], times[SIZES];
    for (int s = 0; s < op->sizes; ++s) count[s] = op->parts[s] < 0 ? 1 : -1;
    for (int i = 0; i < tensors; ++i) {
        const kfs_tensor *t = &op->tensors[op->shaped[i]];
        int left = (int)dims[i], unknown = -1, at = 0;
        for (int e = 0; e < t->extents; ++e) {
            const int s = t->size[e];
            if (count[s] < 0) unknown = s;
            left -= count[s] < 0 ? 0 : count[s];
        }
        *wrong = op->shaped[i];
        if (left < 0 || (left && unknown < 0)) return false;
        if (unknown >= 0) count[unknown] = left;
        for (int e = 0; e < t->extents; at += count[t->size[e++]]) {
            of[t->size[e]] = shapes[i] + at;
            times[t->size[e]] = t->factor[e];
            for (int d = 0; d < count[t->size[e]]; ++d)
                if (shapes[i][at + d] % t->factor[e]) return false;
        }
    }
    int total = 0;
    for (int s = 0; s < op->sizes; ++s) total += count[s];
    if (total > DIMS) return false;
    l->dims = 0, l->groups = 1, l->at = count[op->order[0]];
    for (int i = 0; i < op->sizes; ++i) {
        const int s = op->order[i];
        for (int d = 0; d < count[s]; ++d) l->shape[l->dims++] = of[s][d] / times[s];
    }
    for (int s = 0; s < op->sizes; ++s) kfs_range(op, l, s);
    return true;
}

static inline int64_t kfs_size(const kfs_op *op, const kfs_layout *l, int s)
{
    int64_t found = op->parts[s] == GROUPS ? l->groups : 1;
    for (int d = l->first[s]; d < l->last[s]; ++d) found *= l->shape[d];
    return found;
}

/* Computes a tensor's shape; returns its number of dimensions. */
static inline int kfs_shape(const kfs_op *op, const kfs_layout *l, const kfs_tensor *t,
                            int64_t *out)
{
    int n = 0;
    for (int e = 0; e < t->extents; ++e) {
        const int s = t->size[e];
        if (op->parts[s] == GROUPS) out[n++] = l->groups;
        for (int d = l->first[s]; d < l->last[s]; ++d) out[n++] = l->shape[d] * t->factor[e];
    }
    return n;
}

static inline bool kfs_dense(const int64_t *shape, const int64_t *strides, int first, int last)
{
    int64_t wanted = 1;
    for (int d = last - 1; d >= first; --d) {
        if (shape[d] != 1 && strides[d] != wanted) return false;
        wanted *= shape[d];
    }
    return true;
}

/* Computes the stride of several dimensions joined into one, 0 if all have one element. Returns
   false if they cannot be joined. */
static inline bool kfs_collapse(const int64_t *shape, const int64_t *strides, int first, int last,
                                int64_t *out)
{
    int64_t wanted = 0;
    bool begun = false;
    *out = 0;
    for (int d = last - 1; d >= first; --d) {
        if (shape[d] == 1) continue;
        if (!begun) {
            if (strides[d] < 0) return false;
            *out = strides[d] == 0 ? INT64_MIN : strides[d]; /* KF_BROADCAST */
        } else if (strides[d] != wanted) {
            return false;
        }
        begun = true;
        wanted = strides[d] * shape[d];
    }
    return true;
}

/* Writes a tensor's strides into the op's struct, and sets *some if one is not zero. Returns false
   if the tensor must be copied. */
static inline bool kfs_strides(const kfs_op *op, const kfs_layout *l, const kfs_tensor *t,
                               const int64_t *shape, const int64_t *strides, int dims,
                               int64_t *fields, bool *some)
{
    for (int d = 0; d < dims; ++d)
        if (shape[d] == 0) return true;
    if (kfs_dense(shape, strides, 0, dims)) return true;
    if (!t->levels) return false;
    int start = t->levels, begin[EXTENTS + 1] = {0}; /* first dimension of each extent */
    for (int e = 0; e < t->extents; ++e)
        begin[e + 1] = begin[e] + l->last[t->size[e]] - l->first[t->size[e]];
    bool one = op->has_axis;
    for (int d = begin[start]; d < dims; ++d) one = one && shape[d] == 1;
    if (op->has_groups || one) --start;
    if (!kfs_dense(shape, strides, begin[start], dims)) return false;
    for (int e = 0; e < start; ++e) {
        int64_t distance;
        if (!kfs_collapse(shape, strides, begin[e], begin[e + 1], &distance)) return false;
        fields[t->field + t->levels - 1 - e] = distance; /* the innermost first */
        *some = *some || distance;
    }
    return true;
}

#endif
