/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/chain.h: several ops as one call. All steps are checked before the first one is
 * launched. Intermediate tensors and the largest workspace are one allocation from the pool. */
#ifndef KF_RUNTIME_CHAIN_H
#define KF_RUNTIME_CHAIN_H

#include "kf/runtime/call.h"

#define KFI_RT_STEPS 5
#define KFI_RT_BOUND 8 /* tensors of a step */

typedef struct {
    kfi_rt_call call;
    kfi_rt_prepared made;
    const kf_tensor_t *tensors[KFI_RT_TENSORS]; /* one per operand: in `bound`, or NULL */
    const char *arguments[KFI_RT_TENSORS];      /* names of the function's arguments, for errors */
    kf_tensor_t bound[KFI_RT_BOUND];
    int count; /* elements of `bound` */
    double scalars[KFI_RT_SCALARS];
} kfi_rt_step;
/* storage: marks the intermediate tensors, whose data is an offset in `bytes` plus KFI_RT_NOWHERE
 * until the memory is allocated. */
typedef struct {
    const char *name;
    kf_context_t *ctx;
    kf_stream_t *stream;
    kfi_rt_storage storage;
    size_t bytes;
    int count;
    kfi_rt_step steps[KFI_RT_STEPS];
} kfi_rt_chain;
#define KFI_RT_NOWHERE 256

/* ---- tensors */

/* Describes an intermediate tensor; `argument` is the one that its size follows from. */
static kf_result_t kfi_rt_intermediate(kfi_rt_chain *chain, const char *argument, int dtype,
                                       int ndim, const int64_t *shape, kf_tensor_t *t)
{
    const kf_tensor_desc_t desc = {shape, NULL, ndim, dtype, 0, 0};
    kfi_rt_layout l;
    l.ndim = ndim;
    l.dtype = dtype;
    if (kfi_rt_measure(chain->name, &desc, &l) != KF_SUCCESS)
        return kfi_rt_fail(KF_ERROR_INVALID_SIZE, chain->name, argument,
                           "makes an intermediate tensor %s, expected at most 2^58 elements",
                           kfi_rt_list(shape, ndim).text);
    memset(t, 0, sizeof *t);
    t->object.kind = KFI_RT_TENSOR;
    t->object.ctx = chain->ctx;
    t->storage = &chain->storage;
    t->data = (char *)(uintptr_t)(KFI_RT_NOWHERE + chain->bytes);
    kfi_rt_set_layout(t, &l);
    chain->bytes += ((size_t)l.count * kfi_rt_width(dtype) + 255) / 256 * 256;
    return KF_SUCCESS;
}
/* Returns a view of t. offset: elements from its first element. */
static kf_tensor_t kfi_rt_part(const kf_tensor_t *t, int ndim, const int64_t *shape,
                               const int64_t *strides, int64_t offset)
{
    kf_tensor_t part = *t;
    kfi_rt_layout l;
    l.ndim = ndim;
    l.dtype = t->dtype;
    l.count = 1;
    for (int i = 0; i < ndim; ++i) {
        l.shape[i] = shape[i];
        l.strides[i] = strides[i];
        l.count *= shape[i];
    }
    kfi_rt_set_layout(&part, &l);
    if (part.data && l.count) part.data += offset * (int64_t)kfi_rt_width(t->dtype);
    return part;
}

/* ---- steps */

