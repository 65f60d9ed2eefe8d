/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/limits.h: how much of everything a function may have. What C and CUDA hold is dimensioned
   by these; kfgen, whose limits.py has the same numbers, refuses an entry that needs more. */
#ifndef KF_CORE_LIMITS_H
#define KF_CORE_LIMITS_H

#define KFI_MAX_TENSORS 24 /* arguments: inputs, outputs, seed and offset of a dropout */
#define KFI_MAX_LEVELS 3   /* sizes that a tensor has strides for */
#define KFI_MAX_SCALARS                                                                            \
    8 /* of an op: arguments each, none of which is held in an array of this length */
#define KFI_MAX_ACT_SCALARS 4 /* of an activation */
#define KFI_MAX_REDUCTIONS 16 /* of a pass over a row: 2 bits each of an int */
#define KFI_MAX_SLOTS 32      /* pointers of a tile function in C: a bit each of an unsigned */
#define KFI_MAX_SUM_OUTPUTS                                                                        \
    4 /* gradients that one launch of CUDA's second stage adds up; there are as many launches as   \
         it takes */
#define KFI_MAX_ROOM 20480  /* bytes on the stack of a traversal of tiles in C (core/elementwise/elementwise.h) */
#define KFI_MAX_PART 128    /* elements that a tile function computes at a time */
#define KFI_MAX_WORDS 4352  /* of them for random words, where an op has a dropout */
#define KFI_MAX_FRAME 22528 /* bytes on the stack of a traversal of rows (core/rows/rows.h) */
#define KFI_MAX_STAGED                                                                             \
    4096 /* bytes on the stack of a tile function: what is converted or streamed by way of it */

#endif
