/* SPDX-License-Identifier: Apache-2.0 */
/* kf/core/matmul/width.h: matrix products in C of all element types for one vector width,
   KFI_GEMM_BYTES. Included by core/matmul/matmul.h once per width; empty otherwise. */
#ifdef KFI_GEMM_BYTES

#if KFI_GEMM_BYTES == 64
#define KFI_GEMM_TARGET __attribute__((target("avx512f,avx2,fma,f16c")))
#elif KFI_GEMM_BYTES == 32
#define KFI_GEMM_TARGET __attribute__((target("avx2,fma,f16c")))
#else
#define KFI_GEMM_TARGET
#endif
#define KFI_GEMM_INLINE KFI_GEMM_TARGET KFI_INLINE
#define KFI_GEMM_FUNCTION KFI_GEMM_TARGET static KFI_APART KFI_GEMM_UNUSED

#define KFI_GEMM_TYPE f32
#define KFI_GEMM_KIND 0
#include "kf/core/matmul/lanes.h"

#define KFI_GEMM_TYPE f64
#define KFI_GEMM_KIND 1
#include "kf/core/matmul/lanes.h"

#define KFI_GEMM_TYPE f16
#define KFI_GEMM_KIND 2
#include "kf/core/matmul/lanes.h"

#define KFI_GEMM_TYPE bf16
#define KFI_GEMM_KIND 3
#include "kf/core/matmul/lanes.h"

#undef KFI_GEMM_TARGET
#undef KFI_GEMM_INLINE
#undef KFI_GEMM_FUNCTION
#undef KFI_GEMM_BYTES

#endif
