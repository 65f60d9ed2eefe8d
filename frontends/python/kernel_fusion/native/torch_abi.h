/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of libtorch's stable C ABI that torch_shim.cpp calls, looked up by name in the loaded
   libtorch instead of being linked. */
#ifndef KF_NATIVE_TORCH_ABI_H
#define KF_NATIVE_TORCH_ABI_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

typedef uint64_t value; // a StableIValue
typedef struct opaque *handle;
/* clang-format off */
#define FUNCTIONS(X)                                                                               \
    X(aoti_torch_get_sizes, (handle, int64_t **))                                                  \
    X(aoti_torch_get_strides, (handle, int64_t **))                                                \
    X(aoti_torch_get_dim, (handle, int64_t *))                                                     \
    X(aoti_torch_get_dtype, (handle, int32_t *))                                                   \
    X(aoti_torch_get_device_type, (handle, int32_t *))                                             \
    X(aoti_torch_get_device_index, (handle, int32_t *))                                            \
    X(aoti_torch_get_data_ptr, (handle, void **))                                                  \
    X(aoti_torch_delete_tensor_object, (handle))                                                   \
    X(aoti_torch_new_tensor_handle, (handle, handle *))                                            \
    X(aoti_torch_empty_strided,                                                                    \
      (int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, handle *))            \
    X(aoti_torch_library_init_impl,                                                                \
      (const char *, const char *, const char *, uint32_t, handle *))                              \
    X(aoti_torch_library_impl,                                                                     \
      (handle, const char *, void (*)(value *, uint64_t, uint64_t)))                               \
    X(aoti_torch_call_dispatcher, (const char *, const char *, value *))
/* clang-format on */
#define POINTER(name, parameters) static int32_t(*p_##name) parameters;
FUNCTIONS(POINTER)
// Only in newer versions; earlier ones used plain new and delete for values on the heap.
static int32_t (*p_delete_value)(value *);
static int32_t (*p_current_stream)(int32_t, void **); // function of libtorch_cuda.so

/* Reads a constant by calling the function of that name. Returns the name if it is missing. */
static const char *look_up(void *library, const char *prefix, const char *name, int32_t *number)
{
    static char whole[64];
    snprintf(whole, sizeof whole, "%s%s", prefix, name);
    int32_t (*function)(void);
    *(void **)&function = dlsym(library, whole);
    if (!function) return whole;
    *number = function();
    return NULL;
}

#endif
