/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/device_cpu.h: the CPU as the device of a context. Memory comes from malloc, cached by
 * size class; streams finish their work in the call; events are times. */
#ifndef KF_RUNTIME_DEVICE_CPU_H
#define KF_RUNTIME_DEVICE_CPU_H

#include <time.h>
#include <unistd.h>

#include "kf/runtime/move.h"

/* ---- memory */

/* Size classes: 256, 512, ..., 2048 bytes, then four per power of two. */
static int kfi_rt_class(size_t bytes, size_t *size)
{
    size_t step = 256;
    int k = 0;
    for (; bytes > 8 * step; step *= 2) k += 4;
    const size_t units = bytes ? (bytes + step - 1) / step : 1;
    *size = units * step;
    return k + (int)units - 1;
}
static size_t kfi_rt_cpu_round(size_t bytes)
{
    size_t size;
    return kfi_rt_class(bytes, &size), size;
}
/* Frees cached memory, the largest first, until at most `reserved` bytes are reserved. */
static void kfi_rt_trim(kf_context_t *ctx, size_t reserved)
{
    for (int k = KFI_RT_CLASSES - 1; k >= 0; --k)
        while (ctx->kept[k] && ctx->stats.reserved > reserved) {
            void *const found = ctx->kept[k];
            size_t size = 256;
            if (k < 8)
                size *= (size_t)k + 1;
            else
                size = ((size_t)256 << (k - 4) / 4) * (size_t)(k % 4 + 5);
            memcpy(&ctx->kept[k], found, sizeof(void *));
            ctx->stats.reserved -= size;
            free(found);
        }
}
static kf_result_t kfi_rt_cpu_allocate(const char *function, kf_context_t *ctx, size_t bytes,
                                       const kf_stream_t *stream, void **found)
{
    (void)stream;
    size_t size;
    const int k = kfi_rt_class(bytes, &size);
    if ((*found = ctx->kept[k]) != NULL) {
        memcpy(&ctx->kept[k], *found, sizeof(void *));
        ++ctx->stats.hits;
        return KF_SUCCESS;
    }
    /* Size classes do not peak together: without trimming, reserved memory would grow to almost
     * twice the maximum in use. */
    const size_t used = ctx->stats.in_use + size,
                 most = used > ctx->stats.peak ? used : ctx->stats.peak, room = most + most / 8;
    if (ctx->stats.reserved + size > room) kfi_rt_trim(ctx, room - size);
    *found = aligned_alloc(256, size);
    if (!*found) {
        kfi_rt_trim(ctx, 0);
        *found = aligned_alloc(256, size);
    }
    if (!*found)
        return kfi_rt_fail(KF_ERROR_OUT_OF_MEMORY, function, "bytes",
                           "is %zu: the system has no more", bytes);
    ctx->stats.reserved += size;
    return KF_SUCCESS;
}
static kf_result_t kfi_rt_cpu_release(const char *function, kf_context_t *ctx, void *ptr,
                                      size_t bytes, const kf_stream_t *stream)
{
    (void)function, (void)stream;
    size_t size;
    const int k = kfi_rt_class(bytes, &size);
    memcpy(ptr, &ctx->kept[k], sizeof(void *));
    ctx->kept[k] = ptr;
    return KF_SUCCESS;
}
static kf_result_t kfi_rt_cpu_clear(const char *function, kf_context_t *ctx)
{
    return (void)function, kfi_rt_trim(ctx, 0), KF_SUCCESS;
}
static kf_result_t kfi_rt_cpu_count(const char *function, kf_context_t *ctx)
{
    return (void)function, (void)ctx, KF_SUCCESS;
}
static void kfi_rt_cpu_free(kf_context_t *ctx, void *ptr) { (void)ctx, free(ptr); }

/* ---- the device */

static kf_result_t kfi_rt_cpu_open(const char *function, kf_context_t *ctx)
{
    return (void)function, (void)ctx, KF_SUCCESS;
}
static void kfi_rt_cpu_close(kf_context_t *ctx) { kfi_rt_trim(ctx, 0); }
static kf_result_t kfi_rt_cpu_info(const char *function, const kf_context_t *ctx,
                                   kf_device_info_t *info)
{
    (void)function, (void)ctx;
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "CPU");
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE),
               processors = sysconf(_SC_NPROCESSORS_ONLN);
    info->memory = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
    info->multiprocessors = processors > 0 ? (int32_t)processors : 1;
    info->device_type = KF_DEVICE_CPU;
    return KF_SUCCESS;
}

