/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/bounds.h: bounds on the keys that a query sees, for host and device. */
#ifndef KF_CORE_ATTENTION_BOUNDS_H
#define KF_CORE_ATTENTION_BOUNDS_H

#include "kf/core/config.h"
#include "kf/core/dtype.h"

/* A bound on the keys of query i of a call: slope * i + add. kfi_attention_bind normalises it. For
 * packed sequences kfi_attention_bind_packed leaves that to each sequence, whose queries and keys
 * count of_queries and of_keys times. */
typedef struct {
    int slope, of_queries, of_keys; /* slope: 0 or 1 */
    kf_i64 add;
} kfi_attention_bound;

/* Normalises a bound on the keys of a sequence: sums of its query and addend stay within (-queries,
 * queries + keys). */
KFI_BOTH kfi_attention_bound kfi_attention_normalised(int slope, kf_i64 add, kf_i64 queries,
                                                      kf_i64 keys)
{
    const int beyond = add >= keys, before = add <= (slope ? -queries : -1);
    kfi_attention_bound b;
    b.slope = slope && !beyond && !before;
    b.of_queries = b.of_keys = 0;
    b.add = beyond ? keys : before ? -1 : add;
    return b;
}

#endif
