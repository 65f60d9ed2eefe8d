// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/row_class_slab.cuh: the epilogue of slab.cuh for results whose row pitch is no
// multiple of 16 bytes. A slab has 16 rows of one class (row_class.cuh) and begins `shift` columns
// early, at a multiple of 16 bytes.
//
// The first slab of a row holds `shift` columns of the row before, and TMA clips a row's end at 16
// bytes: both are stored element by element. Operands of the result's shape may have any pitch.
// Callers: kfk_NAME_class (templates), for calls with one result.
#ifndef KF_CORE_MATMUL_ROW_CLASS_SLAB_CUH
#define KF_CORE_MATMUL_ROW_CLASS_SLAB_CUH

#include "kf/core/matmul/row_class.cuh"
#include "kf/core/matmul/slab.cuh"

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

// Slab `number` of the warp's part of a tile. row: among the rows of the class; col: with the
// shift.
template <int tile>
KFI_DEVICE kfi_slab kfi_class_slab_init(const kfi_pipeline &r, const kfi_gemm_tile &at, int number,
                                        const kfi_class_maps &maps)
{
    kfi_slab s = kfi_slab_init<tile>(r, at, number);
    s.row += at.row / 1024 * 128 - at.row;
    s.of = kfi_class_of(at);
    s.shift = maps.shift[s.of];
    return s;
}
// Row values of a tile (kfi_slab_prefetch_row_values).
template <int tile>
KFI_DEVICE void kfi_class_prefetch_row_values(unsigned short *own, const void *p,
                                              const kfi_gemm_tile &at, const kfi_gemm &g,
                                              const kfi_class_maps &maps)
{
    const int first = at.col - maps.shift[kfi_class_of(at)];
#pragma unroll
    for (int i = 0; i < kfi_policy(tile).cols; i += 128) {
        const int in = i + (int)threadIdx.x % 128, col = first + in;
        own[i / 128] = p && in < kfi_policy(tile).cols && col >= 0 && col < g.cols
                           ? ((const unsigned short *)p)[col]
                           : 0;
    }
}
// Loads a slab of a tensor of the result's shape (kfi_slab_load_tile).
template <int cols>
KFI_DEVICE void kfi_class_load_tile(void *v, const void *p, kf_i64 ld, const kfi_slab &s,
                                    const kfi_gemm &g)
{
    constexpr int across = cols / 8, down = 32 / across;
    const int lane = (int)threadIdx.x % 32, col = s.col + lane % across * 8 - s.shift;
#pragma unroll 1
    for (int i = 0; i < 16; i += down) {
        alignas(16) unsigned short got[8];
        const int row = KFI_ROW_CLASSES * (s.row + i + lane / across) + s.of,
                  left = row < g.rows ? g.cols - col : 0;
        const unsigned short *const from = (const unsigned short *)p + row * ld + col;
        if (col >= 0 && left >= 8 && (unsigned long long)from % 16 == 0)
            kfi_copy<16>(got, from);
        else
            for (int e = 0; e < 8; ++e) got[e] = col + e >= 0 && e < left ? from[e] : 0;
        kfi_copy<16>(kfi_slab_pointer(kfi_slab_address<cols>(s, i + lane / across, lane % across)),
                     got);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < cols / 16; ++j)
        kfi_ldmatrix<0>((unsigned *)v + 4 * j, kfi_slab_pointer(kfi_slab_address<cols>(
                                                   s, lane & 15, 2 * j + (lane >> 4))));
    __syncwarp();
}
template <int cols, int odd>
KFI_DEVICE void kfi_odd_load_tile(void *v, const void *p, kf_i64 ld, const kfi_slab &s,
                                  const kfi_gemm &g)
{
    if constexpr (odd)
        kfi_class_load_tile<cols>(v, p, ld, s, g);
    else
        kfi_slab_load_tile<cols>(v, p, ld, s, g);
}
// Stores the buffer to the result: by TMA, or element by element where a row begins or ends.
template <int cols>
KFI_DEVICE void kfi_class_slab_store(void *p, kf_i64 ld, const kfi_class_maps &maps, kf_i64 matrix,
                                     const kfi_slab &s, const kfi_gemm &g, kfi_pipeline *r)
{
    const int lane = (int)threadIdx.x % 32, end = g.cols + s.shift;
    ++r->slabs_used;
    kfi_async_fence();
    __syncwarp();
    if ((s.col == 0 && s.shift) || (s.col + cols > end && end % 8)) {
#pragma unroll 1
        for (int row = 0; row < 16; ++row) {
            const int to = KFI_ROW_CLASSES * (s.row + row) + s.of;
            if (to >= g.rows) break;
#pragma unroll
            for (int i = 0; i < cols; i += 32) {
                const int in = i + lane, col = s.col + in - s.shift;
                if (col >= 0 && col < g.cols)
                    ((unsigned short *)p)[to * ld + col] =
                        *(const unsigned short *)kfi_slab_pointer(
                            kfi_slab_address<cols>(s, row, in / 8) + in % 8 * 2);
            }
        }
        if (lane == 0) kfi_bulk_commit(); // an empty group: buffers are counted by groups
    } else if (lane == 0) {
        kfi_tma_store3(s.at, &maps.results[s.of], s.col, s.row,
                       (int)matrix * maps.maps.batched_results[0]);
        kfi_bulk_commit();
    }
}
#endif

#endif
