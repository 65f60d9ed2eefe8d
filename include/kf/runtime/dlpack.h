/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime/dlpack.h: exchange of tensors with other libraries through DLPack 1.x. */
#ifndef KF_RUNTIME_DLPACK_H
#define KF_RUNTIME_DLPACK_H

#include "kf/runtime/view.h"

/* The structs of the DLPack specification, which fixes their layout. A program may also include
 * DLPack's own header. */
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} kfi_dl_dtype;
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    kfi_dl_dtype dtype;
    int64_t *shape, *strides; /* strides: elements; NULL: contiguous */
    uint64_t byte_offset;
} kfi_dl_tensor;
typedef struct kfi_dl_managed {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(struct kfi_dl_managed *self);
    uint64_t flags;
    kfi_dl_tensor tensor;
} kfi_dl_managed;
enum { KFI_DL_MAJOR = 1, KFI_DL_READ_ONLY = 1 };

/* Indexed by kf_dtype_t. DLPack's codes: 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool. */
static const kfi_dl_dtype kfi_dl_dtypes[] = {{2, 32, 1}, {2, 16, 1}, {4, 16, 1}, {2, 64, 1},
                                             {0, 32, 1}, {0, 64, 1}, {1, 8, 1}};

static int kfi_rt_dtype_of(kfi_dl_dtype d)
{
    if (d.code == 6 && d.bits == 8 && d.lanes == 1) return KF_U8;
    for (int i = 0; i <= KF_U8; ++i)
        if (d.code == kfi_dl_dtypes[i].code && d.bits == kfi_dl_dtypes[i].bits && d.lanes == 1)
            return i;
    return -1;
}
static void kfi_rt_dlpack_release(void *managed)
{
    kfi_dl_managed *const m = (kfi_dl_managed *)managed;
    if (m->deleter) m->deleter(m);
}
/* A lent tensor. The borrower frees it through the deleter. */
typedef struct {
    kfi_dl_managed managed;
    int64_t shape[KF_MAX_DIMS], strides[KF_MAX_DIMS];
    kf_tensor_t *tensor;
} kfi_rt_lent;
static void kfi_rt_lent_delete(kfi_dl_managed *managed)
{
    kfi_rt_lent *const lent = (kfi_rt_lent *)managed->manager;
    (void)kf_tensor_destroy(lent->tensor);
    free(lent);
}

#ifdef __cplusplus
extern "C" {
#endif

kf_tensor_t *kf_tensor_from_dlpack(kf_context_t *ctx, struct DLManagedTensorVersioned *managed)
{
    const char *const function = "kf_tensor_from_dlpack";
    kfi_dl_managed *const m = (kfi_dl_managed *)(void *)managed;
    if (KFI_RT_CHECK(function, "ctx", ctx, KFI_RT_CONTEXT) != KF_SUCCESS) return NULL;
    if (!m)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_NULL_POINTER, function, "managed",
                           "is NULL, expected a DLManagedTensorVersioned");
    if (m->major != KFI_DL_MAJOR)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_UNSUPPORTED, function, "managed",
                           "is of DLPack %u.%u, expected %d.x", (unsigned)m->major,
                           (unsigned)m->minor, KFI_DL_MAJOR);
    const kfi_dl_tensor *const t = &m->tensor;
    const int dtype = kfi_rt_dtype_of(t->dtype);
    if (dtype < 0)
        return KFI_RT_NULL(
            kf_tensor_t, KF_ERROR_DTYPE, function, "dtype",
            "is DLPack's code %d with %d bits and %d lanes, expected one of KF_DTYPE_*",
            t->dtype.code, t->dtype.bits, t->dtype.lanes);
    const kf_tensor_desc_t desc = {t->shape, t->strides,     t->ndim,
                                   dtype,    t->device_type, t->device_id};
    kfi_rt_layout l;
    if (kfi_rt_read_desc(function, ctx, &desc, &l) != KF_SUCCESS) return NULL;
    char *const data = t->data ? (char *)t->data + t->byte_offset : NULL;
    if (!data && l.reach)
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_NULL_POINTER, function, "data",
                           "is NULL, expected %lld elements", (long long)l.reach);
    if ((uintptr_t)data % kfi_rt_width(dtype))
        return KFI_RT_NULL(kf_tensor_t, KF_ERROR_MISALIGNED, function, "data",
                           "is %p, expected a multiple of %zu", (void *)data, kfi_rt_width(dtype));
    kf_tensor_t *const made = kfi_rt_first(function, ctx, &l, data, KFI_RT_DLPACK);
    if (!made) return NULL;
    made->storage->managed = m;
    made->storage->read_only = (m->flags & KFI_DL_READ_ONLY) != 0;
    return made;
}
struct DLManagedTensorVersioned *kf_tensor_to_dlpack(kf_tensor_t *tensor)
{
    typedef struct DLManagedTensorVersioned managed_t;
    const char *const function = "kf_tensor_to_dlpack";
    if (KFI_RT_CHECK(function, "tensor", tensor, KFI_RT_TENSOR) != KF_SUCCESS) return NULL;
    kfi_rt_lent *const lent = (kfi_rt_lent *)calloc(1, sizeof *lent);
    if (!lent)
        return KFI_RT_NULL(managed_t, KF_ERROR_OUT_OF_MEMORY, function, "tensor",
                           "takes %zu bytes more: the system has no more", sizeof *lent);
    kfi_rt_layout l = kfi_rt_layout_of(tensor);
    lent->tensor = kfi_rt_view(function, tensor, &l, 0);
    if (!lent->tensor) return free(lent), (managed_t *)NULL;
    memcpy(lent->shape, tensor->shape, sizeof lent->shape);
    memcpy(lent->strides, tensor->strides, sizeof lent->strides);
    kfi_dl_managed *const m = &lent->managed;
    m->major = KFI_DL_MAJOR;
    m->manager = lent;
    m->deleter = kfi_rt_lent_delete;
    m->flags = tensor->storage->read_only || tensor->repeats ? KFI_DL_READ_ONLY : 0;
    m->tensor.data = tensor->data;
    m->tensor.device_type = tensor->object.ctx->device->type;
    m->tensor.device_id = tensor->object.ctx->id;
    m->tensor.ndim = tensor->ndim;
    m->tensor.dtype = kfi_dl_dtypes[tensor->dtype];
    m->tensor.shape = lent->shape;
    m->tensor.strides = lent->strides;
    return (managed_t *)(void *)m;
}

#ifdef __cplusplus
}
#endif

#endif
