/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/rope/check.h: size checks of rope, for CUDA and C. */
#ifndef KF_CORE_ROPE_CHECK_H
#define KF_CORE_ROPE_CHECK_H

#include "kf/core/host.h"

#include "kf/core/check.h"

#define KFI_ANY_POSITION INT64_MAX /* `positions` of ops without tables by position */

/* Checks the sizes and sets the number of elements of each tensor by its code: 'a' positions x
   pairs, 'f' pairs, 'n' rows, 'w' dim, 'e' rows x heads x dim, 'm' rows x more x dim. */
KFI_ONCE kf_result_t kfi_rope_check(const kfi_name *name, const char *codes, kf_i64 rows,
                                    kf_i64 heads, kf_i64 more, kf_i64 dim, kf_i64 pairs,
                                    kf_i64 positions, kf_i64 *elements)
{
    const kf_i64 of_result[] = {rows, heads, dim}, of_other[] = {rows, more, dim},
                 of_table[] = {positions, pairs};
    kf_result_t result = kfi_check_sizes(name, "rows heads dim", of_result, 3);
    if (result == KF_SUCCESS) result = kfi_check_sizes(name, "rows kv_heads dim", of_other, 3);
    if (result == KF_SUCCESS)
        result = positions == KFI_ANY_POSITION
                     ? kfi_check_sizes(name, "pairs", &pairs, 1)
                     : kfi_check_sizes(name, "positions pairs", of_table, 2);
    for (int i = 0; result == KF_SUCCESS && codes[i]; ++i)
        elements[i] = codes[i] == 'a'   ? positions * pairs
                      : codes[i] == 'f' ? pairs
                      : codes[i] == 'n' ? rows
                      : codes[i] == 'w' ? dim
                                        : rows * (codes[i] == 'm' ? more : heads) * dim;
    if (result != KF_SUCCESS || rows == 0 || heads + more == 0 || dim == 0 || pairs <= dim / 2)
        return result;
    return kfi_fail(KF_ERROR_INVALID_SIZE, name, "pairs",
                    "is %lld, expected at most half of dim, %lld", (long long)pairs,
                    (long long)dim);
}

#endif
