// SPDX-License-Identifier: Apache-2.0
// kf/core/matmul/host.cuh: host code that matmul forwards and backwards share: kernel tables,
// sizes, alignment.
#ifndef KF_CORE_MATMUL_HOST_CUH
#define KF_CORE_MATMUL_HOST_CUH

#include "kf/core/matmul/skinny_f32_host.cuh"
#include "kf/core/matmul/sum.cuh"
#include "kf/core/schedules.cuh"

#ifdef KFI_HOST_PASS
#include "kf/core/matmul/check.h"
#include "kf/core/launch.cuh"

// Number of a product's kernels, by bytes of an element. The last one reduces splits; the one
// before it (not for doubles) is wgmma's.
KF_FN int kfi_gemm_kernels(int bytes) { return bytes == 2 ? 7 : bytes == 4 ? 6 : 3; }
KF_FN int kfi_gemm_wgmma_kernel(int bytes) { return kfi_gemm_kernels(bytes) - 2; }
// Index of a choice's kernel among them.
KF_FN int kfi_gemm_kernel_of(const kfi_gemm_choice &choice, int bytes)
{
    const int first = bytes == 2   ? KFI_TILE_MMA_128x128
                      : bytes == 4 ? KFI_TILE_SIMT_128x128
                                   : KFI_TILE_SIMT_64x64;
    const int count = bytes == 8 ? 1 : 2; // tiles by cp.async
    if (bytes == 2 && choice.tile == KFI_TILE_SIMT_64x64) return 4;
    return (choice.how == KFI_CP_ASYNC ? 0 : count) + choice.tile - first;
}

// Returns whether the code that the device runs has mma.sync: other code has a launch bound of one
// warp.
KF_FN KFI_SMALL bool kfi_gemm_has_mma(const void *kernel)
{
#ifdef KFI_ARCHITECTURES
    const int list[] = {KFI_ARCHITECTURES};
    bool all = true;
    for (int arch : list) all = all && arch >= 800;
    if (all) return true;
#endif
#ifdef KFI_DRIVER
    (void)kernel;
    return false; // kernels are compiled for the device
#else
    cudaFuncAttributes found;
    return cudaFuncGetAttributes(&found, kernel) != cudaSuccess ||
           found.maxThreadsPerBlock > 32; // without any code the launch fails
#endif
}

KF_FN KFI_SMALL kfi_gemm_sizes kfi_gemm_make_sizes(const kf_i64 *sizes, int products, int bytes)
{
    const kfi_gemm_sizes s = {sizes[KFI_AXIS_ROWS],
                              sizes[KFI_AXIS_COLS],
                              sizes[KFI_AXIS_DEPTH],
                              sizes[KFI_AXIS_BATCH],
                              products,
                              bytes,
                              true,
                              true,
                              false};
    return s;
}

// Picks among the portable kernels that are compiled (KF_SCHEDULES), and sets s->mma.
KF_FN KFI_SMALL kfi_gemm_choice kfi_gemm_pick_of(kfi_gemm_sizes *s, const void *const *kernels)
{
    const void *const one = s->bytes != 2 || kernels[1] ? kernels[1] : kernels[3];
    s->mma = s->bytes != 2 || !one || kfi_gemm_has_mma(one);
    kfi_gemm_sizes own = *s;
    own.whole = s->whole && kernels[0];
    return kfi_gemm_pick(own);
}
KF_FN KFI_SMALL kf_result_t kfi_gemm_left_out(const kfi_name *name)
{
    return kfi_fail(KF_ERROR_UNSUPPORTED, name, "launch",
                    "has no kernel for these sizes and alignments: KF_SCHEDULES leaves it out");
}

// Returns whether rows and matrices of a tensor begin at multiples of 16 bytes.
KF_FN KFI_SMALL bool kfi_gemm_whole(const kfi_gemm_tensors &t, int tensor, int size)
{
    return ((kf_i64)(uintptr_t)t.p[tensor] | t.ld[tensor] * size | t.matrix[tensor] * size) % 16 ==
           0;
}
// Fills in the tensors of a call; returns how many there are.
KF_FN KFI_SMALL int kfi_gemm_fill_tensors(kfi_gemm_tensors *t, const char *shapes, kf_i64 cols,
                                          const kfi_operands &given, const kfi_gemm_steps *from,
                                          kfi_gemm_steps *steps)
{
    kfi_operands operands;
    const int count = kfi_gemm_split_joined(shapes, cols, from, &given, steps, &operands);
    for (int i = 0; i < count; ++i) {
        t->p[i] = const_cast<void *>(operands.of[i].ptr);
        t->ld[i] = steps[i].vector ? 0 : steps[i].step[steps[i].outer];
        t->matrix[i] = steps[i].step[KFI_AXIS_BATCH];
    }
    return count;
}
#endif

#endif
