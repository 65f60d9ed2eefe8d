// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/skinny_f32_host.cuh: host side of the skinny-M kernels of float32 elements
// (skinny_f32.cuh): which products take them, the tile, how many blocks of a cluster split K, and
// the launch.
#ifndef KF_CORE_MATMUL_SKINNY_F32_HOST_CUH
#define KF_CORE_MATMUL_SKINNY_F32_HOST_CUH

#include "kf/core/matmul/skinny_f32.cuh"
#include "kf/core/matmul/skinny_host.cuh"

#ifdef KFI_HOST_PASS
#define KFI_SKINNY_F32_LEAST_K 512 // elements of K per block, at least, where blocks split it

// With KF_BATCH_INVARIANT never: more than 64 rows have another order of sums (tf32.cuh).
KF_FN bool kfi_gemm_uses_skinny_f32(const kfi_gemm_sizes &s, int layout)
{
    return s.bytes == 4 && layout == 0 && s.whole && s.depth > 0 && s.rows <= KFI_SKINNY_ROWS &&
           s.rows <= KFI_GEMM_CLASS;
}
// Rows of each kernel, in the order of an op's kernels, and the index of the one for a product.
KF_FN int kfi_skinny_f32_rows(int width)
{
    const int rows[] = {8, 16, 32, 64};
    return rows[width];
}
KF_FN int kfi_skinny_f32_width(const kfi_gemm_sizes &s)
{
    int width = 0;
    while (s.rows > kfi_skinny_f32_rows(width)) ++width;
    return width;
}

// Launch parameters. share_bits: 1 << share_bits blocks of a cluster split K. tile_cols: columns of
// a tile, per product. tiles: of a matrix.
struct kfi_skinny_f32_choice {
    int share_bits, tile_cols;
    kf_i64 tiles;
};
// Clusters that run at the same time, with one block per SM: those of 4 blocks leave some SMs out.
KF_FN kf_i64 kfi_skinny_f32_clusters(int share_bits)
{
    return (share_bits == 2 ? KFI_GEMM_SMS * 10 / 11 : KFI_GEMM_SMS) >> share_bits;
}
// Lowers tiles so that all rounds of the persistent blocks are full: 11,008 columns on 66 clusters
// are three rounds of 56 columns, not 2.6 of 64.
KF_FN KFI_SMALL kfi_skinny_f32_choice kfi_skinny_f32_even(const kfi_gemm_sizes &s, int share_bits,
                                                          kf_i64 *rounds)
{
    const kf_i64 slots = kfi_skinny_f32_clusters(share_bits),
                 most = KFI_SKINNY_F32_COLS / s.products;
    *rounds = kfi_ceil(s.matrices * kfi_ceil(s.cols, most), slots);
    const kf_i64 even = kfi_ceil(kfi_ceil(s.cols, *rounds * slots / s.matrices), 4) * 4,
                 cols = even < most ? even : most;
    return {share_bits, (int)cols, kfi_ceil(s.cols, cols)};
}
// Picks the split of K whose rounds keep most SMs busy; a lower tile costs about half of what it
// lacks. A function of columns, K, products and batch: the number of rows would change bits.
KF_FN KFI_SMALL kfi_skinny_f32_choice kfi_gemm_pick_skinny_f32(const kfi_gemm_sizes &s)
{
    const kf_i64 most = KFI_SKINNY_F32_COLS / s.products;
    kfi_skinny_f32_choice best = {};
    kf_i64 highest = -1;
    for (int bits = 0; bits <= KFI_SKINNY_F32_SHARE_BITS; ++bits) {
        if (kfi_skinny_f32_clusters(bits) < 1 ||
            (bits > 0 && s.depth < (kf_i64)KFI_SKINNY_F32_LEAST_K << bits))
            break;
        kf_i64 rounds;
        const kfi_skinny_f32_choice choice = kfi_skinny_f32_even(s, bits, &rounds);
        // Permille of the SMs' time.
        const kf_i64 busy = (s.matrices * choice.tiles << bits) * (most + choice.tile_cols) * 500 /
                            (rounds * most * KFI_GEMM_SMS);
        if (busy <= highest + 10 && highest >= 0) continue;
        highest = busy;
        best = choice;
    }
    return best;
}
// Launches the kernel; g is filled in. A block fills an SM, so that dependent launch spreads blocks
// evenly although they are persistent.
KF_FN KFI_SMALL kf_result_t kfi_gemm_launch_skinny_f32(const kfi_name *name, const void *kernel,
                                                       kfi_gemm_maps *maps, kfi_gemm *g,
                                                       const kfi_gemm_sizes &s,
                                                       const kfi_skinny_f32_choice &choice,
                                                       void **args, cudaStream_t stream)
{
    const kf_i64 units = s.matrices * choice.tiles,
                 clusters = kfi_skinny_f32_clusters(choice.share_bits);
    const int wide = kfi_skinny_f32_rows(kfi_skinny_f32_width(s));
    g->tiles = kfi_make_divisor(choice.tiles);
    maps->units = (unsigned)units;
    maps->tile_cols = choice.tile_cols;
    maps->share_bits = choice.share_bits;
    maps->a_bytes = (int)s.rows * KFI_3XTF32_K * 4;
    const unsigned share = 1u << choice.share_bits,
                   blocks = (unsigned)(units < clusters ? units : clusters) * share;
    return kfi_launch(name, kernel, dim3(blocks), (unsigned)kfi_policy(KFI_TILE_SKINNY_F32).threads,
                      args, stream, true, (unsigned)kfi_skinny_f32_shared_bytes(wide), share);
}
#endif

#endif
