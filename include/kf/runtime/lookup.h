/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/lookup.h: finds functions by name and calls them. */
#ifndef KF_RUNTIME_LOOKUP_H
#define KF_RUNTIME_LOOKUP_H

#include "kf/runtime/call.h"

static int kfi_rt_is_named(const kfi_rt_op *op, const char *name)
{
    if (strcmp(op->plain, name) == 0) return 1;
    for (const char *const *other = op->other_names; *other; ++other)
        if (strcmp(*other, name) == 0) return 1;
    return 0;
}
static int kfi_rt_has_dtypes(const kf_op_t *entry, const int *dtypes, int count)
{
    int same = !count || count == entry->word_count;
    for (int i = 0; i < count && same; ++i) same = entry->word[i] == dtypes[i];
    return same;
}
static kf_result_t kfi_rt_check_op(const char *function, const kf_op_t *op)
{
    return op ? KF_SUCCESS
              : kfi_rt_fail(KF_ERROR_NULL_POINTER, function, "op",
                            "is NULL, expected what kf_op_lookup found");
}
static kf_result_t kfi_rt_check_arguments(const char *function, const kf_op_t *op,
                                          const kf_op_arguments_t *a)
{
    const char *const missing = !a                                 ? "arguments"
                                : !a->tensors                      ? "tensors"
                                : op->op->integers && !a->integers ? "integers"
                                : op->op->scalars && !a->scalars   ? "scalars"
                                                                   : NULL;
    return missing ? kfi_rt_fail(KF_ERROR_NULL_POINTER, function, missing,
                                 "is NULL, expected those of %s", op->launcher)
                   : KF_SUCCESS;
}
static kfi_rt_call kfi_rt_call_of(kf_context_t *ctx, const kf_op_t *op, const kf_op_arguments_t *a,
                                  kf_stream_t *stream)
{
    kfi_rt_call c;
    memset(&c, 0, sizeof c);
    c.op = op->op;
    c.entry = op;
    c.ctx = ctx;
    c.stream = stream;
    c.tensors = a->tensors;
    c.integers = a->integers;
    c.scalars = a->scalars;
    c.act_scalars = a->act_scalars;
    c.groups = a->groups;
    c.dim = op->op->chooses_axis ? a->dim : op->op->axis;
    c.p = a->p;
    c.beta = a->beta;
    c.rng[0] = a->seed;
    c.rng[1] = a->offset;
    c.activation = op->op->activations[op->activation].id;
    return c;
}

