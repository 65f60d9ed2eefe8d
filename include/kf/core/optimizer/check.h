/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/optimizer/check.h: checks the arguments of an optimizer. */
#ifndef KF_CORE_OPTIMIZER_CHECK_H
#define KF_CORE_OPTIMIZER_CHECK_H

#include "kf/core/host.h"

#include "kf/core/list.h"
#include "kf/core/optimizer/once.h"

#ifndef KFI_SUM_SLOTS
#define KFI_SUM_SLOTS 512 /* partial sums of a sum over lists: blocks of CUDA, tasks of C */
#endif

/* Checks the lists of a call, and its tensors of one number. total: the sum of the lengths; 0: the
 * call does nothing. */
KFI_ONCE kf_result_t kfi_check_optimizer(const kfi_name *name, const kfi_lists *l,
                                         const kfi_arguments *numbers, kf_i64 *total)
{
    const kfi_shape one = {1, 0, 1, 0, NULL};
    kfi_operands all;
    kf_result_t result = kfi_check_lengths(name, l, total);
    if (result != KF_SUCCESS || *total == 0) return result;
    result = kfi_check_operands(name, numbers, &one, NULL, &all);
    return result != KF_SUCCESS ? result : kfi_check_lists(name, l, &all, numbers->words, total);
}

/* Checks the arguments of a sum over lists. workspace: of `got` bytes, `expected` are needed. */
KFI_ONCE kf_result_t kfi_check_sums(const kfi_name *name, const kfi_lists *l,
                                    const kfi_arguments *numbers, kf_i64 *total,
                                    const void *workspace, size_t got, size_t expected)
{
    const kfi_shape one = {1, 0, 1, 0, NULL};
    kfi_operands all;
    kf_result_t result = kfi_check_optimizer(name, l, numbers, total);
    if (result != KF_SUCCESS || *total == 0) return result;
    result = kfi_check_operands(name, numbers, &one, NULL, &all);
    return result != KF_SUCCESS
               ? result
               : kfi_check_workspace(name, numbers, &all, workspace, got, expected);
}

#endif
