/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/check.h: the argument checks that every launcher of the map family makes before anything is written. */
#ifndef KF_CORE_CHECK_H
#define KF_CORE_CHECK_H

#include "kf/core/host.h"

#include <stddef.h>
#include <stdint.h>

#include "kf/core/dtype.h"
#include "kf/core/result.h"

/* What a tensor argument is. Its elements: n = rows * cols (elem), 2n (half), cols or channels (row), 2 (pair: a state). */
enum { KFI_ELEM = 0, KFI_HALF = 1, KFI_ROW = 2, KFI_PAIR = 3, KFI_KIND = 3, KFI_OUT = 4, KFI_NULLABLE = 8, KFI_UNREAD = 16 };

typedef struct {
    const void *ptr;
    int size;  /* bytes of an element */
    int flags; /* a kind, KFI_OUT, KFI_NULLABLE */
    int twin;  /* of an output: 1 + the index of an earlier output that is proven equal and may be the same pointer */
} kfi_operand;

/* The shape of a call: rows x cols elements, `channels` for the third size of a channel op (1 otherwise). */
typedef struct {
    kf_i64 rows, channels, cols;
} kfi_shape;

KFI_ONCE kf_i64 kfi_count(const kfi_operand *o, const kfi_shape *s)
{
    const kf_i64 n = s->rows * s->cols * (s->channels > 0 ? s->channels : 1);
    const int kind = o->flags & KFI_KIND;
    return kind == KFI_ELEM ? n : kind == KFI_HALF ? 2 * n : kind == KFI_PAIR ? 2 : s->channels > 0 ? s->channels : s->cols;
}

/* Whether a query for a workspace has sizes that a call would accept. */
KFI_HOST int kfi_fits(kf_i64 a, kf_i64 b, kf_i64 c)
{
    return a >= 0 && b >= 0 && c >= 0 && (double)a * (double)b * (double)c <= 288230376151711744.0; /* 2^58 */
}

/* words: the names of the `count` sizes. Refuses negative ones and tensors over 2^62 bytes. */
KFI_ONCE kf_result_t kfi_check_sizes(const kfi_name *name, const char *words, const kf_i64 *sizes, int count)
{
    kf_i64 room = (kf_i64)1 << 58;
    for (int i = 0; i < count; ++i)
        if (sizes[i] < 0)
            return kfi_fail(KF_ERROR_INVALID_SIZE, name, kfi_word(words, i), "is %lld, expected 0 or more", (long long)sizes[i]);
    for (int i = 0; i < count; ++i) {
        if (sizes[i] > room)
            return kfi_fail(KF_ERROR_INVALID_SIZE, name, kfi_word(words, i), "is %lld, expected a tensor of at most 2^58 elements in all",
                            (long long)sizes[i]);
        if (sizes[i] > 1) room /= sizes[i];
    }
    return KF_SUCCESS;
}

/* Whether a tensor and `bytes` bytes at `begin` share one; those of size zero share nothing, wherever they lie. */
KFI_ONCE int kfi_meets(const kfi_operand *o, const kfi_shape *shape, uintptr_t begin, uintptr_t bytes)
{
    const uintptr_t at = (uintptr_t)o->ptr, own = (uintptr_t)(kfi_count(o, shape) * o->size);
    return own > 0 && bytes > 0 && at < begin + bytes && begin < at + own;
}

/* Whether output a may not lie where b lies; j: the place of b in the table. */
KFI_ONCE int kfi_clashes(const kfi_operand *a, const kfi_operand *b, int j, const kfi_shape *shape)
{
    if (!kfi_meets(a, shape, (uintptr_t)b->ptr, (uintptr_t)(kfi_count(b, shape) * b->size))) return 0;
    if (a->ptr != b->ptr || a->size != b->size || ((a->flags ^ b->flags) & KFI_KIND) != 0) return 1;
    if (b->flags & KFI_OUT) return a->twin != j + 1 && (!a->twin || a->twin != b->twin);
    return (a->flags & KFI_KIND) == KFI_ROW; /* in place: every element is read before it is written, by the same thread */
}

/* words: the names of the operands. */
KFI_ONCE kf_result_t kfi_check_operands(const kfi_name *name, const char *words, const kfi_operand *o, int count, const kfi_shape *shape)
{
    for (int i = 0; i < count; ++i) {
        if (!o[i].ptr && !(o[i].flags & KFI_NULLABLE) && kfi_count(&o[i], shape) > 0)
            return kfi_fail(KF_ERROR_NULL_POINTER, name, kfi_word(words, i), "is NULL, expected a pointer to %lld elements",
                            (long long)kfi_count(&o[i], shape));
        if ((uintptr_t)o[i].ptr & (uintptr_t)(o[i].size - 1))
            return kfi_fail(KF_ERROR_INVALID_VALUE, name, kfi_word(words, i), "is %p, expected a pointer aligned to its %d-byte elements",
                            o[i].ptr, o[i].size);
    }
    for (int i = 0; i < count; ++i)
        for (int j = 0; j < count && (o[i].flags & KFI_OUT) && o[i].ptr; ++j) {
            if (j == i || !o[j].ptr || ((o[j].flags & KFI_OUT) && j > i) || (o[j].flags & KFI_UNREAD) || !kfi_clashes(&o[i], &o[j], j, shape)) continue;
            return kfi_fail(KF_ERROR_OVERLAP, name, kfi_word(words, i), "at %p overlaps %.*s at %p, expected %s", o[i].ptr,
                            (int)strcspn(kfi_word(words, j), " "), kfi_word(words, j), o[j].ptr,
                            (o[j].flags & KFI_OUT) ? "outputs that are apart" : "the same pointer (in place) or memory apart");
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
KFI_ONCE kf_result_t kfi_check_probability(const kfi_name *name, double p)
{
    if (p >= 0.0 && p <= 1.0) return KF_SUCCESS;
    return kfi_fail(KF_ERROR_INVALID_VALUE, name, "p", "is %g, expected 0 <= p <= 1", p);
}

/* The operands are those that kfi_check_operands has accepted. Of a workspace only what is asked for must be apart from them. */
KFI_ONCE kf_result_t kfi_check_workspace(const kfi_name *name, const char *words, const kfi_operand *o, int count, const kfi_shape *shape,
                                         const void *workspace, size_t got, size_t expected)
{
    if (expected == 0) return KF_SUCCESS;
    if (!workspace || got < expected || (uintptr_t)workspace % 16 != 0)
        return kfi_fail(KF_ERROR_WORKSPACE, name, "workspace", "is %p of %llu bytes, expected 16-byte aligned memory of %llu bytes", workspace,
                        (unsigned long long)got, (unsigned long long)expected);
    for (int i = 0; i < count; ++i)
        if (o[i].ptr && !(o[i].flags & KFI_UNREAD) && kfi_meets(&o[i], shape, (uintptr_t)workspace, expected))
            return kfi_fail(KF_ERROR_OVERLAP, name, "workspace", "at %p overlaps %.*s at %p, expected %llu bytes apart from every tensor", workspace,
                            (int)strcspn(kfi_word(words, i), " "), kfi_word(words, i), o[i].ptr, (unsigned long long)expected);
    return KF_SUCCESS;
}

#endif
