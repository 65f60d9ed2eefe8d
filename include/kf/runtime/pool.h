/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/pool.h: a context's memory pool: live allocations, the limit, the statistics. The
 * device allocates and caches the memory. */
#ifndef KF_RUNTIME_POOL_H
#define KF_RUNTIME_POOL_H

#include "kf/runtime/state.h"

/* ---- the table of live allocations */

static size_t kfi_rt_place(const kfi_rt_table *table, uintptr_t at)
{
    size_t i = (size_t)((uint64_t)(at >> 8) * 0x9e3779b97f4a7c15u >> 20) & (table->places - 1);
    while (table->of[i].at && table->of[i].at != at) i = (i + 1) & (table->places - 1);
    return i;
}
/* Makes room for one more entry; returns 0 if there is no memory for it. */
static int kfi_rt_grow(kfi_rt_table *table)
{
    if (2 * (table->count + 1) <= table->places) return 1;
    kfi_rt_table larger = {NULL, table->places ? 2 * table->places : 64, table->count};
    larger.of = (kfi_rt_allocation *)calloc(larger.places, sizeof *larger.of);
    if (!larger.of) return 0;
    for (size_t i = 0; i < table->places; ++i)
        if (table->of[i].at) larger.of[kfi_rt_place(&larger, table->of[i].at)] = table->of[i];
    free(table->of);
    *table = larger;
    return 1;
}
static void kfi_rt_add(kfi_rt_table *table, void *ptr, size_t bytes)
{
    const kfi_rt_allocation one = {(uintptr_t)ptr, bytes};
    table->of[kfi_rt_place(table, one.at)] = one;
    ++table->count;
}
static int kfi_rt_find(const kfi_rt_table *table, const void *ptr, size_t *bytes)
{
    if (!table->count) return 0;
    const kfi_rt_allocation *const found = &table->of[kfi_rt_place(table, (uintptr_t)ptr)];
    *bytes = found->bytes;
    return found->at != 0;
}
static void kfi_rt_remove(kfi_rt_table *table, const void *ptr)
{
    size_t i = kfi_rt_place(table, (uintptr_t)ptr);
    table->of[i].at = 0;
    --table->count;
    for (i = (i + 1) & (table->places - 1); table->of[i].at;
         i = (i + 1) & (table->places - 1)) { /* entries displaced from that position */
        const kfi_rt_allocation one = table->of[i];
        table->of[i].at = 0;
        table->of[kfi_rt_place(table, one.at)] = one;
    }
}

/* ---- allocation, with the pool locked */

static kf_result_t kfi_rt_take(const char *function, kf_context_t *ctx, size_t bytes,
                               const kf_stream_t *stream, void **found)
{
    *found = NULL;
    if (bytes > (size_t)1 << 58)
        return kfi_rt_fail(KF_ERROR_INVALID_SIZE, function, "bytes",
                           "is %zu, expected at most 2^58", bytes);
    const size_t size = ctx->device->round(bytes);
    if (ctx->cap && ctx->stats.in_use + size > ctx->cap)
        return kfi_rt_fail(KF_ERROR_OUT_OF_MEMORY, function, "bytes",
                           "is %zu, with %zu in use of the pool's cap of %zu", bytes,
                           ctx->stats.in_use, ctx->cap);
    if (!kfi_rt_grow(&ctx->living))
        return kfi_rt_fail(KF_ERROR_OUT_OF_MEMORY, function, "bytes",
                           "is %zu: the system has no more", bytes);
    const kf_result_t result = ctx->device->allocate(function, ctx, size, stream, found);
    if (result != KF_SUCCESS) return result;
    kfi_rt_add(&ctx->living, *found, size);
    ctx->stats.in_use += size;
    if (ctx->stats.in_use > ctx->stats.peak) ctx->stats.peak = ctx->stats.in_use;
    return KF_SUCCESS;
}
static kf_result_t kfi_rt_give(const char *function, kf_context_t *ctx, void *ptr,
                               const kf_stream_t *stream)
{
    size_t size = 0;
    if (!kfi_rt_find(&ctx->living, ptr, &size))
        return kfi_rt_fail(
            KF_ERROR_INVALID_VALUE, function, "ptr",
            "is %p, expected what kf_pool_allocate returned and nobody has deallocated", ptr);
    const kf_result_t result = ctx->device->release(function, ctx, ptr, size, stream);
    if (result != KF_SUCCESS) return result;
    kfi_rt_remove(&ctx->living, ptr);
    ctx->stats.in_use -= size;
    return KF_SUCCESS;
}

