# SPDX-License-Identifier: Apache-2.0
"""How much of everything a function may have: include/kf/core/limits.h, by which the arrays of C and CUDA are dimensioned, has the same
numbers (tests/gen/test_limits.py). An entry that needs more is refused where its function is made."""

TENSORS = 24  # arguments of a function: inputs, outputs, seed and offset of a dropout
LEVELS = 3  # sizes that a tensor has strides for
SCALARS = 8  # of an op
ACT_SCALARS = 4  # of an activation
REDUCTIONS = 16  # of a pass over a row: how each is joined stands in an int, 2 bits each
SLOTS = 32  # of a tile function in C: loads, row values, what is derived from them, results
SUM_OUTPUTS = 4  # gradients that one launch of CUDA's second stage adds up; there are as many launches as it takes
ROOM = 20 << 10  # bytes on the stack of a traversal of tiles in C
WORDS = 4352  # of them for random words, where an op has a dropout
FRAME = 22 << 10  # bytes on the stack of a traversal of rows in C
PART = 128  # elements that a tile function computes at a time
STAGED = (
    4 << 10
)  # bytes on the stack of a tile function: what is converted or streamed by way of it
