// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/slab.cuh: epilogue of the wgmma kernels of 2-byte elements through shared memory.
// A warp takes a slab, 16 rows x 64 (or 32) columns, in wgmma's register order. It packs results to
// pairs, stores them by stmatrix into a swizzled buffer, and from there by TMA.
//
// Shared memory: 2 or 4 slabs of 2 KB per consumer warp, so that TMA stores overlap the next slabs;
// bias of the tile's columns per warpgroup.
// Callers: kfk_NAME_slabs (templates), for ops with one product, no dropout and at most one row
// operand. Valid where results and operands are 16-byte aligned and cols is a multiple
// of 8: a TMA store clips rows at 16 bytes.
// Fragment order: element e = 4 j + 2 h + i of lane l has row l / 4 + 8 h and column
// 8 j + 2 (l % 4) + i of the slab.
#ifndef KF_CORE_MATMUL_SLAB_CUH
#define KF_CORE_MATMUL_SLAB_CUH

#include "kf/core/matmul/hopper.cuh"

#if defined(KFI_DEVICE_PASS) && KFI_HOPPER

struct kfi_slab {
    int row, col;        // result coordinates
    unsigned at, values; // shared addresses of its buffer, and of the row values of its columns
};
KFI_DEVICE char *kfi_slab_pointer(unsigned at)
{
    return kfi_dynamic() + (at - kfi_shared_address(kfi_dynamic()));
}
// Slab `number` of the warp's part of a tile.
template <int tile>
KFI_DEVICE kfi_slab kfi_slab_init(const kfi_pipeline &r, const kfi_gemm_tile &at, int number)
{
    constexpr int across = kfi_pipeline_slabs_across(tile);
    kfi_slab s;
    s.row = at.row + (kfi_policy(tile).cooperative ? (r.group - 1) * 64 : number / across * 64) +
            (int)threadIdx.x / 32 % 4 * 16;
    s.col = at.col + number % across * kfi_policy(tile).slab_cols;
    s.values = r.row_values + number % across * kfi_policy(tile).slab_cols * 2;
    return s;
}
// Waits until a buffer is free. kfi_slab_tma_store moves on to the next buffer.
template <int tile> KFI_DEVICE void kfi_slab_acquire(kfi_slab *s, const kfi_pipeline &r)
{
    s->at = r.slabs + (r.slabs_used & (kfi_policy(tile).slab_buffers - 1)) * KFI_SLAB_BYTES;
    if (threadIdx.x % 32 == 0) kfi_bulk_wait_read<kfi_policy(tile).slab_buffers - 1>();
    __syncwarp();
}
// Row values of a tile: loaded to registers before the mainloop, stored to shared memory after it.
template <int tile>
KFI_DEVICE void kfi_slab_prefetch_row_values(unsigned short *own, const void *p,
                                             const kfi_gemm_tile &at, const kfi_gemm &g)
{
#pragma unroll
    for (int i = 0; i < kfi_policy(tile).cols; i += 128) {
        const int col = i + (int)threadIdx.x % 128;
        own[i / 128] = p && col < kfi_policy(tile).cols && at.col + col < g.cols
                           ? ((const unsigned short *)p)[at.col + col]
                           : 0;
    }
}
template <int tile>
KFI_DEVICE void kfi_slab_store_row_values(const unsigned short *own, const kfi_pipeline &r)
{
    if (kfi_policy(tile).cooperative)
        kfi_named_sync<128>(2 + r.group); // ping-pong: the mainloop's barrier has done this
#pragma unroll
    for (int i = 0; i < kfi_policy(tile).cols; i += 128) {
        const int col = i + (int)threadIdx.x % 128;
        if (col < kfi_policy(tile).cols)
            *(unsigned short *)kfi_slab_pointer(r.row_values + 2 * col) = own[i / 128];
    }
    kfi_named_sync<128>(2 + r.group);
}
// Loads the row values of a lane's elements [first, first + count).
template <int count> KFI_DEVICE void kfi_slab_load_row_values(void *v, const kfi_slab &s, int first)
{
#pragma unroll
    for (int j = 0; j < count / 4; ++j)
        ((unsigned *)v)[2 * j] = ((unsigned *)v)[2 * j + 1] = *(const unsigned *)kfi_slab_pointer(
            s.values + 4 * first + 16 * j + threadIdx.x % 4 * 4);
}
// Swizzled address of 16 bytes of a row of 128 or 64 bytes.
template <int cols> KFI_DEVICE unsigned kfi_slab_address(const kfi_slab &s, int row, int chunk)
{
    return cols == 64 ? s.at + row * 128 + ((chunk ^ (row & 7)) << 4)
                      : s.at + row * 64 + ((chunk ^ (row >> 1 & 3)) << 4);
}
// Loads a slab of a tensor of the result's shape (residual) by coalesced 16-byte loads, and returns
// it in fragment order. p: its matrix.
template <int cols>
KFI_DEVICE void kfi_slab_load_tile(void *v, const void *p, kf_i64 ld, const kfi_slab &s,
                                   const kfi_gemm &g)
{
    constexpr int across = cols / 8, down = 32 / across;
    const int lane = (int)threadIdx.x % 32, col = s.col + lane % across * 8;
    alignas(16) unsigned short got[16 / down][8];
#pragma unroll
    for (int i = 0; i < 16 / down; ++i) {
        const int row = s.row + i * down + lane / across, left = row < g.rows ? g.cols - col : 0;
        kfi_load_each<2, 8, 1>(got[i], (const unsigned short *)p + row * ld + col, 0, left,
                               left >= 8);
    }
#pragma unroll
    for (int i = 0; i < 16 / down; ++i)
        kfi_copy<16>(
            kfi_slab_pointer(kfi_slab_address<cols>(s, i * down + lane / across, lane % across)),
            got[i]);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < cols / 16; ++j)
        kfi_ldmatrix<0>((unsigned *)v + 4 * j, kfi_slab_pointer(kfi_slab_address<cols>(
                                                   s, lane & 15, 2 * j + (lane >> 4))));
    __syncwarp();
}
// Stores elements [first, first + count) of each lane to the buffer.
template <int cols, int count>
KFI_DEVICE void kfi_slab_store_fragment(const void *v, const kfi_slab &s, int first)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < count / 8; ++j)
        kfi_stmatrix<0>(kfi_slab_address<cols>(s, lane & 15, first / 4 + 2 * j + (lane >> 4)),
                        (const unsigned *)v + 4 * j);
}
// Stores the buffer to the result.
KFI_DEVICE void kfi_slab_tma_store(const kfi_tensor_map *map, int matrix, const kfi_slab &s,
                                   kfi_pipeline *r)
{
    ++r->slabs_used;
    kfi_async_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        kfi_tma_store3(s.at, map, s.col, s.row, matrix);
        kfi_bulk_commit();
    }
}
// Waits until TMA has read all buffers, before the block exits.
KFI_DEVICE void kfi_slab_drain()
{
    if (threadIdx.x % 32 == 0) kfi_bulk_wait_read<0>();
}
#endif

#endif
