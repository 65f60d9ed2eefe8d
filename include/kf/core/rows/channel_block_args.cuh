// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/channel_block_args.cuh: how the tensors of an op over channels are cut into bands.
#ifndef KF_CORE_ROWS_CHANNEL_BLOCK_ARGS_CUH
#define KF_CORE_ROWS_CHANNEL_BLOCK_ARGS_CUH

#include "kf/core/rows/args.cuh"

// A tensor [outer, channels, inner] is a matrix of `outer` rows of channels * inner columns. A band
// is so many neighbouring channels of all its rows that vectors do not reach from one band into the
// next; what a thread needs to know of its vectors' channels is its form:
#define KFI_BAND_ONE                                                                               \
    0 // all are of one channel: planes of whole vectors, or too wide for the next form
#define KFI_BAND_TWO 1 // of one channel and the next one
#define KFI_BAND_EACH                                                                              \
    2 // each element may be of another one: planes shorter than a vector, as in NHWC
#ifndef KFI_BAND_THREADS // of a block; fewer where an emulation is to reach every kernel by small
                         // tensors
#define KFI_BAND_THREADS 448
#endif
#ifndef KFI_BAND_EACH_THREADS
#define KFI_BAND_EACH_THREADS 256
#endif

#ifndef KFI_BAND_BLOCKS // as many as keep a large GPU busy: by the shape alone, so that results do
                        // not depend on the device
#define KFI_BAND_BLOCKS 264
#endif

// Of tensors whose channels are rows in registers (kfi_band_as_rows): elements at most, where
// planes are no whole vectors; channels at least.
#ifndef KFI_BAND_SMALL // both others where an emulation is to reach every kernel
#define KFI_BAND_SMALL (1 << 18)
#define KFI_BAND_CHANNELS 1
#endif

// A kernel's stages: all passes, of a band that a block holds; what is stored, by the totals of all
// passes; pass p of one that several blocks share (KFI_BAND_PASS + p).
#define KFI_BAND_REGISTERS 0
#define KFI_BAND_LAST 1
#define KFI_BAND_PASS 2
#define KFI_BAND_TOTALS 128 // threads of a block that adds up parts, a warp a channel

// Units are vectors of a band, numbered row by row.
struct kfi_bands {
    kf_i64 cols;                     // elements of a channel
    kf_i64 outer, channels, inner;   // of the tensor
    kf_i64 units, share, parts;      // of a band; of a block; blocks of a band
    kfi_divisor width, plane, bands; // vectors of a row of a band; inner; bands
    kf_i64 stride;                   // channels, to whole vectors
    int segs;                        // channels of a band
    int wide;      // vectors of a row, where a thread's lie in one column (forms TWO and EACH)
    int threads;   // that have vectors: there a multiple of that
    int rows;      // from one vector of a thread to the next: threads / wide
    int team;      // lanes that add up a channel, a power of two
    int room;      // values in front of the totals, in a block's shared memory
    void *partial; // [value of a pass][channel][part]
    void *totals;  // [reduction][channel]
};

#endif
