/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/pitch.h: row strides of a tensor, in elements, as kernels read them. Callers pass them in
 * a kf_<op>_strides_t. */
#ifndef KF_CORE_PITCH_H
#define KF_CORE_PITCH_H

#include "kf/core/dtype.h"

/* ABI. As the stride of an input in a strides struct: all rows share the same memory. */
#define KF_BROADCAST (-9223372036854775807LL - 1)

/* Row r begins at element r * row + r / queries * head + r / (queries * channels) * outer. `head`
 * and `outer` hold the excess of the head and batch strides over dense rows: 0 if dense. gap:
 * elements from the end of one segment of a row to the next segment. In reductions, `row` is the
 * stride along the axis and `outer` the stride of the outer index. */
typedef struct {
    kf_i64 row, head, outer, gap;
} kfi_pitch;

#endif
