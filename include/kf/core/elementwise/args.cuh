// SPDX-License-Identifier: Apache-2.0
// kf/core/elementwise/args.cuh: what the kernels of the map family are given by their launchers.
#ifndef KF_CORE_ELEMENTWISE_ARGS_CUH
#define KF_CORE_ELEMENTWISE_ARGS_CUH

#include "kf/core/sums.cuh"

#ifndef KFI_MAP_THREADS // set by bench/tune.cu alone
#define KFI_MAP_THREADS 256
#endif

// How row values are found. KFI_ROWS: rows hold whole vectors. KFI_PLANES: one value per channel
// and plane; a vector may reach into the next plane. KFI_ODD_ROWS: rows of any length from a vector
// on.
#define KFI_ROWS 0
#define KFI_PLANES 1
#define KFI_ODD_ROWS 2

// The shape of a broadcast: width elements per row (KFI_ROWS: vectors), and channels planes per
// repetition.
struct kfi_rows {
    kfi_divisor width, channels;
    kf_i64 cols;
};

// The work of a thread: vector u begins at first + u * step, for first < own and below n.
struct kfi_each {
    kf_i64 n, own, step;
    kf_i64 block; // from one block's first element to the next one's
};

struct kfi_grid {
    kf_i64 rows, cols; // planes: batches, and channels * inner
    kf_i64 slab;       // rows of a slab, which blocks that are launched together work on
    unsigned tiles;    // of the columns
    unsigned parts;    // of a slab's rows
    int bx, by;        // threads along columns and along rows
    kfi_rows r;
    kf_i64 slots; // planes: channels that a tile may touch
    int few; // of few rows, which a block has all of, a thread one: 1 + log2 of those that a warp
             // has; else 0
};
#ifndef KFI_MAP_FEW    // fewer where an emulation is to reach every kernel by short tensors
#define KFI_MAP_FEW 64 // rows whose sums need no second stage
#endif
#define KFI_MAP_FEW_BITS 3 // a warp has 8 of them, or as many as there are

#endif
