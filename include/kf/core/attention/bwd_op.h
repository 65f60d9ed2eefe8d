/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/bwd_op.h: calls of attention's backward in C: checks, and the arguments of
   bwd.h. */
#ifndef KF_CORE_ATTENTION_BWD_OP_H
#define KF_CORE_ATTENTION_BWD_OP_H

#include "kf/core/host.h"

#include "kf/core/attention/bwd_run.h"
#include "kf/core/attention/op.h"

KFI_ONCE kfi_cpu_attention_bwd_sizes kfi_cpu_attention_bwd_sizes_of(const kfi_attention_plan *p,
                                                                    int unit, int sums)
{
    const kf_i64 batch = p->packed ? 1 : p->batch, group = p->kv_heads ? p->heads / p->kv_heads : 0;
    const kfi_cpu_attention_bwd_sizes found = {batch * p->kv_heads,
                                               p->queries * group,
                                               p->keys,
                                               batch * p->heads * p->queries,
                                               p->dim,
                                               p->dim_v,
                                               p->batch,
                                               p->packed,
                                               unit,
                                               sums};
    return found;
}
/* Workspace in bytes. unit: bytes of an accumulator. sums: operands of the score with a gradient
   per head. */
KFI_ONCE size_t kfi_cpu_attention_bwd_workspace_of(const kfi_attention_plan *p, int unit, int sums)
{
    if (!kfi_attention_fits(p)) return 0;
    const kfi_cpu_attention_bwd_sizes sizes = kfi_cpu_attention_bwd_sizes_of(p, unit, sums);
    return kfi_workspace(kfi_cpu_attention_bwd_bytes(&sizes));
}
KFI_ONCE size_t kfi_cpu_attention_bwd_workspace(const void *shape, int unit, int sums)
{
    if (!shape) return 0;
    const kfi_attention_plan p = kfi_attention_plan_of((const int64_t *)shape);
    return kfi_cpu_attention_bwd_workspace_of(&p, unit, sums);
}
/* The same for packed sequences. */
KFI_ONCE size_t kfi_cpu_attention_bwd_packed_workspace(const void *shape, int unit, int sums)
{
    if (!shape) return 0;
    const kfi_attention_plan p = kfi_attention_packed_plan_of((const int64_t *)shape);
    return kfi_cpu_attention_bwd_workspace_of(&p, unit, sums);
}
/* Sets the gradients among the tensors of a call. Those of the score's tensors follow their order;
   their dtypes are set. */
KFI_ONCE void kfi_cpu_attention_bwd_tensors(kfi_cpu_attention_bwd *m,
                                            const kfi_cpu_attention_op *op,
                                            const kfi_attention_strides *steps)
{
    int scores = 0, heads = 0;
    for (int i = 0; op->shapes[i]; ++i) {
        const void *const p = op->arguments.tensors[i];
        void *const to = (void *)(uintptr_t)p;
        const kfi_cpu_attention_strides s = kfi_cpu_attention_steps(&steps[i]);
        switch (op->shapes[i]) {
        case KFI_ATTENTION_DOUT: m->dout = p, m->dout_strides = s; break;
        case KFI_ATTENTION_DLSE: m->dlse = p; break;
        case KFI_ATTENTION_DQ: m->dq = to, m->dq_strides = s; break;
        case KFI_ATTENTION_DK: m->dk = to, m->dk_strides = s; break;
        case KFI_ATTENTION_DV: m->dv = to, m->dv_strides = s; break;
        case KFI_ATTENTION_DSCORES:
            while (!m->dscores[scores].narrow) ++scores;
            m->dscores[scores].data = to, m->dscores[scores++].strides = s;
            break;
        case KFI_ATTENTION_DHEADS:
            while (!m->dheads[heads].narrow) ++heads;
            m->dheads[heads++].data = to;
            break;
        case KFI_ATTENTION_DSINK: m->dsink.data = to; break;
        default: break;
        }
    }
}
/* Checks a call and runs it. `m` has the type, the score and the dtypes of its gradients. */
KFI_ONCE kf_result_t kfi_cpu_attention_bwd_call_run(const kfi_cpu_attention_op *op,
                                                    const kfi_shape_values *v,
                                                    const kfi_attention_plan *p,
                                                    kfi_cpu_attention_bwd *m, void *workspace,
                                                    size_t workspace_bytes)
{
    kfi_operands operands;
    kfi_attention_strides steps[KFI_MAX_TENSORS];
    kfi_cpu_attention_packed packed;
    int sums = 0;
    for (int i = 0; i < KFI_ATTENTION_TENSORS; ++i) sums += m->dheads[i].narrow != NULL;
    kf_result_t result = kfi_attention_check(&op->name, &op->arguments, &op->strides, op->shapes, v,
                                             p, steps, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    result = kfi_check_workspace(&op->name, &op->arguments, &operands, workspace, workspace_bytes,
                                 kfi_cpu_attention_bwd_workspace_of(p, op->unit, sums));
    if (result != KF_SUCCESS) return result;
    result = kfi_cpu_attention_number(&op->name, p, &m->a);
    if (result != KF_SUCCESS) return result;
    kfi_cpu_attention_set(&m->a, op, p, steps, &packed);
    kfi_cpu_attention_bwd_tensors(m, op, steps);
    m->kv_heads = p->kv_heads;
    m->dscores_rows = p->packed ? p->max_query : p->queries;
    m->dscores_keys = p->packed ? p->max_key : p->keys;
    const kfi_cpu_attention_bwd_sizes sizes = kfi_cpu_attention_bwd_sizes_of(p, op->unit, sums);
    kfi_cpu_attention_bwd_run(m, &sizes, workspace);
    return KF_SUCCESS;
}

#endif
