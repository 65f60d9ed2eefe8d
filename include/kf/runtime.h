/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime.h: programs that hold tensors: contexts, tensors and views, streams, events, a memory
   pool (docs/runtime.md).

   Declarations need C11 or C++17 and no CUDA. One file of a program says

       #define KF_RUNTIME_IMPLEMENTATION
       #include <kf/runtime.h>

   and holds the definitions: a .c file those for the CPU, a .cu file those for CUDA beside them.
   All other files include this header alone and link to that one. Constructors return NULL,
   functions a result code, and kf_get_last_error_detail() says what was wrong. Nothing has changed
   after a call that failed. */
#ifndef KF_RUNTIME_H
#define KF_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include "kf/core/dtype.h"
#include "kf/core/result.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a struct below grows or a function changes: files compiled against another one are
 * refused. */
#define KF_RUNTIME_ABI 2
#define KF_MAX_DIMS 8

/* ABI: DLPack's numbers. */
typedef enum kf_device_type_t { KF_DEVICE_CPU = 1, KF_DEVICE_CUDA = 2 } kf_device_type_t;
/* kf_dtype_t's values by longer names, which #if knows too. */
#define KF_DTYPE_FLOAT32 0
#define KF_DTYPE_FLOAT16 1
#define KF_DTYPE_BFLOAT16 2
#define KF_DTYPE_FLOAT64 3
#define KF_DTYPE_INT32 4
#define KF_DTYPE_INT64 5
#define KF_DTYPE_UINT8 6

/* An activation by its number, KF_ACTIVATION_* of what `kfgen runtime` writes; users' own are
 * numbers of their own. */
typedef int32_t kf_activation_t;

typedef struct kf_context_t kf_context_t;
typedef struct kf_tensor_t kf_tensor_t;
typedef struct kf_stream_t kf_stream_t;
typedef struct kf_event_t kf_event_t;
struct CUstream_st;              /* what a cudaStream_t points to */
struct DLManagedTensorVersioned; /* of DLPack 1.x */

/* Structs are copied by whoever is given one. They grow at the end only, and 0 is every field's
 * default. */
typedef struct kf_device_info_t {
    char name[256];
    size_t memory;                         /* bytes */
    int32_t multiprocessors, major, minor; /* of a CPU: processors, 0, 0 */
    int32_t device_type, device_id;
} kf_device_info_t;
typedef struct kf_tensor_desc_t {
    const int64_t *shape, *strides; /* ndim numbers each; strides in elements, NULL: dense, the last
                                       dimension innermost */
    int32_t ndim, dtype;            /* 0 to KF_MAX_DIMS; KF_DTYPE_* */
    int32_t device_type, device_id; /* 0, 0: the context's */
} kf_tensor_desc_t;
typedef struct kf_memory_desc_t {
    void *data;
    size_t size; /* bytes; 0: not known, and not checked */
    int32_t
        owns_memory; /* 1: free() it (cudaFree() on a GPU) with the last tensor that refers to it */
} kf_memory_desc_t;

/* ---- contexts: a device, its pool, its default stream. Tensors, streams, events and plans keep
   theirs, so that all of them may be destroyed in any order. device: -1 is the CPU, 0 and more
   CUDA's numbers. The default stream of a GPU is CUDA's own, 0. */
kf_context_t *kf_context_create_abi(int device, int abi);
static inline kf_context_t *kf_context_create(int device)
{
    return kf_context_create_abi(device, KF_RUNTIME_ABI);
}
kf_result_t kf_context_destroy(kf_context_t *ctx);
kf_result_t
kf_context_synchronize(kf_context_t *ctx); /* waits until all work on the device is done */
kf_result_t kf_context_get_device_info(const kf_context_t *ctx, kf_device_info_t *info);
/* on: handles that were destroyed are kept, so that using one is KF_ERROR_HANDLE instead of
   undefined, and each copy waits until its stream is done, so that CUDA's errors are those of the
   call that they are of. Costs memory and time. */
kf_result_t kf_set_debug_mode(kf_context_t *ctx, int on);
/* As kf_get_last_error_detail(), for callers that look functions up by name. */
const char *kf_runtime_error_detail(void);

/* ---- tensors. Views share their memory, which lives until the last of them is destroyed. */
kf_tensor_t *
kf_tensor_create(kf_context_t *ctx,
                 const kf_tensor_desc_t *desc); /* of the context's pool; holds anything */
