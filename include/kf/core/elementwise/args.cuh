// SPDX-License-Identifier: Apache-2.0
// kf/core/elementwise/args.cuh: what the kernels of the map family are given by their launchers.
#ifndef KF_CORE_ELEMENTWISE_ARGS_CUH
#define KF_CORE_ELEMENTWISE_ARGS_CUH

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

// Blocks of 256 threads that an SM is asked to hold, 8 or 6: not more than its threads allow, or
// ptxas warns of every kernel. Architectures that are not listed have 2,048 threads. Plain numbers:
// each kernel's declaration is parsed by all of nvcc's passes.
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

// How row values are found. KFI_ROWS: rows hold whole vectors. KFI_PLANES: one value per channel
// and plane; a vector may reach into the next plane. KFI_ODD_ROWS: rows of any length from a vector
// on.
#define KFI_ROWS 0
#define KFI_PLANES 1
#define KFI_ODD_ROWS 2

// n / d for n < 2^63 by one multiplication (Granlund & Montgomery 1994).
struct kfi_divisor {
    unsigned long long d, multiplier, one; // one: all ones for d = 1, where the multiplier is 0
    unsigned shift;
};

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

// The second stage: the sum over the partial rows, in their order within each of KFI_SUM_GROUPS
// groups, then over the groups. Of some gradients of one dtype: a launcher has an array of these
// where there are more, or several dtypes.
struct kfi_sums {
    void *partial; // sum k: `parts` rows of `stride` values at partial + k * parts * stride; NULL:
                   // no sums are wanted
    void *out[KFI_MAX_SUM_OUTPUTS];        // NULL is skipped
    kf_i64 parts, count, stride;           // stride: count to whole vectors
    kf_i64 inner, tile_cols, tiles, slots; // planes: partial is [sum][part][tile][slot]
};
#define KFI_SUM_LANES 8 // vectors of 4 columns in a block
#ifndef KFI_SUM_GROUPS  // 64, or 32 where an emulation wants few threads
#define KFI_SUM_GROUPS 64
#endif
#define KFI_SUM_AHEAD 8 // loads of a thread at a time

#endif
