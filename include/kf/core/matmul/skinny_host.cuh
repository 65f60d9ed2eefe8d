// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/skinny_host.cuh: host side of the skinny-M wgmma kernels (skinny.cuh): which
// products take them, how many blocks of a cluster split K, and the launch.
#ifndef KF_CORE_MATMUL_SKINNY_HOST_CUH
#define KF_CORE_MATMUL_SKINNY_HOST_CUH

#include "kf/core/matmul/skinny.cuh"
#include "kf/core/matmul/hopper_host.cuh"

#ifdef KFI_HOST_PASS
#define KFI_SKINNY_LONG_K 1024 // K from which two tiles of 64 x 64 per SM are no loss
#ifndef KFI_SKINNY_STAGES
#define KFI_SKINNY_STAGES 24 // per block, at most
#endif

// Returns whether tiles of 64 x 64 beat those of 128 x 128 for more than 64 rows, because the grid
// would leave most SMs idle. Both give the same bits.
KF_FN bool kfi_skinny_is_faster(const kfi_gemm_sizes &s)
{
    const kf_i64 tiles = kfi_gemm_tiles(s, KFI_TILE_WGMMA_SKINNY);
    return tiles <= KFI_GEMM_SMS || (tiles <= 2 * KFI_GEMM_SMS && s.depth >= KFI_SKINNY_LONG_K);
}

// Two products share a box of B, half of its columns each: B must be contiguous along K then.
KF_FN bool kfi_gemm_uses_skinny(const kfi_gemm_sizes &s, int layout)
{
    return s.bytes == 2 && s.whole && s.mma && s.depth > 0 &&
           (s.products == 1 || !(layout & KFI_B_TRANSPOSED)) &&
           (s.rows <= KFI_SKINNY_ROWS || kfi_skinny_is_faster(s));
}
KF_FN int kfi_skinny_n(const kfi_gemm_sizes &s) { return s.rows <= 16 ? 16 : KFI_SKINNY_ROWS; }
KF_FN int kfi_skinny_box_rows(const kfi_gemm_sizes &s)
{
    return s.rows < KFI_SKINNY_ROWS ? (int)s.rows : KFI_SKINNY_ROWS;
}
KF_FN KFI_SMALL int kfi_skinny_a_bytes(const kfi_gemm_sizes &s, int layout)
{
    return (layout & KFI_A_TRANSPOSED ? 64 : kfi_skinny_box_rows(s)) * KFI_PIPELINE_K * 2;
}

// Launch parameters. share_bits: 1 << share_bits blocks of a cluster split K, as many as nearly
// fill the device with few columns. It depends on columns, K and batch, not on the number of rows;
// it is 0 for more than 64 rows and with KF_BATCH_INVARIANT. blocks: blocks per SM, 3 with several
// waves. early: programmatic dependent launch. With 2 or 3 blocks per SM it spreads blocks
// unevenly, which only early weight loads make up for. A wave that is not nearly full leaves room
// for the next kernel's blocks, if their pipelines are shorter.
struct kfi_skinny_choice {
    int share_bits, blocks;
    bool early;
};
KF_FN KFI_SMALL kfi_skinny_choice kfi_gemm_pick_skinny(const kfi_gemm_sizes &s)
{
    const kf_i64 tiles = kfi_gemm_tiles(s, KFI_TILE_WGMMA_SKINNY);
    kfi_skinny_choice found = {0, 1, true};
    const int most = s.rows <= KFI_GEMM_CLASS ? 2 : 0;
    while (found.share_bits < most && (tiles << found.share_bits) * 10 < KFI_GEMM_SMS * 9 &&
           s.depth >= 1024 << found.share_bits)
        ++found.share_bits;
    const kf_i64 count = tiles << found.share_bits,
                 room = found.share_bits == 2 ? KFI_GEMM_SMS * 10 / 11
                                              : KFI_GEMM_SMS; // clusters of 4 leave some out
    while (found.blocks < KFI_SKINNY_BLOCKS && count > room * found.blocks) ++found.blocks;
    const bool several = count > room * found.blocks,
               loose = kfi_skinny_n(s) == 16 && count * 4 < KFI_GEMM_SMS * found.blocks * 3;
    found.early = found.blocks == 1 || several || loose;
    if (loose && found.blocks < KFI_SKINNY_BLOCKS) ++found.blocks;
#ifdef KF_EARLY_WEIGHTS
    // With N = 64 two blocks per SM lose by it.
    found.early = found.early || kfi_skinny_n(s) == 16;
#endif
    return found;
}
// Pipeline stages for `blocks` blocks per SM, which has 228 KB and reserves 1 KB per block.
KF_FN KFI_SMALL int kfi_skinny_stages(int wide, int layout, int blocks)
{
    const int room = (228 / blocks - 1) * 1024 - 1024 - kfi_skinny_partial_bytes(wide),
              most = room / (kfi_skinny_stage_bytes(wide, layout) + 16);
    return most < KFI_SKINNY_STAGES ? most : KFI_SKINNY_STAGES;
}
KF_FN KFI_SMALL unsigned kfi_skinny_shared_bytes(int wide, int layout, int stages)
{
    return (unsigned)(1024 + stages * (kfi_skinny_stage_bytes(wide, layout) + 16) +
                      kfi_skinny_partial_bytes(wide));
}
// Launches the kernel; g is filled in for the tile.
KF_FN KFI_SMALL kf_result_t kfi_gemm_launch_skinny(const kfi_name *name, const void *kernel,
                                                   kfi_gemm_maps *maps, const kfi_gemm &g,
                                                   const kfi_gemm_sizes &s, int layout,
                                                   const kfi_skinny_choice &choice, void **args,
                                                   cudaStream_t stream)
{
    const int wide = kfi_skinny_n(s);
    maps->share_bits = choice.share_bits;
    maps->a_bytes = kfi_skinny_a_bytes(s, layout);
    maps->stages = kfi_skinny_stages(wide, layout, choice.blocks);
    const unsigned share = 1u << choice.share_bits,
                   most = kfi_skinny_shared_bytes(wide, layout, kfi_skinny_stages(wide, layout, 1));
    return kfi_launch(name, kernel, dim3((unsigned)((kf_i64)g.tiles.d * s.matrices) * share),
                      (unsigned)kfi_policy(KFI_TILE_WGMMA_SKINNY).threads, args, stream,
                      choice.early, kfi_skinny_shared_bytes(wide, layout, maps->stages), share,
                      most);
}
#endif

#endif
