/* SPDX-License-Identifier: Apache-2.0 */
/* Part of emu_core.cpp: tests of the launchers' choice of tile, loads and split-K by the sizes.
   Any choice computes the right product, so only these tests notice a bad one. */
#ifndef KF_EMU_CHOICES_H
#define KF_EMU_CHOICES_H

#include <cstdio>

// Tests kfi_gemm_pick().
static bool test_choices()
{
    const struct {
        kfi_gemm_sizes s;
        int tile, how;
        bool split;
    } rows[] = {
        {{4096, 4096, 4096, 1, 1, 2, true, true, false}, KFI_TILE_MMA_128x128, KFI_CP_ASYNC, false},
        {{4096, 4096, 4095, 1, 1, 2, true, false, false},
         KFI_TILE_MMA_128x128,
         KFI_VIA_REGISTERS,
         false},
        {{100, 100, 100, 1, 1, 2, true, true, false}, KFI_TILE_MMA_64x64, KFI_CP_ASYNC, false},
        {{4096, 4096, 4096, 1, 1, 2, false, true, false},
         KFI_TILE_SIMT_64x64,
         KFI_VIA_REGISTERS,
         false},
        {{4096, 4096, 4096, 1, 1, 4, true, true, false},
         KFI_TILE_SIMT_128x128,
         KFI_CP_ASYNC,
         false},
        {{64, 1024, 4096, 1, 1, 2, true, true, false}, KFI_TILE_MMA_64x64, KFI_CP_ASYNC, true},
        {{65, 1024, 4096, 1, 1, 2, true, true, false}, KFI_TILE_MMA_64x64, KFI_CP_ASYNC, false},
        {{768, 768, 16384, 1, 1, 2, true, true, true}, -1, KFI_CP_ASYNC, true}};
    for (const auto &r : rows) {
        const kfi_gemm_choice c = kfi_gemm_pick(r.s);
        if ((r.tile >= 0 && c.tile != r.tile) || c.how != r.how || (c.splits > 1) != r.split ||
            c.splits * c.slice < r.s.depth ||
            (c.splits - 1) * c.slice >= (r.s.depth > 0 ? r.s.depth : 1) ||
            (kfi_gemm_workspace(r.s) > 0) != r.split) {
            std::printf("%lld x %lld x %lld takes tile %d by %d, %lld splits of %lld\n", r.s.rows,
                        r.s.cols, r.s.depth, c.tile, c.how, c.splits, c.slice);
            return false;
        }
    }
    kfi_gemm_choice one = {}, other = {};
    kfi_gemm_split(&one, {1, 1024, 4096, 1, 1, 2, true, true, false});
    kfi_gemm_split(&other, {64, 1024, 4096, 1, 1, 2, true, true, false});
    const kfi_gemm_sizes odd = {64, 1021, 4096, 1,    2,
                                2,  true, true, false}; // rows of partial sums hold 1,024 floats
    return one.splits == other.splits && one.slice == other.slice &&
           kfi_gemm_workspace(odd) == (size_t)kfi_gemm_pick(odd).splits * 2 * 64 * 1024 * 4 &&
           kfi_gemm_pick(odd).splits > 1;
}

// Tests the skinny-M choices: the blocks that share K, and the blocks per SM, fill one wave if they
// can.
static bool test_skinny_choices()
{
    const struct {
        kf_i64 matrices, cols, depth;
        int products, share_bits, blocks;
        bool loose; // one block more per SM for up to 16 rows
    } rows[] = {{1, 4096, 4096, 1, 1, 1, false}, {1, 14336, 4096, 1, 0, 2, false},
                {1, 1536, 7168, 1, 2, 1, true},  {1, 50257, 768, 1, 0, 3, false},
                {1, 8, 64, 1, 0, 1, true},       {1, 2048, 4096, 2, 1, 1, false},
                {32, 128, 512, 1, 0, 1, true},   {1, 4096, 1016, 1, 0, 1, true},
                {1, 11008, 4096, 1, 0, 2, true}};
    for (const auto &r : rows)
        for (int m = 1; m <= 64; m += 21) {
            const kfi_skinny_choice c = kfi_gemm_pick_skinny(
                {m, r.cols, r.depth, r.matrices, r.products, 2, true, true, false});
            const int stages =
                kfi_skinny_stages(kfi_skinny_n({m, 1, 1, 1, 1, 2, true, true, false}), 0, c.blocks);
            const int blocks = r.blocks + (r.loose && m <= 16);
            if (c.share_bits == r.share_bits && c.blocks == blocks && stages >= 3) continue;
            std::printf(
                "%lld columns, a depth of %lld: 1 << %d blocks share it, %d an SM, %d stages\n",
                r.cols, r.depth, c.share_bits, c.blocks, stages);
            return false;
        }
    return true;
}

// Tests that skinny-M tiles with more than 64 rows are used for small grids only.
static bool test_skinny_grids()
{
    const struct {
        kf_i64 rows, cols, depth, matrices;
        bool skinny;
    } rows[] = {{512, 512, 512, 1, true},    {1000, 1032, 520, 1, false},
                {65, 4096, 4096, 1, true},   {4096, 4096, 4096, 1, false},
                {1024, 1024, 1024, 1, true}, {1024, 1024, 512, 1, false},
                {128, 1024, 4096, 1, true},  {2048, 2048, 2048, 1, false},
                {128, 128, 64, 33, true},    {300, 8, 8, 1, true}};
    for (const auto &r : rows) {
        const kfi_gemm_sizes s = {r.rows, r.cols, r.depth, r.matrices, 1, 2, true, true, false};
        if (kfi_gemm_uses_skinny(s, 0) == r.skinny &&
            (!r.skinny || kfi_gemm_pick_skinny(s).share_bits == 0))
            continue;
        std::printf("%lld matrices of %lld x %lld, a depth of %lld, take the other tile\n",
                    r.matrices, r.rows, r.cols, r.depth);
        return false;
    }
    return true;
}

#endif
