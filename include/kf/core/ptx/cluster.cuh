// SPDX-License-Identifier: Apache-2.0
// kf/core/ptx/cluster.cuh: thread block clusters (sm_90 and later): rank of a block, cluster
// barrier, stores to the shared memory of other blocks, some completed through mbarriers.
#ifndef KF_CORE_PTX_CLUSTER_CUH
#define KF_CORE_PTX_CLUSTER_CUH

#include "kf/core/config.h"

// 1 in code for sm_90 and later.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define KFI_CLUSTERS 1
#else
#define KFI_CLUSTERS 0
#endif

#ifdef KFI_DEVICE_PASS
#if KFI_CLUSTERS
KFI_DEVICE int kfi_cluster_rank()
{
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}
// The cluster barrier: all threads of all blocks arrive, then wait.
KFI_DEVICE void kfi_cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
KFI_DEVICE void kfi_cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Exchange of values within a cluster. A block waits on its mbarrier; one thread of each block
// sends to it and announces the number of bytes (expect). A cluster barrier would be slower: it
// waits until all earlier stores have reached memory.
KFI_DEVICE unsigned kfi_shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
KFI_DEVICE void kfi_mbarrier_open(unsigned long long *barrier)
{
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(
            kfi_shared(barrier))
        : "memory");
}
KFI_DEVICE void kfi_mbarrier_expect(unsigned long long *barrier, int bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(kfi_shared(barrier)),
        "r"(bytes)
        : "memory");
}
KFI_DEVICE void kfi_mbarrier_await(unsigned long long *barrier, int phase)
{
    asm volatile("{\n\t.reg .pred come;\nagain:\n\tmbarrier.try_wait.parity.shared::cta.b64 come, "
                 "[%0], %1;\n\t@!come bra again;\n\t}" ::"r"(kfi_shared(barrier)),
                 "r"(phase)
                 : "memory");
}
KFI_DEVICE unsigned kfi_cluster_place(const void *p, int rank)
{
    unsigned place;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(kfi_shared(p)), "r"(rank));
    return place;
}
KFI_DEVICE void kfi_cluster_send(float *slot, unsigned long long *barrier, int rank, float v)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
            kfi_cluster_place(slot, rank)),
        "f"(v), "r"(kfi_cluster_place(barrier, rank))
        : "memory");
}
KFI_DEVICE void kfi_cluster_send(double *slot, unsigned long long *barrier, int rank, double v)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f64 [%0], %1, [%2];" ::"r"(
            kfi_cluster_place(slot, rank)),
        "d"(v), "r"(kfi_cluster_place(barrier, rank))
        : "memory");
}
// Stores to the slot of another block. The next cluster barrier makes the value visible.
KFI_DEVICE void kfi_cluster_store(float *slot, int rank, float v)
{
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(kfi_cluster_place(slot, rank)), "f"(v)
                 : "memory");
}
KFI_DEVICE void kfi_cluster_store(double *slot, int rank, double v)
{
    asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(kfi_cluster_place(slot, rank)), "d"(v)
                 : "memory");
}
#endif
#endif

#endif
