// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/hopper_host.cuh: host side of the wgmma kernels (hopper.cuh, tf32.cuh,
// slab.cuh): which products take them, the tile, tensor maps and the launch.
#ifndef KF_CORE_MATMUL_HOPPER_HOST_CUH
#define KF_CORE_MATMUL_HOPPER_HOST_CUH

#include "kf/core/matmul/hopper.cuh"
#include "kf/core/matmul/pick.cuh"
#include "kf/core/matmul/slab.cuh"
#include "kf/core/matmul/tf32.cuh"
#include "kf/core/schedules.cuh"

#ifdef KFI_HOST_PASS
#include "kf/core/launch.cuh"

// cuTensorMapEncodeTiled, looked up at run time: programs need not link with the driver.
typedef int (*kfi_encode_map)(kfi_tensor_map *map, int type, unsigned rank, void *p,
                              const unsigned long long *sizes, const unsigned long long *strides,
                              const unsigned *box, const unsigned *steps, int interleave,
                              int swizzle, int promotion, int fill);
#if defined(KFI_DRIVER) && CUDA_VERSION >= 12000
KF_FN int kfi_encode_by_driver(kfi_tensor_map *map, int type, unsigned rank, void *p,
                               const unsigned long long *sizes, const unsigned long long *strides,
                               const unsigned *box, const unsigned *steps, int interleave,
                               int swizzle, int promotion, int fill)
{
    static_assert(sizeof *map == sizeof(CUtensorMap) &&
                      alignof(kfi_tensor_map) >= alignof(CUtensorMap),
                  "kf: a tensor map is the driver's");
    return (int)KF_DRIVER_CALL(cuTensorMapEncodeTiled)(
        (CUtensorMap *)(void *)map, (CUtensorMapDataType)type, rank, p,
        (const cuuint64_t *)(const void *)sizes, (const cuuint64_t *)(const void *)strides, box,
        steps, (CUtensorMapInterleave)interleave, (CUtensorMapSwizzle)swizzle,
        (CUtensorMapL2promotion)promotion, (CUtensorMapFloatOOBfill)fill);
}
KF_FN kfi_encode_map kfi_find_encode() { return kfi_encode_by_driver; }
#elif defined(KFI_DRIVER) || CUDART_VERSION < 12000
KF_FN kfi_encode_map kfi_find_encode() { return nullptr; }
#else
KF_FN KFI_SMALL kfi_encode_map kfi_find_encode()
{
    static void *known = nullptr; // concurrent threads write the same pointer
    void *found = kfi_read_pointer(&known);
    if (found) return (kfi_encode_map)found;
    cudaDriverEntryPointQueryResult query;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                               12000, cudaEnableDefault, &query);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &query);
#endif
    if (error != cudaSuccess || query != cudaDriverEntryPointSuccess) return nullptr;
    kfi_write_pointer(&known, found);
    return (kfi_encode_map)found;
}
#endif
// Returns whether the code that the device runs has wgmma: code for another architecture, sm_90
// included, has a launch bound of one warp. This loads a kernel that is loaded by name.
KF_FN KFI_SMALL bool kfi_has_wgmma(const void *kernel, int threads)
{
    if (!kernel || !kfi_find_encode()) return false;
    bool some = true;
#ifdef KFI_ARCHITECTURES
    const int list[] = {KFI_ARCHITECTURES};
    some = false;
    for (int arch : list) some = some || arch == 900;
#endif
    return some && kfi_most_threads(kernel) >= threads;
}

// 2-byte elements with more than 64 rows; independent of the other sizes, so that bits are, too.
KF_FN bool kfi_gemm_uses_wgmma(const kfi_gemm_sizes &s)
{
    return s.bytes == 2 && s.whole && s.mma && s.rows > 64 && s.depth > 0;
}

// float32 with more than 64 rows, and any number of rows with KF_BATCH_INVARIANT: other kernels
// round differently. K shorter than a stage is padded with zeros.
KF_FN bool kfi_gemm_uses_3xtf32(const kfi_gemm_sizes &s)
{
    return s.bytes == 4 && s.whole && s.rows > KFI_GEMM_CLASS && s.depth > 0;
}
// Returns the tile of either; -1: neither.
KF_FN int kfi_gemm_wgmma_tile(const kfi_gemm_sizes &s, int type, int layout)
{
    const int floats =
        type == KFI_OF_TF32 && layout == 0 ? KFI_TILE_WGMMA_TF32 : KFI_TILE_WGMMA_3XTF32;
    return kfi_gemm_uses_wgmma(s)    ? KFI_TILE_WGMMA_128x128_PINGPONG
           : kfi_gemm_uses_3xtf32(s) ? floats
                                     : -1;
}

