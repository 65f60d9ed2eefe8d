// SPDX-License-Identifier: Apache-2.0
// kf/core/kernel.cuh: the base of every family's CUDA headers. It includes vector access,
// random bits, argument checks and the launch, and defines division by a launch constant and the
// block limits of __launch_bounds__.
#ifndef KF_CORE_KERNEL_CUH
#define KF_CORE_KERNEL_CUH

#include "kf/core/dropout.cuh"

#ifndef __CUDACC_RTC__
#ifndef KFI_DRIVER
#include <cuda_runtime.h>
#endif
#include <stdint.h>
#endif

#if defined(KFI_DECLARED_KF_LAUNCHERS) && !defined(KFI_LAUNCHERS_SOURCE)
#error "kf: include kf_launchers.h after kf.cuh, where it declares nothing, or leave it out"
#endif

// Blocks of 256 threads that an SM is asked to hold, 8 or 6: not more than its threads allow, or
// ptxas warns of every kernel. Architectures that are not listed have 2,048 threads. Plain numbers:
// each kernel's declaration is parsed by all of nvcc's passes.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
#define KFI_BLOCKS_8 4
#define KFI_BLOCKS_6 4
#elif defined(__CUDA_ARCH__) &&                                                                    \
    (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870 || __CUDA_ARCH__ == 880 ||                       \
     __CUDA_ARCH__ == 890 || __CUDA_ARCH__ == 1100 || __CUDA_ARCH__ == 1200 ||                     \
     __CUDA_ARCH__ == 1210)
#define KFI_BLOCKS_8 6
#define KFI_BLOCKS_6 6
#else
#define KFI_BLOCKS_8 8
#define KFI_BLOCKS_6 6
#endif

// n / d for n < 2^63 by one multiplication (Granlund & Montgomery 1994).
struct kfi_divisor {
    unsigned long long d, multiplier, one; // one: all ones for d = 1, where the multiplier is 0
    unsigned shift;
};

#ifdef KFI_DEVICE_PASS

KFI_DEVICE kf_i64 kfi_divide(kf_i64 n, const kfi_divisor &d)
{
    return (kf_i64)((__umul64hi((unsigned long long)n, d.multiplier) >> d.shift) |
                    ((unsigned long long)n & d.one));
}

#ifdef KFI_LAUNCHER_NAMES
#include "kf/core/result.h"
KF_FN kf_result_t kfi_named(const void *const *, const void *const * = nullptr)
{
    return KF_SUCCESS;
}
#endif

#endif

#ifdef KFI_HOST_PASS
#include "kf/core/check.h"
#include "kf/core/launch.cuh"

KF_FN KFI_SMALL kfi_divisor kfi_make_divisor(kf_i64 d)
{
    kfi_divisor r = {(kfi_u64)d, 0, ~(kfi_u64)0, 0};
    if (d > 1) { // ceil(2^(63 + bits) / d): below 2^64, exact for numerators below 2^63
        int bits = 0;
        while (((kfi_u64)1 << bits) < (kfi_u64)d) ++bits;
        const unsigned __int128 top = (unsigned __int128)1 << (63 + bits);
        r.multiplier = (kfi_u64)((top + (kfi_u64)d - 1) / (kfi_u64)d);
        r.shift = (unsigned)(bits - 1);
        r.one = 0;
    }
    return r;
}

KF_FN kf_i64 kfi_ceil(kf_i64 a, kf_i64 b) { return (a + b - 1) / b; }
KF_FN kf_i64 kfi_clamp(kf_i64 v, kf_i64 low, kf_i64 high)
{
    return v > high ? (high < low ? low : high) : v < low ? low : v;
}

#ifndef KFI_MAP_SMS
#define KFI_MAP_SMS 132
#endif

#endif

#endif