#ifdef __cplusplus
extern "C" {
#endif

int kf_op_count(void)
{
    int count = 0;
    for (const kfi_rt_op *const *op = __start_kf_rt_ops; op < __stop_kf_rt_ops; ++op)
        count += (*op)->entry_count;
    return count;
}
const kf_op_t *kf_op_at(int index)
{
    int left = index;
    for (const kfi_rt_op *const *op = __start_kf_rt_ops; op < __stop_kf_rt_ops && index >= 0;
         ++op) {
        if (left < (*op)->entry_count) return &(*op)->entries[left];
        left -= (*op)->entry_count;
    }
    return KFI_RT_NULL(const kf_op_t, KF_ERROR_INVALID_VALUE, "kf_op_at", "index",
                       "is %d, expected 0 to %d", index, kf_op_count() - 1);
}
const kf_op_t *kf_op_lookup(const char *name, kf_activation_t activation, const int *dtypes,
                            int count, int device_type)
{
    const char *const function = "kf_op_lookup";
    if (!name)
        return KFI_RT_NULL(const kf_op_t, KF_ERROR_NULL_POINTER, function, "name",
                           "is NULL, expected that of an op");
    if (count < 0 || count > 3 || (count && !dtypes))
        return KFI_RT_NULL(const kf_op_t, KF_ERROR_INVALID_VALUE, function, "dtypes",
                           "are %d at %p, expected 1 to 3", count, (const void *)dtypes);
    const kfi_rt_op *named = NULL;
    int with_activation = 0;
    for (const kfi_rt_op *const *op = __start_kf_rt_ops; op < __stop_kf_rt_ops; ++op) {
        if (!kfi_rt_is_named(*op, name)) continue;
        named = *op;
        for (int i = 0; i < (*op)->entry_count; ++i) {
            const kf_op_t *const e = &(*op)->entries[i];
            if ((*op)->activations[e->activation].id != activation) continue;
            with_activation = 1;
            if (kfi_rt_has_dtypes(e, dtypes, count) &&
                (!device_type || kfi_rt_has_device(e, device_type)))
                return e;
        }
    }
    if (!named)
        return KFI_RT_NULL(const kf_op_t, KF_ERROR_UNSUPPORTED, function, "name",
                           "is %.60s, which this program does not have (kfgen runtime --ops)",
                           name);
    if (!with_activation) {
        (void)kfi_rt_lacks_activation(function, name, named, activation);
        return NULL;
    }
    return KFI_RT_NULL(const kf_op_t, KF_ERROR_DTYPE, function, "dtypes",
                       "are %s%s%s, which %.60s does not have in this program (kfgen runtime "
                       "--dtypes, KF_RUNTIME_DTYPES)",
                       count ? kfi_rt_dtype(dtypes[0]) : "none", count > 1 ? ", " : "",
                       count > 1 ? kfi_rt_dtype(dtypes[1]) : "", name);
}
kf_result_t kf_op_get_info(const kf_op_t *op, kf_op_info_t *info)
{
    const kf_result_t result = kfi_rt_check_op("kf_op_get_info", op);
    if (result != KF_SUCCESS) return result;
    if (!info)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, "kf_op_get_info", "info",
                           "is NULL, expected room for what is known of the op");
    const kfi_rt_op *const of = op->op;
    const kfi_rt_activation *const a = &of->activations[op->activation];
    memset(info, 0, sizeof *info);
    info->name = of->plain, info->activation = a->name, info->launcher = op->launcher;
    info->activation_id = a->id;
    info->on_cpu = op->cpu.run != NULL, info->on_cuda = op->cuda.run != NULL;
    info->takes_dim = of->chooses_axis, info->takes_groups = of->chooses_groups,
    info->takes_dropout = of->dropout;
    info->takes_beta = of->has_beta;
    info->tensor_count = of->operand_count, info->integer_count = of->integers,
    info->scalar_count = of->scalars;
    info->act_scalar_count = a->scalars;
    for (int i = 0; i < of->operand_count; ++i) {
        const kfi_rt_operand *const o = &of->operands[i];
        info->tensors[i].name = o->name;
        info->tensors[i].dtype =
            kfi_rt_wanted_dtype(o->var, op->dtype[0], op->dtype[1], op->dtype[2]);
        info->tensors[i].is_output = o->is_out;
        info->tensors[i].is_required =
            !(o->missing >> op->activation & 1u) && kfi_rt_is_read(o, op->activation);
    }
    for (int i = 0; i < of->integers; ++i) info->integers[i] = of->number_names[i];
    for (int i = 0; i < of->scalars; ++i) info->scalars[i] = of->number_names[of->integers + i];
    for (int i = 0; i < a->scalars; ++i)
        info->act_scalars[i] = a->scalar_name[i], info->act_defaults[i] = a->scalar[i];
    return KF_SUCCESS;
}
kf_result_t kf_op_call(kf_context_t *ctx, const kf_op_t *op, const kf_op_arguments_t *arguments,
                       kf_stream_t *stream)
{
    kf_result_t result = KFI_RT_CHECK("kf_op_call", "ctx", ctx, KFI_RT_CONTEXT);
    if (result == KF_SUCCESS) result = kfi_rt_check_stream("kf_op_call", ctx, stream);
    if (result == KF_SUCCESS) result = kfi_rt_check_op("kf_op_call", op);
    if (result == KF_SUCCESS) result = kfi_rt_check_arguments("kf_op_call", op, arguments);
    if (result != KF_SUCCESS) return result;
    const kfi_rt_call call = kfi_rt_call_of(ctx, op, arguments, stream);
    return kfi_rt_run(&call);
}

#ifdef __cplusplus
}
#endif

#include "kf/runtime/plan.h"

#endif
