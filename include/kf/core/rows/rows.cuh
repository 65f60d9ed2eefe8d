// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/rows.cuh: the schedule of the row family: norms, softmax, losses, reductions over the last
// axis.
//
// Some threads have a row: a power of two up to a warp, or whole warps, or, of a long row, so many
// threads of each block of a cluster. They hold it in registers, as vectors of 16 bytes that lie as
// many vectors apart as there are threads (of 2-byte elements as many as a warp has, so that a
// warp's lie side by side), so that it is read once; a row that is too long for that is read again
// in each pass, where the L2 cache has it. What a pass reduces is added up in a thread, then across
// the threads by shuffles, then (whole warps) through shared memory, then (clusters) through each
// other's shared memory. Which thread has which element depends on the row's length and the
// architecture alone: not on how many rows there are, nor on alignment, which only decides how wide
// an access is. So a row's bits depend on nothing else either.
//
// Where a gradient is reduced over the rows, blocks are persistent and loop over the rows; each
// adds up in registers, and the map family's second stage adds up the blocks' partial sums.
#ifndef KF_CORE_ROWS_ROWS_CUH
#define KF_CORE_ROWS_ROWS_CUH

#include "kf/core/rows/access.cuh"
#include "kf/core/rows/args.cuh"
#include "kf/core/rows/cluster.cuh"
#include "kf/core/rows/host.cuh"
#include "kf/core/rows/reduce.cuh"
#include "kf/core/rows/segments.cuh"
#include "kf/core/rows/shift.cuh"
#include "kf/core/rows/channel_block.cuh"
#include "kf/core/rows/channel_block_host.cuh"

#endif
