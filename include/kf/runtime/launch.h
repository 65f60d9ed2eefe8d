/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/launch.h: runs a launcher on the device of a call's context. */
#ifndef KF_RUNTIME_LAUNCH_H
#define KF_RUNTIME_LAUNCH_H

#include "kf/runtime/sizes.h"

/* Collects the launcher's scalars: those of the op, those of the activation, p and beta. */
static void kfi_rt_gather_scalars(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    const kfi_rt_activation *const a = &c->op->activations[m->activation];
    int at = 0;
    for (int i = 0; i < c->op->scalars; ++i) m->s[at++] = c->scalars[i];
    for (int i = 0; i < a->scalars; ++i)
        m->s[at++] = c->act_scalars ? c->act_scalars[i] : a->scalar[i];
    m->s[KFI_RT_P] = c->p;
    m->s[KFI_RT_BETA] = c->beta;
}
static const kfi_rt_launcher *kfi_rt_launcher_of(const kf_op_t *entry, int device_type)
{
    return device_type == KF_DEVICE_CPU ? &entry->cpu : &entry->cuda;
}
/* is_apart: calls the function for strided tensors, whose layout is at `strides`. */
static kf_result_t kfi_rt_launch(const kfi_rt_call *c, const kfi_rt_prepared *m, void *const *t,
                                 const int64_t *strides, void *room, size_t bytes, int is_apart)
{
    kf_context_t *const ctx = c->ctx;
    const int before = ctx->device->make_current(ctx);
    const kfi_rt_launcher *const launcher = kfi_rt_launcher_of(m->entry, ctx->device->type);
    const kfi_rt_function run = is_apart ? launcher->apart : launcher->run;
    kf_result_t result = run(t, m->layout.n, strides, m->s, c->op->activations[m->activation].id,
                             c->rng, room, bytes, c->stream ? c->stream->native : NULL);
    if (result == KF_SUCCESS && ctx->debug)
        result = ctx->device->synchronize(c->op->name, ctx, c->stream);
    ctx->device->restore(before);
    return result;
}
/* Runs a call whose tensors the launcher takes as they are. */
static kf_result_t kfi_rt_run_whole(const kfi_rt_call *c, kfi_rt_prepared *m)
{
    const kfi_rt_launcher *const launcher = kfi_rt_launcher_of(m->entry, c->ctx->device->type);
    const size_t bytes = launcher->space ? launcher->space(m->layout.n) : 0;
    void *room = NULL;
    kf_result_t result =
        bytes ? kfi_rt_borrow(c->op->name, c->ctx, bytes, c->stream, &room) : KF_SUCCESS;
    if (result != KF_SUCCESS) return result;
    result = kfi_rt_launch(c, m, m->t, m->apart ? m->strides : NULL, room, bytes, 0);
    if (room) (void)kfi_rt_give_back(c->op->name, c->ctx, room, c->stream);
    return result;
}

#endif
