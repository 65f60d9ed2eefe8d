// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/args.cuh: kernel parameters of the rows family: the schedules, the mapping of rows
// to threads, and rows in segments.
#ifndef KF_CORE_ROWS_ARGS_CUH
#define KF_CORE_ROWS_ARGS_CUH

#include "kf/core/sums.cuh"
#include "kf/core/math.cuh"
#include "kf/core/pitch.h"

// Schedules of a kernel. Its template argument `schedule` is one of them, or that with the flag
// KFI_ROWS_ALIGNED: rows consist of whole vectors aligned to 16 bytes.
enum kfi_rows_schedule {
    KFI_ROWS_ALIGNED = 1,
    KFI_ROWS_REGISTERS = 0,  // one position in the grid per row; the row is held in registers
    KFI_ROWS_WARP = 2,       // the same, with three vectors per thread and at most a warp per row
    KFI_ROWS_REREAD = 4,     // each pass reads the row again; persistent if gradients are summed
    KFI_ROWS_PERSISTENT = 6, // blocks loop over rows; the next row is copied to shared memory
    KFI_ROWS_STAGED = 8      // a kernel of its own: each row is staged in shared memory by a block
};
#ifdef KFI_DEVICE_PASS
KFI_DEVICE constexpr int kfi_rows_kind(int schedule) { return schedule & ~KFI_ROWS_ALIGNED; }
KFI_DEVICE constexpr bool kfi_rows_aligned(int schedule) { return schedule & KFI_ROWS_ALIGNED; }
#endif

// Rows in segments: of [outer, length, groups, channels, inner], a row is one group of one batch:
// `length` segments of channels * inner elements, with the other groups between them. A row that is
// a channel of [outer, channels, inner] is one of [1, outer, channels, 1, inner].
//
// Channel gradients are summed by teams: the warps of a row, or fewer threads. A team processes
// some channels and one slice of them at a time. A slice consists of units: vectors of a channel,
// or, if inner is 1 (across), segments, whose vectors span channels.
struct kfi_segments {
    kfi_divisor segment, inner; // elements per segment, and per channel of a segment
    kf_i64 parts;               // channels per group
    kf_i64 units, slices;       // per channel
    kfi_divisor vectors;        // per channel and segment
    kfi_divisor blocks;         // blocks of channels; a team processes one at a time
    kf_i64 items;               // blocks * slices
    int even;                   // a vector never spans two channels
    int across;
    int wide;    // lanes of a team along the channel axis
    int several; // a row has more than one segment
    // Some tensor has gaps between its segments. One flag for all tensors: two would cost registers
    // per element.
    int gaps;
};
#define KFI_SLICE 256 // units per slice

// Mapping of rows to threads.
struct kfi_row_layout {
    kf_i64 rows, cols;
    int lanes;   // threads of a block per row: a power of two up to a warp, or whole warps
    int groups;  // rows per block at a time
    int cluster; // blocks per row: 1 << cluster_bits
    int cluster_bits;
    // ceil(2^20 / lanes): threadIdx.x * share >> 20 == threadIdx.x / lanes for up to 1,024 threads
    int share;
    int loops; // vectors per thread of rows that are not in registers
    // Channels: rows that are planes of [outer, channels, inner] cycle through them; likewise
    // heads.
    kfi_divisor channels;
    kfi_divisor queries; // rows per head
};
// Layout of rows in segments. A separate parameter type: a larger kfi_row_layout would change the
// code that ptxas generates for the other kernels.
struct kfi_groups {
    kfi_row_layout row;
    kfi_segments in;
};

#define KFI_SUM 0
#define KFI_MAX 1
#define KFI_MIN 2
#define KFI_PROD 3
#ifndef KFI_ROW_BLOCK     // overridden for tuning only
#define KFI_ROW_BLOCK 128 // threads of a block that processes several rows
#endif
#ifndef KFI_ROW_SUM_BLOCK
#define KFI_ROW_SUM_BLOCK 256 // the same for kernels that sum gradients over rows
#endif
#define KFI_ROW_STRIP 4 // threads along the columns of a block that sums gradients over few rows
// Threads per row and block. An emulation lowers it to reach every kernel with short rows.
#ifndef KFI_ROW_CAP
#define KFI_ROW_CAP 1024
#define KFI_ROW_CLUSTER 8 // blocks per row
#endif

#endif