// Index of a tile among an op's kernels that store through slabs.
KF_FN int kfi_slab_kernel_index(int tile)
{
    return tile == KFI_TILE_WGMMA_128x128_PINGPONG ? 0 : tile - KFI_TILE_WGMMA_128x192_PINGPONG + 1;
}
// Returns whether an op has a kernel for a tile. Where B is transposed its table ends before the
// tile that boxes of 64 columns do not divide.
KF_FN bool kfi_slab_kernel_exists(int tile, int layout, const void *const *kernels)
{
    return !((layout & KFI_B_TRANSPOSED) && kfi_policy(tile).cols % 64) &&
           kernels[kfi_slab_kernel_index(tile)];
}
// Picks the tile of a kernel that stores through slabs: estimated clocks are waves x K-steps x
// clocks per step, plus the epilogue that no mainloop overlaps. All tiles give the same bits.
// Tests define KFI_GEMM_TILE to force a tile.
#ifndef KFI_GEMM_TILE
#define KFI_GEMM_TILE -1
#endif
KF_FN KFI_SMALL int kfi_gemm_pick_slab_tile(const kfi_gemm_sizes &s, int layout,
                                            const void *const *kernels)
{
    if (KFI_GEMM_TILE >= 0 && kfi_slab_kernel_exists(KFI_GEMM_TILE, layout, kernels))
        return KFI_GEMM_TILE;
    static const struct {
        int tile, step, tail;
    } menu[] = {{KFI_TILE_WGMMA_128x192_PINGPONG, 768, 1500},
                {KFI_TILE_WGMMA_128x128_PINGPONG, 535, 1000},
                {KFI_TILE_WGMMA_128x128_COOPERATIVE, 535, 1000},
                {KFI_TILE_WGMMA_128x256_COOPERATIVE, 1040, 1500},
                {KFI_TILE_WGMMA_128x96_COOPERATIVE, 425, 850}};
    const bool single_wave = kernels[kfi_slab_kernel_index(KFI_TILE_WGMMA_128x128_COOPERATIVE)];
    kf_i64 least = -1;
    int best = KFI_TILE_WGMMA_128x128_PINGPONG;
    for (const auto &m : menu) {
        const bool cooperative = kfi_policy(m.tile).cooperative;
        const kf_i64 waves = kfi_ceil(kfi_gemm_tiles(s, m.tile), KFI_GEMM_SMS);
        if (!kfi_slab_kernel_exists(m.tile, layout, kernels)) continue;
        if (waves == 1 && !cooperative && single_wave) continue; // a warpgroup would be idle
        const kf_i64 clocks =
            waves * kfi_ceil(s.depth, KFI_PIPELINE_K) * m.step + (cooperative ? waves : 1) * m.tail;
        if (least >= 0 && clocks >= least) continue;
        least = clocks;
        best = m.tile;
    }
    return best;
}