/* Adds a step without tensors, with all its numbers 0. */
static kfi_rt_step *kfi_rt_add_step(kfi_rt_chain *chain, const kfi_rt_op *op)
{
    static const int64_t zeros[KF_OP_MAX_NUMBERS] = {0};
    kfi_rt_step *const step = &chain->steps[chain->count++];
    memset(step, 0, sizeof *step);
    step->call.op = op;
    step->call.ctx = chain->ctx;
    step->call.stream = chain->stream;
    step->call.tensors = step->tensors;
    step->call.integers = zeros;
    step->call.scalars = step->scalars;
    step->call.dim = op->axis;
    return step;
}
/* Sets an operand. argument: its name in errors. */
static void kfi_rt_bind(kfi_rt_step *step, const char *operand, const char *argument,
                        const kf_tensor_t *t)
{
    for (int i = 0; i < step->call.op->operand_count; ++i) {
        if (strcmp(step->call.op->operands[i].name, operand) != 0) continue;
        step->bound[step->count] = *t;
        step->tensors[i] = &step->bound[step->count++];
        step->arguments[i] = argument;
    }
}
static void kfi_rt_bind_scalar(kfi_rt_step *step, const char *name, double value)
{
    const kfi_rt_op *const op = step->call.op;
    for (int i = 0; i < op->scalars; ++i)
        if (strcmp(op->number_names[op->integers + i], name) == 0) step->scalars[i] = value;
}
/* Checks a step. An error names the function of the chain and its arguments. */
static kf_result_t kfi_rt_prepare_step(const kfi_rt_chain *chain, kfi_rt_step *step)
{
    const kfi_rt_op *const op = step->call.op;
    if (kfi_rt_prepare(&step->call, &step->made) == KF_SUCCESS) return KF_SUCCESS;
    kfi_rt_operand operands[KFI_RT_TENSORS];
    kfi_rt_op named = *op;
    kfi_rt_call call = step->call;
    for (int i = 0; i < op->operand_count; ++i) {
        operands[i] = op->operands[i];
        if (step->arguments[i]) operands[i].name = step->arguments[i];
    }
    named.name = chain->name;
    named.operands = operands;
    call.op = &named;
    return kfi_rt_prepare(&call, &step->made);
}
static size_t kfi_rt_space_of(const kfi_rt_step *step)
{
    const kfi_rt_launcher *const launcher =
        kfi_rt_launcher_of(step->made.entry, step->call.ctx->device->type);
    return launcher->space && !step->made.in_blocks ? launcher->space(step->made.layout.n) : 0;
}
/* Gives intermediate tensors their memory. */
static void kfi_rt_place_step(const kfi_rt_chain *chain, kfi_rt_step *step, char *memory)
{
    for (int i = 0; i < step->count; ++i)
        if (step->bound[i].storage == &chain->storage)
            step->bound[i].data = memory + ((uintptr_t)step->bound[i].data - KFI_RT_NOWHERE);
    for (int i = 0; i < step->call.op->operand_count; ++i)
        if (step->made.t[i]) step->made.t[i] = step->tensors[i]->data;
}
static kf_result_t kfi_rt_run_step(kfi_rt_chain *chain, kfi_rt_step *step, char *workspace)
{
    kfi_rt_prepared *const m = &step->made;
    const size_t bytes = kfi_rt_space_of(step);
    const kf_result_t result =
        m->in_blocks ? kfi_rt_execute(&step->call, m)
                     : kfi_rt_launch(&step->call, m, m->t, m->apart ? m->strides : NULL,
                                     bytes ? workspace : NULL, bytes, 0);
    for (int i = 0; i < step->count; ++i)
        if (step->bound[i].storage != &chain->storage)
            kfi_rt_use(&step->bound[i], chain->ctx, chain->stream);
    return result;
}
static kf_result_t kfi_rt_run_chain(kfi_rt_chain *chain)
{
    size_t workspace = 0;
    for (int i = 0; i < chain->count; ++i) {
        const kf_result_t result = kfi_rt_prepare_step(chain, &chain->steps[i]);
        if (result != KF_SUCCESS) return result;
        const size_t bytes = kfi_rt_space_of(&chain->steps[i]);
        workspace = bytes > workspace ? bytes : workspace;
    }
    void *memory = NULL;
    kf_result_t result = kfi_rt_follow(chain->name, chain->ctx, chain->stream);
    if (result == KF_SUCCESS)
        result = kfi_rt_borrow(chain->name, chain->ctx, chain->bytes + workspace, chain->stream,
                               &memory);
    if (result != KF_SUCCESS) return result;
    for (int i = 0; i < chain->count && result == KF_SUCCESS; ++i) {
        kfi_rt_place_step(chain, &chain->steps[i], (char *)memory);
        result = kfi_rt_run_step(chain, &chain->steps[i], (char *)memory + chain->bytes);
    }
    (void)kfi_rt_give_back(chain->name, chain->ctx, memory, chain->stream);
    return result;
}

#endif
