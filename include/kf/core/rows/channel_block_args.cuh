// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/channel_block_args.cuh: kernel parameters of ops over channels: the partition of a
// tensor into channel blocks.
#ifndef KF_CORE_ROWS_CHANNEL_BLOCK_ARGS_CUH
#define KF_CORE_ROWS_CHANNEL_BLOCK_ARGS_CUH

#include "kf/core/rows/args.cuh"

// A tensor [outer, channels, inner] is a matrix of `outer` rows of channels * inner columns. A
// channel block (band) is a set of adjacent channels of all rows, chosen so that no vector spans
// two channel blocks. Its form tells how the elements of a vector map to channels:
#define KFI_BAND_ONE                                                                               \
    0 // one channel per vector: planes of whole vectors, or too wide for the next form
#define KFI_BAND_TWO 1  // at most two adjacent channels per vector
#define KFI_BAND_EACH 2 // any channel per element: planes shorter than a vector, as in NHWC
// Threads per CUDA block. An emulation lowers it to reach every kernel with small tensors.
#ifndef KFI_BAND_THREADS
#define KFI_BAND_THREADS 448
#endif
#ifndef KFI_BAND_EACH_THREADS
#define KFI_BAND_EACH_THREADS 256
#endif

// CUDA blocks that occupy a large GPU. A constant, so that results do not depend on the device.
#ifndef KFI_BAND_BLOCKS
#define KFI_BAND_BLOCKS 264
#endif

// Limits for tensors whose channels are processed as rows in registers (kfi_band_as_rows): maximum
// number of elements if planes do not consist of whole vectors, and minimum number of channels.
#ifndef KFI_BAND_SMALL // overridden by an emulation
#define KFI_BAND_SMALL (1 << 18)
#define KFI_BAND_CHANNELS 1
#endif

// Stages of a kernel: all passes of a channel block that one CUDA block holds; the elementwise
// stores, from the totals of all passes; pass p shared by several CUDA blocks (KFI_BAND_PASS + p).
#define KFI_BAND_REGISTERS 0
#define KFI_BAND_LAST 1
#define KFI_BAND_PASS 2
#define KFI_BAND_TOTALS 128 // threads of a block that adds up parts, one warp per channel

// Units are the vectors of a channel block, numbered row by row.
struct kfi_bands {
    kf_i64 cols;                   // elements per channel
    kf_i64 outer, channels, inner; // shape of the tensor
    // units of a channel block; of a CUDA block; CUDA blocks per channel block
    kf_i64 units, share, parts;
    // vectors per row of a channel block; inner; number of channel blocks
    kfi_divisor width, plane, bands;
    kf_i64 stride; // channels, rounded up to whole vectors
    int segs;      // channels per channel block
    int wide;      // vectors per row, if a thread's vectors share a column (forms TWO and EACH)
    int threads;   // threads that have vectors; a multiple of `wide` there
    int rows;      // rows between a thread's vectors: threads / wide
    int team;      // lanes that reduce one channel; a power of two
    int room;      // values before the totals in shared memory
    void *partial; // [value of a pass][channel][part]
    void *totals;  // [reduction][channel]
};

#endif