// A tensor to encode a map of: `outer` rows of `inner` elements; TMA copies boxes of `lines` rows
// of `bytes` bytes. ld, apart: distances of consecutive rows and matrices [elements].
struct kfi_mapped {
    const void *p;
    kf_i64 inner, outer, ld, matrices, apart;
    int type, lines, bytes = 128;
};
// Encodes a tensor map. *batched: 1 if matrices differ, 0 if the batch shares one.
KF_FN KFI_SMALL bool kfi_map_factor(kfi_tensor_map *map, int *batched, const kfi_mapped &f)
{
    const kfi_encode_map encode = kfi_find_encode();
    if (!encode || (f.outer > 1 && f.ld <= 0) || f.apart < 0) return false;
    const int size = kfi_of_bytes(f.type);
    const kf_i64 line = f.outer > 1 ? size * f.ld : kfi_ceil(size * f.inner, 16) * 16,
                 limit = (kf_i64)1 << 40;
    *batched = f.matrices > 1 && f.apart > 0;
    const kf_i64 apart = *batched ? size * f.apart : line;
    if (line >= limit || apart >= limit) return false;
    const unsigned long long sizes[] = {(unsigned long long)f.inner, (unsigned long long)f.outer,
                                        *batched ? (unsigned long long)f.matrices : 1};
    const unsigned long long strides[] = {(unsigned long long)line, (unsigned long long)apart};
    const unsigned box[] = {(unsigned)(f.bytes / size), (unsigned)f.lines, 1}, steps[] = {1, 1, 1};
    const int of_type = f.type == KFI_OF_BF16   ? 9
                        : f.type == KFI_OF_F16  ? 6
                        : f.type == KFI_OF_TF32 ? 11
                                                : 7; // CU_TENSOR_MAP_DATA_TYPE_
    return encode(map, of_type, 3, const_cast<void *>(f.p), sizes, strides, box, steps, 0,
                  f.bytes == 128 ? 3 : 2, 3, 0) == 0; // 128-byte or 64-byte swizzle
}
// Encodes the operands of one product, of two products that share A, or of two terms. Returns false
// if TMA cannot load them. rows, cols: of a tile.
KF_FN KFI_SMALL bool kfi_gemm_map(kfi_gemm_maps *maps, const kfi_gemm_sizes &s, int type,
                                  int layout, int terms, const kfi_gemm_matrix &a,
                                  const kf_i64 *a_matrix, const kfi_gemm_matrix &b,
                                  const kf_i64 *b_matrix,
                                  int rows = kfi_policy(KFI_TILE_WGMMA_128x128_PINGPONG).rows,
                                  int cols = kfi_policy(KFI_TILE_WGMMA_128x128_PINGPONG).cols)
{
    const bool transposed_a = layout & KFI_A_TRANSPOSED, transposed_b = layout & KFI_B_TRANSPOSED;
    const int depth = 128 / s.bytes, lines_a = transposed_a ? depth : rows,
              lines_b = transposed_b ? depth : cols / s.products;
    bool mapped = true;
    maps->terms = terms;
    for (int i = 0; mapped && i < terms; ++i) {
        const kfi_mapped f = {a.p[i],
                              transposed_a ? s.rows : s.depth,
                              transposed_a ? s.depth : s.rows,
                              a.ld[i],
                              s.matrices,
                              a_matrix[i],
                              type,
                              lines_a};
        mapped = kfi_map_factor(&maps->a[i], &maps->batched_a[i], f);
    }
    for (int i = 0; mapped && i < (terms > s.products ? terms : s.products); ++i) {
        const kfi_mapped f = {b.p[i],
                              transposed_b ? s.cols : s.depth,
                              transposed_b ? s.depth : s.cols,
                              b.ld[i],
                              s.matrices,
                              b_matrix[i],
                              type,
                              lines_b};
        mapped = kfi_map_factor(&maps->b[i], &maps->batched_b[i], f);
    }
    return mapped;
}
// Splits K as kfi_gemm_pick does.
KF_FN KFI_SMALL kfi_gemm_choice kfi_gemm_wgmma_choice(const kfi_gemm_sizes &s, int tile)
{
    static_assert(KFI_GEMM_SLICE % KFI_PIPELINE_K == 0 && KFI_GEMM_SLICE % KFI_3XTF32_K == 0,
                  "kf: a split has whole stages");
    kfi_gemm_choice choice = {tile, KFI_CP_ASYNC, 1, s.depth};
    kfi_gemm_split(&choice, s);
    return choice;
}
// Launches the kernel; g is filled in for the choice.
KF_FN KFI_SMALL kf_result_t kfi_gemm_launch_wgmma(const kfi_name *name, const void *kernel,
                                                  kfi_gemm_maps *maps, const kfi_gemm &g,
                                                  const kfi_gemm_choice &choice, kf_i64 matrices,
                                                  void **args, cudaStream_t stream)
{
    const int tile = choice.tile;
    maps->units = (unsigned)kfi_gemm_units(choice, (kf_i64)g.tiles.d, matrices);
    const unsigned sms = KFI_GEMM_SMS, blocks = maps->units < sms ? maps->units : sms;
    return kfi_launch(name, kernel, dim3(blocks), (unsigned)kfi_policy(tile).threads, args, stream,
                      false,
                      (unsigned)(tile == KFI_TILE_WGMMA_3XTF32 ? kfi_3xtf32_shared_bytes()
                                                               : kfi_pipeline_shared_bytes(tile)));
}
#endif

#endif
