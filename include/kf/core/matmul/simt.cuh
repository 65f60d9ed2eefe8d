// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/simt.cuh: mainloop by FMAs: float and double, and before sm_80 2-byte elements,
// which are widened to float on the way. A 3-stage cp.async pipeline of 16 of K; a lane accumulates
// 8 rows and 8 or 4 columns.
//
// Stages keep the operands' layout: a lane reads 16 bytes at a time, along K, or (transposed) along
// rows or columns. Tiles: 128 x 128 (8 warps), 64 x 64 (4 warps). Callers: kernels of ops and
// kfk_gemm_sum, by matmul.cuh. K is accumulated in its order.
#ifndef KF_CORE_MATMUL_SIMT_CUH
#define KF_CORE_MATMUL_SIMT_CUH

#include "kf/core/matmul/load.cuh"

#ifdef KFI_DEVICE_PASS

KFI_DEVICE void kfi_gemm_number(kfi_tag<KFI_OF_BF16>, float *d, const char *p)
{
    kfi_unpack_bf16<1>(d, (const kf_bf16 *)p);
}
KFI_DEVICE void kfi_gemm_number(kfi_tag<KFI_OF_F16>, float *d, const char *p)
{
    kfi_unpack_f16<1>(d, (const kf_f16 *)p);
}
KFI_DEVICE void kfi_gemm_number(kfi_tag<KFI_OF_F32>, float *d, const char *p) { kfi_copy<4>(d, p); }
KFI_DEVICE void kfi_gemm_number(kfi_tag<KFI_OF_F64>, double *d, const char *p)
{
    kfi_copy<8>(d, p);
}

// Pitch of a stage's rows, in numbers. K-contiguous rows are padded by 16 bytes, so that 8 of them
// begin in different banks.
KFI_BOTH constexpr int kfi_simt_pitch(int outer, int size, int transposed)
{
    return transposed ? outer : 16 + 16 / size;
}

// Elements per copy.
KFI_BOTH constexpr int kfi_simt_per(int type, int how)
{
    return how == KFI_CP_ASYNC && kfi_of_bytes(type) > 2 ? 16 / kfi_of_bytes(type) : 1;
}
// Loads a stage of one product, of which the tile has `outer` rows or columns.
template <int type, int tile, int outer, int products, int share, int transposed, int how>
KFI_DEVICE void kfi_simt_stage(char *stage, const kfi_gemm_cursor &cursor, int product)
{
    constexpr int size = kfi_of_real(type), stored = kfi_of_bytes(type),
                  per = kfi_simt_per(type, how);
    constexpr int lines = transposed ? 16 : outer, chunks = (transposed ? outer : 16) / per,
                  pitch = kfi_simt_pitch(outer * products, size, transposed);
#pragma unroll
    for (int i = 0; i < lines / kfi_cursor_lines<tile, chunks>(); ++i) {
        const int line = (int)threadIdx.x / chunks + i * kfi_cursor_lines<tile, chunks>(),
                  chunk = (int)threadIdx.x % chunks * per;
        const int at = transposed ? line * pitch + kfi_interleave<products, share>(chunk, product)
                                  : kfi_interleave<products, share>(line, product) * pitch + chunk;
        const int left = kfi_cursor_left<tile, chunks, per>(cursor, i);
        if (stored == size) {
            kfi_cp_async<per * size>(stage + at * size, cursor.p + i * cursor.apart, left * size);
        } else {
            typename kfi_real<size>::type value = 0;
            if (left > 0) kfi_gemm_number(kfi_tag<type>(), &value, cursor.p + i * cursor.apart);
            kfi_copy<size>(stage + at * size, &value);
        }
    }
}

KFI_DEVICE float kfi_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
KFI_DEVICE double kfi_fma(double a, double b, double c) { return fma(a, b, c); }

