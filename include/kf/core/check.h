/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/check.h: the argument checks that every launcher of the map family makes before anything is written. */
#ifndef KF_CORE_CHECK_H
#define KF_CORE_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "kf/core/dtype.h"
#include "kf/core/result.h"

/* What a tensor argument is. Its elements: n = rows * cols (elem), 2n (half), cols or channels (row), 2 (pair: a state). */
enum { KFI_ELEM = 0, KFI_HALF = 1, KFI_ROW = 2, KFI_PAIR = 3, KFI_KIND = 3, KFI_OUT = 4, KFI_NULLABLE = 8, KFI_UNREAD = 16 };

typedef struct {
    const char *name;
    const void *ptr;
    int size;  /* bytes of an element */
    int flags; /* a kind, KFI_OUT, KFI_NULLABLE */
    int twin;  /* of an output: 1 + the index of an earlier output that is proven equal and may be the same pointer */
} kfi_operand;

/* The shape of a call: rows x cols elements, `channels` for the third size of a channel op (1 otherwise). */
typedef struct {
    kf_i64 rows, channels, cols;
} kfi_shape;

KFI_HOST kf_i64 kfi_count(const kfi_operand *o, const kfi_shape *s)
{
    switch (o->flags & KFI_KIND) {
    case KFI_HALF: return 2 * s->rows * s->cols;
    case KFI_ROW: return s->channels > 0 ? s->channels : s->cols;
    case KFI_PAIR: return 2;
    default: return s->rows * s->cols * (s->channels > 0 ? s->channels : 1);
    }
}

/* Whether a query for a workspace has sizes that a call would accept. */
KFI_HOST int kfi_fits(kf_i64 a, kf_i64 b, kf_i64 c)
{
    return a >= 0 && b >= 0 && c >= 0 && (double)a * (double)b * (double)c <= 288230376151711744.0; /* 2^58 */
}

/* sizes: their names and values, `count` of them. Refuses negative ones and tensors over 2^62 bytes. */
KFI_HOST kf_result_t kfi_check_sizes(const kfi_name *name, const char *const *words, const kf_i64 *sizes, int count)
{
    kf_i64 total = 1, limit = (kf_i64)1 << 58;
    for (int i = 0; i < count; ++i)
        if (sizes[i] < 0)
            return kfi_fail(KF_ERROR_INVALID_SIZE, name, "%s is %lld, expected 0 or more", words[i], (long long)sizes[i]);
    for (int i = 0; i < count; ++i) {
        if (sizes[i] > 0 && total > limit / sizes[i])
            return kfi_fail(KF_ERROR_INVALID_SIZE, name, "%s is %lld, expected a tensor of at most 2^58 elements in all", words[i],
                            (long long)sizes[i]);
        total *= sizes[i] > 0 ? sizes[i] : 1;
    }
    return KF_SUCCESS;
}

KFI_HOST kf_result_t kfi_check_operands(const kfi_name *name, const kfi_operand *o, int count, const kfi_shape *shape)
{
    for (int i = 0; i < count; ++i) {
        if (!o[i].ptr && !(o[i].flags & KFI_NULLABLE) && kfi_count(&o[i], shape) > 0)
            return kfi_fail(KF_ERROR_NULL_POINTER, name, "%s is NULL, expected a pointer to %lld elements", o[i].name,
                            (long long)kfi_count(&o[i], shape));
        if (o[i].ptr && (uintptr_t)o[i].ptr % (uintptr_t)o[i].size != 0)
            return kfi_fail(KF_ERROR_INVALID_VALUE, name, "%s is %p, expected a pointer aligned to its %d-byte elements", o[i].name,
                            o[i].ptr, o[i].size);
    }
    for (int i = 0; i < count; ++i) {
        if (!(o[i].flags & KFI_OUT) || !o[i].ptr) continue;
        const uintptr_t begin = (uintptr_t)o[i].ptr, end = begin + (uintptr_t)(kfi_count(&o[i], shape) * o[i].size);
        for (int j = 0; j < count; ++j) {
            const int later_output = (o[j].flags & KFI_OUT) && j > i;
            if (j == i || !o[j].ptr || later_output || (o[j].flags & KFI_UNREAD)) continue;
            const uintptr_t other = (uintptr_t)o[j].ptr, other_end = other + (uintptr_t)(kfi_count(&o[j], shape) * o[j].size);
            if (end <= other || other_end <= begin) continue;
            /* In place: every element is read before it is written, by the same thread. */
            const int same = begin == other && o[i].size == o[j].size && ((o[i].flags ^ o[j].flags) & KFI_KIND) == 0 &&
                             (o[i].flags & KFI_KIND) != KFI_ROW;
            const int twins = same && (o[i].twin == j + 1 || (o[i].twin && o[i].twin == o[j].twin));
            const int rows_twins = begin == other && o[i].size == o[j].size && o[i].twin == j + 1;
            if ((o[j].flags & KFI_OUT) ? twins || rows_twins : same) continue;
            return kfi_fail(KF_ERROR_OVERLAP, name, "%s at %p overlaps %s at %p, expected %s", o[i].name, o[i].ptr, o[j].name, o[j].ptr,
                            (o[j].flags & KFI_OUT) ? "outputs that are apart" : "the same pointer (in place) or memory apart");
        }
    }
    return KF_SUCCESS;
}

KFI_HOST int kfi_is_aligned(const kfi_operand *o, int count, unsigned bytes)
{
    uintptr_t bits = 0;
    for (int i = 0; i < count; ++i)
        if ((o[i].flags & KFI_KIND) != KFI_PAIR) bits |= (uintptr_t)o[i].ptr;
    return bits % bytes == 0;
}

/* p of a dropout; NaN fails. */
KFI_HOST kf_result_t kfi_check_probability(const kfi_name *name, double p)
{
    if (p >= 0.0 && p <= 1.0) return KF_SUCCESS;
    return kfi_fail(KF_ERROR_INVALID_VALUE, name, "p is %g, expected 0 <= p <= 1", p);
}

KFI_HOST kf_result_t kfi_check_workspace(const kfi_name *name, const void *workspace, size_t got, size_t expected)
{
    if (expected == 0 || (workspace && got >= expected && (uintptr_t)workspace % 16 == 0)) return KF_SUCCESS;
    return kfi_fail(KF_ERROR_WORKSPACE, name, "workspace is %p of %llu bytes, expected 16-byte aligned memory of %llu bytes", workspace,
                    (unsigned long long)got, (unsigned long long)expected);
}

#endif
