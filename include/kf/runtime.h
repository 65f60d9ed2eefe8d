/* SPDX-License-Identifier: Apache-2.0 */
/* kf/runtime.h: contexts, tensors and views, streams, events and a memory pool, for programs that
 * hold tensors (docs/runtime.md).
 *
 * The declarations need C11 or C++17, and no CUDA. Exactly one file of a program contains
 *
 *     #define KF_RUNTIME_IMPLEMENTATION
 *     #include <kf/runtime.h>
 *
 * and provides the definitions: for the CPU in a .c file, for the CPU and GPUs in a .cu file. All
 * other files include this header and link to that file.
 *
 * Constructors return NULL on failure, other functions a result code; kf_get_last_error_detail()
 * describes the error. A failed call changes nothing. */
#ifndef KF_RUNTIME_H
#define KF_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include "kf/core/dtype.h"
#include "kf/core/result.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rises when a struct below grows or a function changes; files compiled against another version are
 * refused. */
#define KF_RUNTIME_ABI 2
/* Largest number of dimensions of a tensor. */
#define KF_MAX_DIMS 8

/* ABI: DLPack's numbers. */
typedef enum kf_device_type_t { KF_DEVICE_CPU = 1, KF_DEVICE_CUDA = 2 } kf_device_type_t;
/* The values of kf_dtype_t as macros, for use in #if. */
#define KF_DTYPE_FLOAT32 0
#define KF_DTYPE_FLOAT16 1
#define KF_DTYPE_BFLOAT16 2
#define KF_DTYPE_FLOAT64 3
#define KF_DTYPE_INT32 4
#define KF_DTYPE_INT64 5
#define KF_DTYPE_UINT8 6

/* Number of an activation: a KF_ACTIVATION_* of the header that `kfgen runtime` writes. A user's
 * activation has its own number. */
typedef int32_t kf_activation_t;

/* Handles. The program holds pointers to them. */
typedef struct kf_context_t kf_context_t;
typedef struct kf_tensor_t kf_tensor_t;
typedef struct kf_stream_t kf_stream_t;
typedef struct kf_event_t kf_event_t;
struct CUstream_st;              /* a cudaStream_t points to it */
struct DLManagedTensorVersioned; /* from DLPack 1.x */

/* Functions copy the structs that they receive. Structs grow at the end only; 0 is the default of
 * every field. */
typedef struct kf_device_info_t {
    char name[256];
    size_t memory;                         /* bytes */
    int32_t multiprocessors, major, minor; /* on a CPU: processors, 0, 0 */
    int32_t device_type, device_id;
} kf_device_info_t;
typedef struct kf_tensor_desc_t {
    /* ndim numbers each; strides in elements; NULL strides: contiguous, last dimension innermost */
    const int64_t *shape, *strides;
    int32_t ndim, dtype;            /* 0 to KF_MAX_DIMS; KF_DTYPE_* */
    int32_t device_type, device_id; /* 0, 0: the context's */
} kf_tensor_desc_t;
typedef struct kf_memory_desc_t {
    void *data;
    size_t size; /* bytes; 0: unknown, not checked */
    /* 1: free() the memory (cudaFree() on a GPU) with the last tensor that refers to it */
    int32_t owns_memory;
} kf_memory_desc_t;

/* ---- contexts: a device, its pool and its default stream. Tensors, streams, events and plans keep
 * their context alive, so you may destroy all of them in any order.
 * device: -1 is the CPU, 0 and above CUDA's number. A GPU's default stream is CUDA's own, 0. */
/* Creates a context. kf_context_create passes the version that its caller is compiled with. */
kf_context_t *kf_context_create_abi(int device, int abi);
static inline kf_context_t *kf_context_create(int device)
{
    return kf_context_create_abi(device, KF_RUNTIME_ABI);
}
/* Destroys the handle; the context ends with the last object that keeps it alive. */
kf_result_t kf_context_destroy(kf_context_t *ctx);
/* Waits until all work on the device is done. */
kf_result_t kf_context_synchronize(kf_context_t *ctx);
/* Describes the device. */
kf_result_t kf_context_get_device_info(const kf_context_t *ctx, kf_device_info_t *info);
/* Enables (on: 1) or disables checks that cost memory and time. Destroyed handles are kept: using
 * one returns KF_ERROR_HANDLE instead of being undefined. Each copy waits for its stream, so that a
 * CUDA error appears in the call that caused it. */
kf_result_t kf_set_debug_mode(kf_context_t *ctx, int on);
/* Same as kf_get_last_error_detail(), for callers that look functions up by name. */
const char *kf_runtime_error_detail(void);

/* ---- tensors. Views share their memory, which lives until the last of them is destroyed. */
/* Allocates from the context's pool; the contents are undefined. */
kf_tensor_t *kf_tensor_create(kf_context_t *ctx, const kf_tensor_desc_t *desc);
/* Creates a tensor in memory of the caller. */
kf_tensor_t *kf_tensor_create_from_memory(kf_context_t *ctx, const kf_memory_desc_t *memory,
                                          const kf_tensor_desc_t *desc);
