// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/row_class_host.cuh: host side of products with a row pitch that is no multiple of
// 16 bytes (row_class.cuh): tensor maps of the classes, and the grid of tiles.
#ifndef KF_CORE_MATMUL_ROW_CLASS_HOST_CUH
#define KF_CORE_MATMUL_ROW_CLASS_HOST_CUH

#include "kf/core/matmul/hopper_host.cuh"
#include "kf/core/matmul/row_class_slab.cuh"

#ifdef KFI_HOST_PASS
// Encodes a map of each class of a tensor of 2-byte elements. shift: elements that each begins
// early. Returns false if TMA cannot address them: every matrix must have the shifts of the first.
KF_FN KFI_SMALL bool kfi_map_classes(kfi_tensor_map *maps, unsigned char *shift, int *batched,
                                     const kfi_mapped &f)
{
    const kf_i64 vec = 8, first = (kf_i64)((uintptr_t)f.p / 2 % vec);
    bool mapped = (uintptr_t)f.p % 2 == 0 && f.outer >= KFI_ROW_CLASSES && f.ld > 0 &&
                  (f.matrices == 1 || f.apart % vec == 0);
    for (int i = 0; mapped && i < KFI_ROW_CLASSES; ++i) {
        kfi_mapped own = f;
        shift[i] = (unsigned char)((first + i * (f.ld % vec)) % vec);
        own.p = (const char *)f.p + 2 * (i * f.ld - shift[i]);
        own.inner = f.inner + shift[i];
        own.outer = kfi_ceil(f.outer - i, KFI_ROW_CLASSES);
        own.ld = KFI_ROW_CLASSES * f.ld;
        mapped = kfi_map_factor(&maps[i], batched, own);
    }
    return mapped;
}
// Rows of all tiles, as kfi_class_row numbers them.
KF_FN kf_i64 kfi_class_rows(kf_i64 rows)
{
    return kfi_ceil(kfi_ceil(rows, KFI_ROW_CLASSES), 128) * 128 * KFI_ROW_CLASSES;
}
// Fills in the kernel's arguments. deep: classes begin early in K, else in columns. Returns false
// if the grid is too large.
KF_FN KFI_SMALL bool kfi_class_fill(kfi_gemm *g, const kfi_gemm_sizes &s, int tile, bool deep,
                                    bool wide)
{
    const int most_shift = 7;
    kfi_gemm_sizes own = s;
    own.rows = kfi_class_rows(s.rows);
    own.cols += deep ? 0 : most_shift;
    own.depth += deep ? most_shift : 0;
    if (!kfi_gemm_fill(g, own, {tile, KFI_CP_ASYNC, 1, own.depth}, wide, nullptr)) return false;
    g->rows = (int)s.rows;
    g->cols = (int)s.cols;
    return true;
}
// Tiles of the kernels for results of any row pitch, in the order of their table.
KF_FN const int *kfi_class_tiles()
{
    static const int tiles[] = {KFI_TILE_WGMMA_128x192_PINGPONG,
                                KFI_TILE_WGMMA_128x128_COOPERATIVE};
    return tiles;
}
// Picks one of them, by estimated clocks as kfi_gemm_pick_slab_tile. Returns -1 where direct stores
// are faster: a tile of 128 x 128 takes them about 30,000 clocks, but fills its rows. All give the
// same bits.
KF_FN KFI_SMALL int kfi_class_pick(const kfi_gemm_sizes &s, const void *const *kernels)
{
    const int *const tiles = kfi_class_tiles();
    const kf_i64 slices = kfi_ceil(s.depth, KFI_PIPELINE_K), direct = 30000, step = 535;
    const kf_i64 steps[] = {768, step}, tails[] = {1500, 1000};
    kf_i64 least = kfi_ceil(kfi_gemm_tiles(s, KFI_TILE_WGMMA_128x128_PINGPONG), KFI_GEMM_SMS) *
                   (slices * step > direct ? slices * step : direct);
    int best = -1;
    kfi_gemm_sizes own = s;
    own.rows = kfi_class_rows(s.rows);
    own.cols += 7;
    for (int i = 0; i < 2; ++i) {
        const bool cooperative = kfi_policy(tiles[i]).cooperative;
        const kf_i64 waves = kfi_ceil(kfi_gemm_tiles(own, tiles[i]), KFI_GEMM_SMS),
                     clocks = waves * slices * steps[i] + (cooperative ? waves : 1) * tails[i];
        if (!kernels[i] || (waves == 1 && !cooperative && kernels[1])) continue;
        if (KFI_GEMM_TILE == tiles[i]) return i;
        if (clocks >= least) continue;
        least = clocks;
        best = i;
    }
    return best;
}
// Encodes the maps of A's classes and of B, for tiles of 128 x cols.
KF_FN KFI_SMALL bool kfi_class_map(kfi_class_maps *maps, unsigned char *shift,
                                   const kfi_gemm_sizes &s, int type, int layout, int cols,
                                   const kfi_mapped &a, const kfi_mapped &b)
{
    kfi_mapped own_a = a, own_b = b;
    own_a.inner = s.depth, own_a.outer = s.rows, own_a.lines = 128;
    own_b.inner = layout & KFI_B_TRANSPOSED ? s.cols : s.depth;
    own_b.outer = layout & KFI_B_TRANSPOSED ? s.depth : s.cols;
    own_b.lines = layout & KFI_B_TRANSPOSED ? KFI_PIPELINE_K : cols;
    own_a.type = own_b.type = type;
    own_a.matrices = own_b.matrices = s.matrices;
    maps->maps.terms = 1;
    return kfi_map_classes(maps->a, shift, &maps->maps.batched_a[0], own_a) &&
           kfi_map_factor(&maps->maps.b[0], &maps->maps.batched_b[0], own_b);
}
#endif

#endif
