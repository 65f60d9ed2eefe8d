// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/pick.cuh: which tile a product takes, and over how many blocks its depth is split.
// A function of sizes and alignment alone, in numbers of one GPU (an H100's): so are workspaces,
// and the order in which results are added up.
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
    int products, bytes; // of an element
    bool mma,
        whole;  // whether the device's code has mma.sync; whether copies of 16 bytes may be made
    bool grows; // by the depth, as a gradient of weights does; else by the rows, and a row's bits
                // do not depend on how many there are
    bool stays = false; // whether it is a tensor as it is: tiles may be alone
};
struct kfi_gemm_choice {
    int tile, how;
    kf_i64 splits, slice;
    kf_i64 alone = 0; // as kfi_gemm has it
};

KF_FN kf_i64 kfi_gemm_tiles(const kfi_gemm_sizes &s, int tile)
{
    return s.matrices * kfi_ceil(s.rows, kfi_policy(tile).rows) *
           kfi_ceil(s.cols, kfi_policy(tile).cols / s.products);
}
// Rows up to 64 are a class of their own. Of more of them a forward's depth is not split: what a
// row gives would depend on the others; with KF_BATCH_INVARIANT it never is.
#ifndef KFI_GEMM_CLASS
#ifdef KF_BATCH_INVARIANT
#define KFI_GEMM_CLASS 0
#else
#define KFI_GEMM_CLASS 64
#endif
#endif
// Blocks that a launch has.
KF_FN kf_i64 kfi_gemm_units(const kfi_gemm_choice &c, kf_i64 tiles, kf_i64 matrices)
{
    return c.alone > 0 ? c.alone + (tiles - c.alone) * c.splits : tiles * matrices * c.splits;
}
#define KFI_GEMM_SLICE                                                                             \
    64 // of a depth, that a split has a multiple of: stages of every tile, and so the same sums
KF_FN KFI_SMALL void kfi_gemm_split(kfi_gemm_choice *choice, const kfi_gemm_sizes &s)
{
    const int lesser = s.bytes == 2 ? KFI_TILE_MMA_64x64 : KFI_TILE_SIMT_64x64;
    const int tile = !s.grows || s.bytes == 8 ? lesser
                     : s.bytes == 2           ? KFI_TILE_MMA_128x128
                                              : KFI_TILE_SIMT_128x128,
              stage = kfi_policy(tile).stage_k;
    choice->splits = 1;
    choice->slice = s.depth;
    if (!s.grows && s.rows > KFI_GEMM_CLASS) return;
    kfi_gemm_sizes of_class = s;
    if (!s.grows) of_class.rows = 64;
    const kf_i64 tiles = kfi_gemm_tiles(of_class, tile),
                 most = s.depth / (8 * stage); // a split has at least so many stages
    kf_i64 wanted = kfi_clamp(KFI_GEMM_SMS * 2 / (tiles > 0 ? tiles : 1), 1, KFI_GEMM_MOST_SPLITS);
    if (wanted < 2 && s.stays && s.mma && s.matrices == 1 && s.bytes < 8 &&
        tiles % KFI_GEMM_SMS > 0) {
        choice->alone =
            tiles -
            tiles %
                KFI_GEMM_SMS; // what is left would take as long as any other turn: all SMs share it
        wanted = kfi_clamp(KFI_GEMM_SMS / (tiles - choice->alone), 1, KFI_GEMM_MOST_SPLITS);
    }
    if (wanted < 2 || most < 2) {
        choice->alone = 0;
        return;
    }
    choice->slice =
        kfi_ceil(kfi_ceil(s.depth, wanted < most ? wanted : most), KFI_GEMM_SLICE) * KFI_GEMM_SLICE;
    choice->splits = kfi_ceil(s.depth, choice->slice);
}
// Clocks of an SM: for what it multiplies at the rate that a tile reaches, and for what a tile
// costs besides.
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
        int tile, how, bytes, rate; // products a clock and SM
    } menu[] = {{KFI_TILE_MMA_128x128, KFI_WHOLE, 2, 1100}, {KFI_TILE_MMA_64x64, KFI_WHOLE, 2, 700},
                {KFI_TILE_MMA_128x128, KFI_ANY, 2, 700},    {KFI_TILE_MMA_64x64, KFI_ANY, 2, 500},
                {KFI_TILE_SIMT_128x128, KFI_WHOLE, 4, 115}, {KFI_TILE_SIMT_64x64, KFI_WHOLE, 4, 90},
                {KFI_TILE_SIMT_128x128, KFI_ANY, 4, 105},   {KFI_TILE_SIMT_64x64, KFI_ANY, 4, 80},
                {KFI_TILE_SIMT_64x64, KFI_WHOLE, 8, 50},    {KFI_TILE_SIMT_64x64, KFI_ANY, 8, 50}};
    kfi_gemm_choice best = {KFI_TILE_SIMT_64x64, KFI_ANY, 1, 0}, choice;
    kf_i64 least = -1;
    kfi_gemm_split(&best, s);
    for (const auto &m : menu) {
        if (m.bytes != s.bytes || (m.how == KFI_WHOLE) != s.whole || !s.mma) continue;
        choice = best;
        choice.tile = m.tile;
        choice.how = m.how;
        if (choice.alone > 0 && kfi_policy(m.tile).rows != KFI_ALONE_TILE)
            continue; // the same parts by every kernel
        const kf_i64 clocks = kfi_gemm_clocks(s, choice, m.rate);
        if (least >= 0 && clocks >= least) continue;
        least = clocks;
        best = choice;
    }
    return best;
}
// Of the partial sums: what kfi_gemm::parts points at.
KF_FN KFI_SMALL size_t kfi_gemm_workspace(const kfi_gemm_sizes &s)
{
    const kfi_gemm_choice choice = kfi_gemm_pick(s);
    if (choice.splits < 2) return 0;
    if (choice.alone > 0)
        return (size_t)((kfi_gemm_tiles(s, choice.tile) - choice.alone) * choice.splits *
                        KFI_ALONE_TILE * KFI_ALONE_TILE) *
               4;
    return (size_t)(s.matrices * choice.splits * s.products * s.rows * (kfi_ceil(s.cols, 8) * 8)) *
           (s.bytes == 8 ? 8 : 4);
}

