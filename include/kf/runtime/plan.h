/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/plan.h: calls that are checked and chosen once. */
#ifndef KF_RUNTIME_PLAN_H
#define KF_RUNTIME_PLAN_H

#include "kf/runtime/lookup.h"

struct kf_plan_t {
    kfi_rt_object object;
    kfi_rt_call call; /* its arrays are the plan's own, below */
    kfi_rt_prepared made;
    kf_tensor_t shapes[KFI_RT_TENSORS];
    const kf_tensor_t *tensors[KFI_RT_TENSORS];
    int64_t integers[KF_OP_MAX_NUMBERS];
    double scalars[KF_OP_MAX_NUMBERS], act_scalars[4];
};

static void kfi_rt_keep(kf_plan_t *plan, const kfi_rt_call *call)
{
    const kfi_rt_op *const op = call->op;
    plan->call = *call;
    for (int i = 0; i < op->operand_count; ++i)
        if (call->tensors[i])
            plan->shapes[i] = *call->tensors[i], plan->tensors[i] = &plan->shapes[i];
    for (int i = 0; i < op->integers; ++i) plan->integers[i] = call->integers[i];
    for (int i = 0; i < op->scalars; ++i) plan->scalars[i] = call->scalars[i];
    for (int i = 0;
         i < 4 && call->act_scalars && i < op->activations[plan->made.activation].scalars; ++i)
        plan->act_scalars[i] = call->act_scalars[i];
    plan->call.tensors = plan->tensors;
    plan->call.integers = plan->integers;
    plan->call.scalars = plan->scalars;
    if (call->act_scalars) plan->call.act_scalars = plan->act_scalars;
}
/* Runs a plan whose strides no launcher takes. The overlap check repeats, because it depends on the
 * addresses. */
static kf_result_t kfi_rt_run_plan_in_blocks(const kf_plan_t *plan, kfi_rt_call *call,
                                             kfi_rt_prepared *made, void *const *pointers)
{
    kf_tensor_t shapes[KFI_RT_TENSORS];
    const kf_tensor_t *tensors[KFI_RT_TENSORS];
    for (int i = 0; i < call->op->operand_count; ++i) {
        tensors[i] = made->t[i] ? &shapes[i]
                                : NULL; /* the launcher reports a missing tensor before it writes */
        if (!tensors[i]) continue;
        shapes[i] = plan->shapes[i];
        shapes[i].data = (char *)pointers[i];
        /* The launcher does not see operands that are copied to contiguous memory. */
        const size_t width = kfi_rt_width(shapes[i].dtype);
        if ((uintptr_t)pointers[i] % width)
            return kfi_rt_fail(KF_ERROR_MISALIGNED, "kf_plan_run", call->op->operands[i].name,
                               "is %p, expected a multiple of %zu", pointers[i], width);
    }
    call->tensors = tensors;
    return kfi_rt_execute(call, made);
}

#ifdef __cplusplus
extern "C" {
#endif

kf_plan_t *kf_plan_create(kf_context_t *ctx, const kf_op_t *op, const kf_op_arguments_t *arguments)
{
    const char *const function = "kf_plan_create";
    if (KFI_RT_CHECK(function, "ctx", ctx, KFI_RT_CONTEXT) != KF_SUCCESS) return NULL;
    if (kfi_rt_check_op(function, op) != KF_SUCCESS ||
        kfi_rt_check_arguments(function, op, arguments) != KF_SUCCESS)
        return NULL;
    const kfi_rt_call call = kfi_rt_call_of(ctx, op, arguments, NULL);
    kfi_rt_prepared made;
    if (kfi_rt_prepare(&call, &made) != KF_SUCCESS) return NULL;
    kf_plan_t *const plan = (kf_plan_t *)kfi_rt_make(function, ctx, KFI_RT_PLAN, sizeof *plan);
    if (!plan) return NULL;
    plan->made = made;
    kfi_rt_keep(plan, &call);
    return plan;
}
kf_result_t kf_plan_run(const kf_plan_t *plan, void *const *pointers, kf_stream_t *stream)
{
    const char *const function = "kf_plan_run";
    kf_result_t result = KFI_RT_CHECK(function, "plan", plan, KFI_RT_PLAN);
    if (result == KF_SUCCESS) result = kfi_rt_check_stream(function, plan->object.ctx, stream);
    if (result != KF_SUCCESS) return result;
    if (!pointers)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, function, "pointers", "is NULL, expected %d",
                           plan->call.op->operand_count);
    result = kfi_rt_follow(function, plan->object.ctx, stream);
    if (result != KF_SUCCESS) return result;
    kfi_rt_call call = plan->call;
    kfi_rt_prepared made = plan->made;
    call.stream = stream;
    for (int i = 0; i < call.op->operand_count; ++i) made.t[i] = made.t[i] ? pointers[i] : NULL;
    return made.in_blocks ? kfi_rt_run_plan_in_blocks(plan, &call, &made, pointers)
                          : kfi_rt_run_whole(&call, &made);
}
kf_result_t kf_plan_destroy(kf_plan_t *plan)
{
    if (!plan) return KF_SUCCESS;
    const kf_result_t result = KFI_RT_CHECK("kf_plan_destroy", "plan", plan, KFI_RT_PLAN);
    if (result == KF_SUCCESS) kfi_rt_unmake(&plan->object);
    return result;
}

#ifdef __cplusplus
}
#endif

#endif
