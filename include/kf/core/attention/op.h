/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/attention/op.h: calls of attention in C: checks, and the arguments of attention.h. */
#ifndef KF_CORE_ATTENTION_OP_H
#define KF_CORE_ATTENTION_OP_H

#include "kf/core/host.h"

#include "kf/core/attention/attention.h"
#include "kf/core/attention/check.h"

typedef struct {
    kfi_name name;
    kfi_arguments arguments;
    kfi_strides strides;
    const char *shapes; /* KFI_ATTENTION_Q, ... per tensor */
    int unit;           /* bytes of an accumulator */
} kfi_cpu_attention_op;

/* Numbers that a score's function reads besides tensors. */
typedef struct {
    const void *scalars;
    const kfi_attention_plan *plan;
} kfi_cpu_attention_numbers;

/* Workspace in bytes. unit: bytes of an accumulator. */
KFI_ONCE size_t kfi_cpu_attention_workspace(const void *shape, int unit)
{
    if (!shape) return 0;
    const int64_t *const s = (const int64_t *)shape;
    const kfi_attention_plan p = kfi_attention_plan_of(s);
    if (!kfi_attention_fits(&p) || p.heads == 0) return 0;
    return kfi_workspace(kfi_cpu_attention_bytes(p.batch, p.heads, p.heads / p.kv_heads, p.queries,
                                                 p.keys, p.dim, p.dim_v, unit));
}
/* The same for packed sequences. */
KFI_ONCE size_t kfi_cpu_attention_packed_workspace(const void *shape, int unit)
{
    if (!shape) return 0;
    const kfi_attention_plan p = kfi_attention_packed_plan_of((const int64_t *)shape);
    if (!kfi_attention_fits(&p) || p.heads == 0) return 0;
    return kfi_workspace(kfi_cpu_attention_packed_bytes(p.batch, p.heads, p.heads / p.kv_heads,
                                                        p.queries, p.keys, p.dim, p.dim_v, unit));
}
/* The same for lists of blocks of keys. */
KFI_ONCE size_t kfi_cpu_attention_sparse_workspace(const void *shape, int unit)
{
    if (!shape) return 0;
    const kfi_attention_plan p = kfi_attention_plan_of((const int64_t *)shape);
    if (!kfi_attention_fits(&p) || p.heads == 0 || p.block < KFI_ATTENTION_LEAST_KEYS) return 0;
    return kfi_workspace(kfi_cpu_attention_sparse_bytes(
        p.batch, p.heads, p.heads / p.kv_heads, p.queries, p.keys, p.dim, p.dim_v, p.block, unit));
}
KFI_ONCE kfi_cpu_attention_strides kfi_cpu_attention_steps(const kfi_attention_strides *s)
{
    const kfi_cpu_attention_strides found = {s->batch, s->row, s->head};
    return found;
}
/* Sets the tensors of a call. */
KFI_ONCE void kfi_cpu_attention_tensors(kfi_cpu_attention *m, const kfi_cpu_attention_op *op,
                                        const kfi_attention_strides *steps)
{
    for (int i = 0; op->shapes[i]; ++i) {
        const void *const p = op->arguments.tensors[i];
        void *const to = (void *)(uintptr_t)p;
        const kfi_cpu_attention_strides s = kfi_cpu_attention_steps(&steps[i]);
        switch (op->shapes[i]) {
        case KFI_ATTENTION_Q: m->q = p, m->q_strides = s; break;
        case KFI_ATTENTION_K: m->k = p, m->k_strides = s; break;
        case KFI_ATTENTION_V: m->v = p, m->v_strides = s; break;
        case KFI_ATTENTION_OUT: m->out = to, m->out_strides = s; break;
        case KFI_ATTENTION_LSE: m->lse = to; break;
        case KFI_ATTENTION_ROW_MAX: m->row_max = to; break;
        case KFI_ATTENTION_LOG_SUM: m->log_sum = to; break;
        case KFI_ATTENTION_SINK: m->sink = p; break;
        case KFI_ATTENTION_OF_QUERIES:
        case KFI_ATTENTION_OF_KEYS:
        case KFI_ATTENTION_LISTS:
        case KFI_ATTENTION_LISTED:
        case KFI_ATTENTION_MASKS: break;
        case KFI_ATTENTION_SCORES:
        case KFI_ATTENTION_HEADS: {
            kfi_cpu_attention_tensor *const t = &m->score.tensor[m->score.tensors++];
            t->data = p, t->strides = s;
            t->size = op->arguments.codes[KFI_CODE_LENGTH * i + KFI_CODE_SIZE] - '0';
            t->key = op->shapes[i] == KFI_ATTENTION_SCORES;
            if (!t->key) t->strides.head = 1;
            break;
        }
        default: break; /* a gradient */
        }
    }
}
/* Sets the bounds of packed sequences. */
KFI_ONCE void kfi_cpu_attention_sequences(kfi_cpu_attention_packed *packed,
                                          const kfi_cpu_attention_op *op,
                                          const kfi_attention_plan *p)
{
    for (int i = 0; op->shapes[i]; ++i) {
        const void *const offsets = op->arguments.tensors[i];
        if (op->shapes[i] == KFI_ATTENTION_OF_QUERIES) {
            packed->query_offsets = offsets;
            packed->wide = op->arguments.codes[KFI_CODE_LENGTH * i + KFI_CODE_SIZE] == '8';
        }
        if (op->shapes[i] == KFI_ATTENTION_OF_KEYS) packed->key_offsets = offsets;
    }
    const int scores = strchr(op->shapes, KFI_ATTENTION_SCORES) != NULL;
    packed->batch = p->batch;
    packed->max_query = scores ? p->max_query : INT64_MAX;
    packed->max_key = scores ? p->max_key : INT64_MAX;
    packed->first = p->first, packed->last = p->last;
}
/* Sets the lists of blocks of keys, if a call has some. lists: memory for them. */
KFI_ONCE void kfi_cpu_attention_lists(kfi_cpu_attention *m, kfi_cpu_attention_sparse *s,
                                      const kfi_cpu_attention_op *op, const kfi_attention_plan *p,
                                      const kfi_attention_strides *steps)
{
    m->sparse = strchr(op->shapes, KFI_ATTENTION_LISTS) ? s : NULL;
    for (int i = 0; op->shapes[i]; ++i) {
        const int32_t *const tensor = (const int32_t *)op->arguments.tensors[i];
        switch (op->shapes[i]) {
        case KFI_ATTENTION_LISTS:
            s->offsets = tensor, s->steps = kfi_cpu_attention_steps(&steps[i]);
            break;
        case KFI_ATTENTION_LISTED: s->entries = tensor; break;
        case KFI_ATTENTION_MASKS: s->masks = tensor; break;
        default: break;
        }
    }
    s->block = p->block, s->listed = p->listed, s->mask_count = p->masks;
}
/* Sets the sizes and tensors of a call. packed: memory for the bounds of packed sequences. */
KFI_ONCE void kfi_cpu_attention_set(kfi_cpu_attention *m, const kfi_cpu_attention_op *op,
                                    const kfi_attention_plan *p, const kfi_attention_strides *steps,
                                    kfi_cpu_attention_packed *packed)
{
    kfi_cpu_attention_tensors(m, op, steps);
    m->batch = p->batch, m->heads = p->heads, m->queries = p->queries, m->keys = p->keys;
    m->group = p->kv_heads ? p->heads / p->kv_heads : 1;
    m->dim = p->dim, m->dim_v = p->dim_v;
    m->row_head = p->queries, m->row_batch = p->packed ? 0 : p->heads * p->queries;
    m->packed = p->packed ? packed : NULL;
    if (p->packed) kfi_cpu_attention_sequences(packed, op, p);
    m->range.first_slope = p->first.slope, m->range.first_add = p->first.add;
    m->range.last_slope = p->last.slope, m->range.last_add = p->last.add;
}
/* Numbers the weights of a call with dropout. */
KFI_ONCE kf_result_t kfi_cpu_attention_number(const kfi_name *name, const kfi_attention_plan *p,
                                              kfi_cpu_attention *m)
{
    kfi_attention_strides numbers = {0, 0, 0};
    if (!m->rng) return KF_SUCCESS;
    const kf_result_t result = kfi_attention_numbers(name, p, &numbers, &m->number0);
    m->numbers = kfi_cpu_attention_steps(&numbers);
    if (m->rng->scale_f64 == 1) m->rng = NULL; /* p is 0 */
    return result;
}
/* Workspace of a call in bytes. */
KFI_ONCE size_t kfi_cpu_attention_needs(const kfi_cpu_attention_op *op, const kfi_attention_plan *p,
                                        const void *shape)
{
    if (p->packed) return kfi_cpu_attention_packed_workspace(shape, op->unit);
    if (strchr(op->shapes, KFI_ATTENTION_LISTS))
        return kfi_cpu_attention_sparse_workspace(shape, op->unit);
    return kfi_cpu_attention_workspace(shape, op->unit);
}
/* Checks a call and runs it. `m` has the type, the score and dropout's random numbers. */
KFI_ONCE kf_result_t kfi_cpu_attention_call_run(const kfi_cpu_attention_op *op,
                                                const kfi_shape_values *v,
                                                const kfi_attention_plan *p, kfi_cpu_attention *m,
                                                const void *shape, void *workspace,
                                                size_t workspace_bytes)
{
    kfi_operands operands;
    kfi_attention_strides steps[KFI_MAX_TENSORS];
    kfi_cpu_attention_packed packed;
    kfi_cpu_attention_sparse lists;
    kf_result_t result = kfi_attention_check(&op->name, &op->arguments, &op->strides, op->shapes, v,
                                             p, steps, &operands);
    if (result != KF_SUCCESS || !operands.wanted) return result;
    result = kfi_check_workspace(&op->name, &op->arguments, &operands, workspace, workspace_bytes,
                                 kfi_cpu_attention_needs(op, p, shape));
    if (result != KF_SUCCESS) return result;
    kfi_cpu_attention_set(m, op, p, steps, &packed);
    kfi_cpu_attention_lists(m, &lists, op, p, steps);
    result = kfi_cpu_attention_number(&op->name, p, m);
    if (result == KF_SUCCESS) kfi_cpu_attention_run(m, workspace);
    return result;
}

#endif
