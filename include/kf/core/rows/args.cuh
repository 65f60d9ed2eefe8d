// SPDX-License-Identifier: Apache-2.0
// kf/core/rows/args.cuh: what the kernels of the row family are told: how rows are shared out among
// threads, and rows in segments.
#ifndef KF_CORE_ROWS_ARGS_CUH
#define KF_CORE_ROWS_ARGS_CUH

#include "kf/core/sums.cuh"
#include "kf/core/math.cuh"
#include "kf/core/pitch.h"

// Of [outer, length, groups, channels, inner] a row is a group's of a batch: `length` segments of
// channels * inner elements, the other groups' between two of them. (A channel's of [outer,
// channels, inner] is one of [1, outer, channels, 1, inner].) A gradient for channels is added up
// by teams, of a row's warps or of fewer threads than that: a team has some channels at a time, and
// a slice of them, whose units are vectors of a channel, or (across: inner is 1) segments, where a
// vector lies across channels.
struct kfi_segments {
    kfi_divisor segment, inner; // elements of a segment, and of a channel in it
    kf_i64 parts;               // channels of a group
    kf_i64 units, slices;       // of a channel
    kfi_divisor vectors;        // of a channel in a segment
    kfi_divisor blocks;         // of channels: those of a team
    kf_i64 items;               // blocks * slices
    int even;                   // a vector holds one channel's elements alone
    int across;
    int wide;    // lanes of a team that lie along channels
    int several; // segments of a row
    int gaps;    // some tensor's lie apart: one branch for all tensors, two would be registers for
                 // each element
};
#define KFI_SLICE 256 // units of a slice

// How rows are shared out among threads.
struct kfi_row_layout {
    kf_i64 rows, cols;
    int lanes;   // threads of a block that have a row: a power of two up to a warp, or whole warps
    int groups;  // rows of a block at a time
    int cluster; // blocks that have a row: 1 << cluster_bits
    int cluster_bits;
    int share; // 2^20 / lanes, rounded up: threadIdx.x * share >> 20 is threadIdx.x / lanes, of up
               // to 1,024 threads
    int loops; // vectors of a thread where they are not in registers
    kfi_divisor channels; // rows that are planes of [outer, channels, inner] have one of so many
                          // channels; heads likewise
    kfi_divisor queries;  // rows of a head
};
// And of rows in segments: a kernel's parameter of its own, since what ptxas makes of the other
// kernels changes with the parameters' sizes.
struct kfi_groups {
    kfi_row_layout row;
    kfi_segments in;
};

#define KFI_SUM 0
#define KFI_MAX 1
#define KFI_MIN 2
#define KFI_PROD 3
#ifndef KFI_ROW_BLOCK     // set for tuning alone
#define KFI_ROW_BLOCK 128 // threads of a block that has several rows
#endif
#ifndef KFI_ROW_SUM_BLOCK
#define KFI_ROW_SUM_BLOCK 256 // where gradients are added up
#endif
#define KFI_ROW_STRIP 4 // threads along the columns of a block that adds up gradients of few rows
#ifndef KFI_ROW_CAP     // threads of a row in a block; fewer where an emulation is to reach every
                        // kernel by short rows
#define KFI_ROW_CAP 1024
#define KFI_ROW_CLUSTER 8 // blocks of a row
#endif

#endif
