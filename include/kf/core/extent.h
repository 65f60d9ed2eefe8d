/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/extent.h: evaluates extents of tensors, which are integer expressions of a call's sizes
 * and integers. The limits and expressions of kfgen's rules (gen/kfgen/model/shapes.py) in C, for
 * shape structs (kf/core/shape.h) and for functions on tensors (kf/runtime/layout.h). */
#ifndef KF_CORE_EXTENT_H
#define KF_CORE_EXTENT_H

#include "kf/core/host.h"

#include <stdint.h>

#include "kf/core/config.h"

#define KFI_LAYOUT_SIZES 10
#define KFI_LAYOUT_VALUES (KFI_LAYOUT_SIZES + 16) /* sizes, then integers */
#define KFI_LAYOUT_EXTENTS 6
#define KFI_LAYOUT_DEPTH 16 /* operands of an expression that wait for an operator */
/* Maximum elements from the first to the last of a tensor, and value of a size. */
#define KFI_LAYOUT_MOST ((int64_t)1 << 58)

/* Expressions in postfix order: an index of a value, or one of these. A number follows its code. */
enum {
    KFI_LAYOUT_PLUS = -1,
    KFI_LAYOUT_MINUS = -2,
    KFI_LAYOUT_TIMES = -3,
    KFI_LAYOUT_OVER = -4, /* rounds towards minus infinity */
    KFI_LAYOUT_NUMBER = -5,
    KFI_LAYOUT_END = -6
};

/* Return false if the result is no int64_t. */
KFI_HOST int kfi_layout_add(int64_t a, int64_t b, int64_t *out)
{
    if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) return 0;
    *out = a + b;
    return 1;
}
KFI_HOST int kfi_layout_subtract(int64_t a, int64_t b, int64_t *out)
{
    if (b > 0 ? a < INT64_MIN + b : a > INT64_MAX + b) return 0;
    *out = a - b;
    return 1;
}
KFI_HOST int kfi_layout_multiply(int64_t a, int64_t b, int64_t *out)
{
    if (a > 0 ? (b > 0 ? a > INT64_MAX / b : b < INT64_MIN / a)
              : (b > 0 ? a < INT64_MIN / b : a && b < INT64_MAX / a))
        return 0;
    *out = a * b;
    return 1;
}
KFI_HOST int kfi_layout_divide(int64_t a, int64_t b, int64_t *out)
{
    if (!b || (a == INT64_MIN && b == -1)) return 0;
    *out = a / b - (a % b != 0 && (a < 0) != (b < 0));
    return 1;
}
/* Evaluates an expression. Returns false if a result is no int64_t, or a divisor is 0. */
KFI_HOST int kfi_layout_evaluate(const int32_t *code, const int64_t *values, int64_t *out)
{
    int64_t stack[KFI_LAYOUT_DEPTH + 1];
    int top = -1;
    for (; *code != KFI_LAYOUT_END; ++code) {
        if (*code >= 0 || *code == KFI_LAYOUT_NUMBER) {
            stack[++top] = *code >= 0 ? values[*code] : code[1];
            code += *code < 0;
            continue;
        }
        const int64_t a = stack[top - 1], b = stack[top];
        int64_t *const to = &stack[--top];
        int fits = 0;
        switch (*code) {
        case KFI_LAYOUT_PLUS: fits = kfi_layout_add(a, b, to); break;
        case KFI_LAYOUT_MINUS: fits = kfi_layout_subtract(a, b, to); break;
        case KFI_LAYOUT_TIMES: fits = kfi_layout_multiply(a, b, to); break;
        default: fits = kfi_layout_divide(a, b, to);
        }
        if (!fits) return 0;
    }
    *out = stack[0];
    return 1;
}
/* Returns the code behind an expression. */
KFI_HOST const int32_t *kfi_layout_next(const int32_t *code)
{
    while (*code != KFI_LAYOUT_END) code += *code == KFI_LAYOUT_NUMBER ? 2 : 1;
    return code + 1;
}
/* Returns the product of dimensions; -1 if it exceeds KFI_LAYOUT_MOST. */
KFI_HOST int64_t kfi_layout_product(const int64_t *shape, int begin, int end)
{
    int64_t n = 1;
    for (int d = begin; d < end; ++d)
        if (!shape[d]) return 0;
    for (int d = begin; d < end; n *= shape[d++])
        if ((n | shape[d]) >> 29 && n > KFI_LAYOUT_MOST / shape[d]) return -1; /* rarely divides */
    return n;
}

#endif
