// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/mma.cuh: mainloop by mma.sync (sm_80 and later): 2-byte elements, float
// accumulators, a 4-stage pipeline of 32 of K. With cp.async a warp double-buffers its fragments:
// ldmatrix of the next 16 of K overlaps the mma. Loads through registers leave no room for that.
//
// Tiles: 128 x 128 and 64 x 64, 4 warps. Callers: kernels of ops and kfk_gemm_sum, by matmul.cuh.
// K is accumulated in its order, whatever the tile.
#ifndef KF_CORE_MATMUL_MMA_CUH
#define KF_CORE_MATMUL_MMA_CUH

#include "kf/core/matmul/load.cuh"

#if defined(KFI_DEVICE_PASS) && KFI_MMA

// Loads the fragments of a warp's rows of A, and columns of B, for 16 of K of a stage.
template <int tile, int layout>
KFI_DEVICE void kfi_mma_rows(unsigned (*a)[4], const char *stage, int step)
{
    constexpr int chunks = layout & KFI_A_TRANSPOSED ? kfi_policy(tile).rows / 8 : 4;
    const int lane = threadIdx.x % 32,
              first = (int)threadIdx.x / 32 / kfi_policy(tile).warps_across * kfi_warp_rows(tile);
#pragma unroll
    for (int i = 0; i < kfi_warp_rows(tile) / 16; ++i) {
        const int line = layout & KFI_A_TRANSPOSED ? step * 16 + lane % 8 + lane / 16 * 8
                                                   : first + i * 16 + lane % 16;
        const int chunk =
            layout & KFI_A_TRANSPOSED ? (first + i * 16) / 8 + lane / 8 % 2 : step * 2 + lane / 16;
        kfi_ldmatrix<layout & KFI_A_TRANSPOSED ? 1 : 0>(
            a[i], stage + 16 * kfi_chunk_at<chunks>(line, chunk));
    }
}
template <int tile, int layout>
KFI_DEVICE void kfi_mma_cols(unsigned (*b)[4], const char *stage, int step)
{
    constexpr int chunks = layout & KFI_B_TRANSPOSED ? kfi_policy(tile).cols / 8 : 4;
    const int lane = threadIdx.x % 32,
              first = (int)threadIdx.x / 32 % kfi_policy(tile).warps_across * kfi_warp_cols(tile);
#pragma unroll
    for (int j = 0; j < kfi_warp_cols(tile) / 16; ++j) {
        const int line = layout & KFI_B_TRANSPOSED ? step * 16 + lane % 16
                                                   : first + j * 16 + lane % 8 + lane / 16 * 8;
        const int chunk =
            layout & KFI_B_TRANSPOSED ? (first + j * 16) / 8 + lane / 16 : step * 2 + lane / 8 % 2;
        kfi_ldmatrix<layout & KFI_B_TRANSPOSED ? 1 : 0>(
            b[j], stage + 16 * kfi_chunk_at<chunks>(line, chunk));
    }
}
template <int type, int tile>
KFI_DEVICE void kfi_mma_all(float *sums, unsigned (*a)[4], unsigned (*b)[4])
{
    constexpr int cols = kfi_warp_cols(tile) / 8;
#pragma unroll
    for (int i = 0; i < kfi_warp_rows(tile) / 16; ++i)
#pragma unroll
        for (int j = 0; j < cols; ++j)
            kfi_mma<type>(sums + (i * cols + j) * 4, a[i], b[j / 2] + j % 2 * 2);
}

