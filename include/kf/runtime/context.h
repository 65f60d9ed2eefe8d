/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/context.h: contexts and the lifetime of objects. */
#ifndef KF_RUNTIME_CONTEXT_H
#define KF_RUNTIME_CONTEXT_H

#include "kf/runtime/device_cpu.h"

/* ---- lifetimes: a context counts its objects and ends with the last of them */

static void kfi_rt_retain(kf_context_t *ctx)
{
    __atomic_add_fetch(&ctx->refs, 1, __ATOMIC_RELAXED);
}
static void kfi_rt_free_context(kf_context_t *ctx)
{
    ctx->device->close(ctx);
    while (ctx->destroyed) {
        kfi_rt_object *const found = ctx->destroyed;
        ctx->destroyed = found->next;
        free(found);
    }
    pthread_mutex_destroy(&ctx->lock);
    free(ctx->living.of);
    free(ctx);
}
static void kfi_rt_leave(kf_context_t *ctx)
{
    if (__atomic_sub_fetch(&ctx->refs, 1, __ATOMIC_ACQ_REL) == 0) kfi_rt_free_context(ctx);
}
/* Allocates an object of a context, `size` bytes of zeros. Its address is that of its first member.
 */
static void *kfi_rt_make(const char *function, kf_context_t *ctx, int kind, size_t size)
{
    kfi_rt_object *const made = (kfi_rt_object *)calloc(1, size);
    if (!made)
        return KFI_RT_NULL(void, KF_ERROR_OUT_OF_MEMORY, function, kfi_rt_word(kind),
                           "of %zu bytes: the system has no more", size);
    made->kind = kind;
    made->ctx = ctx;
    kfi_rt_retain(ctx);
    return made;
}
static void kfi_rt_unmake(kfi_rt_object *object)
{
    kf_context_t *const ctx = object->ctx;
    object->kind = KFI_RT_DEAD;
    if (ctx->debug) {
        pthread_mutex_lock(&ctx->lock);
        object->next = ctx->destroyed;
        ctx->destroyed = object;
        pthread_mutex_unlock(&ctx->lock);
    } else
        free(object);
    kfi_rt_leave(ctx);
}

static const kfi_rt_device *kfi_rt_device_of(int device)
{
    if (device == -1) return &kfi_rt_cpu;
#ifdef KFI_RT_CUDA
    if (device >= 0) return &kfi_rt_cuda;
#endif
    return NULL;
}

#ifdef __cplusplus
extern "C" {
#endif

kf_context_t *kf_context_create_abi(int device, int abi)
{
    const char *const function = "kf_context_create";
    if (abi != KF_RUNTIME_ABI)
        return KFI_RT_NULL(kf_context_t, KF_ERROR_UNSUPPORTED, function, "KF_RUNTIME_ABI",
                           "is %d in the caller's file, expected %d as in the file with "
                           "KF_RUNTIME_IMPLEMENTATION: compile both again",
                           abi, KF_RUNTIME_ABI);
    const kfi_rt_device *const found = kfi_rt_device_of(device);
    if (!found && device >= 0)
        return KFI_RT_NULL(kf_context_t, KF_ERROR_UNSUPPORTED, function, "device",
                           "is %d, expected -1, the CPU: KF_RUNTIME_IMPLEMENTATION was compiled "
                           "without CUDA; in a .cu it has both",
                           device);
    if (!found)
        return KFI_RT_NULL(kf_context_t, KF_ERROR_INVALID_VALUE, function, "device",
                           "is %d, expected -1 (the CPU) or the number of a GPU", device);
    kf_context_t *const ctx = (kf_context_t *)calloc(1, sizeof *ctx);
    if (!ctx)
        return KFI_RT_NULL(kf_context_t, KF_ERROR_OUT_OF_MEMORY, function, "a context",
                           "of %zu bytes: the system has no more", sizeof *ctx);
    ctx->object.kind = KFI_RT_CONTEXT;
    ctx->object.ctx = ctx;
    ctx->device = found;
    ctx->id = device < 0 ? 0 : device;
    ctx->refs = 1;
    if (found->open(function, ctx) != KF_SUCCESS) return free(ctx), (kf_context_t *)NULL;
    pthread_mutex_init(&ctx->lock, NULL);
    return ctx;
}
kf_result_t kf_context_destroy(kf_context_t *ctx)
{
    if (!ctx) return KF_SUCCESS;
    const kf_result_t result = KFI_RT_CHECK("kf_context_destroy", "ctx", ctx, KFI_RT_CONTEXT);
    if (result != KF_SUCCESS) return result;
    ctx->closed = 1;
    kfi_rt_leave(ctx);
    return KF_SUCCESS;
}
kf_result_t kf_context_synchronize(kf_context_t *ctx)
{
    const kf_result_t result = KFI_RT_CHECK("kf_context_synchronize", "ctx", ctx, KFI_RT_CONTEXT);
    return result == KF_SUCCESS ? ctx->device->synchronize("kf_context_synchronize", ctx, NULL)
                                : result;
}
kf_result_t kf_context_get_device_info(const kf_context_t *ctx, kf_device_info_t *info)
{
    const char *const function = "kf_context_get_device_info";
    const kf_result_t result = KFI_RT_CHECK(function, "ctx", ctx, KFI_RT_CONTEXT);
    if (result != KF_SUCCESS) return result;
    if (!info)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, function, "info",
                           "is NULL, expected room for what is known of the device");
    return ctx->device->info(function, ctx, info);
}
kf_result_t kf_set_debug_mode(kf_context_t *ctx, int on)
{
    const kf_result_t result = KFI_RT_CHECK("kf_set_debug_mode", "ctx", ctx, KFI_RT_CONTEXT);
    if (result == KF_SUCCESS) ctx->debug = on != 0;
    return result;
}
const char *kf_runtime_error_detail(void) { return kf_get_last_error_detail(); }

#ifdef __cplusplus
}
#endif

#endif
