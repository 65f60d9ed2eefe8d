// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/pick.cuh: picks the tile and the split of K of the portable matmul kernels
// (mma.sync, FMA). A function of sizes and alignment alone, with constants measured on one GPU (an
// H100): workspaces and the order of sums follow from it.
#ifndef KF_CORE_MATMUL_PICK_CUH
#define KF_CORE_MATMUL_PICK_CUH

#include "kf/core/matmul/tile.cuh"

#ifdef KFI_HOST_PASS
#ifndef KFI_GEMM_SMS
#define KFI_GEMM_SMS 132
#endif
#define KFI_GEMM_MOST_SPLITS 16

struct kfi_gemm_sizes {
    kf_i64 rows, cols, depth, matrices;
    int products, bytes; // bytes per element
    bool mma, whole;     // the device's code has mma.sync; operands are 16-byte aligned
    // K may be split whatever the number of rows (weight gradients). Otherwise only up to 64 rows
    // split K: a row's result does not depend on the number of rows.
    bool split_any;
    bool split_tail = false; // the tiles of a partial last wave may be split alone
};
struct kfi_gemm_choice {
    int tile, how;
    kf_i64 splits, slice;
    kf_i64 whole_tiles = 0; // kfi_gemm::whole_tiles
};

KF_FN kf_i64 kfi_gemm_tiles(const kfi_gemm_sizes &s, int tile)
{
    return s.matrices * kfi_ceil(s.rows, kfi_policy(tile).rows) *
           kfi_ceil(s.cols, kfi_policy(tile).cols / s.products);
}
// Forwards split K only for up to 64 rows, and by sizes that do not include the rows; with
// KF_BATCH_INVARIANT never.
#ifndef KFI_GEMM_CLASS
#ifdef KF_BATCH_INVARIANT
#define KFI_GEMM_CLASS 0
#else
#define KFI_GEMM_CLASS 64
#endif
#endif
// Work units of a launch.
KF_FN kf_i64 kfi_gemm_units(const kfi_gemm_choice &c, kf_i64 tiles, kf_i64 matrices)
{
    return c.whole_tiles > 0 ? c.whole_tiles + (tiles - c.whole_tiles) * c.splits
                             : tiles * matrices * c.splits;
}
#define KFI_GEMM_SLICE 64 // elements of K that a split is a multiple of: whole stages of all tiles
KF_FN KFI_SMALL void kfi_gemm_split(kfi_gemm_choice *choice, const kfi_gemm_sizes &s)
{
    const int lesser = s.bytes == 2 ? KFI_TILE_MMA_64x64 : KFI_TILE_SIMT_64x64;
    const int tile = !s.split_any || s.bytes == 8 ? lesser
                     : s.bytes == 2               ? KFI_TILE_MMA_128x128
                                                  : KFI_TILE_SIMT_128x128,
              stage = kfi_policy(tile).stage_k;
    choice->splits = 1;
    choice->slice = s.depth;
    if (!s.split_any && s.rows > KFI_GEMM_CLASS) return;
    kfi_gemm_sizes of_class = s;
    if (!s.split_any) of_class.rows = 64;
    const kf_i64 tiles = kfi_gemm_tiles(of_class, tile),
                 most = s.depth / (8 * stage); // a split has at least 8 stages
    kf_i64 wanted = kfi_clamp(KFI_GEMM_SMS * 2 / (tiles > 0 ? tiles : 1), 1, KFI_GEMM_MOST_SPLITS);
    if (wanted < 2 && s.split_tail && s.mma && s.matrices == 1 && s.bytes < 8 &&
        tiles % KFI_GEMM_SMS > 0) {
        choice->whole_tiles = tiles - tiles % KFI_GEMM_SMS; // all SMs share the partial last wave
        wanted = kfi_clamp(KFI_GEMM_SMS / (tiles - choice->whole_tiles), 1, KFI_GEMM_MOST_SPLITS);
    }
    if (wanted < 2 || most < 2) {
        choice->whole_tiles = 0;
        return;
    }
    choice->slice =
        kfi_ceil(kfi_ceil(s.depth, wanted < most ? wanted : most), KFI_GEMM_SLICE) * KFI_GEMM_SLICE;
    choice->splits = kfi_ceil(s.depth, choice->slice);
}
// Estimated clocks: waves x (multiply-adds of a tile at its rate, plus a constant per tile).
KF_FN KFI_SMALL kf_i64 kfi_gemm_clocks(const kfi_gemm_sizes &s, const kfi_gemm_choice &choice,
                                       int rate)
{
    const kf_i64 elements = (kf_i64)kfi_policy(choice.tile).rows * kfi_policy(choice.tile).cols,
                 tiles = kfi_gemm_tiles(s, choice.tile);
    return kfi_ceil(kfi_gemm_units(choice, tiles, 1), KFI_GEMM_SMS) *
           (elements * (choice.slice + 64) / rate + 1000);
}
KF_FN KFI_SMALL kfi_gemm_choice kfi_gemm_pick(const kfi_gemm_sizes &s)
{
    static const struct {
        int tile, how, bytes, rate; // rate: multiply-adds per clock and SM
    } menu[] = {{KFI_TILE_MMA_128x128, KFI_CP_ASYNC, 2, 1100},
                {KFI_TILE_MMA_64x64, KFI_CP_ASYNC, 2, 700},
                {KFI_TILE_MMA_128x128, KFI_VIA_REGISTERS, 2, 700},
                {KFI_TILE_MMA_64x64, KFI_VIA_REGISTERS, 2, 500},
                {KFI_TILE_SIMT_128x128, KFI_CP_ASYNC, 4, 115},
                {KFI_TILE_SIMT_64x64, KFI_CP_ASYNC, 4, 90},
                {KFI_TILE_SIMT_128x128, KFI_VIA_REGISTERS, 4, 105},
                {KFI_TILE_SIMT_64x64, KFI_VIA_REGISTERS, 4, 80},
                {KFI_TILE_SIMT_64x64, KFI_CP_ASYNC, 8, 50},
                {KFI_TILE_SIMT_64x64, KFI_VIA_REGISTERS, 8, 50}};
    kfi_gemm_choice best = {KFI_TILE_SIMT_64x64, KFI_VIA_REGISTERS, 1, 0}, choice;
    kf_i64 least = -1;
    kfi_gemm_split(&best, s);
    for (const auto &m : menu) {
        if (m.bytes != s.bytes || (m.how == KFI_CP_ASYNC) != s.whole || !s.mma) continue;
        choice = best;
        choice.tile = m.tile;
        choice.how = m.how;
        if (choice.whole_tiles > 0 && kfi_policy(m.tile).rows != KFI_PARTIAL_TILE)
            continue; // every kernel has the same partial tiles
        const kf_i64 clocks = kfi_gemm_clocks(s, choice, m.rate);
        if (least >= 0 && clocks >= least) continue;
        least = clocks;
        best = choice;
    }
    return best;
}
// Bytes of the partial sums (kfi_gemm::parts).
KF_FN KFI_SMALL size_t kfi_gemm_workspace(const kfi_gemm_sizes &s)
{
    const kfi_gemm_choice choice = kfi_gemm_pick(s);
    if (choice.splits < 2) return 0;
    if (choice.whole_tiles > 0)
        return (size_t)((kfi_gemm_tiles(s, choice.tile) - choice.whole_tiles) * choice.splits *
                        KFI_PARTIAL_TILE * KFI_PARTIAL_TILE) *
               4;
    return (size_t)(s.matrices * choice.splits * s.products * s.rows * (kfi_ceil(s.cols, 8) * 8)) *
           (s.bytes == 8 ? 8 : 4);
}

