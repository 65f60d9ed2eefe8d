/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/decoding/merge.h: merges results of attention for two parts of the keys, in C. A job is
 * some rows [batch, rows, heads]; each is weighted by the lse of its two parts. */
#ifndef KF_CORE_DECODING_MERGE_H
#define KF_CORE_DECODING_MERGE_H

#include "kf/core/host.h"

#include <math.h>

#include "kf/core/decoding/check.h"
#include "kf/core/decoding/element.h"
#include "kf/core/math.h"
#include "kf/core/parallel.h"

KFI_C_BEGIN

#define KFI_MERGE_SLICE 256 /* elements of a row that are computed at a time */
#define KFI_MERGE_JOB 16    /* rows of a job */

/* Tensors of a call in the order of the arguments. */
enum { KFI_MERGE_A, KFI_MERGE_LSE_A, KFI_MERGE_B, KFI_MERGE_LSE_B };
enum { KFI_MERGE_OUT = 4, KFI_MERGE_LSE };
enum {
    KFI_MERGE_DOUT = 4,
    KFI_MERGE_DLSE,
    KFI_MERGE_DA,
    KFI_MERGE_DLSE_A,
    KFI_MERGE_DB,
    KFI_MERGE_DLSE_B
};

/* A call. */
typedef struct {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides given;
    kfi_cpu_decoding_element element;
    int bwd;
    kfi_decoding_sizes sizes; /* queries: rows */
    kfi_decoding_strides strides[KFI_MAX_TENSORS];
} kfi_cpu_merge;

/* Address of a row of tensor i, of `at` = (batch * rows + row) * heads + head. */
KFI_HOST char *kfi_cpu_merge_row(const kfi_cpu_merge *m, int i, kf_i64 at)
{
    const kf_i64 heads = m->sizes.heads, rows = m->sizes.queries, row = at / heads % rows;
    return (char *)(uintptr_t)m->arguments.tensors[i] +
           (at / heads / rows * m->strides[i].batch + row * m->strides[i].row +
            at % heads * m->strides[i].head) *
               m->element.size;
}

#define KFI_MERGE_TYPE f32
#define KFI_MERGE_REAL float
#include "kf/core/decoding/merge_real.h"
#define KFI_MERGE_TYPE f64
#define KFI_MERGE_REAL double
#include "kf/core/decoding/merge_real.h"

KFI_HOST void kfi_merge_job(void *context, kf_i64 job)
{
    const kfi_cpu_merge *const m = (const kfi_cpu_merge *)context;
    const kf_i64 rows = m->sizes.batch * m->sizes.queries * m->sizes.heads,
                 begin = job * KFI_MERGE_JOB,
                 end = begin + KFI_MERGE_JOB < rows ? begin + KFI_MERGE_JOB : rows;
    for (kf_i64 at = begin; at < end; ++at) {
        if (m->bwd && m->element.unit == 8)
            kfi_merge_backward_f64(m, at);
        else if (m->bwd)
            kfi_merge_backward_f32(m, at);
        else if (m->element.unit == 8)
            kfi_merge_forward_f64(m, at);
        else
            kfi_merge_forward_f32(m, at);
    }
}

/* Checks a call and runs it. `m` has all but the strides. sizes: batch, rows, heads, dim. */
KFI_ONCE kf_result_t kfi_cpu_merge_run(kfi_cpu_merge *m, const kf_i64 *sizes)
{
    kfi_operands operands;
    kf_result_t result = kfi_decoding_check_merge(&m->name, &m->arguments, &m->given, m->bwd, sizes,
                                                  &m->sizes, m->strides, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    const kf_i64 rows = sizes[0] * sizes[1] * sizes[2];
    kfi_parallel((rows + KFI_MERGE_JOB - 1) / KFI_MERGE_JOB, kfi_merge_job, m,
                 rows * sizes[3] >= KF_OMP_MIN);
    return KF_SUCCESS;
}

KFI_C_END

#endif