/* ---- streams and events */

static double kfi_rt_seconds(void)
{
    struct timespec now;
#ifdef CLOCK_MONOTONIC
    clock_gettime(CLOCK_MONOTONIC, &now);
#else /* -std=c11 without POSIX */
    timespec_get(&now, TIME_UTC);
#endif
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
static kf_result_t kfi_rt_cpu_stream(const char *function, kf_stream_t *stream,
                                     const kf_stream_config_t *config)
{
    return (void)function, (void)stream, (void)config, KF_SUCCESS;
}
static void kfi_rt_cpu_stream_destroy(kf_stream_t *stream) { (void)stream; }
static kf_result_t kfi_rt_cpu_synchronize(const char *function, const kf_context_t *ctx,
                                          const kf_stream_t *stream)
{
    return (void)function, (void)ctx, (void)stream, KF_SUCCESS;
}
static kf_result_t kfi_rt_cpu_wait(const char *function, const kf_context_t *ctx,
                                   const kf_stream_t *stream, const kf_event_t *event)
{
    return (void)function, (void)ctx, (void)stream, (void)event, KF_SUCCESS;
}
static kf_result_t kfi_rt_cpu_follow(const char *function, const kf_context_t *ctx,
                                     const kf_stream_t *stream, int *follows)
{
    return (void)function, (void)ctx, (void)stream, *follows = 1, KF_SUCCESS;
}
static kf_result_t kfi_rt_cpu_is_captured(const char *function, const kf_stream_t *stream,
                                          int *is_captured)
{
    return (void)function, (void)stream, *is_captured = 0, KF_SUCCESS;
}
static kf_result_t kfi_rt_cpu_event(const char *function, kf_event_t *event)
{
    return (void)function, (void)event, KF_SUCCESS;
}
static void kfi_rt_cpu_event_destroy(kf_event_t *event) { (void)event; }
static kf_result_t kfi_rt_cpu_record(const char *function, kf_event_t *event,
                                     const kf_stream_t *stream)
{
    (void)function, (void)stream;
    event->at = kfi_rt_seconds();
    return KF_SUCCESS;
}
static kf_result_t kfi_rt_cpu_query(const char *function, const kf_event_t *event, int *is_done)
{
    return (void)function, (void)event, *is_done = 1, KF_SUCCESS;
}
static kf_result_t kfi_rt_cpu_elapsed(const char *function, const kf_event_t *begin,
                                      const kf_event_t *end, float *ms)
{
    return (void)function, *ms = (float)((end->at - begin->at) * 1e3), KF_SUCCESS;
}
static kf_result_t kfi_rt_cpu_event_wait(const char *function, const kf_event_t *event)
{
    return (void)function, (void)event, KF_SUCCESS;
}

static kf_result_t kfi_rt_cpu_move(const char *function, const kf_context_t *ctx, char *to,
                                   const char *from, const kfi_rt_pair *p, size_t width,
                                   const kf_stream_t *stream)
{
    const int dtype = width == 1   ? KF_U8
                      : width == 2 ? KF_F16
                      : width == 4 ? KF_F32
                                   : KF_F64; /* the type of that width */
    (void)function, (void)ctx, (void)stream;
    kfi_rt_copy_host(to, dtype, from, dtype, p);
    return KF_SUCCESS;
}
static int kfi_rt_cpu_make_current(const kf_context_t *ctx) { return (void)ctx, 0; }
static void kfi_rt_cpu_restore(int before) { (void)before; }

static const kfi_rt_device kfi_rt_cpu = {
    KF_DEVICE_CPU,          kfi_rt_cpu_open,         kfi_rt_cpu_close,
    kfi_rt_cpu_info,        kfi_rt_cpu_make_current, kfi_rt_cpu_restore,
    kfi_rt_cpu_round,       kfi_rt_cpu_allocate,     kfi_rt_cpu_release,
    kfi_rt_cpu_clear,       kfi_rt_cpu_count,        kfi_rt_cpu_free,
    kfi_rt_cpu_move,        kfi_rt_cpu_stream,       kfi_rt_cpu_stream_destroy,
    kfi_rt_cpu_synchronize, kfi_rt_cpu_wait,         kfi_rt_cpu_follow,
    kfi_rt_cpu_is_captured, kfi_rt_cpu_event,        kfi_rt_cpu_event_destroy,
    kfi_rt_cpu_record,      kfi_rt_cpu_query,        kfi_rt_cpu_event_wait,
    kfi_rt_cpu_elapsed};

#endif