kf_tensor_t *kf_tensor_create_from_memory(kf_context_t *ctx, const kf_memory_desc_t *memory,
                                          const kf_tensor_desc_t *desc);
kf_result_t kf_tensor_destroy(kf_tensor_t *tensor); /* NULL is fine, here and in all that destroy */
void *kf_tensor_data(const kf_tensor_t *tensor);    /* NULL: no tensor, or one without memory */
int kf_tensor_ndim(
    const kf_tensor_t *tensor); /* these four: -1 where there is no such tensor or dimension */
int kf_tensor_dtype(const kf_tensor_t *tensor);
int64_t kf_tensor_size(const kf_tensor_t *tensor, int dim);
int64_t kf_tensor_stride(const kf_tensor_t *tensor, int dim);
int64_t kf_tensor_count(const kf_tensor_t *tensor); /* elements */
int kf_tensor_is_dense(const kf_tensor_t *tensor);
/* Elements start, start + step, … below stop of one dimension; step is at least 1. */
kf_tensor_t *kf_tensor_slice(kf_tensor_t *tensor, int dim, int64_t start, int64_t stop,
                             int64_t step);
kf_tensor_t *kf_tensor_transpose(kf_tensor_t *tensor, int dim0, int dim1);
kf_tensor_t *kf_tensor_permute(kf_tensor_t *tensor, const int *dims, int count);
kf_tensor_t *kf_tensor_reshape(kf_tensor_t *tensor, const int64_t *shape,
                               int ndim); /* KF_ERROR_UNSUPPORTED where that takes a copy */
kf_tensor_t *kf_tensor_broadcast_to(kf_tensor_t *tensor, const int64_t *shape,
                                    int ndim); /* by NumPy's rule; may not be written to */
/* Elements of `from`, which broadcasts to the shape of `to`, converted to its dtype: to the
   nearest, ties to even; to whole numbers towards zero, held within their range, NaN as 0. The two
   may be of two contexts; stream: of the one on a GPU, or of either. */
kf_result_t kf_tensor_copy(kf_tensor_t *to, const kf_tensor_t *from, kf_stream_t *stream);
/* DLPack 1.x. From: takes the memory over, and calls its deleter with the last tensor that refers
   to it; NULL leaves it to the caller. To: the caller's deleter call ends it; read_only is kept,
   and said of tensors whose elements share an address. */
kf_tensor_t *kf_tensor_from_dlpack(kf_context_t *ctx, struct DLManagedTensorVersioned *managed);
struct DLManagedTensorVersioned *kf_tensor_to_dlpack(kf_tensor_t *tensor);

/* ---- streams and events. A NULL stream is the context's default one. On the CPU work is done when
 * its call returns. */
#define KF_PRIORITY_LOW (-1) /* greater is higher; a GPU that has fewer levels takes the nearest   \
                              */
#define KF_PRIORITY_NORMAL 0
#define KF_PRIORITY_HIGH 1
#define KF_STREAM_NON_BLOCKING 1 /* a flag: does not wait for the default stream */
typedef struct kf_stream_config_t {
    int32_t priority, flags;
    int32_t device_id; /* 0, or the context's own */
} kf_stream_config_t;
kf_stream_t *kf_stream_create(kf_context_t *ctx,
                              const kf_stream_config_t *config); /* NULL: the defaults */
kf_stream_t *
kf_stream_wrap(kf_context_t *ctx,
               struct CUstream_st *stream); /* the caller's, who destroys it after this */
struct CUstream_st *kf_stream_native(const kf_stream_t *stream); /* a cudaStream_t */
kf_result_t kf_stream_synchronize(kf_stream_t *stream);
kf_result_t kf_stream_wait_event(kf_stream_t *stream, kf_event_t *event);
kf_result_t kf_stream_destroy(kf_stream_t *stream);
kf_event_t *kf_event_create(kf_context_t *ctx);
kf_result_t kf_event_record(kf_event_t *event, kf_stream_t *stream);
kf_result_t kf_event_query(kf_event_t *event, int *is_done); /* 1 also where nothing was recorded */
kf_result_t kf_event_synchronize(kf_event_t *event);
kf_result_t kf_event_elapsed_ms(kf_event_t *begin, kf_event_t *end, float *ms);
kf_result_t kf_event_destroy(kf_event_t *event);

/* ---- functions by name: those of the headers that `kfgen runtime` wrote for the program, each for
 * one activation and dtypes. */