/* Destroys the handle. All destroy functions accept NULL. */
kf_result_t kf_tensor_destroy(kf_tensor_t *tensor);
/* Returns the address of the first element; NULL for no tensor, and for one without memory. */
void *kf_tensor_data(const kf_tensor_t *tensor);
/* Describe a tensor; -1 if there is no such tensor or dimension. count: elements; is_dense: 1 if
 * it is contiguous. */
int kf_tensor_ndim(const kf_tensor_t *tensor);
int kf_tensor_dtype(const kf_tensor_t *tensor);
int64_t kf_tensor_size(const kf_tensor_t *tensor, int dim);
int64_t kf_tensor_stride(const kf_tensor_t *tensor, int dim);
int64_t kf_tensor_count(const kf_tensor_t *tensor);
int kf_tensor_is_dense(const kf_tensor_t *tensor);
/* View of elements start, start + step, ... below stop of one dimension; step is at least 1. */
kf_tensor_t *kf_tensor_slice(kf_tensor_t *tensor, int dim, int64_t start, int64_t stop,
                             int64_t step);
/* View with two dimensions swapped. */
kf_tensor_t *kf_tensor_transpose(kf_tensor_t *tensor, int dim0, int dim1);
/* View whose dimension i is dimension dims[i] of the tensor. */
kf_tensor_t *kf_tensor_permute(kf_tensor_t *tensor, const int *dims, int count);
/* View with another shape; fails with KF_ERROR_UNSUPPORTED if it would need a copy. */
kf_tensor_t *kf_tensor_reshape(kf_tensor_t *tensor, const int64_t *shape, int ndim);
/* View that repeats elements by NumPy's rule of broadcasting; it is read-only. */
kf_tensor_t *kf_tensor_broadcast_to(kf_tensor_t *tensor, const int64_t *shape, int ndim);
/* Copies `from`, broadcast to the shape of `to` and converted to its dtype. Floats round to nearest
 * even; conversion to integers truncates and saturates, and NaN becomes 0. The tensors may have
 * different contexts. stream: of the context on a GPU, or of either. */
kf_result_t kf_tensor_copy(kf_tensor_t *to, const kf_tensor_t *from, kf_stream_t *stream);
/* DLPack 1.x. from_dlpack takes over the memory, and calls its deleter with the last tensor that
 * refers to it; on NULL the caller keeps it. The caller of to_dlpack ends the loan by the deleter.
 * read_only is preserved, and set for tensors whose elements share an address. */
kf_tensor_t *kf_tensor_from_dlpack(kf_context_t *ctx, struct DLManagedTensorVersioned *managed);
struct DLManagedTensorVersioned *kf_tensor_to_dlpack(kf_tensor_t *tensor);

/* ---- streams and events. A NULL stream is the context's default stream. On the CPU, work is done
 * when its call returns. */
/* Greater is higher; a GPU with fewer levels uses the nearest. */
#define KF_PRIORITY_LOW (-1)
#define KF_PRIORITY_NORMAL 0
#define KF_PRIORITY_HIGH 1
#define KF_STREAM_NON_BLOCKING 1 /* flag: does not wait for the default stream */
typedef struct kf_stream_config_t {
    int32_t priority, flags;
    int32_t device_id; /* 0, or the context's own */
} kf_stream_config_t;
/* Creates a stream. config NULL: the defaults. */
kf_stream_t *kf_stream_create(kf_context_t *ctx, const kf_stream_config_t *config);
/* Wraps a stream of the caller, who destroys it after this one. */
kf_stream_t *kf_stream_wrap(kf_context_t *ctx, struct CUstream_st *stream);
/* Returns a cudaStream_t. */
struct CUstream_st *kf_stream_native(const kf_stream_t *stream);
/* Waits until the stream's work is done. */
kf_result_t kf_stream_synchronize(kf_stream_t *stream);
/* Lets later work of the stream wait for the event; without a record it does nothing. */
kf_result_t kf_stream_wait_event(kf_stream_t *stream, kf_event_t *event);
/* Destroys the stream; its work is still done. */
kf_result_t kf_stream_destroy(kf_stream_t *stream);
/* Creates an event. */
kf_event_t *kf_event_create(kf_context_t *ctx);
/* Marks the end of the stream's work so far. */
kf_result_t kf_event_record(kf_event_t *event, kf_stream_t *stream);
/* Sets is_done to 1 if the marked work is done, or if nothing was recorded. */
kf_result_t kf_event_query(kf_event_t *event, int *is_done);
/* Waits until the marked work is done. */
kf_result_t kf_event_synchronize(kf_event_t *event);
/* Milliseconds between two recorded events of one context. */
kf_result_t kf_event_elapsed_ms(kf_event_t *begin, kf_event_t *end, float *ms);
/* Destroys the event. */
kf_result_t kf_event_destroy(kf_event_t *event);

