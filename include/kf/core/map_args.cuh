// SPDX-License-Identifier: Apache-2.0
// kf/core/map_args.cuh: kernel arguments and tuning constants of elementwise kernels.
#ifndef KF_CORE_MAP_ARGS_CUH
#define KF_CORE_MAP_ARGS_CUH

#include "kf/core/philox.h"
#include "kf/core/vector.cuh"
#ifndef __CUDACC_RTC__
#ifndef KFI_DRIVER
#include <cuda_runtime.h>
#endif
#include <stdint.h>
#endif

#ifndef KFI_MAP_THREADS // set by bench/tune.cu alone
#define KFI_MAP_THREADS 256
#endif

// Minimum blocks of 256 threads per SM for __launch_bounds__, 8 or 6, capped by the threads of an
// SM: ptxas warns about more. Architectures that are not listed have 2,048 threads per SM. These
// are plain numbers, since every nvcc pass parses each kernel's declaration.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
#define KFI_BLOCKS_8 4
#define KFI_BLOCKS_6 4
#elif defined(__CUDA_ARCH__) &&                                                                    \
    (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870 || __CUDA_ARCH__ == 880 ||                       \
     __CUDA_ARCH__ == 890 || __CUDA_ARCH__ == 1100 || __CUDA_ARCH__ == 1200 ||                     \
     __CUDA_ARCH__ == 1210)
#define KFI_BLOCKS_8 6
#define KFI_BLOCKS_6 6
#else
#define KFI_BLOCKS_8 8
#define KFI_BLOCKS_6 6
#endif

// Addressing of row values. KFI_ROWS: rows hold whole vectors. KFI_PLANES: one value per channel; a
// vector may span two planes. KFI_ODD_ROWS: rows of any length of at least one vector.
#define KFI_ROWS 0
#define KFI_PLANES 1
#define KFI_ODD_ROWS 2

// Computes n / d for n < 2^63 with one multiplication (Granlund & Montgomery 1994).
struct kfi_divisor {
    unsigned long long d, multiplier, one; // one: all ones for d = 1, where the multiplier is 0
    unsigned shift;
};

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

// Second stage: sums the partial rows, in order within each of KFI_SUM_GROUPS groups, then over the
// groups. Covers up to KFI_MAX_SUM_OUTPUTS gradients of one dtype; a launcher with more gradients
// or several dtypes has an array of these.
struct kfi_sums {
    // Sum k: `parts` rows of `stride` values at partial + k * parts * stride. NULL: no sums are
    // wanted.
    void *partial;
    void *out[KFI_MAX_SUM_OUTPUTS];        // NULL is skipped
    kf_i64 parts, count, stride;           // stride: count, rounded up to whole vectors
    kf_i64 inner, tile_cols, tiles, slots; // planes: partial is [sum][part][tile][slot]
};
#define KFI_SUM_LANES 8 // vectors of 4 columns per block
#ifndef KFI_SUM_GROUPS  // 64; 32 in the emulation, for fewer threads
#define KFI_SUM_GROUPS 64
#endif
#define KFI_SUM_AHEAD 8 // loads in flight per thread

#endif