typedef struct kf_op_t kf_op_t;
typedef struct kf_plan_t kf_plan_t;
#define KF_OP_MAX_TENSORS 24
#define KF_OP_MAX_NUMBERS 16
typedef struct kf_op_tensor_t {
    const char *name;
    int32_t dtype, is_output, is_required; /* not required: may be NULL */
} kf_op_tensor_t;
typedef struct kf_op_info_t {
    const char *name, *activation; /* "layer_norm_bwd"; "none" where there is none */
    const char *launcher;          /* "kf_layer_norm_gelu_bwd_f32"; the CPU's has cpu_ behind kf_ */
    int32_t activation_id, on_cpu, on_cuda; /* on_: whether the program has it for that device */
    int32_t takes_dim, takes_groups, takes_dropout, takes_beta;
    int32_t tensor_count, integer_count, scalar_count, act_scalar_count;
    kf_op_tensor_t tensors[KF_OP_MAX_TENSORS];
    const char *integers[KF_OP_MAX_NUMBERS], *scalars[KF_OP_MAX_NUMBERS],
        *act_scalars[4]; /* their names */
    double act_defaults[4];
} kf_op_info_t;
/* What a call is given: as many of each as the info says, in its order; what the op does not take
 * is not looked at. */
typedef struct kf_op_arguments_t {
    const kf_tensor_t *const *tensors; /* those that are written to, too */
    const int64_t *integers;
    const double *scalars, *act_scalars; /* act_scalars NULL: the defaults */
    int64_t groups;
    double p;    /* of dropout */
    double beta; /* what is in a result times this is added to it */
    uint64_t seed, offset;
    int32_t dim; /* of a reduction */
} kf_op_arguments_t;
/* name: of the info, or another spelling of it ("elementwise_add"); dtypes: those of a function's
   name ("bf16_f32": two), count 0: any; device_type: one that it must be there for, 0: any. NULL:
   there is none. */
const kf_op_t *kf_op_lookup(const char *name, kf_activation_t activation, const int *dtypes,
                            int count, int device_type);
int kf_op_count(void);
const kf_op_t *kf_op_at(int index); /* of 0 to kf_op_count() - 1 */
kf_result_t kf_op_get_info(const kf_op_t *op, kf_op_info_t *info);
kf_result_t kf_op_call(kf_context_t *ctx, const kf_op_t *op, const kf_op_arguments_t *arguments,
                       kf_stream_t *stream);
/* A plan has checked and chosen all but addresses, once: for tensors of the shapes and strides of
   `arguments`, whose numbers it keeps. pointers: as the tensors, NULL where there was none; the
   launcher checks them. Many threads may run one plan. Of tensors it knows their addresses alone:
   they are to live until the stream is done. */
kf_plan_t *kf_plan_create(kf_context_t *ctx, const kf_op_t *op, const kf_op_arguments_t *arguments);
kf_result_t kf_plan_run(const kf_plan_t *plan, void *const *pointers, kf_stream_t *stream);
kf_result_t kf_plan_destroy(kf_plan_t *plan);

/* ---- the context's pool, for many threads at once. Memory lies at a multiple of 256 bytes. What
   is deallocated on a stream is handed out again once what that stream was given before is done. It
   keeps no context: deallocate it before kf_context_destroy. */
typedef struct kf_pool_stats_t {
    size_t in_use, reserved, peak; /* bytes: of living allocations, rounded; of the device, living
                                      or kept; the most that was in use */
    size_t hits;                   /* allocations that took nothing from the device */
} kf_pool_stats_t;
void *kf_pool_allocate(kf_context_t *ctx, size_t bytes, kf_stream_t *stream);
kf_result_t kf_pool_deallocate(kf_context_t *ctx, void *ptr, kf_stream_t *stream);
kf_result_t kf_pool_clear(kf_context_t *ctx); /* gives back what is kept */
kf_result_t
kf_pool_set_cap(kf_context_t *ctx,
                size_t bytes); /* of what is in use: more is KF_ERROR_OUT_OF_MEMORY; 0: none */
kf_result_t kf_pool_get_stats(kf_context_t *ctx, kf_pool_stats_t *stats);

#ifdef __cplusplus
}
#endif

#endif

/* Outside of the guard: a file may have had the declarations before, by another header. */
#ifdef KF_RUNTIME_IMPLEMENTATION
#include "kf/runtime/implementation.h"
#endif
