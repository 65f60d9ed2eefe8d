/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/pairs_check.h: what launchers of pairs, in CUDA and in C, ask beside what all do. */
#ifndef KF_CORE_PAIRS_CHECK_H
#define KF_CORE_PAIRS_CHECK_H

#include "kf/core/host.h"

#include "kf/core/check.h"

KFI_ONCE kf_result_t kfi_check_pairs(const kfi_name *name, kf_i64 dim, kf_i64 pairs)
{
    if (pairs <= dim / 2) return KF_SUCCESS;
    return kfi_fail(KF_ERROR_INVALID_SIZE, name, "pairs", "is %lld, expected at most half of dim, %lld", (long long)pairs, (long long)dim);
}

#endif
