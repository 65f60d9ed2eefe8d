/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/state.h: the runtime's objects, the interface of a device, and errors. */
#ifndef KF_RUNTIME_STATE_H
#define KF_RUNTIME_STATE_H

#include <pthread.h>
#include <stdlib.h>

#include "kf/runtime.h"

/* Kind of an object. A destroyed one is KFI_RT_DEAD, which only debug mode keeps readable. */
enum {
    KFI_RT_DEAD = 0x6b660000,
    KFI_RT_CONTEXT,
    KFI_RT_TENSOR,
    KFI_RT_STREAM,
    KFI_RT_EVENT,
    KFI_RT_PLAN
};
typedef struct kfi_rt_object {
    int kind;
    kf_context_t *ctx;
    struct kfi_rt_object *next; /* list of destroyed objects that debug mode keeps */
} kfi_rt_object;

/* Hash table of a pool's live allocations and their sizes: open addressing, at most half full, a
 * power of two slots. */
typedef struct {
    uintptr_t at;
    size_t bytes;
} kfi_rt_allocation;
typedef struct {
    kfi_rt_allocation *of;
    size_t places, count;
} kfi_rt_table;

#define KFI_RT_CLASSES 208
typedef struct kfi_rt_device kfi_rt_device;
struct kf_context_t {
    kfi_rt_object object;
    const kfi_rt_device *device;
    int id, debug, closed;
    long refs;
    long made;            /* tensors allocated from the pool so far */
    pthread_mutex_t lock; /* guards all fields below */
    kfi_rt_table living;
    kf_pool_stats_t stats;
    size_t cap;
    void *kept[KFI_RT_CLASSES]; /* free list for each size class (device_cpu.h) */
    void *native;               /* the device's own pool */
    kfi_rt_object *destroyed;
};

/* Memory shared by tensors. */
enum { KFI_RT_FOREIGN, KFI_RT_OWNED, KFI_RT_POOLED, KFI_RT_DLPACK };
#define KFI_RT_USERS 4
typedef struct {
    kf_context_t *ctx;
    kf_stream_t *stream; /* a stream of ctx; NULL: its default stream */
} kfi_rt_user;
typedef struct {
    long refs;
    void *data;
    int owner, read_only;
    void *managed; /* a DLPack tensor */
    /* streams of GPUs with work on this memory, besides the default stream of its own context */
    kfi_rt_user by[KFI_RT_USERS];
    int streams; /* number of them; more than KFI_RT_USERS: any stream of its own context */
} kfi_rt_storage;
struct kf_tensor_t {
    kfi_rt_object object;
    int ndim, dtype, is_dense, repeats; /* repeats: some elements share an address */
    char *data;
    int64_t count, shape[KF_MAX_DIMS], strides[KF_MAX_DIMS];
    kfi_rt_storage *storage;
};
struct kf_stream_t {
    kfi_rt_object object;
    int is_own, closed; /* closed: destroyed, and the default stream waits for its work */
    long refs;          /* storages keep the streams that work on them */
    long behind;        /* value of ctx->made when the stream last waited for the default stream */
    struct CUstream_st *native;
};
struct kf_event_t {
    kfi_rt_object object;
    int is_recorded;
    void *native;
    double at; /* seconds, on the CPU */
};

struct kfi_rt_pair; /* kf/runtime/move.h */
/* Interface of a device. The caller has checked the arguments; `function` is the name in messages.
 */
