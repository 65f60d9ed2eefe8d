// SPDX-License-Identifier: Apache-2.0
// kf/runtime/device_cuda.cuh: a GPU as the device of a context: memory from a CUDA memory pool,
// streams, events, copies.
#ifndef KF_RUNTIME_DEVICE_CUDA_CUH
#define KF_RUNTIME_DEVICE_CUDA_CUH

#include <cuda_runtime.h>

#include "kf/runtime/move.h"

static kf_result_t kfi_rt_cuda_status(const char *function, const char *call, cudaError_t status)
{
    if (status == cudaSuccess) return KF_SUCCESS;
    const kf_result_t result = status == cudaErrorMemoryAllocation ? KF_ERROR_OUT_OF_MEMORY
                               : status == cudaErrorInvalidDevice || status == cudaErrorNoDevice ||
                                       status == cudaErrorInsufficientDriver
                                   ? KF_ERROR_DEVICE
                                   : KF_ERROR_CUDA;
    return kfi_rt_fail(result, function, call, "failed: CUDA error %d (%s)", (int)status,
                       cudaGetErrorString(status));
}
static int kfi_rt_cuda_make_current(const kf_context_t *ctx)
{
    int before = 0;
    return cudaGetDevice(&before) == cudaSuccess && before != ctx->id &&
                   cudaSetDevice(ctx->id) == cudaSuccess
               ? before
               : -1;
}
static void kfi_rt_cuda_restore(int before)
{
    if (before >= 0) (void)cudaSetDevice(before);
}
// Makes the context's device current until the end of the scope, then restores the previous one.
struct kfi_rt_current {
    int before;
    explicit kfi_rt_current(const kf_context_t *ctx) : before(kfi_rt_cuda_make_current(ctx)) {}
    ~kfi_rt_current() { kfi_rt_cuda_restore(before); }
};
static cudaStream_t kfi_rt_native(const kf_stream_t *stream)
{
    return stream ? stream->native : nullptr;
}

// ---- memory

static size_t kfi_rt_cuda_round(size_t bytes) { return bytes ? (bytes + 255) / 256 * 256 : 256; }
static kf_result_t kfi_rt_cuda_count(const char *function, kf_context_t *ctx)
{
    uint64_t reserved = 0;
    const cudaError_t status = cudaMemPoolGetAttribute(
        (cudaMemPool_t)ctx->native, cudaMemPoolAttrReservedMemCurrent, &reserved);
    if (status == cudaSuccess) ctx->stats.reserved = (size_t)reserved;
    return kfi_rt_cuda_status(function, "cudaMemPoolGetAttribute", status);
}
static kf_result_t kfi_rt_cuda_allocate(const char *function, kf_context_t *ctx, size_t bytes,
                                        const kf_stream_t *stream, void **found)
{
    const kfi_rt_current current(ctx);
    const size_t before = ctx->stats.reserved;
    kf_result_t result = kfi_rt_cuda_status(
        function, "cudaMallocFromPoolAsync",
        cudaMallocFromPoolAsync(found, bytes, (cudaMemPool_t)ctx->native, kfi_rt_native(stream)));
    if (result != KF_SUCCESS) return result;
    result = kfi_rt_cuda_count(function, ctx);
    if (result != KF_SUCCESS) {
        (void)cudaFreeAsync(*found, kfi_rt_native(stream));
        *found = nullptr;
    } else if (ctx->stats.reserved <= before)
        ++ctx->stats.hits;
    return result;
}
static kf_result_t kfi_rt_cuda_release(const char *function, kf_context_t *ctx, void *ptr,
                                       size_t bytes, const kf_stream_t *stream)
{
    (void)bytes;
    const kfi_rt_current current(ctx);
    return kfi_rt_cuda_status(function, "cudaFreeAsync", cudaFreeAsync(ptr, kfi_rt_native(stream)));
}
// Memory deallocated on a stream returns to the pool only when that stream has reached that point.
static kf_result_t kfi_rt_cuda_clear(const char *function, kf_context_t *ctx)
{
    const kfi_rt_current current(ctx);
    kf_result_t result =
        kfi_rt_cuda_status(function, "cudaDeviceSynchronize", cudaDeviceSynchronize());
    if (result == KF_SUCCESS)
        result = kfi_rt_cuda_status(function, "cudaMemPoolTrimTo",
                                    cudaMemPoolTrimTo((cudaMemPool_t)ctx->native, 0));
    return result == KF_SUCCESS ? kfi_rt_cuda_count(function, ctx) : result;
}
static void kfi_rt_cuda_free(kf_context_t *ctx, void *ptr)
{
    const kfi_rt_current current(ctx);
    (void)cudaFree(ptr);
}

// ---- the device

