/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/result.h: result codes and the text of the last error. */
#ifndef KF_CORE_RESULT_H
#define KF_CORE_RESULT_H

#include "kf/core/host.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kf/core/config.h"

/* ABI: the numbers never change. */
typedef enum KFI_RESULT_TYPE kf_result_t {
    KF_SUCCESS = 0,
    KF_ERROR_NULL_POINTER = 1,
    KF_ERROR_INVALID_SIZE = 2,
    KF_ERROR_INVALID_VALUE = 3,
    KF_ERROR_OVERLAP = 4,
    KF_ERROR_WORKSPACE = 5,
    KF_ERROR_UNSUPPORTED = 6,
    KF_ERROR_NO_KERNEL_IMAGE = 7,
    KF_ERROR_CUDA = 8,
    KF_ERROR_OUT_OF_MEMORY = 9,
    KF_ERROR_MISALIGNED = 10,
    KF_ERROR_DTYPE = 11,
    KF_ERROR_SHAPE = 12,
    KF_ERROR_DEVICE = 13,
    KF_ERROR_HANDLE = 14
} kf_result_t;

#if defined(__GNUC__)
#define KFI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define KFI_PRINTF(text, first)
#endif

/* One variable per program and thread, in C and C++ alike: a weak symbol. */
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
__attribute__((weak)) __thread char kfi_error_detail[512];
#elif defined(__cplusplus)
inline thread_local char kfi_error_detail[512];
#else
static _Thread_local char kfi_error_detail[512];
#endif
#ifdef __cplusplus
}
#endif

KFI_HOST const char *kf_get_error_string(kf_result_t result)
{
    switch (result) {
    case KF_SUCCESS: return "success";
    case KF_ERROR_NULL_POINTER: return "a required pointer is NULL";
    case KF_ERROR_INVALID_SIZE: return "a size is negative, too large or does not fit the others";
    case KF_ERROR_INVALID_VALUE: return "a scalar argument is outside its range";
    case KF_ERROR_OVERLAP: return "tensors overlap in a way the function does not allow";
    case KF_ERROR_WORKSPACE: return "the workspace is missing or too small";
    case KF_ERROR_UNSUPPORTED: return "not supported";
    case KF_ERROR_NO_KERNEL_IMAGE:
        return "the program holds no kernel for this GPU; compile for its architecture";
    case KF_ERROR_CUDA: return "a CUDA call failed";
    case KF_ERROR_OUT_OF_MEMORY: return "out of memory";
    case KF_ERROR_MISALIGNED:
        return "a pointer is not aligned to its elements, or the workspace not to 256 bytes";
    case KF_ERROR_DTYPE: return "a tensor has a dtype that the function does not take";
    case KF_ERROR_SHAPE: return "tensors have shapes that do not go together";
    case KF_ERROR_DEVICE: return "a tensor or a stream is of another device";
    case KF_ERROR_HANDLE: return "a handle is of no object, or of one that is gone";
    }
    return "unknown result code";
}

/* Describes this thread's last failed call: function, argument, what it got, what it expected. */
KFI_HOST const char *kf_get_last_error_detail(void) { return kfi_error_detail; }

/* Name of the function in a message: a pattern and the activation's word that replaces its hole. */
typedef struct {
    const char *pattern; /* "kf_bias_{act}_add_f16" */
    const char *word;    /* "gelu"; "none" is left out together with its underscore */
} kfi_name;

/* Returns word k of a list like "x bias out", which extends to the next space. */
KFI_ONCE const char *kfi_word(const char *words, int k)
{
    for (; k > 0; --k) words = strchr(words, ' ') + 1;
    return words;
}

/* Writes the name of the function as the caller wrote it. */
KFI_ONCE void kfi_write_name(char *text, size_t size, const kfi_name *name)
{
    const int before = (int)strcspn(name->pattern, "{");
    const char *after = name->pattern + before + (name->pattern[before] ? 5 : 0);
    const int none = strcmp(name->word, "none") == 0;
    snprintf(text, size, "%.*s%s%s", before, name->pattern,
             none || !name->pattern[before] ? "" : name->word, after + (none && *after == '_'));
}

/* Writes the message and returns `result`. argument: name of the argument at fault (up to a space).
 */
KFI_PRINTF(4, 5)
KFI_ONCE kf_result_t kfi_fail(kf_result_t result, const kfi_name *name, const char *argument,
                              const char *format, ...)
{
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    kfi_write_name(kfi_error_detail, sizeof kfi_error_detail, name);
    const size_t used = strlen(kfi_error_detail);
    snprintf(kfi_error_detail + used, sizeof kfi_error_detail - used, ": %.*s %s",
             (int)strcspn(argument, " "), argument, text);
    return result;
}

#endif
