/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/tensor.h: tensors and the memory that they share. */
#ifndef KF_RUNTIME_TENSOR_H
#define KF_RUNTIME_TENSOR_H

#include "kf/runtime/layout.h"
#include "kf/runtime/pool.h"
#include "kf/runtime/stream.h"

/* ---- descriptions */

typedef struct {
    int ndim, dtype;
    int64_t shape[KF_MAX_DIMS], strides[KF_MAX_DIMS], count,
        reach; /* reach: elements up to the last one */
} kfi_rt_layout;

static kf_result_t kfi_rt_measure(const char *function, const kf_tensor_desc_t *d, kfi_rt_layout *l)
{
    int64_t dense = 1, room = KFI_LAYOUT_MOST;
    l->count = l->reach = 1;
    for (int i = d->ndim - 1; i >= 0; --i) {
        const int64_t n = d->shape[i];
        if (n < 0 || n > room)
            return kfi_rt_fail(KF_ERROR_INVALID_SIZE, function, "shape",
                               "is %s, expected no negative number and at most 2^58 elements",
                               kfi_rt_list(d->shape, d->ndim).text);
        l->shape[i] = n;
        l->strides[i] = d->strides ? d->strides[i] : dense;
        if (l->strides[i] < 0)
            return kfi_rt_fail(KF_ERROR_INVALID_VALUE, function, "strides",
                               "is %s, expected no negative number",
                               kfi_rt_list(d->strides, d->ndim).text);
        if (n > 1 && l->strides[i] > (KFI_LAYOUT_MOST - l->reach) / (n - 1))
            return kfi_rt_fail(KF_ERROR_INVALID_SIZE, function, "strides",
                               "is %s, expected at most 2^58 elements from first to last",
                               kfi_rt_list(d->strides, d->ndim).text);
        if (n > 1) l->reach += (n - 1) * l->strides[i], room /= n;
        dense *= n > 0 ? n : 1;
        l->count *= n;
    }
    if (!l->count) l->reach = 0;
    return KF_SUCCESS;
}
static kf_result_t kfi_rt_read_desc(const char *function, const kf_context_t *ctx,
                                    const kf_tensor_desc_t *d, kfi_rt_layout *l)
{
    if (!d)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, function, "desc",
                           "is NULL, expected a tensor's description");
    if (d->ndim < 0 || d->ndim > KF_MAX_DIMS)
        return kfi_rt_fail(KF_ERROR_INVALID_SIZE, function, "ndim", "is %d, expected 0 to %d",
                           d->ndim, KF_MAX_DIMS);
    if (!d->shape && d->ndim)
        return kfi_rt_fail(KF_ERROR_NULL_POINTER, function, "shape", "is NULL, expected %d numbers",
                           d->ndim);
    if (!kfi_rt_width(d->dtype))
        return kfi_rt_fail(KF_ERROR_DTYPE, function, "dtype", "is %d, expected one of KF_DTYPE_*",
                           d->dtype);
    if ((d->device_type || d->device_id) &&
        (d->device_type != ctx->device->type || d->device_id != ctx->id))
        return kfi_rt_fail(KF_ERROR_DEVICE, function, "device",
                           "is %d of type %d, expected the context's, %d of type %d", d->device_id,
                           d->device_type, ctx->id, ctx->device->type);
    l->ndim = d->ndim;
    l->dtype = d->dtype;
    return kfi_rt_measure(function, d, l);
}

/* ---- memory */

/* Records that a stream of `ctx` received work on a tensor's memory, so that the pool does not
 * reuse it before the work is done. The devices may differ. Work on a CPU is already done. */
