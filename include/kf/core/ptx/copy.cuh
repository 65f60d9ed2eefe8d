// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/copy.cuh: asynchronous copies to shared memory (cp.async), and prefetches.
#ifndef KF_CORE_PTX_COPY_CUH
#define KF_CORE_PTX_COPY_CUH

#include "kf/core/copy.cuh"

#ifdef KFI_DEVICE_PASS
// Asynchronous copy from global to shared memory (cp.async), for data that the same thread reads
// later; uses no registers. kfi_fetch_wait<n> returns when all but the last n commits have arrived.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <int bytes> KFI_DEVICE void kfi_fetch(void *shared, const void *global)
{
    if (bytes < 4) {
        kfi_copy<bytes>(shared, global);
    } else {
        const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global),
                     "n"(bytes < 4 ? 4 : bytes)
                     : "memory");
    }
}
KFI_DEVICE void kfi_fetch_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> KFI_DEVICE void kfi_fetch_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
#else
template <int bytes> KFI_DEVICE void kfi_fetch(void *shared, const void *global)
{
    kfi_copy<bytes>(shared, global);
}
KFI_DEVICE void kfi_fetch_commit() {}
template <int pending> KFI_DEVICE void kfi_fetch_wait() {}
#endif

// Prefetches an address to L1 or to L2.
KFI_DEVICE void kfi_prefetch_l1(const void *p)
{
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}
KFI_DEVICE void kfi_prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
#endif

#endif
