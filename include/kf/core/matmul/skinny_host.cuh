// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/skinny_host.cuh: which products of few rows go by wgmma (skinny.cuh), and over how
// many blocks.
#ifndef KF_CORE_MATMUL_SKINNY_HOST_CUH
#define KF_CORE_MATMUL_SKINNY_HOST_CUH

#include "kf/core/matmul/skinny.cuh"
#include "kf/core/matmul/hopper_host.cuh"

#ifdef KFI_HOST_PASS
#define KFI_FEW_DEPTH 1024 // from which on an SM may as well have two tiles of 64 x 64
#ifndef KFI_FEW_STAGES
#define KFI_FEW_STAGES 24 // of a block, at most
#endif

// Of more than 64 rows, in a grid of which tiles of 128 x 128 would leave most SMs without one. Its
// bits are those of kfi_gemm_by_wgmma.
KF_FN bool kfi_few_is_faster(const kfi_gemm_sizes &s)
{
    const kf_i64 tiles = kfi_gemm_tiles(s, KFI_TILE_WGMMA_SKINNY);
    return tiles <= KFI_GEMM_SMS || (tiles <= 2 * KFI_GEMM_SMS && s.depth >= KFI_FEW_DEPTH);
}

// Of one way to lay the right factor two products have half the columns of a box each, which must
// be lines along the depth.
KF_FN bool kfi_gemm_by_few(const kfi_gemm_sizes &s, int layout)
{
    return s.bytes == 2 && s.whole && s.mma && s.depth > 0 &&
           (s.products == 1 || !(layout & KFI_B_TRANSPOSED)) &&
           (s.rows <= KFI_FEW_ROWS || kfi_few_is_faster(s));
}
KF_FN int kfi_few_wide(const kfi_gemm_sizes &s) { return s.rows <= 16 ? 16 : KFI_FEW_ROWS; }
KF_FN int kfi_few_lines(const kfi_gemm_sizes &s)
{
    return s.rows < KFI_FEW_ROWS ? (int)s.rows : KFI_FEW_ROWS;
} // of a box
KF_FN KFI_SMALL int kfi_few_left_bytes(const kfi_gemm_sizes &s, int layout)
{
    return (layout & KFI_A_TRANSPOSED ? 64 : kfi_few_lines(s)) * KFI_RING_DEPTH * 2;
}

// How many blocks share a depth (1 << share_bits): as many as nearly fill the device, if there are
// not so many columns. Not of the number of rows; with KF_BATCH_INVARIANT one, as of more rows.
// blocks: that an SM has at a time, three where there are several turns. early: the launch may
// begin while the kernel before it ends; where SMs have two or three blocks at a time it would be
// unevenly many, and only weights that are read at once make up for that. Of a turn that is not
// nearly full, though, the next kernel's blocks have room beside it, if their rings are shorter.
struct kfi_few_choice {
    int share_bits, blocks;
    bool early;
};
KF_FN KFI_SMALL kfi_few_choice kfi_gemm_few_pick(const kfi_gemm_sizes &s)
{
    const kf_i64 tiles = kfi_gemm_tiles(s, KFI_TILE_WGMMA_SKINNY);
    kfi_few_choice found = {0, 1, true};
    const int most = s.rows <= KFI_GEMM_CLASS ? 2 : 0;
    while (found.share_bits < most && (tiles << found.share_bits) * 10 < KFI_GEMM_SMS * 9 &&
           s.depth >= 1024 << found.share_bits)
        ++found.share_bits;
    const kf_i64 count = tiles << found.share_bits,
                 room = found.share_bits == 2 ? KFI_GEMM_SMS * 10 / 11
                                              : KFI_GEMM_SMS; // clusters of 4 leave some out
    while (found.blocks < KFI_FEW_BLOCKS && count > room * found.blocks) ++found.blocks;
    const bool several = count > room * found.blocks,
               loose = kfi_few_wide(s) == 16 && count * 4 < KFI_GEMM_SMS * found.blocks * 3;
    found.early = found.blocks == 1 || several || loose;
    if (loose && found.blocks < KFI_FEW_BLOCKS) ++found.blocks;
#ifdef KF_EARLY_WEIGHTS
    found.early =
        found.early || kfi_few_wide(s) == 16; // with more rows two blocks an SM lose by it
#endif
    return found;
}
// Of a ring, for so many blocks an SM, which has 228 KB and keeps 1 KB for each.
KF_FN KFI_SMALL int kfi_few_stages(int wide, int layout, int blocks)
{
    const int room = (228 / blocks - 1) * 1024 - 1024 - kfi_few_sums(wide),
              most = room / (kfi_few_stage(wide, layout) + 16);
    return most < KFI_FEW_STAGES ? most : KFI_FEW_STAGES;
}
KF_FN KFI_SMALL unsigned kfi_few_shared(int wide, int layout, int stages)
{
    return (unsigned)(1024 + stages * (kfi_few_stage(wide, layout) + 16) + kfi_few_sums(wide));
}
// The launch, of a g that was filled in for the tile.
KF_FN KFI_SMALL kf_result_t kfi_gemm_launch_few(const kfi_name *name, const void *kernel,
                                                kfi_gemm_maps *maps, const kfi_gemm &g,
                                                const kfi_gemm_sizes &s, int layout,
                                                const kfi_few_choice &choice, void **args,
                                                cudaStream_t stream)
{
    const int wide = kfi_few_wide(s);
    maps->share_bits = choice.share_bits;
    maps->left_bytes = kfi_few_left_bytes(s, layout);
    maps->stages = kfi_few_stages(wide, layout, choice.blocks);
    const unsigned share = 1u << choice.share_bits,
                   most = kfi_few_shared(wide, layout, kfi_few_stages(wide, layout, 1));
    return kfi_launch(name, kernel, dim3((unsigned)((kf_i64)g.tiles.d * s.matrices) * share),
                      (unsigned)kfi_policy(KFI_TILE_WGMMA_SKINNY).threads, args, stream,
                      choice.early, kfi_few_shared(wide, layout, maps->stages), share, most);
}
#endif

#endif
