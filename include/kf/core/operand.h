/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/operand.h: describes the tensor arguments of a call, its shape and its strides, for the
 * checks in kf/core/check.h. */
#ifndef KF_CORE_OPERAND_H
#define KF_CORE_OPERAND_H

#include "kf/core/host.h"

#include <stddef.h>
#include <stdint.h>

#include "kf/core/dtype.h"
#include "kf/core/limits.h"
#include "kf/core/pitch.h"

/* Kinds of tensor arguments and their elements, with n = rows * cols, times channels if any:
 * n (ELEM), 2n (HALF), cols or channels (ROW), 1 (ONE: a seed, an offset), rows (PER_ROW),
 * rows * channels (PER_PLANE; also for one value per channel, with rows = 1), rows * cols (SHARED
 * by all channels), channels * parts (GROUPED). */
enum {
    KFI_ELEM = 0,
    KFI_HALF = 1,
    KFI_ROW = 2,
    KFI_ONE = 3,
    KFI_PER_ROW = 4,
    KFI_PER_PLANE = 5,
    KFI_SHARED = 6,
    KFI_GROUPED = 7
};
enum { KFI_KIND = 7, KFI_OUT = 8, KFI_NULLABLE = 16, KFI_UNREAD = 32 };

typedef struct {
    const void *ptr;
    int size;  /* bytes per element */
    int flags; /* a kind, KFI_OUT, KFI_NULLABLE, KFI_UNREAD */
    /* outputs only: 1 + the index of an earlier tensor that may be the same pointer, either an
     * equal output or the input whose next value this output holds; 0: none */
    int alias;
    uintptr_t bytes; /* bytes that a call accesses: 0 for a tensor that is NULL or not read */
    kf_i64 extent;   /* elements from the first to the last one */
    /* strides in elements, one for each of kfi_levels; only for tensors that have strides */
    kf_i64 apart[KFI_MAX_LEVELS];
    kfi_pitch at; /* the same as kernels read it */
} kfi_operand;

typedef struct {
    kfi_operand of[KFI_MAX_TENSORS];
    int count, wanted; /* wanted: outputs that are not NULL */
    uintptr_t bits;    /* bitwise or of all tensors' addresses */
    kf_i64 steps;      /* bitwise or of all strides, in elements */
} kfi_operands;

/* The tensor arguments of a function. Short literals, since every program that includes kf parses
 * them. */
typedef struct {
    const char *words; /* their names: "x bias out" */
    /* three characters per tensor, each offset by '0': bytes per element, flags, alias */
    const char *codes;
    const void *const *tensors;
} kfi_arguments;

/* Shape of a call: rows x cols elements. `channels`: the third size of a channel op (otherwise 0);
 * `parts`: channels per group. `elements`: elements of each tensor, if they do not follow from the
 * sizes and the kind; otherwise NULL. */
typedef struct {
    kf_i64 rows, channels, cols, parts;
    const kf_i64 *elements;
} kfi_shape;

/* Strides as the caller passed them: the caller's struct as an array of numbers (NULL: all tensors
 * are dense), and for each tensor the index of its first number, offset by '0' (' ': it has no
 * strides). */
typedef struct {
    const void *given; /* int64_t's */
    const char *fields;
} kfi_strides;

/* The sizes that strides belong to, innermost first, and the number of contiguous elements
 * (`line`). words: the suffix of each level's field in the strides struct. */
typedef struct {
    int count;
    kf_i64 line, size[KFI_MAX_LEVELS];
    const char *words;
} kfi_levels;

#endif