static void kfi_rt_use(const kf_tensor_t *tensor, kf_context_t *ctx, kf_stream_t *stream)
{
    kfi_rt_storage *const s = tensor->storage;
    const int is_own = ctx == tensor->object.ctx;
    if (ctx->device->type == KF_DEVICE_CPU || (is_own && !stream)) return;
    pthread_mutex_lock(&tensor->object.ctx->lock);
    int known = 0;
    for (int i = 0; i < s->streams && i < KFI_RT_USERS; ++i)
        known |= s->by[i].ctx == ctx && s->by[i].stream == stream;
    const int has_room = s->streams < KFI_RT_USERS;
    if (!known && has_room) {
        kfi_rt_user *const user = &s->by[s->streams++];
        user->ctx = ctx;
        user->stream = stream;
        if (stream)
            __atomic_add_fetch(&stream->refs, 1, __ATOMIC_RELAXED);
        else
            kfi_rt_retain(ctx);
    } else if (!known && is_own)
        s->streams = KFI_RT_USERS + 1;
    pthread_mutex_unlock(&tensor->object.ctx->lock);
    if (!known && !has_room && !is_own)
        (void)ctx->device->synchronize("kf_tensor_copy", ctx,
                                       stream); /* nothing else would wait for it */
}
static kf_result_t kfi_rt_wait_for_users(const char *function, kf_context_t *ctx, kfi_rt_storage *s)
{
    const int is_any = s->streams > KFI_RT_USERS;
    kf_result_t result = is_any ? ctx->device->synchronize(function, ctx, NULL) : KF_SUCCESS;
    for (int i = 0; i < KFI_RT_USERS && i < s->streams; ++i) {
        const kfi_rt_user *const user = &s->by[i];
        /* The default stream of the context already waits for its closed streams. Memory owned by
         * the program is not freed here. */
        const int is_waited_for =
            user->ctx == ctx ? is_any || user->stream->closed
                             : s->owner == KFI_RT_FOREIGN && user->ctx->device != ctx->device;
        if (result == KF_SUCCESS && !is_waited_for)
            result = kfi_rt_join(function, ctx, user->ctx, user->stream);
        if (user->stream)
            kfi_rt_stream_leave(user->stream);
        else
            kfi_rt_leave(user->ctx);
    }
    s->streams = 0;
    return result;
}
static void kfi_rt_dlpack_release(void *managed);
static kf_result_t kfi_rt_storage_leave(const char *function, kf_context_t *ctx, kfi_rt_storage *s)
{
    if (__atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) > 0) return KF_SUCCESS;
    kf_result_t result = kfi_rt_wait_for_users(function, ctx, s);
    if (s->owner == KFI_RT_OWNED) ctx->device->free_owned(ctx, s->data);
    if (s->owner == KFI_RT_DLPACK) kfi_rt_dlpack_release(s->managed);
    if (s->owner == KFI_RT_POOLED && s->data) {
        const kf_result_t given = kfi_rt_give_back(function, ctx, s->data, NULL);
        if (result == KF_SUCCESS) result = given;
    }
    free(s);
    return result;
}

/* ---- tensors */

/* Returns whether elements share an address: some dimension, by decreasing stride, does not step
 * over the dimensions inside it. */
static int kfi_rt_repeats(const kfi_rt_layout *l)
{
    int order[KF_MAX_DIMS], n = 0;
    for (int i = 0; i < l->ndim; ++i) {
        if (l->shape[i] == 1) continue;
        int j = n++;
        for (; j > 0 && l->strides[order[j - 1]] > l->strides[i]; --j) order[j] = order[j - 1];
        order[j] = i;
    }
    int64_t within = 1;
    for (int k = 0; k < n && l->count; ++k) {
        if (l->strides[order[k]] < within) return 1;
        within += (l->shape[order[k]] - 1) * l->strides[order[k]];
    }
    return 0;
}
/* Sets a tensor's shape and strides, and what follows from them. */
static void kfi_rt_set_layout(kf_tensor_t *t, const kfi_rt_layout *l)
{
    t->ndim = l->ndim;
    t->dtype = l->dtype;
    t->count = l->count;
    t->is_dense = 1;
    int64_t dense = 1;
    for (int i = l->ndim - 1; i >= 0; --i) {
        t->shape[i] = l->shape[i];
        t->strides[i] = l->strides[i];
        if (l->shape[i] != 1 && l->strides[i] != dense && l->count) t->is_dense = 0;
        dense *= l->shape[i];
    }
    t->repeats = kfi_rt_repeats(l);
}
/* Creates a tensor over a storage and counts it there. On failure the storage is unchanged. */
static kf_tensor_t *kfi_rt_tensor(const char *function, kf_context_t *ctx, const kfi_rt_layout *l,
                                  kfi_rt_storage *s, char *data)
{
    kf_tensor_t *const t = (kf_tensor_t *)kfi_rt_make(function, ctx, KFI_RT_TENSOR, sizeof *t);
    if (!t) return NULL;
    kfi_rt_set_layout(t, l);
    t->storage = s;
    t->data = data;
    __atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED);
    return t;
}
static kf_tensor_t *kfi_rt_first(const char *function, kf_context_t *ctx, const kfi_rt_layout *l,
                                 void *data, int owner)
{
    kfi_rt_storage *const s = (kfi_rt_storage *)calloc(1, sizeof *s);
    if (!s)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_OUT_OF_MEMORY, function, "a tensor",
                           "of %zu bytes: the system has no more", sizeof *s);
    s->data = data;
    s->owner = owner;
    kf_tensor_t *const t = kfi_rt_tensor(function, ctx, l, s, (char *)data);
    if (!t) free(s);
    return t;
}