// Dynamic shared memory: the stages, or later the rows that warps put there.
KF_FN KFI_SMALL unsigned kfi_gemm_shared(int tile, int bytes, int layout)
{
    const int number = bytes == 8 ? 8 : 4, rows = kfi_policy(tile).rows,
              cols = kfi_policy(tile).cols, depth = kfi_policy(tile).stage_k;
    const int line = depth + 16 / number; // without mma.sync, along the depth
    const int stage = kfi_policy(tile).mma
                          ? (rows + cols) * depth * 2
                          : number * ((layout & KFI_A_TRANSPOSED ? rows * depth : rows * line) +
                                      (layout & KFI_B_TRANSPOSED ? cols * depth : cols * line));
    const int stages = kfi_policy(tile).stages * stage,
              put = kfi_policy(tile).threads / 32 * 16 * kfi_put_pitch(tile) * number;
    return (unsigned)(stages > put ? stages : put);
}

// What the kernels are given, for a choice. Of all sizes only the depth may be 0. False: more
// blocks than a launch may have.
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
    g->alone = (unsigned)choice.alone;
    g->slice = (int)choice.slice;
    g->wide = wide;
    g->pitch = kfi_ceil(s.cols, 8) * 8;
    g->parts = parts;
    return true;
}
// The kernel that joins what the splits left: vec columns a thread.
KF_FN KFI_SMALL dim3 kfi_gemm_joint(kfi_gemm *g, const kfi_gemm_sizes &s, int vec)
{
    if (g->alone)
        return dim3((unsigned)kfi_ceil(KFI_ALONE_TILE * KFI_ALONE_TILE / vec, KFI_JOIN_THREADS),
                    (unsigned)g->tiles.d - g->alone);
    const kf_i64 vectors = kfi_ceil(s.cols, vec);
    g->tiles = kfi_make_divisor(vectors);
    return dim3((unsigned)kfi_ceil(vectors * s.rows, KFI_JOIN_THREADS), (unsigned)s.matrices);
}
#endif

#endif
