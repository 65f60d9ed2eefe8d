/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STENCIL_H
#define STENCIL_H

#include "kf/core/elementwise/elementwise.h"

static inline kf_result_t stencil_check(const kfi_name *name, const kfi_arguments *arguments,
                                        kf_i64 rows, kf_i64 cols, int *wanted)
{
    const kf_i64 sizes[] = {rows, cols};
    kf_i64 elements[KFI_MAX_TENSORS];
    kfi_shape shape = {rows, 0, cols, 0, NULL};
    kfi_operands operands;
    kf_result_t result = kfi_check_sizes(name, "rows cols", sizes, 2);
    *wanted = 0;
    if (result != KF_SUCCESS || rows == 0 || cols == 0) return result;
    for (int i = 0; i < KFI_MAX_TENSORS; ++i) elements[i] = rows * cols;
    shape.elements = elements;
    result = kfi_check_operands(name, arguments, &shape, NULL, &operands);
    *wanted = operands.wanted;
    return result;
}

#endif