// Adds the product over K in [at.begin, at.end) to the accumulators. Called by all threads, which
// may reuse shared memory afterwards.
template <int type, int tile, int layout, int products, int how>
KFI_DEVICE void kfi_gemm_mma(float *sums, const kfi_gemm_matrix &a, const kfi_gemm_matrix &b,
                             const kfi_gemm_tile &at, const kfi_gemm &g)
{
    constexpr int stages = kfi_policy(tile).stages, depth = kfi_policy(tile).stage_k,
                  rows = kfi_policy(tile).rows, cols = kfi_policy(tile).cols;
    constexpr int transposed_a = layout & KFI_A_TRANSPOSED ? 1 : 0,
                  transposed_b = layout & KFI_B_TRANSPOSED ? 1 : 0,
                  share = kfi_warp_cols(tile) / products;
    constexpr int lines_a = transposed_a ? depth : rows,
                  chunks_a = transposed_a ? rows / 8 : depth / 8;
    constexpr int lines_b = transposed_b ? depth : cols / products,
                  chunks_b = transposed_b ? cols / products / 8 : depth / 8; // per product
    constexpr int bytes_a = rows * depth * 2, bytes = (rows + cols) * depth * 2;
    constexpr bool ahead = how == KFI_CP_ASYNC;
    static_assert(depth == 32, "kf: a stage is two steps of mma.sync");
    char *const shared = kfi_dynamic();
    const int count = (at.end - at.begin + depth - 1) / depth;
    kfi_gemm_cursor cursor_a = kfi_gemm_cursor_init<2, 8, tile, chunks_a, transposed_a>(
                        a.p[0], a.ld[0], at.row, g.rows, at.begin, at.end),
                    cursor_b[products];
    kfi_gemm_span span_a = kfi_gemm_span_of(a.p[0], a.ld[0], transposed_a ? g.depth : g.rows,
                                            transposed_a ? g.rows : g.depth),
                  span_b[products];
#pragma unroll
    for (int p = 0; p < products; ++p) {
        cursor_b[p] = kfi_gemm_cursor_init<2, 8, tile, chunks_b, transposed_b>(
            b.p[p], b.ld[p], at.col, g.cols, at.begin, at.end);
        span_b[p] = kfi_gemm_span_of(b.p[p], b.ld[p], transposed_b ? g.depth : g.cols,
                                     transposed_b ? g.cols : g.depth);
    }
    unsigned ahead_a[how == KFI_VIA_REGISTERS ? lines_a / kfi_cursor_lines<tile, chunks_a>() : 1]
                    [8];
    unsigned ahead_b[products]
                    [how == KFI_VIA_REGISTERS ? lines_b / kfi_cursor_lines<tile, chunks_b>() : 1]
                    [8];
    unsigned part_a[ahead ? 2 : 1][kfi_warp_rows(tile) / 16][4],
        part_b[ahead ? 2 : 1][kfi_warp_cols(tile) / 16][4];
    // Per stage n each of these runs once, in this order.
#define KFI_STAGE(n) shared + (n) % stages *bytes
#define KFI_FETCH(n)                                                                               \
    if (how == KFI_CP_ASYNC && (n) < count) {                                                      \
        kfi_stage_cp_async<tile, lines_a, chunks_a, 1, rows, transposed_a>(KFI_STAGE(n), cursor_a, \
                                                                           0);                     \
        kfi_gemm_cursor_advance<tile, transposed_a>(cursor_a);                                     \
    }                                                                                              \
    _Pragma("unroll") for (int p = 0; how == KFI_CP_ASYNC && p < products && (n) < count; ++p)     \
    {                                                                                              \
        kfi_stage_cp_async<tile, lines_b, chunks_b, products, share, transposed_b>(                \
            KFI_STAGE(n) + bytes_a, cursor_b[p], p);                                               \
        kfi_gemm_cursor_advance<tile, transposed_b>(cursor_b[p]);                                  \
    }                                                                                              \
    kfi_fetch_commit()
#define KFI_LOAD_A(n)                                                                              \
    if (how == KFI_VIA_REGISTERS && (n) < count)                                                   \
    kfi_stage_load<tile, lines_a, chunks_a>(ahead_a, cursor_a, span_a)
#define KFI_WRITE_A(n)                                                                             \
    if (how == KFI_VIA_REGISTERS && (n) < count) {                                                 \
        kfi_stage_write<tile, lines_a, chunks_a, 1, rows, transposed_a>(KFI_STAGE(n), ahead_a,     \
                                                                        cursor_a, span_a, 0);      \
        kfi_gemm_cursor_advance<tile, transposed_a>(cursor_a);                                     \
    }
#define KFI_LOAD_B(n)                                                                              \
    _Pragma("unroll") for (int p = 0; how == KFI_VIA_REGISTERS && p < products && (n) < count;     \
                           ++p)                                                                    \
        kfi_stage_load<tile, lines_b, chunks_b>(ahead_b[p], cursor_b[p], span_b[p])
#define KFI_WRITE_B(n)                                                                             \
    _Pragma("unroll") for (int p = 0; how == KFI_VIA_REGISTERS && p < products && (n) < count;     \
                           ++p)                                                                    \
    {                                                                                              \
        kfi_stage_write<tile, lines_b, chunks_b, products, share, transposed_b>(                   \
            KFI_STAGE(n) + bytes_a, ahead_b[p], cursor_b[p], span_b[p], p);                        \
        kfi_gemm_cursor_advance<tile, transposed_b>(cursor_b[p]);                                  \
    }
#pragma unroll
    for (int n = 0; n < stages - 1; ++n) {
        KFI_FETCH(n);
        KFI_LOAD_A(n);
        KFI_WRITE_A(n)
        KFI_LOAD_B(n);
        KFI_WRITE_B(n)
    }
    kfi_fetch_wait<stages - 2>();
    __syncthreads();
    if (ahead && count > 0) {
        kfi_mma_rows<tile, layout>(part_a[0], shared, 0);
        kfi_mma_cols<tile, layout>(part_b[0], shared + bytes_a, 0);
    }
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
        const char *const stage = shared + n % stages * bytes, *const next = shared + (n + 1) %
                                                                                          stages *
                                                                                          bytes;
        const int later = n + stages - 1;
        kfi_mma_rows<tile, layout>(part_a[ahead], stage, ahead);
        kfi_mma_cols<tile, layout>(part_b[ahead], stage + bytes_a, ahead);
        KFI_FETCH(later);
        KFI_LOAD_A(later);
        kfi_mma_all<type, tile>(sums, part_a[0], part_b[0]);
        KFI_WRITE_A(later)
        KFI_LOAD_B(later);
        if (!ahead) {
            kfi_mma_rows<tile, layout>(part_a[0], stage, 1);
            kfi_mma_cols<tile, layout>(part_b[0], stage + bytes_a, 1);
        }
        kfi_fetch_wait<stages - 2>(); // all stages up to the next one have arrived
        __syncthreads();              // for all threads; this stage may be overwritten
        if (ahead && n + 1 < count) {
            kfi_mma_rows<tile, layout>(part_a[0], next, 0);
            kfi_mma_cols<tile, layout>(part_b[0], next + bytes_a, 0);
        }
        kfi_mma_all<type, tile>(sums, part_a[ahead], part_b[ahead]);
        KFI_WRITE_B(later)
    }
#undef KFI_STAGE
#undef KFI_FETCH
#undef KFI_LOAD_A
#undef KFI_LOAD_B
#undef KFI_WRITE_A
#undef KFI_WRITE_B
}
#endif

#endif
