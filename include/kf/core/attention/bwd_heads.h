/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/bwd_heads.h: attention's backward in C: gradients of operands with one number
   per head, and of the sink. Jobs of rows store the sum over the keys of each query (bwd_strip.h).
   A job per head adds those of all batches and queries, in ascending order and in double. */
#ifndef KF_CORE_ATTENTION_BWD_HEADS_H
#define KF_CORE_ATTENTION_BWD_HEADS_H

#include "kf/core/host.h"

#include <math.h>

#include "kf/core/attention/bwd_plan.h"

KFI_C_BEGIN

/* Returns an accumulator. unit: its bytes. */
KFI_INLINE double kfi_cpu_attention_real(const void *p, kf_i64 at, int unit)
{
    return unit == 8 ? ((const double *)p)[at] : (double)((const float *)p)[at];
}
/* Stores a sum. */
KFI_HOST void kfi_cpu_attention_bwd_store_head(const kfi_cpu_attention_dheads *t, kf_i64 head,
                                               double sum, int unit)
{
    const float as_float = (float)sum;
    t->narrow(unit == 8 ? (const void *)&sum : (const void *)&as_float,
              (char *)t->data + head * t->size, 1, 1);
}
/* Returns the gradient of the sink by one query: the sink is a score whose value is 0. */
KFI_HOST double kfi_cpu_attention_bwd_sink_of(const kfi_cpu_attention_bwd *m, double sink,
                                              kf_i64 at, int unit)
{
    const kfi_cpu_attention *const a = &m->a;
    const int pair = a->row_max && a->log_sum;
    const double most = kfi_cpu_attention_real(pair ? a->row_max : a->lse, at, unit),
                 log_sum = pair ? kfi_cpu_attention_real(a->log_sum, at, unit) : 0,
                 x = sink - most - log_sum, p = exp(x);
    double delta = kfi_cpu_attention_real(m->delta, at, unit);
    /* A query that sees no key has no result, whatever dout holds. */
    if (x >= 0 && !(delta - delta == 0))
        delta = m->dlse ? -kfi_cpu_attention_real(m->dlse, at, unit) : 0;
    return p == 0 ? 0 : -p * delta;
}
/* Sums the gradients of one head. */
KFI_HOST void kfi_cpu_attention_bwd_head(const kfi_cpu_attention_bwd *m, kf_i64 head, int unit)
{
    const kfi_cpu_attention *const a = &m->a;
    const kf_i64 batch = a->packed ? 1 : a->batch;
    for (int i = 0; i < a->score.tensors; ++i) {
        double sum = 0;
        if (!m->dheads[i].data) continue;
        for (kf_i64 b = 0; b < batch; ++b)
            for (kf_i64 query = 0; query < a->queries; ++query)
                sum += kfi_cpu_attention_real(m->dheads[i].rows,
                                              b * a->row_batch + head * a->row_head + query, unit);
        kfi_cpu_attention_bwd_store_head(&m->dheads[i], head, sum, unit);
    }
    if (m->dsink.data) {
        double sum = 0;
        union {
            float f32;
            double f64;
        } found;
        a->sink_type.widen((const char *)a->sink + head * a->sink_type.size, 1, &found, 1);
        const double sink = unit == 8 ? found.f64 : (double)found.f32;
        for (kf_i64 b = 0; sink > -(double)INFINITY && b < batch; ++b)
            for (kf_i64 query = 0; query < a->queries; ++query)
                sum += kfi_cpu_attention_bwd_sink_of(
                    m, sink, b * a->row_batch + head * a->row_head + query, unit);
        kfi_cpu_attention_bwd_store_head(&m->dsink, head, sum, unit);
    }
}

KFI_C_END

#endif
