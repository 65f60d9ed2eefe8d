/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/pitch.h: how far apart the rows of a tensor lie, in elements: what callers say in a
 * kf_<op>_strides_t, as kernels read it. */
#ifndef KF_CORE_PITCH_H
#define KF_CORE_PITCH_H

#include "kf/core/dtype.h"

/* ABI. In a field of a strides struct, of an input: all rows are the same memory. */
#define KF_BROADCAST (-9223372036854775807LL - 1)

/* Row r begins at element r * row + r / queries * head + r / (queries * channels) * outer: the
   latter two are what the distance of heads and of batches is more than that of as many rows, 0
   where all is dense. gap: from the end of a row's segment to its next one. (Of the reduce family
   row is the distance along the axis, and outer that of the outers.) */
typedef struct {
    kf_i64 row, head, outer, gap;
} kfi_pitch;

#endif
