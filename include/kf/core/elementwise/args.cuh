// SPDX-License-Identifier: Apache-2.0
// kf/core/elementwise/args.cuh: kernel arguments and tuning constants of elementwise kernels.
#ifndef KF_CORE_ELEMENTWISE_ARGS_CUH
#define KF_CORE_ELEMENTWISE_ARGS_CUH

#include "kf/core/sums.cuh"

#ifndef KFI_MAP_THREADS // set by bench/tune.cu alone
#define KFI_MAP_THREADS 256
#endif

// Addressing of row values. KFI_ROWS: rows hold whole vectors. KFI_PLANES: one value per channel; a
// vector may span two planes. KFI_ODD_ROWS: rows of any length of at least one vector.
#define KFI_ROWS 0
#define KFI_PLANES 1
#define KFI_ODD_ROWS 2

// Shape of a broadcast: `width` elements per row (KFI_ROWS: vectors), `channels` planes per batch.
struct kfi_rows {
    kfi_divisor width, channels;
    kf_i64 cols;
};

// Work of a thread: vector u begins at element first + u * step, for first < own and below n.
struct kfi_each {
    kf_i64 n, own, step;
    kf_i64 block; // elements between the first elements of consecutive blocks
};

struct kfi_grid {
    kf_i64 rows, cols; // planes: batches, channels * inner
    kf_i64 slab;       // rows of a slab: one wave of blocks works on one slab
    unsigned tiles;    // tiles along the columns
    unsigned parts;    // parts along a slab's rows
    int bx, by;        // threads along columns, along rows
    kfi_rows r;
    kf_i64 slots; // planes: channels that a tile may overlap
    // Few rows: one block holds all rows of its columns, one row per thread. 1 + log2(rows per
    // warp); otherwise 0.
    int few;
};
#ifndef KFI_MAP_FEW    // the emulation sets less, to reach every kernel with short tensors
#define KFI_MAP_FEW 64 // rows whose sums need no second stage
#endif
#define KFI_MAP_FEW_BITS 3 // log2 of the rows per warp, at most

#endif
