/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/stream.h: streams and events. */
#ifndef KF_RUNTIME_STREAM_H
#define KF_RUNTIME_STREAM_H

#include "kf/runtime/context.h"

static void kfi_rt_stream_leave(kf_stream_t *stream)
{
    if (__atomic_sub_fetch(&stream->refs, 1, __ATOMIC_ACQ_REL) == 0) kfi_rt_unmake(&stream->object);
}
static kf_stream_t *kfi_rt_new_stream(const char *function, kf_context_t *ctx)
{
    if (KFI_RT_CHECK(function, "ctx", ctx, KFI_RT_CONTEXT) != KF_SUCCESS) return NULL;
    kf_stream_t *const stream =
        (kf_stream_t *)kfi_rt_make(function, ctx, KFI_RT_STREAM, sizeof *stream);
    if (stream) stream->refs = 1;
    return stream;
}
/* Makes a context's default stream wait for the work so far on a stream of this or another context,
 * through a temporary event. A CPU has no stream that waits: the caller waits instead. */
static kf_result_t kfi_rt_join(const char *function, const kf_context_t *ctx, kf_context_t *of,
                               const kf_stream_t *stream)
{
    kf_event_t event = {{KFI_RT_EVENT, of, NULL}, 0, NULL, 0};
    kf_result_t result = of->device->event_create(function, &event);
    if (result != KF_SUCCESS) return result;
    result = of->device->record(function, &event, stream);
    if (result == KF_SUCCESS)
        result = ctx->device == of->device ? ctx->device->wait(function, ctx, NULL, &event)
                                           : of->device->event_wait(function, &event);
    of->device->event_destroy(&event);
    return result;
}
/* The pool reuses memory in the order of the default stream, so another stream may still work on
 * it. A stream therefore waits before it receives work on tensors, if any were made since it last
 * waited. */
static kf_result_t kfi_rt_follow(const char *function, kf_context_t *ctx, kf_stream_t *stream)
{
    if (!stream) return KF_SUCCESS;
    const long made = __atomic_load_n(&ctx->made, __ATOMIC_ACQUIRE);
    const int is_own = stream->object.ctx == ctx;
    if (is_own && __atomic_load_n(&stream->behind, __ATOMIC_ACQUIRE) >= made) return KF_SUCCESS;
    int follows = 0;
    const kf_result_t result = ctx->device->follow(function, ctx, stream, &follows);
    if (follows && is_own) __atomic_store_n(&stream->behind, made, __ATOMIC_RELEASE);
    return result;
}