/* ---- functions by name. The headers that `kfgen runtime` wrote for the program define them. Each
 * kf_op_t is one function with one activation and one set of dtypes. */
/* Handles. Nobody destroys a kf_op_t. */
typedef struct kf_op_t kf_op_t;
typedef struct kf_plan_t kf_plan_t;
/* Lengths of the arrays below. */
#define KF_OP_MAX_TENSORS 24
#define KF_OP_MAX_NUMBERS 16
typedef struct kf_op_tensor_t {
    const char *name;
    int32_t dtype, is_output, is_required; /* not required: may be NULL */
} kf_op_tensor_t;
typedef struct kf_op_info_t {
    const char *name, *activation; /* "layer_norm_bwd"; "none" without an activation */
    const char *launcher; /* "kf_layer_norm_gelu_bwd_f32"; on the CPU it begins with kf_cpu_ */
    int32_t activation_id, on_cpu, on_cuda; /* on_*: the program has it for that device */
    int32_t takes_dim, takes_groups, takes_dropout, takes_beta;
    int32_t tensor_count, integer_count, scalar_count, act_scalar_count;
    kf_op_tensor_t tensors[KF_OP_MAX_TENSORS];
    /* names of the arguments */
    const char *integers[KF_OP_MAX_NUMBERS], *scalars[KF_OP_MAX_NUMBERS], *act_scalars[4];
    double act_defaults[4];
} kf_op_info_t;
/* Arguments of a call: as many of each as kf_op_info_t says, in its order. Arguments that the op
 * does not take are ignored. */
typedef struct kf_op_arguments_t {
    const kf_tensor_t *const *tensors; /* outputs included */
    const int64_t *integers;
    const double *scalars, *act_scalars; /* act_scalars NULL: the defaults */
    int64_t groups;
    double p;    /* probability of a dropout */
    double beta; /* the old contents of a result, times beta, are added to it */
    uint64_t seed, offset;
    int32_t dim; /* axis of a reduction */
} kf_op_arguments_t;
/* Finds an op; returns NULL if there is none. name: as in kf_op_info_t, or an alias
 * ("elementwise_add"). dtypes: those in a function's name ("bf16_f32": two); count 0: any.
 * device_type: a device that it must support; 0: any. */
const kf_op_t *kf_op_lookup(const char *name, kf_activation_t activation, const int *dtypes,
                            int count, int device_type);
/* Number of functions of the program, and the one at an index from 0 to kf_op_count() - 1. */
int kf_op_count(void);
const kf_op_t *kf_op_at(int index);
/* Describes the function's arguments. */
kf_result_t kf_op_get_info(const kf_op_t *op, kf_op_info_t *info);
/* Calls the function. */
kf_result_t kf_op_call(kf_context_t *ctx, const kf_op_t *op, const kf_op_arguments_t *arguments,
                       kf_stream_t *stream);
/* Creates a plan: a call that is checked and chosen once, for tensors with the shapes and strides
 * of `arguments`; it copies their numbers. */
kf_plan_t *kf_plan_create(kf_context_t *ctx, const kf_op_t *op, const kf_op_arguments_t *arguments);
/* Runs the plan at the addresses, in the order of the tensors (NULL for an absent tensor); the
 * launcher checks them. Several threads may run one plan. A plan knows only addresses: keep the
 * memory alive until the stream is done. */
kf_result_t kf_plan_run(const kf_plan_t *plan, void *const *pointers, kf_stream_t *stream);
/* Destroys the plan. */
kf_result_t kf_plan_destroy(kf_plan_t *plan);

/* ---- the context's pool. Thread-safe; memory is aligned to 256 bytes. Memory deallocated on a
 * stream is reused once the earlier work of that stream is done. It does not keep the context
 * alive: deallocate it before kf_context_destroy. */
typedef struct kf_pool_stats_t {
    /* bytes. in_use: live allocations, rounded; reserved: taken from the device, live or cached;
     * peak: maximum of in_use */
    size_t in_use, reserved, peak;
    size_t hits; /* allocations served without the device */
} kf_pool_stats_t;
/* Returns memory for work of the stream; NULL on failure. */
void *kf_pool_allocate(kf_context_t *ctx, size_t bytes, kf_stream_t *stream);
/* Gives the memory back behind the stream's work so far. */
kf_result_t kf_pool_deallocate(kf_context_t *ctx, void *ptr, kf_stream_t *stream);
/* Returns the cached memory to the device. */
kf_result_t kf_pool_clear(kf_context_t *ctx);
/* Limits the bytes in use: more returns KF_ERROR_OUT_OF_MEMORY; 0: no limit. */
kf_result_t kf_pool_set_cap(kf_context_t *ctx, size_t bytes);
/* Describes the pool's memory. */
kf_result_t kf_pool_get_stats(kf_context_t *ctx, kf_pool_stats_t *stats);

#ifdef __cplusplus
}
#endif

#endif

/* Outside the include guard: another header may have included the declarations before. */
#ifdef KF_RUNTIME_IMPLEMENTATION
#include "kf/runtime/implementation.h"
#endif
