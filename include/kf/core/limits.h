/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/limits.h: upper bounds of what a function may have. They size the arrays of C and CUDA;
 * kfgen has the same numbers in limits.py and refuses an entry that needs more. */
#ifndef KF_CORE_LIMITS_H
#define KF_CORE_LIMITS_H

#define KFI_MAX_TENSORS 24    /* tensor arguments: inputs, outputs, seed and offset of a dropout */
#define KFI_MAX_LEVELS 3      /* strides of a tensor */
#define KFI_MAX_SCALARS 8     /* scalars of an op: separate arguments, never stored in an array */
#define KFI_MAX_ACT_SCALARS 4 /* scalars of an activation */
#define KFI_MAX_REDUCTIONS 16 /* reductions in a pass over a row: 2 bits each in an int */
#define KFI_MAX_SLOTS 32      /* pointers of a tile function in C: one bit each in an unsigned */
/* Gradients that one launch of CUDA's second stage sums; more gradients take more launches. */
#define KFI_MAX_SUM_OUTPUTS 4
/* Stack bytes of a traversal of tiles in C (core/elementwise/elementwise.h). */
#define KFI_MAX_ROOM 20480
#define KFI_MAX_PART 128    /* elements that a tile function computes at a time */
#define KFI_MAX_WORDS 4352  /* bytes of KFI_MAX_ROOM for random words, with a dropout */
#define KFI_MAX_FRAME 22528 /* stack bytes of a traversal of rows (core/rows/rows.h) */
#define KFI_MAX_STAGED 4096 /* stack bytes of a tile function, to convert and to stream */
/* Elements of one tensor of a list that a CTA, or a task in C, computes. */
#define KFI_MAX_CHUNK 8192

#endif
