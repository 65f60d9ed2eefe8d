// SPDX-License-Identifier: Apache-2.0
// kf/core/reduction/args.cuh: kernel argument and tuning constants of reductions over an axis.
#ifndef KF_CORE_REDUCTION_ARGS_CUH
#define KF_CORE_REDUCTION_ARGS_CUH

#include "kf/core/rows/args.cuh"

#ifndef KFI_REDUCE_THREADS // the emulation sets less, to reach every kernel with short tensors
#define KFI_REDUCE_THREADS 256
#endif
// log2 of the maximum cluster size that combines the parts of an axis. 0: no clusters, since sums
// are slower with them (bench/NOTES/reduction.md). The emulation sets 3.
#ifndef KFI_REDUCE_CLUSTER
#define KFI_REDUCE_CLUSTER 0
#endif
// `stage` of a launch that runs all passes, then stores results or gradients. Other stages: 2 *
// pass reduces a part, 2 * pass + 1 combines the parts.
#define KFI_REDUCE_ALL -1

// Kernel argument: the work of a launch.
struct kfi_reduce {
    kf_i64 outer, axis, inner; // extents read; a launch that combines parts: 1, parts, results
    kf_i64 count;              // elements per result
    kf_i64 length;             // axis elements per part
    kf_i64 results;            // outer * inner of the call
    void *partial, *done;  // partial[reduction of the pass][part][result], done[reduction][result]
    unsigned parts, tiles; // parts of the axis, tiles of columns along inner
    int cluster;           // log2 of the cluster size: its blocks reduce and combine the parts
    // log2 of the threads along the vectors of columns (flat: along the axis) and along the axis
    // (flat: warps that share the chunks of one axis).
    int x, y;
    int flat, stage;
    int index_32; // one launch, whole vectors, offsets in 32 bits: kfi_reduce_enter_32
};

#endif
