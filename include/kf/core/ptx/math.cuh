// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/math.cuh: approximate functions, and maxima and minima that keep NaN.
#ifndef KF_CORE_PTX_MATH_CUH
#define KF_CORE_PTX_MATH_CUH

#include "kf/core/config.h"

#ifdef KFI_DEVICE_PASS
// One MUFU instruction each, without the range code of the non-ftz forms. Callers keep argument and
// result normal.
KFI_DEVICE float kfi_ex2_ftz(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
KFI_DEVICE float kfi_rcp_ftz(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
KFI_DEVICE float kfi_lg2_ftz(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
KFI_DEVICE float kfi_lg2(float x)
{
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
KFI_DEVICE float kfi_sqrt_approx(float x)
{
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// NaN if either is.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
KFI_DEVICE float kfi_max_f32(float a, float b)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
KFI_DEVICE float kfi_min_f32(float a, float b)
{
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
#else
KFI_DEVICE float kfi_max_f32(float a, float b) { return a > b || a != a ? a : b; }
KFI_DEVICE float kfi_min_f32(float a, float b) { return a < b || a != a ? a : b; }
#endif

// Packed pairs of 2-byte elements: the larger, or the smaller, of each; NaN if either is. sm_80.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define KFI_PACKED_MAX 1
KFI_DEVICE unsigned kfi_max_f16x2(unsigned a, unsigned b)
{
    unsigned r;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
KFI_DEVICE unsigned kfi_min_f16x2(unsigned a, unsigned b)
{
    unsigned r;
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
KFI_DEVICE unsigned kfi_max_bf16x2(unsigned a, unsigned b)
{
    unsigned r;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
KFI_DEVICE unsigned kfi_min_bf16x2(unsigned a, unsigned b)
{
    unsigned r;
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
#else
#define KFI_PACKED_MAX 0
#endif
#endif

#endif
