/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UPDATES_H
#define UPDATES_H

#include "kf/core/list.h"
#include "kf/core/math.h"

/* Checks tensors of n elements each. */
static inline kf_result_t kfi_check_single(const kfi_name *name, const kfi_arguments *arguments,
                                           kf_i64 n, kfi_operands *operands)
{
    kf_i64 elements[KFI_MAX_TENSORS];
    kfi_shape shape = {n, 0, 1, 0, NULL};
    kf_result_t result = kfi_check_sizes(name, "n", &n, 1);
    if (result != KF_SUCCESS || n == 0) return result;
    for (int i = 0; i < KFI_MAX_TENSORS; ++i) elements[i] = n;
    shape.elements = elements;
    return kfi_check_operands(name, arguments, &shape, NULL, operands);
}

#endif
