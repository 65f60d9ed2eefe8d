// SPDX-License-Identifier: Apache-2.0
// kf/core/reduction/args.cuh: what the kernels of the reduce family are given by their launchers.
#ifndef KF_CORE_REDUCTION_ARGS_CUH
#define KF_CORE_REDUCTION_ARGS_CUH

#include "kf/core/rows/args.cuh"

#ifndef KFI_REDUCE_THREADS // fewer where an emulation is to reach every kernel by short tensors
#define KFI_REDUCE_THREADS 256
#endif
#ifndef KFI_REDUCE_CLUSTER // 3 in the emulation
#define KFI_REDUCE_CLUSTER                                                                         \
    0 // blocks at most, as a power of two, of a cluster that joins an axis' parts. 0: none, since
      // sums are slower (bench/NOTES.md)
#endif
#define KFI_REDUCE_ALL                                                                             \
    -1 // stage: all passes, then results or gradients. From 0 on: 2 * pass, of a part; 2 * pass +
       // 1, joins the parts

// The work of a launch.
struct kfi_reduce {
    kf_i64 outer, axis, inner; // of what it reads: where parts are joined 1, parts, results
    kf_i64 count;              // elements that a result is made of
    kf_i64 length;             // of the axis in a part
    kf_i64 results;            // outer * inner of the call
    void *partial, *done;  // partial[reduction of the pass][part][result], done[reduction][result]
    unsigned parts, tiles; // of the axis; of inner, in columns
    int cluster; // blocks that have the parts of an axis and join them themselves, as a power of
                 // two
    int x, y;    // threads along the vectors of columns (flat: of the axis), along the axis (flat:
                 // warps that share out its chunks); as powers of two
    int flat, stage;
    int brief; // whether a launch is all of it, and what a thread has is told by numbers of 32 bits
               // (kfi_reduce_brief)
};

#endif
