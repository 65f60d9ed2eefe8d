/* SPDX-License-Identifier: Apache-2.0 */
/* kft_function describes a function as a table. cprogram.py prints one for each function of kf;
 * every_call.c calls the functions by these tables. */
#ifndef KFT_EVERY_CALL_H
#define KFT_EVERY_CALL_H

#include <stddef.h>
#include <stdint.h>

#define KFT_TENSORS 24 /* KFI_MAX_TENSORS: a test compares them */
/* KFT_SIZES, the sizes of the function with the most: cprogram.py's compiler flags define it. */

enum { KFT_F32, KFT_F16, KFT_BF16, KFT_F64, KFT_I32, KFT_I64, KFT_U8 };
typedef struct {
    const char *name;
    int64_t (*elements)(const int64_t *n); /* number of elements; NULL: the next three say it */
    int extents, times; /* number of elements: a bit per size to multiply, and a constant factor */
    int plus;           /* and an addend */
    int first, step;    /* integers: first + i * step; any, if both are 0 */
    int dtype, is_out, is_in, is_unread, is_positive;
} kft_tensor;
typedef struct {
    const char *name;
    int sizes, tensors;
    const kft_tensor *tensor;
    int (*call)(void *const *p, const int64_t *n, void *workspace, size_t workspace_bytes);
    size_t (*workspace)(const int64_t *n); /* NULL: none */
    const int64_t (*shapes[2])[KFT_SIZES]; /* small and large sizes; NULL: the default ones */
    int shape_counts[2];
} kft_function;
typedef struct {
    const kft_function *functions;
    int count;
} kft_table;

extern const kft_table kft_tables[];
extern const int kft_table_count;

#endif