#ifdef __cplusplus
extern "C" {
#endif

kf_tensor_t *kf_tensor_create(kf_context_t *ctx, const kf_tensor_desc_t *desc)
{
    const char *const function = "kf_tensor_create";
    kfi_rt_layout l;
    void *data = NULL;
    if (KFI_RT_CHECK(function, "ctx", ctx, KFI_RT_CONTEXT) != KF_SUCCESS ||
        kfi_rt_read_desc(function, ctx, desc, &l) != KF_SUCCESS)
        return NULL;
    if (l.reach && kfi_rt_borrow(function, ctx, (size_t)l.reach * kfi_rt_width(l.dtype), NULL,
                                 &data) != KF_SUCCESS)
        return NULL;
    if (data) __atomic_add_fetch(&ctx->made, 1, __ATOMIC_RELEASE);
    kf_tensor_t *const t = kfi_rt_first(function, ctx, &l, data, KFI_RT_POOLED);
    if (!t && data) (void)kfi_rt_give_back(function, ctx, data, NULL);
    return t;
}
kf_tensor_t *kf_tensor_create_from_memory(kf_context_t *ctx, const kf_memory_desc_t *memory,
                                          const kf_tensor_desc_t *desc)
{
    const char *const function = "kf_tensor_create_from_memory";
    kfi_rt_layout l;
    if (KFI_RT_CHECK(function, "ctx", ctx, KFI_RT_CONTEXT) != KF_SUCCESS) return NULL;
    if (!memory)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_NULL_POINTER, function, "memory",
                           "is NULL, expected a description of memory");
    if (kfi_rt_read_desc(function, ctx, desc, &l) != KF_SUCCESS) return NULL;
    const size_t width = kfi_rt_width(l.dtype), bytes = (size_t)l.reach * width;
    if (!memory->data && bytes)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_NULL_POINTER, function, "memory->data",
                           "is NULL, expected %zu bytes", bytes);
    if (memory->size && memory->size < bytes)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_INVALID_SIZE, function, "memory->size",
                           "is %zu, expected %zu for shape %s", memory->size, bytes,
                           kfi_rt_list(l.shape, l.ndim).text);
    if ((uintptr_t)memory->data % width)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_MISALIGNED, function, "memory->data",
                           "is %p, expected a multiple of %zu", memory->data, width);
    return kfi_rt_first(function, ctx, &l, memory->data,
                        memory->owns_memory ? KFI_RT_OWNED : KFI_RT_FOREIGN);
}
kf_result_t kf_tensor_destroy(kf_tensor_t *tensor)
{
    const char *const function = "kf_tensor_destroy";
    if (!tensor) return KF_SUCCESS;
    kf_result_t result = KFI_RT_CHECK(function, "tensor", tensor, KFI_RT_TENSOR);
    if (result != KF_SUCCESS) return result;
    result = kfi_rt_storage_leave(function, tensor->object.ctx, tensor->storage);
    kfi_rt_unmake(&tensor->object);
    return result;
}

static int kfi_rt_is_tensor(const kf_tensor_t *t, int dim)
{
    if (KFI_RT_CHECK("kf_tensor", "tensor", t, KFI_RT_TENSOR) != KF_SUCCESS) return 0;
    if (dim >= 0 && dim < t->ndim) return 1;
    return (void)kfi_rt_fail(KF_ERROR_INVALID_VALUE, "kf_tensor", "dim", "is %d, expected 0 to %d",
                             dim, t->ndim - 1),
           0;
}
void *kf_tensor_data(const kf_tensor_t *t)
{
    return KFI_RT_CHECK("kf_tensor_data", "tensor", t, KFI_RT_TENSOR) == KF_SUCCESS ? t->data
                                                                                    : NULL;
}
int kf_tensor_ndim(const kf_tensor_t *t)
{
    return KFI_RT_CHECK("kf_tensor_ndim", "tensor", t, KFI_RT_TENSOR) == KF_SUCCESS ? t->ndim : -1;
}
int kf_tensor_dtype(const kf_tensor_t *t)
{
    return KFI_RT_CHECK("kf_tensor_dtype", "tensor", t, KFI_RT_TENSOR) == KF_SUCCESS ? t->dtype
                                                                                     : -1;
}
int64_t kf_tensor_count(const kf_tensor_t *t)
{
    return KFI_RT_CHECK("kf_tensor_count", "tensor", t, KFI_RT_TENSOR) == KF_SUCCESS ? t->count
                                                                                     : -1;
}
int kf_tensor_is_dense(const kf_tensor_t *t)
{
    return KFI_RT_CHECK("kf_tensor_is_dense", "tensor", t, KFI_RT_TENSOR) == KF_SUCCESS
               ? t->is_dense
               : -1;
}
int64_t kf_tensor_size(const kf_tensor_t *t, int dim)
{
    return kfi_rt_is_tensor(t, dim) ? t->shape[dim] : -1;
}
int64_t kf_tensor_stride(const kf_tensor_t *t, int dim)
{
    return kfi_rt_is_tensor(t, dim) ? t->strides[dim] : -1;
}

#ifdef __cplusplus
}
#endif

#endif
