// SPDX-License-Identifier: Apache-2.0
// kf/core/row.cuh: the schedule of the row family: norms, softmax, losses, reductions over the last
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
#ifndef KF_CORE_ROW_CUH
#define KF_CORE_ROW_CUH

#include "kf/core/row_access.cuh"
#include "kf/core/row_args.cuh"
#include "kf/core/row_cluster.cuh"
#include "kf/core/row_host.cuh"
#include "kf/core/row_reduce.cuh"
#include "kf/core/row_segments.cuh"
#include "kf/core/row_shift.cuh"
#include "kf/core/row_band.cuh"
#include "kf/core/row_band_host.cuh"

#endif
