/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/operand.h: describes the tensor arguments of a call, its shape and its strides, for the
 * checks in kf/core/check.h. */
#ifndef KF_CORE_OPERAND_H
#define KF_CORE_OPERAND_H

#include "kf/core/host.h"

#include <stddef.h>
#include <stdint.h>

#include "kf/core/config.h"
#include "kf/core/dtype.h"
#include "kf/core/limits.h"
#include "kf/core/pitch.h"

/* The code of a tensor: a character for each of its bytes per element, extent, overlap class, flags
 * and alias, the numbers offset by '0' (gen/kfgen/model/kinds.py). */
enum {
    KFI_CODE_SIZE,
    KFI_CODE_EXTENT,
    KFI_CODE_OVERLAP,
    KFI_CODE_FLAGS,
    KFI_CODE_ALIAS,
    KFI_CODE_LENGTH
};
/* Extents, the number of elements, with n = rows * cols, times channels if any. KFI_EXTENT_PLANES
 * is also one value per channel, with rows = 1. kfi_shape.elements replaces them. */
enum {
    KFI_EXTENT_ELEMENTS = 'e', /* n */
    KFI_EXTENT_HALVES = 'h',   /* 2n */
    KFI_EXTENT_COLUMNS = 'c',  /* cols, or channels */
    KFI_EXTENT_ONE = '1',      /* 1: a seed, an offset */
    KFI_EXTENT_ROWS = 'r',     /* rows */
    KFI_EXTENT_PLANES = 'p',   /* rows * channels */
    KFI_EXTENT_SHARED = 's',   /* rows * cols: all channels share them */
    KFI_EXTENT_GROUPS = 'g',   /* channels * parts */
    KFI_EXTENT_GIVEN = '.'     /* kfi_shape.elements gives it */
};
/* Overlap classes: an output may be the same pointer as an input of its class, a letter. */
enum { KFI_NO_OVERLAP = '.' };
/* KFI_VECTORS: kernels access the tensor by vectors if all such tensors are aligned. */
enum { KFI_OUT = 1, KFI_NULLABLE = 2, KFI_UNREAD = 4, KFI_VECTORS = 8 };

typedef struct {
    const void *ptr;
    int size;      /* bytes per element */
    char elements; /* an extent: KFI_EXTENT_ELEMENTS, ... */
    char overlap;  /* an overlap class */
    int flags;     /* KFI_OUT, ... */
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
    const char *codes; /* KFI_CODE_LENGTH characters per tensor */
    const void *const *tensors;
} kfi_arguments;

KFI_HOST int kfi_flags_of(const kfi_arguments *arguments, int tensor)
{
    return arguments->codes[KFI_CODE_LENGTH * tensor + KFI_CODE_FLAGS] - '0';
}

/* Shape of a call: rows x cols elements. `channels`: the third size of a channel op (otherwise 0);
 * `parts`: channels per group. `elements`: elements of each tensor, if they do not follow from the
 * sizes and the extent; otherwise NULL. */
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
