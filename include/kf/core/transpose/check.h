/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/transpose/check.h: checks a call that copies matrices to another layout (transpose). */
#ifndef KF_CORE_TRANSPOSE_CHECK_H
#define KF_CORE_TRANSPOSE_CHECK_H

#include "kf/core/host.h"

#include "kf/core/check.h"

/* Checks sizes and tensors. words: names of the three sizes. Without elements or a wanted output it
 * sets operands->wanted to 0. */
KFI_ONCE kf_result_t kfi_transpose_check(const kfi_name *name, const kfi_arguments *arguments,
                                         const char *words, const kf_i64 *sizes,
                                         kfi_operands *operands)
{
    kf_i64 elements[KFI_MAX_TENSORS];
    kfi_shape shape = {0, 0, 0, 0, NULL};
    const kf_result_t result = kfi_check_sizes(name, words, sizes, 3);
    operands->wanted = 0;
    if (result != KF_SUCCESS || sizes[0] == 0 || sizes[1] == 0 || sizes[2] == 0) return result;
    for (int i = 0; i < KFI_MAX_TENSORS; ++i) elements[i] = sizes[0] * sizes[1] * sizes[2];
    shape.elements = elements;
    return kfi_check_operands(name, arguments, &shape, NULL, operands);
}

#endif