// Multiplies 16 bytes of K of a lane's 8 rows by those of its columns.
template <int tile, int size, int layout>
KFI_DEVICE void kfi_simt_step(typename kfi_real<size>::type *sums, const char *stage_a,
                              const char *stage_b, int k)
{
    typedef typename kfi_real<size>::type real;
    constexpr int per = 16 / size, cols = kfi_warp_cols(tile) / 8,
                  transposed_a = layout & KFI_A_TRANSPOSED ? 1 : 0,
                  transposed_b = layout & KFI_B_TRANSPOSED ? 1 : 0;
    constexpr int pitch_a = kfi_simt_pitch(kfi_policy(tile).rows, size, transposed_a),
                  pitch_b = kfi_simt_pitch(kfi_policy(tile).cols, size, transposed_b);
    constexpr int beside_a = transposed_a ? per : 1, beside_b = transposed_b ? per : 1;
    const real *const rows = (const real *)stage_a, *const columns = (const real *)stage_b;
    const int warp = (int)threadIdx.x / 32, row = warp / kfi_policy(tile).warps_across * 32,
              col = warp % kfi_policy(tile).warps_across * kfi_warp_cols(tile);
    alignas(16) real a[8][per], b[per];
    if (transposed_a) {
#pragma unroll
        for (int e = 0; e < per; ++e)
#pragma unroll
            for (int i = 0; i < 8; i += per) {
                kfi_copy<16>(b, rows + (k + e) * pitch_a + row + kfi_lane_row<beside_a>(i));
#pragma unroll
                for (int n = 0; n < per; ++n) a[i + n][e] = b[n];
            }
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            kfi_copy<16>(a[i], rows + (row + kfi_lane_row<beside_a>(i)) * pitch_a + k);
    }
    if (transposed_b) {
#pragma unroll
        for (int e = 0; e < per; ++e)
#pragma unroll
            for (int j = 0; j < cols; j += per) {
                kfi_copy<16>(b, columns + (k + e) * pitch_b + col + kfi_lane_col<beside_b>(j));
#pragma unroll
                for (int n = 0; n < per; ++n)
#pragma unroll
                    for (int i = 0; i < 8; ++i)
                        sums[i * cols + j + n] = kfi_fma(a[i][e], b[n], sums[i * cols + j + n]);
            }
    } else {
#pragma unroll
        for (int j = 0; j < cols; ++j) {
            kfi_copy<16>(b, columns + (col + kfi_lane_col<beside_b>(j)) * pitch_b + k);
#pragma unroll
            for (int e = 0; e < per; ++e)
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    sums[i * cols + j] = kfi_fma(a[i][e], b[e], sums[i * cols + j]);
        }
    }
}

// Same as kfi_gemm_mma.
template <int type, int tile, int layout, int products, int how>
KFI_DEVICE void kfi_gemm_simt(typename kfi_real<kfi_of_real(type)>::type *sums,
                              const kfi_gemm_matrix &a, const kfi_gemm_matrix &b,
                              const kfi_gemm_tile &at, const kfi_gemm &g)
{
    constexpr int size = kfi_of_real(type), stages = kfi_policy(tile).stages,
                  rows = kfi_policy(tile).rows, cols = kfi_policy(tile).cols;
    constexpr int transposed_a = layout & KFI_A_TRANSPOSED ? 1 : 0,
                  transposed_b = layout & KFI_B_TRANSPOSED ? 1 : 0,
                  share = kfi_warp_cols(tile) / products;
    constexpr int bytes_a =
        (transposed_a ? 16 : rows) * kfi_simt_pitch(rows, size, transposed_a) * size;
    constexpr int bytes =
        bytes_a + (transposed_b ? 16 : cols) * kfi_simt_pitch(cols, size, transposed_b) * size;
    constexpr int stored = kfi_of_bytes(type), per = kfi_simt_per(type, how);
    constexpr int chunks_a = (transposed_a ? rows : 16) / per,
                  chunks_b = (transposed_b ? cols / products : 16) / per;
    char *const shared = kfi_dynamic();
    const int count = (at.end - at.begin + 15) / 16;
    kfi_gemm_cursor cursor_a = kfi_gemm_cursor_init<stored, per, tile, chunks_a, transposed_a>(
                        a.p[0], a.ld[0], at.row, g.rows, at.begin, at.end),
                    cursor_b[products];
#pragma unroll
    for (int p = 0; p < products; ++p)
        cursor_b[p] = kfi_gemm_cursor_init<stored, per, tile, chunks_b, transposed_b>(
            b.p[p], b.ld[p], at.col, g.cols, at.begin, at.end);
#define KFI_FETCH(n)                                                                               \
    if ((n) < count) {                                                                             \
        char *const to = shared + (n) % stages * bytes;                                            \
        kfi_simt_stage<type, tile, rows, 1, rows, transposed_a, how>(to, cursor_a, 0);             \
        kfi_gemm_cursor_advance<tile, transposed_a>(cursor_a);                                     \
        _Pragma("unroll") for (int p = 0; p < products; ++p)                                       \
        {                                                                                          \
            kfi_simt_stage<type, tile, cols / products, products, share, transposed_b, how>(       \
                to + bytes_a, cursor_b[p], p);                                                     \
            kfi_gemm_cursor_advance<tile, transposed_b>(cursor_b[p]);                              \
        }                                                                                          \
    }                                                                                              \
    kfi_fetch_commit()
#pragma unroll
    for (int n = 0; n < stages - 1; ++n) {
        KFI_FETCH(n);
    }
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
        const char *const stage = shared + n % stages * bytes;
        kfi_fetch_wait<stages - 2>(); // this stage has arrived
        __syncthreads();              // for all threads; the previous one may be overwritten
        KFI_FETCH(n + stages - 1);
#pragma unroll
        for (int k = 0; k < 16; k += 16 / size)
            kfi_simt_step<tile, size, layout>(sums, stage, stage + bytes_a, k);
    }
    __syncthreads();
#undef KFI_FETCH
}
#endif

#endif
