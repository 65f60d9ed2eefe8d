/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/strides.h: strides of a tensor of attention, for host and device. */
#ifndef KF_CORE_ATTENTION_STRIDES_H
#define KF_CORE_ATTENTION_STRIDES_H

#include "kf/core/dtype.h"

/* Distances [elements] between consecutive batches, rows and heads. */
typedef struct {
    kf_i64 batch, row, head;
} kfi_attention_strides;

#endif
