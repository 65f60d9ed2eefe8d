/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONV1D_PLAN_H
#define CONV1D_PLAN_H

/* The shape struct with its defaults, in its order, and what follows from it. */
typedef struct {
    kf_i64 batch, length, channels, filters, kernel, stride, pad_left, pad_right, dilation, groups;
    kf_i64 out_length, rows; /* results of a sequence, and of all */
    kf_i64 count[3];         /* elements of each output */
} conv1d_shape;

#ifdef KFI_HOST_PASS
#include "kf/core/shape.h"

/* Checks a call and fills in its description. inputs: number of tensors in front of the outputs. */
KFI_ONCE kf_result_t conv1d_check(const kfi_name *name, const kfi_arguments *arguments, int packed,
                                  int inputs, const kfi_shape_values *v, conv1d_shape *g,
                                  int *wanted)
{
    const kfi_shape shape = {0, 0, 0, 0, v->elements};
    const int64_t *const s = v->value;
    kfi_operands operands;
    *wanted = 0;
    if (packed && s[5] != 1)
        return kfi_fail(KF_ERROR_INVALID_SIZE, name, "stride",
                        "is %lld, expected 1 for packed sequences", (long long)s[5]);
    const kf_result_t result = kfi_check_operands(name, arguments, &shape, NULL, &operands);
    const int64_t room = s[1] + s[6] + s[7] - s[8] * (s[4] - 1) - 1;
    *wanted = result == KF_SUCCESS && operands.wanted;
    g->batch = s[0], g->length = s[1], g->channels = s[2], g->filters = s[3], g->kernel = s[4];
    g->stride = s[5], g->pad_left = s[6], g->pad_right = s[7], g->dilation = s[8];
    g->groups = s[9];
    g->out_length = room < 0 ? 0 : room / s[5] + 1;
    g->rows = packed ? g->length : g->batch * g->out_length;
    for (int i = 0; i < 3; ++i)
        g->count[i] = inputs + i < operands.count ? v->elements[inputs + i] : 0;
    return result;
}
#endif

#endif
