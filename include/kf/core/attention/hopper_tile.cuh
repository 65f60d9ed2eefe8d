// SPDX-License-Identifier: Apache-2.0
// kf/core/attention/hopper_tile.cuh: tiles of the wgmma attention kernel, and the layout of its
// shared memory.
#ifndef KF_CORE_ATTENTION_HOPPER_TILE_CUH
#define KF_CORE_ATTENTION_HOPPER_TILE_CUH

#include "kf/core/attention/args.cuh"
#include "kf/core/ptx/hopper.cuh"

// Tiles, named by instruction, head dimensions of q and k, and of v. A smaller dimension takes the
// next tile: TMA loads zeros past the end.
#define KFI_ATTENTION_WGMMA_64 0
#define KFI_ATTENTION_WGMMA_128 1
#define KFI_ATTENTION_WGMMA_192_128 2
#define KFI_ATTENTION_WGMMA_256 3

struct kfi_attention_policy {
    int dim, dim_v, keys;  // head dimensions; keys per block
    int consumers, stages; // consumer warpgroups of 64 rows; stages of K, and of V
    bool q_in_registers;
    int producer_registers, consumer_registers; // setmaxnreg
};
KFI_BOTH constexpr kfi_attention_policy kfi_attention_tile(int tile)
{
    // clang-format off
    constexpr kfi_attention_policy policies[] = {
        // dim, dim_v, keys, consumers, stages, q in registers, registers
        { 64,  64, 128, 3, 4, false, 32, 160}, // WGMMA_64
        {128, 128, 128, 2, 3, true,  24, 240}, // WGMMA_128
        {192, 128, 128, 2, 2, false, 24, 240}, // WGMMA_192_128
        {256, 256,  80, 2, 2, false, 24, 240}, // WGMMA_256
    };
    // clang-format on
    return policies[tile];
}
KFI_BOTH constexpr int kfi_attention_threads(int tile)
{
    return 128 * (kfi_attention_tile(tile).consumers + 1);
}

#define KFI_ATTENTION_PACKED_SLOT 16 // numbers of a tile of packed sequences; of others 8

// Offsets in shared memory [bytes]: Q of each consumer at 0, stages of K and V, mbarriers of 8
// bytes, two slots for a tile of work. `bytes`: of all.
struct kfi_attention_layout {
    int k, v, k_full, k_empty, v_full, v_empty, q_full, q_empty, work_full, work_empty, slots,
        bytes;
};
KFI_BOTH constexpr kfi_attention_layout kfi_attention_layout_of(int tile)
{
    const kfi_attention_policy t = kfi_attention_tile(tile);
    kfi_attention_layout at = {};
    at.k = t.consumers * t.dim * 128;
    at.v = at.k + t.stages * t.keys * t.dim * 2;
    at.k_full = at.v + t.stages * t.keys * t.dim_v * 2;
    at.k_empty = at.k_full + 8 * t.stages;
    at.v_full = at.k_empty + 8 * t.stages;
    at.v_empty = at.v_full + 8 * t.stages;
    at.q_full = at.v_empty + 8 * t.stages;
    at.q_empty = at.q_full + 8 * t.consumers;
    at.work_full = at.q_empty + 8 * t.consumers;
    at.work_empty = at.work_full + 16;
    at.slots = at.work_empty + 16;
    at.bytes = at.slots + 64;
    return at;
}
KFI_BOTH constexpr int kfi_attention_shared_bytes(int tile, bool packed)
{
    return kfi_attention_layout_of(tile).bytes + (packed ? 8 * (KFI_ATTENTION_PACKED_SLOT - 8) : 0);
}

// Without wgmma the kernel's code is empty and its launch bound is one warp (kfi_has_wgmma).
#ifdef KFI_DEVICE_PASS
#define KFI_ATTENTION_BOUNDS(tile)                                                                 \
    __launch_bounds__(KFI_HOPPER ? kfi_attention_threads(tile) : 32, 1)
#else
#define KFI_ATTENTION_BOUNDS(tile)
#endif

#endif