static kf_result_t kfi_rt_cuda_open(const char *function, kf_context_t *ctx)
{
    int count = 0, pools = 0;
    kf_result_t result =
        kfi_rt_cuda_status(function, "cudaGetDeviceCount", cudaGetDeviceCount(&count));
    if (result != KF_SUCCESS) return result;
    if (ctx->id >= count)
        return kfi_rt_fail(KF_ERROR_DEVICE, function, "device",
                           "is %d, expected -1 (the CPU) to %d", ctx->id, count - 1);
    result = kfi_rt_cuda_status(
        function, "cudaDeviceGetAttribute",
        cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, ctx->id));
    if (result != KF_SUCCESS) return result;
    if (!pools)
        return kfi_rt_fail(KF_ERROR_UNSUPPORTED, function, "device",
                           "is %d, which has no memory pools", ctx->id);
    cudaMemPoolProps wanted = {};
    wanted.allocType = cudaMemAllocationTypePinned; // resident device memory
    wanted.location.type = cudaMemLocationTypeDevice;
    wanted.location.id = ctx->id;
    cudaMemPool_t pool = nullptr;
    result = kfi_rt_cuda_status(function, "cudaMemPoolCreate", cudaMemPoolCreate(&pool, &wanted));
    if (result != KF_SUCCESS) return result;
    uint64_t keep = UINT64_MAX; // only kf_pool_clear returns memory to the device
    result =
        kfi_rt_cuda_status(function, "cudaMemPoolSetAttribute",
                           cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    if (result != KF_SUCCESS)
        (void)cudaMemPoolDestroy(pool);
    else
        ctx->native = pool;
    return result;
}
static void kfi_rt_cuda_close(kf_context_t *ctx)
{
    (void)cudaMemPoolDestroy((cudaMemPool_t)ctx->native);
}
static kf_result_t kfi_rt_cuda_info(const char *function, const kf_context_t *ctx,
                                    kf_device_info_t *info)
{
    cudaDeviceProp found;
    const kf_result_t result = kfi_rt_cuda_status(function, "cudaGetDeviceProperties",
                                                  cudaGetDeviceProperties(&found, ctx->id));
    if (result != KF_SUCCESS) return result;
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "%s", found.name);
    info->memory = found.totalGlobalMem;
    info->multiprocessors = found.multiProcessorCount;
    info->major = found.major;
    info->minor = found.minor;
    info->device_type = KF_DEVICE_CUDA;
    info->device_id = ctx->id;
    return KF_SUCCESS;
}

#include "kf/runtime/move_cuda.cuh"

// ---- streams and events

