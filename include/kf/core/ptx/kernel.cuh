// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/kernel.cuh: what a kernel receives from its launch: dynamic shared memory, and the
// start after the previous kernel.
#ifndef KF_CORE_PTX_KERNEL_CUH
#define KF_CORE_PTX_KERNEL_CUH

#include "kf/core/config.h"

#ifdef KFI_DEVICE_PASS
// Returns the CTA's dynamic shared memory.
KFI_DEVICE char *kfi_dynamic()
{
    extern __shared__ uint4 kfi_dynamic_memory[];
    return (char *)kfi_dynamic_memory;
}

// The same, aligned to 1,024 bytes as boxes with a 128-byte swizzle need: the address is then known
// when the kernel is compiled.
KFI_DEVICE char *kfi_dynamic_1024()
{
    extern __shared__ __align__(1024) char kfi_dynamic_memory_1024[];
    return kfi_dynamic_memory_1024;
}

// Tells whether subnormals are flushed to zero (-ftz=true, part of --use_fast_math), which no macro
// reports. The device compiler answers and drops the other branch.
#if (defined(__CUDA_ARCH__) && defined(__NVCC__)) || defined(__CUDACC_RTC__)
#define KFI_ASKS_FLUSH 1
extern "C" __device__ int __nvvm_reflect(const char *);
#endif

// Begins every kernel. A kernel launched early (kfi_overlaps) waits here until the previous kernel
// has finished and its writes are visible; from here on, the next kernel may start.
KFI_DEVICE void kfi_begin()
{
#if defined(KFI_ASKS_FLUSH) && !defined(KF_ALLOW_FAST_MATH)
    if (__nvvm_reflect("__CUDA_FTZ"))
        asm volatile("kf_refuses_use_fast_math_and_ftz_unless_KF_ALLOW_FAST_MATH_is_defined;");
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
#endif

#endif