/* Allocates memory for the duration of a call; messages name `function`. The context may be
 * destroyed already: a plan keeps it. */
static kf_result_t kfi_rt_borrow(const char *function, kf_context_t *ctx, size_t bytes,
                                 const kf_stream_t *stream, void **found)
{
    pthread_mutex_lock(&ctx->lock);
    const kf_result_t result = kfi_rt_take(function, ctx, bytes, stream, found);
    pthread_mutex_unlock(&ctx->lock);
    return result;
}
static kf_result_t kfi_rt_give_back(const char *function, kf_context_t *ctx, void *ptr,
                                    const kf_stream_t *stream)
{
    pthread_mutex_lock(&ctx->lock);
    const kf_result_t result = kfi_rt_give(function, ctx, ptr, stream);
    pthread_mutex_unlock(&ctx->lock);
    return result;
}

/* ---- public */

#ifdef __cplusplus
extern "C" {
#endif

void *kf_pool_allocate(kf_context_t *ctx, size_t bytes, kf_stream_t *stream)
{
    const char *const function = "kf_pool_allocate";
    void *found = NULL;
    if (KFI_RT_CHECK(function, "ctx", ctx, KFI_RT_CONTEXT) != KF_SUCCESS ||
        kfi_rt_check_stream(function, ctx, stream) != KF_SUCCESS)
        return NULL;
    return kfi_rt_borrow(function, ctx, bytes, stream, &found) == KF_SUCCESS ? found : NULL;
}
kf_result_t kf_pool_deallocate(kf_context_t *ctx, void *ptr, kf_stream_t *stream)
{
    const char *const function = "kf_pool_deallocate";
    kf_result_t result = KFI_RT_CHECK(function, "ctx", ctx, KFI_RT_CONTEXT);
    if (result == KF_SUCCESS) result = kfi_rt_check_stream(function, ctx, stream);
    return result == KF_SUCCESS && ptr ? kfi_rt_give_back(function, ctx, ptr, stream) : result;
}
kf_result_t kf_pool_clear(kf_context_t *ctx)
{
    kf_result_t result = KFI_RT_CHECK("kf_pool_clear", "ctx", ctx, KFI_RT_CONTEXT);
    if (result != KF_SUCCESS) return result;
    pthread_mutex_lock(&ctx->lock);
    result = ctx->device->clear("kf_pool_clear", ctx);
    pthread_mutex_unlock(&ctx->lock);
    return result;
}
kf_result_t kf_pool_set_cap(kf_context_t *ctx, size_t bytes)
{
    const kf_result_t result = KFI_RT_CHECK("kf_pool_set_cap", "ctx", ctx, KFI_RT_CONTEXT);
    if (result != KF_SUCCESS) return result;
    pthread_mutex_lock(&ctx->lock);
    ctx->cap = bytes;
    pthread_mutex_unlock(&ctx->lock);
    return KF_SUCCESS;
}
kf_result_t kf_pool_get_stats(kf_context_t *ctx, kf_pool_stats_t *stats)
{
    kf_result_t result = KFI_RT_CHECK("kf_pool_get_stats", "ctx", ctx, KFI_RT_CONTEXT);
    if (result != KF_SUCCESS) return result;
    if (!stats)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, "kf_pool_get_stats", "stats",
                           "is NULL, expected room for the counts");
    pthread_mutex_lock(&ctx->lock);
    result = ctx->device->count("kf_pool_get_stats", ctx);
    if (result == KF_SUCCESS) *stats = ctx->stats;
    pthread_mutex_unlock(&ctx->lock);
    return result;
}

#ifdef __cplusplus
}
#endif

#endif
