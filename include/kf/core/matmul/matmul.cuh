// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/matmul.cuh: device code of matrix products: accumulators of A . B for a kernel's
// epilogue. tile.cuh distributes the work; mma.cuh, simt.cuh, hopper.cuh, tf32.cuh, skinny.cuh and
// skinny_f32.cuh have the mainloops; load.cuh fills shared memory; pick.cuh picks tiles.
#ifndef KF_CORE_MATMUL_MATMUL_CUH
#define KF_CORE_MATMUL_MATMUL_CUH

#include "kf/core/matmul/skinny_f32.cuh"
#include "kf/core/matmul/mma.cuh"
#include "kf/core/matmul/pick.cuh"
#include "kf/core/matmul/simt.cuh"
#include "kf/core/matmul/tf32.cuh"

// Without mma.sync the code of an mma.sync tile is empty and its launch bound is one warp. The host
// recognises it by that (kfi_gemm_has_mma).
#ifdef KFI_DEVICE_PASS
#define KFI_GEMM_BOUNDS(tile)                                                                      \
    __launch_bounds__(KFI_MMA || !kfi_policy(tile).mma ? kfi_policy(tile).threads : 32,            \
                      kfi_policy(tile).min_blocks)
#else
#define KFI_GEMM_BOUNDS(tile)
#endif

#ifdef KFI_DEVICE_PASS
// Returns whether this code ever runs: with 2-byte elements SIMT tiles are for devices without
// mma.sync.
template <int type, int tile> KFI_DEVICE constexpr bool kfi_gemm_runs()
{
    return kfi_policy(tile).mma ? KFI_MMA : !KFI_MMA || kfi_of_bytes(type) > 2;
}
// Adds a tile's part of A . B to the accumulators.
template <int type, int tile, int layout, int products, int how>
KFI_DEVICE void kfi_gemm_add(typename kfi_real<kfi_of_real(type)>::type *sums,
                             const kfi_gemm_matrix &a, const kfi_gemm_matrix &b,
                             const kfi_gemm_tile &at, const kfi_gemm &g)
{
    if constexpr (!kfi_policy(tile).mma) {
        kfi_gemm_simt<type, tile, layout, products, how>(sums, a, b, at, g);
    } else {
#if KFI_MMA
        kfi_gemm_mma<type, tile, layout, products, how>(sums, a, b, at, g);
#endif
    }
}
#endif

#endif
