// SPDX-License-Identifier: Apache-2.0
// kf/core/cluster.cuh: thread block clusters (sm_90 and later): rank of a block, cluster barrier.
#ifndef KF_CORE_CLUSTER_CUH
#define KF_CORE_CLUSTER_CUH

#include "kf/core/vector.cuh"

#if defined(KF_EMULATE) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
#define KFI_CLUSTERS 1
#else
#define KFI_CLUSTERS 0
#endif

#ifdef KFI_DEVICE_PASS
#if KFI_CLUSTERS
KFI_DEVICE int kfi_cluster_rank()
{
#ifdef KFI_PTX
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
#else
    return (int)kf_emu_cluster_rank();
#endif
}
// The cluster barrier: all threads of all blocks arrive, then wait.
KFI_DEVICE void kfi_cluster_arrive()
{
#ifdef KFI_PTX
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
    kf_emu_cluster_arrive();
#endif
}
KFI_DEVICE void kfi_cluster_wait()
{
#ifdef KFI_PTX
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    kf_emu_cluster_wait();
#endif
}
#endif
#endif

#endif
