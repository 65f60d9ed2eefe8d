// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/rows.cuh: CUDA schedules of the rows family: norms, softmax, losses, reductions over
// the last axis.
//
// Schedule: a row is shared by 1 to 32 lanes of a warp, by whole warps of a block, or by a cluster
// of up to 8 blocks. Each thread holds 16-byte vectors of its row in registers, so the row is read
// once. The stride between a thread's vectors is one vector of all threads of the row (2-byte
// elements: of its warp). A row that is too long for registers is read again in each pass, mostly
// from L2.
//
// Reductions: each thread reduces its own elements, then warp shuffles, then shared memory across
// warps, then distributed shared memory across the cluster. The row length and the architecture
// alone assign elements to threads: a row's bits do not depend on the number of rows or on
// alignment. Alignment only decides the width of an access.
//
// Gradients summed over rows: persistent blocks loop over the rows and accumulate in registers. The
// second stage of the elementwise family adds up their partial sums.
#ifndef KF_CORE_ROWS_ROWS_CUH
#define KF_CORE_ROWS_ROWS_CUH

#include "kf/core/rows/access.cuh"
#include "kf/core/rows/args.cuh"
#include "kf/core/rows/host.cuh"
#include "kf/core/rows/reduce.cuh"
#include "kf/core/rows/segments.cuh"
#include "kf/core/rows/shift.cuh"
#include "kf/core/rows/channel_block.cuh"
#include "kf/core/rows/channel_block_host.cuh"

#endif
