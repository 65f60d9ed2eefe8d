// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/mma.cuh: one function per instruction of sm_80 that matrix products use: cp.async
// with zero fill, ldmatrix, mma.sync.
#ifndef KF_CORE_PTX_MMA_CUH
#define KF_CORE_PTX_MMA_CUH

#include "kf/core/config.h"
#include "kf/core/product_types.cuh"

// 1 in code for sm_80 and later. Host code cannot see it: it reads the kernel's launch bound
// (KFI_GEMM_BOUNDS).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define KFI_MMA 1
#else
#define KFI_MMA 0
#endif

#ifdef KFI_DEVICE_PASS

// Copies 4, 8 or 16 bytes to shared memory asynchronously: the first `read` bytes, then zeros.
// kfi_fetch_commit and kfi_fetch_wait order them. 16-byte copies bypass L1. Before sm_80 the copy
// is synchronous and `read` must be a multiple of 4.
template <int bytes> KFI_DEVICE void kfi_cp_async(void *shared, const void *global, int read)
{
    static_assert(bytes == 4 || bytes == 8 || bytes == 16,
                  "kf: an asynchronous copy has 4, 8 or 16 bytes");
#if KFI_MMA
    const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                     "r"(read)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global),
                     "n"(bytes == 16 ? 8 : bytes), "r"(read)
                     : "memory");
#else
#pragma unroll
    for (int i = 0; i < bytes / 4; ++i)
        ((unsigned *)shared)[i] = 4 * i < read ? ((const unsigned *)global)[i] : 0;
#endif
}

#if KFI_MMA

// Loads four 8 x 8 matrices of 2-byte elements (ldmatrix.x4). Lane l supplies the address of row l
// % 8 of matrix l / 8, and receives of each matrix elements 2 (l % 4) and the next of row l / 4
// (transposed: column l / 4).
template <int transposed> KFI_DEVICE void kfi_ldmatrix(unsigned *v, const void *shared)
{
    const unsigned from = (unsigned)__cvta_generic_to_shared(shared);
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(from)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(from)
                     : "memory");
}

// d += a . b, 16 x 16 times 16 x 8 (mma.sync). With g = l / 4 and t = 2 (l % 4) lane l holds: in d
// row g, columns t and t + 1, then row g + 8; in a the same rows' elements t and t + 1 of K, then
// (a[2], a[3]) t + 8 and t + 9; in b the same of column g.
template <int type> KFI_DEVICE void kfi_mma(float *d, const unsigned *a, const unsigned *b)
{
    if (type == KFI_OF_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, "
                     "%5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, "
                     "%6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// d += a . b, 16 x 8 times 8 x 8 of TF32, whose lowest 13 bits are ignored. d is as above. Lane l
// holds: in a row g, then g + 8, element l % 4 of K, then (a[2], a[3]) element l % 4 + 4; in b the
// same elements of column g.
KFI_DEVICE void kfi_mma_tf32(float *d, const unsigned *a, const unsigned *b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, "
        "%6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

#endif

#endif