#ifdef __cplusplus
extern "C" {
#endif

kf_stream_t *kf_stream_create(kf_context_t *ctx, const kf_stream_config_t *config)
{
    const char *const function = "kf_stream_create";
    const kf_stream_config_t defaults = {0, 0, 0}, *const c = config ? config : &defaults;
    kf_stream_t *const stream = kfi_rt_new_stream(function, ctx);
    if (!stream) return NULL;
    kf_result_t result = KF_SUCCESS;
    if (c->flags & ~KF_STREAM_NON_BLOCKING)
        result = kfi_rt_fail(KF_ERROR_INVALID_VALUE, function, "flags",
                             "is %d, expected 0 or KF_STREAM_NON_BLOCKING", c->flags);
    else if (c->device_id != 0 && c->device_id != ctx->id)
        result = kfi_rt_fail(KF_ERROR_DEVICE, function, "device_id",
                             "is %d, expected 0 or the context's, %d", c->device_id, ctx->id);
    else
        result = ctx->device->stream_create(function, stream, c);
    if (result != KF_SUCCESS) return kfi_rt_unmake(&stream->object), (kf_stream_t *)NULL;
    stream->is_own = 1;
    return stream;
}
kf_stream_t *kf_stream_wrap(kf_context_t *ctx, struct CUstream_st *native)
{
    kf_stream_t *const stream = kfi_rt_new_stream("kf_stream_wrap", ctx);
    if (stream) stream->native = native;
    return stream;
}
struct CUstream_st *kf_stream_native(const kf_stream_t *stream)
{
    return KFI_RT_CHECK("kf_stream_native", "stream", stream, KFI_RT_STREAM) == KF_SUCCESS
               ? stream->native
               : NULL;
}
kf_result_t kf_stream_synchronize(kf_stream_t *stream)
{
    const char *const function = "kf_stream_synchronize";
    const kf_result_t result = KFI_RT_CHECK(function, "stream", stream, KFI_RT_STREAM);
    return result == KF_SUCCESS
               ? stream->object.ctx->device->synchronize(function, stream->object.ctx, stream)
               : result;
}
kf_result_t kf_stream_wait_event(kf_stream_t *stream, kf_event_t *event)
{
    const char *const function = "kf_stream_wait_event";
    kf_result_t result = KFI_RT_CHECK(function, "event", event, KFI_RT_EVENT);
    if (result == KF_SUCCESS && stream)
        result = KFI_RT_CHECK(function, "stream", stream, KFI_RT_STREAM);
    if (result != KF_SUCCESS || !event->is_recorded) return result;
    const kf_context_t *const ctx =
        stream ? stream->object.ctx : event->object.ctx; /* events may cross contexts */
    return ctx->device == event->object.ctx->device
               ? ctx->device->wait(function, ctx, stream, event)
               : event->object.ctx->device->event_wait(function, event);
}
kf_result_t kf_stream_destroy(kf_stream_t *stream)
{
    const char *const function = "kf_stream_destroy";
    if (!stream) return KF_SUCCESS;
    kf_result_t result = KFI_RT_CHECK(function, "stream", stream, KFI_RT_STREAM);
    if (result != KF_SUCCESS) return result;
    /* captured work does not run: nothing waits for it, since waiting would end the capture */
    kf_context_t *const ctx = stream->object.ctx;
    int is_captured = 0;
    result = ctx->device->is_captured(function, stream, &is_captured);
    if (result == KF_SUCCESS && !is_captured) result = kfi_rt_join(function, ctx, ctx, stream);
    if (result != KF_SUCCESS) return result;
    stream->closed = 1;
    if (stream->is_own) stream->object.ctx->device->stream_destroy(stream);
    stream->native = NULL;
    stream->object.kind = KFI_RT_DEAD;
    kfi_rt_stream_leave(stream);
    return KF_SUCCESS;
}

kf_event_t *kf_event_create(kf_context_t *ctx)
{
    const char *const function = "kf_event_create";
    if (KFI_RT_CHECK(function, "ctx", ctx, KFI_RT_CONTEXT) != KF_SUCCESS) return NULL;
    kf_event_t *const event = (kf_event_t *)kfi_rt_make(function, ctx, KFI_RT_EVENT, sizeof *event);
    if (event && ctx->device->event_create(function, event) != KF_SUCCESS)
        return kfi_rt_unmake(&event->object), (kf_event_t *)NULL;
    return event;
}
kf_result_t kf_event_record(kf_event_t *event, kf_stream_t *stream)
{
    const char *const function = "kf_event_record";
    kf_result_t result = KFI_RT_CHECK(function, "event", event, KFI_RT_EVENT);
    if (result == KF_SUCCESS) result = kfi_rt_check_stream(function, event->object.ctx, stream);
    if (result == KF_SUCCESS) result = event->object.ctx->device->record(function, event, stream);
    if (result == KF_SUCCESS) event->is_recorded = 1;
    return result;
}
kf_result_t kf_event_query(kf_event_t *event, int *is_done)
{
    const char *const function = "kf_event_query";
    const kf_result_t result = KFI_RT_CHECK(function, "event", event, KFI_RT_EVENT);
    if (result != KF_SUCCESS) return result;
    if (!is_done)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, function, "is_done",
                           "is NULL, expected room for the answer");
    if (!event->is_recorded) return *is_done = 1, KF_SUCCESS;
    return event->object.ctx->device->query(function, event, is_done);
}
kf_result_t kf_event_synchronize(kf_event_t *event)
{
    const char *const function = "kf_event_synchronize";
    const kf_result_t result = KFI_RT_CHECK(function, "event", event, KFI_RT_EVENT);
    return result == KF_SUCCESS && event->is_recorded
               ? event->object.ctx->device->event_wait(function, event)
               : result;
}
kf_result_t kf_event_elapsed_ms(kf_event_t *begin, kf_event_t *end, float *ms)
{
    const char *const function = "kf_event_elapsed_ms";
    kf_result_t result = KFI_RT_CHECK(function, "begin", begin, KFI_RT_EVENT);
    if (result == KF_SUCCESS) result = KFI_RT_CHECK(function, "end", end, KFI_RT_EVENT);
    if (result != KF_SUCCESS) return result;
    if (!ms)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, function, "ms",
                           "is NULL, expected room for the answer");
    if (!begin->is_recorded || !end->is_recorded)
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, function, begin->is_recorded ? "end" : "begin",
                           "was not recorded, expected kf_event_record before");
    if (begin->object.ctx != end->object.ctx)
        return kfi_rt_fail(KF_ERROR_DEVICE, function, "end",
                           "is of another context, expected that of begin");
    return begin->object.ctx->device->elapsed(function, begin, end, ms);
}
kf_result_t kf_event_destroy(kf_event_t *event)
{
    if (!event) return KF_SUCCESS;
    const kf_result_t result = KFI_RT_CHECK("kf_event_destroy", "event", event, KFI_RT_EVENT);
    if (result != KF_SUCCESS) return result;
    event->object.ctx->device->event_destroy(event);
    kfi_rt_unmake(&event->object);
    return KF_SUCCESS;
}

#ifdef __cplusplus
}
#endif

#endif
