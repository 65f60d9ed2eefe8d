// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/matmul.cuh: products of matrices: out = f(A . B), where a kernel brings f along.
// tile.cuh says how the work is shared out, mma.cuh, simt.cuh, hopper.cuh and
// skinny.cuh add up, load.cuh fills shared memory, pick.cuh chooses.
#ifndef KF_CORE_MATMUL_MATMUL_CUH
#define KF_CORE_MATMUL_MATMUL_CUH

#include "kf/core/matmul/skinny.cuh"
#include "kf/core/matmul/mma.cuh"
#include "kf/core/matmul/pick.cuh"
#include "kf/core/matmul/simt.cuh"
#include "kf/core/matmul/tf32.cuh"

// Code for a tile of mma.sync is empty where there are no such instructions. Host code sees it by
// how many threads the kernel may have.
#ifdef KFI_DEVICE_PASS
#define KFI_GEMM_BOUNDS(tile)                                                                      \
    __launch_bounds__(KFI_MMA || !kfi_policy(tile).mma ? kfi_policy(tile).threads : 32,            \
                      kfi_policy(tile).min_blocks)
#else
#define KFI_GEMM_BOUNDS(tile)
#endif

#ifdef KFI_DEVICE_PASS
// Whether this code is ever run: of elements of 2 bytes the tiles without mma.sync are for devices
// that have none.
template <int type, int tile> KFI_DEVICE constexpr bool kfi_gemm_runs()
{
    return kfi_policy(tile).mma ? KFI_MMA : !KFI_MMA || kfi_of_bytes(type) > 2;
}
// Adds a block's part of A . B to the sums: size bytes of a number that sums are made of.
template <int type, int tile, int layout, int products, int how>
KFI_DEVICE void kfi_gemm_add(typename kfi_real<kfi_of_real(type)>::type *sums,
                             const kfi_gemm_side &a, const kfi_gemm_side &b, const kfi_gemm_at &at,
                             const kfi_gemm &g)
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