struct kfi_rt_device {
    int type;
    kf_result_t (*open)(const char *function, kf_context_t *ctx);
    void (*close)(kf_context_t *ctx);
    kf_result_t (*info)(const char *function, const kf_context_t *ctx, kf_device_info_t *info);
    /* make_current makes the device the thread's current one; restore takes its result and undoes
     * it. */
    int (*make_current)(const kf_context_t *ctx);
    void (*restore)(int before);
    size_t (*round)(size_t bytes); /* bytes of an allocation, rounded up */
    /* These four require the pool's lock. bytes: rounded. */
    kf_result_t (*allocate)(const char *function, kf_context_t *ctx, size_t bytes,
                            const kf_stream_t *stream, void **found);
    kf_result_t (*release)(const char *function, kf_context_t *ctx, void *ptr, size_t bytes,
                           const kf_stream_t *stream);
    kf_result_t (*clear)(const char *function, kf_context_t *ctx);
    kf_result_t (*count)(const char *function, kf_context_t *ctx); /* sets stats.reserved */
    void (*free_owned)(kf_context_t *ctx, void *ptr);
    /* Copies elements of `width` bytes between two strided layouts in the device's memory. */
    kf_result_t (*move)(const char *function, const kf_context_t *ctx, char *to, const char *from,
                        const struct kfi_rt_pair *p, size_t width, const kf_stream_t *stream);
    kf_result_t (*stream_create)(const char *function, kf_stream_t *stream,
                                 const kf_stream_config_t *config);
    void (*stream_destroy)(kf_stream_t *stream);
    kf_result_t (*synchronize)(const char *function, const kf_context_t *ctx,
                               const kf_stream_t *stream); /* NULL: all streams */
    kf_result_t (*wait)(const char *function, const kf_context_t *ctx, const kf_stream_t *stream,
                        const kf_event_t *event);
    /* The stream waits for all work so far on the context's default stream, unless it is being
     * captured: a captured stream cannot wait for outside work. */
    kf_result_t (*follow)(const char *function, const kf_context_t *ctx, const kf_stream_t *stream,
                          int *follows);
    kf_result_t (*is_captured)(const char *function, const kf_stream_t *stream, int *is_captured);
    kf_result_t (*event_create)(const char *function, kf_event_t *event);
    void (*event_destroy)(kf_event_t *event);
    kf_result_t (*record)(const char *function, kf_event_t *event, const kf_stream_t *stream);
    kf_result_t (*query)(const char *function, const kf_event_t *event, int *is_done);
    kf_result_t (*event_wait)(const char *function,
                              const kf_event_t *event); /* blocks the calling thread */
    kf_result_t (*elapsed)(const char *function, const kf_event_t *begin, const kf_event_t *end,
                           float *ms);
};

/* ---- errors */

typedef struct {
    char text[400]; /* room for 2 * KF_MAX_DIMS numbers */
} kfi_rt_text;
static kfi_rt_text kfi_rt_list(const int64_t *numbers, int count)
{
    kfi_rt_text t;
    size_t used = (size_t)snprintf(t.text, sizeof t.text, "[");
    for (int i = 0; i < count && used < sizeof t.text - 24; ++i)
        used += (size_t)snprintf(t.text + used, sizeof t.text - used, i ? ", %lld" : "%lld",
                                 (long long)numbers[i]);
    snprintf(t.text + used, sizeof t.text - used, "]");
    return t;
}
KFI_PRINTF(4, 5)
static kf_result_t kfi_rt_fail(kf_result_t result, const char *function, const char *argument,
                               const char *format, ...)
{
    char text[sizeof kfi_error_detail - 100]; /* the names in front are short */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(kfi_error_detail, sizeof kfi_error_detail, "%.60s: %.32s %s", function, argument,
             text);
    return result;
}
/* kfi_rt_fail for functions that return a pointer. */
#define KFI_RT_NULL(type, ...) ((void)kfi_rt_fail(__VA_ARGS__), (type *)NULL)

static const char *kfi_rt_word(int kind)
{
    static const char *const words[] = {"a destroyed handle", "a context", "a tensor",
                                        "a stream",           "an event",  "a plan"};
    return kind >= KFI_RT_DEAD && kind <= KFI_RT_PLAN ? words[kind - KFI_RT_DEAD]
                                                      : "no handle of kf";
}
/* Checks that a handle refers to a live object of this kind. */
static kf_result_t kfi_rt_check(const char *function, const char *argument,
                                const kfi_rt_object *object, int kind)
{
    if (!object)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, function, argument, "is NULL, expected %s",
                           kfi_rt_word(kind));
    if (object->kind != kind)
        return kfi_rt_fail(KF_ERROR_HANDLE, function, argument, "is %s, expected %s",
                           kfi_rt_word(object->kind), kfi_rt_word(kind));
    if (kind == KFI_RT_CONTEXT && ((const kf_context_t *)object)->closed)
        return kfi_rt_fail(KF_ERROR_HANDLE, function, argument,
                           "is a destroyed context, which its tensors and streams keep");
    return KF_SUCCESS;
}
#define KFI_RT_CHECK(function, argument, handle, kind)                                             \
    kfi_rt_check(function, argument, (handle) ? &(handle)->object : NULL, kind)
/* Checks that a stream, unless NULL, belongs to this context. */
static kf_result_t kfi_rt_check_stream(const char *function, const kf_context_t *ctx,
                                       const kf_stream_t *stream)
{
    if (!stream) return KF_SUCCESS;
    const kf_result_t result = kfi_rt_check(function, "stream", &stream->object, KFI_RT_STREAM);
    if (result == KF_SUCCESS && stream->object.ctx != ctx)
        return kfi_rt_fail(KF_ERROR_DEVICE, function, "stream",
                           "is of another context, expected one of the tensors' own");
    return result;
}

/* Returns the bytes per element; 0: no dtype. */
static size_t kfi_rt_width(int dtype)
{
    static const unsigned char width[] = {4, 2, 2, 8, 4, 8, 1};
    return dtype >= 0 && dtype <= KF_U8 ? width[dtype] : 0;
}

#endif
