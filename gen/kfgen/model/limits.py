# SPDX-License-Identifier: Apache-2.0
"""Limits of a function. include/kf/core/limits.h, which dimensions the arrays of C and CUDA, has
the same numbers (tests/gen/test_limits.py). An entry that exceeds one is an error.
"""

TENSORS = 24  # tensor arguments: inputs, outputs, dropout's seed and offset
LEVELS = 3  # strides of a tensor
SCALARS = 8  # scalars of an op
ACT_SCALARS = 4  # scalars of an activation
REDUCTIONS = 16  # reductions of a pass over a row: an int holds 2 bits of each
SLOTS = 32  # pointers of a tile function in C: loads, row values, derived values, results
SUM_OUTPUTS = 4  # gradients that one launch of CUDA's second stage sums
ROOM = 20 << 10  # bytes on the stack of a traversal of tiles in C
WORDS = 4352  # bytes of ROOM for the random bits of dropout
FRAME = 22 << 10  # bytes on the stack of a traversal of rows in C
PART = 128  # elements that a tile function computes at a time
STAGED = 4 << 10  # bytes on the stack of a tile function: converted or streamed values
CHUNK = 8 << 10  # elements of one tensor of a list that a CTA, or a task in C, computes