// Dynamic shared memory of a portable kernel: the stages, which the warps' fragments overlap.
KF_FN KFI_SMALL unsigned kfi_gemm_shared(int tile, int bytes, int layout)
{
    const int number = bytes == 8 ? 8 : 4, rows = kfi_policy(tile).rows,
              cols = kfi_policy(tile).cols, depth = kfi_policy(tile).stage_k;
    const int line = depth + 16 / number; // pitch of a K-contiguous row (SIMT)
    const int stage = kfi_policy(tile).mma
                          ? (rows + cols) * depth * 2
                          : number * ((layout & KFI_A_TRANSPOSED ? rows * depth : rows * line) +
                                      (layout & KFI_B_TRANSPOSED ? cols * depth : cols * line));
    const int stages = kfi_policy(tile).stages * stage,
              put = kfi_policy(tile).threads / 32 * 16 * kfi_fragment_pitch(tile) * number;
    return (unsigned)(stages > put ? stages : put);
}

// Fills in the kernels' arguments for a choice. Only the depth may be 0. Returns false if the grid
// is too large.
KF_FN KFI_SMALL bool kfi_gemm_fill(kfi_gemm *g, const kfi_gemm_sizes &s,
                                   const kfi_gemm_choice &choice, bool wide, void *parts)
{
    const kf_i64 most = 0x7fffff00, down = kfi_ceil(s.rows, kfi_policy(choice.tile).rows),
                 across = kfi_ceil(s.cols, kfi_policy(choice.tile).cols / s.products);
    if (s.rows > most || s.cols > most || s.depth > most || down > most / across ||
        down * across > most / (s.matrices * choice.splits))
        return false;
    g->rows = (int)s.rows;
    g->cols = (int)s.cols;
    g->depth = (int)s.depth;
    g->row_tiles = (unsigned)down;
    g->col_tiles = (unsigned)across;
    g->tiles = kfi_make_divisor(down * across);
    g->splits = (unsigned)choice.splits;
    g->whole_tiles = (unsigned)choice.whole_tiles;
    g->slice = (int)choice.slice;
    g->wide = wide;
    g->pitch = kfi_ceil(s.cols, 8) * 8;
    g->parts = parts;
    return true;
}
// The grid of the kernel that reduces partial tiles, vec columns per thread.
KF_FN KFI_SMALL dim3 kfi_gemm_reduce_grid(kfi_gemm *g, const kfi_gemm_sizes &s, int vec)
{
    if (g->whole_tiles)
        return dim3((unsigned)kfi_ceil(KFI_PARTIAL_TILE * KFI_PARTIAL_TILE / vec,
                                       KFI_REDUCE_SPLITS_THREADS),
                    (unsigned)g->tiles.d - g->whole_tiles);
    const kf_i64 vectors = kfi_ceil(s.cols, vec);
    g->tiles = kfi_make_divisor(vectors);
    return dim3((unsigned)kfi_ceil(vectors * s.rows, KFI_REDUCE_SPLITS_THREADS),
                (unsigned)s.matrices);
}
#endif

#endif