static kf_result_t kfi_rt_cuda_stream(const char *function, kf_stream_t *stream,
                                      const kf_stream_config_t *config)
{
    const kfi_rt_current current(stream->object.ctx);
    int least = 0,
        greatest = 0; // numbers: CUDA's decrease from 0, the default, as the priority rises
    kf_result_t result = kfi_rt_cuda_status(function, "cudaDeviceGetStreamPriorityRange",
                                            cudaDeviceGetStreamPriorityRange(&least, &greatest));
    if (result != KF_SUCCESS) return result;
    const int64_t exact = -(int64_t)config->priority;
    const int wanted = exact > least ? least : exact < greatest ? greatest : (int)exact;
    return kfi_rt_cuda_status(function, "cudaStreamCreateWithPriority",
                              cudaStreamCreateWithPriority(&stream->native,
                                                           config->flags & KF_STREAM_NON_BLOCKING
                                                               ? cudaStreamNonBlocking
                                                               : cudaStreamDefault,
                                                           wanted));
}
static void kfi_rt_cuda_stream_destroy(kf_stream_t *stream)
{
    const kfi_rt_current current(stream->object.ctx);
    (void)cudaStreamDestroy(stream->native);
}
static kf_result_t kfi_rt_cuda_synchronize(const char *function, const kf_context_t *ctx,
                                           const kf_stream_t *stream)
{
    const kfi_rt_current current(ctx);
    return stream ? kfi_rt_cuda_status(function, "cudaStreamSynchronize",
                                       cudaStreamSynchronize(stream->native))
                  : kfi_rt_cuda_status(function, "cudaDeviceSynchronize", cudaDeviceSynchronize());
}
static kf_result_t kfi_rt_cuda_wait(const char *function, const kf_context_t *ctx,
                                    const kf_stream_t *stream, const kf_event_t *event)
{
    const kfi_rt_current current(ctx);
    return kfi_rt_cuda_status(
        function, "cudaStreamWaitEvent",
        cudaStreamWaitEvent(kfi_rt_native(stream), (cudaEvent_t)event->native, 0));
}
static kf_result_t kfi_rt_cuda_event(const char *function, kf_event_t *event)
{
    const kfi_rt_current current(event->object.ctx);
    cudaEvent_t made = nullptr;
    const kf_result_t result =
        kfi_rt_cuda_status(function, "cudaEventCreate", cudaEventCreate(&made));
    event->native = made;
    return result;
}
static void kfi_rt_cuda_event_destroy(kf_event_t *event)
{
    const kfi_rt_current current(event->object.ctx);
    (void)cudaEventDestroy((cudaEvent_t)event->native);
}
static kf_result_t kfi_rt_cuda_record(const char *function, kf_event_t *event,
                                      const kf_stream_t *stream)
{
    const kfi_rt_current current(event->object.ctx);
    return kfi_rt_cuda_status(function, "cudaEventRecord",
                              cudaEventRecord((cudaEvent_t)event->native, kfi_rt_native(stream)));
}
static kf_result_t kfi_rt_cuda_is_captured(const char *function, const kf_stream_t *stream,
                                           int *is_captured)
{
    const kfi_rt_current current(stream->object.ctx);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    const cudaError_t status =
        stream->native ? cudaStreamIsCapturing(stream->native, &capture) : cudaSuccess;
    *is_captured = capture != cudaStreamCaptureStatusNone;
    return kfi_rt_cuda_status(function, "cudaStreamIsCapturing", status);
}
static kf_result_t kfi_rt_cuda_follow(const char *function, const kf_context_t *ctx,
                                      const kf_stream_t *stream, int *follows)
{
    kf_event_t event = {{KFI_RT_EVENT, const_cast<kf_context_t *>(ctx), nullptr}, 0, nullptr, 0};
    int is_captured = 0;
    if (!stream->native) return *follows = 1, KF_SUCCESS; // the default stream itself
    kf_result_t result = kfi_rt_cuda_is_captured(function, stream, &is_captured);
    if (result != KF_SUCCESS || is_captured) return result;
    result = kfi_rt_cuda_event(function, &event);
    if (result != KF_SUCCESS) return result;
    result = kfi_rt_cuda_record(function, &event, nullptr);
    if (result == KF_SUCCESS)
        result = kfi_rt_cuda_wait(function, stream->object.ctx, stream, &event);
    kfi_rt_cuda_event_destroy(&event);
    *follows = result == KF_SUCCESS;
    return result;
}
// cudaErrorNotReady answers a query, but the runtime also keeps it as its last error. Clears it, so
// that the caller does not attribute it to a later launch.
static cudaError_t kfi_rt_cuda_answer(cudaError_t status)
{
    if (status == cudaErrorNotReady) (void)cudaGetLastError();
    return status;
}
static kf_result_t kfi_rt_cuda_query(const char *function, const kf_event_t *event, int *is_done)
{
    const cudaError_t status = kfi_rt_cuda_answer(cudaEventQuery((cudaEvent_t)event->native));
    *is_done = status == cudaSuccess;
    return status == cudaErrorNotReady ? KF_SUCCESS
                                       : kfi_rt_cuda_status(function, "cudaEventQuery", status);
}
static kf_result_t kfi_rt_cuda_event_wait(const char *function, const kf_event_t *event)
{
    return kfi_rt_cuda_status(function, "cudaEventSynchronize",
                              cudaEventSynchronize((cudaEvent_t)event->native));
}
static kf_result_t kfi_rt_cuda_elapsed(const char *function, const kf_event_t *begin,
                                       const kf_event_t *end, float *ms)
{
    const cudaError_t status = kfi_rt_cuda_answer(
        cudaEventElapsedTime(ms, (cudaEvent_t)begin->native, (cudaEvent_t)end->native));
    if (status == cudaErrorNotReady)
        return kfi_rt_fail(KF_ERROR_INVALID_VALUE, function, "end",
                           "is not done, expected kf_event_synchronize before");
    return kfi_rt_cuda_status(function, "cudaEventElapsedTime", status);
}

static const kfi_rt_device kfi_rt_cuda = {
    KF_DEVICE_CUDA,          kfi_rt_cuda_open,         kfi_rt_cuda_close,
    kfi_rt_cuda_info,        kfi_rt_cuda_make_current, kfi_rt_cuda_restore,
    kfi_rt_cuda_round,       kfi_rt_cuda_allocate,     kfi_rt_cuda_release,
    kfi_rt_cuda_clear,       kfi_rt_cuda_count,        kfi_rt_cuda_free,
    kfi_rt_cuda_move,        kfi_rt_cuda_stream,       kfi_rt_cuda_stream_destroy,
    kfi_rt_cuda_synchronize, kfi_rt_cuda_wait,         kfi_rt_cuda_follow,
    kfi_rt_cuda_is_captured, kfi_rt_cuda_event,        kfi_rt_cuda_event_destroy,
    kfi_rt_cuda_record,      kfi_rt_cuda_query,        kfi_rt_cuda_event_wait,
    kfi_rt_cuda_elapsed};

#endif
