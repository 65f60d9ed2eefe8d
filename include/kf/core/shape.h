/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/shape.h: reads a shape struct: fills in defaults, refuses values that no call has, and
 * computes the elements of each tensor. Launchers of families with a shape struct call it before
 * anything else. kf/core/extent.h evaluates the extents. */
#ifndef KF_CORE_SHAPE_H
#define KF_CORE_SHAPE_H

#include "kf/core/host.h"

#include "kf/core/check.h"
#include "kf/core/extent.h"
#include "kf/core/limits.h"

enum { KFI_SHAPE_FIELDS = KFI_LAYOUT_VALUES };

/* Description of a shape struct (gen/kfgen/model/shape_structs.py). `code`: for each
 * field its default in postfix order, and the fields that it must divide; then for each tensor its
 * extents. */
typedef struct {
    const char *words; /* names of the fields */
    int fields, tensors;
    const int32_t *code;
} kfi_shape_rules;

/* The struct with its defaults, and the elements of each tensor. */
typedef struct {
    int64_t value[KFI_SHAPE_FIELDS];
    kf_i64 elements[KFI_MAX_TENSORS];
} kfi_shape_values;

/* Returns the elements of a tensor whose extents begin at *code, which moves behind them. Negative:
 * an extent is negative, divides by 0, or the tensor has more than 2^58 elements. */
KFI_ONCE kf_i64 kfi_shape_elements(const int32_t **code, const int64_t *values)
{
    int64_t extent[KFI_LAYOUT_EXTENTS];
    const int count = *(*code)++;
    int wrong = 0;
    for (int i = 0; i < count; ++i) {
        wrong |= !kfi_layout_evaluate(*code, values, &extent[i]) || extent[i] < 0;
        *code = kfi_layout_next(*code);
    }
    return wrong ? -1 : kfi_layout_product(extent, 0, count);
}

/* Reads the fields of a struct: refuses negative ones, and fills in defaults. */
KFI_ONCE kf_result_t kfi_shape_fields(const kfi_name *name, const kfi_shape_rules *r,
                                      const int64_t *shape, int64_t *values)
{
    for (int i = 0; i < r->fields; ++i) {
        if (shape[i] < 0 || shape[i] > KFI_LAYOUT_MOST)
            return kfi_fail(KF_ERROR_INVALID_SIZE, name, kfi_word(r->words, i),
                            "is %lld, expected 0 to 2^58", (long long)shape[i]);
        values[i] = shape[i];
    }
    return KF_SUCCESS;
}

/* Reads the shape struct of a call. */
KFI_ONCE kf_result_t kfi_read_shape(const kfi_name *name, const kfi_shape_rules *r,
                                    const kfi_arguments *arguments, const void *shape,
                                    kfi_shape_values *found)
{
    const int32_t *code = r->code;
    if (!shape)
        return kfi_fail(KF_ERROR_NULL_POINTER, name, "shape",
                        "is NULL, expected a pointer to the sizes");
    const kf_result_t result = kfi_shape_fields(name, r, (const int64_t *)shape, found->value);
    if (result != KF_SUCCESS) return result;
    for (int i = 0; i < r->fields; ++i) {
        int64_t value = found->value[i];
        if (!value && *code != KFI_LAYOUT_END)
            (void)kfi_layout_evaluate(code, found->value, &value);
        found->value[i] = value;
        code = kfi_layout_next(code);
        for (int count = *code++; count > 0; --count, ++code)
            if (!value || found->value[*code] % value)
                return kfi_fail(KF_ERROR_INVALID_SIZE, name, kfi_word(r->words, i),
                                "is %lld, expected a divisor of %.*s, %lld", (long long)value,
                                (int)strcspn(kfi_word(r->words, *code), " "),
                                kfi_word(r->words, *code), (long long)found->value[*code]);
    }
    for (int i = 0; i < r->tensors; ++i) {
        found->elements[i] = kfi_shape_elements(&code, found->value);
        if (found->elements[i] < 0)
            return kfi_fail(KF_ERROR_INVALID_SIZE, name, "shape",
                            "gives %.*s no shape, expected dimensions of at least 0 and at most "
                            "2^58 elements",
                            (int)strcspn(kfi_word(arguments->words, i), " "),
                            kfi_word(arguments->words, i));
    }
    return KF_SUCCESS;
}

#endif
